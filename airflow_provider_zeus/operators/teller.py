"""Takes the lines of a training's result to the store; what cannot be told is kept for later."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.operators.run_rows import RunRows, planned_of
from airflow_provider_zeus.operators.store_thread import Handed, StoreThread
from airflow_provider_zeus.optimizer.cost import Weights, observed_cost
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.points import thinned
from airflow_provider_zeus.optimizer.trial import DeviceInfo, Observation, State, Trial
from airflow_provider_zeus.store.base import Store
from airflow_provider_zeus.store.untold import VARIABLE_S, remember
from airflow_provider_zeus.store.variable import VariablePort
from airflow_provider_zeus.training.plan import Line
from airflow_provider_zeus.training.signals import AttemptOver
from airflow_provider_zeus.visible import visible

RUN_S = 30.0  # that a run waits for its store in all: question, beginnings and ends of attempts
BEGIN_S = 1.0  # for the beginning of an attempt
STOPPED_S = 1.0  # in all, once the task is being stopped: Airflow kills it 5 s after its signal

log = logging.getLogger(__name__)


class Teller:
    """Sink of one plan's result lines. Raises nothing; no beat waits for the store.

    The store is written to by a thread of its own. An end waits for it, for half of what is left of the run's
    :data:`RUN_S` seconds; one that is not stored by then is remembered in a Variable, or in a file. A task that is
    being stopped waits for :data:`STOPPED_S` seconds in all, and remembers in a file.

    :param store: None when it could not even be asked; then ``reopen`` is tried from time to time.
    :param left_s: seconds that this run may still wait.
    :param reopen: opens the store, or raises StoreError.
    """

    def __init__(
        self,
        store: Store | None,
        port: VariablePort,
        first: Trial,
        *,
        lease_s: float,
        state_dir: Path,
        left_s: float = RUN_S,
        reopen: Callable[[], Store] | None = None,
    ) -> None:
        self._port, self._first, self._state_dir = port, first, state_dir
        self._rows = RunRows(store, first, lease_s=lease_s, reopen=reopen)
        self._thread = StoreThread(self._take)
        self._left_s = left_s
        self._stopped = self._failing = False
        self._ended: list[tuple[Line, str | None]] = []  # end lines, with where an untold one is kept
        self._kept: tuple[str, int | None] | None = None  # (start id, attempt)

    def __call__(self, line: Line) -> None:
        """Take one line."""
        if line.kind == "final":
            self._kept = (line.start_id, line.attempt)
        if line.attempt is None or line.kind in ("start", "final"):
            return
        if stops_the_task(sys.exc_info()[1]):
            self.hurry()
        if line.kind == "end":
            self._ended.append((line, self._end(line.attempt, line)))
        elif not self.ended(line.start_id, line.attempt):
            handed = self._thread.put(line)
            if line.kind == "attempt":
                self._wait(handed, BEGIN_S)

    def ended(self, start_id: str, attempt: int) -> bool:
        """Whether this start's end of an attempt came already."""
        return any((end.start_id, end.attempt) == (start_id, attempt) for end, _ in self._ended)

    def hurry(self) -> None:
        """The task is being stopped: wait a moment only, and for no API. A signal handler may call it."""
        if not self._stopped:
            self._stopped, self._left_s = True, min(self._left_s, STOPPED_S)

    @property
    def stopped(self) -> bool:
        """Whether the task is being stopped."""
        return self._stopped

    def _take(self, line: Line) -> None:
        """Take a line to the store, in its thread. Raises StoreError."""
        try:
            self._rows.take(line)
            self._failing = False
        except Exception as error:
            if line.kind != "end":
                level = logging.DEBUG if self._failing else logging.WARNING  # once, until the store takes lines again
                log.log(level, "Zeus could not write to its store: %s It is tried again.", error)
            self._failing = True
            raise

    def _end(self, attempt: int, line: Line) -> str | None:
        """Tell an attempt's end; where it is kept for later when the store does not take it in time."""
        handed = self._thread.put(line)
        begun_s = time.monotonic()
        if not self._wait(handed, self._left_s if self._stopped else self._left_s / 2):
            waited_s = time.monotonic() - begun_s
            return self._remember(attempt, handed.line, StoreError(f"The store has not answered for {waited_s:.1f} s."))
        return None if handed.error is None else self._remember(attempt, handed.line, handed.error)

    def _wait(self, handed: Handed, most_s: float) -> bool:
        """Whether a line was dealt with in time; what was waited counts."""
        begun_s = time.monotonic()
        try:
            return handed.done.wait(min(most_s, self._left_s))
        except BaseException:  # of a signal handler
            self.hurry()
            raise
        finally:
            self._left_s = max(self._left_s - (time.monotonic() - begun_s), 0.0)

    def _remember(self, attempt: int, line: Line, error: Exception) -> str:
        first, report = self._first, self._rows.report(line)
        key, state = self._rows.key_of(attempt), line.state or State.FAILED
        row = replace(first, key=key, planned=planned_of(first, line))
        report = replace(report, points=thinned(report.points))
        port = None if self._stopped else self._port
        most_s, begun_s = min(VARIABLE_S, self._left_s / 2), time.monotonic()
        where_to: dict[str, Any] = {"trial": row, "state_dir": self._state_dir, "most_s": most_s}
        try:
            where = remember(port, key, state, report, first.job_id, line.reason, **where_to)
        except StoreError as worse:
            seen, job_id = report.observation, visible(first.job_id)
            log.error(
                "Zeus lost the cost of attempt %d, which a person may enter (job %s, batch size %d, %s): %s J, %s s, "
                "%s epochs. %s %s",
                *(attempt, job_id, row.batch_size, state, seen.energy_j, seen.time_s, seen.epochs, error, worse),
            )
            return "lost"
        finally:
            self._left_s = max(self._left_s - (time.monotonic() - begun_s), 0.0)
        log.warning("Zeus could not tell the cost of attempt %d: %s It is kept in %s.", attempt, error, visible(where))
        return where

    @property
    def kept_end(self) -> Line | None:
        """The end of the attempt whose model is kept, None where there is none (yet)."""
        return next((end for end, _ in self._ended if (end.start_id, end.attempt) == self._kept), None)

    def cost_xcom(self) -> dict[str, Any]:
        """XCom ``zeus_cost``: what this run cost, attempt by attempt, as plain JSON. None where a figure is missing."""
        job = ZeusJob.from_dict(self._first.spec)
        attempts = [
            {"phase": planned_of(self._first, line).phase.value, **_attempt_xcom(job, line, untold)}
            for line, untold in self._ended
        ]
        kept = self.kept_end
        return {
            "job_id": self._first.job_id,
            "batch_size": kept.batch_size if kept else None,
            "kept_attempt": kept.attempt if kept else None,
            "energy_j": _sum(attempts, "energy_j"),
            "time_s": _sum(attempts, "time_s"),
            "cost": _sum(attempts, "cost"),
            "eta": job.eta,
            "energy_source": attempts[-1]["energy_source"] if attempts else None,
            "attempts": attempts,
        }


def stops_the_task(error: BaseException | None) -> bool:
    """Whether an exception on its way out says that the task is being stopped: time limit, ``on_kill``, interrupt."""
    return error is not None and not isinstance(error, Exception | AttemptOver | GeneratorExit)


def _attempt_xcom(job: ZeusJob, line: Line, untold: str | None) -> dict[str, Any]:
    o = line.observation or Observation()
    device = DeviceInfo(model=o.device_model or "", max_power_w=o.max_power_w, energy_source=o.energy_source)
    return {
        "attempt": line.attempt,
        "batch_size": line.batch_size,
        "state": line.state.value if line.state else None,
        "reason": line.reason,
        "cost": observed_cost(o, Weights.of(job, device)),
        "untold": untold,
        **{name: value for name, value in o.to_dict().items() if name not in ("out_of_memory", "start_id")},
        "notes": dict(line.notes),
    }


def _sum(attempts: list[dict[str, Any]], name: str) -> float | None:
    """Total over the attempts; None when one of them is missing: a part would look like the whole."""
    values = [a[name] for a in attempts]
    return None if not values or None in values else sum(values)
