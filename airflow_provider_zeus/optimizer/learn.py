"""Learning from the trial log: ``reduce(learn, trials, prior(job))``."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import replace

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.cost import Rates
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.target import Target
from airflow_provider_zeus.model.trial import NO_STRIKE, PLAIN, Phase, State, Trial
from airflow_provider_zeus.optimizer import starts
from airflow_provider_zeus.optimizer.belief import (
    RATES_KEPT,
    RECURRENCES_KEPT,
    UNKNOWN,
    Belief,
    Failure,
    Kept,
    RatesBySize,
    Run,
)
from airflow_provider_zeus.optimizer.posterior import own_arithmetic
from airflow_provider_zeus.optimizer.slices import most_epochs, short, slice_name
from airflow_provider_zeus.patience import T

_MOST_TARGET = 100  # any DAG file may write it
FAILURES_KEPT = 64  # more than a barred size has before it is cleared, unless many fail at once
KEPT_AFTER = 160  # more than 80 recurrences have, for which strikes bar a size at most
WELL_KEPT = 4  # newest runs of a size without an error: one more than its strikes are counted in


@own_arithmetic()
def learn(belief: Belief, trial: Trial) -> Belief:
    """The belief after one more trial. Pure.

    Excluded trials teach nothing at all (:attr:`.Belief.excluded`). Running trials, those without
    data and those of another ``job_version`` teach nothing; a run that did not use its batch size,
    as far as can be told, teaches neither Epochs nor rates; one that was measured without a batch
    size teaches its device alone. Epochs(b) is learnt from conclusive cold runs to the job's
    current target whose run type is in ``learn_from``; rates from every trial that measured them;
    feasibility from out of memory, errors and deaths.
    A run that trained nothing counts as a recurrence.
    """
    job = belief.job
    n = trial.number
    same_version = trial.spec["job_version"] == job.job_version
    if n in belief.excluded or not same_version or trial.state is State.RUNNING:
        return belief
    if trial.planned.phase is Phase.MEASURED:  # no batch size is there to learn about
        return belief.changed(_newer_device(belief, trial))
    counted = _counted(belief, trial)
    if not trial.state.teaches:
        return belief.changed(counted)
    bypassed = trial.observation.bypassed is not None
    in_vain = trial.state.died or trial.state is State.NO_METRIC or bypassed
    # trials may arrive in any order: the highest number is the newest one
    changes: dict[str, object] = {"newest": max((n, in_vain), belief.newest), **counted}
    _learn_feasible(belief, trial, changes)
    if not trial.state.died:
        changes["plain"] = max((n, PLAIN in trial.observation.reasons), belief.plain)
    to_target = same_target(trial, job)
    if not to_target:
        earlier = str(trial.spec["target"])[:_MOST_TARGET]
        changes["retargeted"] = max((n, earlier), belief.retargeted)
    if not bypassed:
        _learn_rates(belief, trial, changes)
        if to_target and trial.origin.run_type in job.learn_from:
            _learn_run(belief, trial, changes)
    return belief.changed(changes)


def with_rates(belief: Belief, trials: Iterable[Trial]) -> Belief:
    """The belief with the rates of these trials, the same ones re-costed, in place of its own."""
    rates: RatesBySize = {}
    for trial in trials:
        if trial.number in belief.excluded or trial.planned.phase is Phase.MEASURED:
            continue
        # As in learn(): a new costing must not make more trials teach.
        teaches = trial.state.teaches and trial.observation.bypassed is None
        same_version = trial.spec["job_version"] == belief.job.job_version
        if same_version and teaches:
            rates = _rates(rates, trial)
    return replace(belief, rates=rates)


def same_target(trial: Trial, job: ZeusJob) -> bool:
    """Whether a trial had the job's current target, in any notation."""
    text = trial.spec["target"]
    if text == job.target:
        return True
    try:
        # Texts may differ and mean the same: "acc>=0.9" is "acc >= 0.90".
        return Target.parse(text) == job.parsed_target
    except JobSpecError:  # another version may have written what this one cannot parse
        return False


def _counted(belief: Belief, trial: Trial) -> dict[str, object]:
    """The fields that a further recurrence changes.

    All tries of a run are one, numbered by the first of its trials.

    Retries follow soon: a run that is cleared after :data:`RECURRENCES_KEPT` others counts once
    more.
    """
    n = trial.number
    name = short(trial.recurrence)
    firsts = {of: first for first, of in belief.started}
    if trial.origin.run_type not in belief.job.learn_from:
        return {}
    if n >= firsts.get(name, n + 1):
        return {}
    started = sorted((first, of) for of, first in {**firsts, name: n}.items())
    recurrences = belief.recurrences + (name not in firsts)
    return {"recurrences": recurrences, "started": tuple(started[-RECURRENCES_KEPT:])}


def _learn_feasible(belief: Belief, trial: Trial, changes: dict[str, object]) -> None:
    """Learn from errors, deaths and out of memory, and from trials without them."""
    n = trial.number
    b = trial.batch_size
    state = trial.state
    run = short(trial.recurrence)
    if trial.planned.phase is Phase.AUDIT:
        changes["audits"] = (belief.audits[0] + 1, max(belief.audits[1], n))
    if trial.observation.out_of_memory:
        model = trial.observation.device_model or UNKNOWN
        changes["too_large"] = belief.too_large | {(b, model)}
    elif not state.died:
        well = sorted({*belief.ran_well.get(b, ()), n})
        changes["ran_well"] = {**belief.ran_well, b: tuple(well[-WELL_KEPT:])}
    elif _began(trial):
        # Such an error counts against its start, in starts.start_run(), and not against the size.
        of_start = state is State.FAILED and trial.planned.start not in (None, Start.COLD)
        failure = Failure(
            n, b, run, of_size=not of_start and NO_STRIKE not in trial.observation.reasons
        )
        changes["failures"] = _newest(belief.failures, failure, FAILURES_KEPT)
    if not state.kept_model:
        return
    changes["newest_kept"] = max(n, belief.newest_kept)
    # Only then may an earlier failure of its run be a strike: a first attempt has none before it.
    if trial.key.attempt > 1 or trial.origin.try_number > 1:
        changes["kept_after"] = _newest(belief.kept_after, Kept(n, b, run), KEPT_AFTER)


def _began(trial: Trial) -> bool:
    """Whether a training began under a trial that died.

    None did if nothing ever reported to it: for example, its task waited for a full pool until the
    lease was over.
    """
    observation = trial.observation
    return (
        trial.state is not State.ABANDONED
        or observation.start_id is not None
        or observation.time_s is not None
    )


def _newer_device(belief: Belief, trial: Trial) -> dict[str, object]:
    """The field that the device of a trial changes, unless a newer trial has named one."""
    where = trial.observation.where
    if where is None:
        return {}
    if belief.device is not None and trial.number <= belief.device[0]:
        return {}
    return {"device": (trial.number, where, trial.observation.max_power_w)}


def _learn_rates(belief: Belief, trial: Trial, changes: dict[str, object]) -> None:
    """Rates; device and size of the slice."""
    n = trial.number
    b = trial.batch_size
    where = trial.observation.where
    changes |= _newer_device(belief, trial)
    changes["rates"] = _rates(belief.rates, trial)
    if where is not None and trial.state.conclusive:
        newest = max(n, belief.newest_there.get((b, where), 0))
        changes["newest_there"] = {**belief.newest_there, (b, where): newest}
    size = _slice_size(trial)
    if size and (belief.slice_size is None or n > belief.slice_size[0]):
        changes["slice_size"] = (n, size)


def _rates(before: RatesBySize, trial: Trial) -> RatesBySize:
    """The rates by batch size and device, with those that a trial measured."""
    rates = Rates.of(trial.observation)
    where = trial.observation.where
    if rates is None or where is None:
        return before
    key = trial.batch_size, where
    return {**before, key: _newest(before.get(key, ()), (trial.number, rates), RATES_KEPT)}


def _slice_size(trial: Trial) -> float | None:
    """Samples of an epoch as the trial reported them, else as many as its epochs took."""
    observation = trial.observation
    if observation.samples_per_epoch or not trial.state.conclusive:
        return observation.samples_per_epoch
    if not observation.samples or not observation.epochs:
        return None
    return observation.samples / observation.epochs


def _learn_run(belief: Belief, trial: Trial, changes: dict[str, object]) -> None:
    """The start of a run to the job's target, and its epochs."""
    of_start = starts.start_run(trial)
    if of_start is not None:
        changes["starts"] = _newest(belief.starts, of_start, belief.job.window)
    if trial.state.conclusive:
        _learn_epochs(belief, trial, changes)


def _learn_epochs(belief: Belief, trial: Trial, changes: dict[str, object]) -> None:
    n = trial.number
    b = trial.batch_size
    epochs = trial.observation.epochs
    window = belief.job.window
    model_served = starts.served(trial, belief.job)
    if model_served is not None:
        changes["served"] = _newest(belief.served, model_served, window)
    reached = trial.state is State.CONVERGED
    # A run that reached its target before its first epoch shows no number of epochs.
    is_run = bool(epochs) or not reached
    if starts.is_cold(trial) and is_run:
        changes |= _with_run(belief, trial, (n, b, epochs or 0.0))
    earlier = {size: n for size in trial.spec["batch_sizes"] if n < belief.listed.get(size, n + 1)}
    if earlier:
        changes["listed"] = {**belief.listed, **earlier}
    if trial.planned.phase is Phase.EXPLORE and trial.planned.round is not None:
        key = (trial.planned.round, b)
        first, reached_before = belief.explored.get(key, (n, False))
        changes["explored"] = {**belief.explored, key: (min(first, n), reached or reached_before)}


def _with_run(belief: Belief, trial: Trial, run: Run) -> dict[str, object]:
    """The fields that one more run changes; its results may come in any order."""
    reached = trial.state is State.CONVERGED
    window = belief.job.window
    converged = belief.converged
    stopped = belief.stopped
    if belief.job.policy == "zeus":
        if reached:
            return {"converged": _newest(converged, run, window)}
        return {"stopped": _newest(stopped, run, window)}
    # A trial that comes again must not count twice.
    if any(other[0] == run[0] for other in (*converged, *stopped)):
        return {}
    slices = {**belief.slices, trial.number: slice_name(trial)}
    fields: dict[str, object] = {}
    if reached:
        learned = belief.learned + 1
        keep = learned
        if learned >= window:
            # half a window is forgotten at once, since all that follows from older runs has to be
            # computed again
            keep = window + (learned - window) % max(window // 2, 1)
        converged = _newest(converged, run, keep)
        fields["learned"] = learned
        fields["converged"] = converged
    else:
        fields["stopped"] = stopped = _newest(stopped, run, window)
        exhausted = dict(belief.exhausted)
        most = most_epochs(trial)
        if most is not None:
            exhausted[trial.number] = most
        fields["exhausted"] = {n: exhausted[n] for n, _, _ in stopped if n in exhausted}
    if len(converged) + len(stopped) <= len(belief.converged) + len(belief.stopped):
        slices = {n: slices[n] for n, _, _ in (*converged, *stopped) if n in slices}
    return {**fields, "slices": slices}


def _newest(entries: tuple[T, ...], entry: T, keep: int) -> tuple[T, ...]:
    """The ``keep`` newest of ``entries`` (ascending by their first item) and ``entry``."""
    # Trials mostly come in order: then nothing has to be sorted.
    if not entries or entries[-1][0] <= entry[0]:  # type: ignore[index]
        return (*entries, entry)[-keep:]
    grown = list(entries)
    insort(grown, entry, key=lambda e: e[0])  # type: ignore[index]
    return tuple(grown[-keep:])
