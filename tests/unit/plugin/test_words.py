"""Units, states and settings for people."""

from __future__ import annotations

import pytest

from airflow_provider_zeus.optimizer.cost import Weights
from airflow_provider_zeus.optimizer.trial import Phase, State
from airflow_provider_zeus.plugin import words
from tests.unit.plugin.kit import trial


@pytest.mark.parametrize(
    ("joules", "text"),
    [
        (0.0, "0 J"),
        (12.345, "12.3 J"),
        (999.4, "999 J"),
        (999.6, "1 kJ"),
        (1234.0, "1.23 kJ"),
        (999_499.0, "999 kJ"),
        (999_600.0, "278 Wh"),
        (3_599_000.0, "1 kWh"),
        (5.4321e9, "1,510 kWh"),
        (5.4321e13, "15,100,000 kWh"),
    ],
)
def test_energy_takes_the_unit_that_fits(joules: float, text: str) -> None:
    assert words.energy(joules).text == text


def test_energy_is_exact_on_hover() -> None:
    assert words.energy(7_200_000.5).exact == "7,200,000.500 J = 2 kWh"
    assert words.energy(1.5).value == 1.5


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.1234, "0.123 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (61.0, "1 min 01 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (7325.0, "2 h 02 min"),
        (360_000.0, "100 h 00 min"),
    ],
)
def test_durations_never_show_sixty(seconds: float, text: str) -> None:
    assert words.duration(seconds).text == text


def test_every_state_and_phase_has_words() -> None:
    assert set(words.STATES) == set(State)
    assert set(words.PHASES) == set(Phase)


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
        (Weights(0.5, 300.0), "cost = 0.5 × energy + 0.5 × 300 W × time"),
        (Weights(1.0, 300.0), "cost = energy"),
        (Weights(0.0, 300.0), "cost = 300 W × time"),
        (Weights(0.0, 1.0, time_alone=True), "cost = time alone, since nothing measures energy"),
    ],
)
def test_the_cost_rule(weights: Weights, rule: str) -> None:
    assert words.cost_rule(weights) == rule


@pytest.mark.parametrize(
    ("state", "changes", "sentence"),
    [
        (State.RUNNING, {}, "It is still running."),
        (
            State.CONVERGED,
            {"epochs": 5.0},
            "It reached its target after 5 epochs with accuracy 0.81 (target: at least 0.8).",
        ),
        (State.CONVERGED, {"epochs": None, "metric": None}, "It reached its target."),
        (
            State.EXHAUSTED,
            {"metric": 0.7, "reason": "10 epochs done, below the target"},
            "It ended below its target with accuracy 0.7 (target: at least 0.8): 10 epochs done, below the target.",
        ),
        (State.GIVEN_UP, {"reason": "5 kJ spent"}, "It was given up: 5 kJ spent."),
        (State.FAILED, {"reason": "RuntimeError: x"}, "It failed: RuntimeError: x."),
        (State.ABANDONED, {"reason": "lease expired"}, "Nobody came back for it: lease expired."),
        (State.FAILED, {}, "It failed: no reason was written down."),
    ],
)
def test_why_an_attempt_ended(state: State, changes: dict[str, object], sentence: str) -> None:
    assert words.ended(trial(1, "a", state=state, **changes)) == sentence


def test_a_target_set_at_run_time_counts() -> None:
    assert "(target: at least 0.75)" in words.ended(trial(1, "a", target_value=0.75))


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
    ],
)
def test_a_data_slice_that_is_a_moment_is_short(name: str | None, text: str) -> None:
    assert words.data_slice(name) == text
