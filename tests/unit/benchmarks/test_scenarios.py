"""Scenarios off the measured pairs, jobs whose data change, intervals of ratios, and the report of all three."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import scenarios as benchmark
from benchmarks.quality.drifts import BACK, BAD, GOOD, LOST, SHIFT, Drift, at_cost, drifts, taken_from
from benchmarks.quality.scenario_sets import (
    PARTS,
    REACHES,
    coarser,
    finer,
    harder,
    on_gpu,
    part_of,
    reaching,
    retargeted,
    static_scenarios,
    with_default,
)
from benchmarks.replays import FLOOR, OURS, PAPERS, Replays, below_after
from benchmarks.report import geomean_of, mean_of, ratio_of
from benchmarks.simulation.driver import replay
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Pair, PowerMeasurement
from tests.strategies import REPRODUCIBLE
from tests.unit.benchmarks.simulation.tiny import scenarios, tiny, write


def pair_of(workload: str, epochs: dict[int, tuple[float, ...]], gpu: str = "v100", most: int = 40) -> Pair:
    points = {b: tuple(PowerMeasurement(w, 1e4 / b**0.5 / w, 0.9 * w) for w in (100.0, 150.0, 200.0)) for b in epochs}
    return Pair(workload, gpu, 64, most, 200.0, points, epochs)


ONE = pair_of("one", {16: (4, 4, 5), 32: (4, 5, 5), 64: (5, 6, 6), 128: (8, 9, 9), 256: (30, math.inf)})
TWO = pair_of("two", {8: (20, 22), 32: (12, 12), 64: (11, 12), 512: (14, 16, 18)})
WHOLE = Scenario(ONE)


def kind_of(name: str) -> str:
    """``bert_qa/a40 default 56`` is of the kind ``default``."""
    kind = name.partition(" ")[2]
    return "default" if kind.startswith("default ") else kind or "as measured"


# ---------------------------------------------------------------------- construction
def test_every_scenario_can_be_played_and_has_a_name_of_its_own() -> None:
    pairs = [ONE, TWO, pair_of("one", dict(ONE.epochs), gpu="p100")]
    found = static_scenarios(pairs)
    kinds = {kind_of(name) for name in found}
    targets = {"easier target", "harder target"}
    assert kinds == {"as measured", "eta 0", "eta 1", "default", "2 sizes", "4 sizes", "15 sizes", *targets} | {
        "wide GPU",
        "narrow GPU",
    }
    assert "one/p100" in found
    assert "one/v100" not in found, "the main pairs as measured are the reproduction's"
    assert {len(s.pair.batch_sizes) for s in found.values()} >= {2, 4, 15}
    assert len({json.dumps([s.eta, repr(s.pair)]) for s in found.values()}) == len(found), "no two are the same"
    for name, scenario in found.items():
        pair = scenario.pair
        assert pair.default_batch_size in pair.batch_sizes, name
        assert reaching(pair, pair.default_batch_size) >= REACHES, name
        assert list(pair.epochs) == list(pair.points) == sorted(pair.points), name
        assert all(p.time_s > 0 and p.power_w > 0 for points in pair.points.values() for p in points), name
        assert all(e >= 1 and (math.isinf(e) or e == int(e)) for runs in pair.epochs.values() for e in runs), name
        assert math.isfinite(scenario.best_cost), name
        log = replay(scenario, scenario.job(), 3)
        assert log.runs_without_model == 0, name


def test_parts_are_stable_and_about_even() -> None:
    known = {
        "bert_qa/a40 eta 0": "development",
        "bert_qa/a40 eta 1": "development",
        "neumf/v100 2 sizes": "development",
        "resnet50/v100 harder target": "held-out",
    }
    assert {name: part_of(name) for name in known} == known, "what was held out stays so"
    held_out = sum(part_of(f"scenario {i}") == PARTS[1] for i in range(1000))
    assert held_out == pytest.approx(500, abs=50)


def test_a_harder_target_takes_longer_the_larger_the_batch_and_fails_at_the_largest() -> None:
    found = harder(WHOLE).pair
    assert all(min(found.epochs[b]) >= min(ONE.epochs[b]) for b in ONE.batch_sizes)
    assert min(found.epochs[128]) / min(ONE.epochs[128]) > min(found.epochs[16]) / min(ONE.epochs[16])
    assert found.epochs[256] == (math.inf,)
    assert found.max_epochs == math.ceil(40 * 1.3 * 4**0.08)
    moved = harder(with_default(Scenario(TWO), 512)).pair
    assert moved.default_batch_size == 64, "a batch size that never reaches the target is nobody's default"
    easier = retargeted(WHOLE, 0.5, 0.0).pair
    assert easier.epochs[16] == (2, 2, 3), "rounded to whole epochs"


def test_coarser_lists_keep_the_default() -> None:
    assert coarser(WHOLE, 2).pair.batch_sizes == (64, 128)
    assert coarser(WHOLE, 4).pair.batch_sizes == (16, 64, 128, 256)
    assert coarser(WHOLE, 1).pair.batch_sizes == (64,)


def test_finer_lists_lie_between_what_was_measured() -> None:
    found = finer(WHOLE, 15).pair
    assert len(found.batch_sizes) == 15
    assert {b: found.epochs[b] for b in ONE.batch_sizes} == ONE.epochs
    low, new, high = (found.points[b][0] for b in (64, 91, 128))
    assert low.limit_w == new.limit_w == high.limit_w
    assert high.time_s < new.time_s < low.time_s
    assert new.time_s == pytest.approx(1e4 / 91**0.5 / 100), "a power law is met exactly"
    assert found.epochs[91] == (6, 7, 7)
    assert math.inf in found.epochs[181], "fails where a neighbour does"
    assert finer(coarser(WHOLE, 2), 99).pair.batch_sizes == tuple(range(64, 129))[:99], "no more than there is room for"


def test_another_gpu_fills_with_larger_batches() -> None:
    found = on_gpu(WHOLE, -0.5).pair
    assert found.points[16] == ONE.points[16]
    assert found.points[64][0].time_s == pytest.approx(ONE.points[64][0].time_s / 2)
    assert found.epochs == ONE.epochs


@given(scenarios())
@REPRODUCIBLE
def test_any_pair_makes_scenarios(scenario: Scenario) -> None:
    for found in [*static_scenarios([scenario.pair]).values(), *(d.before for d in drifts([scenario.pair]).values())]:
        assert found.pair.default_batch_size in found.pair.points
        assert found.pair.points.keys() == found.pair.epochs.keys()
        found.job()


# ---------------------------------------------------------------------- drift
def test_data_shift_and_come_back() -> None:
    found = drifts([ONE, TWO])
    assert {kind_of(name) for name in found} >= {"level x10", "towards small and back", "switched", "steady", "silent"}
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
    drift = drifts([pair_of("long", dict.fromkeys((16, 32, 64, 128), (400.0, 420.0)), most=500)])["long/v100 silent"]
    b, after = drift.silent, drift.shifts[SHIFT]
    assert b is not None
    assert b not in (drift.before.best, 64)
    others = min(drift.before.expected_cost(o) for o in drift.before.pair.batch_sizes if o != b)
    assert drift.before.expected_cost(b) == pytest.approx(BAD * others, rel=0.01)
    assert after.expected_cost(b) == pytest.approx(GOOD * others, rel=0.01)
    assert after.best == b
    assert all(after.pair.epochs[o] == drift.before.pair.epochs[o] for o in after.pair.batch_sizes if o != b)
    assert at_cost(after, b, BAD).expected_cost(b) == pytest.approx(drift.before.expected_cost(b), rel=0.01)


# ---------------------------------------------------------------------- sizes that stop reaching the target
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
    assert all(after.pair.epochs[b] == found[f"one/v100 {tilt}"].shifts[SHIFT].pair.epochs[b] for b in left)


def test_recurrences_below_target_are_counted_from_the_shift_on() -> None:
    found = Replays(below_target=[[3, 50, 51, 54], []], batch_sizes=[[64] * 60, [64] * 60])
    assert below_after(found, SHIFT) == {"below": [1.5, pytest.approx(19.059)], "again": [0.5, pytest.approx(6.353)]}
    never = Replays(below_target=[list(range(SHIFT, 60))], batch_sizes=[[64] * 60])
    assert below_after(never, SHIFT) == {"below": [10, 0], "again": [0, 0]}


# ---------------------------------------------------------------------- ratios
seeds = st.lists(st.tuples(st.floats(0.5, 50), st.floats(0.5, 50)), min_size=2, max_size=30)


@given(seeds)
@REPRODUCIBLE
def test_the_interval_holds_the_ratio_and_narrows_with_seeds(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = zip(*pairs, strict=True)
    one, four = ratio_of(ours, theirs), ratio_of(ours * 4, theirs * 4)
    assert one.low <= one.value <= one.high
    assert one.value == pytest.approx(sum(ours) / sum(theirs))
    assert four.value == pytest.approx(one.value)
    assert four.high / four.low <= one.high / one.low * (1 + 1e-9)
    inverse = ratio_of(theirs, ours)
    assert inverse.low == pytest.approx(1 / one.high), "neither side is preferred"
    assert geomean_of([one, one]).to_json() == pytest.approx(one.to_json()), "what repeats teaches nothing"
    assert geomean_of([one, inverse]).to_json() == pytest.approx([1, 1, 1])


def test_an_interval_by_hand() -> None:
    ratio = ratio_of([1.0, 3.0], [2.0, 2.0])
    error = math.sqrt(0.5) / math.sqrt(2)  # of 1/2 and 3/2
    assert ratio.to_json() == pytest.approx([1.0, math.exp(-12.706 * error), math.exp(12.706 * error)])
    assert ratio_of([1.0, 3.0], [2.0, 6.0]).to_json() == pytest.approx([0.5] * 3), "lucky in the same seeds"
    assert ratio_of([0.1, 0.1], [3.0, 3.0], FLOOR).value == pytest.approx(0.1)
    assert ratio_of([3.0, 3.0], [0.0, 0.2], FLOOR).to_json() == pytest.approx([10] * 3)
    assert ratio_of([4.0], [2.0]).to_json() == [2, 2, 2]


def test_an_arithmetic_mean_of_ratios_by_hand() -> None:
    one, other = ratio_of([1.0, 3.0], [2.0, 2.0]), ratio_of([6.0, 6.0], [2.0, 2.0])
    found = mean_of([one, other])
    assert found.value == 2
    assert found.pulls == pytest.approx([-0.125, 0.125]), "a quarter of 1's pulls: 3 counts thrice"
    assert mean_of([one, one]).to_json() == pytest.approx(one.to_json())


# ---------------------------------------------------------------------- the report
@pytest.mark.nightly
def test_the_report_of_two_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    out = tmp_path / "out"
    arguments = ["--traces", str(tmp_path), "--seeds", "2", "--out", str(out), "--jobs", "1"]
    assert benchmark.main(arguments) == 0
    report = json.loads((out / "report.json").read_text())
    assert {kind_of(name) for name in report["cases"]} >= {"eta 0", "harder target", "tilt, small lost", "steady"}
    for entry in report["cases"].values():
        value, low, high = entry[OURS]["regret_vs_paper"]
        assert 0 < low <= value <= high
        assert entry[OURS]["attempts"] <= 2
        assert entry[OURS]["runs_without_model"] == 0
    text = (out / "report.md").read_text()
    assert all(len({row.count("|") for row in rows}) == 1 for rows in _tables(text)), "tables are whole"
    assert f"| {OURS} |" in capsys.readouterr().out


def _tables(text: str) -> list[list[str]]:
    blocks = [block.splitlines() for block in text.split("\n\n")]
    return [block for block in blocks if block and block[0].startswith("|")]


@pytest.mark.slow
def test_a_part_alone(tmp_path: Path) -> None:
    write(tmp_path)
    out = tmp_path / "out"
    arguments = ["--traces", str(tmp_path), "--seeds", "1", "--out", str(out), "--jobs", "1"]
    assert benchmark.main([*arguments, "--part", "held-out", "--only", "static"]) == 0
    cases = json.loads((out / "report.json").read_text())["cases"]
    assert {part_of(name) for name in cases} == {"held-out"}
    assert not {kind_of(name) for name in cases} & {*LOST, "steady"}


def test_replays_come_in_the_order_of_the_seeds(tmp_path: Path) -> None:
    drift = Drift(tiny(tmp_path), 30)
    found = benchmark.run_all({"a": drift}, [PAPERS], range(7), 1)["a"][PAPERS]
    assert len(found.expected_regret) == 7
    assert benchmark.play((drift, PAPERS, (6,))).expected_regret[0] == found.expected_regret[6]
