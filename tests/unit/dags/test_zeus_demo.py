"""The example without torch trains for real: its batch size decides how many epochs it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from airflow_provider_zeus.model.trial import Observation, State
from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.dags import conftest  # noqa: F401  the DAG folder on the import path
from tests.unit.training.conftest import incumbent


def trained(tmp_path: Path, batch_size: int, run_id: str) -> tuple[Observation, Any]:
    """What a run at a batch size measured on its simulated GPU, and its model's weights."""
    import zeus_demo

    function = zeus_demo.zeus_demo().get_task("train").python_callable
    plan = Plan(
        job_id="zeus_demo.train",
        ti_id="ti",
        number=1,
        first_attempt=1,
        spec=replace(zeus_demo.JOB, data_slice=None).to_dict(),
        attempts=(incumbent(batch_size),),
        heartbeat_s=60.0,
        state_dir=str(tmp_path),
        attempt_root=str(tmp_path),
    )
    lines: list[ResultLine] = []
    path = ZeusRun.from_plan(plan, sink=lines.append).train(
        lambda run: function(run=run, run_id=run_id)
    )
    (end,) = [line for line in lines if line.kind == "end"]
    assert end.state is State.CONVERGED
    assert end.observation is not None
    return end.observation, dict(np.load(path))


@pytest.mark.parametrize("run_id", ["zeus-demo-01", "manual__2026-01-01"])
def test_a_larger_batch_takes_more_epochs_and_less_time_for_each(
    tmp_path: Path, run_id: str
) -> None:
    (small, one), (large, other) = (trained(tmp_path, size, run_id) for size in (16, 256))
    assert small.epochs is not None
    assert large.epochs is not None
    assert large.epochs >= 2 * small.epochs
    assert small.metric is not None
    assert small.metric >= 0.95
    assert small.time_s is not None
    assert large.time_s is not None
    assert large.time_s / large.epochs < small.time_s / small.epochs / 4
    assert small.energy_source == large.energy_source == "simulated"
    assert one["hidden"].shape == other["hidden"].shape == (3, 32)
    assert not np.allclose(one["output"], 0)


def test_a_run_and_a_batch_size_give_one_model(tmp_path: Path) -> None:
    (first, weights), (again, same) = (trained(tmp_path, 64, "zeus-demo-03") for _ in range(2))
    assert first.epochs == again.epochs
    assert np.array_equal(weights["hidden"], same["hidden"])
    other, _ = trained(tmp_path, 64, "zeus-demo-04")
    assert (other.epochs, other.metric) != (first.epochs, first.metric)
