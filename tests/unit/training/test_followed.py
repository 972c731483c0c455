"""The power limit follows a signal: frugal while energy is dear, fast while it is cheap, from the profile alone."""

from __future__ import annotations

import time

import pytest

from airflow_provider_zeus.model.trial import ProfileSample
from airflow_provider_zeus.signals.follow import Followed
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.conftest import Kit, incumbent, loop, steps


@pytest.fixture
def profile(kit: Kit) -> tuple[ProfileSample, ...]:
    """Complete."""
    kit.run(incumbent(1024), max_epochs=60).train(loop, epochs=40)
    found = kit.profile()
    kit.lines.clear()
    return found


def hourly(*values: float, mean: float = 100.0) -> Followed:
    """Values of an hour each, from now on."""
    now_s = time.time() - 60.0
    steps_s = [now_s + i * 3600.0 for i in range(len(values) + 1)]
    return Followed(signal="carbon", mean=mean, steps=tuple(zip(steps_s[:-1], steps_s[1:], values, strict=True)))


def limits_by_hour(run: ZeusRun) -> list[set[float | None]]:
    """The limits in force in each of three hours, past the first minutes of each."""
    begun_s, seen = run.device.now_s(), [set[float | None]() for _ in range(3)]
    for _ in run.epochs():
        while (at_s := run.device.now_s() - begun_s) < 3 * 3600:
            run.step(run.batch_size)
            if at_s % 3600 > 120 and at_s % 3600 < 3400:
                seen[int(at_s // 3600)].add(run.device.limit_w())
        run.report(acc=1.0)
    return seen


def test_a_limit_for_each_hour_and_the_one_found_at_the_end(kit: Kit, profile: tuple[ProfileSample, ...]) -> None:
    usual = kit.run(incumbent(1024), profile=profile)
    usual.train(loop, epochs=1)
    usual_w = kit.last().power_limit_w
    kit.lines.clear()
    run = kit.run(incumbent(1024), profile=profile, signal=hourly(1000.0, 100.0, 1.0))
    dear, mean, cheap = run.train(limits_by_hour)
    assert [len(each) for each in (dear, mean, cheap)] == [1, 1, 1]
    assert mean == {usual_w}
    assert dear.pop() < usual_w < cheap.pop()  # type: ignore[operator]
    assert kit.profile() == (), "nothing is measured anew"
    assert kit.last().excess_j == 0.0
    assert kit.gpu.limit_w() == 250.0


def test_after_the_series_ends_the_usual_limit_runs(kit: Kit, profile: tuple[ProfileSample, ...]) -> None:
    run = kit.run(incumbent(1024), profile=profile, signal=hourly(1000.0))
    dear, after, later = run.train(limits_by_hour)
    assert after == later != dear


@pytest.mark.parametrize("job", [{"mode": "observe"}, {"mode": "measure"}, {"eta": 1.0}])
def test_where_no_limit_depends_on_it_none_is_changed(
    kit: Kit, profile: tuple[ProfileSample, ...], job: dict[str, object]
) -> None:
    found = []
    for signal in (None, hourly(1000.0, 100.0, 1.0)):
        kit.lines.clear()
        found.append(kit.run(incumbent(1024), profile=profile, signal=signal, **job).train(limits_by_hour))
    assert found[0] == found[1]


def test_a_run_without_a_profile_measures_it_and_follows(kit: Kit) -> None:
    run = kit.run(incumbent(1024), signal=hourly(1000.0, 1000.0, 1.0))
    _, dear, cheap = run.train(limits_by_hour)
    assert {250.0, 200.0, 150.0, 100.0} < {s.limit_w for s in kit.profile()}
    assert max(dear) < min(cheap)  # type: ignore[type-var]


def test_a_plan_takes_it_along_and_leaves_it_out_where_there_is_none(kit: Kit) -> None:
    plan = kit.plan(signal=hourly(1.0, 2.0))
    assert Plan.from_json(plan.to_json()).signal == plan.signal
    assert '"signal"' not in kit.plan().to_json()


def test_epochs_end_as_without_it(kit: Kit, profile: tuple[ProfileSample, ...]) -> None:
    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            steps(run)
            run.report(acc=1.0 if epoch == 4 else 0.0)

    kit.run(incumbent(1024), profile=profile, signal=hourly(1000.0)).train(train)
    assert kit.last().epochs == 5
