"""What an attempt keeps beside its sums: the metric of each epoch, and how much of the time the GPU worked."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.training.metering import DataWait
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


def test_the_wait_for_data_names_how_much_the_gpu_works(caplog: pytest.LogCaptureFixture) -> None:
    waits = DataWait()
    with caplog.at_level(logging.WARNING):
        waits.add(8.0, 10.0, 0.25)
    assert "80 % of the training time is spent waiting for data, and the GPU works 25 % of the time" in caplog.text


def test_a_wait_for_data_without_a_gpu_that_tells(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        DataWait().add(8.0, 10.0)
    assert "waiting for data: it is input-bound" in caplog.text
