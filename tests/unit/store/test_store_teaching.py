"""What the log of each store there is teaches, and what it only counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import pytest

from airflow_provider_zeus.model.trial import DeviceInfo, Observation, Phase, State, Trial, TrialKey
from airflow_provider_zeus.optimizer import policy
from airflow_provider_zeus.optimizer.policy import Belief
from airflow_provider_zeus.store.base import Report, Store
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


def test_an_earlier_start_without_a_result_is_a_line_without_a_cost_and_with_a_reason(store: Store) -> None:
    key = store.ask(request(1)).trial.key
    why = "retried, result lost"
    told = store.tell(key, State.FAILED, Report(observation=Observation(reasons={"energy_j": why})), reason=why)
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


def test_two_deaths_in_a_row_rule_a_batch_size_out_one_does_not(store: Store, clock: Clock) -> None:
    first = killed(store, 1, clock)
    assert believed(store).infeasible("V100") == frozenset()
    again = killed(store, 2, clock)
    assert again.batch_size == first.batch_size, "one death may be chance"
    third = store.ask(request(3)).trial
    assert believed(store).infeasible("V100") == {first.batch_size}
    assert third.batch_size != first.batch_size
    store.tell(again.key, State.CONVERGED, report(again.batch_size))  # it lived after all
    assert believed(store).infeasible("V100") == frozenset()


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
def test_backfills_and_test_runs_are_logged_and_teach_epoch_cost_only(store: Store, run_type: str) -> None:
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


def test_backfills_that_have_ended_teach_once_they_are_named(store: Store) -> None:
    for n in range(1, 5):
        key = store.ask(request(n, origin=typed(n, "backfill"))).trial.key
        store.tell(key, State.CONVERGED, report())
    assert converged(store) == []
    job = replace(JOB, learn_from=(*JOB.learn_from, "backfill"), policy="knowledge_gradient")
    asked = store.ask(request(5, job=job)).trial
    assert (asked.planned.phase, asked.batch_size == 32) == (Phase.EXPLORE, False), (
        "the default is known: another is tried"
    )


def test_the_other_map_indexes_that_share_a_job_come_with_the_answer(store: Store) -> None:
    def asked(index: int, job_id: str = "d.train", run_id: str = "run1") -> list[int]:
        origin = replace(request(1).origin, map_index=index, run_id=run_id)
        answer = store.ask(request(1, ti_id=f"{run_id}-{index}", origin=origin, job_id=job_id))
        store.tell(answer.trial.key, State.CONVERGED, report())
        return list(answer.shared_with)

    assert [asked(0), asked(2), asked(1), asked(1)] == [[], [0], [0, 2], [0, 2]]
    assert asked(3, "d.train.eu") == [], "a job of its own"
    assert asked(0, run_id="run2") == [], "the only one of its run so far"
    assert asked(-1, run_id="run2") == [], "not mapped"


# --- what is changed by the author and by people


def test_a_new_target_opens_a_generation_of_epochs_and_keeps_epoch_costs(store: Store) -> None:
    for n in range(1, 8):
        ended(store, n, State.CONVERGED)
    stricter = replace(JOB, target="accuracy >= 0.9")
    asked = store.ask(request(8, job=stricter)).trial
    assert (asked.planned.phase, asked.batch_size) == (Phase.EXPLORE, JOB.default_batch_size)
    belief = reduce(policy.learn, store.trials("d.train"), policy.prior(stricter))
    assert belief.converged == ()
    assert {size for (size, _) in belief.rates} == taught_rates(store) != set()
    store.tell(asked.key, State.CONVERGED, report())
    assert store.ask(request(9)).trial.planned.phase is not Phase.EXPLORE, "back at the old one, it is all still there"


def test_other_batch_sizes_and_another_eta_keep_the_history(store: Store) -> None:
    for n in range(1, 8):
        ended(store, n, State.CONVERGED)
    longer = replace(JOB, batch_sizes=(16, 32, 64, 128), eta=1.0)
    asked = store.ask(request(8, job=longer)).trial
    assert (asked.batch_size, asked.spec["eta"]) == (128, 1.0), "only the new one is not known yet"
    assert [t.number for t in store.trials("d.train")] == list(range(1, 9))


def test_exploration_is_paused_and_resumed_without_a_deploy(
    store: Store, set_setting: Callable[[str, str], None]
) -> None:
    ended(store, 1, State.CONVERGED)
    set_setting("zeus-settings:d.train", json.dumps({"pause_exploration": True}))
    paused = store.ask(request(2)).trial
    assert paused.planned.phase is not Phase.EXPLORE
    assert paused.batch_size == 32
    store.tell(paused.key, State.CONVERGED, report())
    set_setting("zeus-settings:d.train", "{}")
    assert store.ask(request(3)).trial.planned.phase is Phase.EXPLORE


# --- one clock


def test_leases_of_all_trials_are_read_by_the_stores_clock_alone(opens: Opens, clock: Clock) -> None:
    trial = opens().ask(request(1, lease_s=86_400)).trial  # as a setup task opens it
    opens().heartbeat(trial.key, report(time_s=1e9))  # durations are the trainer's own
    clock.t += 86_400
    assert opens().trials("d.train")[0].state is State.RUNNING
    clock.t += 1
    assert {t.state for t in (*opens().trials("d.train"), *opens().runs("d", "d.train", last=1))} == {State.ABANDONED}
