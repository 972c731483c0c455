"""Learning from the trial log, ``reduce(learn, trials, prior(job))``: what each kind of trial teaches."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import replace

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.cost import Rates
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.target import Target
from airflow_provider_zeus.model.trial import NO_STRIKE, PLAIN, Phase, State, Trial, Where
from airflow_provider_zeus.optimizer import starts
from airflow_provider_zeus.optimizer.belief import RATES_KEPT, RECURRENCES_KEPT, UNKNOWN, Belief, Failure, Kept, Run
from airflow_provider_zeus.optimizer.posterior import own_arithmetic
from airflow_provider_zeus.optimizer.slices import most_epochs, short, slice_name
from airflow_provider_zeus.patience import T

_MOST_TARGET = 100  # characters of an earlier target in a sentence
FAILURES_KEPT = 64  # more than a barred size has before it is cleared, unless many fail at once
KEPT_AFTER = 160  # more than 80 recurrences have, for which strikes bar a size at most
WELL_KEPT = 4  # newest runs of a size without an error: one more than its strikes are counted in


@own_arithmetic()
def learn(belief: Belief, trial: Trial) -> Belief:
    """The belief after one more trial. Pure.

    Excluded trials teach nothing at all (:attr:`.Belief.excluded`).
    Running trials, those without data and those of another ``job_version`` teach nothing; a run that did not use its
    batch size, as far as can be told, teaches neither Epochs nor rates; one that was measured without a batch size
    teaches its device alone. Epochs(b) is learnt from conclusive cold runs to the job's current target whose run type
    is in ``learn_from``; rates from every trial that measured them; feasibility from out of memory, errors and deaths.
    A run that trained nothing counts as a recurrence.
    """
    job, n = belief.job, trial.number
    if n in belief.excluded or trial.state is State.RUNNING or trial.spec["job_version"] != job.job_version:
        return belief
    if trial.planned.phase is Phase.MEASURED:  # without a batch size
        device = _newer_device(belief, trial)
        return belief.changed({"device": device}) if device else belief
    counted = _counted(belief, trial)
    if not trial.state.teaches:
        return belief.changed(counted) if counted else belief
    bypassed = trial.observation.bypassed is not None
    in_vain = trial.state.died or trial.state is State.NO_METRIC or bypassed
    changes: dict[str, object] = {"newest": max((n, in_vain), belief.newest), **counted}
    _learn_feasible(belief, trial, changes)
    if not trial.state.died:
        changes["plain"] = max((n, PLAIN in trial.observation.reasons), belief.plain)
    if not same_target(trial, job):
        earlier = str(trial.spec["target"])[:_MOST_TARGET]
        changes["retargeted"] = max((n, earlier), belief.retargeted)
    if bypassed:
        return belief.changed(changes)
    _learn_rates(belief, trial, changes)
    if same_target(trial, job) and trial.origin.run_type in job.learn_from:
        if (of_start := starts.start_run(trial)) is not None:
            changes["starts"] = _newest(belief.starts, of_start, job.window)
        if trial.state.conclusive:
            _learn_epochs(belief, trial, changes)
    return belief.changed(changes)


def with_rates(belief: Belief, trials: Iterable[Trial]) -> Belief:
    """The belief with the rates of these trials in place of its own: they are the same trials, re-costed."""
    known = replace(belief, rates={})
    for trial in trials:
        if trial.number in belief.excluded:
            continue
        told = trial.state.teaches and trial.observation.bypassed is None  # as in learn()
        same_version = trial.spec["job_version"] == belief.job.job_version
        if same_version and told and trial.planned.phase is not Phase.MEASURED:
            changes: dict[str, object] = {}
            _learn_rates(known, trial, changes)
            if "rates" in changes:
                known = replace(known, rates=changes["rates"])  # type: ignore[arg-type]
    return known


def same_target(trial: Trial, job: ZeusJob) -> bool:
    """Whether a trial had the job's current target, in any notation."""
    text = trial.spec["target"]
    if text == job.target:
        return True
    try:
        return Target.parse(text) == job.parsed_target  # "acc>=0.9" is "acc >= 0.90"
    except JobSpecError:  # written by another version
        return False


def _counted(belief: Belief, trial: Trial) -> dict[str, object]:
    """The fields that a further recurrence changes. All tries of a run are one, numbered by the first of its trials.

    Retries follow soon: a run that is cleared after :data:`RECURRENCES_KEPT` others counts once more.
    """
    n, name = trial.number, short(trial.recurrence)
    known = {of: first for first, of in belief.started}
    if trial.origin.run_type not in belief.job.learn_from:
        return {}
    if n >= known.get(name, n + 1):
        return {}
    started = sorted((first, of) for of, first in {**known, name: n}.items())
    recurrences = belief.recurrences + (name not in known)
    return {"recurrences": recurrences, "started": tuple(started[-RECURRENCES_KEPT:])}


def _learn_feasible(belief: Belief, trial: Trial, changes: dict[str, object]) -> None:
    """Errors, deaths and out of memory, and what ended without them."""
    n, b, state, run = trial.number, trial.batch_size, trial.state, short(trial.recurrence)
    if trial.planned.phase is Phase.AUDIT:
        changes["audits"] = (belief.audits[0] + 1, max(belief.audits[1], n))
    if trial.observation.out_of_memory:
        model = trial.observation.device_model or UNKNOWN
        changes["too_large"] = belief.too_large | {(b, model)}
    elif not state.died:
        well = _newest_numbers(belief.ran_well.get(b, ()), n)
        changes["ran_well"] = {**belief.ran_well, b: well}
    elif _began(trial):
        of_start = state is State.FAILED and trial.planned.start not in (None, Start.COLD)  # see starts.start_run
        failure = Failure(n, b, run, not of_start and NO_STRIKE not in trial.observation.reasons)
        changes["failures"] = _newest(belief.failures, failure, FAILURES_KEPT)
    if not state.kept_model:
        return
    changes["newest_kept"] = max(n, belief.newest_kept)
    if trial.key.attempt > 1 or trial.origin.try_number > 1:  # else nothing of its run came before it
        changes["kept_after"] = _newest(belief.kept_after, Kept(n, b, run), KEPT_AFTER)


def _began(trial: Trial) -> bool:
    """Whether a training began under a trial that died.

    None did where nothing ever reported to it: for example, its task waited for a full pool until the lease was over.
    """
    seen = trial.observation
    return trial.state is not State.ABANDONED or seen.start_id is not None or seen.time_s is not None


def _newest_numbers(numbers: tuple[int, ...], number: int) -> tuple[int, ...]:
    return tuple(sorted({*numbers, number}))[-WELL_KEPT:]


def _newer_device(belief: Belief, trial: Trial) -> tuple[int, Where, float | None] | None:
    """What the belief keeps of the device of a trial; None if the trial names none, or a newer one has."""
    where = trial.observation.where
    if where is None:
        return None
    if belief.device is not None and trial.number <= belief.device[0]:
        return None
    return trial.number, where, trial.observation.max_power_w


def _learn_rates(belief: Belief, trial: Trial, changes: dict[str, object]) -> None:
    """Rates; device and size of the slice."""
    o, n, b, rates = trial.observation, trial.number, trial.batch_size, Rates.of(trial.observation)
    where = o.where
    if where is not None:
        device = _newer_device(belief, trial)
        if device is not None:
            changes["device"] = device
        if trial.state.conclusive and n > belief.seen.get((b, where), 0):
            changes["seen"] = {**belief.seen, (b, where): n}
        if rates is not None:
            key = b, where
            changes["rates"] = {**belief.rates, key: _newest(belief.rates.get(key, ()), (n, rates), RATES_KEPT)}
    size = o.samples_per_epoch
    if not size and o.samples and o.epochs and trial.state.conclusive:
        size = o.samples / o.epochs
    if size and (belief.slice_size is None or n > belief.slice_size[0]):
        changes["slice_size"] = (n, size)


def _learn_epochs(belief: Belief, trial: Trial, changes: dict[str, object]) -> None:
    n, b, epochs, window = trial.number, trial.batch_size, trial.observation.epochs, belief.job.window
    if (told := starts.served(trial, belief.job)) is not None:
        changes["served"] = _newest(belief.served, told, window)
    reached = trial.state is State.CONVERGED
    if starts.is_cold(trial) and (epochs or not reached):
        slices = {**belief.slices, n: slice_name(trial)}
        most, exhausted = most_epochs(trial), belief.exhausted
        if most is not None:
            exhausted = {**exhausted, n: most}
        changes |= _with_run(belief, (n, b, epochs or 0.0), slices, exhausted, reached=reached)
    earlier = {size: n for size in trial.spec["batch_sizes"] if n < belief.listed.get(size, n + 1)}
    if earlier:
        changes["listed"] = {**belief.listed, **earlier}
    if trial.planned.phase is Phase.EXPLORE and trial.planned.round is not None:
        key = (trial.planned.round, b)
        first, reached_before = belief.explored.get(key, (n, False))
        changes["explored"] = {**belief.explored, key: (min(first, n), reached or reached_before)}


def _with_run(
    belief: Belief, run: Run, slices: Mapping[int, str], exhausted: Mapping[int, float], *, reached: bool
) -> dict[str, object]:
    """The fields that one more run changes; its results may come in any order."""
    window, converged, stopped = belief.job.window, belief.converged, belief.stopped
    if belief.job.policy == "zeus":
        name, runs = ("converged", converged) if reached else ("stopped", stopped)
        return {name: _newest(runs, run, window)}
    if any(known[0] == run[0] for known in (*converged, *stopped)):  # the same trial again
        return {}
    fields: dict[str, object] = {}
    if reached:
        learned = belief.learned + 1
        # half a window is forgotten at once, since all that follows from older runs has to be computed again
        keep = learned if learned < window else window + (learned - window) % max(window // 2, 1)
        fields["learned"], fields["converged"] = learned, (converged := _newest(converged, run, keep))
    else:
        fields["stopped"] = stopped = _newest(stopped, run, window)
        fields["exhausted"] = {n: exhausted[n] for n, _, _ in stopped if n in exhausted}
    if len(converged) + len(stopped) <= len(belief.converged) + len(belief.stopped):
        slices = {n: slices[n] for n, _, _ in (*converged, *stopped) if n in slices}
    return {**fields, "slices": slices}


def _newest(entries: tuple[T, ...], entry: T, keep: int) -> tuple[T, ...]:
    """``entries`` (ordered by trial number, their first item) with ``entry``; the ``keep`` newest of them."""
    if not entries or entries[-1][0] <= entry[0]:  # type: ignore[index]
        return (*entries, entry)[-keep:]
    grown = list(entries)
    insort(grown, entry, key=lambda e: e[0])  # type: ignore[index]
    return tuple(grown[-keep:])
