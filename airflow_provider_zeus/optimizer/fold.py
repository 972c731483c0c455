"""The fold over the trial log, ``reduce(learn, trials, prior(job))``: what each kind of trial teaches."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.optimizer.belief import RATES_KEPT, UNKNOWN, Belief, Run
from airflow_provider_zeus.optimizer.cost import Rates
from airflow_provider_zeus.optimizer.drift import CHANGES, SURPRISES, Surprise, change_among
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.strikes import FAILURES_KEPT, STRUCK_FOR, failure_of
from airflow_provider_zeus.optimizer.target import Target
from airflow_provider_zeus.optimizer.trial import EXPLORING, Phase, State, Trial

K = TypeVar("K")
V = TypeVar("V")

KNOWN_RUNS = 2  # converged runs of a batch size from which on a further one may tell of a change
_ENDED = (State.CONVERGED, State.GIVEN_UP, State.EXHAUSTED)
_DIED = (State.FAILED, State.ABANDONED)
_UNTAUGHT = (State.RUNNING, State.NO_DATA)


def learn(belief: Belief, trial: Trial) -> Belief:
    """Take one trial in. Pure; running trials, those without data and those of another ``job_version`` teach nothing.

    Epochs(b) is taught by runs of the present target whose run type is in ``learn_from`` and which ended by
    themselves; rates by every trial that measured them; feasibility by out of memory, errors and deaths.
    """
    job, n = belief.job, trial.number
    if trial.state in _UNTAUGHT or trial.spec.get("job_version", job.job_version) != job.job_version:
        return belief
    changes: dict[str, object] = {"newest": max((n, trial.state in _DIED), belief.newest)}
    _learn_feasible(belief, trial, changes)
    _learn_rates(belief, trial, changes)
    if trial.state in _ENDED and same_target(trial, job) and trial.origin.run_type in job.learn_from:
        _learn_epochs(belief, trial, changes)
    learnt = belief.replaced(changes)
    learnt.count_on(belief)
    return learnt


def with_rates(belief: Belief, trials: Iterable[Trial]) -> Belief:
    """The belief with what these trials drew in place of what it learnt: they are its own trials, re-costed."""
    known = replace(belief, rates={})
    for trial in trials:
        if trial.state not in _UNTAUGHT:
            changes: dict[str, object] = {}
            _learn_rates(known, trial, changes)
            if "rates" in changes:
                known = replace(known, rates=changes["rates"])  # type: ignore[arg-type]
    return known


def same_target(trial: Trial, job: ZeusJob) -> bool:
    """Whether a trial was after the job's present target, however it is written."""
    text = trial.spec.get("target", job.target)
    if text == job.target:
        return True
    try:
        return Target.parse(text) == job.parsed_target  # "acc>=0.9" is "acc >= 0.90"
    except JobSpecError:  # of a log that another version wrote
        return False


def _learn_feasible(belief: Belief, trial: Trial, changes: dict[str, object]) -> None:
    """A death is a run that nobody came back from, or an error of an unproven batch size.

    Not one at the default, nor at a size that is no exploration: those are not the batch size's doing. Since the run
    after a death takes the incumbent, between two deaths of an unproven size another one has always lived. An error
    after which another attempt was to run is a strike, which is forgotten sooner (``strikes.py``).
    """
    b, model, failure = trial.batch_size, trial.observation.device_model or UNKNOWN, failure_of(trial)
    unproven = trial.planned.phase in EXPLORING and b != belief.job.default_batch_size
    strike = failure is not None and failure.followed
    death = trial.state is State.ABANDONED or (trial.state is State.FAILED and unproven and not strike)
    if failure is not None:
        changes["failures"] = _newest(belief.failures, failure, FAILURES_KEPT)
    if trial.key.attempt == 1:
        changes["started"] = tuple(sorted({*belief.started, trial.number})[-STRUCK_FOR:])
    changes["ends"] = _with(belief.ends, (b, model), (trial.number, death), 2)
    if trial.observation.out_of_memory:
        changes["too_large"] = belief.too_large | {(b, model)}


def _learn_rates(belief: Belief, trial: Trial, changes: dict[str, object]) -> None:
    o, n = trial.observation, trial.number
    where = o.where
    if where is not None:
        if belief.device is None or n > belief.device[0]:
            changes["device"] = (n, where, o.max_power_w)
        if trial.state in _ENDED and n > belief.seen.get((trial.batch_size, where), 0):
            changes["seen"] = {**belief.seen, (trial.batch_size, where): n}
        rates = Rates.of(o)
        if rates is not None:
            changes["rates"] = _with(belief.rates, (trial.batch_size, where), (n, rates), RATES_KEPT)
    size = o.samples_per_epoch
    if not size and o.samples and o.epochs and trial.state in _ENDED:
        size = o.samples / o.epochs
    if size and (belief.slice_size is None or n > belief.slice_size[0]):
        changes["slice_size"] = (n, size)


def _learn_epochs(belief: Belief, trial: Trial, changes: dict[str, object]) -> None:
    n, b, epochs = trial.number, trial.batch_size, trial.observation.epochs
    reached = trial.state is State.CONVERGED
    if epochs or not reached:
        slices = {**belief.slices, n: trial.origin.data_slice or trial.key.ti_id}
        changes |= _with_run(belief, (n, b, epochs or 0.0), slices, reached=reached)
    earlier = {size: n for size in trial.spec.get("batch_sizes", ()) if n < belief.listed.get(size, n + 1)}
    if earlier:
        changes["listed"] = {**belief.listed, **earlier}
    if trial.planned.phase is Phase.EXPLORE and trial.planned.round is not None:
        key = (trial.planned.round, b)
        if n < belief.explored.get(key, (n + 1, False))[0]:
            changes["explored"] = {**belief.explored, key: (n, reached)}


def _with_run(belief: Belief, run: Run, slices: Mapping[int, str], *, reached: bool) -> dict[str, object]:
    """The fields that one more run changes. Where a later one is known already, a change is looked for anew."""
    name, keep = "converged" if reached else "stopped", belief.job.window
    entries = getattr(belief, name)
    kept = _newest(entries, run, keep)
    if belief.job.policy == "zeus":
        return {name: kept}
    if len(entries) == keep:
        dropped = min(run, entries[0])[0]
        slices = {n: s for n, s in slices.items() if n != dropped}
    if all(not runs or runs[-1][0] < run[0] for runs in (belief.converged, belief.stopped)):
        return {name: kept, "slices": slices, **_change(belief, run, reached=reached)}
    known = [(r, True) for r in belief.converged] + [(r, False) for r in belief.stopped]
    if any(r[0] == run[0] for r, _ in known):  # the same trial again
        return {}
    again = replace(belief, converged=(), stopped=(), slices=slices, changes=(), surprises=())
    for r, ok in sorted([*known, (run, reached)]):
        again = replace(again, **_with_run(again, r, slices, reached=ok))  # type: ignore[arg-type]
    return {field: getattr(again, field) for field in ("converged", "stopped", "slices", "changes", "surprises")}


def _change(belief: Belief, run: Run, *, reached: bool) -> dict[str, object]:
    """The run against what was predicted for it, where its batch size is known well; a new era where Epochs jumped."""
    n, b, epochs = run
    known = belief.by_era[-1].get(b)
    if known is None or known.runs < KNOWN_RUNS:
        return {}
    surrogate = belief.surrogate
    i = surrogate.sizes.index(b)
    deviation = math.log(max(epochs, 0.5)) - float(surrogate.mean[i])
    if not reached and deviation <= 0:  # it was stopped before that could be told
        return {}
    surprise = Surprise(n, deviation, float(surrogate.run_variance[i]), reached)
    surprises = (*belief.surprises, surprise)[-SURPRISES:]
    change = change_among(surprises)
    if change is None:
        return {"surprises": surprises}
    return {"surprises": (), "changes": (*belief.changes, change)[-CHANGES:]}


def _with(mapping: Mapping[K, tuple[V, ...]], key: K, entry: V, keep: int) -> dict[K, tuple[V, ...]]:
    return {**mapping, key: _newest(mapping.get(key, ()), entry, keep)}


def _newest(entries: tuple[V, ...], entry: V, keep: int) -> tuple[V, ...]:
    """``entries`` (ordered by trial number, their first item) with ``entry``; the ``keep`` newest of them."""
    if not entries or entries[-1][0] <= entry[0]:  # type: ignore[index]
        return (*entries, entry)[-keep:]
    grown = list(entries)
    insort(grown, entry, key=lambda e: e[0])  # type: ignore[index]
    return tuple(grown[-keep:])
