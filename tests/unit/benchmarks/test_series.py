"""``benchmarks.series`` on series whose truth is known."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from airflow_provider_zeus.errors import JobSpecError
from benchmarks.quality.slice_tables import defaults_of, read_series, tables_in, weather
from benchmarks.series import main, measure

HEAD = "slice,batch_size,seed,epochs,s_per_epoch\n"


def write(path: Path, epochs: dict[int, str], slices: int = 30) -> Path:
    """A series that never changes; an epoch takes 1 s at 16, half at 32, a quarter at 64,
    an eighth at 128.
    """
    lines = [
        f"{t},{b},{seed},{e},{16 / b}\n"
        for t in range(slices)
        for b, e in epochs.items()
        for seed in (0, 1)
    ]
    path.write_text(HEAD + "".join(lines))
    return path


@pytest.fixture
def series(tmp_path: Path) -> Path:
    """Costs of a run: 16: 10 s, 32: 5, 64: 3, 128: never within 20 epochs."""
    return write(tmp_path / "series.csv", {16: "10", 32: "10", 64: "12", 128: ""})


def test_the_near_optimal_default_is_the_cheapest_and_a_miss_pays_for_its_epochs(
    series: Path,
) -> None:
    assert defaults_of(read_series(series, 20)) == {
        "small": 16,
        "near_optimal": 128,
        "large": 128,
    }, "20 epochs: 2.5 s"
    assert defaults_of(read_series(series, 30)) == {"small": 16, "near_optimal": 64, "large": 128}


def test_always_the_default_is_what_ratios_are_taken_to(series: Path) -> None:
    (found,) = measure(read_series(series, 30), ["default"], seeds=range(2), jobs=1).values()
    assert [f["total_vs_default"] for f in found.values()] == [1.0, 1.0, 1.0]
    assert found["small"]["vs_best_fixed"] == pytest.approx(10 / 3)
    assert found["large"]["runs_below_target"] == 30


def test_hill_climbing_doubles_until_a_run_gets_no_cheaper(series: Path) -> None:
    (found,) = measure(read_series(series, 30), ["hill_climbing"], seeds=range(1), jobs=1).values()
    small = found["small"]
    best = found["near_optimal"]
    assert small["runs_below_target"] == 0
    assert small["total_vs_default"] < 0.5, "it soon trains with 64"
    assert 1 < best["total_vs_default"] < 1.5, "trying 128 costs something now and then"


def test_the_products_policies_save_where_the_default_is_bad(series: Path) -> None:
    found = measure(read_series(series, 30), ["knowledge_gradient", "zeus"], seeds=range(2), jobs=1)
    for kinds in found.values():
        assert kinds["small"]["total_vs_default"] < 0.6
        assert kinds["small"]["low"] <= kinds["small"]["total_vs_default"] <= kinds["small"]["high"]


def test_the_report_holds_the_policy_and_its_baselines(series: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    told = [
        "--table",
        str(series),
        "--max-epochs",
        "30",
        "--seeds",
        "1",
        "--jobs",
        "1",
        "--report",
        str(out),
    ]
    assert main(told) == 0
    report = json.loads(out.read_text())
    assert set(report["defaults"]) == {"small", "near_optimal", "large"}
    assert set(report["baselines"]) == {"zeus", "hill_climbing"}
    figures = {
        "batch_size",
        "total_vs_default",
        "low",
        "high",
        "vs_best_fixed",
        "vs_paper",
        "runs_below_target",
    }
    assert set(report["defaults"]["small"]) == figures | {
        "runs_without_model",
        "attempts",
        "overdraft",
    }
    assert report["defaults"]["small"]["runs_without_model"] == 0
    assert report["defaults"]["small"]["attempts"] == 2
    assert report["baselines"]["zeus"]["small"]["vs_paper"] == [1, 1, 1]


def test_a_table_by_hand(tmp_path: Path) -> None:
    """Of slice 1, 32 was not trained and 16 never reached the target."""
    path = tmp_path / "a.csv"
    path.write_text(HEAD + "0,8,0,2,4\n0,16,0,3,2\n0,32,0,5,2\n1,8,0,3,4\n1,16,0,,2\n")
    found = read_series(path)
    assert found.max_epochs == 5, "the most that any training needed"
    assert found.batch_sizes == [8, 16]
    assert [truth.best for truth in found.truths(8)] == [16, 8]
    assert read_series(path, 2).weeks[0].epochs[16] == (math.inf,), "a training ends after 2 epochs"
    assert [p.name for p in tables_in(tmp_path)] == ["a.csv"]
    with pytest.raises(JobSpecError, match="no CSV file"):
        tables_in(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("slice,batch_size\n", "seed, epochs, s_per_epoch"),
        (HEAD + "0,16,0,x,1\n", "epochs"),
        (HEAD + "0,16,0,3,-1\n", "s_per_epoch"),
        (HEAD + "0,sixteen,0,3,1\n", "batch_size"),
        (HEAD + "0,16,0,3,1\n1,32,0,3,1\n", "every slice"),
        (HEAD, "every slice"),
    ],
)
def test_a_table_that_cannot_be_read_is_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(JobSpecError, match=named):
        read_series(path, 10)
    assert main(["--table", str(path), "--max-epochs", "10"]) == 2


def test_without_a_table_it_is_the_weather_example() -> None:
    series = weather()
    assert len(series.weeks) == 40
    assert defaults_of(series)["small"] == 16
