"""From trials to one row per run."""

from __future__ import annotations

import pytest

from airflow_provider_zeus.model.trial import Phase, State
from demo.run_costs import run_costs
from tests.unit.demo.rows import baseline, trial


def test_a_run_is_the_sum_of_its_attempts_and_tries() -> None:
    trials = [
        trial(1, state=State.GIVEN_UP, batch_size=16, energy_j=3000.0, time_s=20.0, epochs=4.5),
        trial(2, batch_size=32),
    ]
    (row,) = run_costs(trials, {"slice of r1": baseline(9.0)})
    assert row.attempts == ((16, State.GIVEN_UP), (32, State.CONVERGED))
    assert (row.epochs, row.energy_j, row.time_s) == (14.5, 4000.0, 28.0)
    assert row.cost_j == pytest.approx(0.5 * 4000 + 0.5 * 250 * 28), (
        "Eq. 2 with eta 0.5 and MAXPOWER 250 W"
    )
    assert (row.kept, row.limit_w, row.source) == (True, 125.0, "simulated")
    assert (row.phase, row.why) == (Phase.EXPLORE, "Why 1.")
    assert row.baseline == baseline(9.0)


def test_runs_stay_in_the_order_in_which_they_began() -> None:
    trials = [
        trial(3, "r2"),
        trial(1, "r1"),
        trial(2, "r2", State.GIVEN_UP),
        trial(4, "r1"),
        trial(5, "r0"),
    ]
    rows = run_costs(trials, {})
    assert [row.slice_key for row in rows] == ["slice of r1", "slice of r2", "slice of r0"]
    assert [len(row.attempts) for row in rows] == [2, 2, 1]
    assert all(row.baseline is None for row in rows)


@pytest.mark.parametrize("state", list(State))
def test_a_model_is_kept_when_converged_or_exhausted(state: State) -> None:
    kept = (State.CONVERGED, State.EXHAUSTED, State.NO_METRIC)
    assert run_costs([trial(1, state=state)], {})[0].kept is (state in kept)


def test_a_figure_that_one_attempt_lacks_is_not_known_of_the_run() -> None:
    (row,) = run_costs([trial(1, state=State.ABANDONED, energy_j=None, time_s=None), trial(2)], {})
    assert (row.energy_j, row.time_s, row.cost_j) == (None, None, None), (
        "a partial sum would look like a saving"
    )
    assert row.epochs == 20.0


def test_without_an_energy_source_the_cost_is_time() -> None:
    (row,) = run_costs([trial(1, energy_j=None, energy_source=None, max_power_w=None)], {})
    assert (row.cost_j, row.energy_j, row.source) == (8.0, None, None)
