"""States, phases and live settings in words."""

from __future__ import annotations

import pytest

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.trial import Phase, State
from airflow_provider_zeus.plugin.text import words
from tests.golden import Table
from tests.unit.plugin.kit import trial


def test_energy_is_exact_on_hover() -> None:
    assert words.energy(7_200_000.5).exact == "7,200,000.500 J = 2 kWh"
    assert words.energy(1.5).value == 1.5


def test_every_state_and_phase_has_words() -> None:
    """Each its own, and none as a program writes it."""
    for kind, said in ((State, words.state), (Phase, words.phase)):
        texts = [said(each) for each in kind]
        assert len(set(texts)) == len(texts)
        assert not any("_" in text or "unknown" in text for text in texts)
    assert (words.state(State.CONVERGED), words.phase(Phase.INCUMBENT)) == (
        "reached target",
        "best known",
    )


def test_live_settings_in_words() -> None:
    live = {"pin_batch_size": 64, "pause_exploration": True, "eta": 0.8, "job_version": "2"}
    assert words.settings(live) == [
        "batch size pinned to 64",
        "exploration paused",
        "eta set to 0.8",
        "job version set to 2",
    ]
    assert words.settings({"pause_exploration": False}) == []


@pytest.mark.parametrize(
    ("weights", "rule"),
    [
        (Weights(0.5, 300.0), "cost = 0.5 × energy + 0.5 × time × 300 W (eta 0.5)"),
        (Weights(1.0, 300.0), "cost = energy alone (eta 1)"),
        (Weights(0.0, 300.0), "cost = time × 300 W (eta 0)"),
    ],
)
def test_the_cost_rule(weights: Weights, rule: str) -> None:
    assert words.cost_rule(weights) == rule


def test_the_cost_rule_of_time_alone() -> None:
    assert "time alone" in words.cost_rule(Weights(0.0, 1.0, time_alone=True))


ENDS: dict[str, tuple[State, dict[str, object]]] = {
    "an attempt is running": (State.RUNNING, {}),
    "an attempt converged": (State.CONVERGED, {"epochs": 5.0}),
    "an attempt converged, and nothing else is known": (
        State.CONVERGED,
        {"epochs": None, "metric": None},
    ),
    "an attempt reached a target that was set at run time": (
        State.CONVERGED,
        {"target_value": 0.75},
    ),
    "an attempt is exhausted": (
        State.EXHAUSTED,
        {"metric": 0.7, "reason": "10 epochs done, below the target"},
    ),
    "a command reported no metric": (
        State.NO_METRIC,
        {"metric": None, "reason": "the command did not report its acc: print it as JSON"},
    ),
    "an attempt reported no metric": (State.NO_METRIC, {"metric": None, "reason": "no result"}),
    "an attempt was given up": (State.GIVEN_UP, {"reason": "5 kJ spent"}),
    "an attempt failed": (State.FAILED, {"reason": "RuntimeError: x"}),
    "an attempt failed without a reason": (State.FAILED, {}),
    "an attempt was abandoned": (State.ABANDONED, {"reason": "lease expired"}),
    "an attempt had no data": (State.NO_DATA, {}),
}


@pytest.mark.parametrize("situation", ENDS)
def test_why_an_attempt_ended(situation: str) -> None:
    state, changes = ENDS[situation]
    Table("run_page").check(situation, words.ended(trial(1, "a", state=state, **changes)))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (None, ""),
        ("2013-W05", "2013-W05"),
        ("2013-02-04", "2013-02-04"),
        ("2026-11-21T00:00:00+00:00", "2026-11-21"),
        ("2026-11-21T03:29:22.115882+00:00", "2026-11-21 03:29"),
        ("2026-11-21T01:00:00+01:00", "2026-11-21"),
        ("week {5}", "week {5}"),
        ("9999-12-31T23:59:59-05:00", "9999-12-31T23:59:59-05:00"),
        ("0001-01-01T00:00:00+01:00", "0001-01-01T00:00:00+01:00"),
    ],
)
def test_a_data_slice_that_is_a_moment_is_short(name: str | None, text: str) -> None:
    assert words.data_slice(name) == text
