"""Several GPUs of one kind, reckoned from the measurements of one: ``4xa40``. Nothing is lost between them.

Each GPU trains a batch of b / n. So an epoch takes 1 / n of the time that it takes one GPU with that batch, at n times
the power, and its energy is the same. What the GPUs exchange after each step is left out: it is not in the traces.
Epochs to the target depend on the whole batch, b.
"""

from __future__ import annotations

import re
from dataclasses import replace

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.simulation.traces import Pair, PowerMeasurement, Traces

_SEVERAL = re.compile(r"([2-9])x(\w+)")


def pair_on(traces: Traces, workload: str, gpu: str) -> Pair:
    """A workload on a GPU of the traces, or on several, as ``4xa40``. Raises JobSpecError where it was not measured.

    Batch sizes: those of which the whole has measured epochs, and the part of one GPU a measured power curve.
    """
    several = _SEVERAL.fullmatch(gpu)
    if several is None or gpu in traces.gpus:
        return traces.pair(workload, gpu)
    n, one = int(several[1]), traces.pair(workload, several[2])
    trained = traces.epochs(workload)
    points = {b * n: tuple(_times(n, p) for p in found) for b, found in one.points.items() if b * n in trained}
    if not points:
        problem = f"has no batch size that {n} {several[2].upper()} can share as measured"
        raise JobSpecError.of("workload", workload, problem, "Use another workload or GPU")
    wanted = traces.workloads[workload].default_batch_size
    return replace(
        one,
        gpu=gpu,
        max_power_w=one.max_power_w * n,
        points=points,
        epochs={b: trained[b] for b in points},
    ).starting_at(max((b for b in points if b <= wanted), default=min(points)))


def _times(n: int, point: PowerMeasurement) -> PowerMeasurement:
    return PowerMeasurement(point.limit_w * n, point.time_s / n, point.power_w * n)
