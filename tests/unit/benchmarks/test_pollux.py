"""Pollux as a policy of the replay: goodput by hand, what a training costs, several GPUs,
and the report.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.errors import JobSpecError
from benchmarks import pollux as benchmark
from benchmarks.quality import goodput, pollux_page
from benchmarks.quality.goodput import (
    NoiseScales,
    Variant,
    best_batch_size,
    efficiency,
    noise_scales,
    pair_on,
    pollux,
    train,
)
from benchmarks.simulation.environment import Environment
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import WORKLOADS, Traces
from tests.strategies import REPRODUCIBLE
from tests.unit.benchmarks.simulation.tiny import (
    POWER_HEAD,
    WHAT,
    power_rows,
    scenarios,
    tiny,
    write,
)

TRACES = os.environ.get("ZEUS_TRACES")


def noise(*samples: float) -> NoiseScales:
    return NoiseScales("", "", "", samples)


def test_every_workload_of_the_paper_has_published_noise_scales_with_their_source() -> None:
    found = noise_scales()
    assert set(found) == {w.name for w in WORKLOADS}
    assert all(of.file.endswith(".csv") and of.until for of in found.values())
    assert found["bert_qa"].stands_in == ""
    deepspeech2 = found["deepspeech2"]
    assert deepspeech2.at(0.0) == pytest.approx(34.01 / 49.06 * 20)
    assert deepspeech2.at(1.0) == deepspeech2.samples[-1] == pytest.approx(0.5712 / 0.01058 * 20)
    assert list(deepspeech2.samples) == sorted(deepspeech2.samples), (
        "noise grows as the training gets on"
    )


def test_a_model_with_an_x_in_its_name_is_one_gpu() -> None:
    assert pollux_page.label("rtx6000") == "RTX6000"
    assert pollux_page.label("4xa40") == "4×A40, nothing lost between"


def test_goodput_by_hand(tmp_path: Path) -> None:
    """At full power an epoch takes 10, 8 and 7 s at 16, 32 and 64."""
    scenario = tiny(tmp_path)
    assert efficiency(16.0, 48, 16) == 0.5
    assert efficiency(1e9, 64, 16) == pytest.approx(1.0, abs=1e-6)
    assert best_batch_size(scenario, 0.0, 16) == 16, (
        "without noise a sample of a larger batch teaches less in proportion"
    )
    assert best_batch_size(scenario, 100.0, 16) == 32, (
        "116 / 116 / 10 s < 116 / 132 / 8 s > 116 / 164 / 7 s"
    )
    assert best_batch_size(scenario, 1e6, 16) == 64, "with much noise throughput decides"
    assert best_batch_size(scenario, 0.0, 32) == 32, "none smaller than it was submitted with"


@REPRODUCIBLE
@given(scenarios(), st.floats(0, 1e6), st.floats(1, 1e3))
def test_more_noise_never_makes_the_batch_smaller(
    scenario: Scenario, scale: float, times: float
) -> None:
    smallest = scenario.pair.batch_sizes[0]
    assert best_batch_size(scenario, scale, smallest) <= best_batch_size(
        scenario, scale * times, smallest
    )


@REPRODUCIBLE
@given(scenarios(), st.integers(0, 50))
def test_where_one_size_holds_it_is_a_measured_training(scenario: Scenario, seed: int) -> None:
    """Of one size alone: to the end, at full power, as long as one measured run needs."""
    b = scenario.pair.default_batch_size
    pair = scenario.pair
    scenario = Scenario(
        replace(pair, points={b: pair.points[b]}, epochs={b: pair.epochs[b]}), scenario.eta
    )
    needed = Environment(scenario, seed).needs(b)
    run = train(Environment(scenario, seed), noise(0.0), Variant())
    epochs = min(needed, scenario.pair.max_epochs)
    point = scenario.full_power(b)
    assert (run.batch_size, run.epochs, run.reached) == (
        b,
        epochs,
        needed <= scenario.pair.max_epochs,
    )
    assert run.energy_j == pytest.approx(epochs * point.energy_j)
    assert run.time_s == pytest.approx(epochs * point.time_s)
    assert run.limit_w == point.limit_w
    assert run.cost == pytest.approx(scenario.weights.cost(run.energy_j, run.time_s))


def test_the_batch_grows_within_a_training(tmp_path: Path) -> None:
    """16 needs two epochs, 32 three.

    One at 16, halfway; then 32 needs two more for the other half.
    """
    scenario = tiny(tmp_path)
    run = train(Environment(scenario, 0), noise(0.0, 100.0), Variant())
    assert (run.batch_size, run.epochs, run.reached) == (32, 3, True)
    assert run.energy_j == pytest.approx(2000 + 2 * 1520)
    assert run.time_s == pytest.approx(10 + 2 * 8)


def test_a_size_that_never_reaches_the_target_gets_nowhere_and_noise_grows_all_the_same(
    tmp_path: Path,
) -> None:
    scenario = tiny(tmp_path)
    scenario = Scenario(replace(scenario.pair, epochs={**scenario.pair.epochs, 16: (math.inf,)}))
    run = train(Environment(scenario, 0), noise(0.0, 100.0), Variant())
    assert (run.batch_size, run.epochs, run.reached) == (32, 5, True), "two at 16, then three at 32"
    stuck = train(Environment(scenario, 0), noise(0.0), Variant())
    assert (stuck.epochs, stuck.reached, stuck.chance) == (scenario.pair.max_epochs, False, 0.0)


def test_variants(tmp_path: Path) -> None:
    """The default is 32, which needs three epochs; Pollux's model:
    without noise one of 16 teaches twice as much.
    """
    scenario = tiny(tmp_path)
    assert (
        train(Environment(scenario, 0), noise(0.0), Variant(from_smallest=False)).batch_size == 32
    )
    believed = train(Environment(scenario, 0), noise(0.0), Variant(believed=True))
    assert (believed.batch_size, believed.epochs) == (16, 2), "2 / 3 of the way, then the rest"
    assert train(Environment(scenario, 0), noise(25.0), Variant(times=4.0)).batch_size == 32


def test_each_recurrence_is_like_the_first(tmp_path: Path) -> None:
    """64 is taken throughout, which needs three epochs."""
    scenario = tiny(tmp_path)
    steady = Scenario(replace(scenario.pair, epochs={**scenario.pair.epochs, 64: (3.0,)}))
    log = pollux(steady, 5, 0, Variant())
    assert len(set(log.energy_j)) == 1, "nothing is learnt between trainings"
    assert log.attempts == [1] * 5
    other = Scenario(replace(tiny(tmp_path).pair, workload="mine"))
    with pytest.raises(JobSpecError, match="has no published gradient noise scale"):
        pollux(other, 1, 0, Variant())


def test_several_gpus_share_a_batch_and_lose_nothing(tmp_path: Path) -> None:
    traces = Traces(write(tmp_path))
    pair = pair_on(traces, "bert_qa", "2xtoy")
    assert pair.gpu == "2xtoy"
    assert pair.batch_sizes == (32, 64), "each of two trains 16 or 32; 128 was not trained"
    assert pair.default_batch_size == 32
    assert pair.max_power_w == 400
    one = traces.pair("bert_qa", "toy").points[16]
    assert [(p.limit_w, p.time_s, p.power_w) for p in pair.points[32]] == [
        (200, 10, 200),
        (400, 5, 400),
    ]
    assert [p.energy_j for p in pair.points[32]] == [p.energy_j for p in one]
    assert pair.epochs[32] == (3.0, 3.0), "of the whole batch"
    assert pair_on(traces, "bert_qa", "toy") == traces.pair("bert_qa", "toy")
    with pytest.raises(JobSpecError, match="no batch size that 8 TOY can share"):
        pair_on(traces, "bert_qa", "8xtoy")


def test_the_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, gpu="a40")
    (tmp_path / "summary_power_toy.csv").write_text("\n".join([POWER_HEAD, *power_rows()]) + "\n")
    out = tmp_path / "out"
    assert (
        benchmark.main(
            [
                "--traces",
                str(tmp_path),
                "--seeds",
                "2",
                "--jobs",
                "1",
                "--out",
                str(out),
                "--gpus",
                "toy",
            ]
        )
        == 0
    )
    report = json.loads((out / "report.json").read_text())
    assert set(report["pairs"]) == {"bert_qa/toy"}
    found = report["pairs"]["bert_qa/toy"]["zeus"]
    assert found["energy"][0] == report["geomean"]["toy"]["zeus"]["energy"][0]
    choice = report["choices"]["bert_qa/toy"]
    assert (choice["default"], choice["best"], choice["pollux"]["pollux_from_default"]) == (
        32,
        16,
        [64],
    )
    assert "| +12 |" in capsys.readouterr().out, "the paper's own figure stands beside"
    assert (out / "pollux.png").stat().st_size > 5_000


def report_of_four(energy: float, time: float) -> dict[str, Any]:
    """Of one pair, on which every figure is the same."""
    values = {
        "energy": energy,
        "time": time,
        "energy of all": energy,
        "cost of all": (energy + time) / 2,
    }
    of = {
        p: {name: [x, x - 0.01, x + 0.01] for name, x in values.items()}
        for p in pollux_page.POLICIES
    }
    pair = "deepspeech2/4xa40"
    choice = {
        "default": 128,
        "best": 128,
        "pollux": {"pollux": [32, 64], "pollux_from_default": [128]},
    }
    return {
        "seeds": 2,
        "pairs": {pair: of},
        "geomean": {"4xa40": of},
        "variants": {"4xa40": dict.fromkeys(goodput.POLLUX, of)},
        "eta": {"4xa40": dict.fromkeys(("0", "1"), of)},
        "choices": {pair: choice},
    }


def test_the_page_says_the_direction_that_its_figures_have() -> None:
    page = pollux_page.page_of(report_of_four(0.79, 0.92))
    assert "${" not in page
    assert "-8.0 [-9.0, -7.0] | energy: within our interval, time: other direction |" in page
    assert "4×A40, epochs by Pollux's own model | zeus" in page
    assert "was published for BERT (QA); for the others similar ones stand in" in page
    assert "throughout: the difference is that of the power limit alone" in page
    assert "| DeepSpeech2, 4×A40 | -21.0, -8.0, -14.5 |" in page
    dearer = pollux_page.page_of(report_of_four(0.95, 1.15))
    assert "+15.0 [+14.0, +16.0] | energy: same direction, time: same direction |" in dearer
    assert "| DeepSpeech2, 4×A40 | -5.0, +15.0, **+5.0** |" in dearer
    assert "ours is no sure change" in pollux_page.page_of(report_of_four(1.005, 1.12))
    with pytest.raises(JobSpecError, match="has no replay of deepspeech2"):
        pollux_page.page_of({**report_of_four(1, 1), "variants": {}})


def test_what_cannot_be_run_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = WHAT.format(16).replace("squad", "mine")
    write(tmp_path, power=[POWER_HEAD, f"{row},100,1,1"])
    (tmp_path / "summary_train.csv").write_text(
        "dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch\n"
        + f"{row},1e-3,1,84.0,2\n"
    )
    assert benchmark.main(["--traces", str(tmp_path)]) == 2
    assert "none has published noise scales" in capsys.readouterr().err


@pytest.mark.skipif(
    TRACES is None,
    reason="ZEUS_TRACES names no folder with the measurements of the paper's authors",
)
def test_on_the_papers_traces_pollux_saves_time_and_spends_energy() -> None:
    """Section 6.6 by direction: on DeepSpeech2 the optimum for energy and time takes less energy
    than Pollux.
    """
    assert TRACES is not None
    for gpu, slower in (("v100", True), ("a40", False)):
        scenario = Scenario(pair_on(Traces(Path(TRACES)), "deepspeech2", gpu))
        log = pollux(scenario, 40, 0, Variant())
        arm = scenario.arms[scenario.best]
        epochs = scenario.success_epochs(scenario.best)
        assert arm.epoch.energy_j * epochs < 0.8 * sum(log.energy_j) / 40
        assert (arm.epoch.time_s * epochs > sum(log.time_s) / 40) == slower
        assert log.runs_below_target == 0


def test_the_page_in_the_tree_agrees_with_itself() -> None:
    """It says of each figure the direction that it has."""
    text = (Path(__file__).parents[3] / "docs" / "evidence" / "pollux.md").read_text(
        encoding="utf-8"
    )
    rows = [
        line.split(" | ")
        for line in text.splitlines()
        if line.startswith("| 4×A40, ") and " | zeus | " in line
    ]
    assert len(rows) == len(pollux_page.SHOWN)
    for _, _, energy, time, beside in rows:
        assert energy.startswith("-")
        assert "energy: same direction" in beside
        assert ("time: same direction" in beside) == time.startswith("+")
