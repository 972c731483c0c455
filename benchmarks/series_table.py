"""Real retraining series: CSV files with one row per training of one slice of dated data.

Columns: ``slice``, ``batch_size``, ``seed``, ``epochs`` (to the slice's target; empty: it was not reached) and
``s_per_epoch``. Power was not measured, so there is one power limit, and cost is time.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.simulation.rows import rows_of
from airflow_provider_zeus.simulation.scenario import Scenario
from airflow_provider_zeus.simulation.traces import PowerMeasurement
from benchmarks.choosers import run_cost
from benchmarks.weather_table import MAX_EPOCHS, TABLE, Week, pair_of, read, weeks_of
from benchmarks.weather_table import points as simulated

COLUMNS = ("slice", "batch_size", "seed", "epochs", "s_per_epoch")
POWER_W = 100.0  # one power limit, and what is drawn at it
SAMPLES = 1_000_000  # per epoch: only ratios count
KINDS = ("small", "near_optimal", "large")
_REMEDY = f"Give a CSV file with the columns {', '.join(COLUMNS)}"


class Series(NamedTuple):
    """The slices of one table, and what an epoch takes at each batch size."""

    weeks: Sequence[Week]
    max_epochs: int
    epoch_s: Mapping[int, float]  # empty: the weather example's simulated GPU

    @property
    def batch_sizes(self) -> list[int]:
        """Those of every slice, ascending."""
        return sorted(set.intersection(*(set(week.epochs) for week in self.weeks)))

    def points(self, batch_size: int, samples: int) -> tuple[PowerMeasurement, ...]:
        """An epoch at each power limit."""
        if not self.epoch_s:
            return simulated(batch_size, samples)[-1:]
        return (PowerMeasurement(POWER_W, self.epoch_s[batch_size], POWER_W),)

    def truths(self, default_batch_size: int) -> list[Scenario]:
        """What each slice's batch sizes cost."""
        weeks = (w._replace(epochs={b: w.epochs[b] for b in self.batch_sizes}) for w in self.weeks)
        return [Scenario(pair_of(w, default_batch_size, self.points, self.max_epochs)) for w in weeks]

    def job(self, default_batch_size: int, policy: str) -> ZeusJob:
        """The job that recurs over the slices, without audits."""
        return ZeusJob(
            job_id="series",
            batch_sizes=self.batch_sizes,
            default_batch_size=default_batch_size,
            target="loss <= 1",
            max_epochs=self.max_epochs,
            policy=policy,
            audit=0.0,
        )


def read_series(path: Path, max_epochs: int | None = None) -> Series:
    """A table's series. Raises JobSpecError that names file, line and column.

    :param max_epochs: epochs at which a training ends; default: the most that any training of the table needed.
    """
    epochs: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    seconds: dict[int, list[float]] = defaultdict(list)
    for row in rows_of("series", path, COLUMNS, _REMEDY):
        b = row.whole("batch_size")
        epochs[row.text("slice")][b].append(row.number("epochs") if row.cells["epochs"] else math.inf)
        seconds[b].append(row.number("s_per_epoch"))
    weeks = [Week(key, SAMPLES, {b: tuple(e) for b, e in found.items()}) for key, found in epochs.items()]
    if not weeks or not set.intersection(*(set(week.epochs) for week in weeks)):
        said = "has no batch size that every slice was trained with"
        raise JobSpecError.of("series", str(path), said, "Complete it")
    most = max_epochs or _longest(weeks)
    weeks = [w._replace(epochs={b: _within(most, runs) for b, runs in w.epochs.items()}) for w in weeks]
    return Series(weeks, most, {b: statistics.median(s) for b, s in seconds.items()})


def _longest(weeks: Sequence[Week]) -> int:
    runs = [e for week in weeks for found in week.epochs.values() for e in found]
    return math.ceil(max((e for e in runs if math.isfinite(e)), default=1.0))


def _within(most: int, runs: Sequence[float]) -> tuple[float, ...]:
    return tuple(e if e <= most else math.inf for e in runs)


def tables_in(folder: Path) -> list[Path]:
    """The tables of a folder, by name. Raises JobSpecError where it holds none."""
    paths = sorted(folder.glob("*.csv"))
    if not paths:
        raise JobSpecError.of("series", str(folder), "holds no CSV file", "Give the folder of series")
    return paths


def weather() -> Series:
    """The series of the weather example, at full power."""
    return Series(weeks_of(read(TABLE)), MAX_EPOCHS, {})


def defaults_of(series: Series) -> dict[str, int]:
    """The three defaults. Near-optimal: least total cost of all slices; a run that misses pays ``max_epochs``."""
    sizes, truths = series.batch_sizes, series.truths(series.batch_sizes[0])
    totals = {b: math.fsum(run_cost(truth, b) for truth in truths) for b in sizes}
    return {"small": sizes[0], "near_optimal": min(sizes, key=lambda b: totals[b]), "large": sizes[-1]}
