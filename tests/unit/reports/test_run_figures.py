"""One run against the default batch size at full power."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import (
    Decision,
    Observation,
    Origin,
    Phase,
    PlannedAttempt,
    ProfileSample,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.optimizer.policy import choose, learn, prior
from airflow_provider_zeus.optimizer.situation import Situation
from airflow_provider_zeus.reports.alerts import look
from airflow_provider_zeus.reports.baseline import FAILED
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.months import saved_between
from airflow_provider_zeus.reports.run_figures import RunFigures, RunSaving, Yardstick, with_log
from airflow_provider_zeus.reports.run_metrics import job_metrics
from airflow_provider_zeus.signals.prices import Prices
from tests.golden import Table

JOB = ZeusJob(
    batch_sizes=[16, 32], default_batch_size=32, target="accuracy >= 0.8", max_epochs=10, eta=0.5
)
WHERE = ("V100", 1, "nvml_counter")
PROFILE = [  # half the energy at 150 W for a tenth more of time
    ProfileSample(batch_size=32, limit_w=300.0, samples=1000, energy_j=100.0, time_s=1.0),
    ProfileSample(batch_size=32, limit_w=150.0, samples=1000, energy_j=50.0, time_s=1.1),
]


def trial(
    number: int, size: int, epochs: float, state: State = State.CONVERGED, **changes: Any
) -> Trial:
    """``epochs`` of 1,000 samples each, at 300 W: 100 J and 1 s an epoch."""
    phase = changes.pop("phase", Phase.SAMPLE)
    attempt = PlannedAttempt(batch_size=size, phase=phase, why="")
    spec = JOB.to_dict() | changes.pop("spec", {})
    values: dict[str, Any] = {
        "epochs": epochs,
        "samples": int(1000 * epochs),
        "samples_per_epoch": 1000.0,
        "energy_j": 100.0 * epochs,
        "time_s": 1.0 * epochs,
        "power_limit_w": 300.0,
        "device_model": "V100",
        "device_count": 1,
        "max_power_w": 300.0,
        "energy_source": "nvml_counter",
    }
    return Trial(
        job_id="j",
        number=number,
        key=TrialKey(f"ti-{number}"),
        origin=Origin(
            dag_id="d", run_id=changes.pop("run", f"run{number}"), task_id="t", run_type="scheduled"
        ),
        spec=spec,
        decision=Decision(attempts=(attempt,), seed=0, policy="zeus"),
        planned=attempt,
        state=state,
        observation=Observation(**{**values, **changes}),
    )


DEFAULTS = [trial(1, 32, 4.0), trial(2, 32, 6.0)]  # 5 epochs on average: 500 J, 5 s


def saving(
    *own: Trial, before: list[Trial] = DEFAULTS, job: ZeusJob = JOB, profiles: Any = PROFILE
) -> RunSaving:
    log = as_dataset([*before, *own], job, WHERE)
    return Yardstick.of(log, WHERE, profiles=profiles).saving(own)


def test_a_cheaper_run_saved_the_difference() -> None:
    usual = [
        trial(n, b, e)
        for n, (b, e) in enumerate([(32, 4.0), (32, 6.0), *[(32, 5.0), (16, 2.0)] * 6], 1)
    ]
    found = saving(trial(19, 16, 2.0), before=usual)
    assert (found.default_batch_size, found.full_power_w, found.kept, found.measured) == (
        32,
        300.0,
        True,
        False,
    )
    low = found.energy.saved.low or 0.0
    value = found.energy.saved.value or 0.0
    high = found.energy.saved.high or 0.0
    assert 0 < low < value < high
    assert value == pytest.approx(500.0 - 200.0, rel=0.15)
    assert (found.time.saved.value or 0.0) + 2.0 == pytest.approx((value + 200.0) / 100.0)
    assert found.cost.saved.value == pytest.approx(
        0.5 * value + 0.5 * 300.0 * (found.time.saved.value or 0.0)
    )
    assert (found.cost.spent, found.cost.unit) == (
        pytest.approx(0.5 * 200.0 + 0.5 * 300.0 * 2.0),
        "J",
    )


def test_where_the_default_itself_ran_its_cost_is_measured() -> None:
    found = saving(trial(9, 32, 7.0))
    assert found.measured
    assert (found.energy.saved.value, found.energy.saved.low, found.energy.saved.high) == (
        0.0,
        0.0,
        0.0,
    )


def test_a_dearer_run_lost_with_all_its_attempts() -> None:
    found = saving(
        trial(7, 16, 4.0, State.GIVEN_UP, run="r"),
        trial(8, 32, 5.0, run="r", excess_j=20.0, excess_s=0.0),
    )
    assert found.energy.saved.value == pytest.approx(480.0 - 400.0 - 500.0), (
        "without what profiling cost"
    )
    assert found.cost.exploration == pytest.approx(0.5 * (400 + 20) + 0.5 * 300 * 4.0)


def test_an_attempt_that_missed_its_target_left_no_model_where_another_followed_it() -> None:
    missed = trial(7, 16, 4.0, State.EXHAUSTED, run="r")
    second = replace(trial(8, 32, 5.0, run="r"), key=replace(missed.key, attempt=2))
    found = saving(missed, second)
    assert (found.kept, found.cost.exploration) == (
        True,
        pytest.approx(0.5 * 400 + 0.5 * 300 * 4.0),
    )
    assert found.energy.saved.value == pytest.approx(500.0 - 400.0 - 500.0)
    assert not saving(missed, replace(second, state=State.FAILED)).kept
    assert saving(missed).kept, "alone it is kept below its target"


def test_the_default_at_a_lower_limit_is_compared_with_itself_at_full_power() -> None:
    low = [replace(t, observation=replace(t.observation, power_limit_w=150.0)) for t in DEFAULTS]
    own = replace(trial(9, 32, 5.0), observation=low[0].observation)
    found = saving(own, before=low)
    assert found.energy.baseline.value == pytest.approx(800.0), (
        "twice the 400 J that it drew at 150 W"
    )
    assert saving(own, before=low, profiles=()).energy.saved.value is None


def test_without_a_model_what_was_tried_is_lost_and_what_failed_is_not() -> None:
    tried = saving(trial(9, 16, 2.0, State.GIVEN_UP))
    assert not tried.kept
    assert tried.energy.saved.value == -200.0
    failed = saving(trial(9, 16, 2.0, State.FAILED))
    assert failed.energy.saved.value is None
    assert failed.energy.saved.reason == FAILED
    assert failed.aside.text == "1 failed attempt took 0.0556 Wh and 2 s: compared with nothing"


def test_what_was_spent_is_missing_where_nothing_compares() -> None:
    """It read 0 J, as if the run had been free."""
    for own in (
        trial(9, 16, 2.0, State.RUNNING),
        trial(9, 16, 2.0, spec={"target": "accuracy >= 0.5"}),
    ):
        found = saving(own)
        for saved in (found.cost, found.energy, found.time):
            assert (saved.spent, saved.exploration, saved.saved.value) == (None, None, None)
            assert saved.saved.reason


def test_without_a_model_and_without_its_energy_the_loss_is_not_known() -> None:
    found = saving(trial(9, 16, 2.0, State.GIVEN_UP, energy_j=None))
    assert (found.energy.spent, found.energy.saved.value) == (None, None)
    assert found.energy.saved.reason
    assert found.time.saved.value == -2.0


REASONS: dict[str, Callable[[], Estimate]] = {
    "the default never reached its target": lambda: saving(trial(9, 16, 2.0), before=[]).cost.saved,
    "the run has not ended": lambda: saving(trial(9, 16, 2.0, State.RUNNING)).cost.saved,
    "the energy of an attempt is not known": lambda: (
        saving(trial(9, 16, 2.0, energy_j=None)).energy.saved
    ),
    "the energy source is another": lambda: (
        saving(trial(9, 16, 2.0, energy_source="rapl")).cost.saved
    ),
    "the target is another": lambda: (
        saving(trial(9, 16, 2.0, spec={"target": "accuracy >= 0.5"})).cost.saved
    ),
}


@pytest.mark.parametrize("situation", REASONS)
def test_why_it_is_not_known(situation: str) -> None:
    Table("unknown_savings").check(situation, str(REASONS[situation]().reason))


def test_time_alone_where_nothing_measures_energy() -> None:
    where = ("CPU", 1, None)
    cpu = {
        "energy_j": None,
        "energy_source": None,
        "device_model": "CPU",
        "power_limit_w": None,
        "max_power_w": None,
    }
    own = trial(9, 16, 2.0, **cpu)
    once = [trial(1, 32, 4.0, **cpu), own]
    told = Yardstick.of(as_dataset(once, JOB, where), where).saving([own])
    assert told.cost.saved.reason == "what 32 takes is known from one run of it"
    again = [*once, trial(10, 32, 4.2, **cpu)]
    found = Yardstick.of(as_dataset(again, JOB, where), where).saving([own])
    assert (found.cost.unit, found.full_power_w) == ("s", None)
    assert (
        (found.cost.saved.low or 0.0)
        < (found.cost.saved.value or 0.0)
        < (found.cost.saved.high or 0.0)
    )
    assert found.energy.saved.value is None


def test_a_run_is_compared_on_its_own_device_though_newer_ones_ran_elsewhere() -> None:
    newer = [trial(n, 32, 5.0, device_model="A40", energy_j=50.0) for n in (20, 21)]
    yard = Yardstick.of(as_dataset([*DEFAULTS, *newer], JOB), WHERE, profiles=PROFILE)
    assert yard.saving(DEFAULTS[1:]).energy.baseline.value == pytest.approx(600.0)


def test_what_exploration_cost_is_not_known_where_the_excess_of_profiling_is_not() -> None:
    found = saving(trial(9, 32, 5.0, excess_s=2.0))
    assert found.cost.saved.value is not None
    assert (found.cost.exploration, found.cost.settled.value) == (None, None)
    assert "exploration" in (found.cost.settled.reason or "")
    assert found.time.exploration == pytest.approx(2.0)


def test_profiling_that_drew_less_than_training_is_no_amount_spent_on_exploration() -> None:
    found = saving(trial(9, 32, 5.0, excess_s=0.0, excess_j=-20.8))
    assert (found.cost.exploration, found.energy.exploration) == (0.0, 0.0)
    assert found.cost.settled == found.cost.saved


def test_a_run_that_the_estimate_does_not_know_is_not_compared() -> None:
    yard = Yardstick.of(as_dataset(DEFAULTS, JOB, WHERE), WHERE, profiles=PROFILE)
    found = yard.saving([trial(9, 16, 2.0)])
    assert (found.cost.saved.value, "older than the runs" in (found.cost.saved.reason or "")) == (
        None,
        True,
    )


# (batch size, epochs, energy [J], time [s]) of runs that differ by so much that something
# underflows
SPREAD = [
    (8, 5.0, 5e3, 5e2),
    (16, 10.0, 1e7, 1e3),
    (256, 1.0, 1.0, 1e2),
    (256, 2.0, 2.0, 2e2),
    (16, 9e3, 9e3, 9e3),
    (256, 50.0, 50.0, 50.0),
    (32, 2.0, 2e3, 2e2),
    (1024, 50.0, 50.0, 5e3),
    (256, 9e3, 9e3, 9e5),
    (8, 500.0, 5e8, 5e4),
]


@pytest.mark.parametrize("ask", ["decision", "figures", "metrics", "events", "month"])
def test_what_a_dag_file_sets_of_numpy_changes_nothing(ask: str) -> None:
    job = replace(JOB, batch_sizes=[8, 16, 32, 64, 128, 256, 512, 1024], max_epochs=10_000)
    spec = job.to_dict()
    log = []
    for n, (size, epochs, energy_j, time_s) in enumerate(SPREAD, 1):
        log.append(trial(n, size, epochs, spec=spec, energy_j=energy_j, time_s=time_s))
    run = RunFigures(cost={}, ended=log[-1:])

    def answer() -> object:
        if ask == "decision":
            belief = reduce(learn, log, prior(job))
            return choose(Situation(job, belief, device=belief.last_device()))
        if ask == "month":
            return str(saved_between(as_dataset(log, job), [], 0.0, 1e12))
        if ask == "events":
            return look({}, log, (), run=log[-1], prices=Prices())
        found = with_log(run, log, lambda *_: [])
        return job_metrics(found) if ask == "metrics" else str(found.saving and found.saving.cost)

    as_usual = answer()
    with np.errstate(all="raise"):  # as np.seterr(all="raise") in a DAG file
        assert answer() == as_usual
