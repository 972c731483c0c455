"""The events of a job on the tab of its DAG, and a request to silence them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from airflow_provider_zeus.plugin.views.models import Short
from airflow_provider_zeus.reports.alerts import KINDS


class AlertRow(BaseModel):
    """One event."""

    kind: str
    name: str  # of the kind, for people
    sentence: Short
    remedy: Short
    run_id: str  # in which it was seen first
    when: str  # from when until when
    sent: Short  # to whom and when, or why not
    not_sent: bool = False  # to nobody, though nobody silenced it
    silenced: bool = False


class SilencedKind(BaseModel):
    """A kind of event that is kept and not sent."""

    kind: str
    text: Short


class Alerts(BaseModel):
    """Events of one job in one DAG."""

    open: list[AlertRow] = []  # newest first
    past: list[AlertRow] = []
    silenced: list[SilencedKind] = []
    may_edit: bool = False
    problem: str = ""  # why they cannot be shown


class SilenceChange(BaseModel):
    """A kind of event to silence, or to hear again."""

    model_config = ConfigDict(extra="forbid", strict=True)

    job_id: str = Field(min_length=1, max_length=1000)
    kind: str = Field(pattern=f"^({'|'.join(KINDS)})$")
    silenced: bool
