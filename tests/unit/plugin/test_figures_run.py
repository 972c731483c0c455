"""The charts of a run: data, not drawing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_zeus.optimizer.cost import Weights
from airflow_provider_zeus.optimizer.trial import PowerPoint, ProfileSample, State
from airflow_provider_zeus.plugin import figures_run
from airflow_provider_zeus.plugin.models import Chart
from tests.unit.plugin.kit import trial


def points(*given: tuple[float, float | None, float | None, str]) -> list[PowerPoint]:
    return [PowerPoint(t_s=t, power_w=w, limit_w=limit, phase=phase) for t, w, limit, phase in given]


FIRST = points((2.0, 280.0, 300.0, "profile"), (4.0, 140.0, 150.0, "profile"), (10.0, 190.0, 200.0, "train"))
SECOND = points((5.0, 180.0, 200.0, "train"), (6.0, 90.0, 200.0, "validate"))


def drawn(chart: Chart) -> dict[str, Any]:
    assert chart.option is not None
    return json.loads(json.dumps(chart.option, allow_nan=False))


def line(chart: Chart, name: str) -> list[list[float | None]]:
    return next([p["value"] for p in s["data"]] for s in drawn(chart)["series"] if s["name"] == name)


def test_each_point_holds_over_what_it_covers_and_attempts_follow_one_another() -> None:
    chart = figures_run.power([(trial(1, "r", 64), FIRST), (trial(2, "r", 32), SECOND)])
    assert line(chart, figures_run.POWER) == [
        [0, 280], [2, 280], [2, 140], [4, 140], [4, 190], [10, 190],
        [10, 180], [15, 180], [15, 90], [16, 90],
    ]  # fmt: skip
    assert [w for _, w in line(chart, figures_run.LIMIT)][::2] == [300, 150, 200, 200, 200]
    assert {w for _, w in line(chart, figures_run.CHOSEN)} == {200}
    marks = drawn(chart)["series"][0]
    assert [[end["xAxis"] for end in window] for window in marks["markArea"]["data"]] == [[0, 4]], "profiling"
    assert [(m["xAxis"], m["label"]["formatter"]) for m in marks["markLine"]["data"]] == [
        (0, "batch size 64"),
        (10, "batch size 32"),
    ]
    assert drawn(chart)["xAxis"]["name"] == "training time [s]"
    assert chart.note.startswith("Shaded: ")
    assert "Shaded" not in figures_run.power([(trial(1, "r"), SECOND)]).note


def test_the_power_table_says_the_same() -> None:
    chart = figures_run.power([(trial(1, "r", 64), FIRST), (trial(2, "r", 32), SECOND)])
    assert chart.table is not None
    assert chart.table.rows == [
        ["1: batch size 64", "profiling", "0 s", "2 s", "280 W", "300 W"],
        ["1: batch size 64", "profiling", "2 s", "4 s", "140 W", "150 W"],
        ["1: batch size 64", "training", "4 s", "10 s", "190 W", "200 W"],
        ["2: batch size 32", "training", "10 s", "15 s", "180 W", "200 W"],
        ["2: batch size 32", "validation", "15 s", "16 s", "90 W", "200 W"],
    ]
    assert chart.text == (
        "Power over 16 s of training in 2 attempts: mean 186 W, highest 280 W; 1 profiling window. The table holds the "
        "same figures."
    )


def test_the_limits_of_several_gpus_stand_beside_their_power() -> None:
    chart = figures_run.power([(trial(1, "r", device_count=2), points((1.0, 380.0, 200.0, "train")))])
    assert line(chart, figures_run.LIMIT)[0] == [0, 400]
    assert line(chart, figures_run.CHOSEN)[0] == [0, 400]


def test_no_limit_is_chosen_while_one_is_looked_for() -> None:
    running = trial(1, "r", state=State.RUNNING)
    assert {w for _, w in line(figures_run.power([(running, FIRST[:2])]), figures_run.CHOSEN)} == {None}
    assert {w for _, w in line(figures_run.power([(running, FIRST)]), figures_run.CHOSEN)} == {200}


def test_a_gap_stays_a_gap() -> None:
    chart = figures_run.power([(trial(1, "r"), points((1.0, None, None, "train"), (2.0, 100.0, None, "train")))])
    assert line(chart, figures_run.POWER) == [[0, None], [1, None], [1, 100], [2, 100]]
    assert chart.table is not None
    assert chart.table.rows == [["1: batch size 32", "training", "0 s", "2 s", "100 W", "–"]]


def test_no_power_says_why() -> None:
    none = figures_run.power([(trial(1, "r", energy_j=None, energy_source=None), points((1.0, None, None, "train")))])
    assert (none.option, "no source" in none.note) == (None, True)
    assert "holds no power" in figures_run.power([(trial(1, "r"), [])]).note
    assert figures_run.power([]).option is None


def test_500_points_stay_small() -> None:
    many = points(*((float(t), 100.0 + t % 7, 200.0, "train") for t in range(1, 501)))
    assert len(figures_run.power([(trial(1, "r"), many)]).model_dump_json()) < 250_000


def test_text_from_outside_is_no_template() -> None:
    odd = figures_run.power([(trial(1, "r"), points((1.0, 1.0, 1.0, "{a|x}")))])
    assert "{" not in drawn(odd)["series"][0]["data"][1]["tip"]


# --- the curve

SAMPLES = [
    ProfileSample(batch_size=32, limit_w=w, samples=1000, energy_j=j, time_s=s)
    for w, j, s in ((300.0, 95.0, 1.0), (150.0, 100.0, 1.5), (200.0, 80.0, 1.1))
] + [ProfileSample(batch_size=64, limit_w=200.0, samples=10, energy_j=1.0, time_s=1.0)]


def curve(ran_w: float | None = 200.0, eta: float = 1.0, samples: Any = SAMPLES) -> Chart:
    chart = figures_run.curve(samples, 32, Weights(eta, 300.0), ran_w)
    assert chart is not None
    return chart


def test_joules_and_seconds_per_sample_against_the_limit() -> None:
    energy, time = drawn(curve())["series"]
    assert (energy["name"], time["name"]) == ("energy [mJ]", "time [ms]")
    assert [p["value"] for p in energy["data"]] == [[150, 100], [200, 80], [300, 95]]
    assert [p["value"] for p in time["data"]] == [[150, 1.5], [200, 1.1], [300, 1]]
    assert (energy["symbol"], time["symbol"]) == ("circle", "rect"), "not by colour alone"
    assert (energy["yAxisIndex"], time["yAxisIndex"]) == (0, 1)


@pytest.mark.parametrize(
    ("eta", "ran_w", "marks"),
    [
        (1.0, 200.0, ["optimum 200 W"]),
        (0.0, 200.0, ["optimum 300 W", "run’s 200 W"]),
        (1.0, None, ["optimum 200 W"]),
    ],
)
def test_the_optimum_is_marked_and_where_the_run_was(eta: float, ran_w: float | None, marks: list[str]) -> None:
    found = drawn(curve(ran_w, eta))["series"][0]["markLine"]["data"]
    assert [m["label"]["formatter"] for m in found] == marks


def test_the_curve_as_a_table() -> None:
    table = curve().table
    assert table is not None
    assert table.rows == [
        ["150 W", "0.1 J", "0.0015 s", "67 W", "0.1 J", ""],
        ["200 W", "0.08 J", "0.0011 s", "73 W", "0.08 J", "optimum"],
        ["300 W", "0.095 J", "0.001 s", "95 W", "0.095 J", ""],
    ]


def test_next_to_no_difference_is_not_blown_up() -> None:
    flat = [
        ProfileSample(batch_size=32, limit_w=w, samples=1000, energy_j=j, time_s=1.0)
        for w, j in ((150.0, 100.0), (300.0, 100.1))
    ]
    axis = drawn(curve(samples=flat))["yAxis"][0]
    assert axis["max"] - axis["min"] == pytest.approx(0.2 * 100.1, rel=0.01)
    assert "min" not in drawn(curve())["yAxis"][0]


def test_what_was_never_profiled_has_no_curve() -> None:
    assert figures_run.curve([], 32, Weights(1.0, 300.0), 200.0) is None
    assert figures_run.curve(SAMPLES, 16, Weights(1.0, 300.0), 200.0) is None
