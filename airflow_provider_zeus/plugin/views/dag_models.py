"""Answers of the tab of a DAG."""

from __future__ import annotations

from pydantic import BaseModel

from airflow_provider_zeus.plugin.views.alerts_models import Alerts
from airflow_provider_zeus.plugin.views.models import Answer, Chart, RunRow, Short, Source, Table, Tile, Total, Verdict


class DagAnswer(BaseModel):
    """The table: the runs of one job of a DAG."""

    store: str = ""  # address of the trial log, or a short name
    note: str | None = None  # instead of a table: why there is none
    left_out: str = ""  # trials that cannot be read, in a sentence
    jobs: list[str] = []
    job_id: str | None = None
    facts: list[str] = []
    settings: list[str] = []  # live settings in force
    remarks: list[Short] = []  # two jobs under one id, a new target, a new device: in sentences
    alerts: Alerts = Alerts()
    budgets: list[Answer] = []
    rows: list[RunRow] = []  # newest first
    more: bool = False  # older runs were left out
    skipped: int = 0  # newer runs that were left out
    totals: list[Total] = []


class DagCharts(BaseModel):
    """Verdict, tiles and charts of all runs together."""

    note: str | None = None  # instead of all: why there is nothing
    headline: list[Answer] = []  # what it cost, what it saved, what runs next
    shift: str = ""  # what another hour of the day would have cost, in a sentence
    verdict: Verdict | None = None
    tiles: list[Tile] = []
    levers: Table | None = None  # what of it the batch size saved, what the power limit; None: nothing, or not known
    whose: str = ""  # the device of the figures
    source: Source = Source()
    left_out: list[str] = []  # what the runs are and what the figures leave out, in sentences
    cost: Chart | None = None
    saved: Chart | None = None
    belief: Chart | None = None
    front: Chart | None = None


class WhatIfInput(BaseModel):
    """One weight or price of the what-if, with the value that the answer used."""

    name: str
    label: str
    value: float | None  # None: not given
    most: float
    step: float


class WhatIfAnswer(BaseModel):
    """What would be chosen and spent under other weights and prices."""

    note: str | None = None  # instead of an answer: why there is none
    text: str = ""  # what would be chosen and spent, in sentences
    asked: list[WhatIfInput] = []
    table: Table | None = None  # today beside the asked
    front: Chart | None = None
    whose: str = ""
    source: Source = Source()
