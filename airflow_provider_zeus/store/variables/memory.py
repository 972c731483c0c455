"""Variables of one process: the log of a run that is to leave none (``[zeus] enabled = False``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_zeus.store.variables.store import VariableStore


class MemoryVariables:
    """Texts that end with the process; see :class:`~airflow_provider_zeus.store.base.VariablePort`."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def get(self, key: str) -> str | None:
        """The text of a key; None where there is none."""
        return self._texts.get(key)

    def set(self, key: str, text: str) -> None:
        """Keep a text."""
        self._texts[key] = text

    def delete(self, key: str) -> None:
        """Forget a key, where it is there."""
        self._texts.pop(key, None)

    def keys(self, prefix: str) -> list[str]:
        """The keys that begin so."""
        return [key for key in self._texts if key.startswith(prefix)]


def memory_store() -> VariableStore:
    """A store that nothing outlives."""
    from airflow_provider_zeus.store.variables.store import VariableStore

    return VariableStore(MemoryVariables(), overlap_possible=False)
