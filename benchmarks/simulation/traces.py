"""Reader of training and power traces:
CSV files as the authors of the paper published them (section 6.1).

``summary_train.csv`` holds one row per training run: dataset, network, batch_size, optimizer,
target_metric, target_epoch (empty: the target was never reached). ``summary_power_<gpu>.csv`` holds
one row per batch size and power limit: dataset, network, batch_size, optimizer, power_limit [W],
time_per_epoch [s], average_power [W]. Every GPU and every workload in the folder is found by
listing it. An average power above its limit is a reading of the instrument.
"""

from __future__ import annotations

import csv
import lzma
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from airflow_provider_zeus.errors import JobSpecError

TRAIN = "summary_train.csv"
POWER = "summary_power_{}.csv"
_KEYS = ("dataset", "network", "optimizer", "batch_size")
_REMEDY = "Give the folder that holds summary_train.csv and summary_power_<gpu>.csv"


class Training(NamedTuple):
    """Dataset, network and optimizer."""

    dataset: str
    network: str
    optimizer: str


@dataclass(frozen=True, slots=True)
class Workload:
    """A training and its target (Table 1 of the paper)."""

    name: str
    training: Training
    target: float
    default_batch_size: int
    max_epochs: int


WORKLOADS = (
    Workload("bert_qa", Training("squad", "bert_base_uncased", "adamw"), 84.0, 32, 6),
    Workload("bert_sa", Training("sentiment140", "bert_base_uncased", "adamw"), 0.84, 128, 10),
    Workload("deepspeech2", Training("librispeech", "deepspeech2", "adamw"), 40.0, 192, 16),
    Workload("neumf", Training("movielens-1m", "ncf", "adam"), 0.41, 1024, 100),
    Workload("resnet50", Training("imagenet", "resnet50", "adadelta"), 0.65, 256, 100),
    Workload("shufflenet", Training("cifar100", "shufflenetv2", "adadelta"), 0.6, 1024, 100),
)


class PowerMeasurement(NamedTuple):
    """One epoch at one power limit."""

    limit_w: float
    time_s: float
    power_w: float

    @property
    def energy_j(self) -> float:
        """Energy of the epoch [J]."""
        return self.time_s * self.power_w


@dataclass(frozen=True, slots=True)
class Pair:
    """One workload on one GPU, as measured."""

    workload: str
    gpu: str
    default_batch_size: int
    max_epochs: int
    max_power_w: float  # the highest limit in the GPU's whole trace
    points: Mapping[int, tuple[PowerMeasurement, ...]]  # per batch size (ascending), by limit
    # per batch size, one figure per run; inf: never reached its target
    epochs: Mapping[int, tuple[float, ...]]

    @property
    def name(self) -> str:
        """``workload/gpu``."""
        return f"{self.workload}/{self.gpu}"

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Ascending."""
        return tuple(self.points)

    @property
    def limits_w(self) -> tuple[float, ...]:
        """Every power limit measured at any batch size [W], ascending."""
        return tuple(sorted({p.limit_w for points in self.points.values() for p in points}))

    @property
    def recurrences(self) -> int:
        """How often the paper lets a job recur: 2 |B| |P| (section 6.2)."""
        return 2 * len(self.points) * len(self.limits_w)

    def starting_at(self, default: int) -> Pair:
        """Return this pair with another default.

        Raises JobSpecError if that was not measured or never converged.
        """
        if default not in self.points:
            sizes = f"Use one of {', '.join(map(str, self.points))}"
            raise JobSpecError.of(
                "default_batch_size", default, f"was not measured for {self.name}", sizes
            )
        if min(self.epochs[default]) > self.max_epochs:
            said = (
                f"no run of {self.name} reached the target with it within {self.max_epochs} epochs"
            )
            sure = [str(b) for b, epochs in self.epochs.items() if min(epochs) <= self.max_epochs]
            use = f"Use one of {', '.join(sure)}" if sure else f"Add runs that reach it to {TRAIN}"
            raise JobSpecError.of("default_batch_size", default, said, use)
        return replace(self, default_batch_size=default)


@dataclass(frozen=True)
class Traces:
    """The traces of one folder. Raises JobSpecError, in one line, for what cannot be read."""

    folder: Path

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """GPU models that have a power trace here."""
        if not self.folder.is_dir():
            raise JobSpecError.of("traces", str(self.folder), "is not a folder", _REMEDY)
        found = sorted(
            p.stem.removeprefix("summary_power_") for p in self.folder.glob(POWER.format("*"))
        )
        if not found:
            raise JobSpecError.of(
                "traces", str(self.folder), "holds no summary_power_<gpu>.csv", _REMEDY
            )
        return tuple(found)

    @cached_property
    def workloads(self) -> Mapping[str, Workload]:
        """The workloads of Table 1 that are here,
        then those of every other dataset and network, by name.
        """
        here = set(self._runs)
        found = [w for w in WORKLOADS if (w.training, w.target) in here]
        known = {w.training[:2] for w in found}  # their other optimizers and targets are left out
        for training, target in sorted(key for key in here if key[0][:2] not in known):
            # a workload outside of Table 1, by the rules of section 6.1: its default is the largest
            # safest size
            runs = self._runs[training, target]
            default = max(runs, key=lambda b: (sum(map(math.isfinite, runs[b])) / len(runs[b]), b))
            longest = max(
                (e for epochs in runs.values() for e in epochs if math.isfinite(e)), default=50.0
            )
            name = f"{'-'.join(training)}@{target:g}".replace("/", "-")
            found.append(Workload(name, training, target, default, math.ceil(2 * longest)))
        named = {w.name: w for w in found}
        if len(named) < len(found):
            twice = next(w.name for w in found if named[w.name] is not w)
            remedy = "Rename one of them: '/' counts as '-' here"
            raise JobSpecError.of(
                "workload", twice, f"is the name of two trainings in {TRAIN}", remedy
            )
        return named

    def pair(self, workload: str, gpu: str) -> Pair:
        """Return one workload on one GPU, with the batch sizes that both traces hold."""
        w = self._workload(workload)
        points = self._points(w, gpu)
        if not points:
            problem = f"has no power trace on {gpu} of a batch size in {TRAIN}"
            raise JobSpecError.of(
                "workload",
                workload,
                problem,
                f"Use one of {', '.join(self.workloads)}, or another GPU",
            )
        default = max((b for b in points if b <= w.default_batch_size), default=min(points))
        found = Pair(
            workload=workload,
            gpu=gpu,
            default_batch_size=default,
            max_epochs=w.max_epochs,
            max_power_w=max(p.limit_w for measured in self.power(gpu).values() for p in measured),
            points=points,
            epochs={b: tuple(self._runs[w.training, w.target][b]) for b in points},
        )
        return found.starting_at(default)

    def pairs(self, gpus: Sequence[str] = (), workloads: Sequence[str] = ()) -> list[Pair]:
        """Return every workload on every GPU that measured it, or the named ones only.

        Raises JobSpecError if there is none,
        or if a named workload was not measured on a named GPU.
        """
        gpus_here = self.gpus
        names = {name: self._workload(name) for name in workloads or self.workloads}
        found = [
            self.pair(name, gpu)
            for gpu in gpus or gpus_here
            for name, w in names.items()
            if (gpus and workloads) or self._points(w, gpu)
        ]
        if not found:
            said = (
                f"holds no power trace of {' or '.join(names) or 'a workload'} at a batch size in"
                f" {TRAIN}"
            )
            raise JobSpecError.of(
                "traces", str(self.folder), said, "Measure the same batch sizes for both"
            )
        return found

    def epochs(self, workload: str) -> Mapping[int, tuple[float, ...]]:
        """Return epochs to target per trained batch size, power trace or not,
        one figure per run; inf: never.
        """
        w = self._workload(workload)
        return {b: tuple(runs) for b, runs in self._runs[w.training, w.target].items()}

    def _workload(self, name: str) -> Workload:
        if name not in self.workloads:
            remedy = f"Use one of {', '.join(self.workloads)}"
            raise JobSpecError.of("workload", name, "is not in these traces", remedy)
        return self.workloads[name]

    def _points(self, w: Workload, gpu: str) -> dict[int, tuple[PowerMeasurement, ...]]:
        """Power measurements per batch size, ascending; only sizes that were trained too."""
        trained = self._runs[w.training, w.target]
        measured = sorted(
            (b, points) for (what, b), points in self.power(gpu).items() if what == w.training
        )
        return {b: tuple(sorted(points)) for b, points in measured if b in trained}

    @cached_property
    def _runs(self) -> Mapping[tuple[Training, float], Mapping[int, list[float]]]:
        found: dict[tuple[Training, float], dict[int, list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for row in rows_of(
            "traces", self.folder / TRAIN, (*_KEYS, "target_metric", "target_epoch"), _REMEDY
        ):
            never = row.text("target_epoch").strip().lower() in ("", "nan")
            epochs = math.inf if never else row.number("target_epoch")
            training = Training(row.text("dataset"), row.text("network"), row.text("optimizer"))
            found[training, row.number("target_metric", positive=False)][
                row.whole("batch_size")
            ].append(epochs)
        return found

    def power(self, gpu: str) -> Mapping[tuple[Training, int], list[PowerMeasurement]]:
        """Return every curve of a power trace, by training and batch size, in its order.

        Raises JobSpecError.
        """
        if gpu not in self.gpus:
            raise JobSpecError.of(
                "gpu", gpu, "has no power trace here", f"Use one of {', '.join(self.gpus)}"
            )
        found: dict[tuple[Training, int], list[PowerMeasurement]] = defaultdict(list)
        columns = ("power_limit", "time_per_epoch", "average_power")
        for row in rows_of("traces", self.folder / POWER.format(gpu), (*_KEYS, *columns), _REMEDY):
            figures = (row.number(name) for name in columns)
            training = Training(row.text("dataset"), row.text("network"), row.text("optimizer"))
            found[training, row.whole("batch_size")].append(PowerMeasurement(*figures))
        return found


# ------------------------------------------------------------------ rows of CSV files that users
# supply
@dataclass(frozen=True, slots=True)
class CsvRow:
    """One line of a file."""

    path: Path
    line: int
    cells: Mapping[str, str | None]

    def text(self, name: str) -> str:
        """Return a cell. Raises JobSpecError where the line is too short to have it."""
        value = self.cells[name]
        if value is None:
            raise self.wrong(name, "is missing")
        return value

    def number(self, name: str, *, positive: bool = True) -> float:
        """Return a cell as a number from 1e-9 to 1e15, or from -1e15 if not ``positive``.

        Raises JobSpecError.
        """
        try:
            value = float(self.cells[name] or "")
        except ValueError:
            value = math.nan
        if (1e-9 if positive else -1e15) <= value <= 1e15:
            return value
        kind = "positive number" if positive else "number"
        beyond = (
            f" from {1e-9 if positive else -1e15:g} to {1e15:g}"
            if math.isfinite(value) and value
            else ""
        )
        raise self.wrong(name, f"is not a {kind}{beyond}")

    def whole(self, name: str) -> int:
        """Return a cell as a positive whole number. Raises JobSpecError."""
        value = self.number(name)
        if value != int(value):
            raise self.wrong(name, "is not a whole number")
        return int(value)

    def wrong(self, name: str, problem: str) -> JobSpecError:
        """Return the error about a cell."""
        return JobSpecError.of(
            name,
            self.cells[name],
            f"in line {self.line} of {self.path} {problem}",
            "Correct or remove that line",
        )


def rows_of(field: str, path: Path, columns: Sequence[str], remedy: str) -> Iterator[CsvRow]:
    """Yield the rows of a file, which may be packed by xz.

    Raises JobSpecError about ``field`` if it is no CSV file.
    """
    try:
        # spreadsheets begin a file with a byte order mark
        packed = path.suffix == ".xz"
        encoding = "utf-8-sig"
        with (
            lzma.open(path, "rt", newline="", encoding=encoding)
            if packed
            else path.open(newline="", encoding=encoding) as file
        ):
            reader = csv.DictReader(file)
            missing = [c for c in columns if c not in (reader.fieldnames or ())]
            if missing:
                said = f"lacks the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
                raise JobSpecError.of(field, str(path), said, remedy)
            for cells in reader:
                yield CsvRow(path, reader.line_num, cells)
    except OSError as error:
        raise JobSpecError.of(
            field, str(path), f"cannot be read ({error.strerror or error})", remedy
        ) from None
    except (UnicodeDecodeError, csv.Error, lzma.LZMAError, EOFError):
        raise JobSpecError.of(
            field, str(path), "is not a CSV file in UTF-8, nor one packed by xz", remedy
        ) from None
