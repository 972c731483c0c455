"""A task that does not know Zeus, measured by the listener of ``[zeus] measure``.

Nothing is asked before it runs. Its row is written at its end; of a longer task from its first
heartbeat on, so that it is there if the task is killed.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import OUTSIDE, State, Trial, TrialKey
from airflow_provider_zeus.operators.config import ZeusConfig
from airflow_provider_zeus.operators.mixins import job_id_of
from airflow_provider_zeus.operators.origin import origin_of
from airflow_provider_zeus.operators.result_writer import ResultWriter, masked_line
from airflow_provider_zeus.operators.task_measurement import TaskEnd, TaskMeasurement
from airflow_provider_zeus.optimizer.policy import measured
from airflow_provider_zeus.patience import bounded
from airflow_provider_zeus.power.task_meter import TaskMeter
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.store.open import DEFAULT_CONN_ID, open_store
from airflow_provider_zeus.store.pending import drain, kept_files, remember
from airflow_provider_zeus.training.error_text import error_text
from airflow_provider_zeus.training.protocol.events import ResultLine

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store

LEAST_S = 1.0  # most tasks of a site take less, and would fill the log
STORE_S = 2.0  # such a task does not know of Zeus, and must not become slower
SLOWER = 4  # a site has many such tasks, and each heartbeat writes

log = guarded_log(__name__)


class OutsideMeasurement:
    """Measures a task from its construction to :meth:`end`.

    :param ti: the task instance, as Airflow hands it to listeners in the task's own process.
    """

    def __init__(self, ti: Any) -> None:
        import airflow_provider_zeus.store.sql.store  # noqa: F401
        # Here, since a thread that imports while the task forks leaves a locked module in the
        # child.

        config = ZeusConfig.read()
        self.ti_id = str(ti.id)
        self._row = OutsideRow(new_trial(ti), config)
        self._measurement = TaskMeasurement(
            self._row,
            partial(open_meter, config),
            attempt=self._row.trial.key.attempt,
            heartbeat_s=SLOWER * config.heartbeat_s,
        )

    def end(self, *, failed: bool, error: BaseException | str | None, reason: str | None) -> None:
        """Write the cost of the task.

        A store that does not take it in time gets it later, from a file.

        :param error: why it failed, as Airflow tells listeners.
        :param reason: why it did not end as usual, though it did not fail.
        """
        # set first: all that follows shares the two seconds
        self._row.until_s = time.monotonic() + STORE_S
        if error:
            reason = error_text(error) if isinstance(error, BaseException) else error
        state = State.FAILED if failed else State.DONE
        self._measurement.end(TaskEnd(state, reason))


class OutsideRow:
    """Sink of the result lines of a task that is measured from outside: writes them to its row.

    Raises nothing.

    :param trial: the row, without a number yet.
    """

    def __init__(self, trial: Trial, config: ZeusConfig) -> None:
        self.trial = trial
        self.until_s = 0.0  # one limit for all writes of an end, each of which may hang
        self._state_dir = config.state_dir
        lease_s = SLOWER * config.lease_s
        self._writer = ResultWriter(None, trial, lease_s=lease_s, reopen=open_log)
        self._writing = threading.Lock()
        self._has_row = False

    def __call__(self, line: ResultLine) -> None:
        """Write a heartbeat, in the thread that measures, or the end, which waits for a moment."""
        if line.kind == "beat":
            self._has_row = True  # already: the write may succeed and its answer be lost
            self._beat(masked_line(line))
        elif line.kind == "end" and self._is_worth_a_row(line):
            self._end(masked_line(line))

    def _is_worth_a_row(self, line: ResultLine) -> bool:
        time_s = line.figures.time_s
        return self._has_row or time_s is None or time_s >= LEAST_S

    def _beat(self, line: ResultLine) -> None:
        try:
            self._write(line)
        except NoLogForOutsideError as error:
            # at the end it is told once, not at each heartbeat
            log.debug("Zeus: %s", error)
        except Exception as error:
            log.warning("Zeus could not write a heartbeat (%s). It is tried again.", error)

    def _end(self, line: ResultLine) -> None:
        try:
            bounded(partial(self._write, line), self._left_s)
        except NoLogForOutsideError as error:
            log.warning("Zeus: %s", error)
        except Exception as error:
            self._keep(line, type(error).__name__)
        else:
            self._store_kept()

    @property
    def _left_s(self) -> float:
        """How long the end of the task may still wait for the store [s]."""
        return max(self.until_s - time.monotonic(), 0.0)

    def _store_kept(self) -> None:
        """Store the ends that earlier tasks of this host kept in files; the rest stays
        there.
        """

        def store_all() -> None:
            drain(open_log(), None, self.trial.job_id, state_dir=self._state_dir, with_outside=True)

        # most tasks keep nothing: then no store is opened a second time
        if not kept_files(self._state_dir):
            return
        try:
            bounded(store_all, self._left_s)
        except Exception as error:
            log.info("Zeus stores later what earlier tasks kept (%s).", type(error).__name__)

    def _write(self, line: ResultLine) -> None:
        with self._writing:  # a heartbeat may still hang in the store when the task ends
            self._writer.take(line)

    def _keep(self, line: ResultLine, why: str) -> None:
        """Keep the end in a file of this host.

        Raises StoreError with the figures if it cannot be written either.
        """
        place = remember(
            None,
            self._writer.key_of(self.trial.key.attempt),
            line.ended_in,
            report=self._writer.report(line),
            job_id=self.trial.job_id,
            reason=line.reason,
            trial=self.trial,
            state_dir=self._state_dir,
        )
        log.warning("Zeus could not store what this task took (%s): %s.", why, visible(place))


class NoLogForOutsideError(Exception):
    """The trial log takes no rows of tasks that are measured from outside."""


def open_log() -> Store:
    """The trial log of this host.

    Raises StoreError, and NoLogForOutsideError if Airflow's Variables hold it.
    """
    store = open_store(DEFAULT_CONN_ID)
    if store.takes_outside:
        return store
    raise NoLogForOutsideError(
        "[zeus] measure does nothing, since the run log is in Airflow's Variables, which would not "
        "hold so many rows: define Connection zeus_default to a PostgreSQL database."
    )


def open_meter(config: ZeusConfig) -> TaskMeter:
    """The devices that measure the task on this host."""
    device = "auto" if has_gpu_file() else "rapl"
    return TaskMeter.open(device, config.state_dir, cpu_watts=config.measured_watts)


def has_gpu_file() -> bool:
    """Whether this host shows a file of an NVIDIA GPU.

    Without one its driver's library need not be imported.
    """
    devices = Path("/dev")
    return (devices / "dxg").exists() or any(devices.glob("nvidia[0-9]*"))


def new_trial(ti: Any) -> Trial:
    """The row of a task that begins now, without a number and a figure yet."""
    job = ZeusJob(mode="measure")
    decision = measured(job, why="Named by [zeus] measure.", policy=OUTSIDE)
    return Trial(
        job_id=job_id_of(job, ti),
        number=0,
        key=TrialKey(str(ti.id)),
        origin=origin_of(ti.get_template_context()),
        spec=job.to_dict(),
        decision=decision,
        planned=decision.attempts[0],
        state=State.RUNNING,
        opened_at=time.time(),
    )
