"""The training itself: it reaches its target, the same seed trains the same model,
and 256 is the cheap batch size.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from weather import forecast, samples, slices
from zeus_weather import JOB

from airflow_provider_zeus.model.cost import Weights, observed_cost
from airflow_provider_zeus.model.trial import Phase, PlannedAttempt, State
from airflow_provider_zeus.power.factory import open_device
from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun


def train(
    key: str, batch_size: int, folder: Path, seed: int = 0
) -> tuple[ResultLine, torch.nn.Module, float]:
    """(end line, kept model, cost [J]) of one training."""
    attempt = PlannedAttempt(batch_size=batch_size, phase=Phase.PINNED, why="Test.")
    plan = Plan(
        job_id="test",
        ti_id=f"{key}-{batch_size}",
        number=1,
        first_attempt=1,
        spec=JOB.to_dict() | {"mode": "measure"},
        attempts=(attempt,),
        seed=seed,
        state_dir=str(folder),
    )
    device = open_device(JOB.device, state_dir=folder)
    lines: list[ResultLine] = []
    model = ZeusRun.from_plan(plan, device=device, sink=lines.append).train(forecast.retrain, key)
    end = next(line for line in lines if line.kind == "end")
    assert end.observation is not None
    cost_j = observed_cost(end.observation, Weights.of(JOB, device.info))
    assert cost_j is not None
    return end, model, cost_j


@pytest.mark.parametrize("key", ["2013-W17", "2013-W31"])
def test_an_easy_and_the_hardest_slice_reach_their_target(key: str, tmp_path: Path) -> None:
    end, model, _ = train(key, 256, tmp_path)
    data = samples.of_slice(key)
    assert end.state is State.CONVERGED
    assert forecast.holdout_rmse_f(model, data) <= forecast.TARGET_SHARE * data.trivial_rmse_f
    assert end.observation is not None
    assert end.observation.metric == pytest.approx(forecast.holdout_rmse_f(model, data))
    assert end.observation.learning_rate == pytest.approx(2e-3)


def test_the_same_seed_trains_the_same_model(tmp_path: Path) -> None:
    runs = [train("2013-W17", 512, tmp_path, seed) for seed in (1, 1, 2)]
    weights = [torch.cat([p.flatten() for p in model.parameters()]) for _, model, _ in runs]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_learning_rate_follows_the_batch_size(tmp_path: Path) -> None:
    end, _, _ = train("2013-W17", 1024, tmp_path)
    assert end.observation is not None
    assert end.observation.learning_rate == pytest.approx(2 * 2e-3)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_every_slice_reaches_its_target_at_256(tmp_path: Path) -> None:
    missed = [
        key
        for key in slices.all_keys()
        if train(key, 256, tmp_path)[0].state is not State.CONVERGED
    ]
    assert missed == []


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_cost_is_u_shaped_over_the_batch_size(tmp_path: Path) -> None:
    keys = slices.all_keys()[::20]
    mean_j = {
        b: sum(train(key, b, tmp_path)[2] for key in keys) / len(keys) for b in JOB.batch_sizes
    }
    best = min(mean_j, key=lambda b: mean_j[b])
    assert best in (128, 256, 512), mean_j
    assert mean_j[16] > mean_j[32] > mean_j[64] > mean_j[128], mean_j
    assert mean_j[2048] > mean_j[1024] > 1.1 * mean_j[best], mean_j
    assert mean_j[JOB.default_batch_size] > 2 * mean_j[best], "the default is plausible, and poor"
