"""The line that ends a task's log: known figures alone, and a saving with its interval."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import (
    DATA_WAIT,
    TO_TRY,
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
from tests.golden import Table

JOB = ZeusJob(
    batch_sizes=[32, 64], default_batch_size=32, target="accuracy >= 0.85", max_epochs=30, eta=0.5
)
MEASURED = Observation(
    epochs=6,
    energy_j=13_600.0,
    time_s=245.0,
    metric=0.8604,
    device_model="V100",
    max_power_w=250.0,
    energy_source="nvml energy counter",
)


def trial(
    state: State = State.CONVERGED, batch_size: int = 64, attempt: int = 1, **seen: Any
) -> Trial:
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
        unit="J",
        spent=spent,
        baseline=estimate(spent),
        saved=estimate(0),
        exploration=0.0,
        settled=estimate(0),
    )


WAITED = "20 % of its time, 49 s and at most 0.756 Wh, was spent waiting for batches"
WAITS = trial(
    data_wait_s=49.0, reasons={DATA_WAIT: WAITED, TO_TRY: "num_workers=4 in the DataLoader"}
)
WAITS_LONG = trial(
    time_s=3600.0, data_wait_s=7200.0, device_count=2, reasons={DATA_WAIT: "waited for batches"}
)
SAVED = saved(12.0, 2.0, 22.0)
LIMIT_SAVED = LimitSaving(
    1, 250.0, 18_000.0, 240.0, Estimate(4_140.0, 3_600.0, 4_680.0), Estimate(-5.0, -9.0, -1.0)
)
DIED = trial(State.FAILED, 32, 1, energy_j=360.0, time_s=10.0)
SECOND = trial(batch_size=32, attempt=2)
UNMEASURED = {"epochs": None, "energy_j": None, "time_s": None, "metric": None}
# situation: the run's attempts, what it saved, and what else is known
LINES: dict[str, tuple[list[Trial], Saved | None, dict[str, Any]]] = {
    "all is known": ([trial()], SAVED, {}),
    "nothing is said of savings": ([trial()], None, {}),
    "its energy is an estimate": ([trial(energy_source="estimate")], None, {}),
    "its energy is simulated": ([trial(energy_source="simulated")], None, {}),
    "its energy is not known": ([trial(energy_j=None, energy_source=None)], None, {}),
    "nothing was measured": ([trial(State.FAILED, energy_source=None, **UNMEASURED)], None, {}),
    "it waited, and a price has no currency": (
        [WAITS],
        None,
        {"prices": Prices(price_per_kwh=100.0)},
    ),
    "it waited, and a price has a currency": (
        [WAITS],
        None,
        {"prices": Prices(price_per_kwh=100.0, currency="EUR")},
    ),
    "why it waited has a control character": (
        [trial(data_wait_s=49.0, reasons={DATA_WAIT: "waited\x1b[2J for batches"})],
        None,
        {},
    ),
    "it waited for longer than it took": (
        [WAITS_LONG],
        None,
        {"prices": Prices(price_per_gpu_hour=50.0, currency="EUR")},
    ),
    "its limit was tuned": (
        [trial(State.DONE, epochs=None, metric=None)],
        None,
        {"limit": LIMIT_SAVED},
    ),
    "an attempt was given up": ([trial(State.GIVEN_UP, 32, 1), trial(attempt=2)], None, {}),
    "the energy of one attempt is not known": (
        [trial(State.FAILED, 32, energy_j=None), trial(attempt=2)],
        None,
        {},
    ),
    "the attempts have two energy sources": (
        [trial(State.GIVEN_UP, 32, energy_source="simulated"), trial(attempt=2)],
        None,
        {},
    ),
    "an attempt failed": ([DIED, SECOND], None, {}),
    "an attempt failed before it trained": (
        [replace(DIED, observation=Observation()), SECOND],
        None,
        {},
    ),
    "it ended below its target": ([trial(State.EXHAUSTED)], None, {}),
    "it was not needed": ([trial(State.NOT_NEEDED)], None, {}),
    "a saving was measured": ([trial()], saved(12.0, 12.0, 12.0), {}),
    "it lost": ([trial()], saved(-12.0, -22.0, -2.0), {}),
    "it may have saved": ([trial()], saved(12.0, -8.0, 32.0), {}),
    "it may have lost a little": ([trial()], saved(12.0, -0.1, 32.0), {}),
    "it saved nearly all": ([trial()], saved(99.6, 99.3, 99.8, spent=0.4), {}),
    "it may have saved next to nothing": ([trial()], saved(0.4, -0.2, 0.9, spent=99.6), {}),
    "it saved, and its job cannot be read": ([replace(trial(), spec={"eta": 7})], SAVED, {}),
    "why a saving is not known": (
        [trial()],
        replace(SAVED, saved=Estimate.missing("too few runs")),
        {},
    ),
}


@pytest.mark.parametrize("situation", LINES)
def test_the_line_that_ends_a_log(situation: str) -> None:
    attempts, saving, more = LINES[situation]
    Table("last_log_line").check(situation, closing(attempts, saving, **more))


@pytest.mark.parametrize(
    "found",
    [
        saved(0.0, 0.0, 0.0),
        saved(-1e-3, -1e-3, -1e-3),
        replace(SAVED, baseline=Estimate(100.0)),  # as of a power limit: how sure is not known
    ],
)
def test_no_saving_where_nothing_compares(found: Saved) -> None:
    assert closing([trial()], found) == closing([trial()])
