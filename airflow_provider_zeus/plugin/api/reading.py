"""Reads the data of the views in a few queries for each answer, and keeps some between requests.

No other module of the pages opens the trial log.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic

from airflow_provider_zeus.airflow_compat import (
    Connection,
    DagModel,
    SerializedDagModel,
    XComModel,
    create_session,
)
from airflow_provider_zeus.errors import SignalError, StoreError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Origin, ProfileSample, State, Trial, TrialKey
from airflow_provider_zeus.operators.mixins import WAIT
from airflow_provider_zeus.optimizer.policy import Belief, belief_tag, learn, prior
from airflow_provider_zeus.patience import T, bounded
from airflow_provider_zeus.plugin.text.run_notes import StartWait
from airflow_provider_zeus.plugin.views.overview_view import Live
from airflow_provider_zeus.plugin.views.task_table import graph_order
from airflow_provider_zeus.reports.dataset import Dataset, as_dataset
from airflow_provider_zeus.reports.months import month_bounds, month_of
from airflow_provider_zeus.reports.run_figures import MOST_RUNS
from airflow_provider_zeus.signals.forecast import DAY_S
from airflow_provider_zeus.signals.reading import CONNECTIONS, KEPT_S, ReadOnlyKeeper, signal_series
from airflow_provider_zeus.signals.series import CARBON, PRICE, Series
from airflow_provider_zeus.store.live_settings import last_change, parsed, read_settings
from airflow_provider_zeus.store.open import (
    DEFAULT_CONN_ID,
    embedded_path,
    open_store,
    state_dir,
    store_url,
)
from airflow_provider_zeus.store.pending import (
    PREFIX,
    PendingResult,
    kept_files,
    pending_key,
    read_file,
)
from airflow_provider_zeus.store.variables.airflow import SETTINGS, AirflowVariables, variable_key

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store

# The key too: the log may have been replaced by another one with the same numbers.
_Version = tuple[int, int | None, TrialKey]
# Learning is the slow part: a belief is kept with the trials that it was learned from.
_Learned = tuple[tuple[_Version, ...], Belief]

log = guarded_log(__name__)


class LruCache(Generic[T]):
    """At most ``most`` values; the least recently used one goes first. Safe for several threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._values: OrderedDict[Hashable, T] = OrderedDict()

    def hold(self, most: int) -> None:
        """Hold at least so many from now on."""
        with self._lock:
            self._most = max(self._most, most)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key, made and stored if there is none.

        ``make`` may run in several threads at once.
        """
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        # Made without the lock: a slow value must not hold up readers of others.
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
    """Beliefs learned from logs, so that a page that is opened again learns from the new trials
    only.

    A belief is valid for the trials it was learned from. If one of them has changed, it is
    learned from the start.
    """

    def __init__(self, most: int = 32) -> None:
        self._beliefs: LruCache[_Learned] = LruCache(most)

    def with_belief(self, name: Hashable, log: Dataset) -> Dataset:
        """The dataset with its belief.

        ``name`` identifies the log: logs with the same name must not share trials.
        """
        before = prior(log.job, log.settings)
        key = (name, belief_tag(before))
        start: _Learned = ((), before)
        # A running trial teaches nothing yet, and each heartbeat changes it.
        ended = [trial for trial in log.lessons if trial.state is not State.RUNNING]
        versions = tuple((trial.number, trial.told_seq, trial.key) for trial in ended)
        learned_from, belief = self._beliefs.get(key, lambda: start)
        # A late result changed a trial that the belief holds already: it cannot be taken out again.
        if versions[: len(learned_from)] != learned_from:
            learned_from, belief = start
        # Learning is a fold, so the new trials alone continue it.
        belief = reduce(learn, ended[len(learned_from) :], replace(belief, job=log.job))
        self._beliefs.put(key, (versions, belief))
        return replace(log, folded=belief)


beliefs = BeliefCache()
_elsewhere: LruCache[str] = LruCache(64)


def open_log() -> Store | None:
    """The trial log, which is neither created nor migrated here; None while there is none yet.

    Raises StoreError.

    Opened for each answer, so that a changed Connection takes effect at once. Only the engine is
    cached, by its URL.
    """
    try:
        return open_store(create=False, keeps_file_open=False)
    except StoreError:
        # Before the first run there is no file, which is no error of the reader.
        path = embedded_path()
        is_embedded = store_url(DEFAULT_CONN_ID) == f"sqlite:///{path}"
        if is_embedded and not path.exists():
            return None
        raise


def elsewhere(dag_id: str, *, named: bool) -> str:
    """That the log of another Connection has the jobs of a DAG, in a sentence; empty if none is
    known to.

    :param named: whether the user may see the ids of Connections.

    It waits at most three seconds, and keeps the answer for a minute: a log that does not answer
    holds up no page.
    """
    import sqlalchemy as sa

    of_type = (
        sa.select(Connection.conn_id)
        .where(Connection.conn_type == "zeus")
        .order_by(Connection.conn_id)
    )
    try:
        with create_session() as session:
            names = [*session.scalars(of_type.limit(20))]
    except sa.exc.SQLAlchemyError:
        log.warning("Connections cannot be listed.", exc_info=True)
        names = []
    names += [
        name.removeprefix("AIRFLOW_CONN_").lower()
        for name in os.environ
        if name.startswith("AIRFLOW_CONN_ZEUS")
    ]
    # Each once: a Connection of the environment hides one of its name in the database.
    others = tuple(dict.fromkeys(name for name in names if name != DEFAULT_CONN_ID))

    def look() -> str:
        with suppress(TimeoutError):
            return bounded(lambda: _in_log_of(others, dag_id), 3.0)
        return ""

    if not others:
        return ""
    # As a part of the key it ends the answer's life without a clean-up.
    minute = int(time.monotonic() // 60)
    conn_id = _elsewhere.get((dag_id, others, minute), look)
    if not conn_id:
        return ""
    other = f"Connection {conn_id}" if named else "another Connection"
    shown = (
        f"these pages show the log of {DEFAULT_CONN_ID} alone: define {DEFAULT_CONN_ID} as that one"
    )
    return f" The log of {other} has jobs of this DAG; {shown}."


def _in_log_of(conn_ids: Sequence[str], dag_id: str) -> str:
    """The first of the Connections whose log has jobs of a DAG; empty if none is known to."""
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
    dataset = beliefs.with_belief(
        (store.identity, dag_id, job_id), as_dataset(trials, job, settings=live)
    )
    return dataset, store.profile(job_id, dataset.where, job.job_version)


def present_dags(dag_ids: Collection[str], *, stale: bool = False) -> set[str]:
    """Those of the DAGs that Airflow has now, paused ones too; all of them if that cannot be read.

    :param stale: also those whose file is gone or could not be parsed, but which nobody has deleted
        in Airflow.
    """
    import sqlalchemy as sa

    try:
        with create_session() as session:
            query = sa.select(DagModel.dag_id).where(DagModel.dag_id.in_(dag_ids))
            if not stale:
                query = query.where(DagModel.is_stale.is_(False))
            return set(session.scalars(query))
    except sa.exc.SQLAlchemyError:
        log.warning("Whether DAGs are still there cannot be read.", exc_info=True)
        # Whoever cannot look must not call a DAG deleted.
        return set(dag_ids)


def task_order(dag_id: str) -> dict[str, int]:
    """The position of each task in the graph of a DAG; empty if Airflow does not have it now."""
    try:
        with create_session() as session:
            dag = SerializedDagModel.get_dag(dag_id, session=session)
    except Exception:
        # Without the order the page shows the same figures, in another one.
        log.warning("The graph of a DAG cannot be read.", exc_info=True)
        return {}
    if dag is None:
        return {}
    after = {task_id: {*task.downstream_task_ids} for task_id, task in dag.task_dict.items()}
    return graph_order(after)


def waits(dag_id: str, run_id: str, *, named: bool) -> dict[tuple[str, int], StartWait]:
    """The waits for a cheaper start in a run, by the task that trains and its map index; empty if
    none is known.

    :param named: whether the user may see the ids of Connections.
    """
    import sqlalchemy as sa

    # Any task may push such an XCom, so their number is bounded below.
    which = (XComModel.dag_id == dag_id, XComModel.run_id == run_id, XComModel.key == WAIT)
    try:
        with create_session() as session:
            query = (
                sa.select(XComModel.task_id, XComModel.map_index, XComModel.value)
                .where(*which)
                .limit(1000)
            )
            rows = session.execute(query).all()
    except sa.exc.SQLAlchemyError:
        log.warning("The waits of a run cannot be read.", exc_info=True)
        return {}
    waits = {}
    for task_id, index, value in rows:
        wait = StartWait.read(value, named=named)
        if wait is not None:
            waits[wait.trains or task_id, index] = wait
    return waits


def kept_signals(store: Store, job: ZeusJob, now_s: float, *, named: bool) -> dict[str, Series]:
    """Series of the price and of the carbon intensity that count for a job, by their names; no
    service is asked.

    Each covers the newest days, as far as the log keeps it; an unknown one is absent.

    :param named: whether the user may see the id of a Connection that the job names itself.
    """
    kept: dict[str, Series] = {}
    goals = set()
    keeper = ReadOnlyKeeper(store.kept_signal)
    for signal in filter(None, dict.fromkeys((PRICE, CARBON, job.start_signal, job.follow))):
        try:
            series = signal_series(signal, now_s - KEPT_S, now_s + 2 * DAY_S, keeper)
        # A series is an extra of the page: without it one sentence is missing.
        except SignalError:
            continue
        goal = series.unit.goal
        # The first signal of a kind counts: the job's own come after Airflow's.
        if goal not in goals:
            goals.add(goal)
            own = signal if named else f"the job's own {goal} signal"
            kept[CONNECTIONS.get(signal, own)] = series
    return kept


def since_s() -> float:
    """From when on the pages add up the costs of tasks: the begin of the month (UTC) before
    this.
    """
    return month_bounds(month_of(time.time()), 2)[0]


def has_older(store: Store, dag_id: str, job_id: str) -> bool:
    """Whether the log holds more than :data:`MOST_RUNS` runs of a job."""
    return bool(store.runs(dag_id, job_id, last=1, skip=MOST_RUNS))


def pending(trials: Sequence[Trial]) -> dict[TrialKey, str]:
    """The trials whose result is not in the log yet, each with its place until the next run."""
    # A file's name cannot hold the colons of a Variable's key on every file system.
    by_name = {
        pending_key(trial.key).replace(":", "-"): trial.key
        for trial in trials
        if trial.state.awaits_result
    }
    if not by_name:
        return {}
    results = [(path.stem, _file_text(path)) for path in kept_files(state_dir())]
    results += [(name.replace(":", "-"), f"Variable {name}") for name in _pending_variables()]
    places = {}
    for name, place in results:
        # If another start has ended the attempt too, its number comes after the name.
        first_name = name if name in by_name else name.rpartition("-")[0]
        if first_name in by_name:
            places[by_name[first_name]] = place
    return places


def missing_trials(wanted: Callable[[Origin], bool]) -> dict[TrialKey, tuple[Trial, str]]:
    """Trials of pending results, each with its place. The log may hold their rows, not their costs.

    :param wanted: whether trials of this origin are wanted.
    """
    trials = {}
    for place, result in _pending_results():
        # A result of an older try may have no trial with it: the log has its row.
        if result.trial is None:
            continue
        if wanted(result.trial.origin):
            trial = replace(
                result.trial,
                state=result.state,
                reason=result.reason,
                observation=result.report.observation,
            )
            trials[result.key] = (trial, place)
    return trials


def _pending_results() -> Iterator[tuple[str, PendingResult]]:
    """The newest pending results that can be read, each with its place before it."""
    # A store that was down for a week leaves thousands, which must not hold up a page.
    most = 200
    port = AirflowVariables()
    variables = _pending_variables()
    files = kept_files(state_dir())
    if max(len(variables), len(files)) > most:
        log.warning("Pages show only the newest %s pending results: run airflow zeus repair.", most)
    # The last names are the newest: a try's id begins with its time.
    for name in variables[-most:]:
        # It hides no other one, and the job's next run warns.
        with suppress(StoreError, ValueError):
            yield f"Variable {name}", PendingResult.from_json(port.get(name) or "")
    for path in files[-most:]:
        # Removed since, or not a file of ours, of which the job's next run warns.
        with suppress(OSError, ValueError):
            yield _file_text(path), PendingResult.from_json(read_file(path))


def _pending_variables() -> list[str]:
    """Names of the Variables with pending results; empty if they cannot be listed."""
    try:
        return AirflowVariables().keys(f"{PREFIX}:")
    except StoreError as error:
        log.warning("Pending results in Variables cannot be listed: %s", error)
        return []


def _file_text(path: Path) -> str:
    """A file's name without its folder: not every reader may see paths of this host."""
    return f"file {path.name} in [zeus] state_dir"


def live_settings(job_id: str) -> Live:
    """Settings of a job with their last change, or the problem why none of them is used.

    Raises StoreError.
    """
    key = variable_key(SETTINGS, job_id)
    text = AirflowVariables().get(key)
    # A page that showed no settings for a broken Variable would hide why they do not hold.
    _, problem = parsed(text)
    if problem:
        remedy = (
            f"No live setting is used: Variable {key!r} is no JSON object ({problem}). Correct it "
            "or delete it."
        )
        return {}, {"problem": remedy}
    return read_settings(lambda _: text, job_id) or {}, last_change(text)


def live_settings_of(job_ids: Collection[str]) -> dict[str, Live]:
    """:func:`live_settings` of each job that has a Variable.

    Lists the Variables once, since most jobs have none.
    """
    try:
        keys = set(AirflowVariables().keys(f"{SETTINGS}:"))
        return {job: live_settings(job) for job in job_ids if variable_key(SETTINGS, job) in keys}
    except StoreError as error:
        log.warning("Live settings cannot be read: %s", error)
        return {}


def heartbeat_s() -> float:
    """Seconds between two heartbeats of a running trial, from 2 to 60: how often its page is
    refreshed.
    """
    from airflow.sdk import conf

    return min(max(conf.getfloat("zeus", "heartbeat_s", fallback=15.0), 2.0), 60.0)
