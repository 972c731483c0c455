"""The section ``[zeus]`` of Airflow's configuration, as a task reads it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.power.factory import HostSettings
from airflow_provider_zeus.private_files import make_folder, share_with, shares
from airflow_provider_zeus.store.open import state_dir
from airflow_provider_zeus.switch import OFF, ON, enabled

# Of a busy hardware thread [W], if no option says it: the mean of 78 loads of four
# processors, of which 90 % lay between 3 and 14 W (docs/power.md).
TYPICAL_W = 7.0

log = guarded_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeusConfig(HostSettings):
    """All that a task needs of the section ``[zeus]`` of Airflow's configuration."""

    enabled: str = ON
    # a task that is only measured has an estimate by default: no choice depends on it
    measured_watts: float | None = None
    state_dir: Path
    heartbeat_s: float
    lease_s: float
    attempt_root: str | None = None
    shared_group: str = ""  # tasks of several users may share a host; else folders are private

    @classmethod
    def read(cls) -> ZeusConfig:
        """Read the section from Airflow. Raises JobSpecError for a value that cannot be used."""
        from airflow.sdk import conf

        heartbeat_s = conf.getfloat("zeus", "heartbeat_s", fallback=15.0)
        lease_s = conf.getfloat("zeus", "lease_s", fallback=90.0)
        if heartbeat_s <= 0:
            raise JobSpecError.of(
                "[zeus] heartbeat_s", heartbeat_s, "not above 0", "15 suits most trainings"
            )
        # one heartbeat may be late without its trial counting as abandoned
        if lease_s < 2 * heartbeat_s:
            problem = f"too short for a heartbeat every {heartbeat_s:g} s"
            raise JobSpecError.of("[zeus] lease_s", lease_s, problem, "raise it to 6 heartbeats")
        cpu_watts = watts_in(conf.get("zeus", "cpu_watts", fallback=""))
        measured_watts = TYPICAL_W if cpu_watts is None else cpu_watts
        shared_group = conf.get("zeus", "shared_group", fallback="").strip()
        # set before any folder is made: each one is private by default
        share_with(shared_group)
        return cls(
            enabled=enabled(),
            state_dir=state_dir(),
            heartbeat_s=heartbeat_s,
            lease_s=lease_s,
            cpu_watts=cpu_watts or None,
            measured_watts=measured_watts or None,
            power_read_only=conf.getboolean("zeus", "power_read_only", fallback=False),
            power_socket=conf.get("zeus", "power_socket", fallback="").strip(),
            attempt_root=conf.get("zeus", "attempt_root", fallback="").strip() or None,
            gpu_lock_wait_s=conf.getfloat("zeus", "gpu_lock_wait_s", fallback=3600.0),
            shared_group=shared_group,
        )

    def switched(self, job: ZeusJob) -> ZeusJob:
        """The job as ``[zeus] enabled`` has it: switched off it sets no limit, follows nothing,
        and waits for a busy GPU alone: two that share one could not be measured.
        """
        if self.enabled == ON:
            return job
        if job.chooses_size or self.enabled == OFF:
            size = "this run is "
            if job.chooses_size:
                size = f"batch size {job.default_batch_size}, the default, "
            text = (
                "Zeus is switched off ([zeus] enabled = %s): %sat the power limit that is found; "
                "%s measured."
            )
            log.info(text, self.enabled, size, "nothing is" if self.enabled == OFF else "is")
        job = replace(job, mode="measure", follow=None, start_within=None, start_signal=None)
        return replace(job, device="none", log_to=()) if self.enabled == OFF else job

    def share_folders(self) -> None:
        """Make the shared folders of ``shared_group`` before anything makes them private.

        Raises nothing.
        """
        if not self.shared_group:
            return
        folders = [self.state_dir]
        if self.attempt_root:
            folders.append(Path(self.attempt_root))
        for folder in folders:
            try:
                make_folder(folder, self.shared_group)
                if not shares(os.stat(folder)):
                    log.warning(
                        "%s was there before [zeus] shared_group = %s and is not shared: chgrp "
                        "it, and chmod 2770.",
                        folder,
                        self.shared_group,
                    )
            except OSError as error:
                log.warning(
                    "%s cannot be made for [zeus] shared_group = %s: %s",
                    folder,
                    self.shared_group,
                    error,
                )


def watts_in(text: str) -> float | None:
    """``[zeus] cpu_watts`` [W]; None if it is empty.

    Raises JobSpecError for a text that is no power.
    """
    if not text.strip():
        return None
    try:
        watts = float(text)
    except ValueError:
        watts = float("nan")
    if 0 <= watts < float("inf"):
        return watts
    remedy = "give the watts of one busy hardware thread, or 0"
    raise JobSpecError.of("[zeus] cpu_watts", text, "not a power", remedy)


def next_of(job: ZeusJob) -> tuple[ZeusJob, dict[str, Any]]:
    """The job as its next run has it by ``[zeus] enabled`` of this host, and the settings that this
    adds to its live settings.

    Switched off it sets no limit and waits for no cheaper hour; its default batch size is pinned.
    """
    try:
        by = pinned_by(enabled())
    except JobSpecError:  # no page fails for it: the run itself says so
        by = None
    if by is None:
        return job, {}
    job = replace(job, mode="measure", start_within=None, start_signal=None)
    return job, {"pin_batch_size": job.default_batch_size, "pinned_by": by}


def pinned_by(switch: str) -> str | None:
    """The reason why every run takes the default batch size, by ``[zeus] enabled``; None: nothing
    does.
    """
    return None if switch == ON else f"[zeus] enabled = {switch}"
