"""What the tab of a DAG is answered with."""

from __future__ import annotations

from pydantic import BaseModel

from airflow_provider_zeus.plugin.models import Chart, Row, Source, Table, Total
from airflow_provider_zeus.plugin.run_models import Tile, Verdict


class DagAnswer(BaseModel):
    """The runs of one job of a DAG: the table."""

    store: str = ""  # where the trial log lies
    note: str | None = None  # instead of a table: why there is none
    left_out: str = ""  # trials that cannot be read, in a sentence
    jobs: list[str] = []
    job_id: str | None = None
    facts: list[str] = []
    settings: list[str] = []  # live settings in force
    rows: list[Row] = []  # newest first
    more: bool = False  # older runs were left out
    skipped: int = 0  # newer runs that were left out
    totals: list[Total] = []


class DagCharts(BaseModel):
    """What the runs say together: saved or lost, and the charts."""

    note: str | None = None  # instead of all: why there is nothing
    verdict: Verdict | None = None
    tiles: list[Tile] = []
    whose: str = ""  # which device's and source's figures these are
    source: Source = Source()
    left_out: list[str] = []  # what they leave out, in sentences
    cost: Chart | None = None
    saved: Chart | None = None
    belief: Chart | None = None
    front: Chart | None = None


class Asked(BaseModel):
    """One weight or price of the what-if, as it counted for the answer."""

    name: str
    label: str
    value: float | None  # None: not given
    most: float
    step: float


class WhatIfAnswer(BaseModel):
    """What the log says under other weights and prices. No training, nothing is written."""

    note: str | None = None  # instead of an answer: why there is none
    text: str = ""  # what would be chosen and spent, in sentences
    asked: list[Asked] = []
    table: Table | None = None  # today beside the asked
    front: Chart | None = None
    whose: str = ""
    source: Source = Source()
