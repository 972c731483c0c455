"""From the store to what the views are made of: the one place that opens the log, in a handful of queries."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.optimizer.evidence import Evidence, evidence
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.trial import ProfileSample, State, Trial, TrialKey
from airflow_provider_zeus.plugin.folds import Folds
from airflow_provider_zeus.store.airflow_variables import AirflowVariables
from airflow_provider_zeus.store.base import Store
from airflow_provider_zeus.store.open import DEFAULT_CONN_ID, embedded_path, open_store, store_url
from airflow_provider_zeus.store.untold import PREFIX, Untold, read_file, untold_key

log = logging.getLogger(__name__)

MOST_KEPT = 200  # kept costs read for one answer
MOST_RUNS = 1000  # newest runs that sums, beliefs and charts of a job are made of

_folds = Folds()


def open_log() -> Store | None:
    """The trial log, never made or migrated here; None while there is none yet. Raises StoreError.

    Opened for each answer: what is expensive, the engine, is kept per URL, and a changed Connection counts at once.
    """
    try:
        return open_store(create=False)
    except StoreError:
        if store_url(DEFAULT_CONN_ID) == f"sqlite:///{embedded_path()}" and not embedded_path().exists():
            return None
        raise


def folded(
    store: Store, dag_id: str, job: ZeusJob, trials: Sequence[Trial]
) -> tuple[Evidence, Sequence[ProfileSample]]:
    """The fold of a DAG's newest runs of a job, and what was profiled on their device. ``trials``: at least one."""
    job_id = trials[-1].job_id
    log = _folds.of((store.identity, dag_id, job_id), evidence(trials, job))
    return log, [] if log.where is None else store.profile(job_id, log.where, job.job_version)


def has_older(store: Store, dag_id: str, job_id: str) -> bool:
    """Whether the log holds more runs than answers are made of."""
    return bool(store.runs(dag_id, job_id, last=1, skip=MOST_RUNS))


def untold(trials: Sequence[Trial]) -> dict[TrialKey, str]:
    """Trials whose cost waits to be told by the job's next run -> where it is kept, in words. Only looked at."""
    waiting = {untold_key(t.key): t.key for t in trials if t.state in (State.ABANDONED, State.RUNNING)}
    if not waiting:
        return {}
    return _files(waiting) | _variables(waiting)


def unlisted(dag_id: str, run_id: str) -> dict[TrialKey, tuple[Trial, str]]:
    """Trials of a run that the log does not even hold, since it could not be asked: from the costs that are kept."""
    found = {}
    for where, text in _kept_texts():
        try:
            kept = Untold.from_json(text)
        except ValueError:
            continue  # the next question of its job warns
        if kept.trial and (kept.trial.origin.dag_id, kept.trial.origin.run_id) == (dag_id, run_id):
            trial = replace(kept.trial, state=kept.state, reason=kept.reason, observation=kept.report.observation)
            found[kept.key] = (trial, where)
    return found


def _kept_texts() -> list[tuple[str, str]]:
    """(where, text) of the costs that are kept; the first of them, where there are very many."""
    try:
        variables = AirflowVariables()
        keys = variables.keys(f"{PREFIX}:")[:MOST_KEPT]
        texts = [(f"Variable {key}", variables.get(key)) for key in keys]
    except StoreError as error:
        log.warning("Costs that are not yet told cannot be looked for: %s", error)
        texts = []
    try:
        files = sorted(_state_dir().glob(f"{PREFIX}-*.json"))[:MOST_KEPT]
    except OSError as error:
        log.warning("Costs that are not yet told cannot be looked for in files: %s", error)
        files = []
    for path in files:
        with suppress(OSError, ValueError):  # told meanwhile, or no such file: the next question of its job warns
            texts.append((_in_file(path), read_file(path)))
    return [(where, text) for where, text in texts if text]


def _state_dir() -> Path:
    """``[zeus] state_dir``: of use where tasks run on this host or share the folder with it."""
    from airflow.sdk import conf

    return Path(conf.get("zeus", "state_dir", fallback="") or embedded_path().parent / "zeus")


def _in_file(path: Path) -> str:
    """Where a kept cost is, without the folder: paths of this host are not for all readers."""
    return f"file {path.name} in [zeus] state_dir"


def heartbeat_s() -> float:
    """Seconds between two reports of a running trial."""
    from airflow.sdk import conf

    return min(max(conf.getfloat("zeus", "heartbeat_s", fallback=15.0), 2.0), 60.0)


def _variables(waiting: dict[str, TrialKey]) -> dict[TrialKey, str]:
    try:
        kept = AirflowVariables().keys(f"{PREFIX}:")
    except StoreError as error:
        log.warning("Costs that are not yet told cannot be looked for: %s", error)
        return {}  # the page says "abandoned" then, which is true as well
    return {waiting[name]: f"Variable {name}" for name in kept if name in waiting}


def _files(waiting: dict[str, TrialKey]) -> dict[TrialKey, str]:
    """Costs kept in files."""
    names = {f"{name.replace(':', '-')}.json": name for name in waiting}
    try:
        return {waiting[names[p.name]]: _in_file(p) for p in _state_dir().glob(f"{PREFIX}-*.json") if p.name in names}
    except OSError:
        return {}
