"""The chart's option: data, not drawing."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import Phase, State, Trial
from airflow_provider_zeus.plugin.answer_parts import RunRow
from airflow_provider_zeus.plugin.charts import dag_charts
from airflow_provider_zeus.plugin.charts.chart_parts import number, size_colour
from airflow_provider_zeus.plugin.charts.dag_charts import ComparisonCurve
from airflow_provider_zeus.plugin.charts.run_axis import HistoryBreak, row_key
from airflow_provider_zeus.plugin.views import costs
from tests.unit.plugin.kit import JOB, trial

HALF = Weights(0.5, 300.0)


def rows(*trials: Trial) -> list[RunRow]:
    return costs.rows_of(trials, JOB)


def chart(*trials: Trial, **more: Any) -> dict[str, Any]:
    option = dag_charts.cost_chart(rows(*trials), HALF, **more).option
    assert option is not None
    return json.loads(json.dumps(option, allow_nan=False))


def dots(option: dict[str, Any]) -> dict[str, list[Any]]:
    return {s["name"]: s["data"] for s in option["series"] if s["type"] == "scatter" and s["name"]}


def test_a_point_per_run_oldest_first_grouped_by_batch_size() -> None:
    option = chart(trial(1, "a", 32, energy_j=1000.0), trial(2, "b", 64), trial(3, "c", 32))
    assert option["xAxis"]["data"] == ["slice a", "slice b", "slice c"]
    assert option["yAxis"]["name"] == "energy and time together [% of the first run]", (
        "it cannot be taken for energy"
    )
    assert {name: [p["value"][0] for p in points] for name, points in dots(option).items()} == {
        "32": [0, 2],
        "64": [1],
    }
    others = [points["value"][1] for points in dots(option)["32"]]
    assert others[0] == 100
    assert others[1] == pytest.approx(100 * (1120 + 2700) / (1000 + 2700), rel=1e-5), (
        "half and half, at 300 W"
    )
    of_default = chart(trial(1, "a", 32, energy_j=1000.0), whole=(3700.0, "always 32"))
    assert of_default["yAxis"]["name"] == "energy and time together [% of always 32]"
    assert dots(of_default)["32"][0]["value"][1] == 50
    assert dots(of_default)["32"][0]["tip"].splitlines()[1] == "50 % of always 32"
    assert option["legend"]["data"] == ["32", "64"]
    assert option["tooltip"]["renderMode"] == "richText", (
        "a strict Content-Security-Policy allows no other"
    )


def test_a_batch_size_has_one_colour_whatever_else_ran() -> None:
    def colour(of: dict[str, Any], name: str) -> str:
        return next(s["itemStyle"]["color"] for s in of["series"] if s["name"] == name)

    several = chart(trial(1, "a", 16), trial(2, "b", 32), trial(3, "c", 64))
    assert colour(several, "64") == colour(chart(trial(1, "x", 64)), "64") == size_colour(64)
    assert len({colour(several, name) for name in ("16", "32", "64")}) == 3


def test_runs_that_were_not_needed_alone_are_no_chart_even_if_one_has_a_cost() -> None:
    idle = [trial(1, "a", state=State.NOT_NEEDED), trial(2, "b", state=State.NOT_NEEDED)]
    assert any(row.cost.value for row in rows(*idle))
    drawn = dag_charts.cost_chart(rows(*idle), HALF)
    assert drawn.option is None
    assert drawn.note.startswith("No run of known cost yet.")


def test_a_run_without_a_slice_is_named_by_when_it_began() -> None:
    log = trial(1, "scheduled__2026-10-06T19:23:38+00:00", data_slice=None)
    assert chart(replace(log, opened_at=1.7753e9))["xAxis"]["data"] == ["2026-04-04 10:53"]
    mapped = replace(log, opened_at=1.7753e9, origin=replace(log.origin, map_index=2))
    assert chart(mapped)["xAxis"]["data"] == ["2026-04-04 10:53 [2]"]


def test_given_up_and_kept_differ_by_more_than_colour() -> None:
    option = chart(
        trial(1, "a", 64, State.GIVEN_UP), trial(2, "a", 32), trial(3, "b", 32, State.FAILED)
    )
    assert [p["symbol"] for p in dots(option)["32"]] == ["diamond", "triangle"]
    assert [p["label"]["formatter"] for p in dots(option)["32"] if "label" in p] == ["64→32"], (
        "where it changes"
    )
    log = [
        trial(1, "z", 32),
        trial(2, "a", 64, State.GIVEN_UP),
        trial(3, "a", 32),
        trial(4, "b", 32),
    ]
    points = dots(chart(*log))["32"]
    assert [p.get("label", {}).get("formatter") for p in points] == ["32", "64→32", None], (
        "a diamond has its numbers"
    )
    note = dag_charts.cost_chart(rows(*log), HALF).note
    assert (
        "Diamond, such as 64→32: the size before the arrow was given up; the cost is of both."
        in note
    )


def test_a_run_that_missed_its_target_is_a_cross_and_the_caption_names_the_marks_that_are_there() -> (
    None
):
    log = [
        trial(1, "a", 32, State.EXHAUSTED, phase=Phase.EXPLORE),
        trial(2, "b", 32, phase=Phase.EXPLORE),
    ]
    missed, reached = dots(chart(*log))["32"]
    assert missed["symbol"].startswith("path://")
    assert (missed["itemStyle"]["color"], reached["symbol"]) == ("transparent", "circle"), (
        "an outline has no filling"
    )
    (alone,) = dots(chart(trial(1, "a", 32, State.EXHAUSTED, phase=Phase.INCUMBENT)))["32"]
    assert alone["itemStyle"]["borderColor"] == size_colour(32)
    note = dag_charts.cost_chart(rows(*log), HALF).note
    assert "Cross: missed its target." in note
    assert "Triangle" not in note
    assert "Cross" not in dag_charts.cost_chart(rows(log[1]), HALF).note


def test_numbers_of_runs_side_by_side_do_not_overlap() -> None:
    option = chart(*(trial(n, f"run{n}", (128, 256)[n % 2]) for n in range(1, 37)))
    points = sorted((p for of in dots(option).values() for p in of), key=lambda p: p["value"][0])
    most = max(p["value"][1] for p in points)
    named = [(p["value"], -p["label"]["offset"][1]) for p in points if "label" in p]
    at = [(440 / 36 * x, 120 * y / most + up) for (x, y), up in named]
    assert len(named) > 8
    assert all(
        abs(a - c) > 24 or abs(b - d) > 13.9 for (a, b), (c, d) in itertools.combinations(at, 2)
    ), "in pixels"


def test_nothing_to_draw() -> None:
    assert dag_charts.cost_chart([], HALF).option is None
    running = dag_charts.cost_chart(rows(trial(1, "a", state=State.RUNNING)), HALF)
    assert running.option is None
    assert "1 run still running" in running.note


def test_rows_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand of them took a second each time."""
    log = rows(*(trial(n, f"run{n}") for n in range(1, 5)))
    monkeypatch.setattr(RunRow, "__eq__", lambda *_: pytest.fail("each with each"))
    assert len(dag_charts.charted(log)) == 4


def test_what_does_not_compare_is_left_out_and_said() -> None:
    log = rows(
        trial(1, "a", energy_j=None, energy_source=None),
        trial(2, "b"),
        trial(3, "c", energy_j=None),
        trial(4, "d", state=State.RUNNING),
    )
    assert [r.run_id for r in dag_charts.charted(log)] == ["b"]
    left_out = dag_charts.left_out(log, dag_charts.charted(log))
    assert "1 run still running" in left_out
    assert "2 runs whose cost" in left_out


def test_the_table_has_a_dash_for_a_run_whose_alternative_is_not_known() -> None:
    log = rows(*(trial(n, run) for n, run in enumerate(("a", "b", "c"), start=1)))
    newest, middle, _ = (row_key(row) for row in log)
    values = {newest: Estimate(3600.0, 1800.0, 7200.0), middle: Estimate.missing("no profile")}
    alternative = ComparisonCurve("at full power", values)
    found = dag_charts.cost_chart(log, HALF, [alternative])
    assert found.table is not None
    column = found.table.columns.index("at full power")
    known, *others = (row[column] for row in found.table.rows)
    assert " to " in known
    assert others == ["–", "–"]


def test_sources_have_lines_of_their_own() -> None:
    option = chart(trial(1, "a"), trial(2, "b", energy_source="rapl"), trial(3, "c"))
    lines = [[p[0] for p in s["data"]] for s in option["series"] if s["type"] == "line"]
    assert lines == [[0, 2], [1]]
    assert set(dots(option)) == {"32 (simulated)", "32 (CPU counter)"}


def test_time_alone_is_drawn_in_time() -> None:
    log = [trial(1, "a", energy_j=None, energy_source=None, time_s=90.0)]
    assert chart(*log)["yAxis"]["name"] == "time [min]"
    assert dots(chart(*log))["32"][0]["value"] == [0, 1.5]


def test_exploring_and_best_known_differ_by_more_than_colour() -> None:
    option = chart(trial(1, "a", 32, phase=Phase.EXPLORE), trial(2, "b", 32, phase=Phase.INCUMBENT))
    exploring, best = dots(option)["32"]
    assert (exploring["itemStyle"]["color"], "itemStyle" in best) == ("transparent", False)
    table = dag_charts.cost_chart(
        rows(trial(1, "a", 32, phase=Phase.EXPLORE), trial(2, "b")), HALF
    ).table
    assert table is not None
    assert [row[table.columns.index("Exploring")] for row in table.rows] == ["no", "yes"]


def test_what_is_forgotten_is_marked_where_it_is_forgotten() -> None:
    mark = HistoryBreak(("b", "train", -1), "data {changed}", "The data changed.")
    gone = HistoryBreak(("nowhere", "train", -1), "x", "Not on this page.")
    option = chart(trial(1, "a"), trial(2, "b"), breaks=[mark, gone])
    (line,) = [s["markLine"]["data"] for s in option["series"] if "markLine" in s]
    assert line == [{"xAxis": 1, "label": {"formatter": "data (changed)"}}]
    assert (
        "The data changed." in dag_charts.cost_chart(rows(trial(1, "a")), HALF, breaks=[mark]).note
    )


def test_default_and_best_fixed_are_lines_in_the_axis_unit() -> None:
    log = (trial(1, "a"), trial(2, "b"))
    known = {
        ("a", "train", -1): Estimate(7_200.0, 7_200.0, 7_200.0),
        ("b", "train", -1): Estimate(3_600.0, 1_800.0, 5_400.0),
    }
    elsewhere = ComparisonCurve(
        "always 64", {("elsewhere", "train", -1): Estimate(1.0)}, dash="dotted"
    )
    option = chart(*log, curves=[ComparisonCurve("default 32", known), elsewhere])
    (line,) = [s for s in option["series"] if s["name"] == "default 32"]
    size = dag_charts.charted(rows(*log))[0].cost.value / 100
    assert line["data"] == [[0, number(7_200.0 / size)], [1, number(3_600.0 / size)]]
    below, band = [s["data"] for s in option["series"] if s.get("stack")]
    assert below == [[0, number(7_200.0 / size)], [1, number(1_800.0 / size)]]
    assert band == [[0, 0.0], [1, number(3_600.0 / size)]], "no band where the default itself ran"
    interval = {"name": "90 % sure", "icon": "rect"}
    assert option["legend"]["data"] == ["32", "default 32", interval], (
        "a line of no run that is shown is left out"
    )


def test_text_from_outside_stays_text() -> None:
    option = chart(trial(1, "{a|x} {b}", data_slice="{c0} <script>alert(1)</script>" + "x" * 500))
    label = option["xAxis"]["data"][0]
    assert label.startswith("(c0) <script>")
    assert len(label) == 80
    assert "{" not in json.dumps(dots(option)["32"][0]["tip"])


def test_a_long_history_gets_a_slider_and_no_labels() -> None:
    long = chart(*(trial(n, f"run{n}") for n in range(1, 200)))
    assert long["dataZoom"][0]["type"] == "slider"
    assert "label" not in dots(long)["32"][0]
    assert "dataZoom" not in chart(trial(1, "a"))
    tried = trial(301, "last", 64, State.GIVEN_UP), trial(302, "last", 32)
    points = dots(chart(*(trial(n, f"long{n}") for n in range(1, 200)), *tried))
    assert [p["label"]["formatter"] for of in points.values() for p in of if "label" in p] == [
        "64→32"
    ], "no legend does"


def test_the_chart_in_words() -> None:
    shown = dag_charts.cost_chart(
        rows(trial(1, "a", 64, energy_j=100.0), trial(2, "b", 32, energy_j=900.0)), HALF
    )
    assert "Cost of 2 runs" in shown.text
    assert re.findall(r"([\d.]+ %) with batch size (\d+)", shown.text) == [
        ("129 %", "32"),
        ("100 %", "64"),
    ]
    assert shown.table is not None
    assert [row[:2] for row in shown.table.rows] == [["slice b", "32"], ["slice a", "64"]]


def test_runs_that_were_not_needed_lie_on_the_axis_and_have_no_cost() -> None:
    idle = {"energy_j": None, "time_s": None, "device_model": None, "energy_source": None}
    log = (trial(1, "a", 32), trial(2, "b", 32, State.NOT_NEEDED, **idle), trial(3, "c", 64))
    option = chart(*log)
    assert [p["value"] for p in dots(option)[dag_charts.NOT_NEEDED]] == [[1, 0]]
    (idle,) = [s for s in option["series"] if s["name"] == dag_charts.NOT_NEEDED]
    assert idle["symbol"] not in dag_charts.MARKS, "no mark has two meanings"
    assert sum(len(points) for points in dots(option).values()) == 3
    lines = [s["data"] for s in option["series"] if s["type"] == "line" and s["name"] == ""]
    assert [[x for x, _ in data] for data in lines] == [[0, 2]], (
        "the path goes on from cost to cost"
    )
    found = dag_charts.cost_chart(rows(*log), HALF)
    assert found.table is not None
    assert found.table.rows[1][2:4] == ["–", "not needed"]
    assert "Cost of 2 runs" in found.text
    assert dag_charts.cost_chart(rows(log[1]), HALF).option is None
