"""What the newest trials of a job show of the job itself. Pure.

Two jobs under one id, a new target, a new device, a metric in another unit than the target or none at all, a target
that is too easy, a command that is not seen to use its batch size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import pairwise
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.job_ids import job_id_of_task
from airflow_provider_zeus.model.target import Target
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
)
from airflow_provider_zeus.reports.limit_profiles import same_limit
from airflow_provider_zeus.units import devices

NEWEST = 30  # trials looked at
FEW = 10  # trials of a job that counts as new

_Task = tuple[str, str, int]  # DAG, task, map index


class RemarkKind(StrEnum):
    """What a remark is about."""

    TWO_JOBS = "two jobs"  # certain: their runs alternate
    OTHER_TASK = "other task"  # two jobs, or one whose task was renamed
    TARGET = "target"
    DEVICE = "device"
    LIMIT = "limit"  # the power limit of a job that chooses no batch size
    UNIT = "unit"  # the target's direction looks wrong; or one of metric and target is a share, the other one per cent
    NO_METRIC = "no metric"  # the newest run reported none
    UNSEEN = "unseen"  # nothing shows that the newest run used its batch size
    DATA_WAIT = "data wait"  # the newest run waited for its batches
    UNCAPPED = "uncapped"  # no power limit holds the newest run back
    EASY = "easy"  # the first report reaches the target, in each of the newest runs


@dataclass(frozen=True, slots=True)
class Remark:
    """One remark. ``number``: of the trial that shows it."""

    kind: RemarkKind
    number: int
    text: str

    @property
    def is_warning(self) -> bool:
        """Whether something has to be mended; other remarks are notes."""
        return self.kind in (RemarkKind.TWO_JOBS, RemarkKind.UNIT, RemarkKind.NO_METRIC, RemarkKind.UNSEEN)


def remarks(trials: Sequence[Trial], *, device: Where | None = None, reader: str | None = None) -> list[Remark]:
    """The newest remark of each kind, in order of number.

    Trials of another ``job_version`` than the newest do not count: nothing is learned from them.

    :param trials: the newest of one job, in order of number.
    :param device: that of the newest trial, while it has not reported it.
    :param reader: DAG whose readers see the texts, which tell nothing of another DAG's runs; None: they tell of all.
    """
    if not trials:
        return []
    newest = trials[-1]
    every = [t for t in trials if t.spec.get("job_version") == newest.spec.get("job_version")]
    if newest.planned.phase is not Phase.MEASURED:  # runs from before the job named batch sizes
        every = [t for t in every if t.planned.phase is not Phase.MEASURED]
    own = [t for t in every if reader in (None, t.origin.dag_id)]
    found = [_other_job(every, reader)]
    if own:
        found += [_new_target(own), _new_device(own, device), _new_limit(own), _unit(own), _easy(own)]
        found += of_ended([t for t in own if t.state is not State.RUNNING][-1:])
    return sorted(filter(None, found), key=lambda remark: remark.number)


def _other_job(trials: Sequence[Trial], reader: str | None) -> Remark | None:
    """Whether another task than that of the newest trial has other batch sizes or another target.

    Two jobs are certain where the other task ran after this one had got its present batch sizes and target.
    """
    newest = trials[-1]
    mine = _task(newest)
    others = {_task(t): t for t in trials if _task(t) != mine}  # the newest trial of each
    different = [t for t in others.values() if _learned(t.spec) != _learned(newest.spec)]
    if not different:
        return None
    other = max(different, key=lambda t: t.number)
    since = newest.number
    for trial in reversed([t for t in trials if _task(t) == mine]):
        if _learned(trial.spec) != _learned(newest.spec):
            break
        since = trial.number
    described = f"{_named(newest, reader)}; {_named(other, reader)}"
    if since < other.number:
        text = f"Two jobs share job_id {newest.job_id!r}, and each learns from the other's runs: {described}. "
        return Remark(RemarkKind.TWO_JOBS, newest.number, f"{text}Give each its own job_id.")
    if _task(other)[:2] == mine[:2]:  # of a mapped task whose job has changed
        return None
    text = f"Another task ran under job_id {newest.job_id!r} up to trial {other.number}: {described}. "
    return Remark(RemarkKind.OTHER_TASK, since, f"{text}Where both still run, give each its own job_id.")


def _new_target(trials: Sequence[Trial]) -> Remark | None:
    """The newest change of the target from one run of a task to its next."""
    before: dict[_Task, Trial] = {}
    found = None
    for trial in trials:
        if trial.spec.get("target") is None:  # it was measured as it is: a job that climbs has its first target
            continue
        last = before.get(_task(trial), trial)
        before[_task(trial)] = trial
        if _target(last.spec) != _target(trial.spec):
            change = f"from {last.spec.get('target')} to {trial.spec.get('target')}"
            text = f"The target changed at trial {trial.number} {change}: runs to another target teach no epochs."
            found = Remark(RemarkKind.TARGET, trial.number, text)
    return found


def _new_device(trials: Sequence[Trial], device: Where | None) -> Remark | None:
    """The newest change of the device from one trial to the next that names one."""
    seen = [(t.number, t.observation.where) for t in trials]
    if seen[-1][1] is None:
        seen[-1] = seen[-1][0], device
    known = [(number, where) for number, where in seen if where is not None]
    changes = [(number, old, new) for (_, old), (number, new) in pairwise(known) if old != new]
    if not changes:
        return None
    number, old, new = changes[-1]
    change = f"from {_device(old)} to {_device(new)}"
    text = f"The device changed at trial {number} {change}: energy and time of the two are not compared."
    return Remark(RemarkKind.DEVICE, number, text)


def _new_limit(trials: Sequence[Trial]) -> Remark | None:
    """The newest change of the limit that is tuned by a task's steps, and what changed it: sizes have one each."""
    before: dict[_Task, Trial] = {}
    found = None
    for trial in trials:
        limit_w = trial.observation.power_limit_w
        tunes = trial.planned.phase is Phase.MEASURED and trial.spec.get("mode") == "optimize"
        if not tunes or limit_w is None or trial.state is State.RUNNING:
            continue
        last = before.get(_task(trial), trial)
        before[_task(trial)] = trial
        if not same_limit(last.observation.power_limit_w, limit_w):
            day = f"{datetime.fromtimestamp(trial.opened_at, UTC):%Y-%m-%d}"
            change = f"from {last.observation.power_limit_w:,.0f} W to {limit_w:,.0f} W"
            text = f"The power limit changed {change} on {day} (trial {trial.number}){_why_limit(last, trial)}."
            found = Remark(RemarkKind.LIMIT, trial.number, text)
    return found


def _why_limit(old: Trial, new: Trial) -> str:
    """What changed the power limit between two runs, as far as the log shows it; empty where it does not."""
    was, now = old.observation, new.observation
    if UNCAPPED in now.reasons:
        return ": none can save anything here"
    if LIMIT in now.reasons:
        return f": {now.reasons[LIMIT]}"
    if was.where != now.where:
        return ", as the device did"
    if was.step_kind != now.step_kind:
        return ": another model or optimizer was trained"
    changed = [name for name in ("eta", "power_limits_w", "max_power_w") if old.spec.get(name) != new.spec.get(name)]
    if changed:
        return f", as {' and '.join(changed)} of the job did"
    return ": limits were measured once more" if now.excess_s or was.excess_s else ""


def _unit(trials: Sequence[Trial]) -> Remark | None:
    """Whether the target looks wrong beside the newest metric: its direction, or its unit."""
    newest = next((t for t in reversed(trials) if t.observation.metric is not None), None)
    target = None if newest is None else _target(newest.spec)
    if newest is None or newest.observation.metric is None or not isinstance(target, Target):
        return None
    doubt = replace(target, value=newest.observation.target_value or target.value).doubt(newest.observation.metric)
    if not doubt:
        return None
    text = ". ".join(f"{part[0].upper()}{part[1:]}" for part in doubt) + "."
    return Remark(RemarkKind.UNIT, newest.number, text)


def _easy(trials: Sequence[Trial], runs: int = 3) -> Remark | None:
    """Whether the first report reached the target in each of the newest runs that started from fresh weights."""
    fresh = [t for t in trials if (t.observation.start or t.planned.start) in (None, Start.COLD)]
    newest = [t for t in fresh if t.state is State.CONVERGED and t.observation.epochs is not None][-runs:]
    if len(newest) < runs or any((t.observation.epochs or 0.0) > 1 for t in newest):
        return None
    cold = " from a cold start" if newest[-1].planned.start is not None else ""
    text = (
        f"Each of the newest {runs} runs{cold} reached {newest[-1].spec.get('target')} at its first report, so that no "
        "batch size can need fewer epochs. Is the target too easy, or in another unit?"
    )
    return Remark(RemarkKind.EASY, newest[-1].number, text)


def of_ended(trials: Sequence[Trial]) -> list[Remark]:
    """What an ended trial, the last one of these, shows: no metric, no use of its batch size, no limit that binds."""
    found = []
    for trial in trials[-1:]:
        unseen = trial.observation.reasons.get(UNSEEN)
        if trial.state is State.NO_METRIC:
            text = (
                f"No metric reported: whether trial {trial.number} reached its target is not known, and no batch size "
                f"is tried before one comes. {TELL_METRIC[0].upper()}{TELL_METRIC[1:]}."
            )
            found.append(Remark(RemarkKind.NO_METRIC, trial.number, text))
        if (waits := trial.observation.reasons.get(DATA_WAIT)) is not None:
            found.append(Remark(RemarkKind.DATA_WAIT, trial.number, f"{waits}."))
        if (uncapped := trial.observation.reasons.get(UNCAPPED)) is not None:
            text = f"{uncapped[0].upper()}{uncapped[1:]}. No power limit is chosen."
            found.append(Remark(RemarkKind.UNCAPPED, trial.number, text))
        if unseen is not None:
            text = (
                f"Not seen to use its batch size: {unseen}. Unless it reads it elsewhere, nothing that Zeus chooses "
                "changes it. Read ZEUS_BATCH_SIZE, or train under ZeusRun.from_env()."
            )
            found.append(Remark(RemarkKind.UNSEEN, trial.number, text))
    return found


def _task(trial: Trial) -> _Task:
    return trial.origin.dag_id, trial.origin.task_id, trial.origin.map_index


def _learned(spec: Mapping[str, Any]) -> object:
    """Batch sizes and target: what two tasks that share a job have in common."""
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
    sizes = ", ".join(map(str, trial.spec.get("batch_sizes") or ()))
    mapped = f" [{index}]" if index >= 0 else ""
    has = f"batch sizes {sizes} and target {trial.spec.get('target')}" if sizes else "no batch sizes"
    return f"{dag_id}.{task_id}{mapped} has {has}"


def _device(where: Where) -> str:
    model, count, source = where
    return f"{devices(model, count)} ({source or 'no source of energy'})"


def candidates(trials: Sequence[Trial], latest: Iterable[Trial]) -> list[Trial]:
    """The newest trial of each job whose history a new job may have lost by a rename; empty for a job with a history.

    Such a job has the name of its task, the same batch sizes, default and target, no run since the new job's first
    one, and another DAG with this task, or another task of this DAG.

    :param trials: the newest of the new job, oldest first.
    :param latest: the newest trial of each job in the log.
    """
    if not trials or trials[0].number != 1 or len(trials) > FEW or not _named_by_task(trials[-1]):
        return []
    new, since = trials[-1], min(t.opened_at for t in trials)
    found = []
    for old in latest:
        same_dag, same_task = (getattr(old.origin, n) == getattr(new.origin, n) for n in ("dag_id", "task_id"))
        alike = all(
            old.spec.get(name) == new.spec.get(name) for name in ("batch_sizes", "default_batch_size", "target")
        )
        if alike and same_dag != same_task and old.opened_at < since and _named_by_task(old):
            found.append(old)
    return found


def looks_like(found: Sequence[Trial], new: Trial, dags: Collection[str]) -> str | None:
    """The name of the one job that a new job looks like; None where there is none, or several.

    :param found: as :func:`candidates` has them.
    :param dags: the DAGs that there are now.
    """
    gone = [t.job_id for t in found if t.origin.dag_id == new.origin.dag_id or t.origin.dag_id not in dags]
    return gone[0] if len(gone) == 1 else None


def _named_by_task(trial: Trial) -> bool:
    return trial.job_id == job_id_of_task(trial.origin.dag_id, trial.origin.task_id)
