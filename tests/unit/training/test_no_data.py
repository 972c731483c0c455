"""An empty slice of data is no run that converged at no cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler

from airflow_provider_zeus.errors import BelowTargetError, JobSpecError, ReportError
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.conftest import Kit, explore, incumbent


def over(data: list[int], metric: float = 1.0, *, reports: bool = True):  # type: ignore[no-untyped-def]
    def train(run: ZeusRun) -> str:
        for _ in run.epochs():
            for _ in run.data_loader(data):
                pass
            if reports:
                run.report(acc=metric)
        return f"yesterday's model, {run.batch_size}"

    return train


@pytest.mark.parametrize("metric", [1.0, 0.0, math.nan])
@pytest.mark.parametrize("reports", [True, False])
def test_an_epoch_without_a_step_ends_the_run_without_data_and_keeps_the_value(
    kit: Kit, metric: float, reports: bool
) -> None:
    assert kit.run().train(over([], metric, reports=reports)) == "yesterday's model, 256"
    (end,) = kit.ends()
    assert (end.state, end.observation.samples) == (State.NO_DATA, 0)
    assert end.observation.metric is None
    assert (kit.lines[-1].kind, kit.lines[-1].attempt) == ("final", 1)


def test_an_exploratory_attempt_without_data_is_the_last_one(kit: Kit) -> None:
    assert (
        kit.run(explore(1024, bound_epochs=1.0), incumbent(256)).train(over([]))
        == "yesterday's model, 1024"
    )
    assert [e.state for e in kit.ends()] == [State.NO_DATA]


def test_a_required_target_is_no_matter_without_data(kit: Kit) -> None:
    assert kit.run(require_target=True).train(over([], 0.0)) == "yesterday's model, 256"


def test_a_runtime_target_without_a_value_is_no_matter_without_data(kit: Kit) -> None:
    assert kit.run(target="acc >= runtime").train(over([])) == "yesterday's model, 256"


def test_a_loop_alone_without_data_ends(kit: Kit) -> None:
    over([])(kit.run())
    assert [e.state for e in kit.ends()] == [State.NO_DATA]


def test_a_loop_that_tells_of_no_steps_is_a_training(kit: Kit) -> None:
    def train(run: ZeusRun) -> int:
        for _ in run.epochs():
            run.report(acc=1.0)
        return run.batch_size

    assert kit.run().train(train) == 256
    assert [e.state for e in kit.ends()] == [State.CONVERGED]


def test_with_data_a_missing_report_stays_an_error(kit: Kit) -> None:
    with pytest.raises(ReportError):
        kit.run().train(over(list(range(512)), reports=False))


def test_an_empty_pass_before_the_first_epoch_is_no_empty_slice(kit: Kit) -> None:
    def train(run: ZeusRun) -> int:
        for _ in run.data_loader([]):
            pass
        for _ in run.epochs():
            for _ in run.data_loader(list(range(512))):
                pass
            run.report(acc=1.0)
        return run.batch_size

    assert kit.run().train(train) == 256
    assert [e.state for e in kit.ends()] == [State.CONVERGED]


@pytest.mark.parametrize("metric", [1.0, 0.0, math.nan])
def test_a_run_without_a_step_where_earlier_runs_made_some_teaches_nothing(
    kit: Kit, metric: float
) -> None:
    """A loop of ``run.step()`` over an empty slice: no loader says that it was empty."""

    def train(run: ZeusRun) -> int:
        for _ in run.epochs():
            for _ in ():
                run.step()
            run.report(acc=metric)
        return run.batch_size

    known = replace(incumbent(256), bound_samples_per_epoch=51_200.0)
    assert kit.run(known, max_epochs=2).train(train) == 256
    assert [e.state for e in kit.ends()] == [State.NO_DATA]
    if not metric:
        with pytest.raises(BelowTargetError):
            kit.run(known, max_epochs=2, require_target=True).train(train)


class Stream(IterableDataset[int]):
    """So many samples, whose number it does not tell."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.samples))


def whole_batches(run: ZeusRun) -> dict[str, Any]:
    return {"sampler": BatchSampler(RandomSampler(range(600)), run.batch_size, drop_last=True)}


def dropping(data: Any, options: Any = lambda run: {"drop_last": True}, *, reports: bool = True):  # type: ignore[no-untyped-def]
    """A training that counts its own batches."""

    def train(run: ZeusRun) -> tuple[int, int]:
        batches = 0
        for _ in run.epochs():
            for _ in run.data_loader(data, **options(run)):
                batches += 1
            if reports or batches:
                run.report(acc=1.0)
        return run.batch_size, batches

    return train


@pytest.mark.parametrize("reports", [True, False])
@pytest.mark.parametrize(
    ("train", "held"),
    [
        ((range(600),), "600 samples"),
        ((Stream(600),), "the samples"),
        ((torch.zeros(600), whole_batches), "600 samples"),
    ],
    ids=["data set", "stream", "batches of indices"],
)
def test_a_batch_size_that_drops_all_samples_fails_and_the_incumbent_trains(
    kit: Kit, train: tuple[Any, ...], held: str, reports: bool
) -> None:
    assert kit.run(explore(1024), incumbent(256)).train(dropping(*train, reports=reports)) == (
        256,
        2,
    )
    assert [e.state for e in kit.ends()] == [State.FAILED, State.CONVERGED]
    assert f"batch size 1024 leaves no batch of {held}" in str(kit.ends()[0].reason)


def test_an_incumbent_that_drops_all_samples_is_no_model_to_keep(kit: Kit) -> None:
    with pytest.raises(JobSpecError, match="batch size 256 leaves no batch of 200 samples"):
        kit.run().train(dropping(range(200)))
    assert [e.state for e in kit.ends()] == [State.FAILED]
    assert (kit.lines[-1].kind, kit.lines[-1].attempt) == ("final", None)


@pytest.mark.parametrize("data", [range(0), Stream(0)], ids=["data set", "stream"])
def test_without_samples_nothing_is_dropped(kit: Kit, data: Any) -> None:
    assert kit.run().train(dropping(data)) == (256, 0)
    assert [e.state for e in kit.ends()] == [State.NO_DATA]


def test_a_small_part_that_is_dropped_leaves_the_training_of_the_other(kit: Kit) -> None:
    def train(run: ZeusRun) -> int:
        for _ in run.epochs():
            for data in (range(200), range(512)):
                for _ in run.data_loader(data, drop_last=True):
                    pass
            run.report(acc=1.0)
        return run.batch_size

    assert kit.run().train(train) == 256
    assert kit.last().samples == 512
