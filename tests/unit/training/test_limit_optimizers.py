"""``benchmarks.limit_optimizers``: the profiler and upstream's on one replayed GPU, small."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_zeus.power.simulated.models import CHIPS, LOADS
from benchmarks import limit_optimizers as benchmark
from benchmarks.parts.limit_replay import Curve, Search, ours, their_optimizer, upstream
from tests.unit.benchmarks.simulation.tiny import write

# cost of a sample at eta 0.5 and 200 W, [J]: 0.5 x s x (W + 200) = 27, 18, 18.9, 20
CURVE = Curve("toy", "toy", 10, (125.0, 150.0, 175.0, 200.0), (0.2, 0.1, 0.1, 0.1), (70.0, 160.0, 178.0, 200.0))


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """The benchmark quiets the package's log for its process, which is that of all tests."""
    log = logging.getLogger("airflow_provider_zeus")
    level = log.level
    yield
    log.setLevel(level)


def test_a_curve_is_met_at_its_limits_and_straight_between_them() -> None:
    assert CURVE.step_s == pytest.approx(1.0)
    assert CURVE.best_w == 150.0
    assert [CURVE.cost(w) for w in CURVE.limits_w] == pytest.approx([27.0, 18.0, 18.9, 20.0])
    assert CURVE.step(None, 10, 137.5) == pytest.approx((1.5, 115.0))
    assert CURVE.step(None, 10, 99.0) == pytest.approx((2.0, 70.0))
    assert CURVE.step(None, 10, 225.0) == pytest.approx((1.0, 200.0))


def test_the_replayed_gpu_is_gone_when_it_is_left(tmp_path: Path) -> None:
    before = dict(LOADS), dict(CHIPS)
    with CURVE.opened(tmp_path) as gpu:
        assert len(LOADS) == len(before[0]) + 1
        gpu.on_step(10)
        assert (gpu.now_s(), gpu.energy_j()) == pytest.approx((1.0, 200.0))
    assert before == (LOADS, CHIPS)


def test_short_epochs_ours_decides_and_upstream_never_does(tmp_path: Path) -> None:
    found, theirs = ours(CURVE, 17, 20, tmp_path).report(), upstream(CURVE, 17, 20, tmp_path).report()
    assert (found["limit_w"], found["best_w"], found["regret"]) == (150.0, 150.0, 0.0)
    assert 10 * found["limits"] <= found["done_steps"] <= 200
    assert found["done_epochs"] == found["done_steps"] / 17
    assert (theirs["limits"], theirs["done_steps"], theirs["limit_w"]) == (0, None, 200.0)
    assert theirs["regret"] == pytest.approx(20 / 18 - 1)
    assert theirs["excess_j"] == pytest.approx(340 * (200 - 160)), "at the highest limit from beginning to end"
    assert theirs["excess_best_steps"] == pytest.approx(340 * (20 / 18 - 1))


def test_long_epochs_both_decide_alike(tmp_path: Path) -> None:
    found, theirs = ours(CURVE, 250, 3, tmp_path).report(), upstream(CURVE, 250, 3, tmp_path).report()
    assert (theirs["limits"], theirs["done_steps"]) == (4, 1 + 4 * 50), "and 40 of each 50 measured"
    assert found["limit_w"] == theirs["limit_w"] == 150.0
    assert 0 < found["excess_best_steps"] < theirs["excess_best_steps"]


def test_a_run_too_short_is_undecided(tmp_path: Path) -> None:
    assert ours(CURVE, 17, 1, tmp_path).report()["done_steps"] is None


def test_excess_is_what_was_spent_until_the_decision_beyond_the_best_limit() -> None:
    search = Search(CURVE, 2, limit_w=150.0, done_step=2)
    search.clock_s, search.energy_j = [1.0, 3.0, 4.0], [200.0, 340.0, 500.0]
    found = search.report()
    assert (found["excess_s"], found["excess_j"]) == pytest.approx((1.0, 340.0 - 320.0))
    assert found["excess_best_steps"] == pytest.approx(0.5 * (20.0 + 200.0) / 180.0)


def test_upstream_that_refuses_an_energy_of_nothing_is_said_to_have_failed(tmp_path: Path) -> None:
    quick = Curve("toy", "toy", 1, (100.0, 125.0), (2e-4, 1e-4), (80.0, 100.0))
    assert upstream(quick, 200, 2, tmp_path).report()["problem"] == "ValidationError"


def test_the_cost_of_a_step_is_measured_while_profiling_and_after(tmp_path: Path) -> None:
    found = benchmark.step_costs(200, 3)
    assert set(found) == {
        *(f"{whose}, {when}" for whose in ("ours", "upstream") for when in ("profiling", "decided")),
        *("ratio, profiling", "ratio, decided"),
    }
    assert all(ns > 0 for ns in found.values())
    with CURVE.opened(tmp_path) as gpu, their_optimizer(gpu, wait_steps=0, warmup_steps=1, profile_steps=1) as decided:
        for _ in range(10):
            gpu.on_step(10)
            decided.on_step_begin()
        assert type(decided.state).__name__ == "Done"


def test_the_table_of_one_gpu_and_of_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "STEPS_PER_EPOCH", (17,))
    monkeypatch.setattr(benchmark, "COST_STEPS", 100)
    monkeypatch.setattr(benchmark, "LEAST_STEPS", 10)
    monkeypatch.setattr(benchmark, "LEAST_S", 0.3)
    write(tmp_path)
    arguments = ["--traces", str(tmp_path), "--workload", "bert_qa", "--gpu", "toy", "--batch-size", "32", "--all"]
    assert benchmark.main([*arguments, "--out", str(tmp_path / "out")]) == 0
    report = json.loads((tmp_path / "out" / "limit-optimizers.json").read_text())
    assert report["one"]["curve"].split()[0::4] == ["bert_qa/toy", "32"]
    assert report["all"]["curves"] == 3
    assert [(row["steps_per_epoch"], row["optimizer"]) for row in report["all"]["rows"]] == [
        (17, "ours"),
        (17, "upstream"),
    ]
    text = (tmp_path / "out" / "limit-optimizers.md").read_text()
    for part in text.split("##")[1:]:
        widths = {line.count("|") for line in part.splitlines() if line.startswith("|")}
        assert len(widths) == 1, part
    assert text.strip() in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--batch-size", "48"], "default_batch_size = 48"),
        (["--workload", "other"], "workload = 'other'"),
        (["--gpu", "h100"], "gpu = 'h100'"),
    ],
)
def test_what_was_not_measured_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    write(tmp_path)
    known = ["--traces", str(tmp_path), "--workload", "bert_qa", "--gpu", "toy", "--batch-size", "32"]
    assert benchmark.main([*known, *arguments]) == 2
    assert said in capsys.readouterr().err
