"""``ZeusHook``: the trial log behind an Airflow Connection."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_provider_zeus.log_guard import guarded_log

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from airflow_provider_zeus.reports.dataset import Dataset
    from airflow_provider_zeus.reports.month_spent import DagAbout
    from airflow_provider_zeus.reports.months import SavedDraws
    from airflow_provider_zeus.store.sql.store import Store


log = guarded_log(__name__)


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


def about_dags(dag_ids: Collection[str]) -> dict[str, DagAbout]:
    """Tags and owners of those of the DAGs that Airflow's database has. Empty if it cannot be read."""
    from airflow_provider_zeus.reports.month_spent import DagAbout

    try:
        found = _in_database(dag_ids)
    except Exception:
        log.warning("Tags and owners of DAGs cannot be read.", exc_info=True)
        return {}
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
    from airflow_provider_zeus.errors import JobSpecError
    from airflow_provider_zeus.model.trial import newest_device
    from airflow_provider_zeus.reports.dataset import as_dataset
    from airflow_provider_zeus.reports.months import saved_between

    trials = store.runs(dag_id, job_id, last=1000)  # as many as the pages read
    try:
        settings = store.settings(job_id)
        job = trials[-1].job.with_settings(settings)
    except (JobSpecError, IndexError):
        return "no run of it can be read here"
    log = as_dataset(trials, job, settings=settings)
    if job.chooses_size:
        log = replace(log, folded=log.belief()) if with_belief is None else with_belief(log)
    profiles = store.profile(job_id, log.where or newest_device(trials), job.job_version)
    return saved_between(log, profiles, begin_s, end_s)
