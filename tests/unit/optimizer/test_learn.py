"""What a trial teaches that shows nothing of its batch size, and which trials are one recurrence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_zeus.model.trial import BATCH_SIZE, PLAIN, Phase, State
from airflow_provider_zeus.optimizer.belief import RECURRENCES_KEPT, Belief, prior
from airflow_provider_zeus.optimizer.learn import with_rates
from tests.unit.optimizer.world import World, job_of

JOB_KG = job_of(16, 32, 64, default=32, policy="knowledge_gradient")


def test_a_run_that_did_not_use_its_batch_size_teaches_nothing() -> None:
    w = World(JOB_KG, {16: 20, 32: 10, 64: 8})
    w.add(32)
    known = w.belief
    w.add(64, reasons={BATCH_SIZE: "no step was counted"})
    after = w.belief
    assert (after.converged, after.rates, after.newest_there) == (
        known.converged,
        known.rates,
        known.newest_there,
    )
    assert after.recurrences == known.recurrences + 1
    assert [a.batch_size for a in w.decide().attempts] == [32], "nothing is tried after it"
    w.add(32)
    assert w.belief.newest[1] is False


def test_a_run_that_reported_no_metric_teaches_what_it_cost_and_no_epochs() -> None:
    w = World(JOB_KG, {16: 20, 32: 10, 64: 8})
    w.add(32)
    known = w.belief
    w.add(32, State.NO_METRIC)
    after = w.belief
    assert (after.converged, after.stopped) == (known.converged, ())
    assert after.rates != known.rates
    assert [a.batch_size for a in w.decide().attempts] == [32], "nothing is tried after it"


def test_rates_of_a_log_that_is_re_costed_are_those_of_the_runs_that_teach() -> None:
    w = World(JOB_KG, {16: 20, 32: 10, 64: 8})
    w.add(32)
    w.add(64, State.DONE)  # ended with nothing known of its target
    assert with_rates(w.belief, w.log).rates == w.belief.rates


@pytest.mark.parametrize("policy", ["knowledge_gradient", "zeus"])
def test_where_nothing_stops_a_training_no_attempt_has_a_bound(policy: str) -> None:
    w = World(job_of(16, 32, 64, default=32, policy=policy), {16: 20, 32: 10, 64: 8})
    planned = w.decide().attempts[0]
    w.add(32, phase=planned.phase, round_=planned.round, reasons={PLAIN: "it opened no ZeusRun"})
    assert Belief.from_json(prior(w.job), w.belief.to_json()).plain == (1, True)
    first, after = w.decide().attempts
    assert not first.bounded
    assert "it runs to its end, since nothing stops a training that opens no ZeusRun" in first.why
    assert after.why.startswith(f"{first.batch_size} missed the target; 32, ")
    assert "given up" not in first.why + after.why
    w.died(32, State.FAILED)
    assert w.belief.plain == (1, True), "one that died shows nothing of it"
    w.add(32)
    assert w.belief.plain == (3, False)
    w.log[:] = [replace(w.log[0], observation=replace(w.log[0].observation, reasons={}))]
    bounded, _ = w.decide().attempts
    assert bounded.bounded
    assert "it is given up above" in bounded.why


def ran(
    w: World, run_id: str, state: State = State.CONVERGED, *, map_index: int = -1, **fields: str
) -> None:
    """A run at the default: ``run_id`` names the scheduled run."""
    w.add(32, state, 10.0, **fields)
    origin = replace(w.log[-1].origin, dag_id="d", run_id=run_id, task_id="t", map_index=map_index)
    w.log[-1] = replace(w.log[-1], origin=origin)


def test_a_recurrence_counts_once_in_all_its_tries_and_only_where_its_type_teaches() -> None:
    w = World(replace(JOB_KG, expected_runs=20), {16: 20, 32: 10, 64: 8})
    for n in range(6):
        ran(w, f"r{n}", State.FAILED)
        ran(w, f"r{n}")
    assert w.belief.recurrences == 6
    assert w.decide().attempts[0].bounded, "thirteen more runs may use what a try shows"
    for n in range(6):
        ran(w, f"b{n}", run_type="backfill")
    assert w.belief.recurrences == 6
    ran(w, "r5", map_index=1)
    assert w.belief.recurrences == 7
    assert [number for number, _ in w.belief.started] == [1, 3, 5, 7, 9, 11, 19]


def test_a_run_that_trained_nothing_is_a_recurrence() -> None:
    w = World(JOB_KG, {16: 20, 32: 10, 64: 8})
    for n, state in enumerate((State.CONVERGED, State.NOT_NEEDED, State.NO_DATA, State.RUNNING)):
        ran(w, f"r{n}", state)
    assert w.belief.recurrences == 3
    assert w.belief.converged == ((1, 32, 10.0),)


def test_the_recurrences_that_are_told_apart_are_so_many_and_survive_a_checkpoint() -> None:
    w = World(JOB_KG, {32: 10})
    for n in range(RECURRENCES_KEPT + 9):
        ran(w, f"r{n}")
        ran(w, f"r{n}")
    belief = w.belief
    assert belief.recurrences == RECURRENCES_KEPT + 9
    assert len(belief.started) == RECURRENCES_KEPT
    assert Belief.from_json(prior(w.job), belief.to_json()).started == belief.started


def measured(w: World, state: State = State.DONE, **seen: float | None) -> None:
    """A run from before the job named batch sizes: 100 steps, 6400 J, 64 s."""
    told = {"samples": 100, "energy_j": 6400.0, "time_s": 64.0, **seen}
    w.add(32, state, None, phase=Phase.MEASURED, samples_per_epoch=None, **told)
    w.log[-1] = replace(w.log[-1], planned=replace(w.log[-1].planned, batch_size=None))


def test_runs_from_before_a_job_named_sizes_teach_their_device_alone() -> None:
    w = World(JOB_KG, {16: 20, 32: 10, 64: 8})
    measured(w)
    measured(w, State.FAILED)
    measured(w, samples=None)
    assert w.belief.device is not None
    assert w.belief.device[0] == 3
    assert (w.belief.rates, w.belief.recurrences, w.belief.converged) == ({}, 0, ())
    assert with_rates(w.belief, w.log).rates == {}


def test_a_size_that_is_tried_again_in_a_round_does_not_move_its_start() -> None:
    """Round 2 walks from 32, its first try: 16 failed there, so 64 is next, and never 8."""
    w = World(job_of(8, 16, 32, 64, default=32), {8: 20, 16: 20, 32: 10, 64: 20})
    for b in (32, 16, 8, 64):
        w.add(b, phase=Phase.EXPLORE, round_=1)
    w.add(32, phase=Phase.EXPLORE, round_=2)
    w.add(16, State.GIVEN_UP, phase=Phase.EXPLORE, round_=2)
    w.add(32, phase=Phase.EXPLORE, round_=2)
    due = w.decide().attempts[0]
    assert (due.phase, due.round, due.batch_size) == (Phase.EXPLORE, 2, 64)
