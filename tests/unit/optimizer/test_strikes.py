"""A size that fails costs no run its model, is barred for a while, and comes back."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.trial import NO_STRIKE, Origin, Phase, State, Trial, TrialKey
from airflow_provider_zeus.optimizer.belief import RECURRENCES_KEPT, STRUCK_FOR, STRUCK_MOST, Belief
from airflow_provider_zeus.optimizer.learn import FAILURES_KEPT
from airflow_provider_zeus.optimizer.policy import choose, learn, prior
from airflow_provider_zeus.optimizer.situation import Situation
from airflow_provider_zeus.training.protocol.plan import Ended, Plan
from tests.strategies import REPRODUCIBLE, V100
from tests.unit.optimizer.world import World, job_of

NEEDS = {16: 14.0, 32: 10.0, 64: 6.0, 128: 5.0}
EPOCH_S = {16: 30.0, 32: 18.0, 64: 12.0, 128: 9.0}
POLICIES = ("knowledge_gradient", "zeus")
EVERY_POLICY = pytest.mark.parametrize("policy", POLICIES)
RAISED = State.FAILED
DIED = State.ABANDONED


class Failing(World):
    """A world in which some sizes fail, each time they run: by an error, or so that their process is gone."""

    fails: frozenset[int] = frozenset()
    dies = False  # then nothing follows in the same task, and the task is tried again
    tries = 2

    def recur(self) -> list[Trial]:
        first = len(self.log)
        for number in range(1, self.tries + 1):
            self._try(first, number)
            if self.log[-1].state.kept_model:
                break
        return self.log[first:]

    def _try(self, run: int, number: int) -> None:
        origin = Origin(
            dag_id="d", run_id=f"run {run}", task_id="t", try_number=number, run_type="scheduled"
        )
        ti_id = f"run {run}, try {number}"
        decision = self.decide(recurrence=origin.recurrence(ti_id))
        spec = self.job.to_dict()
        plan: Plan | None = Plan(
            job_id="j",
            ti_id=ti_id,
            number=self.number,
            first_attempt=1,
            spec=spec,
            attempts=decision.attempts,
            stand_in=decision.stand_in,
            reliefs=decision.reliefs,
        )
        while plan is not None:
            planned = plan.attempts[0]
            if planned.batch_size in self.fails:
                self.add(
                    planned.batch_size, DIED if self.dies else RAISED, 0.5, phase=planned.phase
                )
            else:
                self._attempt(planned)
            key = TrialKey(ti_id, plan.first_attempt)
            self.log[-1] = replace(
                self.log[-1], key=key, origin=origin, decision=decision, planned=planned
            )
            state = self.log[-1].state
            if state.kept_model or state is DIED:
                return
            plan = plan.after(Ended.FAILED if state is RAISED else Ended.MISSED)


def failing(
    policy: str, *sizes: int, needs: dict[int, float] = NEEDS, dies: bool = False
) -> Failing:
    world = Failing(job_of(*needs, default=32, policy=policy), needs, EPOCH_S)
    world.fails = frozenset(sizes)
    world.dies = dies
    return world


def settled(policy: str, *, dies: bool = False) -> tuple[Failing, int]:
    """A world after enough good runs, and the size that it takes: not the default."""
    world = failing(policy, dies=dies)
    for _ in range(25):
        world.recur()
    best = world.decide(settings={"pause_exploration": True}).attempts[0].batch_size
    assert best != 32
    return world, best


def sizes(run: list[Trial]) -> list[int]:
    return [trial.batch_size for trial in run]


@EVERY_POLICY
@pytest.mark.parametrize("size", [16, 64, 128])
@pytest.mark.parametrize("dies", [False, True])
def test_fifteen_runs_with_a_size_that_always_fails_end_with_a_model(
    policy: str, size: int, dies: bool
) -> None:
    world = failing(policy, size, dies=dies)
    runs = [world.recur() for _ in range(15)]
    assert [run[-1].state for run in runs] == [State.CONVERGED] * 15
    tried = [i for i, run in enumerate(runs) if size in sizes(run)]
    assert all(later - earlier > STRUCK_FOR for earlier, later in pairwise(tried)), (
        "one strike bars a new size"
    )
    assert not world.belief.infeasible(V100.model), "it is barred for a while only"


@EVERY_POLICY
@pytest.mark.parametrize("dies", [False, True])
def test_fifteen_runs_after_the_incumbent_has_begun_to_fail_end_with_a_model(
    policy: str, dies: bool
) -> None:
    world, best = settled(policy, dies=dies)
    world.fails = frozenset([best])
    runs = [world.recur() for _ in range(15)]
    assert [run[-1].state for run in runs] == [State.CONVERGED] * 15
    failed = [i for i, run in enumerate(runs) if best in sizes(run)]
    assert 2 <= len(failed) <= 4
    assert len(world.log) - world.log.index(runs[0][0]) <= 15 + 2 * len(failed)


@EVERY_POLICY
def test_the_incumbent_is_followed_by_the_default_which_starts_cold_and_has_no_bound(
    policy: str,
) -> None:
    world, best = settled(policy)
    decision = world.decide(settings={"pause_exploration": True})
    assert [attempt.batch_size for attempt in decision.attempts] == [best]
    (relief,) = decision.reliefs
    assert (relief.batch_size, relief.bounded) == (32, False)
    assert relief.usual_s == pytest.approx(10.0 * 18.0)
    assert world.decide(settings={"pin_batch_size": best}).reliefs == (), "a person decides that"
    assert failing(policy).decide().reliefs == (), "nothing follows the default"


@EVERY_POLICY
def test_a_default_that_does_not_fit_is_relieved_by_the_best_other_size(policy: str) -> None:
    world, best = settled(policy)
    world.add(32, State.FAILED, 0.1, phase=Phase.INCUMBENT, out_of_memory=True)
    world.add(best)
    world.add(16)
    decision = world.decide(settings={"pause_exploration": True})
    (relief,) = decision.reliefs
    assert relief.batch_size not in (32, best)
    assert relief.batch_size in world.belief.reached


@EVERY_POLICY
def test_two_killed_runs_of_the_incumbent_bar_it_for_ten(policy: str) -> None:
    world, best = settled(policy, dies=True)
    world.fails = frozenset([best])
    while len(world.belief.strikes.get(best, ())) < 2:
        world.recur()
    world.fails = frozenset()
    assert best in world.belief.struck
    runs = [world.recur() for _ in range(12)]
    assert best in [size for run in runs for size in sizes(run)]
    assert all(best not in sizes(run) for run in runs[:9])
    assert best not in world.belief.struck


@EVERY_POLICY
def test_one_killed_run_of_the_incumbent_bars_nothing(policy: str) -> None:
    world, best = settled(policy, dies=True)
    world.fails = frozenset([best])
    while best not in world.belief.strikes:
        world.recur()
    assert best not in world.belief.struck


@EVERY_POLICY
@pytest.mark.parametrize("dies", [False, True])
def test_the_next_try_trains_the_default_alone(policy: str, dies: bool) -> None:
    world, best = settled(policy, dies=dies)
    world.fails = frozenset([best, 32])
    world.tries = 3
    run = world.recur()
    while best not in sizes(run):
        run = world.recur()
    assert sizes(run) == ([best, 32, 32] if dies else [best, 32, 32, 32])


@EVERY_POLICY
def test_a_mistake_at_every_size_trains_twice_once_and_costs_no_size_its_place(policy: str) -> None:
    world, best = settled(policy)
    world.fails = frozenset(NEEDS)
    world.tries = 1
    nights = [world.recur() for _ in range(5)]
    doubled = [night for night in nights if len(night) > 1]
    assert len(doubled) <= 1
    assert all(sizes(night) == [32] for night in nights[nights.index(doubled[0]) + 1 :] if doubled)
    assert world.belief.struck == frozenset()
    world.fails = frozenset()
    assert sizes(world.recur()) == [32]
    again = world.decide(settings={"pause_exploration": True})
    assert [attempt.batch_size for attempt in again.attempts] == [best]


@EVERY_POLICY
def test_a_bar_is_twice_as_long_each_time_and_ends_at_a_success(policy: str) -> None:
    world = failing(policy, 64)
    while not world.belief.struck:
        world.recur()
    for times in range(1, 6):
        length = min(STRUCK_FOR * 2 ** (times - 1), STRUCK_MOST)
        for left in range(length, 0, -1):
            assert 64 in world.belief.struck, (times, left)
            world.add(32)
        assert 64 not in world.belief.struck
        strike(world, 64)
    world.add(64, State.GIVEN_UP, 5.0)
    assert 64 not in world.belief.struck
    strike(world, 64)
    assert 64 in world.belief.struck, "it has never reached the target"


def strike(world: World, size: int, *, kept: int = 32, **fields: Any) -> None:
    """A run in which a size fails, and another one keeps a model."""
    run = TrialKey(f"struck {world.number}", 1)
    for n, (b, state) in enumerate([(size, State.FAILED), (kept, State.CONVERGED)], 1):
        world.add(
            b, state, 0.5 if n == 1 else None, phase=Phase.INCUMBENT, **(fields if n == 1 else {})
        )
        world.log[-1] = replace(world.log[-1], key=replace(run, attempt=n))


@EVERY_POLICY
def test_what_is_no_strike(policy: str) -> None:
    world = failing(policy)
    strike(world, 64, kept=64)
    assert world.belief.strikes == {}, "another attempt of its size kept a model"
    strike(world, 128, reasons={NO_STRIKE: "the task was stopped"})
    strike(world, 16, out_of_memory=True)
    assert world.belief.strikes == {}
    assert world.belief.infeasible(V100.model) == {16}
    world.died(128, State.FAILED)
    world.add(32)
    assert world.belief.strikes == {}, "it is another run that kept a model"


@EVERY_POLICY
def test_a_size_is_not_to_blame_where_the_one_that_kept_a_model_had_failed_too(policy: str) -> None:
    world = failing(policy)
    states = [(64, State.FAILED), (32, State.FAILED), (32, State.CONVERGED)]
    for attempt, (b, state) in enumerate(states, 1):  # a bad night, and the retry in the morning
        world.add(b, state, phase=Phase.INCUMBENT)
        world.log[-1] = replace(world.log[-1], key=TrialKey("one run", attempt))
    assert world.belief.strikes == {}


@EVERY_POLICY
def test_a_trial_whose_training_never_began_is_no_death(policy: str) -> None:
    """Its lease lapsed while the task waited, for example for a full pool."""
    world, best = settled(policy)
    settled_failures = world.belief.failures

    def lapsed(**fields: Any) -> None:
        world.died(best, phase=Phase.INCUMBENT, **fields)
        run = TrialKey(f"lapsed {world.number}", 1)
        world.log[-1] = replace(world.log[-1], key=run)
        world.add(32)
        world.log[-1] = replace(world.log[-1], key=replace(run, attempt=2))

    for _ in range(2):
        lapsed()
    assert world.belief.strikes == {}
    assert world.belief.failures == settled_failures
    lapsed(start_id="a")
    assert set(world.belief.strikes) == {best}, "one that had begun counts"


@EVERY_POLICY
def test_where_the_default_does_not_fit_the_next_try_takes_the_nearest_smaller_size(
    policy: str,
) -> None:
    world = Failing(
        job_of(8, 16, 32, default=32, policy=policy),
        {8: 20.0, 16: 14.0, 32: 10.0},
        {8: 60.0, **EPOCH_S},
    )
    origin = Origin(dag_id="d", run_id="one run", task_id="t", run_type="scheduled")
    for attempt, b in enumerate((32, 16), 1):  # in a second attempt it says nothing of memory
        fields = {"phase": Phase.INCUMBENT, "out_of_memory": attempt == 1}
        world.add(b, State.FAILED, 0.1, **fields)
        world.log[-1] = replace(world.log[-1], key=TrialKey("first try", attempt), origin=origin)
    decision = world.decide(recurrence=origin.recurrence("second try"))
    assert [attempt.batch_size for attempt in decision.attempts] == [8]


@EVERY_POLICY
def test_a_skipped_run_does_not_make_the_default_run_next(policy: str) -> None:
    world, best = settled(policy)
    world.add(
        best,
        State.FAILED,
        0.5,
        phase=Phase.INCUMBENT,
        reasons={NO_STRIKE: "its author skipped the task"},
    )
    assert world.decide().attempts[0].batch_size == best
    world.add(best, State.FAILED, 0.5, phase=Phase.INCUMBENT)
    assert [attempt.batch_size for attempt in world.decide().attempts] == [32]
    world.add(32)
    assert world.decide(settings={"pause_exploration": True}).attempts[0].batch_size == best


@EVERY_POLICY
def test_a_struck_size_is_no_incumbent_and_stands_in_for_nothing(policy: str) -> None:
    world, best = settled(policy)
    for _ in range(2):
        strike(world, best)
    paused = world.decide(settings={"pause_exploration": True})
    pinned = world.decide(settings={"pin_batch_size": best})
    assert pinned.attempts[0].batch_size == best, "a person decides that"
    for decision in (paused, world.decide()):
        assert best not in [planned.batch_size for planned in decision.in_order]


@EVERY_POLICY
def test_where_nothing_else_fits_a_struck_size_runs(policy: str) -> None:
    world = failing(policy)
    strike(world, 64)
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
    world.add(32)
    for i, (tried, raised, also) in enumerate(script):
        states = [
            State.FAILED if raised else State.GIVEN_UP,
            State.FAILED if also else State.CONVERGED,
        ]
        for n, (b, state) in enumerate(zip((tried, 32), states, strict=True), 1):
            world.add(b, state, 5.0)
            world.log[-1] = replace(world.log[-1], key=TrialKey(str(i), n))
    shuffled = chance.sample(world.log, len(world.log))
    in_order, anyhow = (reduce(learn, log, prior(world.job)) for log in (world.log, shuffled))
    assert anyhow == in_order
    assert anyhow.struck == in_order.struck
    strikes = {
        b: sum(1 for t, raised, also in script if t == b and raised and not also)
        for b in (16, 64, 128)
    }
    assert {b: len(n) for b, n in in_order.strikes.items()} == {
        b: n for b, n in strikes.items() if n
    }
    assert len(in_order.failures) <= FAILURES_KEPT
    assert len(in_order.started) <= RECURRENCES_KEPT


@EVERY_POLICY
def test_strikes_are_kept_in_a_checkpoint(policy: str) -> None:
    world = failing(policy)
    strike(world, 64)
    read = Belief.from_json(prior(world.job), world.belief.to_json())
    assert read == world.belief
    assert read.struck == {64}
    assert choose(Situation(world.job, read, device=V100)) == choose(
        Situation(world.job, world.belief, device=V100)
    )
