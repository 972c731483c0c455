"""``ZeusHook``: the run log behind an Airflow Connection."""

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
    """Opens the run log, for tasks that read it or write their own reports.

    For example: ``ZeusHook().get_conn().trials("dag.task", last=10)``.

    :param zeus_conn_id: Connection of the run log; if ``zeus_default`` is not defined,
        ``zeus.db`` of this host.
    """

    conn_name_attr = "zeus_conn_id"
    default_conn_name = "zeus_default"
    conn_type = "zeus"
    hook_name = "Zeus run log"

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
            # a test of a Connection must not make tables in the wrong database
            with closing(open_store(self.zeus_conn_id, create=False)) as store:
                jobs = len(store.jobs())
        except StoreError as error:
            return False, str(error)
        noun = "job" if jobs == 1 else "jobs"
        return True, f"The run log at {store.identity} can be read: {jobs} {noun}."


def about_dags(dag_ids: Collection[str]) -> dict[str, DagAbout]:
    """Tags and owners of those of the DAGs that Airflow's database has.

    Empty if it cannot be read.
    """
    from airflow_provider_zeus.reports.month_spent import DagAbout

    # within the try: a task's process may have no access to Airflow's database
    try:
        import sqlalchemy as sa

        from airflow_provider_zeus.airflow_compat import DagModel, DagTag, create_session

        dags = sa.select(DagModel.dag_id, DagModel.owners).where(DagModel.dag_id.in_(dag_ids))
        with create_session() as session:
            owners = {dag_id: names or "" for dag_id, names in session.execute(dags)}
            tags: dict[str, list[str]] = {dag_id: [] for dag_id in owners}
            tagged = sa.select(DagTag.dag_id, DagTag.name).where(DagTag.dag_id.in_(owners))
            for dag_id, tag in session.execute(tagged.order_by(DagTag.name)):
                tags[dag_id].append(tag)
    except Exception:
        log.warning("Tags and owners of DAGs cannot be read.", exc_info=True)
        return {}
    abouts = {}
    for dag_id, text in owners.items():
        names = [name.strip() for name in text.split(",")]
        abouts[dag_id] = DagAbout(tags[dag_id], list(filter(None, names)))
    return abouts


def month_saved(
    store: Store,
    dag_id: str,
    job_id: str,
    begin_s: float,
    end_s: float,
    with_belief: Callable[[Dataset], Dataset] | None = None,
) -> SavedDraws | str:
    """The saving of one job of a DAG in a month by its newest runs, or why it is not known.

    :param with_belief: gives a dataset a belief that is known already; default: it is learned from
        the start.
    """
    from airflow_provider_zeus.errors import JobSpecError
    from airflow_provider_zeus.model.trial import newest_device
    from airflow_provider_zeus.reports.dataset import as_dataset
    from airflow_provider_zeus.reports.months import saved_between
    from airflow_provider_zeus.reports.run_figures import MOST_RUNS

    trials = store.runs(dag_id, job_id, last=MOST_RUNS)
    try:
        settings = store.settings(job_id)
        job = trials[-1].job.with_settings(settings)
    except (JobSpecError, IndexError):
        # no error: the report has a line for each job, whichever can be read
        return "no run of it can be read here"
    log = as_dataset(trials, job, settings=settings)
    # a caller with many jobs has their beliefs already: learning each anew takes seconds
    if job.chooses_size and with_belief is not None:
        log = with_belief(log)
    elif job.chooses_size:
        log = replace(log, folded=log.belief())
    profiles = store.profile(job_id, log.where or newest_device(trials), job.job_version)
    return saved_between(log, profiles, begin_s, end_s)
