"""A Slurm job that outlives the process of its task, and goes on under the task's next try.

A worker that is killed can tell nobody of its job. So the task notes it twice as soon as sbatch has
named it: in Airflow's task state (since Airflow 3.3), by which the next try finds it, and in the
job's own folder. While the note is there, :mod:`~airflow_provider_zeus.training.process.slurm`
leaves the job alone. A task that ends by itself, or is stopped, removes the folder.

Others may write a note, users of Airflow the one, the training the other: a note is used only
if both are the same.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model import wire
from airflow_provider_zeus.model.trial import Trial, TrialKey
from airflow_provider_zeus.operators.config import ZeusConfig
from airflow_provider_zeus.operators.origin import origin_of
from airflow_provider_zeus.patience import T, bounded, outlived, retried
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.switch import OFF, enabled
from airflow_provider_zeus.training.process.child import Follower
from airflow_provider_zeus.training.process.slurm import UNKNOWN, Job, job_of
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.untrusted_files import opened_folder, read_plain, write_whole

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store

FOLDER = "zeus-"  # a person who finds a folder should know whose it is
_KEY = "zeus_slurm_job"
_NOTE = "job.json"

log = guarded_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNote:
    """All that the next try of a task needs to go on with a job.

    :param line: of sbatch, which names the job.
    :param folder: of its plan and result.
    :param ti_id: of the try that asked for the batch size: the key of the job's attempts.
    :param plans: first attempts of the plans that the command was started with, the job's last.
    :param max_tries: of the task; a clear raises it.
    :param waited_since_s: since when the task waited for a cheaper start [s since the epoch].
    """

    line: str
    folder: str
    ti_id: str
    plans: Sequence[wire.Count]
    max_tries: wire.Count
    waited_since_s: wire.Moment | None

    @property
    def text(self) -> str:
        """As it lies in the folder."""
        return json.dumps(wire.encode(self))


@dataclass(slots=True, kw_only=True)
class LeftJob:
    """A job of an earlier try that this one goes on with.

    Whoever gets one gives it up if an error comes before its process waits for the job: that
    process cancels it.

    :param plans: with which the command was started, the job's last.
    :param first: trial of the first plan's first attempt, as the log has it.
    :param store: the log.
    :param is_waited_for: whether a process of this try waits for the job.
    """

    job: Job
    note: JobNote
    plans: Sequence[Plan]
    first: Trial
    store: Store
    is_waited_for: bool = False

    @property
    def folder(self) -> Path:
        """Of plans and results."""
        return Path(self.note.folder)

    def give_up(self) -> None:
        """Cancel the job and remove its folder, unless a process waits for it. Raises nothing."""
        if not self.is_waited_for:
            _cancel(self.job, self.note)


@dataclass(frozen=True, slots=True)
class JobNotes:
    """Writes the notes of the jobs that one try of a task submits.

    :param state: Airflow's task state of the task instance.
    :param plans: first attempts of the plans of the job that this try goes on with, and of those
        that it has submitted.
    """

    state: Any
    max_tries: int
    waited_since_s: float | None
    plans: list[int]

    @classmethod
    def of(
        cls, context: Mapping[str, Any], waited_since_s: float | None, plans: Sequence[int] = ()
    ) -> JobNotes | None:
        """None if no try follows that could go on with a job, or none would find it."""
        ti = context["ti"]
        state = context.get("task_state_store")
        # no further try would read the note, and the job would outlive its task unseen
        is_last = ti.try_number > ti.max_tries
        if state is None or is_last or enabled() == OFF:
            return None
        return cls(state, ti.max_tries, waited_since_s, [*plans])

    @outlived("note the Slurm job for the next try of this task")
    def write(self, line: str, plan: Plan, folder: Path) -> None:
        """Note the job that a line of sbatch names. Raises nothing."""
        self.plans.append(plan.first_attempt)
        note = JobNote(
            line=line,
            folder=str(folder),
            ti_id=plan.ti_id,
            plans=self.plans,
            max_tries=self.max_tries,
            waited_since_s=self.waited_since_s,
        )
        self.state.set(_KEY, wire.encode(note))
        # last: from now on a worker that dies leaves the job alone
        write_whole(note_in(folder), note.text)


def note_in(folder: Path) -> Path:
    """The file by which a killed worker leaves its job alone."""
    return folder / _NOTE


def plan_in(folder: Path, attempt: int) -> Path:
    """The file of the plan whose first attempt has this number."""
    return folder / f"plan-{attempt}.json"


def result_in(folder: Path, attempt: int) -> Path:
    """The file of the result under the plan whose first attempt has this number."""
    return folder / f"result-{attempt}.jsonl"


def left_job(
    context: Mapping[str, Any], sbatch: str, environ: Mapping[str, str], conn_id: str
) -> LeftJob | None:
    """The job that an earlier try left and this one goes on with; None if there is none.

    One that it cannot go on with is cancelled: it would train beside the next one.

    :param sbatch: the command that submitted it.
    :param environ: of Slurm's commands.
    :param conn_id: Connection of the run log.

    Raises JobSpecError: a setting of ``[zeus]`` cannot be used.
    """
    config = ZeusConfig.read()
    note = _noted(context, config)
    if note is None:
        return None
    job = job_of(note.line, sbatch, environ)
    if job is None:
        return None
    state: str | None = None
    try:
        state = job.state()
        _check(note, context, config, is_forgotten=state == UNKNOWN)
        return _read(job, note, context, config, conn_id)
    except (OSError, StoreError, ValueError) as error:  # a slow log's TimeoutError is an OSError
        log.warning(
            "Zeus does not go on with Slurm job %s of an earlier attempt: %s. A new job is "
            "submitted.",
            job.number,
            error,
        )
        # Slurm has forgotten it, so there is no process to cancel
        if state == UNKNOWN:
            shutil.rmtree(note.folder, ignore_errors=True)
        else:
            _cancel(job, note)
        return None
    except BaseException:
        # A signal handler raises: the task ends, and nobody else would cancel the job.
        _cancel(job, note)
        raise


def _cancel(job: Job, note: JobNote) -> None:
    shutil.rmtree(note.folder, ignore_errors=True)
    log.warning("Zeus: %s", job.cancel())


def _noted(context: Mapping[str, Any], config: ZeusConfig) -> JobNote | None:
    """The note of a job that an earlier try left, if both are the same. Raises nothing."""
    state = context.get("task_state_store")
    if state is None or config.attempt_root is None:
        return None
    try:
        entry = state.get(_KEY)
        if entry is None:
            return None
        note = wire.decode(JobNote, entry)
        _check_folder(note, config.attempt_root)
        return note
    except FileNotFoundError:  # no fault: a task that ends removes its job's folder
        return None
    except Exception as error:  # its text is not logged: it may repeat a hostile note
        log.warning(
            "Zeus cannot read which Slurm job an earlier attempt of this task left (%s).",
            type(error).__name__,
        )
        return None


def _check_folder(note: JobNote, root: str) -> None:
    """Raise ValueError or OSError if the note's folder is none of ours, or holds another note."""
    # a note with .. or another folder would let its writer remove any folder of ours
    folder = os.path.abspath(note.folder)
    parent, name = os.path.split(folder)
    is_below = parent == os.path.abspath(root) and name.startswith(FOLDER)
    if not all((is_below, folder == note.folder, note.plans)):
        raise ValueError("no folder of plans and results")
    with opened_folder(folder) as descriptor:
        status = os.fstat(descriptor)
        is_private = status.st_uid == os.geteuid() and not status.st_mode & 0o077
        most_bytes = 10_000
        text = read_plain(_NOTE, most_bytes, folder=descriptor, owners={os.geteuid()})
    if not is_private or text.decode() != note.text:
        raise ValueError("another note")


def _check(
    note: JobNote, context: Mapping[str, Any], config: ZeusConfig, *, is_forgotten: bool
) -> None:
    """Raise ValueError or OSError if a job is not to be gone on with.

    :param is_forgotten: whether Slurm no longer knows the job.
    """
    if config.enabled == OFF:
        raise ValueError("Zeus is switched off")
    # a clear is a new run to its user: it trains anew
    if note.max_tries != context["ti"].max_tries:
        raise ValueError("the task was cleared")
    result = result_in(Path(note.folder), note.plans[-1])
    # Slurm forgets a job that has ended: one that kept a model has only to be collected.
    if is_forgotten and not _kept_a_model(result):
        raise ValueError("Slurm no longer knows it, and its result names no kept model")


def _read(
    job: Job, note: JobNote, context: Mapping[str, Any], config: ZeusConfig, conn_id: str
) -> LeftJob:
    """The job with its plans and its trial. Raises ValueError, OSError, StoreError: why not."""
    store = _in_time(partial(open_store, conn_id, create=False))
    own = origin_of(context)
    trials = _in_time(partial(store.recurrence, own.dag_id, own.run_id))
    key = TrialKey(note.ti_id, note.plans[0])
    of_run = [trial for trial in trials if trial.recurrence == own.recurrence(note.ti_id)]
    first = next((trial for trial in of_run if trial.key == key), None)
    if first is None:
        raise ValueError("the run log does not hold its attempt")
    plans = []
    for attempt in note.plans:
        plan = _plan_of(Path(note.folder), attempt)
        # the training can write its plan's file: these fields decide nothing by it
        plan = replace(plan, job_id=first.job_id, ti_id=note.ti_id, first_attempt=attempt)
        plans.append(replace(plan, spec=first.spec, heartbeat_s=config.heartbeat_s))
    return LeftJob(job=job, note=note, plans=plans, first=first, store=store)


def _in_time(call: Callable[[], T]) -> T:
    """The answer of the log. Raises StoreError, TimeoutError."""
    most_s = 20.0
    return bounded(partial(retried, call, most_s), most_s)


def _kept_a_model(result: Path) -> bool:
    """Whether a result says that a model is kept. Raises OSError, ValueError: it cannot be read."""
    lines = chain.from_iterable(iter(Follower(result).news, []))
    return any(line.kind == "final" for line in lines)


def _plan_of(folder: Path, attempt: int) -> Plan:
    """The plan in a folder. Raises OSError, ValueError: it cannot be read."""
    most_bytes = 2**24
    text = read_plain(plan_in(folder, attempt), most_bytes, owners={os.geteuid()})
    try:
        return Plan.from_json(text.decode())
    except ValueError:
        # The error's text may repeat the file's, which the training can write.
        raise ValueError("its plan cannot be read") from None
