"""What it is worth to train only where the earlier model is no longer good, on real weather, forward in time.

``python -m benchmarks.whether``: on each of 39 Mondays a model is trained on the 84 days before (network and features
of dags/weather, but for the position in the window), and serves the week that follows. ``run.still_good()`` is played
on the newest week, which an older model has not seen. What a training does depends on no policy, so each model is
trained once, and every policy picks from them. Energy is epochs times an epoch of a simulated V100 at batch size 256.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.cores import on_all_cores
from benchmarks.paper import table
from benchmarks.weather_measure import DAGS
from benchmarks.weather_table import best_point

if str(DAGS) not in sys.path:
    sys.path.append(str(DAGS))
from weather import forecast, samples, slices
from weather.readings import load

BATCH_SIZE, MAX_EPOCHS = 256, 60
WEEK_H, WINDOW_H = 7 * 24, 84 * 24
SHARES = (0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9)  # of the trivial forecast's error: targets of the check
MOST = 8  # retrain_every
Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Year:
    """One seed: the models of all weeks and how good each of them is on each week, as shares of the trivial error."""

    epochs: list[int]  # of each week's training from scratch
    warm_epochs: list[int]  # of one that goes on from the model of the week before
    energy_j: list[float]  # of an epoch of each week
    before: NDArray[np.float64]  # (week, model): on the newest week of the data
    served: NDArray[np.float64]  # (week, model): on the week that it serves
    warm_served: list[float]  # the warm-started model of each week, on the week that it serves


@dataclass(frozen=True)
class Model:
    """A network with the units of its inputs and outputs."""

    net: nn.Module
    mean: Rows
    spread: Rows
    y_mean: float
    y_spread: float

    def rmse_f(self, x: Rows, y: Rows) -> float:
        """Error [degrees F] on rows in their own units."""
        with torch.no_grad():
            said = self.net(torch.from_numpy((x - self.mean) / self.spread)).squeeze(1).numpy()
        return float(np.sqrt(np.mean(np.square(said * self.y_spread + self.y_mean - y))))


def year(weeks: int, seed: int) -> Year:
    """Train the models of one seed and try each of them on the weeks after it."""
    torch.set_num_threads(1)
    keys = slices.all_keys()[: weeks + 1]
    models: list[Model] = []
    warm: list[Model] = []
    energy_j: list[float] = []
    before, served = np.full((weeks, weeks), np.nan), np.full((weeks, weeks), np.nan)
    epochs, warm_epochs, warm_served = [], [], []
    for k, key in enumerate(keys[:-1]):
        _, end = samples._span(key)
        hours, x, y = rows(end - WINDOW_H, end - samples.HORIZON_H)  # what is known on that Monday
        model, took = trained(hours, x, y, seed * 1000 + k, None)
        models.append(model)
        epochs.append(took)
        energy_j.append(best_point(BATCH_SIZE, len(y)).energy_j)
        model, took = trained(hours, x, y, seed * 1000 + k, warm[-1] if warm else None)
        warm.append(model)
        warm_epochs.append(took)
        for found, (first, last) in ((before, (end - WEEK_H, end - samples.HORIZON_H)), (served, (end, end + WEEK_H))):
            _, x_week, y_week = rows(first, last)
            trivial = float(np.std(y_week))
            found[k, : k + 1] = [m.rmse_f(x_week, y_week) / trivial for m in models]
        warm_served.append(warm[-1].rmse_f(x_week, y_week) / trivial)
    return Year(epochs, warm_epochs, energy_j, before, served, warm_served)


def rows(first: int, end: int) -> tuple[NDArray[np.int64], Rows, Rows]:
    """Hours, features and changes of a span of hours, without the feature of the position in the window."""
    hours, x, y = samples._all_airports(load(), max(first - max(samples.LAGS_H), 0), end + samples.HORIZON_H)
    inside = hours >= first
    return hours[inside], x[inside, :-1].astype(np.float32), y[inside].astype(np.float32)


def trained(hours: NDArray[np.int64], x: Rows, y: Rows, seed: int, start: Model | None) -> tuple[Model, int]:
    """Train as the example does: to the target on a hold-out that is drawn at random. ``start``: go on from it."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    held = rng.random(len(y)) < samples.HOLDOUT
    usual = samples._hourly_mean(hours[~held], y[~held].astype(np.float64))[hours[held] % 24]
    target = forecast.TARGET_SHARE * float(np.sqrt(np.mean(np.square(y[held] - usual))))
    net = forecast.network(x.shape[1])
    if start is not None:
        net.load_state_dict(start.net.state_dict())
    unit = start or Model(net, x.mean(0), x.std(0), float(y.mean()), float(y.std()))
    model = Model(net, unit.mean, unit.spread, unit.y_mean, unit.y_spread)
    inputs = torch.from_numpy((x[~held] - model.mean) / model.spread)
    wanted = torch.from_numpy((y[~held] - model.y_mean) / model.y_spread)
    optimizer = torch.optim.Adam(net.parameters(), lr=forecast.LEARNING_RATE)
    took = 0
    while took < MAX_EPOCHS and (not took or model.rmse_f(x[held], y[held]) > target):
        took += 1
        for chosen in torch.randperm(len(wanted)).split(BATCH_SIZE):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(inputs[chosen]).squeeze(1), wanted[chosen]).backward()
            optimizer.step()
    return model, took


Trains = Callable[[int, int, Year], bool]  # week, model in service, the year: whether the week trains


def played(found: Year, trains: Trains) -> tuple[int, float, float]:
    """(trainings, energy [J], mean error in service) of a policy."""
    count, energy_j, errors, model = 0, 0.0, [], 0
    for week in range(len(found.epochs)):
        if week == 0 or trains(week, model, found):
            model, count = week, count + 1
            energy_j += found.epochs[week] * found.energy_j[week]
        errors.append(found.served[week, model])
    return count, energy_j, statistics.fmean(errors)


def every(n: int) -> Trains:
    """Train each n-th week."""
    return lambda week, model, found: week - model >= n


def checked(share: float) -> Trains:
    """Train where the model in service misses the target on the newest week, and every :data:`MOST` weeks."""
    return lambda week, model, found: bool(found.before[week, model] > share) or week - model >= MOST


def report(years: Sequence[Year]) -> str:
    """The curve, in Markdown."""
    policies = {"always": every(1), "every second week": every(2), "every fourth week": every(4)}
    policies |= {f"still_good, target {share:g}, retrain_every={MOST}": checked(share) for share in SHARES}
    lines, always = [], [played(found, policies["always"]) for found in years]
    for name, trains in policies.items():
        ours = [played(found, trains) for found in years]
        energy = statistics.fmean(a[1] / b[1] - 1 for a, b in zip(ours, always, strict=True))
        error = statistics.fmean(a[2] / b[2] - 1 for a, b in zip(ours, always, strict=True))
        count = statistics.fmean(a[0] for a in ours)
        lines.append([name, f"{count:.1f}", f"{energy:+.1%}", f"{error:+.1%}"])
    warm = [sum(f.warm_epochs[1:]) / sum(f.epochs[1:]) for f in years]
    worse = [statistics.fmean(f.warm_served) / played(f, policies["always"])[2] - 1 for f in years]
    head = ["policy", "trainings", "energy", "error in service"]
    return "\n".join(
        [
            f"{len(years[0].epochs)} weeks, {len(years)} seeds; energy and error against always training.",
            "",
            *table(head, lines),
            "",
            f"Warm starts from the week before: {statistics.fmean(warm):.2f} x the epochs, error in service "
            f"{statistics.fmean(worse):+.1%}.",
        ]
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--weeks", type=int, default=39)
    parser.add_argument("--jobs", type=int, default=None, help="processes; default: one for each core")
    given = parser.parse_args()
    print(report(list(on_all_cores(partial(year, given.weeks), range(given.seeds), given.jobs))))


if __name__ == "__main__":
    main()
