"""Takes the lines of a training's result to the store; what cannot be told is kept for later."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from airflow_provider_zeus.errors import StoreError, UnknownTrialError
from airflow_provider_zeus.optimizer.cost import Weights, observed_cost
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.points import thinned
from airflow_provider_zeus.optimizer.trial import Attempt, DeviceInfo, Observation, State, Trial, TrialKey
from airflow_provider_zeus.store.base import Report, Store
from airflow_provider_zeus.store.ledger import lost_to
from airflow_provider_zeus.store.untold import remember
from airflow_provider_zeus.store.variable import VariablePort
from airflow_provider_zeus.training.plan import Line

T = TypeVar("T")

log = logging.getLogger(__name__)


class Teller:
    """Sink of one plan's result lines. Raises StoreError for a beat only, which the outbox keeps and sends again.

    An attempt whose row could not be written when it began gets it with its next line; an end that cannot be told is
    remembered, never raised.

    :param store: None when it could not even be asked; then every attempt's cost is kept for later.
    """

    def __init__(
        self, store: Store | None, port: VariablePort, first: Trial, *, lease_s: float, state_dir: Path
    ) -> None:
        self._store, self._port, self._first = store, port, first
        self._lease_s, self._state_dir = lease_s, state_dir
        self._ended: list[tuple[Line, str | None]] = []  # end lines, with where an untold one is kept
        self._kept: tuple[str, int | None] | None = None  # (start id, attempt)
        self._warned = False
        self._keys = {first.key.attempt: first.key}  # plan's attempt number -> key of the row that was written for it

    def __call__(self, line: Line) -> None:
        """Take one line. Raises StoreError for a beat that the store did not take."""
        if line.kind == "final":
            self._kept = (line.start_id, line.attempt)
        if line.attempt is None or line.kind in ("start", "final"):
            return
        observation = replace(line.observation or Observation(), start_id=line.start_id or None)
        report = Report(observation=observation, profile=line.profile, points=line.points)
        if line.kind == "end":
            self._ended.append((line, self._tell(line.attempt, line, report)))
        elif self._store is not None and not self.ended(line.start_id, line.attempt):
            self._news(self._store, line.attempt, line, report)

    def ended(self, start_id: str, attempt: int) -> bool:
        """Whether this start's end of an attempt came already."""
        return any((end.start_id, end.attempt) == (start_id, attempt) for end, _ in self._ended)

    def _news(self, store: Store, attempt: int, line: Line, report: Report) -> None:
        def beat(key: TrialKey) -> str | None:
            return store.heartbeat(key, report, lease_s=self._lease_s) if line.kind == "beat" else None

        try:
            self._warn_once(self._at_its_row(store, attempt, line, beat))
        except StoreError as error:
            if line.kind == "beat":
                raise
            log.warning("Zeus could not begin attempt %d in its store: %s It is tried again.", attempt, error)

    def _at_its_row(self, store: Store, attempt: int, line: Line, send: Callable[[TrialKey], T]) -> T:
        """Send to an attempt's row; a log that does not hold it, since it was replaced, gets the row first."""
        try:
            return send(self._begun(store, attempt))
        except UnknownTrialError:
            return send(self._adopted(store, attempt, line))

    def _adopted(self, store: Store, attempt: int, line: Line) -> TrialKey:
        """Key of an attempt's row, written into a log that does not hold it. Raises StoreError."""
        log.warning("Zeus: the trial log does not hold attempt %d any more; it is written there again.", attempt)
        seen = Observation(start_id=line.start_id or None)
        row = replace(self._row(attempt, line), observation=seen)
        self._keys[attempt] = store.adopt(row, lease_s=self._lease_s).key
        return self._keys[attempt]

    def _row(self, attempt: int, line: Line) -> Trial:
        """The row of an attempt as far as this run knows it."""
        key = self._keys.get(attempt, replace(self._first.key, attempt=attempt))
        return replace(self._first, key=key, planned=self._planned(line))

    def _warn_once(self, lost: str | None) -> None:
        """Say that this run's trial is no longer its own; the training goes on."""
        if lost is not None and not self._warned:
            self._warned = True
            log.warning(
                "Zeus: this run's trial is %s. The training goes on, and what it costs is still written down. If this "
                "run should not be running any more, stop it.",
                lost,
            )

    def _begun(self, store: Store, attempt: int) -> TrialKey:
        """Key of an attempt's row, written now where it is not; those before it first. Raises StoreError."""
        if attempt not in self._keys:
            first = self._first.key
            previous = self._begun(store, attempt - 1) if attempt - 1 > first.attempt else first
            key = replace(first, attempt=attempt)
            self._keys[attempt] = store.begin(key, previous, lease_s=self._lease_s).key
        return self._keys[attempt]

    def _planned(self, line: Line) -> Attempt:
        """What a line tells of, as it was decided."""
        planned, first = self._first.decision.in_order, self._first
        position = planned.index(first.planned) + (line.attempt or first.key.attempt) - first.key.attempt
        return planned[min(position, len(planned) - 1)]

    def _tell(self, attempt: int, line: Line, report: Report) -> str | None:
        """Tell an attempt's end; where it is kept for later when the store does not take it."""
        state = line.state or State.FAILED
        try:
            if self._store is None:
                raise StoreError("The store could not be asked when this run began.")
            tell = partial(self._store.tell, state=state, report=report, reason=line.reason)
            told = self._at_its_row(self._store, attempt, line, tell)
        except StoreError as error:
            return self._remember(attempt, state, line, report, error)
        self._warn_once(told.reason if lost_to(told.reason) else None)
        return None

    def _remember(self, attempt: int, state: State, line: Line, report: Report, error: StoreError) -> str:
        row = self._row(attempt, line)
        report = replace(report, points=thinned(report.points))
        job_id, reason = row.job_id, line.reason
        try:
            where = remember(self._port, row.key, state, report, job_id, reason, trial=row, state_dir=self._state_dir)
        except StoreError as worse:
            seen = report.observation
            log.error(
                "Zeus lost the cost of attempt %d, which a person may enter (job %s, batch size %d, %s): %s J, %s s, "
                "%s epochs. %s %s",
                *(attempt, job_id, row.batch_size, state, seen.energy_j, seen.time_s, seen.epochs, error, worse),
            )
            return "lost"
        log.warning("Zeus could not tell the cost of attempt %d: %s It is kept in %s.", attempt, error, where)
        return where

    @property
    def kept_end(self) -> Line | None:
        """The end of the attempt whose model is kept, None where there is none (yet)."""
        return next((end for end, _ in self._ended if (end.start_id, end.attempt) == self._kept), None)

    def cost_xcom(self) -> dict[str, Any]:
        """XCom ``zeus_cost``: what this run cost, attempt by attempt, as plain JSON. None where a figure is missing."""
        job = ZeusJob.from_dict(self._first.spec)
        attempts = [
            {"phase": self._planned(line).phase.value, **_attempt_xcom(job, line, untold)}
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
