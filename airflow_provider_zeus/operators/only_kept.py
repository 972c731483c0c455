"""The series of services as the trial log keeps them, for pages and commands: no service is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_zeus.errors import StoreError

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store


class OnlyKept:
    """A :class:`~airflow_provider_zeus.operators.kept_series.Keeper` that lets nobody ask, and changes nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def signal(self, name: str) -> tuple[str, bool]:
        """The series kept under a name. Raises OSError where there is none."""
        try:
            text = self._store.kept_signal(name)
        except StoreError as error:
            raise OSError(str(error)) from None
        if text is None:
            raise FileNotFoundError(name)
        return text, False

    def keep_signal(self, name: str, series: str | None) -> None:
        """Keep nothing."""
