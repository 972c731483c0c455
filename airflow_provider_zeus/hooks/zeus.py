"""``ZeusHook``: the trial log behind an Airflow Connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

if TYPE_CHECKING:
    from os import PathLike
    from pathlib import Path

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
        from pathlib import Path

        from airflow_provider_zeus.hooks.month_files import write_month

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
