"""Strikes: a size that raised an error is not tried for ten recurrences; the incumbent runs instead."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import reduce
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.trial import Decision, Phase, State, Trial, TrialKey
from airflow_provider_zeus.optimizer.belief import RECURRENCES_KEPT, STRUCK_FOR, Belief
from airflow_provider_zeus.optimizer.learn import FAILURES_KEPT
from airflow_provider_zeus.optimizer.policy import choose, learn, prior
from tests.strategies import REPRODUCIBLE, V100
from tests.unit.optimizer.world import NEVER, World, job_of

NEEDS = {16: 12.0, 32: 10.0, 64: 9.0, 128: 9.0}
EPOCH_S = {16: 30.0, 32: 18.0, 64: 12.0, 128: 9.0}
POLICIES = ("knowledge_gradient", "zeus")
EVERY_POLICY = pytest.mark.parametrize("policy", POLICIES)


class Failing(World):
    """A world in which some sizes raise an error, each time they run; an attempt after another one shares its run."""

    fails: frozenset[int] = frozenset()

    def recur(self) -> list[Trial]:
        decision, first = self.decide(), len(self.log)
        for n, planned in enumerate(decision.attempts, 1):
            b = planned.batch_size
            if b in self.fails:
                self.add(b, State.FAILED, 0.5, phase=planned.phase)
            else:
                self._attempt(planned)
            self.log[-1] = replace(
                self.log[-1], key=TrialKey(f"run {first}", n), decision=decision, planned=planned, reason="it failed"
            )
            if self.log[-1].state is State.CONVERGED:
                break
        return self.log[first:]


def failing(policy: str, *sizes: int, needs: dict[int, float] = NEEDS) -> Failing:
    world = Failing(job_of(*needs, default=32, policy=policy), needs, EPOCH_S)
    world.fails = frozenset(sizes)
    return world


@EVERY_POLICY
@pytest.mark.parametrize("size", [16, 64, 128])
def test_thirty_recurrences_with_a_size_that_always_fails_end_with_a_model(policy: str, size: int) -> None:
    world = failing(policy, size)
    runs = [world.recur() for _ in range(30)]
    assert [run[-1].state for run in runs] == [State.CONVERGED] * 30
    tried = [i for i, run in enumerate(runs) if size in [t.batch_size for t in run]]
    assert 1 <= len(tried) <= 3
    assert all(later - earlier > STRUCK_FOR for earlier, later in pairwise(tried))
    assert all(run[-1].batch_size != size for run in runs)
    assert not world.belief.infeasible(V100.model), "it is barred for a while only"


@EVERY_POLICY
def test_a_struck_size_may_be_tried_again_after_ten_recurrences(policy: str) -> None:
    world = failing(policy, 64)
    while not world.belief.struck:
        world.recur()
    assert world.belief.struck == {64}
    for _ in range(STRUCK_FOR):
        assert 64 in world.belief.struck
        assert 64 not in [t.batch_size for t in world.recur()]
    assert world.belief.struck == frozenset()
    assert 64 not in world.belief.barred(V100.model, world.job.batch_sizes)


def struck(policy: str, *states: State, **fields: bool) -> Failing:
    """32 has run; then 64 was tried after it and raised an error, and the attempts after it ended as given."""
    world = failing(policy)
    world.recur()
    decision = decided(world, 64, 32)
    for n, (planned, state) in enumerate(zip(decision.attempts, (State.FAILED, *states), strict=False), 1):
        world.add(planned.batch_size, state, 0.5 if state is State.FAILED else None, phase=planned.phase, **fields)
        world.log[-1] = replace(world.log[-1], key=TrialKey("again", n), decision=decision, planned=planned)
    return world


def decided(world: World, tried: int, after: int) -> Decision:
    incumbent = world.decide(settings={"pause_exploration": True}).attempts[0]
    return Decision(
        attempts=(
            replace(incumbent, batch_size=tried, phase=Phase.EXPLORE, bound_epochs=20.0),
            replace(incumbent, batch_size=after),
        ),
        seed=0,
        policy=world.job.policy,
    )


@EVERY_POLICY
def test_an_error_that_the_next_attempt_raised_too_is_not_held_against_the_size(policy: str) -> None:
    assert struck(policy, State.FAILED).belief.struck == frozenset()
    assert struck(policy, State.EXHAUSTED).belief.struck == {64}
    assert struck(policy, State.ABANDONED).belief.struck == {64}
    assert struck(policy).belief.struck == {64}, "nothing is known of what followed"


@EVERY_POLICY
def test_out_of_memory_is_not_a_strike(policy: str) -> None:
    belief = struck(policy, State.CONVERGED, out_of_memory=True).belief
    assert belief.struck == frozenset()
    assert 64 in belief.infeasible(V100.model)


@EVERY_POLICY
def test_an_attempt_that_nothing_follows_strikes_no_size(policy: str) -> None:
    world = failing(policy)
    world.died(64, State.FAILED)
    assert world.belief.struck == frozenset()


@EVERY_POLICY
def test_a_struck_size_is_no_incumbent_and_stands_in_for_nothing(policy: str) -> None:
    world = failing(policy, needs={**NEEDS, 16: NEVER, 64: 2.0})
    world.add(64)  # by far the cheapest
    world.add(32)
    assert world.decide(settings={"pause_exploration": True}).attempts[0].batch_size == 64
    decision = decided(world, 64, 32)
    for n, state in enumerate((State.FAILED, State.CONVERGED), 1):
        planned = decision.attempts[n - 1]
        world.add(planned.batch_size, state, 0.5 if n == 1 else None, phase=planned.phase)
        world.log[-1] = replace(world.log[-1], key=TrialKey("again", n), decision=decision, planned=planned)
    paused = world.decide(settings={"pause_exploration": True})
    assert paused.attempts[0].batch_size == 32
    pinned = world.decide(settings={"pin_batch_size": 64})
    assert pinned.attempts[0].batch_size == 64, "a person decides that"
    for decision in (paused, world.decide()):
        assert 64 not in [planned.batch_size for planned in decision.in_order]


@EVERY_POLICY
def test_where_nothing_else_fits_a_struck_size_runs(policy: str) -> None:
    world = struck(policy, State.CONVERGED)
    for b in (16, 32, 128):
        world.add(b, State.FAILED, 0.1, phase=Phase.INCUMBENT, out_of_memory=True)
    world.add(64)
    assert [planned.batch_size for planned in world.decide().attempts] == [64]


@REPRODUCIBLE
@given(
    st.sampled_from(POLICIES),
    st.lists(st.tuples(st.sampled_from([16, 64, 128]), st.booleans(), st.booleans()), max_size=25),
    st.randoms(use_true_random=False),
)
def test_strikes_do_not_depend_on_the_order_of_arrival(
    policy: str, script: list[tuple[int, bool, bool]], chance: random.Random
) -> None:
    world = failing(policy)
    world.recur()
    for i, (tried, raised, also) in enumerate(script):
        decision = decided(world, tried, 32)
        states = [State.FAILED if raised else State.GIVEN_UP, State.FAILED if also else State.CONVERGED]
        for n, (planned, state) in enumerate(zip(decision.attempts, states, strict=True), 1):
            world.add(planned.batch_size, state, 5.0, phase=planned.phase)
            world.log[-1] = replace(world.log[-1], key=TrialKey(str(i), n), decision=decision, planned=planned)
    shuffled = chance.sample(world.log, len(world.log))
    in_order, anyhow = (reduce(learn, log, prior(world.job)) for log in (world.log, shuffled))
    assert (anyhow.struck, anyhow.failures, anyhow.started) == (in_order.struck, in_order.failures, in_order.started)
    newest = script[-STRUCK_FOR:]
    assert in_order.struck == {tried for tried, raised, also in newest if raised and not also}
    assert len(in_order.failures) <= FAILURES_KEPT
    assert len(in_order.started) <= RECURRENCES_KEPT


@EVERY_POLICY
def test_strikes_are_kept_in_a_checkpoint(policy: str) -> None:
    world = struck(policy, State.CONVERGED)
    read = Belief.from_json(prior(world.job), world.belief.to_json())
    assert read == world.belief
    assert read.struck == {64}
    assert choose(world.job, read, device=V100) == choose(world.job, world.belief, device=V100)
