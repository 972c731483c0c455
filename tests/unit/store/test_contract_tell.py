"""What every store does (docs/architecture.md), on each store there is: results."""

from __future__ import annotations

import math
import sys
from dataclasses import fields, replace
from functools import reduce

import pytest

from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import Observation, State, TrialKey
from airflow_provider_zeus.optimizer import policy
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.store.conftest import Opens
from tests.unit.store.store_kit import JOB, Clock, only, report, request, seen


def test_tell_writes_every_figure(opens: Opens, clock: Clock) -> None:
    key = opens().ask(request(1)).trial.key
    clock.t += 12
    extra = {
        "target_value": 0.8,
        "excess_j": 1.0,
        "excess_s": 0.1,
        "start_id": "a",
        "gpu_energy_j": (700.0, 420.0),
    }
    extra |= {"paused_j": 40.0, "paused_s": 1.5}
    extra |= {
        "price_per_kwh": -0.01,
        "price_currency": "EUR",
        "price_source": "api",
        "price_at_once": 0.3,
    }
    extra |= {"g_co2e_per_kwh": 210.5, "g_co2e_source": "grid", "g_co2e_at_once": 300.0}
    extra |= {"step_kind": 7, "gpu_busy": 0.75, "epoch_metrics": (0.25, -0.5, 1e300)}
    extra |= {
        "data_wait_s": 2.5,
        "host_j": 55.0,
        "host_source": "rapl",
        "start": Start.WARM,
        "served": 0.7,
    }
    told = opens().tell(key, State.EXHAUSTED, report(**extra), reason="below")
    assert (told.state, told.reason, told.told_seq, told.closed_at) == (
        State.EXHAUSTED,
        "below",
        1,
        1012.0,
    )
    assert told.observation == seen(**extra)
    names = {f.name for f in fields(told.observation)} - {"reasons", "returned"}
    assert all(getattr(told.observation, name) is not None for name in names)
    assert only(opens()) == told


def test_a_missing_figure_is_none_with_its_reason(store: Store) -> None:
    key = store.ask(request(1)).trial.key
    store.heartbeat(key, report(energy_j=7.0))
    store.tell(
        key, State.CONVERGED, report(energy_j=None, reasons={"energy_j": "counter went backwards"})
    )
    seen_ = only(store).observation
    assert seen_.energy_j is None
    assert seen_.reasons == {"energy_j": "counter went backwards"}


def test_a_heartbeat_tells_the_energy_of_each_gpu(store: Store) -> None:
    key = store.ask(request(1)).trial.key
    store.heartbeat(key, report(gpu_energy_j=(7.0, 5.0), device_count=2))
    assert only(store).observation.gpu_energy_j == (7.0, 5.0)
    store.heartbeat(key, report(gpu_energy_j=(9.0, 8.0), device_count=2))
    assert only(store).observation.gpu_energy_j == (9.0, 8.0)
    store.tell(key, State.CONVERGED, report(gpu_energy_j=(10.0, math.nan), device_count=2))
    seen_ = only(store).observation
    assert (seen_.gpu_energy_j, seen_.reasons) == (
        None,
        {"gpu_energy_j": "not a list of finite numbers"},
    )


def test_a_metric_by_epoch_that_cannot_be_stored_is_missing(store: Store) -> None:
    key = store.ask(request(1)).trial.key
    store.tell(key, State.CONVERGED, report(epoch_metrics=(0.5, math.inf), gpu_busy=1.5))
    seen_ = only(store).observation
    assert (seen_.epoch_metrics, seen_.gpu_busy) == (None, None)
    assert seen_.reasons == {
        "epoch_metrics": "not a list of finite numbers",
        "gpu_busy": "1.5 was reported, which is no share",
    }


def test_the_metric_of_the_first_thousand_epochs_is_kept(store: Store) -> None:
    key = store.ask(request(1)).trial.key
    store.tell(key, State.CONVERGED, report(epoch_metrics=tuple(float(n) for n in range(1001))))
    assert only(store).observation.epoch_metrics == tuple(float(n) for n in range(1000))


def test_energy_outside_training_is_not_below_0_but_for_rounding(store: Store) -> None:
    """A smaller slice would cost nothing, or less: no decision could be computed with it."""
    key = store.ask(request(1)).trial.key
    store.tell(
        key,
        State.CONVERGED,
        report(energy_j=1e4, time_s=50.0, rest_j=-500.0, rest_s=-1e-6, excess_j=-9.0),
    )
    seen = only(store).observation
    assert (seen.rest_j, seen.rest_s, seen.excess_j) == (None, -1e-6, -9.0)
    assert seen.reasons["rest_j"] == "-500 was reported, which is below 0"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_is_missing(store: Store, value: float) -> None:
    key = store.ask(request(1)).trial.key
    store.tell(key, State.CONVERGED, report(metric=value))
    assert only(store).observation.metric is None
    assert only(store).observation.reasons == {"metric": "not a finite number"}


@pytest.mark.parametrize("value", [1e20, -1e300, sys.float_info.max])
def test_a_metric_of_any_size_is_stored(store: Store, value: float) -> None:
    """A perplexity of a first epoch, or a loss that diverges, is a finite number:
    the run's cost must not get lost.
    """
    key = store.ask(request(1)).trial.key
    store.heartbeat(key, report(metric=value))
    store.heartbeat(key, report(metric=value, learning_rate=value))
    store.tell(key, State.EXHAUSTED, report(metric=value, target_value=value))
    trial = only(store)
    assert (trial.state, trial.observation.metric, trial.observation.target_value) == (
        State.EXHAUSTED,
        value,
        value,
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_no_sample_and_no_power(store: Store, value: float) -> None:
    """It may come from outside, as a line of a result file."""
    key = store.ask(request(1)).trial.key
    news = report(profile=2, points=3)
    (one, two), points = news.profile, list(news.points)
    odd = Report(
        observation=news.observation,
        profile=[replace(one, energy_j=value), two],
        points=[
            replace(points[0], power_w=value),
            replace(points[1], limit_w=value),
            replace(points[2], t_s=value),
        ],
    )
    store.heartbeat(key, odd)
    store.tell(key, State.CONVERGED, odd)
    assert [s.energy_j for s in store.ask(request(2)).profile] == [2 * two.energy_j]
    assert [(p.power_w, p.limit_w) for p in store.points(key)] == [(None, 200.0), (101.0, None)] * 2


@pytest.mark.parametrize("reason", ["killed\0by signal", "no such file: \udce4.py"])
def test_a_reason_that_no_database_takes_loses_no_result(store: Store, reason: str) -> None:
    key = store.ask(request(1)).trial.key
    told = store.tell(
        key, State.FAILED, report(reasons={"metric": reason}, metric=None), reason=reason
    )
    assert told.reason
    assert told.reason[:6] == reason[:6]
    assert only(store) == told


def test_telling_twice_changes_nothing(store: Store, clock: Clock) -> None:
    key = store.ask(request(1)).trial.key
    first = store.tell(key, State.CONVERGED, report(profile=2, points=5))
    clock.t += 5
    assert store.tell(key, State.CONVERGED, report(profile=2, points=5)) == first
    assert only(store) == first
    assert len(store.points(key)) == 5
    asked = store.ask(request(2))
    assert [s.samples for s in asked.profile] == [20]
    assert asked.trial.asked_after_seq == 1


def test_another_result_for_a_closed_trial_changes_nothing(store: Store) -> None:
    key = store.ask(request(1)).trial.key
    first = store.tell(key, State.CONVERGED, report())
    assert store.tell(key, State.FAILED, report(epochs=1.0), reason="late failure") == first
    assert store.tell(key, State.ABANDONED, report(epochs=1.0)) == first
    assert only(store) == first


def test_two_starts_of_one_plan_are_two_observations(store: Store) -> None:
    """A message delivered twice: both processes train, and each one's cost is a line of its own."""
    key = store.ask(request()).trial.key
    first = seen(start_id="a", energy_j=100.0)
    second = seen(start_id="b", energy_j=70.0)
    store.heartbeat(key, Report(observation=first))
    store.heartbeat(key, Report(observation=second))
    told = store.tell(key, State.CONVERGED, Report(observation=first))
    other = store.tell(key, State.CONVERGED, Report(observation=second))
    assert (told.key, other.key) == (key, TrialKey(key.ti_id, 2))
    assert told.planned == other.planned
    assert store.tell(key, State.CONVERGED, Report(observation=second)) == other, (
        "told twice, written once"
    )
    assert [(t.number, t.state, t.observation.energy_j) for t in store.trials("d.train")] == [
        (1, State.CONVERGED, 100.0),
        (2, State.CONVERGED, 70.0),
    ]


def test_a_result_of_another_start_for_a_closed_trial_is_an_observation_of_its_own(
    store: Store,
) -> None:
    key = store.ask(request()).trial.key
    store.tell(key, State.CONVERGED, Report(observation=seen(start_id="a")))
    store.tell(key, State.FAILED, Report(observation=seen(start_id="b")), reason="killed")
    assert [(t.state, t.reason) for t in store.trials("d.train")] == [
        (State.CONVERGED, None),
        (State.FAILED, "killed"),
    ]


def test_a_late_result_moves_abandoned_to_its_true_state_and_is_used_in_full(
    store: Store, clock: Clock
) -> None:
    key = store.ask(request(1)).trial.key
    store.ask(request(1, ti_id="ti-1b", try_number=2))
    clock.t += 50
    told = store.tell(key, State.CONVERGED, report(profile=1))
    assert (told.state, told.told_seq, told.closed_at) == (State.CONVERGED, 2, 1050.0)
    assert told.reason == "superseded by try 2", "its run is told so"
    assert told.observation == seen()
    assert store.trials("d.train")[0] == told
    store.tell(TrialKey("ti-1b"), State.FAILED, Report(observation=Observation()))
    belief = reduce(policy.learn, store.trials("d.train"), policy.prior(JOB))
    assert [n for n, _, _ in belief.converged] == [1]


def test_an_expired_trial_that_comes_back_is_told_as_usual(store: Store, clock: Clock) -> None:
    key = store.ask(request(1)).trial.key
    clock.t += 500
    assert store.tell(key, State.CONVERGED, report()).state is State.CONVERGED


def test_running_is_no_end(store: Store) -> None:
    key = store.ask(request(1)).trial.key
    with pytest.raises(ValueError, match="RUNNING"):
        store.tell(key, State.RUNNING, report())
    assert only(store).state is State.RUNNING
