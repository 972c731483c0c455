"""``benchmarks.deadlines``: jobs with a deadline on small traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_zeus.model.trial import PlannedAttempt
from benchmarks import deadlines
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Pair, PowerMeasurement

# 32 at full power: 10 epochs of 100 s. 64: 10 of 60 s, and of 72 s at the lower limit, for less
# energy.
PAIR = Pair(
    workload="toy",
    gpu="v100",
    default_batch_size=32,
    max_epochs=30,
    max_power_w=250.0,
    points={
        32: (PowerMeasurement(150.0, 120.0, 140.0), PowerMeasurement(250.0, 100.0, 200.0)),
        64: (PowerMeasurement(150.0, 72.0, 140.0), PowerMeasurement(250.0, 60.0, 200.0)),
    },
    epochs={32: (10.0, 10.0, 11.0), 64: (10.0, 10.0, 11.0)},
)


def play(factor: float, who: str, pair: Pair = PAIR, pace: float = 1.0) -> dict[str, float]:
    return deadlines.play((pair, factor, who, 20, 0, pace))


def test_the_fastest_training_is_the_measure() -> None:
    assert deadlines.fastest(Scenario(PAIR, 1.0)) == 64
    found = play(1.2, deadlines.FASTEST)
    assert found["late"] == 0.0
    assert found["time"] == pytest.approx(1.0, abs=0.05)


def test_a_deadline_that_allows_the_lower_limit_saves_its_energy_in_time() -> None:
    base = play(1.5, deadlines.FASTEST)
    found = play(1.5, deadlines.OURS)
    assert found["late_settled"] == 0.0
    # Of the runs at the lower limit; some run at full power, since data may always get harder.
    least = 72 * 140 / (60 * 200)
    assert least < found["energy_settled_j"] / base["energy_settled_j"] < 0.93


def test_a_deadline_that_does_not_trains_at_full_power() -> None:
    base = play(1.12, deadlines.FASTEST)
    found = play(1.12, deadlines.OURS)
    assert found["energy_settled_j"] / base["energy_settled_j"] == pytest.approx(1.0, rel=0.1)
    assert play(1.12, deadlines.FREE)["late_settled"] > found["late_settled"]


def test_a_machine_that_is_slower_than_its_profile_is_nearly_always_in_time_from_the_third_run_on() -> (
    None
):
    found = play(1.35, deadlines.OURS, pace=1.3)
    assert found["late_first"] <= 0.06, "one run of the eighteen"
    assert found["late"] > 0.0, "at first nobody knows"


def test_a_bounded_attempt_ends_at_its_bound() -> None:
    host = deadlines.Host(Scenario(PAIR, 1.0), 0)
    tried = PlannedAttempt(batch_size=64, phase="explore", why="", bound_epochs=3.0)  # type: ignore[arg-type]
    run = host.attempt(tried)
    assert (run.epochs, run.reached) == (3.0, False)
    assert set(host.profiles) == {64}


def test_it_writes_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report"
    traces = tmp_path / "traces"
    traces.mkdir()
    keys = "dataset,network,batch_size,optimizer"
    rows = [f"d,n,{b},o,1,{epochs:g}" for b, each in PAIR.epochs.items() for epochs in each]
    (traces / "summary_train.csv").write_text(
        "\n".join([f"{keys},target_metric,target_epoch", *rows]) + "\n"
    )
    rows = [
        f"d,n,{b},o,{p.limit_w:g},{p.time_s:g},{p.power_w:g}"
        for b, each in PAIR.points.items()
        for p in each
    ]
    head = f"{keys},power_limit,time_per_epoch,average_power"
    (traces / "summary_power_v100.csv").write_text("\n".join([head, *rows]) + "\n")
    options = [
        "--traces",
        str(traces),
        "--out",
        str(out),
        "--seeds",
        "1",
        "--recurrences",
        "12",
        "--jobs",
        "1",
    ]
    assert deadlines.main([*options, "--factors", "1.5"]) == 0
    table = (out / "deadlines.md").read_text()
    assert capsys.readouterr().out.startswith(table)
    assert [line.split(" | ")[1] for line in table.splitlines()[2:]] == list(deadlines.WHO)
