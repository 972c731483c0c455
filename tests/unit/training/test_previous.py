"""``run.previous`` and ``run.still_good()``: a run that trains nothing,
since the model of an earlier one is good.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.errors import ReportError
from airflow_provider_zeus.model.size_bounds import MOST_RETURNED
from airflow_provider_zeus.model.trial import Previous, State
from airflow_provider_zeus.training.attempt_loop import returned
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.conftest import Kit, explore, incumbent, loop

GOOD = Previous(returned='"s3://models/7"')


def check(run: ZeusRun, acc: float = 0.95) -> Any:
    if run.previous is not None and run.still_good(acc=acc):
        return run.previous
    return loop(run, epochs=2)


def test_a_good_model_is_kept_and_nothing_is_trained(kit: Kit) -> None:
    assert kit.run(previous=GOOD).train(check) == "s3://models/7"
    (end,) = kit.ends()
    seen = end.observation
    assert (end.state, seen.metric, seen.returned) == (State.NOT_NEEDED, 0.95, GOOD.returned)
    assert (seen.energy_j, seen.time_s) == (None, None), (
        "not 0: what the check drew is not measured"
    )
    assert (kit.lines[-1].kind, kit.lines[-1].attempt) == ("final", 1)


def test_a_model_that_is_not_good_is_trained_again(kit: Kit) -> None:
    assert kit.run(previous=GOOD).train(check, 0.89) == 256
    (end,) = kit.ends()
    assert (end.state, end.observation.metric, end.observation.returned) == (
        State.CONVERGED,
        0.9,
        "256",
    )


def test_an_exploratory_attempt_is_not_followed_where_nothing_is_needed(kit: Kit) -> None:
    run = kit.run(explore(1024, bound_epochs=3.0), incumbent(256), previous=GOOD)
    assert run.train(check) == "s3://models/7"
    assert [e.state for e in kit.ends()] == [State.NOT_NEEDED]


@pytest.mark.parametrize("text", ["[" * 2000 + "]" * 2000, "{"])
def test_a_value_of_a_pod_that_cannot_be_read_fails_no_run(kit: Kit, text: str) -> None:
    assert kit.run(previous=Previous(returned=text)).train(check) == 256


@pytest.mark.parametrize(("not_needed", "trains"), [(0, False), (5, False), (6, True), (9, True)])
def test_it_trains_at_least_every_so_many_runs(kit: Kit, not_needed: int, trains: bool) -> None:
    previous = Previous(returned='"m"', not_needed=not_needed)
    kept = kit.run(previous=previous, retrain_every=7).train(check)
    assert (kept, kit.ends()[0].state) == (
        (256, State.CONVERGED) if trains else ("m", State.NOT_NEEDED)
    )


def test_a_training_after_all_counts_as_one(kit: Kit) -> None:
    def train(run: ZeusRun) -> int:
        assert run.still_good(acc=0.95)
        return loop(run, epochs=2)

    assert kit.run(previous=GOOD).train(train) == 256
    assert kit.ends()[0].state is State.CONVERGED
    assert kit.ends()[0].observation.epochs == 2.0


@pytest.mark.parametrize(
    "held", [None, Previous(), Previous(returned="null"), Previous(returned="no json")]
)
def test_where_nothing_ran_there_is_no_previous_and_asking_says_so(
    kit: Kit, held: Previous | None
) -> None:
    run = kit.run(previous=held)
    assert run.previous is None
    with pytest.raises(
        ReportError, match=r"run.previous is None.*Check `if run.previous is not None` first"
    ):
        run.still_good(acc=0.95)


def test_it_is_asked_before_the_first_epoch_with_the_targets_metric(kit: Kit) -> None:
    def late(run: ZeusRun) -> None:
        for _ in run.epochs():
            run.still_good(acc=0.95)

    with pytest.raises(ReportError, match="trains already"):
        kit.run(previous=GOOD).train(late)
    run = kit.run(previous=GOOD)
    with pytest.raises(ReportError, match=r"run.still_good\(\) got \['loss'\]"):
        run.still_good(loss=0.1)
    with pytest.raises(ReportError, match="not a finite number"):
        run.still_good(acc=math.nan)


def test_a_target_of_the_run_is_set_first(kit: Kit) -> None:
    run = kit.run(previous=GOOD, target="acc >= runtime")
    with pytest.raises(ReportError, match="no value yet"):
        run.still_good(acc=0.95)
    run.set_target(0.96)
    assert not run.still_good(acc=0.95)


def test_several_processes_are_refused(kit: Kit) -> None:
    run = kit.rank(0)
    run.plan = kit.plan(previous=GOOD)
    with pytest.raises(ReportError, match="one process"):
        run.still_good(acc=0.95)


def test_a_script_that_only_loops_keeps_the_earlier_model_too(kit: Kit) -> None:
    run = kit.run(previous=GOOD)
    assert run.still_good(acc=0.95)
    run.close()
    assert kit.ends()[0].state is State.NOT_NEEDED
    assert (kit.lines[-1].kind, kit.lines[-1].attempt) == ("final", 1)


def test_what_is_kept_of_a_value() -> None:
    assert returned({"path": Path("/models/7"), "auc": 0.5}) == '{"path": "/models/7", "auc": 0.5}'
    assert returned(None) == "null"
    for value in (math.nan, object(), {1, 2}, "x" * MOST_RETURNED):
        assert returned(value) is None
    loops: list[Any] = []
    loops.append(loops)
    assert returned(loops) is None
    assert len(returned("x" * (MOST_RETURNED - 2)) or "") == MOST_RETURNED


class Spiteful(dict[str, int]):
    """A value whose own code raises what nobody expects."""

    def items(self) -> Any:
        raise KeyError("planted")

    def __fspath__(self) -> str:
        raise RuntimeError("planted")


class SpitefulPath:
    def __fspath__(self) -> str:
        raise RuntimeError("planted")


@pytest.mark.parametrize("value", [Spiteful(a=1), SpitefulPath(), [SpitefulPath()]])
def test_code_of_the_value_that_raises_costs_no_model(kit: Kit, value: Any) -> None:
    def train(run: Any) -> Any:
        loop(run, epochs=1)
        return value

    assert kit.run().train(train) is value
    assert (kit.ends()[0].state, kit.last().returned) == (State.CONVERGED, None)
