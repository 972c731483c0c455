"""A learning rate that did not follow the batch size is told at the first epoch, once."""

from __future__ import annotations

import logging

import pytest

from airflow_provider_zeus.model.learning_rate import EarlierRate
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.conftest import Kit, explore, incumbent, loop

REMARK = (
    "Batch sizes 128 and 256 trained with the same learning rate 0.1. Remedy: take it from "
    'run.scale_lr(rate), or from run.scale_lr(rate, "none") if one is meant for all.'
)


def fixed_rate(run: ZeusRun) -> None:
    run.progress.learning_rate = 0.1
    loop(run)


def remarks(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "the same learning rate" in text]


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_it_is_compared_with_that_of_the_run_before(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    kit.run(incumbent(256), earlier_rate=EarlierRate(128, 0.1)).train(fixed_rate)
    assert remarks(caplog) == [f"Zeus: {REMARK}"]


@pytest.mark.parametrize(
    "earlier", [None, EarlierRate(256, 0.1), EarlierRate(128, 0.05)], ids=["none", "size", "rate"]
)
def test_the_same_size_and_a_rate_that_followed_are_no_remark(
    earlier: EarlierRate | None, kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    kit.run(incumbent(256), earlier_rate=earlier).train(fixed_rate)
    assert remarks(caplog) == []


def test_one_rate_that_is_meant_for_all_sizes_is_no_remark(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    def train(run: ZeusRun) -> None:
        run.scale_lr(0.1, "none")
        loop(run)

    kit.run(incumbent(256), earlier_rate=EarlierRate(128, 0.1)).train(train)
    assert remarks(caplog) == []


def test_the_next_attempt_is_compared_with_the_one_before(
    kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    kit.run(explore(1024, bound_epochs=1.0), incumbent(256)).train(fixed_rate)
    (text,) = remarks(caplog)
    assert "Batch sizes 1024 and 256 trained with the same learning rate 0.1" in text
