"""Properties of decisions and beliefs for any log."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import reduce
from typing import Any

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import (
    Decision,
    DeviceInfo,
    Observation,
    Phase,
    PlannedAttempt,
    State,
    Trial,
)
from airflow_provider_zeus.model.wire import decode, encode
from airflow_provider_zeus.optimizer.arms import Arm, arms_of, epoch_costs
from airflow_provider_zeus.optimizer.belief import RATES_KEPT
from airflow_provider_zeus.optimizer.learn import FAILURES_KEPT, KEPT_AFTER, WELL_KEPT
from airflow_provider_zeus.optimizer.policy import Belief, choose, decision_seed, learn, prior
from airflow_provider_zeus.optimizer.situation import Situation
from tests.strategies import (
    REPRODUCIBLE,
    V100,
    devices,
    jobs,
    jobs_and_logs,
    logs,
    make_trial,
    observations,
    profiles,
)

JobAndLog = tuple[ZeusJob, list[Trial]]
NOT_A_NUMBER = re.compile(r"\b(None|nan|inf|Infinity)\b")


def belief_of(job: ZeusJob, log: Iterable[Trial]) -> Belief:
    return reduce(learn, log, prior(job))


def arms_on(belief: Belief, device: DeviceInfo | None) -> dict[int, Arm]:
    device = device or belief.last_device()
    return arms_of(belief, epoch_costs(belief, device, (), Weights.of(belief.job, device)))


def numbers_in(value: Any) -> Iterable[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from numbers_in(part)
    elif isinstance(value, int | float):
        yield value


def is_one_sentence(why: str) -> bool:
    return (
        why.endswith(".")
        and not re.search(r"[.!?](\s|$)", why[:-1])
        and not NOT_A_NUMBER.search(why)
    )


@REPRODUCIBLE
@given(jobs_and_logs(), devices(), profiles(), st.integers(0, 2**48))
def test_decisions_and_arms_hold_finite_numbers_only(
    job_and_log: JobAndLog, device: DeviceInfo | None, profile: Sequence[Any], seed: int
) -> None:
    job, log = job_and_log
    belief = belief_of(job, log)
    decision = choose(Situation(job, belief, device=device, profiles=profile, seed=seed))
    weights = Weights.of(job, device or belief.last_device())
    costs = epoch_costs(belief, device or belief.last_device(), profile, weights)
    arms = arms_of(belief, costs)
    assert all(math.isfinite(n) for n in numbers_in(encode(decision)))
    assert all(math.isfinite(n) for arm in arms.values() for n in numbers_in(asdict(arm)))
    assert all(cost > 0 for cost in costs.values())
    assert all(arm.sd > 0 and arm.mean > 0 and arm.runs >= 1 for arm in arms.values())


@REPRODUCIBLE
@given(jobs_and_logs(), devices(), profiles(), st.booleans(), st.data())
def test_every_decision_is_one_bounded_attempt_at_most_and_then_the_incumbent(
    job_and_log: JobAndLog,
    device: DeviceInfo | None,
    profile: Sequence[Any],
    running: bool,
    data: st.DataObject,
) -> None:
    job, log = job_and_log
    belief = belief_of(job, log)
    others = [t for t in log if t.state is State.RUNNING] if running else []
    settings = data.draw(st.sampled_from([{}, {"pause_exploration": True}, {"pin_batch_size": 32}]))
    decision = choose(
        Situation(job, belief, device=device, profiles=profile, running=others, settings=settings)
    )
    *exploratory, last = decision.attempts
    assert len(exploratory) <= 1
    assert not last.bounded
    assert {a.batch_size for a in decision.attempts} <= set(job.batch_sizes)
    for attempt in exploratory:
        assert attempt.bounded
        assert attempt.batch_size != last.batch_size
        assert last.phase is Phase.INCUMBENT
        assert all(
            bound is None or bound > 0 for bound in (attempt.bound_cost, attempt.bound_epochs)
        )
    if exploratory and last.batch_size in arms_on(belief, device):
        assert exploratory[0].bound_cost is not None
        assert exploratory[0].max_epoch_cost is not None


@REPRODUCIBLE
@given(jobs_and_logs(), devices(), profiles())
def test_every_attempt_says_why_in_one_sentence_that_names_its_batch_size(
    job_and_log: JobAndLog, device: DeviceInfo | None, profile: Sequence[Any]
) -> None:
    job, log = job_and_log
    belief = belief_of(job, log)
    for attempt in choose(Situation(job, belief, device=device, profiles=profile)).attempts:
        # a second one, where the target is new
        why = attempt.why.removesuffix(f" {belief.target_change()}")
        assert is_one_sentence(why), why
        assert re.search(rf"\b{attempt.batch_size}\b", why), why


@REPRODUCIBLE
@given(
    jobs_and_logs(),
    st.sampled_from([State.GIVEN_UP, State.EXHAUSTED]),
    st.floats(0, 100),
    st.data(),
)
def test_a_stopped_run_lowers_the_mean_of_no_arm(
    job_and_log: JobAndLog, state: State, epochs: float, data: st.DataObject
) -> None:
    job, log = job_and_log
    before = belief_of(job, log)
    assume(len(before.stopped) < job.window)  # else the oldest stopped run is forgotten for it
    stopped = make_trial(
        len(log) + 1, data.draw(st.sampled_from(job.batch_sizes)), state, job=job, epochs=epochs
    )
    old = arms_on(before, V100)
    new = arms_on(learn(before, stopped), V100)
    assert old.keys() == new.keys()
    assert all(new[b].mean >= old[b].mean for b in old)


@REPRODUCIBLE
@given(jobs_and_logs(), st.randoms(use_true_random=False), st.floats(1.0, 8.0))
def test_reused_counts_equal_a_fresh_count(
    job_and_log: JobAndLog, chance: random.Random, jump: float
) -> None:
    """In any order of arrival, beyond the window, and across a change of Epochs."""
    job, log = job_and_log
    job = replace(job, policy="knowledge_gradient", window=2 * len(job.batch_sizes))
    log = [
        *log,
        *(make_trial(len(log) + i, job.batch_sizes[0], job=job, epochs=4.0) for i in range(1, 5)),
    ]
    log += [
        make_trial(len(log) + i, job.batch_sizes[0], job=job, epochs=4.0 * jump)
        for i in range(1, 4)
    ]
    if chance.random() < 0.5:
        chance.shuffle(log)
    belief = prior(job)
    for trial in log:
        before = belief
        belief = learn(belief, trial)
        for one in (belief, before):  # a belief never changes
            afresh = replace(one)
            assert one.by_slice == afresh.by_slice
            assert np.allclose(one.epochs.gp.mean, afresh.epochs.gp.mean)
            assert one.epochs.newest.account == afresh.epochs.newest.account
            assert one.reached == afresh.reached
            assert one.newest_runs == afresh.newest_runs


@REPRODUCIBLE
@given(jobs_and_logs(), devices(), profiles())
def test_the_same_log_and_seed_give_the_same_decision(
    job_and_log: JobAndLog, device: DeviceInfo | None, profile: Sequence[Any]
) -> None:
    job, log = job_and_log
    seed = decision_seed("dag.train", len(log) + 1)
    again = ZeusJob.from_dict(json.loads(json.dumps(job.to_dict())))
    first = choose(Situation(job, belief_of(job, log), device=device, profiles=profile, seed=seed))
    assert (
        choose(
            Situation(
                again, belief_of(again, log), device=device, profiles=profile[::-1], seed=seed
            )
        )
        == first
    )


@REPRODUCIBLE
@given(jobs_and_logs(), devices(), st.data())
def test_the_final_log_gives_one_belief_in_any_order_of_arrival(
    job_and_log: JobAndLog, device: DeviceInfo | None, data: st.DataObject
) -> None:
    job, log = job_and_log
    in_order = belief_of(job, log)
    shuffled = belief_of(job, data.draw(st.permutations(log)))
    assert shuffled == in_order
    assert choose(Situation(job, shuffled, device=device, seed=7)) == choose(
        Situation(job, in_order, device=device, seed=7)
    )


@REPRODUCIBLE
@given(jobs_and_logs(), devices(), profiles(), st.data())
def test_a_checkpoint_anywhere_changes_nothing(
    job_and_log: JobAndLog, device: DeviceInfo | None, profile: Sequence[Any], data: st.DataObject
) -> None:
    job, log = job_and_log
    bare = belief_of(job, log)
    cut = data.draw(st.integers(0, len(log)))
    checkpoint = belief_of(job, log[:cut]).to_json()
    belief = reduce(learn, log[cut:], Belief.from_json(prior(job), checkpoint))
    assert belief == bare
    assert Belief.from_json(prior(job), bare.to_json()) == bare
    for seed in range(3):
        now = choose(Situation(job, belief, device=device, profiles=profile, seed=seed))
        assert now == choose(Situation(job, bare, device=device, profiles=profile, seed=seed))


@REPRODUCIBLE
@given(jobs_and_logs(), observations(), st.data())
def test_a_late_report_learnt_again_from_an_earlier_checkpoint_gives_the_same_belief(
    job_and_log: JobAndLog, reported: Observation, data: st.DataObject
) -> None:
    job, log = job_and_log
    assume(log)
    late = data.draw(st.integers(0, len(log) - 1))
    abandoned = [*log[:late], replace(log[late], state=State.ABANDONED), *log[late + 1 :]]
    final = [
        *log[:late],
        replace(log[late], state=State.CONVERGED, observation=reported),
        *log[late + 1 :],
    ]
    cut = data.draw(st.integers(0, late))
    checkpoint = belief_of(job, abandoned[:cut]).to_json()
    assert reduce(learn, final[cut:], Belief.from_json(prior(job), checkpoint)) == belief_of(
        job, final
    )


@REPRODUCIBLE
@given(jobs(), devices(), st.data())
def test_while_every_batch_size_fails_each_run_ends_with_one_unbounded(
    job: ZeusJob, device: DeviceInfo | None, data: st.DataObject
) -> None:
    """Under ``"zeus"`` that is the default; the other policy tries what is nearest to it."""
    log = [
        replace(
            trial,
            state=State.EXHAUSTED,
            observation=replace(trial.observation, out_of_memory=False),
        )
        for trial in data.draw(logs(job))
    ]
    last = choose(Situation(job, belief_of(job, log), device=device, seed=1)).attempts[-1]
    assert last.batch_size in (
        job.batch_sizes if job.policy != "zeus" else [job.default_batch_size]
    )
    assert not last.bounded


@REPRODUCIBLE
@given(jobs_and_logs(), devices(), profiles(), observations())
def test_decisions_and_observations_survive_strict_json(
    job_and_log: JobAndLog,
    device: DeviceInfo | None,
    profile: Sequence[Any],
    observation: Observation,
) -> None:
    job, log = job_and_log
    decision = choose(Situation(job, belief_of(job, log), device=device, profiles=profile, seed=3))
    assert decode(Decision, json.loads(json.dumps(encode(decision), allow_nan=False))) == decision
    observed = replace(observation, reasons={"energy_j": "no source"})
    assert (
        decode(Observation, json.loads(json.dumps(observed.to_dict(), allow_nan=False))) == observed
    )


@REPRODUCIBLE
@given(
    st.builds(
        PlannedAttempt,
        batch_size=st.integers(1, 512),
        phase=st.sampled_from(Phase),
        why=st.text(),
        round=st.none(),
    )
)
def test_an_attempt_survives_json_with_its_phase(attempt: PlannedAttempt) -> None:
    decision = Decision(attempts=(attempt,), seed=2**48 - 1, policy="zeus")
    read = decode(Decision, json.loads(json.dumps(encode(decision))))
    assert read == decision
    assert read.attempts[0].phase is attempt.phase


@REPRODUCIBLE
@given(jobs_and_logs())
def test_the_belief_does_not_grow_with_the_log(job_and_log: JobAndLog) -> None:
    job, log = job_and_log
    many = [replace(t, number=t.number + shift * len(log)) for shift in range(3) for t in log]
    belief = belief_of(job, many)
    assert len(belief.converged) <= 1.5 * job.window
    assert len(belief.stopped) <= job.window
    assert all(len(rates) <= RATES_KEPT for rates in belief.rates.values())
    assert all(len(numbers) <= WELL_KEPT for numbers in belief.ran_well.values())
    assert len(belief.failures) <= FAILURES_KEPT
    assert len(belief.kept_after) <= KEPT_AFTER
