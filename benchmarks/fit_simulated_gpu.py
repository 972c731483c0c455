"""Refit the constants of the simulated GPUs: ``python -m benchmarks.fit_simulated_gpu --traces DIR``.

DIR holds ``summary_power_<gpu>.csv`` as published by the Zeus authors (docs/benchmarks.md says where). Prints the
constants as they stand in ``power/simulated/models.py``, with the relative errors of time per step and of power over
each load's (batch size, limit) grid. Robust least squares in log space (Levenberg-Marquardt).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from airflow_provider_zeus.power.simulated.models import CHIPS, LOADS, Chip, Load
from benchmarks.command import chosen_traces, command
from benchmarks.simulation.traces import Traces

Array: TypeAlias = npt.NDArray[np.float64]
FITTED = ("host_s", "sample_s", "busy_w", "utilisation_exponent", "slowdown", "sharpness")
LOWEST = (2e-3, 1e-9, 0.5, 0.3, 0.005, 1.5)
OUTLIER = 0.08  # relative error beyond which a point weighs less


def rows(traces: Traces, gpu: str, load: Load) -> Array:
    """Measured rows of one load: batch size, limit [W], time per step [s], mean power [W]."""
    found = [
        (b, p.limit_w, p.time_s * b / load.samples_per_epoch, p.power_w)
        for (training, b), points in traces.power(gpu).items()
        if (training.dataset, training.optimizer) == (load.dataset, load.optimizer)
        for p in points
    ]
    return np.array(found, dtype=np.float64)


def log_errors(chip: Chip, load: Load, measured: Array) -> Array:
    """log(model / measured) of all times, then of all powers."""
    modelled = np.array([load.step(chip, b, p) for b, p in measured[:, :2]])
    return np.asarray(np.log(modelled / measured[:, 2:]).T.ravel())


def fit(chip: Chip, load: Load, measured: Array) -> Load:
    """The load with its constants refitted, started from plain guesses and not from the constants it has."""
    low = np.log(LOWEST)
    high = np.log((1.0, 1.0, chip.max_limit_w - chip.idle_w, 1.1, 2.0, 20.0))
    guess_w = float(measured[:, 3].max()) - chip.idle_w + 1.0
    quickest_s, per_sample_s = float(measured[:, 2].min()), float((measured[:, 2] / measured[:, 0]).min())

    def with_constants(x: Array) -> Load:
        return replace(load, **dict(zip(FITTED, np.exp(x).tolist(), strict=True)))

    def errors(x: Array) -> Array:
        return log_errors(chip, with_constants(x), measured)

    starts = [np.log((quickest_s, per_sample_s, guess_w, k, 0.2, 4.0)) for k in (0.4, 0.9)]
    ends = [_levenberg_marquardt(errors, np.clip(start, low, high), low, high) for start in starts]
    return with_constants(min(ends, key=lambda x: _loss(errors(x))))


def _loss(errors: Array) -> float:
    return float((np.sqrt(1 + (errors / OUTLIER) ** 2) - 1).sum() * OUTLIER**2)


def _levenberg_marquardt(errors: Callable[[Array], Array], x: Array, low: Array, high: Array) -> Array:
    damping, loss = 1e-2, _loss(errors(x))
    for _ in range(200):
        now = errors(x)
        weight = 1 / np.sqrt(1 + (now / OUTLIER) ** 2)
        jacobian = np.stack([(errors(x + 1e-5 * unit) - now) / 1e-5 for unit in np.eye(x.size)], axis=1)
        normal = jacobian.T @ (weight[:, None] * jacobian)
        step = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-6), jacobian.T @ (weight * now))
        trial = np.clip(x - step, low, high)
        trial_loss = _loss(errors(trial))
        if trial_loss < loss:
            done = loss - trial_loss < 1e-9
            x, loss, damping = trial, trial_loss, damping / 3
            if done:
                break
        elif (damping := damping * 4) > 1e8:
            break
    return x


@command("--traces")
def main(args: argparse.Namespace) -> None:
    """Fit every (GPU, load) and print one line for each."""
    print(f"{'gpu':5}{'load':11} {'time: median':>13} {'worst':>6} {'power: median':>14} {'worst':>6}   constants")
    for (gpu, name), load in LOADS.items():
        measured = rows(chosen_traces(args), gpu, load)
        fitted = fit(CHIPS[gpu], load, measured)
        time, power = np.split(np.abs(np.expm1(log_errors(CHIPS[gpu], fitted, measured))), 2)
        constants = ", ".join(f"{getattr(fitted, field):.4g}" for field in FITTED)
        print(
            f"{gpu:5}{name:11} {np.median(time):13.1%} {time.max():6.1%}"
            f" {np.median(power):14.1%} {power.max():6.1%}   {constants}"
        )
