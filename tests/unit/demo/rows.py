"""Rows, trials and baselines for tests of the demo's arithmetic."""

from __future__ import annotations

from typing import Any

from zeus_weather import JOB

from airflow_provider_zeus.model.trial import (
    Decision,
    Observation,
    Origin,
    Phase,
    PlannedAttempt,
    State,
    Trial,
    TrialKey,
)
from demo.baseline import Baseline
from demo.run_costs import RunCost


def baseline(cost_j: float, key: str = "2013-W13") -> Baseline:
    return Baseline(key, "code", 32, "converged", 10.0, cost_j / 2, cost_j / 250, cost_j)


def row(cost_j: float | None, base_j: float | None = None, **changes: Any) -> RunCost:
    """A run that cost so much, beside a baseline that cost so much."""
    known: dict[str, Any] = {
        "slice_key": "2013-W13",
        "attempts": ((64, State.CONVERGED),),
        "kept": True,
        "limit_w": 100.0,
        "epochs": 9.0,
        "energy_j": cost_j and cost_j / 2,
        "time_s": cost_j and cost_j / 250,
        "cost_j": cost_j,
        "phase": Phase.SAMPLE,
        "why": "Because.",
        "source": "simulated",
        "baseline": None if base_j is None else baseline(base_j),
    }
    return RunCost(**{**known, **changes})


def trial(number: int, run_id: str = "r1", state: State = State.CONVERGED, **changes: Any) -> Trial:
    """A trial on a simulated V100; ``changes`` go to its observation."""
    attempt = PlannedAttempt(
        batch_size=changes.pop("batch_size", 64), phase=Phase.EXPLORE, why=f"Why {number}."
    )
    seen = {
        "epochs": 10.0,
        "energy_j": 1000.0,
        "time_s": 8.0,
        "power_limit_w": 125.0,
        "device_model": "simulated V100",
        "max_power_w": 250.0,
        "energy_source": "simulated",
    }
    return Trial(
        job_id="j",
        number=number,
        key=TrialKey(f"ti-{run_id}", number),
        origin=Origin(dag_id="d", run_id=run_id, data_slice=f"slice of {run_id}"),
        spec=JOB.to_dict(),
        decision=Decision(attempts=(attempt,), seed=1, policy="zeus"),
        planned=attempt,
        state=state,
        observation=Observation(**{**seen, **changes}),
    )
