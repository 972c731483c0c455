"""A simulated job on a GPU: the epochs that each batch size needs, and the run log."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import (
    Decision,
    DeviceInfo,
    Phase,
    PlannedAttempt,
    State,
    Trial,
)
from airflow_provider_zeus.optimizer.arms import Arm, arms_of, epoch_costs
from airflow_provider_zeus.optimizer.policy import Belief, choose, decision_seed, learn, prior
from airflow_provider_zeus.optimizer.situation import Situation
from tests.strategies import V100, make_trial

SAMPLES = 1000.0
NEVER = math.inf


def job_of(*sizes: int, default: int, **fields: Any) -> ZeusJob:
    return ZeusJob(
        **{
            "batch_sizes": sizes,
            "default_batch_size": default,
            "target": "acc >= 0.9",
            "max_epochs": 100,
            "policy": "zeus",
            "audit": 0.0,
            **fields,
        }
    )


@dataclass
class World:
    """``epochs[b]``: epochs to the target at batch size b; ``epoch_s[b]``: seconds of one epoch (default 10)."""

    job: ZeusJob
    epochs: Mapping[int, float]
    epoch_s: Mapping[int, float] = field(default_factory=dict)
    device: DeviceInfo = V100
    power_w: float = 200.0
    samples: float = SAMPLES
    log: list[Trial] = field(default_factory=list)

    @property
    def belief(self) -> Belief:
        return reduce(learn, self.log, prior(self.job))

    @property
    def number(self) -> int:
        return len(self.log) + 1

    def arms(self) -> dict[int, Arm]:
        weights = Weights.of(self.job, self.device)
        return arms_of(self.belief, epoch_costs(self.belief, self.device, (), weights))

    def decide(self, seed: int | None = None, **asked: Any) -> Decision:
        seed = decision_seed("dag.train", self.number, 0) if seed is None else seed
        return choose(
            Situation(self.job, self.belief, seed=seed, **{"device": self.device, **asked})
        )

    def epoch_cost(self, batch_size: int) -> float:
        one = self.figures(batch_size, 1.0)
        return Weights.of(self.job, self.device).cost(one["energy_j"], one["time_s"])

    def figures(self, batch_size: int, epochs: float) -> dict[str, Any]:
        time_s = epochs * self.epoch_s.get(batch_size, 10.0) * self.samples / SAMPLES
        return {
            "epochs": epochs,
            "samples": int(epochs * self.samples),
            "samples_per_epoch": self.samples,
            "time_s": time_s,
            "energy_j": None if self.device.energy_source is None else time_s * self.power_w,
            "device_model": self.device.model,
            "device_count": self.device.count,
            "max_power_w": self.device.max_power_w,
            "energy_source": self.device.energy_source,
        }

    def add(
        self,
        batch_size: int,
        state: State = State.CONVERGED,
        epochs: float | None = None,
        **fields: Any,
    ) -> Trial:
        """Append one trial; default ``epochs``: those that its batch size needs."""
        epochs = self.epochs[batch_size] if epochs is None else epochs
        figures = self.figures(batch_size, epochs)
        trial = make_trial(self.number, batch_size, state, **{"job": self.job, **figures, **fields})
        self.log.append(trial)
        return trial

    def died(self, batch_size: int, state: State = State.ABANDONED, **fields: Any) -> Trial:
        """Append a trial that died; one that failed had begun to train."""
        began = {"time_s": 1.0} if state is State.FAILED else {}
        trial = make_trial(
            self.number,
            batch_size,
            state,
            **{"job": self.job, "phase": Phase.EXPLORE, **began, **fields},
        )
        self.log.append(trial)
        return trial

    def run(self, **asked: Any) -> Decision:
        """One recurrence: decide, then run its attempts until one reaches its target."""
        decision = self.decide(**asked)
        data_slice = f"slice {self.number}"
        for attempt in decision.attempts:
            if self._attempt(attempt, data_slice) is State.CONVERGED:
                break
        return decision

    def _attempt(self, attempt: PlannedAttempt, data_slice: str | None = None) -> State:
        needed = self.epochs[attempt.batch_size]
        allowed = float(self.job.max_epochs or 1)
        if attempt.bound_epochs is not None:
            allowed = min(allowed, attempt.bound_epochs)
        if attempt.bound_cost is not None:
            allowed = min(allowed, attempt.bound_cost / self.epoch_cost(attempt.batch_size))
        if needed <= allowed:
            state = State.CONVERGED
            epochs = needed
        else:
            state = State.GIVEN_UP if attempt.bounded else State.EXHAUSTED
            epochs = allowed
        fields = {"phase": attempt.phase, "round_": attempt.round, "data_slice": data_slice}
        self.add(attempt.batch_size, state, epochs, **fields)
        return state

    def runs(self, count: int) -> list[int]:
        """The batch sizes that the next ``count`` recurrences try first."""
        return [self.run().attempts[0].batch_size for _ in range(count)]
