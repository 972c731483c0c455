"""What sibling jobs tell each other, and what a decision makes of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.family import Family, Told
from airflow_provider_zeus.model.trial import Decision
from airflow_provider_zeus.model.wire import decode, encode
from airflow_provider_zeus.optimizer.knowledge_gradient import family as core
from airflow_provider_zeus.optimizer.knowledge_gradient.decision_context import DecisionContext
from airflow_provider_zeus.optimizer.knowledge_gradient.family import heard
from airflow_provider_zeus.optimizer.knowledge_gradient.gp import prior
from airflow_provider_zeus.optimizer.policy import choose, heard_by, told_by
from tests.strategies import REPRODUCIBLE, V100
from tests.unit.optimizer.world import World, job_of

SIZES = (16, 32, 64, 128, 256, 512)
GOOD = {16: 8.0, 32: 8.0, 64: 9.0, 128: 11.0, 256: 18.0, 512: 34.0}
SECONDS = {16: 10.0, 32: 6.0, 64: 4.0, 128: 3.0, 256: 2.5, 512: 2.3}  # of an epoch: 128 is the cheapest
REVERSED = {b: GOOD[o] for b, o in zip(SIZES, reversed(SIZES), strict=True)}
FLAT = dict.fromkeys(SIZES, 12.0)


def world(epochs: Mapping[int, float] = GOOD, default: int = 512, **fields: object) -> World:
    job = job_of(*SIZES, default=default, policy="knowledge_gradient", **fields)
    return World(job, epochs, SECONDS)


def ran(epochs: Mapping[int, float] = GOOD, runs: int = 15, default: int = 512, sizes: Sequence[int] = ()) -> World:
    """A job after so many runs; ``sizes``: with these in turn, whatever its policy had chosen."""
    here = world(epochs, default)
    for n in range(runs):
        if sizes:
            here.add(sizes[n % len(sizes)])
        else:
            here.run()
    return here


def tells(here: World) -> Told:
    told = told_by(here.belief, V100)
    assert told is not None
    return told


@cache
def relative() -> Told:
    """What a job tells after 15 runs."""
    return tells(ran())


def hears(here: World, *others: Told) -> Family:
    found = heard_by(here.belief, V100, others)
    assert found is not None
    return found


def spent(here: World) -> float:
    return math.fsum(here.epoch_cost(t.batch_size) * (t.observation.epochs or 0.0) for t in here.log)


def played(others: Sequence[Told], runs: int = 20, epochs: Mapping[int, float] = GOOD, default: int = 512) -> float:
    """What so many runs of a job cost whose siblings told this."""
    here = world(epochs, default)
    for _ in range(runs):
        here.run(family=heard_by(here.belief, V100, others))
    return spent(here)


def test_a_job_that_has_not_run_tells_nothing_and_one_without_siblings_hears_nothing() -> None:
    assert told_by(world().belief, V100) is None
    assert heard_by(ran().belief, V100, []) is None
    assert ran().decide().family is None


def test_the_papers_policy_asks_for_no_family() -> None:
    paper = World(job_of(*SIZES, default=512), GOOD, SECONDS)
    paper.runs(3)
    assert told_by(paper.belief, V100) is None
    assert heard_by(paper.belief, V100, [relative()]) is None


def test_levels_stay_each_jobs_own() -> None:
    one = tells(ran(sizes=SIZES))
    twice = tells(ran({b: 2 * e for b, e in GOOD.items()}, sizes=SIZES))
    n = len(SIZES)
    assert np.reshape(one.precision, (n, n)).sum(1) == pytest.approx(np.zeros(n), abs=1e-3), "nothing of a level"
    at, off = (np.reshape(one.precision, (n, n)), np.array(twice.shift) - np.array(one.shift))
    assert np.abs(np.linalg.pinv(at, rcond=1e-3) @ off).max() < 0.1, "and the same curve"


def test_a_job_with_siblings_goes_straight_to_what_suited_them() -> None:
    told = [relative(), relative()]
    here = world()
    for _ in range(2):
        here.run(family=heard_by(here.belief, V100, told))
    assert [t.batch_size for t in here.log] == [512, 128], "the default has to reach the target first"
    assert played(told) < 0.97 * played([])
    assert played(told, default=16) < 0.93 * played([], default=16)


def test_a_size_that_one_relative_alone_has_reached_is_no_nearer() -> None:
    here, told = ran(runs=1), relative()
    assert hears(here, told).reached == ()
    assert 128 in hears(here, told, told).reached


def test_the_sentence_names_them() -> None:
    told = relative()
    here = ran(runs=1)
    decision = here.decide(family=hears(here, told, told, told))
    assert "(predicted from 3 sibling jobs and its neighbours)" in decision.attempts[0].why
    assert "1 sibling job and" in here.decide(family=hears(here, told)).attempts[0].why


def test_a_decision_can_be_replayed_from_what_it_holds() -> None:
    here = ran(runs=1)
    decision = here.decide(family=hears(here, relative(), relative()))
    stored = decode(Decision, encode(decision))
    assert stored == decision
    assert choose(here.job, here.belief, device=V100, seed=decision.seed, family=stored.family) == decision
    assert here.decide().attempts != decision.attempts, "it was no decision without relatives"


def test_epoch_costs_count_for_the_same_device_and_eta_alone() -> None:
    here, told = ran(runs=1), relative()
    assert hears(here, told).cost_sizes
    assert not hears(here, replace(told, device="1 x A40 by nvml_counter")).cost_sizes
    assert not hears(here, replace(told, eta=1.0)).cost_sizes


def test_epochs_cost_what_relatives_say_who_are_two_on_the_same_device() -> None:
    here, told = ran(runs=1), relative()

    def doubt(*others: Told) -> float:
        """Variance of ln EpochCost of 128, four times less than the default's size."""
        among = here.belief.among(hears(here, *others))
        predictions = DecisionContext.of(here.job, among, V100, ()).predictions()
        assert predictions is not None
        return float(predictions.epoch_cost_variance[SIZES.index(128)])

    assert doubt(told, told) < 0.15**2
    assert doubt(told) > 0.4**2, "nobody confirms a sole one"
    assert doubt(*[replace(told, device="1 x A40 by nvml_counter")] * 2) > 0.15**2


def test_a_size_that_two_relatives_try_is_worth_what_its_own_run_saves_and_brings_the_next_into_reach() -> None:
    here, new = ran(runs=1), tells(ran(runs=1))
    dearer = hears(here, new, new)
    assert here.decide(family=dearer).attempts[0].batch_size == 256, "it costs more, and is worth what it teaches"
    one, two, more = (heard_by(here.belief, V100, [new, new], [256] * n) for n in (1, 2, 3))
    assert one == dearer
    assert two == more == replace(dearer, tried=(256,))
    assert here.decide(family=two).attempts[0].batch_size == 128, "two of them tell the others what 256 costs"
    first = here.decide(family=replace(dearer, tried=SIZES)).attempts[0]
    assert first.batch_size == 16
    assert " next run" in first.why, "all of them are tried: it runs since it is believed cheaper itself"
    told = relative()
    cheaper = here.decide(family=replace(hears(here, told, told), tried=SIZES)).attempts[0]
    assert cheaper.batch_size == 128, "a run that is expected to save goes on"
    assert "what it may save in the next run " in cheaper.why


def test_what_was_told_of_other_sizes_leaves_a_decision_as_it_is() -> None:
    here, other = ran(runs=1), World(job_of(16, 32, 512, default=512, policy="knowledge_gradient"), GOOD, SECONDS)
    strange = heard_by(other.belief, V100, [relative()])
    assert here.decide(family=strange).attempts == here.decide().attempts


@cache
def strangers(kind: str) -> list[Told]:
    """What relatives of a kind tell."""
    return STRANGERS[kind]()


@cache
def alone(default: int) -> float:
    """What 30 runs of a job cost that has no relatives."""
    return played([], runs=30, default=default)


STRANGERS = {
    "a reversed curve": lambda: [tells(ran(REVERSED, default=16))],
    "a flat one": lambda: [tells(ran(FLAT))],
    "a hundred runs and two": lambda: [tells(ran(GOOD, 100)), tells(ran(REVERSED, 2, default=16))],
    "one reversed among relatives": lambda: [relative(), relative(), tells(ran(REVERSED, default=16))],
}


@pytest.mark.parametrize("kind", STRANGERS)
@pytest.mark.parametrize("default", [16, pytest.param(128, marks=pytest.mark.nightly), 512])
def test_a_stranger_costs_at_most_two_per_cent(kind: str, default: int) -> None:
    assert played(strangers(kind), runs=30, default=default) <= 1.02 * alone(default)


def test_nonsense_sways_its_own_job_and_no_relative() -> None:
    """A pod that reports that only the smallest size trains at all, a thousand times as well as any."""
    nonsense = tells(ran({b: 1.0 if b == 16 else 100.0 for b in SIZES}, 60, default=16, sizes=SIZES))
    honest = [relative(), relative()]
    assert played([*honest, nonsense]) <= 1.02 * played(honest)
    assert played([nonsense]) <= 1.02 * played([])


def test_what_one_job_tells_is_bounded() -> None:
    told = tells(ran({b: 1.0 if b == 16 else 100.0 for b in SIZES}, 300, default=16, sizes=SIZES))
    n, (neutral, shape) = len(SIZES), prior(SIZES, 16)
    root = np.linalg.cholesky(shape)
    of = root.T @ np.reshape(told.precision, (n, n)) @ root
    assert np.linalg.eigvalsh(of).max() <= core.MOST_TOLD * 1.001
    away = root.T @ (np.array(told.shift) - np.reshape(told.precision, (n, n)) @ neutral)
    assert np.linalg.norm(np.linalg.pinv(of, rcond=1e-4) @ away) <= core.MOST_SD * math.sqrt(n) * 1.01


_told = st.builds(
    lambda at, values, off: _message(tuple(sorted(at)), values, off),
    st.sets(st.sampled_from(SIZES), min_size=2, max_size=6),
    st.lists(st.floats(0, 20), min_size=6, max_size=6),
    st.lists(st.floats(-3, 3), min_size=6, max_size=6),
)


def _message(sizes: tuple[int, ...], learnt: Sequence[float], off: Sequence[float]) -> Told:
    neutral, shape = prior(sizes, sizes[-1])
    back, n = np.linalg.inv(np.linalg.cholesky(shape)).T, len(sizes)
    centred = np.eye(n) - 1.0 / n
    precision = centred @ (back * learnt[:n]) @ back.T @ centred
    shift = precision @ (neutral + np.array(off[:n]))
    return Told(sizes=sizes, precision=tuple(precision.ravel().tolist()), shift=tuple(shift.tolist()))


@REPRODUCIBLE
@given(others=st.lists(_told, min_size=1, max_size=5), default=st.sampled_from(SIZES))
def test_whatever_is_told_a_decision_is_finite_and_sure_of_no_more_than_it_may_be(
    others: list[Told], default: int
) -> None:
    found = heard(SIZES, default, "", 0.5, others)
    assert found is not None
    assert all(math.isfinite(v) for part in (found.log_weights, *found.precisions, *found.shifts) for v in part)
    n, shape = len(SIZES), prior(SIZES, default)[1]
    for far, flat in zip(core.FAR, found.precisions, strict=True):
        precision = np.reshape(flat, (n, n))
        assert np.linalg.eigvalsh(precision).min() > -1e-3 * max(np.abs(precision).max(), 1.0), "it widens no doubt"
        left = np.linalg.inv(np.linalg.inv(shape) + precision) - far * shape
        assert np.linalg.eigvalsh(left).min() > -0.05 * far, "each keeps its own deviation"
    swapped = heard(SIZES, default, "", 0.5, others[::-1])
    assert swapped is not None
    assert swapped.log_weights == pytest.approx(found.log_weights, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(
    "changed",
    [{"shift": ()}, {"precision": (1.0,)}, {"costs": (1.0,)}, {"sizes": (0, *SIZES[1:])}, {"sizes": ()}],
)
def test_a_message_whose_parts_do_not_fit_is_refused(changed: dict[str, tuple[float, ...]]) -> None:
    with pytest.raises(ValueError, match=r"lengths|above 0"):
        decode(Told, {**encode(tells(ran(runs=3))), **encode(changed)})
