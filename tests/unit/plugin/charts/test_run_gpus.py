"""Energy of each GPU of a run, as bars and as a table."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.plugin.charts.run_charts import gpus
from tests.unit.plugin.kit import trial

BOTH = {"device_count": 2, "gpu_uuid": "GPU-a,GPU-b"}


def wide(
    number: int,
    batch_size: int,
    each: tuple[float, ...] | None,
    state: State = State.CONVERGED,
    **more: Any,
) -> Trial:
    each = each and tuple(3600 * wh for wh in each)
    return trial(number, "r", batch_size, state, **{**BOTH, "gpu_energy_j": each, **more})


def test_bars_of_each_gpu_attempt_upon_attempt() -> None:
    chart = gpus([wide(1, 64, (2.0, 3.0), State.GIVEN_UP), wide(2, 32, (1.0, 4.5))])
    assert chart is not None
    assert chart.option is not None
    option = json.loads(json.dumps(chart.option, allow_nan=False))
    assert option["xAxis"]["data"] == ["GPU 1", "GPU 2"]
    assert option["yAxis"]["name"] == "energy [Wh]"
    assert {s["name"]: [p["value"] for p in s["data"]] for s in option["series"]} == {
        "1: batch size 64": [2.0, 3.0],
        "2: batch size 32": [1.0, 4.5],
    }
    assert {s["stack"] for s in option["series"]} == {"all"}
    assert option["series"][0]["data"][1]["tip"].split("\n") == [
        "GPU 2: GPU-b",
        "1: batch size 64",
        "3 Wh",
    ]
    assert chart.table is not None
    assert chart.table.rows == [
        ["GPU 1", "GPU-a", "2 Wh", "1 Wh", "3 Wh", "29 %"],
        ["GPU 2", "GPU-b", "3 Wh", "4.5 Wh", "7.5 Wh", "71 %"],
    ]
    assert "3 Wh to 7.5 Wh each" in chart.text


def test_a_retry_on_other_gpus_has_bars_of_its_own() -> None:
    chart = gpus(
        [wide(1, 32, (1.0, 2.0), State.FAILED), wide(2, 32, (3.0, 4.0), gpu_uuid="GPU-c,GPU-b")]
    )
    assert chart is not None
    assert chart.table is not None
    assert [row[1:5] for row in chart.table.rows] == [
        ["GPU-a", "1 Wh", "–", "1 Wh"],
        ["GPU-b", "2 Wh", "4 Wh", "6 Wh"],
        ["GPU-c", "–", "3 Wh", "3 Wh"],
    ]


def test_one_gpu_has_none_of_it() -> None:
    assert gpus([trial(1, "r")]) is None


def test_what_is_not_known_says_why() -> None:
    old = gpus([wide(1, 32, None)])
    assert old is not None
    assert old.option is None
    assert old.note.startswith("Not known: ")
    hosts = gpus([wide(1, 32, None, reasons={"gpu_energy_j": "several hosts"})])
    assert hosts is not None
    assert hosts.note == "Not known: several hosts."


def test_sources_are_never_added_and_gaps_are_counted() -> None:
    chart = gpus(
        [
            wide(1, 64, (5.0, 5.0), State.FAILED, energy_source="nvml_poll"),
            wide(2, 64, None, State.FAILED),
            wide(3, 32, (1.0, 1.0), State.RUNNING),
        ]
    )
    assert chart is not None
    assert chart.table is not None
    assert [row[-2] for row in chart.table.rows] == ["1 Wh", "1 Wh"]
    assert "simulated" in chart.note
    assert "figures so far" in chart.note
    assert "Not in it: 2 attempts" in chart.note


def test_without_identities_they_are_numbered() -> None:
    chart = gpus([wide(1, 32, (1.0, 2.0), gpu_uuid=None)])
    assert chart is not None
    assert chart.table is not None
    assert [row[1] for row in chart.table.rows] == ["number 1", "number 2"]
