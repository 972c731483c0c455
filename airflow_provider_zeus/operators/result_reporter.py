"""Takes the result lines of a training to the store; a cost that cannot be stored is kept for a later run."""

from __future__ import annotations

import logging
import random
import sys
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.airflow_compat import masked
from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.cost import observed_cost, weights_of
from airflow_provider_zeus.model.size_bounds import thinned
from airflow_provider_zeus.model.trial import Observation, State, Trial
from airflow_provider_zeus.operators.result_writer import ResultWriter, StoreThread, planned_of
from airflow_provider_zeus.patience import T, outlived, pauses
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports.dataset import runs_of
from airflow_provider_zeus.signals.hours import HourPrices
from airflow_provider_zeus.store.pending import VARIABLE_S, remember
from airflow_provider_zeus.training.interrupts import AttemptOver
from airflow_provider_zeus.training.protocol.events import ENDED_AT_S, ResultLine, without_cost

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store
    from airflow_provider_zeus.store.variables.airflow import AirflowVariables

RUN_S = 30.0  # a run waits for its store this long in all: question, beginnings and ends of attempts
PRICED_S = 6.0  # limit of reading the prices of its hours at the end of an attempt
STOPPED_S = 1.0  # in all, once the task is being stopped: Airflow kills it 5 s after its signal


log = guarded_log(__name__)


class ResultReporter:
    """Sink of one plan's result lines. Raises nothing, and no heartbeat waits for the store.

    A thread writes to the store. The end of an attempt waits for it, for half of what is left of the run's
    :data:`RUN_S` seconds, and is tried again meanwhile where that may help. An end that is not stored by then is kept
    in a Variable, or in a file. A task that is being stopped waits for :data:`STOPPED_S` seconds in all, and keeps its
    ends in files.

    :param store: None where it could not be asked; then ``reopen`` is tried from time to time.
    :param first: trial of the plan's first attempt.
    :param left_s: seconds that this run may still wait.
    :param reopen: opens the store, or raises StoreError.
    :param prices: puts the prices of its hours into the end of an attempt; None: no hours are priced.
    :param clock: seconds, monotonic.
    """

    def __init__(
        self,
        store: Store | None,
        port: AirflowVariables,
        first: Trial,
        *,
        lease_s: float,
        state_dir: Path,
        left_s: float = RUN_S,
        reopen: Callable[[], Store] | None = None,
        prices: HourPrices | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self.prices = prices
        self._port, self._first, self._state_dir = port, first, state_dir
        self._rows = ResultWriter(store, first, lease_s=lease_s, reopen=reopen)
        self._thread = StoreThread(self._take)
        self._left_s = left_s
        self.stopped = False  # whether the task is being stopped
        self._failing = False
        self._began = False  # whether a line of an attempt has come
        self._ends: list[tuple[ResultLine, str | None]] = []  # each with the place where it is kept if not stored
        self._kept: tuple[str, int | None] | None = None  # (start id, attempt) of the kept model

    def __call__(self, line: ResultLine) -> None:
        """Take one line. What Airflow's log masks is masked in its texts: they may come from anywhere."""
        line = _masked(line)
        if line.kind == "final":
            self._kept = (line.start_id, line.attempt)
        if line.attempt is None or line.kind in ("start", "final"):
            return
        self._began = True
        if stops_the_task(sys.exc_info()[1]):
            self.hurry()
        if line.kind == "end":
            line = _masked(self._priced(line))  # why a signal gives no price is a text from elsewhere too
            self._ends.append((line, self._end(line.attempt or 0, line)))
        elif all((end.start_id, end.attempt) != (line.start_id, line.attempt) for end, _ in self._ends):
            queued = self._thread.put(line)
            if line.kind == "attempt":
                self._wait(queued.done.wait, 1.0)

    @outlived("write that nothing was trained")
    def never_trained(self, error: BaseException) -> None:
        """End the trial of a run that an error left before it trained; nothing where an attempt began or has ended."""
        if self._began:
            return
        from airflow_provider_zeus.training.attempt_loop import error_text

        reason, first = f"nothing was trained: {error_text(error)}", self._first
        self(without_cost("", first.key.attempt, first.batch_size, reason, began=False))

    def hurry(self) -> None:
        """The task is being stopped: from now on wait a moment only, and for no API. Safe in a signal handler."""
        if not self.stopped:
            self.stopped, self._left_s = True, min(self._left_s, STOPPED_S)

    def _take(self, line: ResultLine) -> None:
        """Write a line to the store; called in the thread. Raises StoreError."""
        try:
            self._rows.take(line)
            self._failing = False
        except Exception as error:
            if line.kind != "end":
                level = logging.DEBUG if self._failing else logging.WARNING  # once per outage
                log.log(level, "Zeus could not write to its store: %s It is tried again.", error)
            self._failing = True
            raise

    def _priced(self, line: ResultLine) -> ResultLine:
        """The end with the prices of its hours; asks no signal while the task is being stopped."""
        if self.prices is None or line.observation is None:
            return line
        begun_s = self._clock()
        try:
            most_s = 0.0 if self.stopped else min(PRICED_S, self._left_s / 4)
            seen = self.prices.priced(line.observation, line.notes.get(ENDED_AT_S), most_s)
            return replace(line, observation=seen)
        except Exception as error:  # its text may hold what a signal's service sent
            log.warning("Zeus: the hours of this run could not be priced (%s).", type(error).__name__)
            return line
        except BaseException:  # raised by a signal handler
            self.hurry()
            raise
        finally:
            self._left_s = max(self._left_s - (self._clock() - begun_s), 0.0)

    def _end(self, attempt: int, line: ResultLine) -> str | None:
        """Store an attempt's end. Where the store does not take it in time, return the place where it is kept."""
        begun_s, most_s = self._clock(), self._left_s if self.stopped else self._left_s / 2
        if self._first.batch_size is None and not self.stopped:  # no other end follows
            most_s = max(most_s, self._left_s - VARIABLE_S)
        for pause_s in pauses(random.random):
            queued = self._thread.put(line)
            is_over = self._wait(queued.done.wait, most_s - (self._clock() - begun_s))
            line, waited_s = queued.line, self._clock() - begun_s
            if not is_over:
                return self._keep(attempt, line, StoreError(f"The store has not answered for {waited_s:.1f} s."))
            if queued.error is None:
                return None
            passing = isinstance(queued.error, StoreError) and queued.error.passing
            if self.stopped or not passing or waited_s + pause_s >= most_s:
                return self._keep(attempt, line, queued.error)
            self._wait(self._sleep, pause_s)
        raise AssertionError("pauses have no end")

    def _wait(self, wait: Callable[[float], T], most_s: float) -> T:
        """Wait within what is left of the run's time."""
        begun_s = self._clock()
        try:
            return wait(min(most_s, self._left_s))
        except BaseException:  # raised by a signal handler
            self.hurry()
            raise
        finally:
            self._left_s = max(self._left_s - (self._clock() - begun_s), 0.0)

    def _keep(self, attempt: int, line: ResultLine, error: Exception) -> str:
        """Keep an end that was not stored; the place in words, "lost" where there is none."""
        first, report = self._first, self._rows.report(line)
        key, state = self._rows.key_of(attempt), line.state or State.FAILED
        row = replace(first, key=key, planned=planned_of(first, line))
        report = replace(report, points=thinned(report.points))
        port = None if self.stopped else self._port
        most_s, begun_s = min(VARIABLE_S, self._left_s / 2), self._clock()
        options: dict[str, Any] = {"trial": row, "state_dir": self._state_dir, "most_s": most_s}
        try:
            place = remember(port, key, state, report, first.job_id, line.reason, **options)
        except StoreError as worse:
            seen, job_id = report.observation, visible(first.job_id)
            log.error(
                "Zeus lost the cost of attempt %d, which can be entered by hand (job %s, batch size %d, %s): %s J, "
                "%s s, %s epochs. %s %s",
                *(attempt, job_id, row.batch_size, state, seen.energy_j, seen.time_s, seen.epochs, error, worse),
            )
            return "lost"
        finally:
            self._left_s = max(self._left_s - (self._clock() - begun_s), 0.0)
        log.warning("Zeus could not store the cost of attempt %d: %s It is kept in %s.", attempt, error, visible(place))
        return place

    @property
    def kept_end(self) -> ResultLine | None:
        """The end of the attempt whose model is kept; None where there is none, or none yet."""
        return next((end for end, _ in self._ends if (end.start_id, end.attempt) == self._kept), None)

    @property
    def ended(self) -> list[Trial]:
        """The trials that have ended, as their ends say, in the order of :func:`.runs_of`."""
        ended = [
            replace(
                self._first,
                key=self._rows.key_of(line.attempt or self._first.key.attempt),
                planned=planned_of(self._first, line),
                state=line.state or State.FAILED,
                reason=line.reason,
                observation=line.observation or Observation(),
            )
            for line, _ in self._ends
        ]
        return [trial for run in runs_of(ended) for trial in run]

    def cost_xcom(self) -> dict[str, Any]:
        """Value of XCom ``zeus_cost``: cost of this run and of each attempt, as plain JSON.

        A total is None where an attempt's figure is missing, a part would look like the whole; and where the attempts'
        figures are of different sources, or their costs of different units.
        """
        job, kept = self._first.job, self.kept_end
        bases: set[tuple[bool, str | None]] = set()  # what makes costs comparable: seconds or joules, and whose
        attempts: list[dict[str, Any]] = []
        for line, place in self._ends:
            seen = line.observation or Observation()
            weights, figures = weights_of(job, seen), seen.to_dict()
            bases.add((weights.time_alone, seen.energy_source if weights.eta > 0 else None))
            for name in ("out_of_memory", "start_id", "returned"):
                figures.pop(name, None)
            attempt = {
                "phase": planned_of(self._first, line).phase.value,
                "kept": line is kept,
                "attempt": line.attempt,
                "batch_size": line.batch_size,
                "state": line.state.value if line.state else None,
                "reason": line.reason,
                "cost": observed_cost(seen, weights),
                "untold": place,
                **figures,
                "notes": dict(line.notes),
            }
            attempts.append(attempt)
        totals: dict[str, float | None] = {}
        for name in ("energy_j", "time_s", "cost"):
            values = [a[name] for a in attempts]
            totals[name] = None if not values or None in values else sum(values)
        sources = {a["energy_source"] for a in attempts}
        if len(sources) > 1:
            totals["energy_j"] = None
        if len(bases) > 1:
            totals["cost"] = None
        return {
            "job_id": self._first.job_id,
            "batch_size": kept.batch_size if kept else None,
            "kept_attempt": kept.attempt if kept else None,
            "not_needed": kept is not None and kept.state is State.NOT_NEEDED,
            **totals,
            "eta": job.eta,
            "energy_source": sources.pop() if len(sources) == 1 else None,
            "attempts": attempts,
        }


def _masked(line: ResultLine) -> ResultLine:
    """The line as it may be stored and shown. The value that was returned stays: only later runs read it."""
    seen = line.observation
    if seen is not None:
        names = {field.name for field in fields(seen)} - {"returned", "start_id"}
        texts: dict[str, Any] = {name: masked(text) for name in names if isinstance(text := getattr(seen, name), str)}
        reasons = {masked(name): masked(reason) for name, reason in seen.reasons.items()}
        seen = replace(seen, **texts, reasons=reasons)
    notes = {masked(name): value for name, value in line.notes.items()}
    points = tuple(replace(point, phase=masked(point.phase)) for point in line.points)
    return replace(line, reason=line.reason and masked(line.reason), observation=seen, notes=notes, points=points)


def stops_the_task(error: BaseException | None) -> bool:
    """Whether an exception that is being handled stops the task: a time limit, ``on_kill``, an interrupt."""
    return error is not None and not isinstance(error, Exception | AttemptOver | GeneratorExit)
