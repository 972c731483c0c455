"""The start of a training as a decision: candidates are pairs of batch size and start, with guards."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import pytest

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import (
    WHY_COLD,
    Decision,
    Lineage,
    Phase,
    PlannedAttempt,
    State,
    Trial,
    incumbent_or_last,
)
from airflow_provider_zeus.model.wire import encode
from airflow_provider_zeus.optimizer.belief import Belief, belief_tag
from airflow_provider_zeus.optimizer.knowledge_gradient import start_policy
from airflow_provider_zeus.optimizer.policy import choose, fallback, learn, prior
from airflow_provider_zeus.optimizer.situation import Situation
from airflow_provider_zeus.optimizer.starts import (
    Served,
    StartRun,
    cold_is_due,
    paused,
    serves_worse,
    start_of,
)
from tests.strategies import V100, make_trial
from tests.unit.optimizer.world import World, job_of

C = Start.COLD
S = Start.SHRUNK
W = Start.WARM
NEVER = math.inf


def spec(*sizes: int, **fields: Any) -> ZeusJob:
    fields = {
        "default": sizes[0],
        "policy": "knowledge_gradient",
        "target": "rmse <= 1",
        "starts": ["cold", "shrunk", "warm"],
        **fields,
    }
    return job_of(*sizes, **fields)


@dataclass
class Starts:
    """A job whose epochs depend on the start, and its log. ``epochs(b, start, run)``."""

    job: ZeusJob
    epochs: Callable[[int, Start, int], float]
    # error of its models over that after training
    served: Mapping[Start, float] = field(default_factory=dict)
    log: list[Trial] = field(default_factory=list)
    left: Trial | None = None
    runs: int = 0

    @property
    def belief(self) -> Belief:
        return reduce(learn, self.log, prior(self.job))

    @property
    def lineage(self) -> Lineage:
        return Lineage() if self.left is None else Lineage.after(self.left, 1)

    def decide(self, **asked: Any) -> Decision:
        return choose(Situation(self.job, self.belief, device=V100, lineage=self.lineage, **asked))

    def run(self, raises: Start | None = None, **changes: Any) -> Decision:
        """One recurrence, as it is decided; ``changes`` of its observations. Those from ``raises`` raise an error."""
        decision = self.decide()
        lineage = self.lineage
        before = self.left
        self.runs += 1
        for planned in decision.attempts:
            b = planned.batch_size
            start = planned.start or C
            needs = min(self.epochs(b, start, self.runs), self.job.max_epochs or 1)
            bound = math.inf
            if planned.bound_cost is not None:
                one = World(self.job, {}).epoch_cost(b)
                bound = max(
                    min(planned.bound_epochs or math.inf, math.floor(planned.bound_cost / one)), 1.0
                )
            took = min(needs, bound)
            reached = needs <= bound and needs < (self.job.max_epochs or 1)
            state = (
                State.CONVERGED
                if reached
                else State.GIVEN_UP
                if planned.bounded
                else State.EXHAUSTED
            )
            if start == raises:
                reached = False
                state = State.FAILED
            figures = World(self.job, {}).figures(b, took)
            if before is not None and self.served:
                figures |= {"served": self.served[before.observation.start or C], "metric": 1.0}
            figures |= {"start": start, **changes}
            number = len(self.log) + 1
            trial = make_trial(number, job=self.job, batch_size=b, state=state, **figures)
            trial = replace(trial, planned=planned, decision=decision, lineage=lineage)
            self.log.append(trial)
            if state.kept_model:
                self.left = trial
            if reached:
                break
        return decision


def planned_starts(decision: Decision) -> list[str]:
    return [str(attempt.start) for attempt in decision.attempts]


def test_the_default_starts_change_no_decision_and_no_checkpoint() -> None:
    plain = job_of(16, 32, 64, default=32, policy="knowledge_gradient")
    assert plain.starts == ("cold",)
    world = World(plain, {16: 9.0, 32: 6.0, 64: 8.0})
    for n in range(8):
        decision = world.decide()
        assert decision == world.decide(lineage=Lineage(from_age=1, from_start=W))
        b = decision.attempts[0].batch_size
        assert {attempt.start for attempt in decision.in_order} == {None}
        figures = world.figures(b, world.epochs[b])
        world.log.append(
            make_trial(n + 1, job=plain, batch_size=b, state=State.CONVERGED, **figures)
        )
    assert "starts" not in world.belief.to_json()
    assert belief_tag(prior(plain)) == belief_tag(prior(replace(plain, starts=["cold", "warm"]))), (
        "it depends on the log alone"
    )


def test_the_first_run_is_cold_and_says_why() -> None:
    decision = Starts(spec(32), lambda b, s, t: 10.0).decide()
    assert planned_starts(decision) == ["cold"]
    assert "no earlier model" in decision.attempts[0].why


@pytest.mark.parametrize("best", [C, S, W])
def test_the_cheapest_start_is_found_and_kept(best: Start) -> None:
    log = Starts(spec(32), lambda b, s, t: 4.0 if s == best else 16.0)
    kept = []
    for _ in range(24):
        log.run()
        kept.append(log.log[-1].observation.start)
    newest = kept[-8:]
    assert newest.count(best) >= (8 if best is C else 6), "the others are cold runs that are due"


def test_a_try_is_bounded_and_followed_by_the_incumbent_pair() -> None:
    log = Starts(spec(32), lambda b, s, t: 8.0 if s == C else 90.0)
    decisions = [log.run() for _ in range(6)]
    tries = [d for d in decisions if len(d.attempts) == 2]
    assert tries
    for decision in tries:
        first, last = decision.attempts
        assert (first.bounded, first.start != C, last.bounded, last.start) == (True, True, False, C)
        assert f"32 from a {first.start} start" in first.why
    assert log.log[-1].state is State.CONVERGED


def test_batch_size_and_start_are_chosen_together() -> None:
    needs = {16: 6.0, 32: 8.0, 64: 20.0}
    log = Starts(spec(16, 32, 64, default=16), lambda b, s, t: 1.0 if s == W else needs[b])
    for _ in range(30):
        log.run()
    kept = [(t.batch_size, t.observation.start) for t in log.log if t.state.kept_model]
    assert kept[0] == (16, C)
    assert [start for _, start in kept[-6:]].count(W) >= 4


def test_warm_runs_move_nothing_of_what_cold_starts_teach() -> None:
    log = Starts(spec(16, 32, default=16), lambda b, s, t: 10.0 if s == C else 1.0)
    for _ in range(12):
        log.run()
    belief = log.belief
    cold = reduce(learn, [t for t in log.log if t.observation.start == C], prior(log.job))
    assert {run.start for run in belief.starts} > {C}
    assert belief.gp.mean.tolist() == cold.gp.mean.tolist()
    assert belief.converged == cold.converged


def test_one_epoch_is_an_upper_bound_and_says_nothing_of_larger_sizes_being_slower() -> None:
    runs = tuple(StartRun(n, 16, 1.0, True, None, f"s{n}", W, W, True, 1) for n in range(1, 7))
    job = spec(16, 64, default=16)
    belief = replace(prior(job), starts=runs)
    model = start_policy._model(belief, W, Lineage(from_age=1))
    assert model.gp.mean.tolist() == pytest.approx([0.0, 0.0], abs=0.2), (
        "no less than one epoch, and no slope"
    )


def test_starts_are_compared_at_like_age() -> None:
    young = [StartRun(n, 16, 1.0, True, None, f"s{n}", W, W, True, 1) for n in range(1, 5)]
    old = [StartRun(n, 16, 12.0, True, None, f"s{n}", W, W, True, 4) for n in range(5, 9)]
    belief = replace(prior(spec(16)), starts=(*young, *old))
    means = [
        float(start_policy._model(belief, W, Lineage(from_age=age)).gp.mean[0]) for age in (1, 4)
    ]
    assert means[0] < 1.0 < means[1]


def test_a_start_that_serves_worse_is_out() -> None:
    log = Starts(
        spec(32), lambda b, s, t: {C: 16.0, S: 4.0, W: 1.0}[s], served={C: 1.02, S: 1.02, W: 1.6}
    )
    for _ in range(20):
        log.run()
    kept = [t.observation.start for t in log.log if t.state.kept_model]
    assert kept[-8:].count(W) == 0
    assert S in kept[-8:]
    assert "warm start have served worse" in log.decide().attempts[0].why


@pytest.mark.parametrize(
    ("ours", "cold", "worse"),
    [
        ([0.4, 0.5, 0.45], [0.02], True),
        ([0.04, 0.02, 0.03], [0.02, 0.01], False),
        ([0.5], [0.0], False),
        ([0.5, 0.5], [], False),
        ([0.3, -0.3, 0.5, 0.0], [0.0, 0.1], False),
    ],
)
def test_only_what_is_surely_worse_counts(
    ours: list[float], cold: list[float], worse: bool
) -> None:
    known = [Served(n, W, r) for n, r in enumerate(ours)] + [
        Served(n, C, r) for n, r in enumerate(cold)
    ]
    assert serves_worse(known, W) is worse
    assert not serves_worse(known, S)


def test_a_cold_run_is_due_when_the_savings_pay_for_five() -> None:
    runs = [StartRun(1, 32, 10.0, True, None, "s", C, C, True, 0)]
    job = spec(32)
    held = Lineage(from_age=1, from_start=W, from_generations=1)
    for n in range(2, 8):
        runs.append(StartRun(n, 32, 1.0, True, None, "s", W, W, True, 1))
        due = cold_is_due(job, runs, held, 10.0, {32: 1.0})
        assert (due is not None) == ((n - 1) * 9.0 >= 50.0)
    for epochs in (1.0, 9.0):  # given up early or late, they save nothing
        tries = [
            *runs[:2],
            *(StartRun(n, 32, epochs, False, None, "s", S, S, True, 1) for n in range(3, 12)),
        ]
        assert cold_is_due(job, tries, held, 10.0, {32: 1.0}) is None
    long = replace(held, from_generations=50)
    assert "50 generations" in (cold_is_due(job, [], long, 10.0, {32: 1.0}) or "")


def test_a_due_cold_run_is_told_and_ends_with_a_model() -> None:
    log = Starts(spec(32), lambda b, s, t: 12.0 if s == C else 1.0)
    due = [d for d in (log.run() for _ in range(24)) if "A cold run is due" in d.attempts[0].why]
    assert due
    assert all(
        len(d.attempts) == 1 and d.attempts[0].start == C and not d.attempts[0].bounded for d in due
    )


def test_starts_that_cannot_be_taken_are_tried_less_and_less() -> None:
    def run(planned: Start, able: bool) -> StartRun:
        return StartRun(1, 32, 9.0, True, None, "s", planned, C, able, 1)

    assert not paused([])
    assert not paused([run(C, True)])
    assert paused([run(W, False)]), "the newest could not"
    assert not paused([run(W, False), run(C, True)])
    assert paused([run(W, False), run(C, True), run(W, False), run(C, True)])
    assert not paused([run(W, False), run(C, True), run(W, False), run(C, True), run(C, True)])
    assert paused([run(C, False)]), "run.start() is not called"
    log = Starts(spec(32), lambda b, s, t: 12.0)
    for _ in range(12):
        log.run(start=C, reasons={WHY_COLD: "not seen"})
    assert {attempt.start for d in [log.decide()] for attempt in d.attempts} == {C}


def test_a_resumed_run_and_one_with_models_of_two_starts_teach_no_start() -> None:
    job = spec(32)
    resumed = make_trial(1, job=job, batch_size=32, state=State.CONVERGED, start=W, epochs=None)
    mixed = make_trial(
        2, job=job, batch_size=32, state=State.CONVERGED, epochs=4.0, reasons={"start": "differ"}
    )
    belief = reduce(learn, [resumed, mixed], prior(job))
    assert (belief.starts, belief.converged) == ((), ())


def test_a_belief_with_starts_comes_back_from_its_checkpoint() -> None:
    log = Starts(spec(32), lambda b, s, t: 9.0 if s == C else 3.0, served={C: 1.1, S: 1.1, W: 1.1})
    for _ in range(8):
        log.run()
    belief = log.belief
    assert belief.starts
    assert belief.served
    assert Belief.from_json(prior(log.job), belief.to_json()) == belief


def test_what_nothing_reached_cold_is_tried_from_another_start_before_another_size() -> None:
    log = Starts(spec(32, 64), lambda b, s, t: 200.0 if s == C else 5.0)
    decisions = [log.run() for _ in range(4)]
    assert planned_starts(decisions[1]) == ["shrunk"]
    assert decisions[1].attempts[0].phase is Phase.EXPLORE
    assert log.log[-1].observation.start != C


def test_pins_audits_and_fallbacks_have_a_start() -> None:
    log = Starts(spec(32, 64), lambda b, s, t: 12.0 if s == C else 3.0)
    for _ in range(8):
        log.run()
    pinned = log.decide(settings={"pin_batch_size": 32}).attempts
    assert [(a.phase, a.start in (S, W)) for a in pinned] == [(Phase.PINNED, True)]
    assert log.decide(settings={"audit_after": 10**6}).attempts[0].start == C
    assert fallback(log.job, why="no store").attempts[0].start == C
    assert (
        choose(Situation(log.job, log.belief, device=V100, run_type="backfill")).attempts[0].start
        == C
    )


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"starts": ["warm"]}, "without cold"),
        ({"starts": ["cold", "cold"]}, "cold is there more than once"),
        ({"starts": ["cold", "hot"]}, "'hot' is not known"),
        ({"starts": "warm"}, "not a list"),
        ({"starts": ["cold", "warm"], "policy": "zeus"}, "not known to policy"),
    ],
)
def test_wrong_starts_are_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(JobSpecError, match=problem):
        spec(32, **fields)


def test_starts_need_a_job_that_chooses_sizes() -> None:
    with pytest.raises(JobSpecError, match="needs a job that chooses batch sizes"):
        ZeusJob(starts=["cold", "warm"])


def test_the_generations_of_a_model_are_counted_from_the_last_cold_one() -> None:
    job = spec(32)
    first = make_trial(1, job=job, batch_size=32, state=State.CONVERGED, start=C)
    second = replace(
        make_trial(2, job=job, batch_size=32, start=W), lineage=Lineage.after(first, 1)
    )
    third = replace(
        make_trial(3, job=job, batch_size=32, start=S), lineage=Lineage.after(second, 2)
    )
    assert [t.generations for t in (first, second, third)] == [0, 1, 2]
    held = third.lineage
    assert (held.from_ti_id, held.from_attempt, held.from_start, held.from_age) == (
        *_key(second),
        W,
        2,
    )


def _key(trial: Trial) -> tuple[str, int]:
    return trial.key.ti_id, trial.key.attempt


def test_an_attempt_is_told_with_its_start() -> None:
    attempt = PlannedAttempt(batch_size=32, phase=Phase.EXPLORE, why="", start=W)
    assert (
        encode(Decision(attempts=(attempt,), seed=1, policy="x"))["attempts"][0]["start"] == "warm"
    )


def test_a_run_from_the_earlier_model_that_would_miss_costs_what_another_start_does_and_not_all_its_epochs() -> (
    None
):
    log = Starts(
        spec(32),
        lambda b, s, t: 6.0 if s == C else 90.0 if s == S else 200.0 if t % 3 == 0 else 1.0,
    )
    decisions = [log.run() for _ in range(30)]
    assert [t.state for t in log.log if t.state in (State.EXHAUSTED, State.FAILED)] == []
    assert sum(t.observation.epochs or 0.0 for t in log.log) < 30 * 6.0, "less than always cold"
    first, last = next(d for d in reversed(decisions) if d.attempts[0].start == W).attempts
    assert (first.phase, first.bounded, first.tried) == (Phase.INCUMBENT, True, False)
    assert (last.start, last.bounded, first.bound_epochs) == (C, False, 6.0)
    assert "it is given up above" in first.why
    assert "costs least of the other starts" in last.why
    assert (
        incumbent_or_last(next(d for d in reversed(decisions) if d.attempts[0].start == W).attempts)
        is first
    )


def test_a_start_that_failed_says_nothing_against_its_batch_size() -> None:
    log = Starts(spec(16, 32, default=16), lambda b, s, t: 6.0 if s == C else 1.0)
    for _ in range(6):
        log.run()
    planned = log.decide()
    assert len(planned.attempts) == 2
    failed = make_trial(
        len(log.log) + 1, job=log.job, batch_size=planned.attempts[0].batch_size, state=State.FAILED
    )
    failed = replace(failed, decision=planned, planned=planned.attempts[0])
    assert learn(log.belief, failed).struck == frozenset()


def test_a_bounded_incumbent_is_an_incumbent() -> None:
    """It has a stand-in, is no strike when it fails, and joules of another device bound nothing."""
    log = Starts(
        spec(16, 32, default=32), lambda b, s, t: (20.0 if b == 16 else 6.0) if s == C else 1.0
    )
    for _ in range(9):
        log.run()
    planned = log.decide()
    assert [(a.batch_size, a.phase) for a in planned.attempts] == [(32, Phase.INCUMBENT)] * 2
    assert planned.stand_in is not None
    assert (planned.stand_in.batch_size, planned.stand_in.start) == (16, planned.attempts[-1].start)
    smaller = replace(planned.attempts[-1], batch_size=16)
    failed = make_trial(len(log.log) + 1, job=log.job, batch_size=32, state=State.FAILED)
    failed = replace(failed, decision=replace(planned, attempts=(planned.attempts[0], smaller)))
    assert learn(log.belief, replace(failed, planned=planned.attempts[0])).struck == frozenset()
    elsewhere = choose(
        Situation(log.job, log.belief, device=replace(V100, model="A100"), lineage=log.lineage)
    )
    assert not any(attempt.bounded for attempt in elsewhere.attempts)


def test_a_run_of_a_job_without_starts_was_cold() -> None:
    trial = make_trial(1, job=spec(32), batch_size=32, state=State.CONVERGED)
    assert start_of(trial) is C
    mixed = replace(trial.observation, reasons={"start": "its models started differently"})
    assert start_of(replace(trial, observation=mixed)) is None


def test_a_single_long_run_of_a_start_does_not_change_its_mind() -> None:
    log = Starts(spec(32), lambda b, s, t: {C: 14.0, S: 9.0, W: 34.0 if t == 12 else 1.0}[s])
    for _ in range(20):
        log.run()
    kept = [t.observation.start for t in log.log if t.state.kept_model]
    assert kept[-6:].count(W) >= 4


def test_a_start_that_is_slow_now_and_then_is_used_at_what_it_costs_with_the_start_after_it() -> (
    None
):
    log = Starts(spec(32), lambda b, s, t: {C: 12.0, S: 4.0, W: 26.0 if t % 5 == 0 else 1.0}[s])
    for _ in range(36):
        log.run()
    newest = log.log[
        next(n for n, t in enumerate(log.log) if t.decision == log.log[-20].decision) :
    ]
    kept = [t for t in newest if t.state.kept_model and t.observation.start != C]
    assert sum(t.observation.epochs or 0.0 for t in newest if t.observation.start != C) < 4.0 * len(
        kept
    )
    reached = {
        t.observation.start: t.number for t in reversed(log.log) if t.state is State.CONVERGED
    }
    tried = [t for t in log.log if t.planned.tried and t.number > reached[t.planned.start]]
    assert [t.planned.start for t in tried if t.planned.start != C] == [], (
        "what has run is not tried once more"
    )


def test_a_start_that_raises_in_each_run_is_planned_less_and_less() -> None:
    log = Starts(spec(32, starts=["cold", "warm"]), lambda b, s, t: 12.0)
    planned = ["warm" in planned_starts(log.run(raises=W)) for _ in range(30)]
    assert planned[:3] == [False, True, True], "after the first error it is tried once more"
    pauses = "".join("w" if each else "." for each in planned[3:]).split("w")
    assert [len(pause) for pause in pauses[:4]] == [1, 3, 7, 11]
    assert "raised an error twice" in next(
        t.decision.attempts[0].why for t in log.log[5:] if t.planned.start == C
    )


def test_a_start_that_raises_keeps_no_other_start_from_running() -> None:
    log = Starts(spec(32), lambda b, s, t: 3.0 if s == S else 12.0)
    planned = [planned_starts(log.run(raises=W)) for _ in range(24)]
    assert sum("warm" in each for each in planned) <= 6
    assert sum("shrunk" in each for each in planned[-8:]) >= 7, "but for a cold run that is due"
    assert log.belief == Belief.from_json(prior(log.job), log.belief.to_json())
