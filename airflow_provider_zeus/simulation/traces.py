"""Reader of training and power traces: CSV files as the authors of the paper published them (section 6.1).

``summary_train.csv`` holds one row per training run: dataset, network, batch_size, optimizer, target_metric,
target_epoch (empty: the target was never reached). ``summary_power_<gpu>.csv`` holds one row per batch size and power
limit: dataset, network, batch_size, optimizer, power_limit [W], time_per_epoch [s], average_power [W]. Every GPU and
every workload in the folder is found by listing it. An average power above its limit is how the instrument read it.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from airflow_provider_zeus.errors import JobSpecError

TRAIN = "summary_train.csv"
POWER = "summary_power_{}.csv"
_REMEDY = "Give the folder that holds summary_train.csv and summary_power_<gpu>.csv"


class Training(NamedTuple):
    """What was trained: dataset, network and optimizer."""

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


class Point(NamedTuple):
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
    points: Mapping[int, tuple[Point, ...]]  # per batch size (ascending), by limit
    epochs: Mapping[int, tuple[float, ...]]  # per batch size, one figure per run; inf: never reached its target

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


@dataclass(frozen=True)
class Traces:
    """The traces of one folder. Raises JobSpecError, in one line, for whatever cannot be read."""

    folder: Path

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        """GPU models that have a power trace here."""
        found = sorted(p.stem.removeprefix("summary_power_") for p in self.folder.glob(POWER.format("*")))
        if not found:
            raise JobSpecError.of("traces", str(self.folder), "holds no summary_power_<gpu>.csv", _REMEDY)
        return tuple(found)

    @cached_property
    def workloads(self) -> Mapping[str, Workload]:
        """The paper's workloads that are here, then those that the paper does not know, by name."""
        here = set(self._runs)
        known = {w.training[:2] for w in WORKLOADS}
        found = [w for w in WORKLOADS if (w.training, w.target) in here]
        found += [self._other(*key) for key in sorted(here) if key[0][:2] not in known]
        return {w.name: w for w in found}

    def pair(self, workload: str, gpu: str) -> Pair:
        """One workload on one GPU, with the batch sizes that both traces hold."""
        if workload not in self.workloads:
            raise JobSpecError.of("workload", workload, "is not in these traces", f"Use one of {self._names()}")
        w = self.workloads[workload]
        power, runs = self._power(gpu), self._epochs(w)
        points = {b: tuple(sorted(p)) for (training, b), p in sorted(power.items()) if training == w.training}
        points = {b: p for b, p in points.items() if b in runs}
        if not points:
            raise JobSpecError.of("workload", workload, f"has no power trace on {gpu}", f"Use one of {self._names()}")
        return Pair(
            workload=workload,
            gpu=gpu,
            default_batch_size=max((b for b in points if b <= w.default_batch_size), default=min(points)),
            max_epochs=w.max_epochs,
            max_power_w=max(p.limit_w for measured in power.values() for p in measured),
            points=points,
            epochs={b: runs[b] for b in points},
        )

    def pairs(self, gpus: Sequence[str] = (), workloads: Sequence[str] = ()) -> list[Pair]:
        """Every workload on every GPU that measured it; only the named ones, where names are given."""
        found = []
        for gpu in gpus or self.gpus:
            here = {training for training, _ in self._power(gpu)}
            for name in workloads or self.workloads:
                if workloads or self.workloads[name].training in here:
                    found.append(self.pair(name, gpu))
        return found

    def _names(self) -> str:
        return ", ".join(self.workloads)

    def _epochs(self, w: Workload) -> dict[int, tuple[float, ...]]:
        return {b: tuple(epochs) for b, epochs in self._runs[w.training, w.target].items()}

    def _other(self, training: Training, target: float) -> Workload:
        """The rules of section 6.1 where Table 1 is silent: the largest size that always reaches the target."""
        runs = self._runs[training, target]
        sure = [b for b, epochs in runs.items() if all(map(math.isfinite, epochs))]
        longest = max((e for epochs in runs.values() for e in epochs if math.isfinite(e)), default=50.0)
        name = f"{'-'.join(training)}@{target:g}".replace("/", "-")
        return Workload(name, training, target, max(sure or runs), math.ceil(2 * longest))

    @cached_property
    def _runs(self) -> Mapping[tuple[Training, float], Mapping[int, list[float]]]:
        found: dict[tuple[Training, float], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for row in _rows(self.folder / TRAIN, "target_metric", "target_epoch"):
            text = row.cells["target_epoch"]
            epochs = math.inf if text.strip().lower() in ("", "nan") else row.number("target_epoch")
            found[row.training, row.number("target_metric", positive=False)][row.batch_size].append(epochs)
        return found

    def _power(self, gpu: str) -> Mapping[tuple[Training, int], list[Point]]:
        if gpu not in self.gpus:
            raise JobSpecError.of("gpu", gpu, "has no power trace here", f"Use one of {', '.join(self.gpus)}")
        found: dict[tuple[Training, int], list[Point]] = defaultdict(list)
        for row in _rows(self.folder / POWER.format(gpu), "power_limit", "time_per_epoch", "average_power"):
            figures = (row.number(name) for name in ("power_limit", "time_per_epoch", "average_power"))
            found[row.training, row.batch_size].append(Point(*figures))
        return found


@dataclass(frozen=True, slots=True)
class _Row:
    path: Path
    line: int
    cells: Mapping[str, str]

    @property
    def training(self) -> Training:
        return Training(self.cells["dataset"], self.cells["network"], self.cells["optimizer"])

    @property
    def batch_size(self) -> int:
        return int(self.number("batch_size"))

    def number(self, name: str, *, positive: bool = True) -> float:
        """One cell. Raises JobSpecError naming file, line and column."""
        try:
            value = float(self.cells[name])
        except (TypeError, ValueError):
            value = math.nan
        if math.isfinite(value) and (value > 0 or not positive):
            return value
        where = f"in line {self.line} of {self.path} is not a {'positive ' if positive else ''}number"
        raise JobSpecError.of(name, self.cells[name], where, "Correct or remove that line")


def _rows(path: Path, *columns: str) -> Iterator[_Row]:
    needed = ("dataset", "network", "optimizer", "batch_size", *columns)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [c for c in needed if c not in (reader.fieldnames or ())]
            if missing:
                raise JobSpecError.of("traces", str(path), f"lacks the column {', '.join(missing)}", _REMEDY)
            for cells in reader:
                yield _Row(path, reader.line_num, cells)
    except OSError as error:
        raise JobSpecError.of("traces", str(path), f"cannot be read ({error.strerror})", _REMEDY) from None
    except UnicodeDecodeError:
        raise JobSpecError.of("traces", str(path), "is not a text file", _REMEDY) from None
