"""What the policy promises: a good default costs little more, a bad one is left, and nothing sticks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest

from airflow_provider_zeus.model.cost import observed_cost
from airflow_provider_zeus.model.trial import Phase, State
from airflow_provider_zeus.optimizer.knowledge_gradient.decision_context import DecisionContext
from airflow_provider_zeus.optimizer.knowledge_gradient.policy import AUDIT_GAP
from airflow_provider_zeus.optimizer.situation import Situation
from tests.strategies import V100, make_trial
from tests.unit.optimizer.world import NEVER, World, job_of

EPOCH_S = {16: 40.0, 32: 20.0, 64: 12.0, 128: 9.0, 256: 8.0}
DIFFICULTY = (1.0, 1.2, 0.9, 1.1, 0.85, 1.3, 1.05, 0.8)  # of the slices, over and over


def world(needs: Mapping[int, float], default: int) -> World:
    return World(
        job_of(*EPOCH_S, default=default, policy="knowledge_gradient"), dict(needs), EPOCH_S, V100
    )


def cost(w: World) -> float:
    known = [
        observed_cost(
            trial.observation, DecisionContext.of(Situation(w.job, w.belief, V100)).weights
        )
        for trial in w.log
    ]
    return math.fsum(c for c in known if c is not None)


def against_the_default(needs: Mapping[int, float], default: int, recurrences: int = 40) -> float:
    """Cost of all runs over that of always training the default, on the same slices."""
    w = world(needs, default)
    total = 0.0
    for n in range(recurrences):
        hard = DIFFICULTY[n % len(DIFFICULTY)]
        w.epochs = {b: round(e * hard) if math.isfinite(e) else e for b, e in needs.items()}
        total += w.epochs[default] * w.epoch_cost(default)
        w.run()
    return cost(w) / total


@pytest.mark.slow
@pytest.mark.parametrize(
    ("needs", "most"),
    [
        ({16: 15, 32: 10, 64: 18, 128: 30, 256: 60}, 1.22),  # 16 costs 3 x, 128 1.35 x as much
        ({16: 5.5, 32: 10, 64: 17, 128: NEVER, 256: NEVER}, 1.06),
    ],
)
def test_a_good_default_costs_little_more(needs: Mapping[int, float], most: float) -> None:
    assert against_the_default(needs, 32) < most
    assert against_the_default(needs, 32, 100) < 1 + 0.8 * (most - 1), "tries get rarer"


def test_a_bad_default_is_left() -> None:
    needs = {16: 12, 32: 10, 64: 11, 128: 14, 256: 30}
    assert against_the_default(needs, 16) < 0.5, "128 costs .26 of it"
    assert against_the_default(needs, 256) < 0.65, "128 costs .53 of it"


def test_a_target_that_only_smaller_sizes_reach_is_reached_again() -> None:
    """And never again missed once a size is found."""
    w = world({16: 12, 32: 10, 64: 11, 128: 14, 256: 30}, 32)
    w.runs(15)
    w.epochs = {16: 14, 32: 13, 64: NEVER, 128: NEVER, 256: NEVER}
    missed = []
    for _ in range(20):
        w.run()
        missed.append(w.log[-1].state is State.EXHAUSTED)
    assert sum(missed) <= 6
    assert not any(missed[missed.index(False) :])


@pytest.mark.parametrize("left_after", [16.0, 1.0])
def test_a_loop_that_is_left_below_its_target_has_missed_it(left_after: float) -> None:
    """Early stopping, or a command that reports no epochs: it never takes ``max_epochs``."""
    w = World(
        job_of(32, 64, 128, default=64, policy="knowledge_gradient"),
        dict.fromkeys((32, 64, 128), 12.0),
        EPOCH_S,
    )
    if left_after == 1.0:
        w.epochs = dict.fromkeys(w.epochs, 1.0)
    first = []
    for n in range(40):
        b = w.decide().attempts[0].batch_size
        first.append(b)
        ok = n < 10 or b == 32
        w.add(
            b,
            State.CONVERGED if ok else State.EXHAUSTED,
            None if ok else left_after,
            data_slice=f"{n}",
        )
    assert set(first[-15:]) == {32}, "the one size that still reaches it"


def test_a_default_that_never_reaches_its_target_is_not_tried_for_ever() -> None:
    w = world({16: 12, 32: NEVER, 64: 11, 128: 14, 256: 30}, 32)
    first = []
    for _ in range(12):
        b = w.decide().attempts[0].batch_size
        first.append(b)
        w.add(b, *(() if b != 32 else (State.EXHAUSTED, 25.0)))
    assert 32 not in first[-6:]


def test_the_reason_says_whether_the_sizes_that_reached_the_target_miss_it_or_may_not_run() -> None:
    def why(*ends: tuple[int, str]) -> str:
        w = world({32: 10, 64: 8, 128: 9}, 64)
        w.job = replace(w.job, batch_sizes=(32, 64, 128))
        for n, b in enumerate((64, 64, 128, 128)):
            w.add(b, data_slice=f"{n}")
        for n, (b, end) in enumerate(ends):
            failed = (
                {"state": State.FAILED, "out_of_memory": True}
                if end == "memory"
                else {"state": State.EXHAUSTED}
            )
            w.add(b, epochs=100.0 if end == "missed" else 0.0, data_slice=f"later {n}", **failed)
        return w.decide().attempts[0].why.partition(";")[0]

    misses = [(b, "missed") for b in (64, 64, 64, 128, 128, 128)]
    assert (
        why((64, "memory"), (128, "memory"))
        == "No batch size that has reached the target may run here"
    )
    assert why(*misses) == "Every batch size that has reached the target misses it now"
    mixed = why(*misses[:3], (128, "memory"))
    assert mixed == "Every batch size that has reached the target misses it now or may not run here"


def test_a_slice_that_no_size_reaches_keeps_the_job_at_a_good_size() -> None:
    w = world({16: 12, 32: 10, 64: 11, 128: 14, 256: 30}, 32)
    assert w.runs(20)[-1] in (64, 128)
    usual = w.epochs
    for _ in range(4):
        w.epochs = dict.fromkeys(EPOCH_S, NEVER)
        w.run()
        w.epochs = usual
        assert set(w.runs(3)) <= {64, 128}, "which cost nearly the same"
    assert not w.belief.changes


@pytest.mark.slow
def test_a_short_job_tries_only_what_its_few_runs_pay_back() -> None:
    def spent(runs: int, expected_runs: int | None) -> float:
        w = world({16: 18, 32: 10, 64: 9, 128: 40, 256: 90}, 32)  # 64 saves 46 %
        w.job = replace(w.job, expected_runs=expected_runs)
        first = w.runs(runs)
        return cost(w) / (runs * 10 * w.epoch_cost(32)) if first[0] == 32 else math.nan

    assert spent(3, 3) == pytest.approx(1, rel=0.02)
    assert spent(60, 60) < 0.7
    assert spent(60, 60) == pytest.approx(spent(60, None), rel=0.1)


def test_the_last_run_tries_nothing() -> None:
    w = world({16: 12, 32: 10, 64: 11, 128: 14, 256: 30}, 16)
    w.runs(3)
    assert w.decide().attempts[0].bounded
    assert [a.bounded for a in w.decide(runs_left=0).attempts] == [False]
    w.job = replace(w.job, expected_runs=4)
    assert w.belief.recurrences == 3
    assert not w.decide(runs_left=50).attempts[0].bounded, "what the job says comes first"


def test_what_was_saved_may_be_spent_on_tries() -> None:
    def allowance(w: World) -> float:
        context = DecisionContext.of(Situation(w.job, w.belief, V100))
        predictions = context.predictions()
        assert predictions is not None
        return predictions.allowance

    alone = world({32: 10, 64: 8}, 32)
    better = world({32: 10, 64: 8}, 32)
    one = 10 * alone.epoch_cost(32)
    for w in (alone, better):
        w.add(32)
    for _ in range(9):
        alone.add(32)
        better.add(64)
    assert allowance(alone) == pytest.approx(one, rel=0.01), "nothing saved"
    saved = 9 * (one - 8 * better.epoch_cost(64))
    assert allowance(better) == pytest.approx(one + saved, rel=0.25)


# --- audits


def audits(w: World, recurrences: int) -> list[int]:
    """Recurrences in which the default ran for the sake of what the pages say."""
    return [n for n in range(recurrences) if w.run().attempts[0].phase is Phase.AUDIT]


@pytest.mark.nightly
def test_audits_stay_within_their_share_and_end_where_the_saving_is_known() -> None:
    found = {}
    for epochs in (9, 12, 15):  # of 64: saves 46, 28 and 10 %
        w = world({16: 18, 32: 10, 64: epochs, 128: 40, 256: 90}, 32)
        w.job = replace(w.job, audit=0.02)
        found[epochs] = audits(w, 120)
        assert len(found[epochs]) * (
            10 * w.epoch_cost(32) - epochs * w.epoch_cost(64)
        ) <= 0.02 * cost(w)
        assert all(later - earlier >= AUDIT_GAP for earlier, later in pairwise(found[epochs]))
    # the saving is far wider than its interval: only the second look is left
    assert len(found[9]) == 1
    assert 1 <= len(found[12]) <= 3
    assert max(found[12]) < 60, "then it is known"
    assert len(found[15]) > len(found[12])


def test_the_default_runs_a_second_time_soon_and_never_dearly() -> None:
    """One lucky or unlucky run of it would decide for ever; a bad one is given up."""
    w = world({16: 10, 32: 60, 64: 10, 128: 10, 256: 10}, 32)
    w.job = replace(w.job, audit=0.02)
    w.runs(AUDIT_GAP)
    first, second = (t for t in w.log if t.batch_size == 32)
    assert (first.state, second.state) == (State.CONVERGED, State.GIVEN_UP)
    assert second.planned.phase is Phase.AUDIT
    assert w.log[-1].batch_size != 32, "the best known size kept the model"
    assert (second.observation.epochs or 0.0) * w.epoch_cost(32) < 2.5 * 10 * w.epoch_cost(128)


def test_a_default_that_missed_once_and_was_given_up_runs_to_its_end_once() -> None:
    """Else nobody would ever know what the job saves. It may take all its epochs, and the share pays for them."""
    w = world({16: 60, 32: NEVER, 64: 18, 128: 40, 256: 90}, 32)
    w.job = replace(w.job, audit=0.2)
    w.runs(AUDIT_GAP)
    assert [t.state for t in w.log if t.batch_size == 32] == [State.EXHAUSTED, State.GIVEN_UP]
    (audit,) = audits(w, 120)
    whole = [t for t in w.log if t.batch_size == 32][-1]
    assert whole.state is State.EXHAUSTED
    spent = cost(w) * audit / 120
    assert whole.observation.epochs * w.epoch_cost(32) < 0.2 * spent + w.epoch_cost(64) * 18
    w.runs(120)
    assert [t for t in w.log if t.batch_size == 32][-1] is whole, "it has missed twice"


def test_a_default_that_has_not_run_since_the_data_changed_runs_once() -> None:
    """What it would need now is believed alone; by that belief the saving is sure, and perhaps wrong."""
    w = world({16: 18, 32: 10, 64: 9, 128: 40, 256: 90}, 32)
    w.job = replace(w.job, audit=0.05)
    w.epochs = {**w.epochs, 64: 7}
    w.runs(30)
    before = w.belief.audits[0]
    w.epochs = {b: 2.5 * epochs for b, epochs in w.epochs.items()}
    assert len(audits(w, 30)) == 1
    assert w.belief.audits[0] == before + 1
    assert w.belief.newest_runs[32] >= w.belief.era > 0


def test_no_audit_where_none_is_wanted_or_the_default_runs_anyway() -> None:
    bad = world({16: 18, 32: 10, 64: 9, 128: 40, 256: 90}, 32)
    assert audits(bad, 60) == []
    good = world({16: 30, 32: 8, 64: 18, 128: 40, 256: 90}, 32)
    good.job = replace(good.job, audit=0.1)
    assert audits(good, 60) == []


def test_an_audit_is_not_bounded() -> None:
    w = world({16: 18, 32: 10, 64: 9, 128: 40, 256: 90}, 32)
    w.job = replace(w.job, audit=0.05)
    while (decision := w.decide()).attempts[0].phase is not Phase.AUDIT:
        w.run()
    (attempt,) = decision.attempts
    assert (attempt.batch_size, attempt.bounded) == (32, False)
    assert "5 % of what the job spends" in attempt.why


@pytest.mark.parametrize("policy", ["knowledge_gradient", "zeus"])
def test_an_audit_that_is_asked_for_runs_once(policy: str) -> None:
    w = world({16: 18, 32: 10, 64: 9, 128: 40, 256: 90}, 32)
    w.job = replace(w.job, policy=policy)
    w.runs(30)
    settings = {"audit_after": w.log[-1].number}
    running = make_trial(w.number, 32, State.RUNNING, job=w.job, phase=Phase.AUDIT)
    assert w.decide(settings=settings, running=[running]).attempts[0].phase is not Phase.AUDIT, (
        "one is running"
    )
    decision = w.run(settings=settings)
    assert (decision.attempts[0].phase, decision.attempts[0].batch_size) == (Phase.AUDIT, 32)
    assert w.belief.audits == (1, w.log[-1].number)
    assert w.decide(settings=settings).attempts[0].phase is not Phase.AUDIT
    assert (
        w.decide(settings={"audit_after": w.log[-1].number, "pin_batch_size": 64})
        .attempts[0]
        .batch_size
        == 64
    )
