"""The metric by epoch, of the attempts of a run."""

from __future__ import annotations

import json

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.plugin.charts import metric_chart
from airflow_provider_zeus.plugin.charts.metric_chart import MetricCurve
from tests.unit.plugin.kit import trial


def test_a_line_per_attempt_with_the_target() -> None:
    given_up = trial(1, "r", 64, State.GIVEN_UP, epoch_metrics=(0.1, 0.2, 0.3), target_value=0.8)
    kept = trial(2, "r", 32, epoch_metrics=(0.5, 0.85), target_value=0.8)
    chart = metric_chart.attempts([given_up, kept])
    assert chart is not None
    assert chart.title == "accuracy by epoch"
    option = json.loads(json.dumps(chart.option, allow_nan=False))
    assert {s["name"]: [p["value"] for p in s["data"]] for s in option["series"]} == {
        "1: batch size 64": [[1, 0.1], [2, 0.2], [3, 0.3]],
        "2: batch size 32": [[1, 0.5], [2, 0.85]],
    }
    (mark,) = option["series"][0]["markLine"]["data"]
    assert mark["yAxis"] == 0.8
    assert "position" not in mark["label"], (
        "at the line's end, beside the chart: no curve strikes it through"
    )
    assert option["grid"]["right"] > 7 * len(mark["label"]["formatter"])
    assert "markLine" not in option["series"][1]
    assert "2: batch size 32 ended at 0.85 after 2 epochs" in chart.text
    assert chart.table is not None
    assert chart.table.columns == ["Epoch", "1: batch size 64", "2: batch size 32"]
    assert chart.table.rows == [["1", "0.1", "0.5"], ["2", "0.2", "0.85"], ["3", "0.3", "–"]]


def test_the_labels_of_near_targets_do_not_overlap() -> None:
    curves = [
        MetricCurve(name, "accuracy", (0.0, 1.0), aim, 32)
        for name, aim in zip("abc", (0.84, 0.86, 0.4), strict=True)
    ]
    chart = metric_chart.chart_of(curves)
    assert chart.option is not None
    marks = chart.option["series"][0]["markLine"]["data"]
    assert [mark["yAxis"] for mark in marks] == [0.86, 0.84, 0.4], "each has its line"
    labels = [mark["label"].get("formatter") for mark in marks]
    assert labels == ["target 0.86\ntarget 0.84", None, "target 0.4"], "in their order"
    assert not marks[1]["label"]["show"]
    assert marks[0]["label"]["lineHeight"] >= 14, "whose lines do not overlap either"


def test_a_target_that_was_missed_is_within_the_chart() -> None:
    def axis(*aims: float) -> dict[str, object]:
        chart = metric_chart.chart_of(
            [MetricCurve(str(aim), "accuracy", (0.5, 0.7), aim, 32) for aim in aims]
        )
        assert chart.option is not None
        return {end: chart.option["yAxis"].get(end) for end in ("min", "max")}

    assert axis(0.84) == {"min": None, "max": 0.84}
    assert axis(0.2, 0.9) == {"min": 0.2, "max": 0.9}
    assert axis(0.6) == {"min": None, "max": None}


def test_ticks_do_not_overlap_beside_a_target_below_all_curves() -> None:
    chart = metric_chart.chart_of([MetricCurve("a", "loss", (0.9, 0.7), 0.5, 32)])
    assert chart.option is not None
    assert chart.option["yAxis"]["axisLabel"] == {"hideOverlap": True, "showMinLabel": False}


def test_a_run_without_metrics_has_no_chart() -> None:
    assert metric_chart.attempts([trial(1, "r"), trial(2, "r", epoch_metrics=())]) is None


def test_a_long_training_has_a_short_table_and_says_what_is_not_kept() -> None:
    chart = metric_chart.chart_of(
        [MetricCurve("a", "loss", tuple(1 / n for n in range(1, 1001)), 0.5, 32)]
    )
    assert chart.table is not None
    epochs = [int(row[0]) for row in chart.table.rows]
    assert (epochs[0], epochs[1], epochs[-1]) == (1, 20, 1000)
    assert len(epochs) <= metric_chart.MOST_ROWS + 1
    assert chart.option is not None
    assert len(chart.option["series"][0]["data"]) == 1000
    assert "first 1,000 epochs" in chart.note


def test_a_name_from_a_training_is_no_template() -> None:
    chart = metric_chart.chart_of([MetricCurve("{a|x}", "{b}", (1e300, -1e300), None, 32)])
    assert chart.option is not None
    assert "{" not in chart.option["series"][0]["name"] + chart.option["yAxis"]["name"]
