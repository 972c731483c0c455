"""The helper that sets this process's GPU limits, found and asked whether it will, before a training counts on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.power.helper import Helper, description, open_helper
from airflow_provider_zeus.power.nvml_visible import all_gpus


def helper_at(power_socket: str, uuids: Sequence[str]) -> tuple[dict[str, Any], Helper]:
    """Description and client of the helper for the GPUs with these UUIDs. Raises DeviceError: it will not do, and why.

    :param power_socket: ``[zeus] power_socket``.
    """
    here = all_gpus()
    indices = [index for index, gpu in enumerate(here) if gpu.uuid in uuids]
    described = description(power_socket, uuids, indices, [gpu.model for gpu in here])
    helper = open_helper(described)
    try:
        helper.check()
    except OSError as error:
        raise DeviceError(f"{error} ([zeus] power_socket)") from error
    return described, helper
