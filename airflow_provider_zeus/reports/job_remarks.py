"""Remarks on a job that its newest trials call for. Pure.

Two jobs under one id, a new target, a new device, a metric in another unit than the target or none
at all, a target that is too easy, a command that is not seen to use its batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import chain, pairwise, takewhile
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.groups import grouped, known_values
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.job_ids import job_id_of_task
from airflow_provider_zeus.model.learning_rate import EarlierRate
from airflow_provider_zeus.model.run_numbers import RunNumbers
from airflow_provider_zeus.model.target import Target, remark
from airflow_provider_zeus.model.trial import (
    DATA_WAIT,
    LIMIT,
    TELL_METRIC,
    UNCAPPED,
    UNSEEN,
    Phase,
    State,
    Trial,
    Where,
    untaught,
)
from airflow_provider_zeus.reports.limit_profiles import same_limit
from airflow_provider_zeus.units import devices

NEWEST = 30  # a change further back is no news
FEW = 10  # a rename is noticed soon or never

_Task = tuple[str, str, int]


class RemarkKind(StrEnum):
    """The subject of a remark."""

    TWO_JOBS = "two jobs"  # their runs alternate, which no renamed task does
    OTHER_TASK = "other task"  # it may be a task that was renamed, so it is no warning
    TARGET = "target"
    DEVICE = "device"
    LIMIT = "limit"
    # Such a target is reached at once, or never: its direction looks wrong, or one of metric and
    # target is a share, the other one per cent.
    UNIT = "unit"
    NO_METRIC = "no metric"  # without one nothing can be chosen
    UNSEEN = "unseen"  # a choice that nobody reads changes nothing
    DATA_WAIT = "data wait"
    UNCAPPED = "uncapped"
    EASY = "easy"  # every batch size reaches such a target, so nothing is learned
    RATE = "rate"  # a larger batch with the same rate needs more epochs


@dataclass(frozen=True, slots=True)
class Remark:
    """One remark. ``number``: of the trial that shows it."""

    kind: RemarkKind
    number: int
    text: str

    @property
    def is_warning(self) -> bool:
        """Whether something has to be mended; other remarks are notes."""
        return self.kind in (
            RemarkKind.TWO_JOBS,
            RemarkKind.UNIT,
            RemarkKind.NO_METRIC,
            RemarkKind.UNSEEN,
        )


def remarks(
    trials: Sequence[Trial], *, device: Where | None = None, reader: str | None = None
) -> list[Remark]:
    """The newest remark of each kind, in order of number.

    Trials of another ``job_version`` than the newest do not count: nothing is learned from them.

    :param trials: the newest of one job, in order of number.
    :param device: that of the newest trial, while it has not reported it.
    :param reader: DAG whose readers see the texts, which tell nothing of another DAG's runs; None:
        they tell of all.
    """
    if not trials:
        return []
    newest = trials[-1]
    of_version = _of_version(trials, newest)
    # Runs from before the job named batch sizes have none, and would look like another job.
    if newest.planned.phase is not Phase.MEASURED:
        of_version = [t for t in of_version if t.planned.phase is not Phase.MEASURED]
    own = [t for t in of_version if reader in (None, t.origin.dag_id)]
    numbers = RunNumbers(trials)
    shown = [_other_job(of_version, reader, numbers)]
    if own:
        shown += [
            _new_target(own, numbers),
            _new_device(own, device, numbers),
            _new_limit(own, numbers),
        ]
        shown += of_ended(_ended(own), numbers)
    return sorted(filter(None, shown), key=lambda remark: remark.number)


def _other_job(trials: Sequence[Trial], reader: str | None, numbers: RunNumbers) -> Remark | None:
    """Whether another task than that of the newest trial has other batch sizes or another target.

    Two jobs are certain if the other task ran after this one had got its present batch sizes and
    target.
    """
    newest = trials[-1]
    mine = _task(newest)
    learned = _learned(newest.spec)
    # The newest run of each task stands for it: an older one may have been mended since.
    others = {_task(t): t for t in trials if _task(t) != mine}
    # Tasks with the same sizes and target share a job on purpose.
    different = [t for t in others.values() if _learned(t.spec) != learned]
    if not different:
        return None
    other = max(different, key=lambda t: t.number)
    newest_first = reversed(_of_task(trials, newest))
    # Before it had its present sizes and target the task may have shared the job on purpose.
    *_, first = takewhile(lambda t: _learned(t.spec) == learned, newest_first)
    since = first.number
    described = f"{_named(newest, reader)}; {_named(other, reader)}"
    if since < other.number:
        text = (
            f"Two jobs share job_id {newest.job_id!r}, and each learns from the other's runs: "
            f"{described}. Give each its own job_id."
        )
        return Remark(RemarkKind.TWO_JOBS, newest.number, text)
    # Another index of this task that ran before its job was changed is no second job.
    if _task(other)[:2] == mine[:2]:
        return None
    text = (
        f"Another task ran under job_id {newest.job_id!r} up to run {numbers.run(other)}: "
        f"{described}. If both still run, give each its own job_id."
    )
    return Remark(RemarkKind.OTHER_TASK, since, text)


def _new_target(trials: Sequence[Trial], numbers: RunNumbers) -> Remark | None:
    """The newest change of the target from one run of a task to its next."""
    # A run without a target was measured as it is: the first target of its job is no change.
    with_target = [t for t in trials if t.spec.get("target") is not None]
    change = _newest_change(with_target, lambda t, u: _target(t.spec) != _target(u.spec))
    if change is None:
        return None
    last, trial = change
    text = (
        f"The target changed at run {numbers.run(trial)} from {last.spec.get('target')} to "
        f"{trial.spec.get('target')}: runs to another target teach no epochs."
    )
    return Remark(RemarkKind.TARGET, trial.number, text)


def _newest_change(
    trials: Sequence[Trial], differ: Callable[[Trial, Trial], bool]
) -> tuple[Trial, Trial] | None:
    """The newest run of a task that differs from the one before it, after that one."""
    # Runs of two tasks alternate: each task is compared with its own earlier runs alone.
    of_tasks = grouped(trials, _task).values()
    successive = chain.from_iterable(map(pairwise, of_tasks))
    changes = [(last, trial) for last, trial in successive if differ(last, trial)]
    return max(changes, key=lambda change: change[1].number, default=None)


def _new_device(
    trials: Sequence[Trial], device: Where | None, numbers: RunNumbers
) -> Remark | None:
    """The newest change of the device from one trial to the next that names one."""
    before = None
    remark = None
    for trial in trials:
        where = trial.observation.where
        # While the newest trial has reported nothing, its open device tells the change already.
        if where is None and trial is trials[-1]:
            where = device
        if where is None:
            continue
        if before not in (None, where):
            text = (
                f"The device changed at run {numbers.run(trial)} from {_device(before)} to "
                f"{_device(where)}: energy and time of the two are not compared."
            )
            remark = Remark(RemarkKind.DEVICE, trial.number, text)
        before = where
    return remark


def _new_limit(trials: Sequence[Trial], numbers: RunNumbers) -> Remark | None:
    """The newest change of the limit that is tuned by a task's steps, and its cause: sizes have one
    each.
    """
    as_they_are = [t for t in _ended(trials) if t.planned.phase is Phase.MEASURED]
    tuned = [t for t in as_they_are if t.spec.get("mode") == "optimize"]
    limited = [t for t in tuned if t.observation.power_limit_w is not None]
    change = _newest_change(limited, lambda t, u: not same_limit(_limit_w(t), _limit_w(u)))
    if change is None:
        return None
    last, trial = change
    day = f"{datetime.fromtimestamp(trial.opened_at, UTC):%Y-%m-%d}"
    text = (
        f"The power limit changed from {_limit_w(last):,.0f} W to {_limit_w(trial):,.0f} W "
        f"on {day} (run {numbers.run(trial)}){_why_limit(last, trial)}."
    )
    return Remark(RemarkKind.LIMIT, trial.number, text)


def _limit_w(trial: Trial) -> float | None:
    return trial.observation.power_limit_w


def _why_limit(old: Trial, new: Trial) -> str:
    """Why the power limit changed between two runs, as far as the log shows it; else empty."""
    was = old.observation
    now = new.observation
    if UNCAPPED in now.reasons:
        return ": none can save anything here"
    if LIMIT in now.reasons:
        return f": {now.reasons[LIMIT]}"
    if was.where != now.where:
        return ", as the device did"
    if was.step_kind != now.step_kind:
        return ": another model or optimizer was trained"
    changed = [
        name
        for name in ("eta", "power_limits_w", "max_power_w")
        if old.spec.get(name) != new.spec.get(name)
    ]
    if changed:
        return f", as {' and '.join(changed)} of the job did"
    if now.excess_s or was.excess_s:
        return ": limits were measured once more"
    return ""


def _of_target(trial: Trial) -> Remark | None:
    """Whether the target looks wrong beside the first metric of a run: its direction, its unit, or
    too easy.
    """
    o = trial.observation
    first = o.metric
    if o.epoch_metrics:
        first = o.epoch_metrics[0]
    target = _target(trial.spec)
    if first is None or not isinstance(target, Target):
        return None
    if o.target_value:
        target = replace(target, value=o.target_value)
    doubt = target.doubt(first)
    if doubt is not None:
        return Remark(RemarkKind.UNIT, trial.number, remark(doubt))
    start = o.start or trial.planned.start
    # a model that was trained before may reach an ambitious target at once
    if start not in (None, Start.COLD):
        return None
    if not o.epoch_metrics or o.epochs is None:
        return None
    at_once = target.at_once(first)
    if at_once is None:
        return None
    return Remark(RemarkKind.EASY, trial.number, remark(at_once))


def earlier_rate(trials: Sequence[Trial], task: Trial) -> EarlierRate | None:
    """The learning rate of the newest ended trial of a task; None if it told none.

    :param trials: the newest of its job, in order of number.
    :param task: a trial of the task.
    """
    ended = _ended(_of_version(_of_task(trials, task), task))
    if not ended:
        return None
    newest = ended[-1]
    rate = newest.observation.learning_rate
    # Only a rate beside a size can be compared.
    if rate is None or newest.batch_size is None:
        return None
    return EarlierRate(newest.batch_size, rate)


def _same_rate(trials: Sequence[Trial]) -> Remark | None:
    """Whether the newest trial and the one before it had the same learning rate at different batch
    sizes.
    """
    if len(trials) < 2:
        return None
    *_, before, newest = trials
    earlier = earlier_rate([before], newest)
    if earlier is None:
        return None
    text = earlier.remark(newest.batch_size, newest.observation.learning_rate)
    if text is None:
        return None
    return Remark(RemarkKind.RATE, newest.number, text)


def of_ended(trials: Sequence[Trial], numbers: RunNumbers) -> list[Remark]:
    """Remarks on the last of these trials, which have ended: its target, metric, batch size, limit,
    learning rate.
    """
    if not trials:
        return []
    trial = trials[-1]
    observation = trial.observation
    reasons = observation.reasons
    texts = {}
    if trial.state is State.NO_METRIC:
        texts[RemarkKind.NO_METRIC] = (
            f"No metric reported: whether run {numbers.run(trial)} reached its target is not known,"
            " and no batch size is tried before one comes."
            f" {TELL_METRIC[0].upper()}{TELL_METRIC[1:]}."
        )
    if DATA_WAIT in reasons:
        texts[RemarkKind.DATA_WAIT] = f"{reasons[DATA_WAIT]}.{observation.wait_remedy}"
    if UNCAPPED in reasons:
        why = reasons[UNCAPPED]
        texts[RemarkKind.UNCAPPED] = f"{why[0].upper()}{why[1:]}. No power limit is chosen."
    if UNSEEN in reasons:
        texts[RemarkKind.UNSEEN] = (
            f"Not seen to use its batch size: {reasons[UNSEEN]}. Unless it reads it elsewhere, "
            "nothing that Zeus chooses changes it. Read ZEUS_BATCH_SIZE, or train under "
            "ZeusRun.from_env()."
        )
    shown = [_same_rate(trials), _of_target(trial)]
    shown += [Remark(kind, trial.number, text) for kind, text in texts.items()]
    return known_values(shown)


def bypassed(trials: Iterable[Trial]) -> str:
    """A text: runs did not use their batch size, as far as can be told; with the remedy.

    Empty if all of them did.
    """
    untaught_trials = [t for t in trials if t.observation.bypassed is not None]
    if not untaught_trials:
        return ""
    newest = max(untaught_trials, key=lambda t: t.number)
    origins = [t.origin for t in untaught_trials]
    count = len({(o.run_id, o.task_id, o.map_index) for o in origins})
    which = "1 run teaches nothing and counts"
    if count > 1:
        which = f"{count:,} runs teach nothing and count"
    return untaught(which, newest.observation.bypassed or "")


def _task(trial: Trial) -> _Task:
    return trial.origin.dag_id, trial.origin.task_id, trial.origin.map_index


def _of_task(trials: Sequence[Trial], task: Trial) -> list[Trial]:
    """The trials of the same task."""
    return [t for t in trials if _task(t) == _task(task)]


def _of_version(trials: Sequence[Trial], task: Trial) -> list[Trial]:
    """The trials of the same ``job_version``."""
    job_version = task.spec.get("job_version")
    return [t for t in trials if t.spec.get("job_version") == job_version]


def _ended(trials: Sequence[Trial]) -> list[Trial]:
    return [t for t in trials if t.state is not State.RUNNING]


def _learned(spec: Mapping[str, Any]) -> object:
    """Batch sizes and target, which two tasks that share a job have in common."""
    return frozenset(spec.get("batch_sizes") or ()), _target(spec)


def _target(spec: Mapping[str, Any]) -> object:
    """The target, equal in any notation."""
    try:
        return Target.parse(spec.get("target"))
    except JobSpecError:  # a newer version wrote it
        return spec.get("target")


def _named(trial: Trial, reader: str | None) -> str:
    dag_id, task_id, index = _task(trial)
    if reader not in (None, dag_id):
        return "a task of another DAG has others"
    name = f"{dag_id}.{task_id}"
    if index >= 0:
        name += f" [{index}]"
    batch_sizes = trial.spec.get("batch_sizes")
    if not batch_sizes:
        return f"{name} has no batch sizes"
    sizes = ", ".join(map(str, batch_sizes))
    return f"{name} has batch sizes {sizes} and target {trial.spec.get('target')}"


def _device(where: Where) -> str:
    model, count, source = where
    return f"{devices(model, count)} ({source or 'no source of energy'})"


def candidates(trials: Sequence[Trial], latest: Iterable[Trial]) -> list[Trial]:
    """The newest trial of each job whose history a new job may have lost by a rename; empty for a
    job with a history.

    Such a job has the name of its task, the same batch sizes, default and target, no run since the
    new job's first one, and another DAG with this task, or another task of this DAG.

    :param trials: the newest of the new job, oldest first.
    :param latest: the newest trial of each job in the log.
    """
    # A job with a history of its own has lost none.
    is_new = 0 < len(trials) <= FEW and trials[0].number == 1
    if not is_new or not _named_by_task(trials[-1]):
        return []
    new = trials[-1]
    since = min(t.opened_at for t in trials)
    # A job that still runs was not renamed.
    silent = [t for t in latest if t.opened_at < since]
    return [old for old in silent if _may_be_renamed(old, new)]


def _may_be_renamed(old: Trial, new: Trial) -> bool:
    """Whether two jobs are alike, and either the DAG or the task has another name."""
    if not _named_by_task(old):
        return False
    same_dag = old.origin.dag_id == new.origin.dag_id
    same_task = old.origin.task_id == new.origin.task_id
    # equal names are the job itself; two other names are another job
    if same_dag == same_task:
        return False
    names = ("batch_sizes", "default_batch_size", "target")
    return all(old.spec.get(name) == new.spec.get(name) for name in names)


def looks_like(renamed: Sequence[Trial], new: Trial, dags: Collection[str]) -> str | None:
    """The name of the one job that a new job looks like; None if there is none, or several.

    :param renamed: as :func:`candidates` has them.
    :param dags: the DAGs that there are now.
    """
    there = set(dags) - {new.origin.dag_id}  # its DAG is there though a task of it was renamed
    gone = [t.job_id for t in renamed if t.origin.dag_id not in there]
    # Of two candidates either may be wrong.
    if len(gone) != 1:
        return None
    return gone[0]


def _named_by_task(trial: Trial) -> bool:
    return trial.job_id == job_id_of_task(trial.origin.dag_id, trial.origin.task_id)
