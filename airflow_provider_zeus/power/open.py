"""From the name of a device, as a job says it, to the device."""

from __future__ import annotations

import os

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.none import NoneDevice
from airflow_provider_zeus.power.simulated import PREFIX, open_simulated


def device_of(job: ZeusJob, state_dir: str | os.PathLike[str]) -> Device:
    """The device that a job measures on. Raises JobSpecError for an unknown one."""
    if job.mode == "off":
        return NoneDevice(job.max_power_w, why="the job's mode is 'off': nothing is measured")
    return open_device(job.device, state_dir=state_dir, max_power_w=job.max_power_w)


def open_device(name: str, *, state_dir: str | os.PathLike[str], max_power_w: float | None = None) -> Device:
    """Open ``auto``, ``none`` or ``simulated:<gpu>/<load>``. Raises JobSpecError for any other name.

    :param state_dir: where simulated devices keep their state; a path of the host, shared by its processes.
    :param max_power_w: MAXPOWER of Eq. 2 [W], used where the device does not tell it.
    """
    if name.startswith(PREFIX):
        return open_simulated(name, state_dir)
    if name in ("auto", "none"):  # "auto" takes the best real source; where there is none it is "none"
        return NoneDevice(max_power_w)
    raise JobSpecError.of("ZeusJob.device", name, "unknown device", f"use 'auto', 'none' or '{PREFIX}<gpu>/<load>'")
