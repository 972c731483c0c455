"""Answers of the page of all jobs about a calendar month."""

from __future__ import annotations

from pydantic import BaseModel

from airflow_provider_zeus.plugin.views.models import Answer, Chart, Source


class MonthKind(BaseModel):
    """The sums of one kind of source: measured, estimated, simulated, or time alone. They are never added."""

    kind: str
    source: Source
    answers: list[Answer]  # what was spent, and the month before


class MonthAnswer(BaseModel):
    """What all jobs that this user may see spent in a month."""

    month: str  # "2026-11"
    title: str  # "November 2026"
    months: list[str] = []  # that have runs, newest first
    kinds: list[MonthKind] = []
    note: str = ""  # what is in no figure, or that there is none
    chart: Chart | None = None


class MonthSaved(BaseModel):
    """What the jobs saved in a month, by kind; of the jobs that were fitted so far."""

    answers: dict[str, Answer] = {}
    done: bool = True  # all jobs are fitted; else the next request goes on
    progress: str = ""
