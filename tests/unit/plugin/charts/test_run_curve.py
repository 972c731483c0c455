"""The power-limit curve of a batch size: data, not drawing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.trial import ProfileSample
from airflow_provider_zeus.plugin.answer_parts import Chart
from airflow_provider_zeus.plugin.charts import run_curve


def drawn(chart: Chart) -> dict[str, Any]:
    assert chart.option is not None
    return json.loads(json.dumps(chart.option, allow_nan=False))


SAMPLES = [
    ProfileSample(batch_size=32, limit_w=w, samples=1000, energy_j=j, time_s=s)
    for w, j, s in ((300.0, 95.0, 1.0), (150.0, 100.0, 1.5), (200.0, 80.0, 1.1))
] + [ProfileSample(batch_size=64, limit_w=200.0, samples=10, energy_j=1.0, time_s=1.0)]


def curve(ran_w: float | None = 200.0, eta: float = 1.0, samples: Any = SAMPLES) -> Chart:
    chart = run_curve.curve(samples, 32, Weights(eta, 300.0), ran_w)
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
def test_the_optimum_is_marked_and_where_the_run_was(
    eta: float, ran_w: float | None, marks: list[str]
) -> None:
    found = drawn(curve(ran_w, eta))["series"][0]["markLine"]["data"]
    assert [m["label"]["formatter"] for m in found] == marks
    assert len({m["label"]["offset"][1] for m in found}) == len(marks), "none hides another"
    sides = {m["xAxis"]: m["label"]["align"] for m in found}
    assert sides.get(300.0, "right") == "right", "a label at the end of the axis would be cut off"


def test_where_no_limit_can_save_anything_none_is_the_optimum() -> None:
    chart = run_curve.curve(SAMPLES, 32, Weights(1.0, 300.0), 300.0, uncapped=True)
    assert chart is not None
    (mark,) = drawn(chart)["series"][0]["markLine"]["data"]
    assert mark["label"]["formatter"] == "run’s 300 W"
    assert "optimum" not in chart.model_dump_json()


def test_the_curve_as_a_table() -> None:
    table = curve().table
    assert table is not None
    assert table.rows == [
        ["150 W", "100 mJ", "1.5 ms", "67 W", "105.3 %", ""],
        ["200 W", "80 mJ", "1.1 ms", "73 W", "84.21 %", "optimum"],
        ["300 W", "95 mJ", "1 ms", "95 W", "100 %", ""],
    ]


def test_next_to_no_difference_is_not_blown_up() -> None:
    flat = [
        ProfileSample(batch_size=32, limit_w=w, samples=1000, energy_j=j, time_s=1.0)
        for w, j in ((150.0, 100.0), (300.0, 100.1))
    ]
    axis = drawn(curve(samples=flat))["yAxis"][0]
    assert axis["max"] - axis["min"] == pytest.approx(0.2 * 100.1, rel=0.01)
    assert "min" not in drawn(curve())["yAxis"][0]


@pytest.mark.parametrize("lowest_j", [467.7, 432.2])
def test_a_small_range_at_an_end_of_the_axis_stays_inside(lowest_j: float) -> None:
    nearly = [
        ProfileSample(batch_size=32, limit_w=w, samples=1000, energy_j=j, time_s=j / 100)
        for w, j in ((150.0, 540.1), (300.0, lowest_j))
    ]
    for axis, size in zip(drawn(curve(samples=nearly))["yAxis"], (1.0, 100.0), strict=True):
        unit = 1000 if axis["name"].endswith("[mJ]") or axis["name"].endswith("[ms]") else 1
        room = 0.009 * 540.1
        assert axis["min"] < (lowest_j - room) / size / 1000 * unit
        assert axis["max"] > (540.1 + room) / size / 1000 * unit


def test_what_was_never_profiled_has_no_curve() -> None:
    assert run_curve.curve([], 32, Weights(1.0, 300.0), 200.0) is None
    assert run_curve.curve(SAMPLES, 16, Weights(1.0, 300.0), 200.0) is None
