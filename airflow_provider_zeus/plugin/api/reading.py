"""Reads what the views need, in a few queries for each answer, and keeps some of it between requests.

No other module of the pages opens the trial log.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic

from airflow_provider_zeus.airflow_compat import Connection, DagModel, XComModel, create_session
from airflow_provider_zeus.errors import SignalError, StoreError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Origin, ProfileSample, State, Trial, TrialKey
from airflow_provider_zeus.operators.mixins import WAIT
from airflow_provider_zeus.optimizer.policy import Belief, belief_tag, learn, prior
from airflow_provider_zeus.patience import T, bounded
from airflow_provider_zeus.plugin.text.run_notes import StartWait
from airflow_provider_zeus.plugin.views.overview_view import Live
from airflow_provider_zeus.reports.dataset import Dataset, as_dataset
from airflow_provider_zeus.signals.forecast import DAY_S
from airflow_provider_zeus.signals.reading import CONNECTIONS, KEPT_S, ReadOnlyKeeper, signal_series
from airflow_provider_zeus.signals.series import CARBON, PRICE, Series
from airflow_provider_zeus.store.live_settings import SETTINGS, last_change, parsed, read_settings, variable_key
from airflow_provider_zeus.store.open import DEFAULT_CONN_ID, embedded_path, open_store, state_dir, store_url
from airflow_provider_zeus.store.pending import PREFIX, PendingResult, pending_key, read_file
from airflow_provider_zeus.store.variables.airflow import AirflowVariables

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store

_Version = tuple[int, int | None, TrialKey]  # number, told_seq, key: the log may have been replaced by another one
_Learned = tuple[tuple[_Version, ...], Belief]  # the trials that a belief was learned from, and the belief

log = guarded_log(__name__)

MOST_RUNS = 1000  # newest runs that sums, beliefs and charts of a job are made of


class LruCache(Generic[T]):
    """At most ``most`` values; the least recently used one goes first. Safe for several threads."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, Lock()
        self._values: OrderedDict[Hashable, T] = OrderedDict()

    def hold(self, most: int) -> None:
        """Hold at least so many from now on."""
        with self._lock:
            self._most = max(self._most, most)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key, made and stored where there is none. ``make`` may run in several threads at once."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        return self.put(key, make())

    def put(self, key: Hashable, value: T) -> T:
        """Store a value and return it."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return value


class BeliefCache:
    """Beliefs learned from logs, so that a page that is opened again learns from the new trials only.

    A belief is valid for the trials it was learned from. Where one of them has changed, it is learned from the start.
    """

    def __init__(self, most: int = 32) -> None:
        self._beliefs: LruCache[_Learned] = LruCache(most)

    def with_belief(self, name: Hashable, log: Dataset) -> Dataset:
        """The dataset with its belief. ``name`` identifies the log: logs with the same name must not share trials."""
        before = prior(log.job, log.settings)
        key = (name, belief_tag(before))
        start: _Learned = ((), before)
        ended = [t for t in log.lessons if t.state is not State.RUNNING]  # a running trial teaches nothing yet
        versions = tuple((t.number, t.told_seq, t.key) for t in ended)
        seen, belief = self._beliefs.get(key, lambda: start)
        if versions[: len(seen)] != seen:
            seen, belief = start
        belief = reduce(learn, ended[len(seen) :], replace(belief, job=log.job))
        self._beliefs.put(key, (versions, belief))
        return replace(log, folded=belief)


beliefs = BeliefCache()
_elsewhere: LruCache[str] = LruCache(64)


def open_log() -> Store | None:
    """The trial log, which is neither created nor migrated here; None while there is none yet. Raises StoreError.

    Opened for each answer, so that a changed Connection takes effect at once. Only the engine is cached, by its URL.
    """
    try:
        return open_store(create=False, keeps_file_open=False)
    except StoreError:
        if store_url(DEFAULT_CONN_ID) == f"sqlite:///{embedded_path()}" and not embedded_path().exists():
            return None
        raise


def elsewhere(dag_id: str, *, named: bool) -> str:
    """That the log of another Connection has the jobs of a DAG, in a sentence; empty where none is known to.

    :param named: whether the user may see the ids of Connections.

    It waits at most three seconds, and keeps the answer for a minute: a log that does not answer holds up no page.
    """
    import sqlalchemy as sa

    of_type = sa.select(Connection.conn_id).where(Connection.conn_type == "zeus").order_by(Connection.conn_id)
    try:
        with create_session() as session:
            names = [*session.scalars(of_type.limit(20))]
    except sa.exc.SQLAlchemyError:
        log.warning("Connections cannot be listed.", exc_info=True)
        names = []
    names += [name.removeprefix("AIRFLOW_CONN_").lower() for name in os.environ if name.startswith("AIRFLOW_CONN_ZEUS")]
    others = tuple(dict.fromkeys(name for name in names if name != DEFAULT_CONN_ID))

    def look() -> str:
        with suppress(TimeoutError):
            return bounded(lambda: _in_log_of(others, dag_id), 3.0)
        return ""

    conn_id = _elsewhere.get((dag_id, others, int(time.monotonic() // 60)), look) if others else ""
    if not conn_id:
        return ""
    other = f"Connection {conn_id}" if named else "another Connection"
    shown = f"these pages show the log of {DEFAULT_CONN_ID} alone: define {DEFAULT_CONN_ID} as that one"
    return f" The log of {other} has jobs of this DAG; {shown}."


def _in_log_of(conn_ids: Sequence[str], dag_id: str) -> str:
    """The first of the Connections whose log has jobs of a DAG; empty where none is known to."""
    for conn_id in conn_ids:
        with suppress(StoreError):  # it cannot be read, so that nothing is known of it
            if open_store(conn_id, create=False, keeps_file_open=False).jobs(dag_id):
                return conn_id
    return ""


def learned(
    store: Store, dag_id: str, job: ZeusJob, trials: Sequence[Trial], live: Mapping[str, Any]
) -> tuple[Dataset, Sequence[ProfileSample]]:
    """The dataset of a DAG's newest runs of a job with its belief, and the profiles of its device.

    :param trials: at least one.
    :param live: live settings.
    """
    job_id = trials[-1].job_id
    dataset = beliefs.with_belief((store.identity, dag_id, job_id), as_dataset(trials, job, settings=live))
    return dataset, store.profile(job_id, dataset.where, job.job_version)


def present_dags(dag_ids: Collection[str], *, stale: bool = False) -> set[str]:
    """Those of the DAGs that Airflow has now, paused ones too; all of them where that cannot be read.

    :param stale: also those whose file is gone or could not be parsed, but which nobody has deleted in Airflow.
    """
    import sqlalchemy as sa

    try:
        with create_session() as session:
            query = sa.select(DagModel.dag_id).where(DagModel.dag_id.in_(dag_ids))
            return set(session.scalars(query if stale else query.where(DagModel.is_stale.is_(False))))
    except sa.exc.SQLAlchemyError:
        log.warning("Whether DAGs are still there cannot be read.", exc_info=True)
        return set(dag_ids)


def waits(dag_id: str, run_id: str, *, named: bool) -> dict[tuple[str, int], StartWait]:
    """The waits for a cheaper start in a run, by the task that trains and its map index; empty where none is known.

    :param named: whether the user may see the ids of Connections.
    """
    import sqlalchemy as sa

    which = (XComModel.dag_id == dag_id, XComModel.run_id == run_id, XComModel.key == WAIT)
    try:
        with create_session() as session:
            query = sa.select(XComModel.task_id, XComModel.map_index, XComModel.value).where(*which).limit(1000)
            rows = session.execute(query).all()
    except sa.exc.SQLAlchemyError:
        log.warning("The waits of a run cannot be read.", exc_info=True)
        return {}
    found = ((task_id, index, StartWait.read(value, named=named)) for task_id, index, value in rows)
    return {(wait.trains or task_id, index): wait for task_id, index, wait in found if wait is not None}


def kept_signals(store: Store, job: ZeusJob, now_s: float, *, named: bool) -> dict[str, Series]:
    """Series of the price and of the carbon intensity that count for a job, by what holds them; no service is asked.

    Each covers the newest days, as far as the log keeps it; what is not known is absent.

    :param named: whether the user may see the id of a Connection that the job names itself.
    """
    found: dict[str, Series] = {}
    for signal in filter(None, dict.fromkeys((PRICE, CARBON, job.start_signal, job.follow))):
        try:
            series = signal_series(signal, now_s - KEPT_S, now_s + 2 * DAY_S, ReadOnlyKeeper(store.kept_signal))
        except SignalError:
            continue
        if series.unit.goal not in {known.unit.goal for known in found.values()}:
            own = signal if named else f"the job's own {series.unit.goal} signal"
            found[CONNECTIONS.get(signal, own)] = series
    return found


def has_older(store: Store, dag_id: str, job_id: str) -> bool:
    """Whether the log holds more than :data:`MOST_RUNS` runs of a job."""
    return bool(store.runs(dag_id, job_id, last=1, skip=MOST_RUNS))


def pending(trials: Sequence[Trial]) -> dict[TrialKey, str]:
    """The trials whose result is not in the log yet, each with the place where it is stored until the next run."""
    by_name = {pending_key(t.key): t.key for t in trials if t.state.awaits_result}
    if not by_name:
        return {}
    by_file = {f"{name.replace(':', '-')}.json": key for name, key in by_name.items()}
    places = {by_file[path.name]: _file_text(path) for path in _pending_files() if path.name in by_file}
    return places | {by_name[name]: f"Variable {name}" for name in _pending_variables() if name in by_name}


def missing_trials(wanted: Callable[[Origin], bool]) -> dict[TrialKey, tuple[Trial, str]]:
    """Trials of pending results, each with its place. The log may hold their rows, not what they cost.

    :param wanted: whether trials of this origin are wanted.
    """
    texts: list[tuple[str, str | None]] = []
    most = 200  # of each kind, for one answer
    try:
        texts += [(f"Variable {name}", AirflowVariables().get(name)) for name in _pending_variables()[:most]]
    except StoreError as error:
        log.warning("Pending results in Variables cannot be read: %s", error)
    for path in sorted(_pending_files())[:most]:
        with suppress(OSError, ValueError):  # removed since, or not a file of ours: the job's next run warns
            texts.append((_file_text(path), read_file(path)))
    found = {}
    for place, text in texts:
        with suppress(ValueError):  # the job's next run warns
            result = PendingResult.from_json(text) if text else None
            if result and result.trial and wanted(result.trial.origin):
                observation = result.report.observation
                trial = replace(result.trial, state=result.state, reason=result.reason, observation=observation)
                found[result.key] = (trial, place)
    return found


def _pending_variables() -> list[str]:
    """Names of the Variables with pending results; empty where they cannot be listed."""
    try:
        return AirflowVariables().keys(f"{PREFIX}:")
    except StoreError as error:
        log.warning("Pending results in Variables cannot be listed: %s", error)
        return []


def _pending_files() -> list[Path]:
    """Files with pending results; empty where they cannot be listed."""
    try:
        return list(state_dir().glob(f"{PREFIX}-*.json"))
    except OSError as error:
        log.warning("Pending results in files cannot be listed: %s", error)
        return []


def _file_text(path: Path) -> str:
    """A file's name without its folder: not every reader may see paths of this host."""
    return f"file {path.name} in [zeus] state_dir"


def live_settings(job_id: str) -> Live:
    """Settings of a job with their last change, or the problem why none of them is used. Raises StoreError."""
    key = variable_key(SETTINGS, job_id)
    text = AirflowVariables().get(key)
    if problem := parsed(text)[1]:
        remedy = f"No live setting is used: Variable {key!r} is no JSON object ({problem}). Correct it or delete it."
        return {}, {"problem": remedy}
    return read_settings(lambda _: text, job_id) or {}, last_change(text)


def live_settings_of(job_ids: Collection[str]) -> dict[str, Live]:
    """:func:`live_settings` of each job that has a Variable. Lists the Variables once, since most jobs have none."""
    try:
        keys = set(AirflowVariables().keys(f"{SETTINGS}:"))
        return {job: live_settings(job) for job in job_ids if variable_key(SETTINGS, job) in keys}
    except StoreError as error:
        log.warning("Live settings cannot be read: %s", error)
        return {}


def heartbeat_s() -> float:
    """Seconds between two heartbeats of a running trial, from 2 to 60: how often its page is refreshed."""
    from airflow.sdk import conf

    return min(max(conf.getfloat("zeus", "heartbeat_s", fallback=15.0), 2.0), 60.0)
