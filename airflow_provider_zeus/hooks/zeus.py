"""``ZeusHook``: the trial log behind an Airflow Connection."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

if TYPE_CHECKING:
    from os import PathLike

    from airflow_provider_zeus.store.sql.store import Store


class ZeusHook(BaseHook):
    """Opens the trial log, for tasks that read it or write their own reports.

    :param zeus_conn_id: Connection of the trial log; where ``zeus_default`` is not defined, the embedded file of this
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
        """Write the report of a month such as "2026-11" (UTC) into a folder; returns the HTML page and the CSV file.

        Raises JobSpecError: no month, or a folder that cannot be written to; StoreError: the log cannot be read.
        """
        store = self.get_conn()
        try:
            return write_month(store, month, Path(folder))
        finally:
            store.close()

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the log can be read, and a message. Creates and migrates nothing."""
        from airflow_provider_zeus.errors import StoreError
        from airflow_provider_zeus.store.open import open_store

        try:
            store = open_store(self.zeus_conn_id, create=False)
            try:
                jobs = len(store.jobs())
            finally:
                store.close()
        except StoreError as error:
            return False, str(error)
        return True, f"The trial log at {store.identity} can be read: {jobs} {'job' if jobs == 1 else 'jobs'}."


def write_month(store: Store, month: str, folder: Path) -> list[Path]:
    """Write ``zeus-<month>.html`` and ``zeus-<month>.csv``, for this user alone; returns both paths.

    :param month: in UTC, such as "2026-11".

    Raises JobSpecError: no month, or a folder or a file that cannot be written to, a link among them; StoreError.
    """
    from airflow_provider_zeus.errors import JobSpecError
    from airflow_provider_zeus.model.trial import newest_here
    from airflow_provider_zeus.private_files import make_folder, open_file
    from airflow_provider_zeus.reports.dataset import as_dataset
    from airflow_provider_zeus.reports.month_report import as_csv, as_html, month_report
    from airflow_provider_zeus.reports.months import SavedDraws, month_bounds, saved_between
    from airflow_provider_zeus.signals.prices import in_force

    try:
        bounds = month_bounds(month, 2)
    except ValueError:
        raise JobSpecError.of("month", month, "no month", 'write it as "2026-11"') from None

    def saved(dag_id: str, job_id: str) -> SavedDraws | str:
        trials = store.runs(dag_id, job_id, last=1000)  # as many as the pages read
        try:
            job = newest_here(trials).job.with_settings(store.settings(job_id))
        except (JobSpecError, IndexError):
            return "no run of it can be read here"
        log = as_dataset(trials, job)
        profiles = [] if log.where is None else store.profile(job_id, log.where, job.job_version)
        return saved_between((dag_id, job_id), log, profiles, bounds[1], bounds[2])

    sums = store.sums(bounds)
    jobs = sorted({(s.dag_id, s.job_id) for s in sums if s.period == 1})
    report = month_report(month, sums, {key: saved(*key) for key in jobs}, in_force())
    files = [folder / f"zeus-{month}.{ending}" for ending in ("html", "csv")]
    try:
        make_folder(folder)
        for file, text in zip(files, (as_html(report), as_csv(report)), strict=True):
            with open(file, "w", encoding="utf-8", opener=open_file) as opened:
                opened.write(text)
    except OSError as error:
        problem = f"{error.filename} is a symbolic link" if error.errno == errno.ELOOP else str(error.strerror)
        raise JobSpecError.of("folder", str(folder), problem, "name a folder that you may write to") from None
    return files
