"""The charts of a run: data, not drawing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from airflow_provider_zeus.model.trial import OUTSIDE, PowerPoint, State
from airflow_provider_zeus.plugin.answer_parts import Chart
from airflow_provider_zeus.plugin.charts import run_charts
from tests.unit.plugin.kit import trial


def points(*given: tuple[float, float | None, float | None, str]) -> list[PowerPoint]:
    return [
        PowerPoint(t_s=t, power_w=w, limit_w=limit, phase=phase) for t, w, limit, phase in given
    ]


FIRST = points(
    (2.0, 280.0, 300.0, "profile"), (4.0, 140.0, 150.0, "profile"), (10.0, 190.0, 200.0, "train")
)
SECOND = points((5.0, 180.0, 200.0, "train"), (6.0, 90.0, 200.0, "validate"))


def drawn(chart: Chart) -> dict[str, Any]:
    assert chart.option is not None
    return json.loads(json.dumps(chart.option, allow_nan=False))


def line(chart: Chart, name: str) -> list[list[float | None]]:
    return next(
        [p["value"] for p in s["data"]] for s in drawn(chart)["series"] if s["name"] == name
    )


def test_each_point_holds_over_what_it_covers_and_attempts_follow_one_another() -> None:
    chart = run_charts.power([(trial(1, "r", 64), FIRST), (trial(2, "r", 32), SECOND)])
    assert line(chart, run_charts.POWER) == [
        [0, 280], [2, 280], [2, 140], [4, 140], [4, 190], [10, 190],
        [10, 180], [15, 180], [15, 90], [16, 90],
    ]  # fmt: skip
    assert [w for _, w in line(chart, run_charts.LIMIT)][::2] == [300, 150, 200, 200, 200]
    assert {w for _, w in line(chart, run_charts.CHOSEN)} == {200}
    marks = drawn(chart)["series"][0]
    assert [[end["xAxis"] for end in window] for window in marks["markArea"]["data"]] == [[0, 4]], (
        "profiling"
    )
    assert [(m["xAxis"], m["label"]["formatter"]) for m in marks["markLine"]["data"]] == [
        (0, "batch size 64"),
        (10, "batch size 32"),
    ]
    assert drawn(chart)["xAxis"]["name"] == "training time [s]"
    assert chart.note.startswith("Shaded: ")
    assert "Shaded" not in run_charts.power([(trial(1, "r"), SECOND)]).note


def test_the_power_table_says_the_same() -> None:
    chart = run_charts.power([(trial(1, "r", 64), FIRST), (trial(2, "r", 32), SECOND)])
    assert chart.table is not None
    assert chart.table.rows == [
        ["1: batch size 64", "profiling", "0 s", "2 s", "280 W", "300 W"],
        ["1: batch size 64", "profiling", "2 s", "4 s", "140 W", "150 W"],
        ["1: batch size 64", "training", "4 s", "10 s", "190 W", "200 W"],
        ["2: batch size 32", "training", "10 s", "15 s", "180 W", "200 W"],
        ["2: batch size 32", "validation", "15 s", "16 s", "90 W", "200 W"],
    ]
    for figure in (
        "16 s of training",
        "2 attempts",
        "mean 186 W",
        "highest 280 W",
        "1 profiling window.",
    ):
        assert figure in chart.text


def test_the_limits_of_several_gpus_stand_beside_their_power() -> None:
    chart = run_charts.power(
        [(trial(1, "r", device_count=2), points((1.0, 380.0, 200.0, "train")))]
    )
    assert line(chart, run_charts.LIMIT)[0] == [0, 400]
    assert line(chart, run_charts.CHOSEN)[0] == [0, 400]


def test_no_limit_is_chosen_while_one_is_looked_for() -> None:
    running = trial(1, "r", state=State.RUNNING)
    none = {"power_cap": "no limit holds it back"}
    for alone in ((running, FIRST[:2]), (trial(1, "r", reasons=none), FIRST)):
        names = [each["name"] for each in drawn(run_charts.power([alone]))["series"]]
        assert (
            names
            == drawn(run_charts.power([alone]))["legend"]["data"]
            == [run_charts.POWER, run_charts.LIMIT]
        )
    assert {w for _, w in line(run_charts.power([(running, FIRST)]), run_charts.CHOSEN)} == {200}


def test_a_gap_stays_a_gap() -> None:
    chart = run_charts.power(
        [(trial(1, "r"), points((1.0, None, None, "train"), (2.0, 100.0, None, "train")))]
    )
    assert line(chart, run_charts.POWER) == [[0, None], [1, None], [1, 100], [2, 100]]
    assert chart.table is not None
    assert chart.table.rows == [["1: batch size 32", "training", "0 s", "2 s", "100 W", "–"]]


def test_no_power_says_why() -> None:
    none = run_charts.power(
        [(trial(1, "r", energy_j=None, energy_source=None), points((1.0, None, None, "train")))]
    )
    assert (none.option, "nothing measured it" in none.note) == (None, True)
    assert "holds no power" in run_charts.power([(trial(1, "r"), [])]).note
    assert run_charts.power([]).option is None


def test_500_points_stay_small() -> None:
    many = points(*((float(t), 100.0 + t % 7, 200.0, "train") for t in range(1, 501)))
    assert len(run_charts.power([(trial(1, "r"), many)]).model_dump_json()) < 250_000


def test_text_from_outside_is_no_template() -> None:
    odd = run_charts.power([(trial(1, "r"), points((1.0, 1.0, 1.0, "{a|x}")))])
    assert "{" not in drawn(odd)["series"][0]["data"][1]["tip"]


def test_without_power_it_says_why() -> None:
    measured = trial(1, "r", 64)
    assert "within a second" in run_charts.power([(measured, [])]).note
    decision = replace(measured.decision, policy=OUTSIDE)
    outside = replace(measured, decision=decision)
    assert "less than a minute" in run_charts.power([(outside, [])]).note
    silent = replace(measured, observation=replace(measured.observation, energy_source=None))
    assert "nothing measured it" in run_charts.power([(silent, [])]).note
