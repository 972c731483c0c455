"""Runs for the tab of a run that no healthy training makes: written to the run log by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import (
    DeviceInfo,
    Observation,
    PowerPoint,
    ProfileSample,
    State,
    Trial,
)
from airflow_provider_zeus.store.base import AskRequest
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.variables.airflow import SETTINGS, AirflowVariables, variable_key
from tests.unit.plugin.kit import JOB
from tests.unit.store.store_kit import request

DAG = "zeus_ui_runs"
GPU = DeviceInfo(model="NVIDIA A100", count=1, max_power_w=300.0, energy_source="nvml_counter")
# J, s per 1,000 samples
LIMITS = {150.0: (100.0, 1.5), 200.0: (80.0, 1.1), 250.0: (85.0, 1.02), 300.0: (95.0, 1.0)}


def asked(
    run: str,
    *,
    task: str = "train",
    map_index: int = -1,
    job: ZeusJob = JOB,
    gpu: DeviceInfo | None = GPU,
) -> Trial:
    """The open trial of a run, task and map index."""
    origin = replace(request(1).origin, dag_id=DAG, run_id=run, task_id=task, map_index=map_index)
    job_id = f"{DAG}.{task}"
    ti = f"{DAG}-{run}-{task}-{map_index}"
    return (
        open_store()
        .ask(AskRequest(job=job, job_id=job_id, ti_id=ti, origin=origin, device=gpu, lease_s=600.0))
        .trial
    )


def asked_at(batch_size: int, run: str) -> Trial:
    """The open trial of a run whose batch size a person has set."""
    pinned = variable_key(SETTINGS, f"{DAG}.train")
    AirflowVariables().set(pinned, json.dumps({"pin_batch_size": batch_size}))
    trial = asked(run)
    AirflowVariables().delete(pinned)
    return trial


def told(
    trial: Trial, state: State, *, samples: int = 40_000, joules: float = 1.0, **changes: Any
) -> Trial:
    """Its result. ``joules``: how many times the profile's."""
    return open_store().tell(
        trial.key, state, so_far(trial, samples, joules, **changes), reason=changes.get("why")
    )


def so_far(
    trial: Trial, samples: int, joules: float = 1.0, gpu: DeviceInfo = GPU, **changes: Any
) -> Report:
    """What a trial at 200 W reports after so many samples, with its profile and its power."""
    per_j, per_s = LIMITS[200.0]
    time_s = samples / 1000 * per_s
    values: dict[str, Any] = {
        "epochs": samples / 10_000,
        "samples": samples,
        "samples_per_epoch": 10_000.0,
        "energy_j": samples / 1000 * per_j * joules,
        "time_s": time_s,
        "rest_j": 0.0,
        "rest_s": 0.0,
        "excess_j": 40.0,
        "excess_s": 1.0,
        "metric": 0.81,
        "power_limit_w": 200.0,
        "device_model": gpu.model,
        "device_count": gpu.count,
        "max_power_w": gpu.max_power_w,
        "energy_source": gpu.energy_source,
        "start_id": trial.key.ti_id,
    }
    values |= {k: v for k, v in changes.items() if k != "why"}
    if gpu.energy_source is None:
        return Report(observation=Observation(**values))
    profile = [
        ProfileSample(
            batch_size=trial.batch_size, limit_w=w, samples=1000, energy_j=j, time_s=s, steps=30
        )
        for w, (j, s) in LIMITS.items()
    ]
    return Report(observation=Observation(**values), profile=profile, points=_points(time_s))


def _points(time_s: float) -> list[PowerPoint]:
    """A second each: four windows of profiling,
    then training at 200 W with validation now and then.
    """
    points = []
    for t in range(1, int(time_s) + 1):
        limit = (300.0, 250.0, 200.0, 150.0)[(t - 1) // 2] if t <= 8 else 200.0
        phase = "profile" if t <= 8 else "validate" if t % 12 == 0 else "train"
        points.append(
            PowerPoint(
                t_s=float(t),
                power_w=110.0 if phase == "validate" else limit * 0.92,
                limit_w=limit,
                phase=phase,
            )
        )
    return points


def every_kind() -> None:
    """``saved lost below running mapped several nosource dead``: a run of each."""
    for run in ("first", "second"):  # what the default takes is known from two runs of it
        told(asked_at(JOB.default_batch_size, run), State.CONVERGED, samples=90_000, joules=1.3)
    told(asked_at(64, "saved"), State.CONVERGED, samples=20_000)
    told(asked_at(64, "lost"), State.CONVERGED, samples=160_000, joules=1.4)
    told(asked("below"), State.EXHAUSTED, samples=100_000, metric=0.7)
    told(asked("dead"), State.FAILED, samples=5_000, why="the process was killed (signal 9)")
    running = asked("running")
    open_store().heartbeat(running.key, so_far(running, 23_000, metric=0.62))
    for index in range(3):  # about what the default took before
        told(asked("mapped", map_index=index), State.CONVERGED, samples=81_000 + 9_000 * index)
    four = replace(GPU, count=4, max_power_w=1200.0)
    uuids = ",".join(f"GPU-{c * 8}-1111-2222-3333-444455556666" for c in "abcd")
    each = {"gpu_uuid": uuids, "gpu_energy_j": (610.0, 640.0, 655.0, 1295.0), "energy_j": 3200.0}
    told(asked("several", task="wide", gpu=four), State.CONVERGED, gpu=four, **each)
    nothing = DeviceInfo(model="CPU", count=1)
    trial = asked("nosource", task="plain", gpu=nothing)
    gone = {"energy_j": None, "rest_j": None, "excess_j": None, "power_limit_w": None}
    why = {
        "energy_j": "nothing measures energy here: set [zeus] cpu_watts",
        "power_limit_w": "a CPU has no power limit",
    }
    told(trial, State.CONVERGED, gpu=nothing, reasons=why, **gone)
