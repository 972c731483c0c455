"""From a belief to the attempts of a decision, under the policy ``"knowledge_gradient"``. Pure; needs numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.optimizer.drift import SURPRISES
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.knowledge_gradient import Choice, Outlook, best, dearest_epoch
from airflow_provider_zeus.optimizer.scene import NEAR_AFTER, Scene
from airflow_provider_zeus.optimizer.surrogate import hardness
from airflow_provider_zeus.optimizer.trial import Attempt, DeviceInfo, Phase, ProfileSample

HARD = 1.25  # x the usual epochs: a slice that is worth a word

Attempts = tuple[Attempt, ...]
Recommended = tuple[Attempts, Attempt | None]


def recommend(
    job: ZeusJob,
    belief: Belief,
    device: DeviceInfo | None,
    profiles: Sequence[ProfileSample],
    held: str | None,
) -> Recommended:
    """(attempts, what runs after them should they miss the target) of the next recurrence.

    :param held: why nothing new may be tried now; None where it may.
    """
    (first, *after), second = _attempts(Scene.of(job, belief, device, profiles), held)
    if forgot := _forgot(belief):
        first = replace(first, why=f"{first.why} {forgot}")
    return (first, *after), second


def _attempts(scene: Scene, held: str | None) -> Recommended:
    if not scene.converged:
        return (_first(scene, held),), None
    outlook = scene.outlook()
    if outlook is None:
        return (_unpriced(scene),), None
    index, second = outlook.incumbent()
    b = scene.all_sizes[index]
    if held is None and scene.belief.newest[1]:
        held = "The run before died"  # a retry ends with a model, whatever killed that run
    if held:
        return (_incumbent(b, held),), _second(scene, b, second)
    if not scene.costs:  # another device's joules rank batch sizes, but bound no run
        alone = _incumbent(b, "No cost was measured on this device yet")
        return (alone,), _second(scene, b, second)
    choice = best(outlook, index, scene.within)
    if choice.index != index:
        attempt = _tried(scene, outlook, choice, b)
    elif (returning := scene.returning(outlook, index)) is not None:
        attempt = _returning(scene, outlook, returning, b)
    else:
        alone = _incumbent(b, "Knowledge gradient: no other batch size is worth a try now")
        return (alone,), _second(scene, b, second)
    why = f"{attempt.batch_size} was given up; {b}, the cheapest known to reach the target, runs to the end."
    after = Attempt(batch_size=b, phase=Phase.INCUMBENT, why=why)
    return (attempt, after), None


def _first(scene: Scene, held: str | None) -> Attempt:
    """Nothing has converged yet: the default, then whatever is nearest to it, each to its end."""
    usual = scene.usual()
    if held:
        return Attempt(batch_size=usual, phase=Phase.INCUMBENT, why=f"{held}; this run takes {usual}.")
    ended = [b for _, b, _ in scene.belief.stopped]
    b = min(
        scene.feasible or {usual},
        key=lambda b: (ended.count(b), b != usual, abs(math.log2(b / usual)), b),
    )
    if b == usual and not ended:
        default = b == scene.job.default_batch_size
        why = f"{b}, {'the default' if default else 'the nearest to the default that fits'}, comes first."
    else:
        why = f"No batch size has reached the target yet; {b} is the nearest to {usual} tried least."
    return Attempt(batch_size=b, phase=Phase.EXPLORE, why=why)


def _incumbent(b: int, reason: str) -> Attempt:
    """The incumbent instead of anything new."""
    why = f"{reason}; {b}, the cheapest known to reach the target, runs."
    return Attempt(batch_size=b, phase=Phase.INCUMBENT, why=why)


def _second(scene: Scene, incumbent: int, index: int | None) -> Attempt | None:
    """What runs where the incumbent misses the target, against all that is known of it; None where nothing may."""
    if index is None:
        return None
    why = f"Where {incumbent} misses the target or does not fit: the next cheapest known to reach it."
    return Attempt(batch_size=scene.all_sizes[index], phase=Phase.INCUMBENT, why=why)


def _unpriced(scene: Scene) -> Attempt:
    """The default where it converged, else what needed fewest epochs: nothing is known of what an epoch costs."""
    needed, usual = dict(zip(scene.all_sizes, scene.belief.surrogate.mean, strict=True)), scene.usual()
    b = min(scene.converged, key=lambda b: (b != usual, needed[b], b))
    why = f"No EpochCost is known on any device; {b}, which reached the target, runs."
    return Attempt(batch_size=b, phase=Phase.INCUMBENT, why=why)


def _tried(scene: Scene, outlook: Outlook, choice: Choice, incumbent: int) -> Attempt:
    """An exploratory attempt that is worth its cost."""
    text, cost = scene.weights.text, np.exp(outlook.log_cost)
    b, index = scene.all_sizes[choice.index], scene.all_sizes.index(incumbent)
    ran = scene.belief.by_era[-1].get(b)
    runs = 0 if ran is None else ran.runs
    seen = f"from {runs} run{'s' if runs > 1 else ''}" if runs else "as its neighbours tell"
    why = (
        f"Knowledge gradient: {b} is believed to cost {text(float(cost[choice.index]))} ({seen}), {incumbent} "
        f"{text(float(cost[index]))}; what it may save in the next {outlook.horizon():g} runs is worth the try; it "
        f"is given up above {text(choice.give_up_at)}.{_excuse(scene, b)}"
    )
    attempt = Attempt(batch_size=b, phase=Phase.EXPLORE if not runs else Phase.SAMPLE, why=why)
    dearest = None if b in scene.costs else dearest_epoch(outlook, index, choice.index)
    return _bounded(scene, attempt, choice.give_up_at, dearest)


def _returning(scene: Scene, outlook: Outlook, choice: Choice, incumbent: int) -> Attempt:
    """A batch size that nobody ran for a window: it may have become better without a sign."""
    b, text = scene.all_sizes[choice.index], scene.weights.text
    phase = Phase.EXPLORE if scene.never_ran(b) else Phase.RETURN
    limit = choice.give_up_at + scene.costs.get(b, 0.0) / 2  # to the nearest whole epoch: of two or three each counts
    why = (
        f"{b} {_why_back(scene, b)} and is tried, in case it is cheaper than {incumbent}; it is given up above "
        f"{text(limit)}."
    )
    return _bounded(scene, Attempt(batch_size=b, phase=phase, why=why), limit)


def _why_back(scene: Scene, b: int) -> str:
    if b in scene.missed:
        return "missed the target in its newest run, which may have been chance,"
    if scene.never_ran(b):
        return "has never run, only its neighbours speak against it,"
    last = scene.newest.get(b, 0)
    since = sum(n > last for n, _, _ in scene.belief.converged)
    if since >= min(NEAR_AFTER, scene.job.window):
        return f"has had no run among the last {since} converged ones"
    return f"has had one run alone among the last {scene.job.window} converged ones"


def _bounded(scene: Scene, attempt: Attempt, limit: float, dearest: float | None = None) -> Attempt:
    """The attempt, given up above this cost [J], and after its first epoch where that is dearer than ``dearest``."""
    known, epochs = scene.costs.get(attempt.batch_size), None
    if known is not None:
        epochs = float(max(1, math.floor(limit / known)))
    return replace(
        attempt,
        # the bound in epochs decides, unless EpochCost is not what it was
        bound_cost=limit if known is None or epochs is None else (epochs + 0.5) * known,
        bound_epochs=epochs,
        max_epoch_cost=limit if dearest is None else dearest,
        bound_samples_per_epoch=scene.belief.slice_size[1] if scene.belief.slice_size else None,
    )


def _excuse(scene: Scene, b: int) -> str:
    """Why a batch size that was given up may be tried again: its slice of the data was hard for others too."""
    belief, sizes = scene.belief, scene.belief.surrogate.sizes
    for n, size, _ in reversed(belief.stopped):
        if size == b and n >= belief.era:
            beside = [(sizes.index(s), epochs) for s, epochs in belief.beside(n)]
            longer = math.exp(hardness(belief.surrogate.mean, beside, whole=True))
            if longer < HARD:
                return ""
            other = sizes[beside[-1][0]]
            return f" It was given up before on a hard slice of the data, where {other} took {longer:.2g} x its usual."
    return ""


def _forgot(belief: Belief) -> str | None:
    """What was forgotten lately, and why; None where nothing was."""
    if not belief.changes or belief.age() > SURPRISES:
        return None
    change = belief.changes[-1]
    told = change.told_by
    runs = f"trial {told[0]}" if len(told) == 1 else f"trials {told[0]} to {told[-1]}"
    return (
        f"The data changed at trial {change.since}: {runs} needed {math.exp(change.jump):.2g} x the epochs predicted. "
        "Earlier runs tell which batch sizes are better, no longer how many epochs they need."
    )
