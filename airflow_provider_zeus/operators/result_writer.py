"""Writes the result lines of one run to the rows of its trials in the store, by a thread that may
hang.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.airflow_compat import masked
from airflow_provider_zeus.errors import StoreError, UnknownTrialError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.run_numbers import TryNumbers
from airflow_provider_zeus.model.trial import (
    Observation,
    PlannedAttempt,
    Trial,
    TrialKey,
    fitting,
)
from airflow_provider_zeus.training.protocol.events import ResultLine, folded

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store

NO_NEWS = Report(observation=Observation())

log = guarded_log(__name__)


class ResultWriter:
    """Writes the result lines of a run to its rows.

    An attempt's row that could not be opened is opened later.

    :param store: None if it could not be asked; then ``reopen`` is tried from time to time, and
        the first row is adopted once it succeeds.
    :param first: trial of the plan's first attempt.
    :param reopen: opens the store, or raises StoreError; None: there is none.
    :param clock: seconds, monotonic.
    """

    def __init__(
        self,
        store: Store | None,
        first: Trial,
        *,
        lease_s: float,
        reopen: Callable[[], Store] | None = None,
        numbers: TryNumbers | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._first = first
        self._numbers = numbers or TryNumbers()
        self._lease_s = lease_s
        self._reopen = reopen
        self._clock = clock
        # The first try comes at once: the store may be back already.
        self._reopen_at_s = clock()
        self._pause_s = 1.0
        # By the plan's number of an attempt: the log may know its row by another key.
        self._keys = {first.key.attempt: first.key} if first.number else {}
        # Kept until it is known to be stored, so that a lost answer neither loses nor doubles it:
        # of the heartbeats in ``unsure`` no answer has come, the rest is certainly not stored.
        self._unsent: dict[tuple[str, int | None], Report] = {}
        # The store drops a heartbeat with the sums of the one before: the news of such a one waits.
        self._last_sums: dict[tuple[str, int | None], Observation] = {}
        self._warned = False

    def take(self, line: ResultLine) -> None:
        """Write a line of an attempt. Raises StoreError if the store does not take it."""
        attempt = line.attempt or self._first.key.attempt
        store = self._open(at_once=line.kind == "end")
        try:
            key = self._row_of(store, attempt, line)
            lost = self._send(store, key, line)
        except UnknownTrialError:  # the log was replaced: the new one must not lack this run
            log.warning(
                "Zeus: the run log no longer has attempt %s; it is written there again.",
                self._numbers.attempt(attempt),
            )
            row = replace(
                self._first,
                key=self.key_of(attempt),
                planned=planned_of(self._first, line),
                observation=begun(line),
            )
            self._keys[attempt] = store.adopt(row, lease_s=self._lease_s).key
            if line.kind == "beat":
                line = replace(line, profile=(), points=())  # in ``_unsent``: not twice
            lost = self._send(store, self._keys[attempt], line)
        if lost is not None and not self._warned:
            self._warned = True
            log.warning(
                "Zeus: this attempt is %s. The training continues, and its cost is still stored. "
                "If this run should not be running any more, stop it.",
                lost,
            )

    def add_unsure(self, line: ResultLine) -> None:
        """Let the next report of an attempt carry a heartbeat that may be stored already."""
        beat = replace(self.report(line), unsure=())
        unsent = self._unsent.get(line.start_attempt, NO_NEWS)
        self._unsent[line.start_attempt] = replace(unsent, unsure=(*unsent.unsure, beat))

    def key_of(self, attempt: int) -> TrialKey:
        """Key of an attempt's row, or the one that it would have."""
        return self._keys.get(attempt, replace(self._first.key, attempt=attempt))

    def report(self, line: ResultLine) -> Report:
        """Report of a line, with the unsent news of its attempt's earlier heartbeats.

        Any thread may call it.
        """
        unsent = self._unsent.get(line.start_attempt, NO_NEWS)
        return replace(
            unsent,
            observation=begun(line, line.observation),
            profile=(*unsent.profile, *line.profile),
            points=(*unsent.points, *line.points),
        )

    def _open(self, *, at_once: bool) -> Store:
        """Return the store.

        ``at_once``: try to open it even if that failed a moment ago. Raises StoreError.
        """
        if self._store is not None:
            return self._store
        is_due = at_once or self._clock() >= self._reopen_at_s
        if self._reopen is None or not is_due:
            raise StoreError("The store could not be opened a moment ago.")
        self._reopen_at_s = self._clock() + self._pause_s
        # a store that is down is not asked by each heartbeat of each task
        self._pause_s = min(2 * self._pause_s, 60.0)
        self._store = self._reopen()
        log.info("Zeus has reached its store.")
        return self._store

    def _send(self, store: Store, key: TrialKey, line: ResultLine) -> str | None:
        """Send a line; why the trial no longer belongs to this run, None while it does."""
        report = self.report(line)
        if line.kind != "end":
            return self._send_beat(store, key, line, report)
        ended = store.tell(key, line.ended_in, report, reason=line.reason)
        return ended.lost_to

    def _send_beat(
        self, store: Store, key: TrialKey, line: ResultLine, report: Report
    ) -> str | None:
        """Send a heartbeat, the first of which says that a training began; the result is that of
        :meth:`_send`.

        Its news counts as sent once it is stored. After a lost answer that is unknown here; the
        next report carries it as ``unsure``, and the store, which knows, takes it or drops it. The
        store compares sums, so news is never sent with the sums of the heartbeat before.
        """
        if line.kind == "attempt":
            return store.heartbeat(key, Report(observation=begun(line)), lease_s=self._lease_s)
        start = line.start_attempt
        own = replace(report, unsure=())
        unsent = NO_NEWS
        # the store tells a repeated heartbeat by its sums, and would drop the news with it
        if own.observation == self._last_sums.get(start):
            unsent = own
            self._unsent[start] = report
            report = replace(report, profile=(), points=())
        else:
            # Before the call: it may be stored and its answer be lost.
            self._unsent[start] = replace(NO_NEWS, unsure=(*report.unsure, own))
        try:
            lost = store.heartbeat(key, report, lease_s=self._lease_s)
        except StoreError as error:
            if error.unsure:
                self._last_sums[start] = own.observation
            else:
                self._unsent[start] = replace(own, unsure=report.unsure)
            raise
        self._last_sums[start] = own.observation
        self._unsent[start] = unsent
        return lost

    def _row_of(self, store: Store, attempt: int, line: ResultLine) -> TrialKey:
        """Key of an attempt's row.

        Opens the row if there is none, after those before it. Raises StoreError.
        """
        first = self._first
        if attempt in self._keys:
            return self._keys[attempt]
        if attempt == first.key.attempt:
            row = replace(first, observation=begun(line, first.observation))
            written = store.adopt(row, lease_s=self._lease_s)
        else:
            # Planned attempts may never run, and no row is opened for those.
            earlier = [number for number in self._keys if number < attempt]
            before = max(earlier, default=first.key.attempt)
            previous = self._row_of(store, before, line)
            key = replace(first.key, attempt=attempt)
            written = store.begin(key, previous, lease_s=self._lease_s, batch_size=line.batch_size)
        self._keys[attempt] = written.key
        return written.key


def begun(line: ResultLine, observation: Observation | None = None) -> Observation:
    """An observation of the start that a line is of; without one, that it began."""
    return replace(observation or Observation(), start_id=line.start_id or None)


def planned_of(first: Trial, line: ResultLine) -> PlannedAttempt:
    """The planned attempt that a result line belongs to.

    ``first``: trial of the plan's first attempt.
    """
    planned = first.decision.in_order
    position = planned.index(first.planned)
    if line.attempt:
        position += line.attempt - first.key.attempt
    # For a slice that is too small more attempts than planned may come.
    expected = planned[max(0, min(position, len(planned) - 1))]
    size = line.batch_size
    if size in (None, expected.batch_size) or size not in first.spec["batch_sizes"]:
        return expected
    # of equal sizes the later one is the kept attempt
    for attempt in reversed(planned):
        if attempt.batch_size == size:
            return attempt
    return fitting(first.planned, size)


@dataclass(slots=True)
class QueuedLine:
    """A line in the queue. Once it is ``done``, ``error`` says why the store did not take it."""

    line: ResultLine
    done: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None


class StoreThread:
    """Calls ``take`` for one line after the other, in order.

    A heartbeat that waits is merged into the next line of its attempt, so at most one waits per
    attempt, however long the store is away. The thread is a daemon and ends when the queue is
    empty: it keeps no process alive. If no thread can be started, the caller's thread calls
    ``take``.
    """

    def __init__(self, take: Callable[[ResultLine], None]) -> None:
        self._take = take
        self._lock = threading.Lock()  # not held during ``take``, which may hang: put() returns
        self._queue: list[QueuedLine] = []
        self._thread: threading.Thread | None = None

    def put(self, line: ResultLine) -> QueuedLine:
        """Queue a line; returns at once."""
        queued = QueuedLine(line)
        with self._lock:
            # heartbeats of several starts may take turns
            for place, waiting in enumerate(self._queue):
                merged = folded([waiting.line, line])
                if len(merged) == 1:
                    queued.line = merged[0]
                    del self._queue[place]
                    break
            self._queue.append(queued)
            if self._thread is not None and self._thread.is_alive():
                return queued
            thread = self._thread = threading.Thread(
                target=self._run, name="zeus-store", daemon=True
            )
        try:
            thread.start()
        except RuntimeError:
            self._run()
        return queued

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._thread = None
                    return
                queued = self._queue.pop(0)
            try:
                self._take(queued.line)
            except Exception as error:
                queued.error = error.with_traceback(None)  # its frames hold the line, a cycle
            finally:
                queued.done.set()


def masked_line(line: ResultLine) -> ResultLine:
    """The line as it may be stored and shown.

    The value that was returned stays: only later runs read it.
    """
    observation = line.observation
    if observation is not None:
        values = {field.name: getattr(observation, field.name) for field in fields(observation)}
        # the returned value is for later runs, and masking would change it
        del values["returned"], values["start_id"]
        texts: dict[str, Any] = {
            name: masked(text) for name, text in values.items() if isinstance(text, str)
        }
        reasons = {masked(name): masked(reason) for name, reason in observation.reasons.items()}
        observation = replace(observation, **texts, reasons=reasons)
    notes = {masked(name): value for name, value in line.notes.items()}
    points = tuple(replace(point, phase=masked(point.phase)) for point in line.points)
    return replace(
        line,
        reason=line.reason and masked(line.reason),
        observation=observation,
        notes=notes,
        points=points,
    )
