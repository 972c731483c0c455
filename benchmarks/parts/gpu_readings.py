"""What a GPU's energy counter and power reading are like: how often the counter moves,
and if they agree.

Reads alone; used by :mod:`benchmarks.gpu`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

from airflow_provider_zeus.power.meter import Span, edge, read
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
from airflow_provider_zeus.power.nvml.library import NvmlAnswer
from airflow_provider_zeus.power.polling import PolledEnergy
from airflow_provider_zeus.training.profiling.measurement_windows import SETTLE_S, CapWatch

Load = Callable[[], AbstractContextManager[None]]  # works the GPU while it is open
PowerMw = Callable[[], NvmlAnswer]

# of the load under which meter and polling are compared: no steady one, which hides lags
ON_S = 2.0
OFF_S = 1.0


def update_period(counter_j: Callable[[], float | None], seconds: float) -> dict[str, Any]:
    """How often the counter moves [s], by how much [J], and what a reading costs [us]:
    read again and again.
    """
    reads = 0
    moved_s = list[float]()
    steps_j = list[float]()
    before_j = counter_j()
    began_s = time.perf_counter()
    while (now_s := time.perf_counter()) - began_s < seconds:
        now_j = counter_j()
        reads += 1
        if now_j is None or before_j is None:
            return {"missing": "the counter could not be read"}
        if now_j != before_j:
            moved_s.append(now_s)
            steps_j.append(now_j - before_j)
            before_j = now_j
    between_s = [b - a for a, b in pairwise(moved_s)]
    if len(between_s) < 3:
        return {"missing": f"the counter moved {len(moved_s)} times in {seconds:g} s"}
    return {
        "updates": len(moved_s),
        "period_s": statistics.median(between_s),
        "period_p05_s": _at(between_s, 0.05),
        "period_p95_s": _at(between_s, 0.95),
        "update_j": statistics.median(steps_j[1:]),
        "read_us": 1e6 * seconds / reads,
    }


def meter_and_polled(
    device: NvmlDevice, power_mw: PowerMw, load: Load, seconds: float
) -> dict[str, Any]:
    """Energy of the same time by this package's meter and by power polled and integrated [J],
    and their ratio.
    """
    if device.info.energy_source != "nvml_counter":
        return {"missing": "this GPU has no counter: the meter polls itself"}
    polled = PolledEnergy(power_mw)
    try:
        first = polled.read_j()
        span = Span(edge(device))
        until_s = time.perf_counter() + seconds
        while (left_s := until_s - time.perf_counter()) > 0:
            with load():
                time.sleep(min(ON_S, left_s))
            time.sleep(max(0.0, min(OFF_S, until_s - time.perf_counter())))
        last = polled.read_j()
        span.close(edge(device))
    finally:
        polled.close()
    if problem := first.problem or last.problem or span.reason:
        return {"missing": problem}
    polled_j = last.value - first.value
    return {
        "seconds": span.time_s,
        "meter_j": span.energy_j,
        "polled_j": polled_j,
        "meter_by_polled": span.energy_j / polled_j if span.energy_j and polled_j else None,
    }


def cap_and_clock(device: NvmlDevice, load: Load, seconds: float) -> dict[str, Any]:
    """Of a load and of rest: the share of the time in which the power limit held the GPU back,
    and its mean clock.
    """
    found: dict[str, Any] = {"limit_w": device.limit_w()}
    for name, work in (("rest", nullcontext), ("load", load)):
        watch = CapWatch(device)
        at = 0.0
        with work():
            time.sleep(min(SETTLE_S, seconds))
            first = device.clocks()
            span = Span(edge(device) if name == "rest" else read(device))
            for _ in range(10):
                watch.open(device.now_s())
                time.sleep(seconds / 10)
                watch.close(at, device.now_s())
            span.close(read(device))
        found |= {
            f"{name}_capped": watch.at[at].share,
            f"{name}_sm_clock_mhz": watch.at[at].clock_mhz,
        }
        found |= {f"{name}_w": span.power_w, "max_sm_clock_mhz": first and first.max_mhz}
        found |= {f"{name}_counted": float(first is not None and first.capped_s is not None)}
    return found


def _at(values: Sequence[float], share: float) -> float:
    """The value below which this share of them lies."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]
