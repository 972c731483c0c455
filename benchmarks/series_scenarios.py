"""Real retraining series as scenarios: CSV files with one row per training of one slice of the data.

Columns: ``slice``, ``batch_size``, ``epochs`` (to the target; empty: never reached) and ``s_per_epoch``. Power was not
measured, so there is one power limit, and cost is time. ``max_epochs`` is the most that any run of the file needed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.simulation.rows import rows_of
from airflow_provider_zeus.simulation.scenario import Scenario
from airflow_provider_zeus.simulation.traces import Pair, PowerMeasurement

POWER_W = 100.0
_COLUMNS = ("slice", "batch_size", "epochs", "s_per_epoch")
_REMEDY = f"Give the folder of series: CSV files with the columns {', '.join(_COLUMNS)}"

Series = tuple[Scenario, ...]  # one per slice, in order


def series_in(folder: Path) -> list[Series]:
    """The series of a folder, each with its smallest, its cheapest and its largest batch size as the default.

    Raises JobSpecError where a file cannot be read, or where no batch size reaches the target of a slice.
    """
    paths = sorted(folder.glob("*.csv"))
    if not paths:
        raise JobSpecError.of("series", str(folder), "holds no CSV file", _REMEDY)
    return [series for path in paths for series in _series_of(path)]


def _series_of(path: Path) -> list[Series]:
    epochs: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    time_s: dict[int, float] = {}
    for row in rows_of("series", path, _COLUMNS, _REMEDY):
        needed = row.number("epochs") if row.text("epochs").strip() else math.inf
        number, b = int(row.number("slice", positive=False)), row.whole("batch_size")
        epochs[number][b].append(needed)
        time_s[b] = row.number("s_per_epoch")
    points = {b: (PowerMeasurement(POWER_W, time_s[b], POWER_W),) for b in sorted(time_s)}
    finite = [e for of_slice in epochs.values() for runs in of_slice.values() for e in runs if math.isfinite(e)]
    max_epochs = math.ceil(max(finite, default=1.0))

    def starting_at(default: int) -> Series:
        return tuple(
            Scenario(
                Pair(
                    workload=path.stem,
                    gpu="cpu",
                    default_batch_size=default,
                    max_epochs=max_epochs,
                    max_power_w=POWER_W,
                    points=points,
                    epochs={b: tuple(of_slice[b]) or (math.inf,) for b in points},
                )
            )
            for _, of_slice in sorted(epochs.items())
        )

    slices = starting_at(min(points, default=1))
    for number, truth in zip(sorted(epochs), slices, strict=True):
        if not math.isfinite(truth.best_cost):
            said = f"has no batch size that reaches the target of slice {number}"
            raise JobSpecError.of("series", str(path), said, "Remove that slice")
    if not slices:
        raise JobSpecError.of("series", str(path), "has no row", _REMEDY)

    def total_cost(b: int) -> float:
        return math.fsum(truth.arms[b].run(max_epochs)[0] * truth.arms[b].epoch.cost for truth in slices)

    return [starting_at(b) for b in dict.fromkeys((min(points), min(points, key=total_cost), max(points)))]
