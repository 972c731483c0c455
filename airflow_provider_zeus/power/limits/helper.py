"""Helpers: processes on a Unix socket that set power limits for a process that may not.

Standard library only: the guardian opens the same helper from the record of a limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from airflow_provider_zeus.errors import DeviceError

ZEUSD = "zeusd:"  # prefix of the path of a zeusd's socket; a path without it is that of the sidecar


class LimitHelper(Protocol):
    """Sets the limits of the GPUs that it was opened for. Every method but ``close`` raises OSError with the reason."""

    def check(self) -> None:
        """Raise OSError where the helper cannot set these limits."""

    def set_limit_w(self, limit_w: float) -> None:
        """Set the limit of each GPU [W]."""

    def restore_w(self, limit_w: float) -> None:
        """Give the limit found [W] back, from any process."""

    def close(self) -> None:
        """Close the connection."""


def helper_at(power_socket: str, uuids: Sequence[str]) -> tuple[dict[str, Any], LimitHelper]:
    """Open the helper for the GPUs with these UUIDs and check that it sets their limits.

    :param power_socket: ``[zeus] power_socket``.

    Returns its description (plain JSON, for :func:`open_helper` in any process) and its client. Raises DeviceError with
    the reason.
    """
    from airflow_provider_zeus.power.nvml.visible import all_gpus  # not needed, and not imported, by the guardian

    gpus = all_gpus()
    description: dict[str, Any] = {"kind": "sidecar", "path": power_socket, "uuids": list(uuids)}
    if power_socket.startswith(ZEUSD):
        description = {
            "kind": "zeusd",
            "path": power_socket.removeprefix(ZEUSD),
            "indices": [index for index, gpu in enumerate(gpus) if gpu.uuid in uuids],
            "models": [gpu.model for gpu in gpus],
        }
    helper = open_helper(description)
    try:
        helper.check()
    except OSError as error:
        raise DeviceError(f"{error} ([zeus] power_socket)") from error
    return description, helper


def open_helper(description: Mapping[str, Any]) -> LimitHelper:
    """Make the client that a description names, without a request. Raises ValueError, KeyError: not a description."""
    if description["kind"] == "sidecar":
        from airflow_provider_zeus.power.limits.sidecar import Sidecar

        return Sidecar(description["path"], description["uuids"])
    if description["kind"] == "zeusd":
        from airflow_provider_zeus.power.limits.zeusd import Zeusd

        return Zeusd(description["path"], description["indices"], description["models"])
    raise ValueError(f"unknown kind of helper {description['kind']!r} in a limit record")
