"""Who sets power limits for a process that may not: from ``[zeus] power_socket`` to a helper on a Unix socket.

Standard library only: the guardian opens the same helper from what lies in the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

ZEUSD = "zeusd:"  # before the path of a zeusd's socket; without it, the path is that of our own sidecar


class Helper(Protocol):
    """Sets the limits of the GPUs that it was opened for. Every method but ``close`` raises OSError, and says why."""

    def check(self) -> None:
        """Raises OSError where it cannot set these limits."""

    def set_limit_w(self, limit_w: float) -> None:
        """Set the limit of each GPU [W]."""

    def restore_w(self, limit_w: float) -> None:
        """Give the limit found [W] back, from any process."""

    def close(self) -> None:
        """Let go of it."""


def description(
    power_socket: str, uuids: Sequence[str], indices: Sequence[int], models: Sequence[str]
) -> dict[str, Any]:
    """Plain JSON from which any process opens the same helper.

    :param indices: of those GPUs as the driver counts them.
    :param models: of every GPU of this host, in that order.
    """
    if power_socket.startswith(ZEUSD):
        path = power_socket.removeprefix(ZEUSD)
        return {"kind": "zeusd", "path": path, "indices": list(indices), "models": list(models)}
    return {"kind": "sidecar", "path": power_socket, "uuids": list(uuids)}


def open_helper(described: Mapping[str, Any]) -> Helper:
    """The helper of a :func:`description`; nothing is asked yet. Raises ValueError, KeyError: not one."""
    if described["kind"] == "sidecar":
        from airflow_provider_zeus.power.sidecar import Sidecar

        return Sidecar(described["path"], described["uuids"])
    if described["kind"] == "zeusd":
        from airflow_provider_zeus.power.zeusd import Zeusd

        return Zeusd(described["path"], described["indices"], described["models"])
    raise ValueError(f"unknown kind of helper {described['kind']!r} in a limit record")
