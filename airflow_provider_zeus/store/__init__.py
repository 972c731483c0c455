"""The trial log: ``open_store()`` returns a :class:`~airflow_provider_zeus.store.base.Store`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_zeus.store.open import open_store as open_store

__all__ = ["open_store"]


def __getattr__(name: str) -> Any:
    if name == "open_store":
        from airflow_provider_zeus.store.open import open_store

        return open_store
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
