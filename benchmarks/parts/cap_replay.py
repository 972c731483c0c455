"""Trainings that no power limit holds back, over measured curves: what the first window tells, and what it saves.

A lower limit makes no training faster and draws no more. So the truth of a curve is the nearest one whose time falls
and whose power rises with the limit (isotonic regression); what the measurements show beyond it is noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.training.profiling.search import LimitMeasurement, Search
from benchmarks.parts.profiler_replay import WINDOW_S, WINDOW_STEPS, Bench, Curve, Floats, ours


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
    curve, top = bench.curve, bench.limits - 1
    limits_w, seen = tuple(float(w) for w in curve.limits_w), LimitMeasurement()
    for piece in bench.pieces(top, 0):
        seen.add(piece)
    search = Search(limits_w, Weights(bench.eta, curve.max_power_w), WINDOW_S * 0.9, WINDOW_STEPS)
    return search.unbound_w({limits_w[top]: seen}) is not None


def cap_figures(curves: Sequence[Curve], eta: float, noise: float, seeds: int) -> dict[str, Any]:
    """Walks and windows saved, cost above the best, and limits that are best by noise, before and with the rule."""
    walks, windows_before, windows, noisy_before, noisy, stopped = 0, 0, 0, 0, 0, 0.0
    above, above_before = [], []
    for curve in curves:
        cost, below = truth(curve, eta), curve.energy_j[-1] / curve.time_s[-1] < curve.limits_w[0]
        for seed in range(seeds):
            bench = Bench(curve, eta, noise, seed)
            found, stops = ours(bench), unbound(bench)
            at = bench.limits - 1 if stops else found.at
            walks, windows_before = walks + stops, windows_before + found.windows
            windows += 1 if stops else found.windows
            noisy_before += bool(below and found.at < bench.limits - 1)
            noisy += bool(below and at < bench.limits - 1)
            above.append(cost[at] / cost.min() - 1)
            stopped += float(above[-1]) if stops else 0.0
            above_before.append(cost[found.at] / cost.min() - 1)
    searches = len(curves) * seeds
    return {
        "eta": eta,
        "noise": noise,
        "walks_saved": walks / searches,
        "windows_before": windows_before / searches,
        "windows": windows / searches,
        "best_by_noise_before": noisy_before / searches,
        "best_by_noise": noisy / searches,
        "above_best_before": float(np.mean(above_before)),
        "above_best": float(np.mean(above)),
        "above_best_where_it_stops": stopped / searches,  # its part of the mean over all curves
        "above_best_worst": float(np.max(above)),
    }
