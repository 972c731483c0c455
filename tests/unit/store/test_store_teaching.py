"""What the log of each store there is teaches, and what it only counts."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import pytest

from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import DeviceInfo, Observation, Phase, State, Trial, TrialKey
from airflow_provider_zeus.optimizer import policy
from airflow_provider_zeus.optimizer.policy import Belief
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.store.conftest import Opens
from tests.unit.store.store_kit import JOB, Clock, report, request

HERE = ("V100", 1, "simulated")


def believed(store: Store) -> Belief:
    return reduce(policy.learn, store.trials("d.train"), policy.prior(JOB))


def converged(store: Store) -> list[int]:
    return [n for n, _, _ in believed(store).converged]


def taught_rates(store: Store) -> set[int]:
    """Batch sizes whose EpochCost is known on the device of these tests."""
    return {size for (size, where) in believed(store).rates if where == HERE}


def ended(store: Store, n: int, state: State, **changes: object) -> Trial:
    trial = store.ask(request(n)).trial
    return store.tell(trial.key, state, report(trial.batch_size, **changes))  # type: ignore[arg-type]


def typed(n: int, run_type: str) -> object:
    return replace(request(n).origin, run_type=run_type)


# --- the ledger


def test_a_runs_cost_is_the_sum_of_its_tries_each_one_line(opens: Opens) -> None:
    first = opens().ask(request(1)).trial
    opens().heartbeat(first.key, report(epochs=1.5, energy_j=120.0, time_s=4.0))
    second = opens().ask(request(1, ti_id="ti-1b", try_number=2)).trial
    for _ in range(2):  # told twice, counted once
        opens().tell(second.key, State.CONVERGED, report(energy_j=300.0, time_s=9.0))
    run = opens().recurrence("d", "run1")
    assert [(t.key, t.origin.try_number, t.state) for t in run] == [
        (first.key, 1, State.ABANDONED),
        (second.key, 2, State.CONVERGED),
    ]
    assert sum(t.observation.energy_j or 0 for t in run) == 420.0
    assert sum(t.observation.time_s or 0 for t in run) == 13.0


def test_an_earlier_start_without_a_result_is_a_line_without_a_cost_and_with_a_reason(
    store: Store,
) -> None:
    key = store.ask(request(1)).trial.key
    why = "retried, result lost"
    told = store.tell(
        key, State.FAILED, Report(observation=Observation(reasons={"energy_j": why})), reason=why
    )
    assert store.trials("d.train") == [told]
    assert (told.observation.energy_j, told.observation.reasons) == (None, {"energy_j": why})


@pytest.mark.parametrize("state", [State.FAILED, State.ABANDONED])
def test_a_death_counts_in_the_ledger_and_teaches_epoch_cost_never_epochs(
    store: Store, clock: Clock, state: State
) -> None:
    trial = store.ask(request(1)).trial
    store.heartbeat(trial.key, report(trial.batch_size, epochs=2.0, energy_j=640.0))
    if state is State.FAILED:
        store.tell(trial.key, state, Report(observation=Observation()), reason="killed")
    else:
        clock.t += 1000
        store.ask(request(2))
    dead = store.trials("d.train")[0]
    assert (dead.state, dead.observation.energy_j) == (state, 640.0)
    assert taught_rates(store) == {trial.batch_size}
    assert converged(store) == []


# --- what does not fit


def test_out_of_memory_rules_a_batch_size_out_on_that_device_alone(store: Store) -> None:
    first = ended(store, 1, State.FAILED, out_of_memory=True)
    assert first.observation.out_of_memory
    assert store.trials("d.train") == [first]
    assert believed(store).infeasible("V100") == {first.batch_size}
    assert store.ask(request(2)).trial.batch_size != first.batch_size
    store.tell(TrialKey("ti-2"), State.CONVERGED, report(16))
    larger = DeviceInfo(model="A100", count=1, energy_source="simulated")
    assert believed(store).infeasible("A100") == frozenset()
    assert store.ask(request(3, device=larger)).trial.planned.phase is not Phase.FALLBACK


def killed(store: Store, n: int, clock: Clock) -> Trial:
    """A recurrence that nobody comes back from after its first heartbeat."""
    trial = store.ask(request(n)).trial
    store.heartbeat(trial.key, report(trial.batch_size, epochs=0.5))
    clock.t += 1000
    return trial


# --- which runs teach


@pytest.mark.parametrize("run_type", ["scheduled", "asset_triggered", "manual"])
def test_scheduled_asset_and_manual_runs_teach_both(store: Store, run_type: str) -> None:
    key = store.ask(request(1, origin=typed(1, run_type))).trial.key
    store.tell(key, State.CONVERGED, report())
    assert (converged(store), taught_rates(store)) == ([1], {32})


@pytest.mark.parametrize("run_type", ["backfill", "test"])
def test_backfills_and_test_runs_are_logged_and_teach_epoch_cost_only(
    store: Store, run_type: str
) -> None:
    key = store.ask(request(1, origin=typed(1, run_type))).trial.key
    told = store.tell(key, State.CONVERGED, report())
    assert store.trials("d.train") == [told]
    assert told.origin.run_type == run_type
    assert (converged(store), taught_rates(store)) == ([], {32})


def test_a_job_may_learn_from_its_test_runs(store: Store) -> None:
    job = replace(JOB, learn_from=("scheduled", "test"))
    key = store.ask(request(1, job=job, origin=typed(1, "test"))).trial.key
    store.tell(key, State.CONVERGED, report())
    (trial,) = store.trials("d.train")
    belief = policy.learn(policy.prior(job), trial)
    assert [n for n, _, _ in belief.converged] == [1]


def test_backfills_that_have_ended_teach_once_the_job_asks_for_it(store: Store) -> None:
    for n in (1, 2):
        trial = store.ask(request(n, origin=typed(n, "backfill"))).trial
        store.tell(trial.key, State.CONVERGED, report(trial.batch_size))
    assert converged(store) == []
    job = replace(JOB, learn_from=("scheduled", "backfill"))
    belief = reduce(policy.learn, store.trials("d.train"), policy.prior(job))
    assert [(n, size) for n, size, _ in belief.converged] == [(1, 32), (2, 32)]
    assert store.ask(request(3, job=job)).trial.spec["learn_from"] == ["scheduled", "backfill"]
