"""What an attempt keeps beside its sums: the metric of each epoch,
and how much of the time the GPU worked.
"""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.conftest import Kit, explore, incumbent, steps


def reporting(*metrics: float) -> Any:
    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            steps(run)
            run.report(acc=metrics[epoch])

    return train


def test_the_metric_of_each_epoch_is_kept_by_attempt(kit: Kit) -> None:
    kit.run(explore(1024, bound_epochs=2.0), incumbent(256)).train(reporting(0.25, 0.5, 0.95))
    given_up, kept = kit.ends()
    assert given_up.state is State.GIVEN_UP
    assert given_up.observation.epoch_metrics == (0.25, 0.5)
    assert kept.observation.epoch_metrics == (0.25, 0.5, 0.95)
    assert kept.observation.metric == 0.95


def test_no_more_than_a_thousand_are_kept(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_zeus.training.attempt.MOST_EPOCHS", 2)
    kit.run().train(reporting(0.1, 0.2, 0.3, 0.95))
    assert kit.last().epoch_metrics == (0.1, 0.2)
