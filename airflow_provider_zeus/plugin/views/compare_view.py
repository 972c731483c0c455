"""What the page that compares runs, or jobs, is made of. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from pydantic import BaseModel

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import PowerPoint, Trial
from airflow_provider_zeus.plugin.charts import metric_chart, run_charts
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.views import costs
from airflow_provider_zeus.plugin.views.models import Chart, RunRow, Table
from airflow_provider_zeus.units import UNKNOWN, devices

MOST = 8  # columns
NOTHING = "There is nothing to compare: choose two runs, or jobs, that you may see and that have trials."


class Place(BaseModel):
    """What one column is about, for its link."""

    dag_id: str
    run_id: str | None  # None: all runs of the job
    job_id: str


@dataclass(frozen=True, slots=True)
class Column:
    """One run of a job, or a job with all its runs.

    :param trials: of the run, with their metrics; of a job, those of its newest run that ended.
    :param rows: of the run, one for each task and map index; of a job, of all its runs.
    :param saved: what was saved, in a few words; empty where that is not known.
    """

    place: Place
    job: ZeusJob
    trials: Sequence[Trial]
    rows: Sequence[RunRow]
    drawn: Sequence[tuple[Trial, Sequence[PowerPoint]]]
    saved: str = ""

    @property
    def newest(self) -> RunRow | None:
        """The row of its trials' run: of a job, not that of a run that still trains."""
        run_id = self.trials[-1].origin.run_id if self.trials else None
        return next((row for row in self.rows if row.run_id == run_id), None)

    @property
    def of_job(self) -> bool:
        """Whether this is a job with all its runs."""
        return self.place.run_id is None

    @property
    def device(self) -> str:
        """Number and model of the devices, as "2 × V100"; empty where they are not known."""
        seen = next((t.observation for t in reversed(self.trials) if t.observation.device_model), None)
        return "" if seen is None else devices(seen.device_model or "", seen.device_count)


@dataclass(frozen=True)
class Comparison:
    """At least two columns side by side."""

    columns: Sequence[Column]

    @cached_property
    def names(self) -> list[str]:
        """A name for each column: the run, or the job; with the job where runs of several are compared."""
        places = [column.place for column in self.columns]
        several = len({place.job_id for place in places}) > 1
        names = [
            place.job_id if place.run_id is None else f"{place.run_id}, {place.job_id}" if several else place.run_id
            for place in places
        ]
        if len(set(names)) < len(names):  # one job in several DAGs
            names = [f"{name} in {place.dag_id}" for name, place in zip(names, places, strict=True)]
        return names

    def table(self, caption: str, cells: Callable[[Column], dict[str, str]]) -> Table:
        """A line for each label that some column has; ``cells``: by label, of a column."""
        found = [cells(column) for column in self.columns]
        labels = dict.fromkeys(label for column in found for label, text in column.items() if text)
        return Table(
            caption=caption,
            columns=["", *self.names],
            numeric=[False for _ in ("", *self.names)],
            rows=[[label, *(column.get(label) or UNKNOWN for column in found)] for label in labels],
        )

    @property
    def remarks(self) -> list[str]:
        """Why figures of the columns may not compare, a sentence each."""
        found, columns = [], self.columns
        sources = dict.fromkeys(row.source.text for c in columns for row in c.rows if row.source.text)
        devices = dict.fromkeys(c.device for c in columns if c.device)
        if len(sources) > 1:
            found.append(
                f"The figures come from different sources ({', '.join(sources)}): they are not measured alike."
            )
        if len(devices) > 1:
            found.append(f"They ran on different devices: {', '.join(devices)}.")
        if len({c.job.eta for c in columns}) > 1:
            found.append("They weigh energy against time by different etas: compare their energy and time.")
        if len({str(c.job.target) for c in columns}) > 1:
            found.append("They have different targets.")
        return found

    @property
    def charts(self) -> list[Chart]:
        """The metric by epoch of all columns, then the power of each."""
        curves, power = [], []
        for column, name in zip(self.columns, self.names, strict=True):
            name += ", newest run" * column.of_job
            for n, trial in enumerate(column.trials, 1):
                attempt = f", attempt {n}" if len(column.trials) > 1 else ""
                curves.append(metric_chart.MetricCurve.of(trial, f"{name}{attempt}: {words.sized(trial)}"))
            if column.drawn:
                chart = run_charts.power(column.drawn)
                power.append(chart.model_copy(update={"title": f"{chart.title}: {name}"}))
        return [*metric_chart.by_metric([curve for curve in curves if curve]), *power]


def costs_of(column: Column) -> dict[str, str]:
    """What a column cost, by label."""
    rows, newest, last = column.rows, column.newest, column.trials[-1] if column.trials else None
    ended = [row for row in rows if row.cost.value is not None]
    cells = {"Runs": f"{len(rows):,}"} if column.of_job else {}
    for label, name in (("Energy", "energy"), ("Time", "time")):
        if not column.of_job:
            cells[label] = "; ".join(getattr(row, name).text for row in rows)
            continue
        cells[f"{label} in all"] = "; ".join(
            f"{getattr(total, name).text} ({total.source.text})" for total in costs.totals_of(ended)
        )
        cells[f"{label} of the newest run"] = getattr(newest, name).text if newest else ""
    busy = None if last is None else last.observation.gpu_busy
    return cells | {
        "Saved": column.saved,
        "Epochs": "" if column.of_job else "; ".join(row.epochs.text for row in rows),
        "Metric": "" if last is None else words.metric(last),
        "GPU busy": "" if busy is None else words.share(busy).text,
        "Power limit": newest.limit.text if newest else "",
        "Device": column.device,
        "Source": ", ".join(dict.fromkeys(row.source.text for row in rows if row.source.text)),
    }


def decisions_of(column: Column) -> dict[str, str]:
    """What was decided in a column, and why, by label."""
    job, newest = column.job, column.newest
    cells = (
        {}
        if newest is None
        else {
            "Batch sizes": " → ".join(f"{words.size(a.batch_size)} ({a.state_text})" for a in newest.attempts),
            "Choice": newest.phase,
            "Why it was chosen": newest.why,
            "State": newest.state_text,
            "Why it ended": newest.state_why,
            "Data slice": newest.slice_text,
        }
    )
    if column.of_job:
        cells = {f"{label}, newest run": text for label, text in cells.items()}
    if not job.chooses_size:
        return cells
    return cells | {
        "Default": str(job.default_batch_size),
        "Sizes that may run": ", ".join(map(str, sorted(job.batch_sizes))),
        "Target": str(job.target),
        "Weights": f"eta {job.eta:g} (1: energy alone, 0: time alone)",
    }
