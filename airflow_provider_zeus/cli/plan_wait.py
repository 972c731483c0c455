"""How long the next run may wait for a cheaper start, and until when it would by the series that the log keeps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.errors import SignalError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.operators.waiting import durations, trials_for_durations, window
from airflow_provider_zeus.signals.reading import ReadOnlyKeeper, planned_start
from airflow_provider_zeus.signals.start import WAITS
from airflow_provider_zeus.units import time_text

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class MayWait:
    """A window after the scheduled start. ``until``: the start by the series in the log; None: not known."""

    within_s: float
    signal: str
    until: datetime | None
    text: str

    def as_json(self) -> dict[str, Any]:
        """As ``-o json`` has it."""
        until = None if self.until is None else self.until.isoformat()
        return {"within_s": self.within_s, "signal": self.signal, "until": until}


def may_wait(job: ZeusJob, starts: datetime | None, store: Store, job_id: str, *, now_s: float) -> MayWait | None:
    """The wait of the next run; None for a job that never waits. No service is asked.

    :param job: as that run has it.
    :param starts: when the schedule begins it; None: not known.
    """
    if job.start_within is None:
        return None
    signal, within_s = str(job.start_signal), window(job).total_seconds()
    most = f"at most {time_text(within_s)} for a cheaper start by {signal}"
    if job.finish_by is not None:
        most += ", and no longer than its deadline lets it"
    until, then = None, "it is planned when the run begins"
    took = durations(trials_for_durations(store, job_id))
    if took is None:
        then = "it starts at once: no run has shown yet how long it takes"
    elif starts is not None and job.finish_by is None:
        begins_s = max(starts.timestamp(), now_s)
        try:
            found, _ = planned_start(
                signal, begins_s, starts.timestamp() + within_s, took[0], ReadOnlyKeeper(store.kept_signal)
            )
            until = datetime.fromtimestamp(found.at_s, UTC)
            would = f"start at {until:%Y-%m-%d %H:%M} UTC" if found.reason == WAITS else "not wait"
            then = f"as its series stands it would {would}"
        except SignalError:
            then = f"no series of these hours is in the log; {then}"
    return MayWait(within_s=within_s, signal=signal, until=until, text=f"{most}; {then}")
