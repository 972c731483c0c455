"""An empty slice of data is no run that converged at no cost."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from airflow_provider_zeus.errors import BelowTargetError, ReportError
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
    assert kit.run(explore(1024, bound_epochs=1.0), incumbent(256)).train(over([])) == "yesterday's model, 1024"
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


@pytest.mark.parametrize("metric", [1.0, 0.0])
def test_a_run_without_a_step_where_earlier_runs_made_some_teaches_nothing(kit: Kit, metric: float) -> None:
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
