"""Searches for the best power limit over measured curves under noise.

Used by ``python -m benchmarks.profiler``. The search called ``ours`` is the package's own
:class:`~airflow_provider_zeus.training.profiling.search.Search`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.trial import ProfileSample
from airflow_provider_zeus.training.profiling.measurement_windows import PIECES
from airflow_provider_zeus.training.profiling.profiler import WINDOW_STEPS
from airflow_provider_zeus.training.profiling.search import MOST, LimitMeasurement, Search
from benchmarks.simulation.traces import Traces

WINDOW_S = 5.0  # profile_s, as a job has it by default
LONG = 21  # points of the long grid
SAMPLES = 10**9  # of an epoch: only their ratio to its time matters

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Curve:
    """One training with one batch size on one GPU: an epoch's time [s] and energy [J] by limit [W], ascending."""

    name: str
    max_power_w: float
    limits_w: Floats
    time_s: Floats
    energy_j: Floats

    def resampled(self, points: int) -> Curve:
        """With so many limits between the lowest and the highest, none of which is a new minimum."""
        limits_w = np.linspace(self.limits_w[0], self.limits_w[-1], points)
        time_s, energy_j = (monotone(self.limits_w, y, limits_w) for y in (self.time_s, self.energy_j))
        return Curve(self.name, self.max_power_w, limits_w, time_s, energy_j)

    def cost(self, eta: float, off_s: Floats | float = 0.0, off_j: Floats | float = 0.0) -> Floats:
        """Cost of an epoch [J] at each limit (Eq. 2), as a measurement tells it that is off by these shares."""
        energy_j, time_s = self.energy_j * (1 + off_j), self.time_s * (1 + off_s)
        return np.asarray(eta * energy_j + (1 - eta) * self.max_power_w * time_s)


def curves_of(traces: Traces) -> list[Curve]:
    """Every curve of the folder that has at least three limits."""
    found = []
    for gpu in traces.gpus:
        power = traces.power(gpu)
        max_power_w = max(p.limit_w for points in power.values() for p in points)
        for (training, batch_size), measured in sorted(power.items()):
            points = sorted({p.limit_w: p for p in measured}.values())
            if len(points) >= 3:
                columns = [np.array(column) for column in zip(*points, strict=True)]
                name = f"{'/'.join(training)}/{gpu}/{batch_size}"
                found.append(Curve(name, max_power_w, columns[0], columns[1], columns[1] * columns[2]))
    return found


def monotone(x: Floats, y: Floats, at: Floats) -> Floats:
    """Cubic interpolation that rises and falls only where the points do (Fritsch and Carlson, 1980)."""
    widths, slopes = np.diff(x), np.diff(y) / np.diff(x)
    before, after = slopes[:-1], slopes[1:]
    near, far = widths[:-1] + 2 * widths[1:], 2 * widths[:-1] + widths[1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = np.where(before * after > 0, (near + far) / (far / before + near / after), 0.0)
    tangents = np.concatenate([slopes[:1], inner, slopes[-1:]])
    i = np.clip(np.searchsorted(x, at, side="right") - 1, 0, len(x) - 2)
    t, h = (at - x[i]) / widths[i], widths[i]
    rising, falling = t * t * (3 - 2 * t), (1 - t) ** 2 * (1 + 2 * t)
    bend = h * t * (1 - t) * ((1 - t) * tangents[i] - t * tangents[i + 1])
    return np.asarray(falling * y[i] + rising * y[i + 1] + bend)


# ---------------------------------------------------------------------- searches under noise
class Found(NamedTuple):
    """Where a search ended: a position on the grid, and how many limits and windows it measured."""

    at: int
    limits: int
    windows: int


class Bench:
    """One curve to be measured: window ``k`` at a limit shows the same noise to every search.

    :param noise: relative standard deviation of a window's J and s per sample, each on its own.
    """

    def __init__(self, curve: Curve, eta: float, noise: float, seed: int) -> None:
        self.curve, self.eta = curve, eta
        self.limits = len(curve.limits_w)
        rng = np.random.default_rng(np.random.SeedSequence([seed, *curve.name.encode()]))
        # of a piece; a window is their mean. Axes: time or energy, window, piece, limit
        self.noise = noise * math.sqrt(PIECES) * rng.standard_normal((2, MOST + 6, PIECES, self.limits))

    @cached_property
    def once(self) -> Floats:
        """Cost of each limit as its first window shows it [J]."""
        return self.curve.cost(self.eta, *self.noise[:, 0].mean(axis=1))

    @cached_property
    def found(self) -> Found:
        """What our own search finds."""
        return ours(self)

    def search(self) -> Search:
        """Our own search. A window that noise makes look short counts as a whole one."""
        weights = Weights(self.eta, self.curve.max_power_w)
        return Search(tuple(map(float, self.curve.limits_w)), weights, WINDOW_S * 0.9, WINDOW_STEPS)

    def pieces(self, at: int, window: int) -> list[ProfileSample]:
        """A window, as the training measures it: pieces of a second."""
        time_s, energy_j = float(self.curve.time_s[at]) / SAMPLES, float(self.curve.energy_j[at]) / SAMPLES
        n = round(WINDOW_S / PIECES / time_s)
        return [
            ProfileSample(
                batch_size=1,
                limit_w=float(self.curve.limits_w[at]),
                samples=n,
                energy_j=n * energy_j * max(1 + float(off_j), 0.05),
                time_s=n * time_s * max(1 + float(off_s), 0.05),
                steps=WINDOW_STEPS // PIECES + 1,
            )
            for off_s, off_j in self.noise[:, window, :, at].T
        ]


def ours(bench: Bench) -> Found:
    """The package's own search."""
    limits_w, search = bench.curve.limits_w.tolist(), bench.search()
    seen: dict[float, LimitMeasurement] = {}
    windows = [0] * bench.limits
    while (step := search.next_limit(seen)) is not None:
        at = limits_w.index(step.limit_w)
        for piece in bench.pieces(at, windows[at]):
            seen.setdefault(step.limit_w, LimitMeasurement()).add(piece)
        windows[at] += 1
    best_w = search.best_w(seen)
    assert best_w is not None
    return Found(limits_w.index(best_w), sum(n > 0 for n in windows), sum(windows))


def full_sweep(bench: Bench) -> Found:
    """A window at every limit."""
    return Found(int(bench.once.argmin()), bench.limits, bench.limits)


def full_sweep_as_long(bench: Bench) -> Found:
    """As many windows as our own search needed, spread over all limits alike (rounded up)."""
    windows = -(-bench.found.windows // bench.limits)
    cost = bench.curve.cost(bench.eta, *bench.noise[:, :windows].mean(axis=(1, 2)))
    return Found(int(cost.argmin()), bench.limits, windows * bench.limits)


def first_worse(bench: Bench) -> Found:
    """Down from the highest limit; stop at the first that is worse than the one before."""
    at = bench.limits - 1
    while at > 0 and bench.once[at - 1] < bench.once[at]:
        at -= 1
    measured = min(bench.limits - at + 1, bench.limits)
    return Found(at, measured, measured)


def ternary(bench: Bench) -> Found:
    """Drop a third of the grid after every comparison."""
    low, high, measured = 0, bench.limits - 1, set[int]()
    while high - low > 2:
        left, right = low + (high - low) // 3, high - (high - low) // 3
        measured |= {left, right}
        if bench.once[left] <= bench.once[right]:
            high = right - 1
        else:
            low = left + 1
    measured |= set(range(low, high + 1))
    return Found(min(measured, key=lambda i: bench.once[i]), len(measured), len(measured))


SEARCHES: dict[str, Callable[[Bench], Found]] = {
    "full sweep": full_sweep,
    "full sweep, as long as ours": full_sweep_as_long,
    "ours": lambda bench: bench.found,
    "stop at the first worse": first_worse,
    "ternary search": ternary,
}


class Case(NamedTuple):
    """One cell of the table: every search on one curve, over all seeds."""

    curve: Curve
    eta: float
    noise: float
    seeds: int


class Row(NamedTuple):
    """What one search did in a case; one entry per seed. Regret is relative to the best limit of the curve."""

    regret: list[float]
    limits: list[float]  # share of the grid
    windows: list[float]  # per limit of the grid


def searched(case: Case) -> dict[str, Row]:
    """Every search on a case."""
    cost = case.curve.cost(case.eta)
    rows: dict[str, Row] = {name: Row([], [], []) for name in SEARCHES}
    for seed in range(case.seeds):
        bench = Bench(case.curve, case.eta, case.noise, seed)
        for name, search in SEARCHES.items():
            found = search(bench)
            rows[name].regret.append(float(cost[found.at] / cost.min() - 1))
            rows[name].limits.append(found.limits / bench.limits)
            rows[name].windows.append(found.windows / bench.limits)
    return rows


# ---------------------------------------------------------------------- trainings that no power limit holds back
# A lower limit makes no training faster and draws no more. So the truth of a curve is the nearest one whose time falls
# and whose power rises with the limit (isotonic regression); what the measurements show beyond it is noise.
def truth(curve: Curve, eta: float) -> Floats:
    """Cost of an epoch [J] at each limit, without what no limit can do."""
    time_s, power_w = -rising(-curve.time_s), rising(curve.energy_j / curve.time_s)
    return np.asarray(eta * time_s * power_w + (1 - eta) * curve.max_power_w * time_s)


def rising(values: Floats) -> Floats:
    """The nearest values that never fall (pool adjacent violators)."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        blocks.append((float(value), 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (high, m), (low, n) = blocks.pop(), blocks.pop()
            blocks.append(((high * m + low * n) / (m + n), m + n))
    return np.concatenate([np.full(count, value) for value, count in blocks])


def unbound(bench: Bench) -> bool:
    """Whether the first window, at the highest limit, shows that no limit binds."""
    seen = LimitMeasurement()
    for piece in bench.pieces(bench.limits - 1, 0):
        seen.add(piece)
    return bench.search().unbound_w({float(bench.curve.limits_w[-1]): seen}) is not None


CAP_FIGURES = (
    *("walks_saved", "windows_before", "windows", "best_by_noise_before", "best_by_noise"),
    *("above_best_before", "above_best", "above_best_where_it_stops"),  # the last: its part of the mean over all curves
)


def cap_figures(curves: Sequence[Curve], seeds: int, cell: tuple[float, float]) -> dict[str, Any]:
    """Walks and windows saved, cost above the best, and limits that are best by noise, before and with the rule."""
    eta, noise = cell
    rows = []
    for curve in curves:
        cost, below = truth(curve, eta), curve.energy_j[-1] / curve.time_s[-1] < curve.limits_w[0]
        for seed in range(seeds):
            bench = Bench(curve, eta, noise, seed)
            found, stops, top = ours(bench), unbound(bench), bench.limits - 1
            at = top if stops else found.at
            windows = found.windows, 1 if stops else found.windows
            above_before, above = (float(cost[i] / cost.min() - 1) for i in (found.at, at))
            noisy = (bool(below and i < top) for i in (found.at, at))
            rows.append((stops, *windows, *noisy, above_before, above, above if stops else 0.0))
    columns = list(zip(*rows, strict=True))
    figures = dict(zip(CAP_FIGURES, (sum(column) / len(rows) for column in columns), strict=True))
    figures |= {name: float(np.mean(columns[CAP_FIGURES.index(name)])) for name in ("above_best_before", "above_best")}
    return {"eta": eta, "noise": noise, **figures, "above_best_worst": max(columns[-2])}
