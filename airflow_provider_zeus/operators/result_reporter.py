"""Takes the result lines of a training to the store; a cost that cannot be stored is kept for a
later run.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.log_guard import guarded_log, level
from airflow_provider_zeus.model.cost import observed_cost, weights_of
from airflow_provider_zeus.model.partial_sums import thinned
from airflow_provider_zeus.model.run_numbers import TryNumbers
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.operators.result_writer import (
    ResultWriter,
    StoreThread,
    masked_line,
    planned_of,
)
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

# A run must not wait for a store that is away at each of its steps: so long in all.
RUN_S = 30.0
PRICED_S = 6.0  # a slow service of prices must not hold up the end of an attempt
STOPPED_S = 1.0  # in all, once the task is being stopped: Airflow kills it 5 s after its signal


log = guarded_log(__name__)


class EndLine(NamedTuple):
    """The end of an attempt, and the place where it is kept if it is not stored."""

    line: ResultLine
    place: str | None


class ResultReporter:
    """Sink of one plan's result lines. Raises nothing, and no heartbeat waits for the store.

    A thread writes to the store. The end of an attempt waits for it, for half of the rest of the
    run's :data:`RUN_S` seconds, and is tried again meanwhile if that may help. An end that is not
    stored by then is kept in a Variable, or in a file. A task that is being stopped waits for
    :data:`STOPPED_S` seconds in all, and keeps its ends in files.

    :param store: None if it could not be asked; then ``reopen`` is tried from time to time.
    :param first: trial of the plan's first attempt.
    :param left_s: seconds that this run may still wait.
    :param reopen: opens the store, or raises StoreError.
    :param prices: puts the prices of its hours into the end of an attempt; None: no hours are
        priced.
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
        numbers: TryNumbers | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self.prices = prices
        self._port = port
        self._first = first
        self._state_dir = state_dir
        self._numbers = numbers or TryNumbers()
        self._rows = ResultWriter(
            store, first, lease_s=lease_s, reopen=reopen, numbers=self._numbers
        )
        self._thread = StoreThread(self._take)
        self._left_s = left_s
        self.stopped = False
        self._failing = False
        self._began = False  # until then an error means that nothing was trained
        self._ends: list[EndLine] = []
        self._kept: tuple[str, int | None] | None = None  # a later try may keep another model

    def __call__(self, line: ResultLine) -> None:
        """Take one line.

        Secrets that Airflow's log masks are masked in its texts: they may come from anywhere.
        """
        line = masked_line(line)
        if line.kind == "final":
            self._kept = line.start_attempt
        if line.attempt is None or line.kind in ("start", "final"):
            return
        self._began = True
        # a time limit or an interrupt stops the task without a call of on_kill
        if stops_the_task(sys.exc_info()[1]):
            self.hurry()
        if line.kind == "end":
            # why a signal gives no price is a text from elsewhere too
            line = masked_line(self._priced(line))
            self._ends.append(EndLine(line, self._end(line)))
            return
        # a late heartbeat must not touch a row that has ended
        if line.start_attempt in [end.line.start_attempt for end in self._ends]:
            return
        queued = self._thread.put(line)
        if line.kind == "attempt":
            # the row should be there before an early crash of the process
            self._wait(queued.done.wait, 1.0)

    def reread(self, line: ResultLine) -> None:
        """Take a heartbeat that an earlier try of the task may have stored: the log knows."""
        self._began = True
        self._rows.add_unsure(masked_line(line))

    @outlived("write that nothing was trained")
    def never_trained(self, error: BaseException) -> None:
        """End the trial of a run that an error left before it trained; nothing if an attempt
        began or has ended.
        """
        if self._began:
            return
        from airflow_provider_zeus.training.error_text import error_text

        reason = f"nothing was trained: {error_text(error)}"
        first = self._first
        self(without_cost("", first.key.attempt, first.batch_size, reason, began=False))

    def hurry(self) -> None:
        """The task is being stopped: from now on wait a moment only, and for no API.

        Safe in a signal handler.
        """
        self.stopped = True
        self._left_s = min(self._left_s, STOPPED_S)

    def _take(self, line: ResultLine) -> None:
        """Write a line to the store; called in the thread. Raises StoreError."""
        try:
            self._rows.take(line)
            self._failing = False
        except Exception as error:
            if line.kind != "end":
                once = level(again=self._failing)
                log.log(once, "Zeus could not write to its store: %s It is tried again.", error)
            self._failing = True
            raise

    def _priced(self, line: ResultLine) -> ResultLine:
        """The end with the prices of its hours; asks no signal while the task is being stopped."""
        if self.prices is None or line.observation is None:
            return line
        most_s = 0.0 if self.stopped else min(PRICED_S, self._left_s / 4)
        with self._spending():
            try:
                ended_s = line.notes.get(ENDED_AT_S)
                priced = self.prices.priced(line.observation, ended_s, most_s)
                return replace(line, observation=priced)
            except Exception as error:  # its text may repeat the answer of a signal's service
                log.warning(
                    "Zeus: the hours of this run could not be priced (%s).", type(error).__name__
                )
                return line

    def _end(self, line: ResultLine) -> str | None:
        """Store an attempt's end.

        If the store does not take it in time, return the place where it is kept.
        """
        begun_s = self._clock()
        most_s = self._left_s
        if not self.stopped:
            most_s = self._left_s / 2
            if self._first.batch_size is None:  # its only end: no other one needs the time
                most_s = max(most_s, self._left_s - VARIABLE_S)
        for pause_s in pauses(random.random):
            queued = self._thread.put(line)
            is_over = self._wait(queued.done.wait, most_s - (self._clock() - begun_s))
            line = queued.line
            waited_s = self._clock() - begun_s
            if not is_over:
                text = f"The store has not answered for {waited_s:.1f} s."
                return self._keep(line, StoreError(text, unsure=True))
            if queued.error is None:
                return None
            may_pass = isinstance(queued.error, StoreError) and queued.error.passing
            is_late = self.stopped or waited_s + pause_s >= most_s
            if is_late or not may_pass:
                return self._keep(line, queued.error)
            self._wait(self._sleep, pause_s)
        raise AssertionError("pauses have no end")

    def _wait(self, wait: Callable[[float], T], most_s: float) -> T:
        """Wait within the rest of the run's time."""
        with self._spending():
            return wait(min(most_s, self._left_s))

    @contextmanager
    def _spending(self) -> Iterator[None]:
        """Take the time of a block off the rest of the run's, which an error cuts short."""
        begun_s = self._clock()
        try:
            yield
        except BaseException:
            # A signal handler raises: Airflow will soon kill the task.
            self.hurry()
            raise
        finally:
            self._left_s = max(self._left_s - (self._clock() - begun_s), 0.0)

    def _keep(self, line: ResultLine, error: Exception) -> str:
        """Keep an end that was not stored; the place in words, "lost" if there is none."""
        first = self._first
        report = self._rows.report(line)
        key = self._rows.key_of(line.number)
        row = replace(first, key=key, planned=planned_of(first, line))
        # a Variable holds less than a row
        report = replace(report, points=thinned(report.points))
        # the API may hang for longer than Airflow lets a stopped task live
        port = None if self.stopped else self._port
        most_s = min(VARIABLE_S, self._left_s / 2)
        # Several starts of a plan may end the same attempt: each needs a place of its own.
        not_stored = [end.line for end in self._ends if end.place is not None]
        earlier = [end for end in not_stored if end.attempt == line.attempt]
        with self._spending():
            try:
                place = remember(
                    port,
                    key,
                    line.ended_in,
                    report,
                    first.job_id,
                    line.reason,
                    trial=row,
                    state_dir=self._state_dir,
                    most_s=most_s,
                    earlier=len(earlier),
                )
            except StoreError as worse:
                seen = report.observation
                job_id = visible(first.job_id)
                # %s: a task that is measured as it is has no batch size
                log.error(
                    "Zeus lost the cost of attempt %s, which can be entered by hand (job %s, batch "
                    "size %s, %s): %s J, %s s, %s epochs. %s %s",
                    *(
                        self._numbers.attempt(line.number),
                        job_id,
                        row.batch_size,
                        line.ended_in,
                        seen.energy_j,
                        seen.time_s,
                        seen.epochs,
                        error,
                        worse,
                    ),
                )
                return "lost"
        log.warning(
            "Zeus could not store the cost of attempt %s: %s It is kept in %s.",
            self._numbers.attempt(line.number),
            error,
            visible(place),
        )
        return place

    @property
    def kept_end(self) -> ResultLine | None:
        """The end of the attempt whose model is kept; None if there is none, or none yet."""
        for line, _ in self._ends:
            if line.start_attempt == self._kept:
                return line
        return None

    @property
    def ended(self) -> list[Trial]:
        """The trials that have ended, as their ends say, in the order of :func:`.runs_of`."""
        first = self._first
        ended = []
        for line, _ in self._ends:
            trial = replace(
                first,
                key=self._rows.key_of(line.attempt or first.key.attempt),
                planned=planned_of(first, line),
                state=line.ended_in,
                reason=line.reason,
                observation=line.figures,
            )
            ended.append(trial)
        return list(chain.from_iterable(runs_of(ended)))

    def cost_xcom(self) -> dict[str, Any]:
        """Value of XCom ``zeus_cost``: cost of this run and of each attempt, as plain JSON.

        A total is None if an attempt's figure is missing, a part would look like the whole; and
        if the attempts' figures are of different sources, or their costs of different units.
        """
        job = self._first.job
        kept = self.kept_end
        # costs are comparable in one unit, seconds or joules, and of one source
        bases: set[tuple[bool, str | None]] = set()
        attempts: list[dict[str, Any]] = []
        for line, place in self._ends:
            observation = line.figures
            weights = weights_of(job, observation)
            figures = observation.to_dict()
            source = observation.energy_source if weights.eta > 0 else None
            bases.add((weights.time_alone, source))
            for name in ("out_of_memory", "start_id", "returned"):
                figures.pop(name, None)
            attempt = {
                "phase": planned_of(self._first, line).phase.value,
                "kept": line is kept,
                "attempt": line.attempt,
                "batch_size": line.batch_size,
                "state": line.state.value if line.state else None,
                "reason": line.reason,
                "cost": observed_cost(observation, weights),
                "untold": place,
                **figures,
                "notes": dict(line.notes),
            }
            attempts.append(attempt)
        totals = {name: _total(attempts, name) for name in ("energy_j", "time_s", "cost")}
        sources = {attempt["energy_source"] for attempt in attempts}
        # joules of a GPU and of a processor are no sum
        if len(sources) > 1:
            totals["energy_j"] = None
        if len(bases) > 1:
            totals["cost"] = None
        xcom = {
            "job_id": self._first.job_id,
            "batch_size": None,
            "kept_attempt": None,
            "not_needed": False,
            **totals,
            "eta": job.eta,
            "energy_source": sources.pop() if len(sources) == 1 else None,
            "attempts": attempts,
        }
        if kept is not None:
            xcom["batch_size"] = kept.batch_size
            xcom["kept_attempt"] = kept.attempt
            xcom["not_needed"] = kept.state is State.NOT_NEEDED
        return xcom


def _total(attempts: list[dict[str, Any]], name: str) -> float | None:
    values = [attempt[name] for attempt in attempts]
    # a sum of some attempts would look like the cost of the run
    is_whole = bool(values) and None not in values
    return sum(values) if is_whole else None


def stops_the_task(error: BaseException | None) -> bool:
    """Whether an exception that is being handled stops the task: a time limit, ``on_kill``, an
    interrupt.
    """
    return error is not None and not isinstance(error, Exception | AttemptOver | GeneratorExit)
