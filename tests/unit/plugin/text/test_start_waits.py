"""What a run waits for, by an XCom that any task may have pushed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_zeus.operators.schedule import PlannedWait as Planned
from airflow_provider_zeus.plugin.text.run_notes import MOST_WHY, StartWait, waiting

UNTIL_S = 1_700_000_000.0
PUSHED = Planned(signal="carbon", why="It waits until then.", until_s=UNTIL_S).xcom()


@pytest.mark.parametrize("value", [PUSHED, json.dumps(PUSHED)])
def test_what_the_operator_pushes_is_read(value: Any) -> None:
    assert StartWait.read(value, named=True) == StartWait(UNTIL_S, "It waits until then.")
    assert StartWait.read({**PUSHED, "until": None}, named=True) == StartWait(
        None, "It waits until then."
    )
    assert StartWait.read({**PUSHED, "trains": "train"}, named=True) == StartWait(
        UNTIL_S, "It waits until then.", "train"
    )


@pytest.mark.parametrize(
    "value",
    [None, 3, "{", [], {}, {"why": 1}, {"why": "x", "until": "soon"}, {"why": "x", "until": 5}],
)
def test_what_is_something_else_is_left_out(value: Any) -> None:
    assert StartWait.read(value, named=True) is None


def test_long_texts_are_cut() -> None:
    found = StartWait.read({"why": "x" * 10_000, "trains": 7}, named=True)
    assert found is not None
    assert (len(found.why), found.trains) == (MOST_WHY, None)


def test_the_plan_beside_what_came_of_it() -> None:
    wait = StartWait(UNTIL_S, "It waits until then.")
    assert wait.text(None) == "It waits until then."
    assert (
        wait.text(UNTIL_S + 60)
        == "The start was planned for 2023-11-14 22:13 UTC; it began at 2023-11-14 22:14 UTC. It"
        " waits until then."
    )
    assert StartWait(None, "It starts at once.").text(UNTIL_S) == "It starts at once."


def test_all_that_waits_in_a_run() -> None:
    waits = {("train", i): StartWait(UNTIL_S, f"why {i}") for i in range(25)} | {
        ("one", -1): StartWait(UNTIL_S, "alone")
    }
    said = waiting(waits)
    assert said.startswith("one: alone train [0]: why 0 ")
    assert said.endswith("… and 6 more.")
    assert waiting({}) == ""


@pytest.mark.parametrize("own", ["grid_of_us", "x" * 10_000])
def test_the_connection_of_a_signal_is_for_those_who_may_read_connections(own: str) -> None:
    pushed = {**PUSHED, "signal": own}
    whys = {
        named: wait.why
        for named in (False, True)
        if (wait := StartWait.read(pushed, named=named)) is not None
    }
    assert whys[False] == "It waits until then."
    assert whys[True].startswith(f"It waits until then. Its signal is Connection {own[:200]}")
    assert len(whys[True]) < 400
