"""What it is worth to train only where the earlier model is no longer good, on real series,
forward in time.

``python -m benchmarks.whether --series weather|flights|bike``: at each step a model is trained on the weeks
before (the network of dags/weather), and serves until the next step. ``run.still_good()`` is played on the newest step,
which an older model has not seen. What a training does depends on no policy, so each model is trained once, and every
policy picks from them. Energy is epochs times an epoch of a simulated V100 at batch size 256.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.command import command, on_all_cores, option
from benchmarks.quality.dated_series import NAMES, Hours, Rows, Series, series
from benchmarks.quality.slice_tables import best_point
from benchmarks.report import table

from weather import forecast, samples  # isort: skip  # dated_series puts its folder on the path

BATCH_SIZE = 256
MAX_EPOCHS = 60
# of the way from what a reference run reaches to the mean's error: the target of a training
EASIER = 0.03
MOST = 8  # retrain_every


@dataclass(frozen=True)
class Year:
    """One seed: the models of all steps and how good each of them is on each step,
    as shares of the mean's error.
    """

    epochs: list[int]  # of each step's training from scratch
    warm_epochs: list[int]  # of one that goes on from the model of the step before
    energy_j: list[float]  # of an epoch of each step
    before: NDArray[np.float64]  # (step, model): on the newest step of the data
    served: NDArray[np.float64]  # (step, model): on the step that it serves
    warm_served: list[float]  # the warm-started model of each step, on the step that it serves


@dataclass(frozen=True)
class Model:
    """A network with the units of its inputs and outputs."""

    net: nn.Module
    mean: Rows
    spread: Rows
    y_mean: float
    y_spread: float

    def rmse(self, x: Rows, y: Rows) -> float:
        """Error on rows in their own units."""
        with torch.no_grad():
            said = self.net(torch.from_numpy((x - self.mean) / self.spread)).squeeze(1).numpy()
        return float(np.sqrt(np.mean(np.square(said * self.y_spread + self.y_mean - y))))


def year(name: str, bike: Path | None, steps: int, seed: int) -> Year:
    """Train the models of one seed and try each of them on the steps after it."""
    torch.set_num_threads(1)
    data = series(name, bike)
    starts = data.starts[:steps]
    models: list[Model] = []
    warm: list[Model] = []
    energy_j: list[float] = []
    before, served = (np.full((len(starts), len(starts)), np.nan) for _ in range(2))
    epochs: list[int] = []
    warm_epochs: list[int] = []
    warm_served: list[float] = []
    for k, start in enumerate(starts):
        known = start - data.known_after_h
        hours, x, y = data.rows(start - data.window_h, known)
        target = target_of(data, (hours, x, y), seed * 1000 + k)
        for found, took, earlier in (
            (models, epochs, None),
            (warm, warm_epochs, warm[-1] if warm else None),
        ):
            model, needed = trained((hours, x, y), seed * 1000 + k, target, earlier)
            found.append(model)
            took.append(needed)
        energy_j.append(best_point(BATCH_SIZE, len(y)).energy_j)
        for table_, (first, last) in (
            (before, (start - data.step_h, known)),
            (served, (start, start + data.step_h)),
        ):
            _, x_step, y_step = data.rows(first, last)
            table_[k, : k + 1] = [m.rmse(x_step, y_step) / float(np.std(y_step)) for m in models]
        warm_served.append(warm[-1].rmse(x_step, y_step) / float(np.std(y_step)))
    return Year(epochs, warm_epochs, energy_j, before, served, warm_served)


Known = tuple[Hours, Rows, Rows]


def target_of(data: Series, known: Known, seed: int) -> float:
    """Error on the hold-out at which a training ends: the example's share,
    or what a reference run reaches.
    """
    hours, _, y = known
    held = held_out(seed, len(y))
    if data.target_share is not None:
        usual = samples._hourly_mean(hours[~held], y[~held].astype(np.float64))[hours[held] % 24]
        return data.target_share * float(np.sqrt(np.mean(np.square(y[held] - usual))))
    errors: list[float] = []
    trained(known, seed, 0.0, None, errors)
    return min(errors) + EASIER * (float(np.std(y[held])) - min(errors))


def held_out(seed: int, count: int) -> NDArray[np.bool_]:
    """Which rows the target is evaluated on, drawn at random as the example does."""
    return np.random.default_rng(seed).random(count) < samples.HOLDOUT


def trained(
    known: Known, seed: int, target: float, start: Model | None, errors: list[float] | None = None
) -> tuple[Model, int]:
    """Train until the target is reached on the hold-out.

    ``start``: go on from it; ``errors``: of each epoch.
    """
    _, x, y = known
    held = held_out(seed, len(y))
    torch.manual_seed(seed)
    net = forecast.network(x.shape[1])
    if start is not None:
        net.load_state_dict(start.net.state_dict())
    spread = x.std(0)
    unit = start or Model(
        net, x.mean(0), np.where(spread > 0, spread, 1), float(y.mean()), float(y.std())
    )
    model = Model(net, unit.mean, unit.spread, unit.y_mean, unit.y_spread)
    inputs = torch.from_numpy((x[~held] - model.mean) / model.spread)
    wanted = torch.from_numpy((y[~held] - model.y_mean) / model.y_spread)
    optimizer = torch.optim.Adam(net.parameters(), lr=forecast.LEARNING_RATE)
    took = 0
    error = np.inf
    while took < MAX_EPOCHS and error > target:
        took += 1
        for chosen in torch.randperm(len(wanted)).split(BATCH_SIZE):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(inputs[chosen]).squeeze(1), wanted[chosen]).backward()
            optimizer.step()
        error = model.rmse(x[held], y[held])
        if errors is not None:
            errors.append(error)
    return model, took


# step, model in service, the year: whether the step trains
Trains = Callable[[int, int, Year], bool]


def played(found: Year, trains: Trains) -> tuple[int, float, float]:
    """(trainings, energy [J], mean error in service) of a policy."""
    count = 0
    energy_j = 0.0
    errors = []
    model = 0
    for step in range(len(found.epochs)):
        if step == 0 or trains(step, model, found):
            model = step
            count = count + 1
            energy_j += found.epochs[step] * found.energy_j[step]
        errors.append(found.served[step, model])
    return count, energy_j, statistics.fmean(errors)


def every(n: int) -> Trains:
    """Train each n-th step."""
    return lambda step, model, found: step - model >= n


def checked(share: float) -> Trains:
    """Train where the model in service misses the target on the newest step,
    and every :data:`MOST` steps.
    """
    return lambda step, model, found: (
        bool(found.before[step, model] > share) or step - model >= MOST
    )


def report(years: Sequence[Year], shares: Sequence[float]) -> str:
    """The curve, in Markdown."""
    policies = {"always": every(1)}
    policies |= {
        f"every {nth} step": every(n) for n, nth in ((2, "second"), (4, "fourth"), (MOST, "eighth"))
    }
    policies |= {
        f"still_good, target {share:g}, retrain_every={MOST}": checked(share) for share in shares
    }
    lines = []
    always = [played(found, policies["always"]) for found in years]
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
            (
                f"{len(years[0].epochs)} steps, {len(years)} seeds; energy and error against always"
                " training."
            ),
            "",
            *table(head, lines),
            "",
            (
                f"Warm starts from the step before: {statistics.fmean(warm):.2f} x the epochs,"
                f" error in service {statistics.fmean(worse):+.1%}."
            ),
        ]
    )


@command(
    "--bike --seeds --jobs",
    option("--series", choices=NAMES, default="weather"),
    option("--steps", type=int, help="the first steps of the series; default: all"),
    seeds=3,
)
def main(args: argparse.Namespace) -> None:
    """Print the table."""
    data = series(args.series, args.bike)
    steps = len(data.starts) if args.steps is None else args.steps
    play = partial(year, args.series, args.bike, steps)
    print(report(list(on_all_cores(play, range(args.seeds), args.jobs)), data.shares))
