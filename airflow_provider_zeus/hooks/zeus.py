"""``ZeusHook``: the trial log behind an Airflow Connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

if TYPE_CHECKING:
    from airflow_provider_zeus.store.base import Store


class ZeusHook(BaseHook):
    """Opens the trial log, for tasks that read it or write reports of their own.

    :param zeus_conn_id: Connection of the trial log; without one the embedded file of this host.
    """

    conn_name_attr = "zeus_conn_id"
    default_conn_name = "zeus_default"
    conn_type = "zeus"
    hook_name = "Zeus trial log"

    def __init__(self, zeus_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.zeus_conn_id = zeus_conn_id

    def get_conn(self) -> Store:
        """The store. Raises StoreError with its remedy when it cannot be reached."""
        from airflow_provider_zeus.store import open_store

        return open_store(self.zeus_conn_id)
