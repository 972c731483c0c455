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

ON, MEASURE, OFF = "True", "measure", "False"  # [zeus] enabled

log = guarded_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeusConfig(HostSettings):
    """What a task needs of the section ``[zeus]`` of Airflow's configuration."""

    enabled: str = ON
    state_dir: Path
    heartbeat_s: float
    lease_s: float
    attempt_root: str | None = None  # parent of run.attempt_dir
    shared_group: str = ""  # of the folders that are made here; empty: this user alone

    @classmethod
    def read(cls) -> ZeusConfig:
        """Read the section from Airflow. Raises JobSpecError for a value that cannot be used."""
        from airflow.sdk import conf

        heartbeat_s = conf.getfloat("zeus", "heartbeat_s", fallback=15.0)
        lease_s = conf.getfloat("zeus", "lease_s", fallback=90.0)
        if heartbeat_s <= 0:
            raise JobSpecError.of("[zeus] heartbeat_s", heartbeat_s, "not above 0", "15 suits most trainings")
        if lease_s < 2 * heartbeat_s:
            raise JobSpecError.of(
                "[zeus] lease_s",
                lease_s,
                f"too short for a heartbeat every {heartbeat_s:g} s",
                "raise it to 6 heartbeats",
            )
        cpu_watts = conf.getfloat("zeus", "cpu_watts", fallback=0.0)
        if not 0 <= cpu_watts < float("inf"):
            raise JobSpecError.of("[zeus] cpu_watts", cpu_watts, "not a power", "give the watts of one busy core, or 0")
        shared_group = conf.get("zeus", "shared_group", fallback="").strip()
        share_with(shared_group)
        return cls(
            enabled=enabled(),
            state_dir=state_dir(),
            heartbeat_s=heartbeat_s,
            lease_s=lease_s,
            cpu_watts=cpu_watts or None,
            power_read_only=conf.getboolean("zeus", "power_read_only", fallback=False),
            power_socket=conf.get("zeus", "power_socket", fallback="").strip(),
            attempt_root=conf.get("zeus", "attempt_root", fallback="").strip() or None,
            gpu_lock_wait_s=conf.getfloat("zeus", "gpu_lock_wait_s", fallback=3600.0),
            shared_group=shared_group,
        )

    def switched(self, job: ZeusJob) -> ZeusJob:
        """The job as ``[zeus] enabled`` has it: switched off it sets no limit, and follows and waits for nothing."""
        if self.enabled == ON:
            return job
        if job.chooses_size or self.enabled == OFF:
            size = f"batch size {job.default_batch_size}, the default, " if job.chooses_size else "this run is "
            what = "is" if self.enabled == MEASURE else "nothing is"
            text = "Zeus is switched off ([zeus] enabled = %s): %sat the power limit that is found; %s measured."
            log.info(text, self.enabled, size, what)
        job = replace(job, mode="measure", follow=None, start_within=None, start_signal=None)
        return job if self.enabled == MEASURE else replace(job, device="none", log_to=())

    def share_folders(self) -> None:
        """Make the shared folders of ``shared_group`` before anything makes them private. Raises nothing."""
        folders = [self.state_dir, Path(self.attempt_root)] if self.attempt_root else [self.state_dir]
        for folder in folders if self.shared_group else []:
            try:
                make_folder(folder, self.shared_group)
                if not shares(os.stat(folder)):
                    log.warning(
                        "%s was there before [zeus] shared_group = %s and is not shared: chgrp it, and chmod 2770.",
                        folder,
                        self.shared_group,
                    )
            except OSError as error:
                log.warning("%s cannot be made for [zeus] shared_group = %s: %s", folder, self.shared_group, error)


def enabled() -> str:
    """``[zeus] enabled``: :data:`ON`, :data:`MEASURE` or :data:`OFF`. Raises JobSpecError for another text."""
    from airflow.sdk import conf

    text = conf.get("zeus", "enabled", fallback=ON).strip()
    known = {MEASURE: MEASURE, **dict.fromkeys(("true", "t", "1", "yes", "on"), ON)}
    known |= dict.fromkeys(("false", "f", "0", "no", "off"), OFF)
    found = known.get(text.lower())
    if found is None:
        raise JobSpecError.of("[zeus] enabled", text, "none of these", "use True, measure or False")
    return found


def next_of(job: ZeusJob) -> tuple[ZeusJob, dict[str, Any]]:
    """The job as its next run has it by ``[zeus] enabled`` of this host, and what that adds to its live settings.

    Switched off it sets and waits for nothing, and its default batch size is pinned.
    """
    try:
        by = pinned_by(enabled())
    except JobSpecError:  # the run itself says so
        by = None
    if by is None:
        return job, {}
    job = replace(job, mode="measure", start_within=None, start_signal=None)
    return job, {"pin_batch_size": job.default_batch_size, "pinned_by": by}


def pinned_by(switch: str) -> str | None:
    """What makes every run take the default batch size, by ``[zeus] enabled``; None: nothing does."""
    return None if switch == ON else f"[zeus] enabled = {switch}"
