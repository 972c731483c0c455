"""Takes the lines of a training's result to the store; what cannot be told is kept for later."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.optimizer.cost import Weights, observed_cost
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.trial import DeviceInfo, Observation, State, Trial, TrialKey
from airflow_provider_zeus.store.base import Report, Store
from airflow_provider_zeus.store.untold import remember
from airflow_provider_zeus.store.variable import VariablePort
from airflow_provider_zeus.training.plan import Line

log = logging.getLogger(__name__)


class Teller:
    """Sink of one plan's result lines. Never raises: a store that fails must not fail a training.

    :param store: None when it could not even be asked; then every attempt's cost is kept for later.
    """

    def __init__(
        self, store: Store | None, port: VariablePort, first: Trial, *, lease_s: float, state_dir: Path
    ) -> None:
        self._store, self._port, self._first = store, port, first
        self._lease_s, self._state_dir = lease_s, state_dir
        self._ended: list[tuple[Line, str | None]] = []  # end lines, with where an untold one is kept
        self._kept: int | None = None

    def __call__(self, line: Line) -> None:
        """Take one line."""
        if line.kind == "final":
            self._kept = line.attempt
        if line.attempt is None or line.kind in ("start", "final"):
            return
        key = TrialKey(self._first.key.ti_id, line.attempt)
        observation = replace(line.observation or Observation(), start_id=line.start_id)
        report = Report(observation=observation, profile=line.profile, points=line.points)
        if line.kind == "end":
            self._ended.append((line, self._tell(key, line, report)))
            return
        try:
            if self._store is not None:
                self._news(self._store, key, line, report)
        except StoreError as error:
            log.warning("Zeus could not write to its store: %s The training goes on.", error)

    def _news(self, store: Store, key: TrialKey, line: Line, report: Report) -> None:
        if line.kind == "beat":
            store.heartbeat(key, report, lease_s=self._lease_s)
        elif key.attempt > self._first.key.attempt:
            store.begin(key, replace(key, attempt=key.attempt - 1), lease_s=self._lease_s)

    def _tell(self, key: TrialKey, line: Line, report: Report) -> str | None:
        """Tell an attempt's end; where it is kept for later when the store does not take it."""
        state = line.state or State.FAILED
        try:
            if self._store is None:
                raise StoreError("The store could not be asked when this run began.")
            self._store.tell(key, state, report, reason=line.reason)
        except StoreError as error:
            return self._remember(key, state, line, report, error)
        return None

    def _remember(self, key: TrialKey, state: State, line: Line, report: Report, error: StoreError) -> str:
        position = min(key.attempt - self._first.key.attempt, len(self._first.decision.attempts) - 1)
        row = replace(self._first, key=key, planned=self._first.decision.attempts[position])
        job_id, reason = self._first.job_id, line.reason
        try:
            where = remember(self._port, key, state, report, job_id, reason, trial=row, state_dir=self._state_dir)
        except StoreError as worse:
            log.error("Zeus lost the cost of attempt %d: %s %s", key.attempt, error, worse)
            return "lost"
        log.warning("Zeus could not tell the cost of attempt %d: %s It is kept in %s.", key.attempt, error, where)
        return where

    def cost_xcom(self) -> dict[str, Any]:
        """XCom ``zeus_cost``: what this run cost, attempt by attempt, as plain JSON. None where a figure is missing."""
        job = ZeusJob.from_dict(self._first.spec)
        attempts = [_attempt_xcom(job, line, untold) for line, untold in self._ended]
        kept = next((a for a in attempts if a["attempt"] == self._kept), None)
        return {
            "job_id": self._first.job_id,
            "batch_size": kept["batch_size"] if kept else None,
            "kept_attempt": self._kept,
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
    }


def _sum(attempts: list[dict[str, Any]], name: str) -> float | None:
    """Total over the attempts; None when one of them is missing: a part would look like the whole."""
    values = [a[name] for a in attempts]
    return None if not values or None in values else sum(values)
