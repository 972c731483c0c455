"""What trainings of dated slices need, as measured: a CSV file with one row per slice,
batch size and seed.

The weather example's table has epochs of real trainings; time and power are a simulated V100's,
straight from its model: no clock is waited for. Tables of other series have the columns ``slice``,
``batch_size``, ``seed``, ``epochs`` (to the slice's target; empty: it was not reached) and
``s_per_epoch``. Their power was not measured, so there is one power limit, and cost is time.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.power.simulated.models import CHIPS, LOADS
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Pair, PowerMeasurement, rows_of

TABLE = Path(__file__).resolve().parents[1] / "data" / "weather_epochs.csv"
# of the example's ``device``
GPU = "v100"
LOAD = "shufflenet"
LIMITS_W = tuple(range(100, 251, 25))
BATCH_SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048)
SEEDS = (0, 1, 2)
MAX_EPOCHS = 60
ETA = 0.5

Cell = tuple[str, int, int]  # slice, batch size, seed


class Row(NamedTuple):
    """One training, and what an epoch of it draws at the power limit that is best for ``ETA``."""

    slice_key: str
    batch_size: int
    seed: int
    reached: int  # 1: the target within MAX_EPOCHS
    epochs: int
    samples_per_epoch: int
    limit_w: int
    epoch_s: float
    epoch_j: float

    @property
    def cell(self) -> Cell:
        """Which training this is."""
        return self.slice_key, self.batch_size, self.seed


class Week(NamedTuple):
    """One slice: its trainings, and how many samples an epoch of it has."""

    slice_key: str
    samples_per_epoch: int
    # per batch size, in order of seeds; inf: the target was not reached
    epochs: Mapping[int, tuple[float, ...]]


def row_of(cell: Cell, *, reached: bool, epochs: float, samples_per_epoch: float) -> Row:
    """The row of a finished training."""
    key, b, seed = cell
    best = best_point(b, round(samples_per_epoch))
    power = round(best.time_s, 4), round(best.energy_j, 2)
    return Row(
        key,
        b,
        seed,
        int(reached),
        round(epochs),
        round(samples_per_epoch),
        int(best.limit_w),
        *power,
    )


def best_point(batch_size: int, samples: int) -> PowerMeasurement:
    """An epoch at the power limit that costs least (Eq. 7)."""
    weights = Weights(ETA, CHIPS[GPU].max_limit_w)
    return min(points(batch_size, samples), key=lambda p: weights.cost(p.energy_j, p.time_s))


def points(batch_size: int, samples: int) -> tuple[PowerMeasurement, ...]:
    """An epoch of ``samples`` at every power limit that the product measures, ascending;
    the last batch is a rest.
    """
    full, rest = divmod(samples, batch_size)
    found = []
    for limit_w in LIMITS_W:
        steps = [(full, LOADS[GPU, LOAD].step(CHIPS[GPU], batch_size, limit_w))]
        if rest:
            steps.append((1, LOADS[GPU, LOAD].step(CHIPS[GPU], rest, limit_w)))
        time_s = math.fsum(n * step_s for n, (step_s, _) in steps)
        energy_j = math.fsum(n * step_s * power_w for n, (step_s, power_w) in steps)
        found.append(PowerMeasurement(float(limit_w), time_s, energy_j / time_s))
    return tuple(found)


def read(path: Path) -> list[Row]:
    """The rows of a table; those of one that is not there yet: none.

    Raises ValueError for a line that is no row.
    """
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(_rows(line for line in file if not line.startswith("#")))


def _rows(lines: Iterable[str]) -> Iterator[Row]:
    reader = csv.DictReader(lines)
    for cells in reader:
        try:
            key, *rest = (cells[name] for name in Row._fields)
            b, seed, reached, epochs, samples, limit_w = map(int, rest[:6])
            yield Row(key, b, seed, reached, epochs, samples, limit_w, *map(float, rest[6:]))
        except (KeyError, TypeError, ValueError):
            raise ValueError(
                f"{cells}: not a row of this table. Remove the line; measuring again adds it."
            ) from None


def write(path: Path, rows: Iterable[Row], comment: Sequence[str]) -> None:
    """Replace the table by these rows, in order, below the lines of ``comment``."""
    draft = path.with_suffix(".tmp")
    with draft.open("w", newline="", encoding="utf-8") as file:
        file.writelines(f"# {line}\n" for line in comment)
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(sorted(rows))
    draft.replace(path)


def weeks_of(rows: Iterable[Row]) -> list[Week]:
    """The slices in order."""
    runs: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    sizes: dict[str, int] = {}
    for row in sorted(rows):
        runs[row.slice_key][row.batch_size].append(float(row.epochs) if row.reached else math.inf)
        sizes[row.slice_key] = row.samples_per_epoch
    return [
        Week(key, sizes[key], {b: tuple(e) for b, e in found.items()})
        for key, found in runs.items()
    ]


# (batch size, samples per epoch) -> an epoch at each limit
Points = Callable[[int, int], tuple[PowerMeasurement, ...]]


def pair_of(
    week: Week, default_batch_size: int, points: Points = points, max_epochs: int = MAX_EPOCHS
) -> Pair:
    """A slice as the replays know a workload on a GPU."""
    return Pair(
        workload=week.slice_key,
        gpu=GPU,
        default_batch_size=default_batch_size,
        max_epochs=max_epochs,
        max_power_w=CHIPS[GPU].max_limit_w,
        points={b: points(b, week.samples_per_epoch) for b in week.epochs},
        epochs=week.epochs,
    )


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
    expected_runs: int | None = None  # of the job
    audit: float = 0.0  # of the job

    @property
    def batch_sizes(self) -> list[int]:
        """Those of every slice, ascending."""
        return sorted(set.intersection(*(set(week.epochs) for week in self.weeks)))

    def points(self, batch_size: int, samples: int) -> tuple[PowerMeasurement, ...]:
        """An epoch at each power limit."""
        if not self.epoch_s:
            return points(batch_size, samples)[-1:]
        return (PowerMeasurement(POWER_W, self.epoch_s[batch_size], POWER_W),)

    def truths(self, default_batch_size: int) -> list[Scenario]:
        """What each slice's batch sizes cost."""
        weeks = (w._replace(epochs={b: w.epochs[b] for b in self.batch_sizes}) for w in self.weeks)
        return [
            Scenario(pair_of(w, default_batch_size, self.points, self.max_epochs)) for w in weeks
        ]

    def job(self, default_batch_size: int, policy: str) -> ZeusJob:
        """The job that recurs over the slices."""
        return ZeusJob(
            job_id="series",
            batch_sizes=self.batch_sizes,
            default_batch_size=default_batch_size,
            target="loss <= 1",
            max_epochs=self.max_epochs,
            policy=policy,
            audit=self.audit,
            expected_runs=self.expected_runs,
        )


def read_series(path: Path, max_epochs: int | None = None) -> Series:
    """A table's series. Raises JobSpecError that names file, line and column.

    :param max_epochs: epochs at which a training ends; default:
        the most that any training of the table needed.
    """
    epochs: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    seconds: dict[int, list[float]] = defaultdict(list)
    for row in rows_of("series", path, COLUMNS, _REMEDY):
        b = row.whole("batch_size")
        epochs[row.text("slice")][b].append(
            row.number("epochs") if row.cells["epochs"] else math.inf
        )
        seconds[b].append(row.number("s_per_epoch"))
    weeks = [
        Week(key, SAMPLES, {b: tuple(e) for b, e in found.items()}) for key, found in epochs.items()
    ]
    if not weeks or not set.intersection(*(set(week.epochs) for week in weeks)):
        said = "has no batch size that every slice was trained with"
        raise JobSpecError.of("series", str(path), said, "Complete it")
    reached = [
        e for week in weeks for runs in week.epochs.values() for e in runs if math.isfinite(e)
    ]
    most = max_epochs or math.ceil(max(reached, default=1.0))
    within = (
        {b: tuple(e if e <= most else math.inf for e in of) for b, of in w.epochs.items()}
        for w in weeks
    )
    weeks = [week._replace(epochs=epochs) for week, epochs in zip(weeks, within, strict=True)]
    return Series(weeks, most, {b: statistics.median(s) for b, s in seconds.items()})


def tables_in(folder: Path) -> list[Path]:
    """The tables of a folder, by name. Raises JobSpecError where it holds none."""
    paths = sorted(folder.glob("*.csv"))
    if not paths:
        raise JobSpecError.of(
            "series", str(folder), "holds no CSV file", "Give the folder of series"
        )
    return paths


def weather() -> Series:
    """The series of the weather example, at full power."""
    return Series(weeks_of(read(TABLE)), MAX_EPOCHS, {})


def series_of(folder: Path | None, max_epochs: Mapping[str, int]) -> dict[str, Series]:
    """The weather example's series, and those of a folder.

    Raises JobSpecError where one cannot be read.
    """
    paths = {path.stem: path for path in tables_in(folder)} if folder else {}
    for name, most in max_epochs.items():
        if name not in paths:
            remedy = f"Name one of {', '.join(paths)}" if paths else "Give --series"
            raise JobSpecError.of("--max-epochs", f"{name}={most}", "is of no series here", remedy)
    return {
        "weather": weather(),
        **{name: read_series(path, max_epochs.get(name)) for name, path in paths.items()},
    }


def defaults_of(series: Series) -> dict[str, int]:
    """The three defaults.

    Near-optimal: least total cost of all slices; a run that misses pays ``max_epochs``.
    """
    sizes = series.batch_sizes
    truths = series.truths(series.batch_sizes[0])
    totals = {b: math.fsum(truth.run_cost(b) for truth in truths) for b in sizes}
    return {
        "small": sizes[0],
        "near_optimal": min(sizes, key=lambda b: totals[b]),
        "large": sizes[-1],
    }
