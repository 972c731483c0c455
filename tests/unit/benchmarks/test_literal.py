"""The paper's algorithm with its switches: all on it is policy "zeus",
off it behaves as upstream does.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from airflow_provider_zeus.optimizer import thompson
from airflow_provider_zeus.optimizer.arms import DOUBT
from benchmarks.parts.literal import TRIES, Parts, Settled, literal
from benchmarks.simulation.driver import replay
from benchmarks.simulation.environment import Log
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import PowerMeasurement, Traces
from tests.strategies import REPRODUCIBLE
from tests.unit.benchmarks.simulation.tiny import scenarios, tiny


def assert_alike(ours: Log, theirs: Log) -> None:
    """The same batch sizes, given up at the same moments and charged the same."""
    assert sizes(ours) == sizes(theirs)
    for name in ("cost", "expected_cost", "energy_j", "time_s"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name))
    for name in ("attempts", "batch_size", "limit_w", "runs_below_target", "runs_without_model"):
        assert getattr(ours, name) == getattr(theirs, name)
    epochs = [[r.epochs for runs in log.runs for r in runs] for log in (ours, theirs)]
    assert epochs[0] == pytest.approx(epochs[1])


def sizes(log: Log) -> list[list[int]]:
    return [[r.batch_size for r in runs] for runs in log.runs]


def no_size_is_doubted(scenario: Scenario) -> bool:
    """Whether each size's epoch costs about what the others permit:
    else its first run is repeated, unlike the paper's.

    Drawn costs may be such that a larger size takes far longer for an epoch,
    which a real step does not.
    """
    costs = {b: arm.epoch.cost for b, arm in scenario.arms.items()}
    return all(
        cost < 0.9 * DOUBT * other_cost * max(1.0, other / b)
        for b, cost in costs.items()
        for other, other_cost in costs.items()
    )


@REPRODUCIBLE
@given(scenarios(), st.integers(0, 1000), st.sampled_from([1.2, 2.0]))
def test_all_switches_on_is_policy_zeus(scenario: Scenario, seed: int, beta: float) -> None:
    assume(no_size_is_doubted(scenario))
    window = 2 * len(scenario.pair.batch_sizes) + 1  # small: sizes leave it and return
    job = scenario.job(policy="zeus", window=window)
    ours = literal(scenario, 40, seed, settled=Settled.all(), beta=beta, window=window)
    with patch.object(thompson, "BETA", beta):
        assert_alike(ours, replay(scenario, job, 40, seed))


def test_a_window_that_is_just_full_has_forgotten_an_older_miss(tmp_path: Path) -> None:
    """16 misses, then 16 and 32 converge seven times in all: 16, whose epoch is cheaper,
    is the incumbent.
    """
    points = {b: (PowerMeasurement(100.0, 2.0036 + (b - 8) / 5000, 50.0),) for b in (8, 16, 32)}
    pair = replace(
        tiny(tmp_path).pair, default_batch_size=16, max_epochs=12, max_power_w=200.0, points=points
    )
    scenario = Scenario(
        replace(pair, epochs={8: (math.inf,), 16: (1.0, math.inf, 6.0), 32: (1.0,)}), eta=0.0
    )
    for seed in range(8):
        ours = literal(scenario, 40, seed, settled=Settled.all(), window=7)
        assert_alike(ours, replay(scenario, scenario.job(policy="zeus", window=7), 40, seed))


@pytest.mark.parametrize("workload", ["bert_qa", "deepspeech2", "neumf"])
def test_all_switches_on_is_policy_zeus_on_the_papers_traces(workload: str) -> None:
    if "ZEUS_TRACES" not in os.environ:
        pytest.skip("the paper's traces are not here: set ZEUS_TRACES to their folder")
    scenario = Scenario(Traces(Path(os.environ["ZEUS_TRACES"])).pair(workload, "v100"))
    for seed in range(2):
        ours = literal(scenario, scenario.pair.recurrences, seed, settled=Settled.all())
        assert_alike(
            ours, replay(scenario, scenario.job(policy="zeus"), scenario.pair.recurrences, seed)
        )


def with_epochs(scenario: Scenario, **epochs: Sequence[float]) -> Scenario:
    return Scenario(
        replace(scenario.pair, epochs={int(b[1:]): tuple(e) for b, e in epochs.items()})
    )


def test_off_a_bound_is_twice_the_cheapest_recurrence_and_a_retry_explores(tmp_path: Path) -> None:
    """32 costs 4680 J and its profiling; 16 may take twice that, 5 epochs;
    it misses and 64 is tried at once.
    """
    scenario = with_epochs(tiny(tmp_path), b16=[6], b32=[3], b64=[2])
    off = literal(scenario, 3)
    assert sizes(off)[:2] == [[32], [16, 64]]
    assert off.runs[1][0].epochs == (2 * off.runs[0][0].cost) // 2000 == 4
    on = literal(scenario, 3, settled=Settled(incumbent=True))
    assert sizes(on)[:2] == [[32], [16, 32]], "settled: the incumbent ends the recurrence"


def test_off_a_run_that_fits_no_epoch_costs_nothing_and_is_learnt_as_dear(tmp_path: Path) -> None:
    scenario = with_epochs(tiny(tmp_path), b16=[1], b32=[1], b64=[1])
    slow = {b: tuple(p._replace(time_s=p.time_s * (10 if b == 16 else 1)) for p in points)
            for b, points in scenario.pair.points.items()}  # fmt: skip
    scenario = Scenario(replace(scenario.pair, points=slow))
    off = literal(scenario, 2)
    assert sizes(off)[1] == [16, 64]
    assert off.runs[1][0].cost == 0
    honest = literal(scenario, 2, settled=Settled(charging=True))
    spent = honest.runs[1][0]
    assert 0 < spent.epochs < 1
    assert spent.cost - spent.excess.cost == pytest.approx(2 * honest.runs[0][0].cost)
    kept = literal(scenario, 30, parts=Parts(pruning=False))
    assert 16 not in {b for runs in sizes(kept)[8:] for b in runs}, (
        "learnt as 100 bounds, not as nothing"
    )
    assert kept.runs_without_model == 0


def test_off_a_default_that_fails_ends_the_walk_down_and_its_cost_counts(tmp_path: Path) -> None:
    """32 misses, 64 needs one epoch: the bound is twice what both cost,
    so 64 may take 6 epochs after a shift.
    """
    scenario = with_epochs(tiny(tmp_path), b16=[1], b32=[math.inf], b64=[1])
    harder = with_epochs(scenario, b16=[6], b32=[6], b64=[6])
    off = literal(scenario, 2, shifts={1: harder})
    assert sizes(off) == [[32, 64], [64]]
    assert off.runs[1][0].reached
    on = literal(scenario, 1, settled=Settled(neighbours=True))
    assert sizes(on) == [[32, 16]], "settled: smaller ones are tried all the same"


def test_off_a_failure_in_round_two_drops_the_sizes_behind_it(tmp_path: Path) -> None:
    """Round 1: 32, 16, 64 converge.

    Round 2 starts at 16, the cheapest; 32 misses on the way to 64.
    """
    scenario = with_epochs(tiny(tmp_path), b16=[1], b32=[2, 6], b64=[3])

    def later(neighbours: bool) -> set[int]:
        """Sizes that run after such a miss."""
        found: set[int] = set()
        for seed in range(30):
            settled = Settled(neighbours=neighbours, variance=True, generator=True)
            runs = [r for runs in literal(scenario, 60, seed, settled=settled).runs for r in runs]
            if [r.reached for r in runs[:5]] == [True] * 4 + [False]:
                assert [r.batch_size for r in runs[:5]] == [32, 16, 64, 16, 32]
                found |= {r.batch_size for r in runs[5:]}
        return found

    assert later(neighbours=False) == {16}
    assert later(neighbours=True) > {16}


def test_off_nothing_helps_where_nothing_converges_any_more(tmp_path: Path) -> None:
    """After a shift every run passes the old bound: upstream gives up after 20 tries,
    settled a model comes out.
    """
    scenario = tiny(tmp_path)
    scenario = with_epochs(scenario, b16=[1], b32=[1], b64=[1])
    harder = with_epochs(scenario, b16=[5], b32=[6], b64=[6])
    off = literal(scenario, 12, shifts={8: harder})
    assert off.runs_without_model == 4
    assert off.attempts[8:] == [TRIES] * 4
    assert off.regret()[-1] > 12
    on = literal(scenario, 12, settled=Settled.all(), shifts={8: harder})
    assert on.runs_without_model == 0


def test_off_equal_costs_make_a_point_mass(tmp_path: Path) -> None:
    scenario = with_epochs(tiny(tmp_path), b16=[2], b32=[3], b64=[6])

    def sampled(settled: Settled) -> set[int]:
        return {
            b
            for seed in range(5)
            for runs in sizes(literal(scenario, 60, seed, settled=settled))[6:]
            for b in runs
        }

    assert sampled(Settled(profiling=True)) == {16}, "no spread, no second thought"
    assert 32 in sampled(Settled(profiling=True, variance=True))


def test_parts_can_be_taken_out(tmp_path: Path) -> None:
    scenario = tiny(tmp_path)
    unbounded = literal(
        with_epochs(scenario, b16=[6], b32=[1], b64=[6]), 6, parts=Parts(early_stopping=False)
    )
    assert max(r.epochs for runs in unbounded.runs for r in runs) == 6
    kept = literal(
        with_epochs(scenario, b16=[math.inf], b32=[3], b64=[3]), 8, parts=Parts(pruning=False)
    )
    assert sum(r.batch_size == 16 for runs in kept.runs for r in runs) >= 2, (
        "round 2 tries it again"
    )
    limits = [r.limit_w for runs in literal(scenario, 8, parts=Parts(jit=False)).runs for r in runs]
    assert limits[:2] == [200, 100], "one limit per recurrence, from the highest"
