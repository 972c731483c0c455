"""``ZeusHook``: the trial log behind an Airflow Connection."""

from __future__ import annotations

import errno
import logging
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowRuntimeError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from os import PathLike

    from airflow_provider_zeus.model.trial import ProfileSample
    from airflow_provider_zeus.reports.dataset import Dataset
    from airflow_provider_zeus.reports.month_spent import DagAbout
    from airflow_provider_zeus.reports.months import SavedDraws
    from airflow_provider_zeus.store.sql.store import Store


log = logging.getLogger(__name__)


class ZeusHook(BaseHook):
    """Opens the trial log, for tasks that read it or write their own reports.

    :param zeus_conn_id: Connection of the trial log; where ``zeus_default`` is not defined, ``zeus.db`` of this
        host.
    """

    conn_name_attr = "zeus_conn_id"
    default_conn_name = "zeus_default"
    conn_type = "zeus"
    hook_name = "Zeus trial log"

    def __init__(self, zeus_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.zeus_conn_id = zeus_conn_id

    def get_conn(self) -> Store:
        """Return the store. Raises StoreError when it cannot be reached."""
        from airflow_provider_zeus.store.open import open_store

        return open_store(self.zeus_conn_id)

    def write_month(self, month: str, folder: str | PathLike[str]) -> list[Path]:
        """Write the report of a month such as "2026-11" (UTC) into a folder; returns the HTML page and the CSV files.

        Raises JobSpecError: no month, or a folder that cannot be written to; StoreError: the log cannot be read.
        """
        with closing(self.get_conn()) as store:
            return write_month(store, month, Path(folder))

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the log can be read, and a message. Creates and migrates nothing."""
        from airflow_provider_zeus.errors import StoreError
        from airflow_provider_zeus.store.open import open_store

        try:
            with closing(open_store(self.zeus_conn_id, create=False)) as store:
                jobs = len(store.jobs())
        except StoreError as error:
            return False, str(error)
        return True, f"The trial log at {store.identity} can be read: {jobs} {'job' if jobs == 1 else 'jobs'}."


def write_month(store: Store, month: str, folder: Path) -> list[Path]:
    """Write ``zeus-<month>.html``, ``zeus-<month>.csv`` and ``zeus-<month>-groups.csv``, for this user alone.

    :param month: in UTC, such as "2026-11".

    Returns their paths. Raises JobSpecError: no month, or a folder or a file that cannot be written to, a link among
    them; StoreError.
    """
    from airflow_provider_zeus.reports.month_report import as_csv, as_html, groups_csv, month_report
    from airflow_provider_zeus.reports.months import saved_between
    from airflow_provider_zeus.reports.worth import worth
    from airflow_provider_zeus.signals.prices import in_force

    bounds = bounds_of(month, 2)
    sums = store.sums(bounds)
    jobs = sorted({(s.dag_id, s.job_id) for s in sums if s.period == 1})
    logs, (_, begin_s, end_s) = {key: _month_log(store, *key) for key in jobs}, bounds
    saved = {key: log if isinstance(log, str) else saved_between(*log, begin_s, end_s) for key, log in logs.items()}
    bought = {}  # by each job's retrainings, where that is known
    for key, log in logs.items():
        if not isinstance(log, str) and log[0].job.chooses_size:
            found = worth(log[0], log[0].belief().changes, len(log[0].trials), begin_s, end_s)
            if not isinstance(found, str) and (said := found.said("Its")):
                bought[key] = said
    about = about_dags({dag_id for dag_id, _ in jobs})
    report = month_report(month, sums, saved, in_force(), about, bought)
    texts = {".html": as_html(report), ".csv": as_csv(report), "-groups.csv": groups_csv(report)}
    return [write_private(folder / f"zeus-{month}{ending}", [text]) for ending, text in texts.items()]


def bounds_of(month: str, count: int) -> list[float]:
    """Where ``count`` months up to this one begin and the last one ends. Raises JobSpecError: it is no month."""
    from airflow_provider_zeus.errors import JobSpecError
    from airflow_provider_zeus.reports.months import month_bounds

    try:
        return month_bounds(month, count)
    except ValueError:
        raise JobSpecError.of("month", month, "no month", 'write it as "2026-11"') from None


def write_private(file: Path, texts: Iterable[str]) -> Path:
    """Write a file for this user alone. Raises JobSpecError: it cannot be written to, or is a link."""
    from airflow_provider_zeus.errors import JobSpecError
    from airflow_provider_zeus.private_files import make_folder, open_file

    try:
        make_folder(file.parent)
        with open(file, "w", encoding="utf-8", newline="", opener=open_file) as opened:
            opened.writelines(texts)
    except OSError as error:
        problem = f"{error.filename} is a symbolic link" if error.errno == errno.ELOOP else str(error.strerror)
        raise JobSpecError.of("folder", str(file.parent), problem, "name a folder that you may write to") from None
    return file


def about_dags(dag_ids: Collection[str]) -> dict[str, DagAbout]:
    """Tags and owners of DAGs as Airflow has them: by its database, or in a task by its API. Empty where unreadable."""
    from airflow.sdk import get_current_context

    from airflow_provider_zeus.reports.month_spent import DagAbout

    found: dict[str, tuple[list[str], str | None]] = {}
    try:
        try:
            get_dag: Any = get_current_context()["ti"].get_dag
        except RuntimeError:  # no task runs in this process
            found = _in_database(dag_ids)
        else:
            for dag_id in dag_ids:
                with suppress(AirflowRuntimeError):  # there is no such DAG now
                    found[dag_id] = ((dag := get_dag(dag_id)).tags, dag.owners)
    except Exception:
        log.warning("Tags and owners of DAGs cannot be read.", exc_info=True)
    return {
        dag_id: DagAbout(tags, [name.strip() for name in (owners or "").split(",") if name.strip()])
        for dag_id, (tags, owners) in found.items()
    }


def _in_database(dag_ids: Collection[str]) -> dict[str, tuple[list[str], str | None]]:
    """Tags and owners of those of the DAGs that Airflow's database has."""
    import sqlalchemy as sa

    from airflow_provider_zeus.airflow_compat import DagModel, DagTag, create_session

    with create_session() as session:
        asked = sa.select(DagModel.dag_id, DagModel.owners).where(DagModel.dag_id.in_(dag_ids))
        owners = session.execute(asked).all()
        found: dict[str, tuple[list[str], str | None]] = {dag_id: ([], names) for dag_id, names in owners}
        tags = sa.select(DagTag.dag_id, DagTag.name).where(DagTag.dag_id.in_(found)).order_by(DagTag.name)
        for dag_id, name in session.execute(tags):
            found[dag_id][0].append(name)
    return found


def month_saved(
    store: Store,
    dag_id: str,
    job_id: str,
    begin_s: float,
    end_s: float,
    with_belief: Callable[[Dataset], Dataset] | None = None,
) -> SavedDraws | str:
    """What one job of a DAG saved in a month by its newest runs, or why that is not known.

    :param with_belief: gives a dataset a belief that is known already; default: it is learned from the start.
    """
    from airflow_provider_zeus.reports.months import saved_between

    log = _month_log(store, dag_id, job_id, with_belief)
    return log if isinstance(log, str) else saved_between(*log, begin_s, end_s)


def _month_log(
    store: Store, dag_id: str, job_id: str, with_belief: Callable[[Dataset], Dataset] | None = None
) -> tuple[Dataset, Sequence[ProfileSample]] | str:
    """The newest runs of a job of a DAG with what is learned from them, and its profiles; or why there is none."""
    from airflow_provider_zeus.errors import JobSpecError
    from airflow_provider_zeus.model.trial import newest_device
    from airflow_provider_zeus.reports.dataset import as_dataset

    trials = store.runs(dag_id, job_id, last=1000)  # as many as the pages read
    try:
        job = trials[-1].job.with_settings(store.settings(job_id))
    except (JobSpecError, IndexError):
        return "no run of it can be read here"
    log = as_dataset(trials, job)
    if job.chooses_size:
        log = replace(log, folded=log.belief()) if with_belief is None else with_belief(log)
    return log, store.profile(job_id, log.where or newest_device(trials), job.job_version)
