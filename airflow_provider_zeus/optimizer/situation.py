"""The situation that a decision is made in, under both policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import DeviceInfo, Lineage, ProfileSample
from airflow_provider_zeus.optimizer.belief import Belief

if TYPE_CHECKING:
    from airflow_provider_zeus.optimizer.knowledge_gradient.run_times import RunTimes


class Situation(NamedTuple):
    """All that the attempts of the next recurrence follow from, besides a seed."""

    job: ZeusJob
    belief: Belief
    device: DeviceInfo | None
    profiles: Sequence[ProfileSample] = ()
    obstacle: str | None = None  # each run says why it tried nothing
    runs_left: int | None = None  # a try in the last run would teach nobody
    times: RunTimes | None = None
    lineage: Lineage | None = None
