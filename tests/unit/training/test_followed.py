"""The power limit follows a signal: frugal while energy is dear, fast while it is cheap,
from the profile alone.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_provider_zeus.model.trial import ProfileSample
from airflow_provider_zeus.signals.forecast import Followed
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.conftest import Kit, incumbent, loop, steps

STEP_S = 600.0  # each value of the signal holds


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> tuple[ProfileSample, ...]:
    """Complete."""
    kit = Kit(tmp_path_factory.mktemp("profile"))
    run = kit.run(incumbent(1024), max_epochs=60)
    run.train(loop, epochs=40)
    run.close()
    return kit.profile()


def signal_of(*values: float, mean: float = 100.0) -> Followed:
    """Values one after the other, from now on."""
    now_s = time.time() - 60.0
    steps_s = [now_s + i * STEP_S for i in range(len(values) + 1)]
    return Followed(
        signal="carbon", mean=mean, steps=tuple(zip(steps_s[:-1], steps_s[1:], values, strict=True))
    )


def limits_by_step(run: ZeusRun) -> list[set[float | None]]:
    """The limits in force in each of three steps of the signal, past the first minutes of each."""
    begun_s = run.device.now_s()
    seen = [set[float | None]() for _ in range(3)]
    for _ in run.epochs():
        while (at_s := run.device.now_s() - begun_s) < 3 * STEP_S:
            run.step(run.batch_size)
            if 120.0 < at_s % STEP_S < STEP_S - 120.0:
                seen[int(at_s // STEP_S)].add(run.device.limit_w())
        run.report(acc=1.0)
    return seen


def test_a_limit_for_each_step_and_the_one_found_at_the_end(
    kit: Kit, profile: tuple[ProfileSample, ...]
) -> None:
    usual = kit.run(incumbent(1024), profile=profile)
    usual.train(loop, epochs=1)
    usual_w = kit.last().power_limit_w
    kit.lines.clear()
    run = kit.run(incumbent(1024), profile=profile, signal=signal_of(1000.0, 100.0, 1.0))
    dear, mean, cheap = run.train(limits_by_step)
    assert [len(each) for each in (dear, mean, cheap)] == [1, 1, 1]
    assert mean == {usual_w}
    assert dear.pop() < usual_w < cheap.pop()  # type: ignore[operator]
    assert kit.profile() == (), "nothing is measured anew"
    assert kit.last().excess_j == 0.0
    assert kit.gpu.limit_w() == 250.0


def test_after_the_series_ends_the_usual_limit_runs(
    kit: Kit, profile: tuple[ProfileSample, ...]
) -> None:
    run = kit.run(incumbent(1024), profile=profile, signal=signal_of(1000.0))
    dear, after, later = run.train(limits_by_step)
    assert after == later != dear


@pytest.mark.parametrize("job", [{"mode": "observe"}, {"mode": "measure"}, {"eta": 1.0}])
def test_where_no_limit_depends_on_it_none_is_changed(
    tmp_path: Path, profile: tuple[ProfileSample, ...], job: dict[str, object]
) -> None:
    found = []
    for name, signal in (("without", None), ("with", signal_of(1000.0, 100.0, 1.0))):
        kit = Kit(tmp_path / name)  # a GPU of its own: the same noise from the start
        kit.tmp.mkdir()
        run = kit.run(incumbent(1024), profile=profile, signal=signal, **job)
        found.append(run.train(limits_by_step))
        run.close()
    assert found[0] == found[1]


def test_a_run_without_a_profile_measures_it_and_follows(kit: Kit) -> None:
    run = kit.run(incumbent(1024), signal=signal_of(1000.0, 1000.0, 1.0))
    _, dear, cheap = run.train(limits_by_step)
    assert {250.0, 200.0, 150.0, 100.0} < {s.limit_w for s in kit.profile()}
    assert max(dear) < min(cheap)  # type: ignore[type-var]


def test_a_plan_takes_it_along(kit: Kit) -> None:
    plan = kit.plan(signal=signal_of(1.0, 2.0))
    assert Plan.from_json(plan.to_json()).signal == plan.signal
    assert Plan.from_json(kit.plan().to_json()).signal is None


def test_epochs_end_as_without_it(kit: Kit, profile: tuple[ProfileSample, ...]) -> None:
    def train(run: ZeusRun) -> None:
        for epoch in run.epochs():
            steps(run)
            run.report(acc=1.0 if epoch == 4 else 0.0)

    kit.run(incumbent(1024), profile=profile, signal=signal_of(1000.0)).train(train)
    assert kit.last().epochs == 5
