"""The rows of one run in the store: begun, renewed and closed as its lines say, from one thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from airflow_provider_zeus.errors import StoreError, UnknownTrialError
from airflow_provider_zeus.optimizer.trial import (
    Attempt,
    Observation,
    PowerPoint,
    ProfileSample,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.store.base import Report, Store
from airflow_provider_zeus.store.ledger import lost_to
from airflow_provider_zeus.training.plan import Line

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0  # between two tries to open a store that could not be asked

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Unsent:
    """What the beats of an attempt brought that is not known to be stored.

    ``unsure``: beats whose answer was lost, or has not come yet. ``profile`` and ``points`` were surely not stored.
    """

    unsure: tuple[Report, ...] = ()
    profile: tuple[ProfileSample, ...] = ()
    points: tuple[PowerPoint, ...] = ()


class RunRows:
    """Takes the lines of a run to its rows. An attempt whose row could not be written when it began gets it later.

    :param store: None where it could not be asked; then ``reopen`` is tried from time to time, and the first row is
        adopted when it succeeds.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._first, self._lease_s = store, first, lease_s
        self._reopen, self._clock = reopen, clock
        self._again_s, self._pause_s = clock(), _FIRST_PAUSE_S
        # plan's attempt number -> key of the row that was written for it
        self._keys = {first.key.attempt: first.key} if first.number else {}
        self._unsent: dict[tuple[str, int], _Unsent] = {}
        self._warned = False
        self._said: dict[tuple[str, int], Observation] = {}  # by the newest beat that may be stored

    def take(self, line: Line) -> None:
        """Take a line of an attempt. Raises StoreError where the store does not take it."""
        attempt = line.attempt or self._first.key.attempt
        store = self._opened(at_once=line.kind == "end")
        try:
            self._send(store, self._begun(store, attempt, line), line)
        except UnknownTrialError:  # the log was replaced
            if line.kind == "beat":
                line = replace(line, profile=(), points=())  # they wait already
            self._send(store, self._adopted(store, attempt, line), line)

    def key_of(self, attempt: int) -> TrialKey:
        """Key of an attempt's row, or the one that it would have."""
        return self._keys.get(attempt, replace(self._first.key, attempt=attempt))

    def report(self, line: Line) -> Report:
        """What a line tells, with what earlier beats of its attempt brought in vain; any thread may ask."""
        unsent = self._unsent.get(_start(line), _Unsent())
        return Report(
            observation=replace(line.observation or Observation(), start_id=line.start_id or None),
            profile=(*unsent.profile, *line.profile),
            points=(*unsent.points, *line.points),
            unsure=unsent.unsure,
        )

    def _opened(self, *, at_once: bool) -> Store:
        """The store. ``at_once``: try to open it even where that failed a moment ago."""
        if self._store is None:
            if self._reopen is None or not (at_once or self._clock() >= self._again_s):
                raise StoreError("The store could not be opened a moment ago.")
            self._again_s = self._clock() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self._store = self._reopen()
            log.info("Zeus has reached its store.")
        return self._store

    def _send(self, store: Store, key: TrialKey, line: Line) -> None:
        if line.kind == "beat":
            self._warn_once(self._beat(store, key, line))
        elif line.kind == "end":
            trial = store.tell(key, line.state or State.FAILED, self.report(line), reason=line.reason)
            self._warn_once(trial.reason if lost_to(trial.reason) else None)

    def _adopted(self, store: Store, attempt: int, line: Line) -> TrialKey:
        """Key of an attempt's row, written into a log that does not hold it. Raises StoreError."""
        log.warning("Zeus: the trial log does not hold attempt %d any more; it is written there again.", attempt)
        seen, planned = Observation(start_id=line.start_id or None), planned_of(self._first, line)
        row = replace(self._first, key=self.key_of(attempt), planned=planned, observation=seen)
        self._keys[attempt] = store.adopt(row, lease_s=self._lease_s).key
        return self._keys[attempt]

    def _warn_once(self, lost: str | None) -> None:
        """Say that this run's trial is no longer its own; the training goes on."""
        if lost is not None and not self._warned:
            self._warned = True
            log.warning(
                "Zeus: this run's trial is %s. The training goes on, and what it costs is still written down. If this "
                "run should not be running any more, stop it.",
                lost,
            )

    def _begun(self, store: Store, attempt: int, line: Line) -> TrialKey:
        """Key of an attempt's row, written now where it is not; those before it first. Raises StoreError."""
        first = self._first
        if attempt in self._keys:
            return self._keys[attempt]
        if attempt == first.key.attempt:
            seen = replace(first.observation, start_id=line.start_id or None)
            written = store.adopt(replace(first, observation=seen), lease_s=self._lease_s)
        else:
            previous = self._begun(store, max(attempt - 1, first.key.attempt), line)
            written = store.begin(replace(first.key, attempt=attempt), previous, lease_s=self._lease_s)
        self._keys[attempt] = written.key
        return written.key

    def _beat(self, store: Store, key: TrialKey, line: Line) -> str | None:
        """Send a beat; why the trial is no longer its run's. What the beat brings counts as sent once it is stored.

        An answer that is lost leaves open whether it was. The next report then carries it as ``unsure``, and the store,
        which knows, takes it or leaves it. It knows by the sums, so news never go with the sums of the beat before.
        """
        start, report = _start(line), self.report(line)
        own = replace(report, unsure=())
        held = _Unsent()
        if report.observation == self._said.get(start):
            held = _Unsent(profile=tuple(report.profile), points=tuple(report.points))
            report = replace(report, profile=(), points=())
            self._unsent[start] = replace(held, unsure=tuple(report.unsure))
        else:
            self._unsent[start] = _Unsent(unsure=(*report.unsure, own))  # from now on it may be stored
        try:
            lost = store.heartbeat(key, report, lease_s=self._lease_s)
        except StoreError as error:
            if error.unsure:
                self._said[start] = report.observation
            else:
                self._unsent[start] = _Unsent(tuple(report.unsure), tuple(own.profile), tuple(own.points))
            raise
        self._said[start] = report.observation
        self._unsent[start] = held
        return lost


def _start(line: Line) -> tuple[str, int]:
    return line.start_id, line.attempt or 0


def planned_of(first: Trial, line: Line) -> Attempt:
    """What a line tells of, as it was decided."""
    planned = first.decision.in_order
    position = planned.index(first.planned) + (line.attempt or first.key.attempt) - first.key.attempt
    return planned[min(position, len(planned) - 1)]
