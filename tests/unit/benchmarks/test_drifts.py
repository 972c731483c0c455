"""Jobs whose data change, their replays, and intervals of ratios."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.quality.drifts import (
    BACK,
    BAD,
    GOOD,
    LOST,
    REACHES,
    SHIFT,
    Drift,
    at_cost,
    drifts,
    play,
    reaching,
    run_all,
    taken_from,
)
from benchmarks.replays import FLOOR, PAPERS, Replays, below_after
from benchmarks.report import geomean_of, mean_of, ratio_of
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Pair, PowerMeasurement
from tests.strategies import REPRODUCIBLE
from tests.unit.benchmarks.simulation.tiny import scenarios, tiny


def pair_of(
    workload: str, epochs: dict[int, tuple[float, ...]], gpu: str = "v100", most: int = 40
) -> Pair:
    points = {
        b: tuple(PowerMeasurement(w, 1e4 / b**0.5 / w, 0.9 * w) for w in (100.0, 150.0, 200.0))
        for b in epochs
    }
    return Pair(workload, gpu, 64, most, 200.0, points, epochs)


ONE = pair_of(
    "one", {16: (4, 4, 5), 32: (4, 5, 5), 64: (5, 6, 6), 128: (8, 9, 9), 256: (30, math.inf)}
)
TWO = pair_of("two", {8: (20, 22), 32: (12, 12), 64: (11, 12), 512: (14, 16, 18)})
WHOLE = Scenario(ONE)


def kind_of(name: str) -> str:
    """``bert_qa/a40 level x2`` is of the kind ``level x2``."""
    return name.partition(" ")[2]


@given(scenarios())
@REPRODUCIBLE
def test_any_pair_makes_drifts(scenario: Scenario) -> None:
    for drift in drifts([scenario.pair]).values():
        found = drift.before
        assert found.pair.default_batch_size in found.pair.points
        assert found.pair.points.keys() == found.pair.epochs.keys()
        found.job()


# ---------------------------------------------------------------------- drift
def test_data_shift_and_come_back() -> None:
    found = drifts([ONE, TWO])
    assert {kind_of(name) for name in found} >= {
        "level x10",
        "towards small and back",
        "switched",
        "steady",
        "silent",
    }
    for name, drift in found.items():
        assert (BACK in drift.shifts) == name.endswith("back")
        assert drift.shifts.get(BACK, drift.before) == drift.before
        assert drift.recurrences > BACK
        for after in drift.shifts.values():
            assert after.pair.max_epochs == drift.before.pair.max_epochs >= 40, name
            assert after.pair.points == drift.before.pair.points, "epochs alone change"
            lost = kind_of(name).removesuffix(" and back") in LOST
            assert lost or reaching(after.pair, 64) >= REACHES, name
            assert math.isfinite(after.best_cost)
    tenfold = found["one/v100 level x10"].shifts[SHIFT].pair
    assert tenfold.epochs[16] == (40, 40, 50)
    assert tenfold.max_epochs == 450, "half more than the longest run that can reach its target"
    small = found["one/v100 towards small"].shifts[SHIFT].pair.epochs
    assert small[64] == ONE.epochs[64]
    assert small[16] < ONE.epochs[16]
    assert small[128] > ONE.epochs[128]


def test_another_workloads_table_keeps_the_defaults_level() -> None:
    found = taken_from(WHOLE, Scenario(TWO)).pair.epochs
    assert found[64] == (6, 7), "a median of 6, as the default's runs have"
    assert found[16] == (11, 12)
    assert found[256] == (8, 9, 10)


def test_one_batch_size_gets_better_silently() -> None:
    drift = drifts([pair_of("long", dict.fromkeys((16, 32, 64, 128), (400.0, 420.0)), most=500)])[
        "long/v100 silent"
    ]
    b = drift.silent
    after = drift.shifts[SHIFT]
    assert b is not None
    assert b not in (drift.before.best, 64)
    others = min(drift.before.expected_cost(o) for o in drift.before.pair.batch_sizes if o != b)
    assert drift.before.expected_cost(b) == pytest.approx(BAD * others, rel=0.01)
    assert after.expected_cost(b) == pytest.approx(GOOD * others, rel=0.01)
    assert after.best == b
    assert all(
        after.pair.epochs[o] == drift.before.pair.epochs[o]
        for o in after.pair.batch_sizes
        if o != b
    )
    assert at_cost(after, b, BAD).expected_cost(b) == pytest.approx(
        drift.before.expected_cost(b), rel=0.01
    )


# ---------------------------------------------------------------------- sizes that stop reaching
# the target
def reach(scenario: Scenario) -> list[int]:
    return [b for b in scenario.pair.batch_sizes if reaching(scenario.pair, b)]


def test_a_raised_target_is_reached_by_sizes_below_the_best_alone() -> None:
    raised, lowered = (drifts([TWO])[f"two/v100 target {kind}"] for kind in ("raised", "lowered"))
    assert raised.before.best == 512
    assert reach(raised.shifts[SHIFT]) == [8, 32, 64]
    assert raised.shifts[SHIFT].pair.epochs[32] == TWO.epochs[32]
    assert lowered.shifts[SHIFT] == raised.before, "the way back; 64 is the largest that reached it"
    assert lowered.before == raised.shifts[SHIFT]
    back = drifts([TWO])["two/v100 target raised and back"]
    assert back.shifts[BACK] == back.before


def test_where_the_smallest_size_is_best_no_target_can_be_raised() -> None:
    best_is_smallest = pair_of("small", {64: (2, 2), 128: (9, 9)})
    assert Scenario(best_is_smallest).best == 64
    assert not [name for name in drifts([best_is_smallest]) if "target" in name]


def test_the_default_of_a_lowered_target_reaches_it_before() -> None:
    for best, default in ((64, 32), (128, 64)):
        epochs = {b: (2,) if b == best else (5,) for b in (16, 32, 64, 128)}
        before = drifts([pair_of("one", epochs)])["one/v100 target lowered"].before
        assert before.pair.default_batch_size == default, "64, where that reaches it"
        assert reach(before) == [b for b in epochs if b < best]


@pytest.mark.parametrize(("kind", "left"), [("large", [16, 32, 64]), ("small", [64, 128, 256])])
def test_a_tilt_takes_half_of_the_sizes_from_the_target(kind: str, left: list[int]) -> None:
    found = drifts([ONE])
    after = found[f"one/v100 tilt, {kind} lost"].shifts[SHIFT]
    tilt = "towards small" if kind == "large" else "towards large"
    assert reach(after) == left
    assert all(
        after.pair.epochs[b] == found[f"one/v100 {tilt}"].shifts[SHIFT].pair.epochs[b] for b in left
    )


def test_recurrences_below_target_are_counted_from_the_shift_on() -> None:
    found = Replays(below_target=[[3, 50, 51, 54], []], batch_sizes=[[64] * 60, [64] * 60])
    assert below_after(found, SHIFT) == {
        "below": [1.5, pytest.approx(19.059)],
        "again": [0.5, pytest.approx(6.353)],
    }
    never = Replays(below_target=[list(range(SHIFT, 60))], batch_sizes=[[64] * 60])
    assert below_after(never, SHIFT) == {"below": [10, 0], "again": [0, 0]}


# ---------------------------------------------------------------------- ratios
seeds = st.lists(st.tuples(st.floats(0.5, 50), st.floats(0.5, 50)), min_size=2, max_size=30)


@given(seeds)
@REPRODUCIBLE
def test_the_interval_holds_the_ratio_and_narrows_with_seeds(
    pairs: list[tuple[float, float]],
) -> None:
    ours, theirs = zip(*pairs, strict=True)
    one = ratio_of(ours, theirs)
    four = ratio_of(ours * 4, theirs * 4)
    assert one.low <= one.value <= one.high
    assert one.value == pytest.approx(sum(ours) / sum(theirs))
    assert four.value == pytest.approx(one.value)
    assert four.high / four.low <= one.high / one.low * (1 + 1e-9)
    inverse = ratio_of(theirs, ours)
    assert inverse.low == pytest.approx(1 / one.high), "neither side is preferred"
    assert geomean_of([one, one]).to_json() == pytest.approx(one.to_json()), (
        "what repeats teaches nothing"
    )
    assert geomean_of([one, inverse]).to_json() == pytest.approx([1, 1, 1])


def test_an_interval_by_hand() -> None:
    ratio = ratio_of([1.0, 3.0], [2.0, 2.0])
    error = math.sqrt(0.5) / math.sqrt(2)  # of 1/2 and 3/2
    assert ratio.to_json() == pytest.approx(
        [1.0, math.exp(-12.706 * error), math.exp(12.706 * error)]
    )
    assert ratio_of([1.0, 3.0], [2.0, 6.0]).to_json() == pytest.approx([0.5] * 3), (
        "lucky in the same seeds"
    )
    assert ratio_of([0.1, 0.1], [3.0, 3.0], FLOOR).value == pytest.approx(0.1)
    assert ratio_of([3.0, 3.0], [0.0, 0.2], FLOOR).to_json() == pytest.approx([10] * 3)
    assert ratio_of([4.0], [2.0]).to_json() == [2, 2, 2]


def test_an_arithmetic_mean_of_ratios_by_hand() -> None:
    one = ratio_of([1.0, 3.0], [2.0, 2.0])
    other = ratio_of([6.0, 6.0], [2.0, 2.0])
    found = mean_of([one, other])
    assert found.value == 2
    assert found.pulls == pytest.approx([-0.125, 0.125]), "a quarter of 1's pulls: 3 counts thrice"
    assert mean_of([one, one]).to_json() == pytest.approx(one.to_json())


def test_replays_come_in_the_order_of_the_seeds(tmp_path: Path) -> None:
    drift = Drift(tiny(tmp_path), 30)
    found = run_all({"a": drift}, [PAPERS], range(7), 1)["a"][PAPERS]
    assert len(found.expected_regret) == 7
    assert play((drift, PAPERS, (6,))).expected_regret[0] == found.expected_regret[6]
