"""The line that ends a task's log: known figures alone, and a saving with its interval."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import (
    DATA_WAIT,
    Decision,
    Observation,
    Origin,
    Phase,
    PlannedAttempt,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.reports.baseline import Saved
from airflow_provider_zeus.reports.closing import closing
from airflow_provider_zeus.reports.limit_profiles import LimitSaving
from airflow_provider_zeus.signals.prices import Prices

JOB = ZeusJob(batch_sizes=[32, 64], default_batch_size=32, target="accuracy >= 0.85", max_epochs=30, eta=0.5)
MEASURED = Observation(
    epochs=6,
    energy_j=13_600.0,
    time_s=245.0,
    metric=0.8604,
    device_model="V100",
    max_power_w=250.0,
    energy_source="nvml energy counter",
)


def trial(state: State = State.CONVERGED, batch_size: int = 64, attempt: int = 1, **seen: Any) -> Trial:
    planned = PlannedAttempt(batch_size=batch_size, phase=Phase.EXPLORE, why="a test")
    return Trial(
        job_id="d.train",
        number=attempt,
        key=TrialKey("ti", attempt),
        origin=Origin(dag_id="d"),
        spec=JOB.to_dict(),
        decision=Decision(attempts=(planned,), seed=0, policy=JOB.policy),
        planned=planned,
        state=state,
        observation=replace(MEASURED, **seen),
    )


def saved(value: float, low: float, high: float, spent: float = 88.0) -> Saved:
    def estimate(more: float) -> Estimate:
        return Estimate(value + more, low + more, high + more)

    return Saved(
        unit="J", spent=spent, baseline=estimate(spent), saved=estimate(0), exploration=0.0, settled=estimate(0)
    )


def test_all_that_is_known() -> None:
    assert closing([trial()], saved(12.0, 2.0, 22.0)) == (
        "reached its target after 6 epochs at batch size 64, accuracy 0.86, 3.78 Wh, 4 min 05 s, "
        "saved about 12 % of energy and time together (90 % sure: 2 to 20 %)"
    )


def test_waits_for_batches_are_told_in_money_where_it_has_a_currency() -> None:
    said = "20 % of the training time, 49 s and at most 0.756 Wh, is spent waiting for batches"
    waited = trial(data_wait_s=49.0, reasons={DATA_WAIT: f"{said}. Try num_workers=4 in the DataLoader"})
    assert closing([waited], prices=Prices(price_per_kwh=100.0)).endswith(f", {said}")
    euros = Prices(price_per_kwh=100.0, currency="EUR")
    assert closing([waited], prices=euros).endswith(f", {said} (at most 0.08 EUR)")


def test_waiting_is_priced_as_at_most_the_time_of_the_attempt() -> None:
    waited = trial(time_s=3600.0, data_wait_s=7200.0, device_count=2, reasons={DATA_WAIT: "waited for batches"})
    hourly = Prices(price_per_gpu_hour=50.0, currency="EUR")
    assert closing([waited], prices=hourly).endswith("(at most 100.00 EUR)")


def test_a_tuned_run_is_not_said_to_be_as_it_is() -> None:
    done = trial(State.DONE, epochs=None, metric=None)
    limit = LimitSaving(1, 250.0, 18_000.0, 240.0, Estimate(4_140.0, 3_600.0, 4_680.0), Estimate(-5.0, -9.0, -1.0))
    assert closing([done], limit=limit) == (
        "trained at a chosen power limit, 3.78 Wh, 4 min 05 s, "
        "energy saved by the power limit 1.15 Wh (90 % sure: 1 Wh to 1.3 Wh)"
    )


def test_what_is_not_known_is_left_out() -> None:
    no_energy = trial(energy_j=None, energy_source=None)
    assert closing([no_energy]) == "reached its target after 6 epochs at batch size 64, accuracy 0.86, 4 min 05 s"
    died = trial(State.FAILED, epochs=None, energy_j=None, time_s=None, metric=None, energy_source=None)
    assert closing([died]) == "failed at batch size 64"


def test_attempts_are_added_and_a_part_is_no_sum() -> None:
    given_up = trial(State.GIVEN_UP, 32, 1)
    both = closing([given_up, trial(attempt=2)])
    assert "reached its target after 6 epochs at batch size 64, batch size 32 before it" in both
    assert both.endswith("7.56 Wh, 8 min 10 s")
    part = closing([trial(State.FAILED, 32, energy_j=None), trial(attempt=2)])
    assert "Wh" not in part, "the energy and the cost of one attempt are not those of the run"
    assert "8 min 10 s" in part
    mixed = closing([trial(State.GIVEN_UP, 32, energy_source="simulated"), trial(attempt=2)])
    assert "13.6" not in mixed
    assert "7.56 Wh" not in mixed, "figures of two sources are not added"
    assert "cost" not in mixed


def test_simulated_figures_say_so() -> None:
    assert "figures are simulated" in closing([trial(energy_source="simulated")])


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (saved(12.0, 12.0, 12.0), ", saved 12 % of energy and time together (measured)"),
        (saved(-12.0, -22.0, -2.0), ", lost about 16 % of energy and time together (90 % sure: 2 to 33 %)"),
        (
            saved(12.0, -8.0, 32.0),
            ", not clear yet what it saved: about 12 % of energy and time together (90 % sure: -10 to 27 %)",
        ),
        (
            saved(12.0, -0.1, 32.0),
            ", not clear yet what it saved: about 12 % of energy and time together (90 % sure: -0.1 to 27 %)",
        ),
    ],
)
def test_a_saving_comes_with_its_interval(found: Saved, text: str) -> None:
    assert closing([trial()], found).endswith(text)


@pytest.mark.parametrize(
    "found",
    [
        saved(0.0, 0.0, 0.0),
        saved(-1e-3, -1e-3, -1e-3),
        replace(saved(1.0, 1.0, 1.0), saved=Estimate.missing("too few runs")),
    ],
)
def test_no_saving_where_nothing_compares_or_none_is_known(found: Saved) -> None:
    assert closing([trial()], found) == closing([trial()])


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (State.EXHAUSTED, "ended below its target after 6 epochs at batch size 64"),
        (State.NOT_NEEDED, "trained nothing: the earlier model is still good"),
    ],
)
def test_other_ends(state: State, text: str) -> None:
    assert closing([trial(state)]).startswith(f"{text}, ")


def test_a_share_near_an_end_is_not_told_as_all_or_nothing() -> None:
    assert "saved about 99.6 % of" in closing([trial()], saved(99.6, 99.3, 99.8, spent=0.4))
    assert "about 0.4 % of energy and time together (90 % sure: -0.2 to 1 %)" in closing(
        [trial()], saved(0.4, -0.2, 0.9, spent=99.6)
    )
