"""From trials to rows: what is added, what is not, and what is said of the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_zeus.model.run_numbers import RunNumbers
from airflow_provider_zeus.model.trial import Phase, State, TrialKey
from airflow_provider_zeus.model.trial_fields import flat
from airflow_provider_zeus.plugin.answer_parts import RunRow
from airflow_provider_zeus.plugin.views import costs
from airflow_provider_zeus.store.rows import from_row
from tests.unit.plugin.kit import JOB, trial


def one(*trials: object) -> RunRow:
    (row,) = costs.rows_of(trials, JOB)  # type: ignore[arg-type]
    return row


def test_a_runs_cost_is_the_sum_of_its_attempts_and_tries() -> None:
    row = one(
        trial(1, "a", 64, State.FAILED, energy_j=100.0, time_s=1.0, epochs=1.0, reason="disk full"),
        trial(
            2,
            "a",
            64,
            State.GIVEN_UP,
            energy_j=200.0,
            time_s=2.0,
            epochs=2.0,
            try_number=2,
            phase=Phase.EXPLORE,
        ),
        trial(
            3, "a", 32, energy_j=400.0, time_s=4.0, epochs=4.0, try_number=2, power_limit_w=175.0
        ),
    )
    assert (row.energy.value, row.time.value, row.epochs.value) == (700.0, 7.0, 7.0)
    assert row.cost.value == pytest.approx(0.5 * 700 + 0.5 * 300 * 7)
    assert [(t.batch_size, t.state) for t in row.attempts] == [
        (64, "failed"),
        (64, "given_up"),
        (32, "converged"),
    ]
    assert (row.state_text, row.limit.text, row.source.text, row.source.kind) == (
        "reached target",
        "175 W",
        "simulated",
        "simulated",
    )
    assert row.phase == "sampling"
    assert row.began_at == 1000.0


def test_profiling_that_cost_less_than_training_is_no_part_of_the_cost() -> None:
    cheap = trial(1, "a", energy_j=400.0, time_s=4.0, excess_j=-20.8, excess_s=0.0)
    detail = costs.detail_of(cheap, JOB, RunNumbers([cheap]))
    assert detail.excess is not None
    assert (detail.excess.value, detail.excess.text) == (-10.4, "−1 %"), (
        "of the cost: its joules would be read as energy"
    )


def test_profiling_is_no_energy_if_its_share_is_not_known() -> None:
    unknown = trial(1, "a", energy_j=None, excess_j=20.0, excess_s=1.0)
    assert costs.detail_of(unknown, JOB, RunNumbers([unknown])).excess is None


def test_newest_run_first_and_mapped_instances_apart() -> None:
    log = [trial(1, "a"), trial(2, "b", map_index=0), trial(3, "b", map_index=1), trial(4, "a")]
    rows = costs.rows_of(reversed(log), JOB)
    assert [(r.run_id, r.map_index, len(r.attempts)) for r in rows] == [
        ("b", 1, 1),
        ("b", 0, 1),
        ("a", None, 2),
    ]


def test_what_a_newer_version_wrote_is_shown_by_its_name_and_counted() -> None:
    written = {**flat(trial(2, "a", 64, energy_j=50.0, time_s=1.0)), "state": "archived"}
    written["planned"] = {**written["planned"], "phase": "double", "doublings": 3}
    newer = from_row(written)
    row = one(trial(1, "a", 32, energy_j=400.0, time_s=4.0), newer)
    assert row.energy.value == 450.0
    assert (row.state, row.state_text) == ("archived", "archived (unknown here)")
    assert "upgrade airflow-provider-zeus" in row.state_why
    assert [t.state_text for t in row.attempts] == ["reached target", "archived (unknown here)"]
    assert costs.detail_of(newer, JOB, RunNumbers([newer])).phase == "double (unknown here)"


def test_a_missing_figure_makes_the_sum_a_lower_bound_that_nothing_adds() -> None:
    died = trial(
        1, "a", 64, State.ABANDONED, energy_j=None, time_s=None, epochs=None, reason="lease expired"
    )
    row = one(died, trial(2, "a", energy_j=400.0, time_s=4.0))
    assert (row.energy.value, row.energy.text) == (None, "≥ 0.111 Wh")
    assert "batch size 64: lease expired" in row.energy.exact
    assert row.cost.value is None
    assert row.cost.text.startswith("≥ ")
    assert costs.totals_of([row]) == []


def test_a_missing_figure_says_why() -> None:
    row = one(
        trial(1, "a", energy_j=None, energy_source=None, reasons={"energy_j": "set cpu_watts"})
    )
    assert (row.energy.value, row.energy.text, row.energy.exact) == (None, "–", "set cpu_watts")
    assert (row.source.name, row.source.text, row.source.kind) == (
        None,
        "energy not measured",
        "no-source",
    )
    assert (row.unit, row.cost.text) == ("s", "9 s"), "time alone"


def test_attempts_of_different_sources_are_not_added() -> None:
    row = one(trial(1, "a", 64, State.GIVEN_UP), trial(2, "a", energy_source="nvml_counter"))
    assert (row.energy.value, row.time.value, row.cost.value) == (None, None, None)
    assert "(GPU counter and simulated)" in row.cost.exact
    assert row.source.kind == "simulated", "a part of it is"


def test_totals_keep_sources_apart() -> None:
    rows = costs.rows_of(
        [
            trial(1, "a", energy_j=100.0),
            trial(2, "b", energy_j=200.0),
            trial(3, "c", energy_j=5000.0, energy_source="rapl"),
            trial(4, "d", energy_j=None, energy_source=None),
        ],
        JOB,
    )
    sums = {t.source.text: (t.runs, t.energy.value, t.time.value) for t in costs.totals_of(rows)}
    assert sums == {
        "simulated": (2, 300.0, 18.0),
        "CPU counter": (1, 5000.0, 9.0),
        "energy not measured": (1, None, 9.0),
    }
    assert {t.source.text: t.time.text for t in costs.totals_of(rows)}[
        "energy not measured"
    ] == "9 s"


def test_a_running_attempt_shows_what_it_drew_so_far_and_is_added_nowhere() -> None:
    row = one(trial(1, "a", state=State.RUNNING, energy_j=100.0))
    assert (row.energy.text, row.energy.value, row.cost.value) == ("0.0278 Wh so far", None, None)
    assert row.state == "running"
    begun = one(trial(1, "a", state=State.RUNNING, energy_j=None, time_s=None, energy_source=None))
    assert (begun.energy.text, begun.energy.exact, begun.source.text) == (
        "–",
        "not measured yet",
        "",
    )


def test_every_run_is_costed_with_the_jobs_present_eta() -> None:
    (row,) = costs.rows_of([trial(1, "a", energy_j=100.0)], replace(JOB, eta=1.0))
    assert row.cost.value == 100.0


def test_a_cost_that_is_not_yet_stored_is_named() -> None:
    lost = trial(1, "a", state=State.ABANDONED)
    (row,) = costs.rows_of([lost], JOB, pending={TrialKey("ti-1")})
    assert row.state_text == costs.NOT_STORED
    detail = costs.detail_of(lost, JOB, RunNumbers([lost]), {TrialKey("ti-1")})
    assert detail.state_text == costs.NOT_STORED
    (row,) = costs.rows_of([trial(1, "a")], JOB, pending={TrialKey("ti-1")})
    assert row.state_text == "reached target"


def test_details_of_a_run_in_words() -> None:
    given_up = trial(
        1,
        "a",
        64,
        State.GIVEN_UP,
        reason="5 kJ spent",
        excess_j=20.0,
        excess_s=1.0,
        phase=Phase.EXPLORE,
    )
    kept = trial(2, "a", excess_j=None, excess_s=None, device_count=2, map_index=3)
    numbers = RunNumbers([given_up, kept])
    first, second = (costs.detail_of(each, JOB, numbers) for each in (given_up, kept))
    assert (first.batch_size, first.phase, first.why) == (64, "exploring", "64 drew lowest.")
    assert first.ended.endswith(": 5 kJ spent.")
    assert first.excess is not None
    assert first.excess.value == pytest.approx(0.5 * 20 + 0.5 * 300)
    assert (first.number, first.where, first.device) == ("1.1", "train", "V100")
    assert (second.number, second.where, second.device) == ("2.1", "train [3]", "2 × V100")
    assert second.excess is None, "nothing was profiled"
