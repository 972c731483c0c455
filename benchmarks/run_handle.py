"""What we cost a training: microseconds per step outside profiling windows,
and milliseconds per task.

``python -m benchmarks.run_handle``: each loop is timed with the handle and bare, in turns, in the
same process; the best of the rounds counts. The handle runs without energy source, as on a host
whose GPU answers at once: what is measured is this package, not a driver. A step may cost 5 us. A
step that torch tells, of a training without a batch size, may cost as much as ``run.step()``, and a
task that is measured as it is as much as the question for a batch size and the telling of its cost
alone; on SQLite, in a log of 500 trials, medians in turns. What the listener of ``[zeus] measure``
costs a task that does not know Zeus is in ``cost.outside_tasks``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from types import SimpleNamespace
from typing import Any

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import (
    DeviceInfo,
    Observation,
    Origin,
    Phase,
    PlannedAttempt,
    ProfileSample,
    State,
)
from airflow_provider_zeus.power.device import Device, LimitRange
from airflow_provider_zeus.store.base import AskRequest
from airflow_provider_zeus.training import torch_listener
from airflow_provider_zeus.training.protocol.events import ResultWriter
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun
from airflow_provider_zeus.training.step_tuner import StepTuner
from airflow_provider_zeus.training.torch_listener import step_kind
from benchmarks.command import command
from benchmarks.cost.outside_tasks import outside, too_much

STEPS = 20_000
ROUNDS = 7
TASKS = 15
TRIALS = 500  # in the log before
DAG_ID = "run_handle"
JOB_ID = "run_handle.train"
MOST_US = 5.0
BATCH_SIZE = 64


def tasks(folder: Path) -> dict[str, float]:
    """Medians of a task that is measured, of one that asks and tells,
    and of these calls alone [ms of the processor].

    Needs Airflow.
    """
    os.environ |= {"AIRFLOW_HOME": str(folder), "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR"}
    from airflow.sdk import DAG

    from airflow_provider_zeus.operators.train import ZeusTrainOperator
    from benchmarks.cost.store_log import JOB, fill

    fill(f"sqlite:///{folder}/zeus.db", [JOB_ID], TRIALS)
    subprocess.run(
        [sys.executable, "-m", "airflow", "db", "migrate"], check=True, capture_output=True
    )

    def train(run: ZeusRun) -> None:
        for _ in run.epochs():
            run.step()
            run.report(accuracy=0.95)

    took_ms: dict[str, list[float]] = {"train": [], "measured": [], "ask and tell": []}
    with DAG(DAG_ID):
        asks = ZeusTrainOperator(
            task_id="train", job={**JOB.to_dict(), "device": "none"}, python_callable=train
        )
        measured = ZeusTrainOperator(task_id="measured", python_callable=_nothing)
    for n in range(TASKS + 1):
        for task in (asks, measured):
            context = _context(task)
            begun_s = process_time()
            task.execute(context)
            if n:  # the first one imports
                took_ms[task.task_id].append((process_time() - begun_s) * 1e3)
        begun_s = process_time()
        _ask_and_tell(n)
        took_ms["ask and tell"].append((process_time() - begun_s) * 1e3)
    asked, alone, calls = (median(took_ms[name]) for name in ("train", "measured", "ask and tell"))
    found = {
        "task that asks and tells, ms": asked,
        "ask and tell alone, ms": calls,
        "task measured, ms": alone,
    }
    found |= {
        "task measured / asks": alone / asked,
        "task measured / ask and tell alone": alone / calls,
    }
    return {name: round(value, 2) for name, value in found.items()}


def _context(operator: Any) -> Any:
    """What a task is given; its XComs go nowhere."""
    from airflow.sdk.execution_time.context import OutletEventAccessors

    name = f"{os.getpid()}-{perf_counter()}"
    ti = SimpleNamespace(
        id=name,
        dag_id=DAG_ID,
        task_id=operator.task_id,
        run_id=name,
        try_number=1,
        map_index=-1,
        xcom_push=lambda **_: None,
    )
    run = SimpleNamespace(run_type="scheduled")
    return {
        "ti": ti,
        "dag_run": run,
        "task": operator,
        "dag": operator.dag,
        "outlet_events": OutletEventAccessors(),
    }


def _ask_and_tell(n: int) -> None:
    """What a run of a job with batch sizes asks of its log, and tells it:
    the same log as the task's.
    """
    from airflow_provider_zeus.store.open import open_store
    from benchmarks.cost.store_log import JOB

    origin = Origin(
        dag_id=DAG_ID, run_id=f"alone{n}", task_id="train", try_number=1, run_type="scheduled"
    )
    request = AskRequest(
        job=JOB, job_id=JOB_ID, ti_id=f"alone{n}", origin=origin, device=None, lease_s=90.0
    )
    store = open_store()
    asked = store.ask(request)
    seen = Observation(energy_j=1.0, time_s=1.0, epochs=1.0, samples=10, samples_per_epoch=10.0)
    store.tell(asked.trial.key, State.CONVERGED, Report(observation=seen))


def measure(device: str, folder: Path) -> dict[str, dict[str, float]]:
    """Figures of both kinds of loop on a device."""
    run = ZeusRun.from_plan(
        plan_of([BATCH_SIZE], 1, folder, device=device, mode="measure"),
        sink=ResultWriter(folder / "result"),
    )
    tuner = StepTuner(_measured_plan(folder), _Gpu())
    optimizer = _Optimizer()
    for _ in range(100):  # until it leads
        tuner.step(optimizer)
    best: dict[str, list[float]] = {}
    for _ in run.epochs():
        for _ in range(ROUNDS):
            for name, with_handle, bare in _loops(run, tuner, optimizer):
                times = _per_step_us(with_handle), _per_step_us(bare)
                best[name] = [min(a, b) for a, b in zip(best.get(name, times), times, strict=True)]
        run.report(accuracy=1.0)
    tuner.stop()
    tuner.close()
    return {
        name: {
            "us": round(with_us, 3),
            "bare_us": round(bare_us, 3),
            "added_us": round(with_us - bare_us, 3),
            "ratio": round(with_us / bare_us, 2),
        }
        for name, (with_us, bare_us) in best.items()
    }


def _loops(
    run: ZeusRun, tuner: StepTuner, optimizer: _Optimizer
) -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    def step() -> None:
        for _ in range(STEPS):
            run.step()

    def no_step() -> None:
        for _ in range(STEPS):
            _nothing()

    yield "run.step()", step, no_step

    def heard() -> None:
        for _ in range(STEPS):
            torch_listener._after(optimizer, (), {})

    yield "heard of torch", heard, no_step
    wrapped = run.data_loader(_Numbers(), batch_sampler=_Batches())
    yield "run.data_loader", lambda: _exhaust(wrapped), lambda: _exhaust(wrapped.loader)


def _nothing() -> None:
    """The least that a step of a training could be."""


def _exhaust(batches: Any) -> None:
    for _ in batches:
        pass


def _per_step_us(loop: Callable[[], None]) -> float:
    began_s = perf_counter()
    loop()
    return (perf_counter() - began_s) / STEPS * 1e6


class _Numbers:
    """A data set that gives a whole batch at once and as cheaply as can be,
    so that the handle's share is seen.
    """

    def __len__(self) -> int:
        return STEPS * BATCH_SIZE

    def __getitems__(self, indices: Any) -> Any:
        import torch

        return [torch.empty(())]


class _Batches:
    batch_size = BATCH_SIZE

    def __iter__(self) -> Iterator[range]:
        return iter([range(BATCH_SIZE)] * STEPS)

    def __len__(self) -> int:
        return STEPS


class _Optimizer:
    param_groups = ()


class _Gpu(Device):
    """A GPU with a limit, whose driver answers at once."""

    def __init__(self) -> None:
        super().__init__(DeviceInfo(model="GPU", max_power_w=250.0, energy_source="nvml_counter"))

    def limit_range(self) -> LimitRange:
        return LimitRange(min_w=100.0, max_w=250.0)

    def limit_w(self) -> float:
        return 250.0


def _measured_plan(folder: Path) -> Plan:
    """Of a job whose profile is known, so that nothing is measured."""
    job = ZeusJob(power_limits_w=[250.0])
    known = {
        "batch_size": step_kind(_Optimizer()),
        "samples": 10**6,
        "steps": 10**6,
        "energy_j": 2e4,
        "time_s": 100.0,
    }
    attempt = PlannedAttempt(batch_size=None, phase=Phase.MEASURED, why="Benchmark.")  # type: ignore[arg-type]
    profile = (ProfileSample(limit_w=250.0, **known),)  # type: ignore[arg-type]
    return replace(
        plan_of([BATCH_SIZE], 1, folder), spec=job.to_dict(), attempts=(attempt,), profile=profile
    )


def plan_of(
    sizes: Sequence[int], epochs: int, folder: str | Path, *, heartbeat_s: float = 15.0, **spec: Any
) -> Plan:
    """So many epochs at most at each size, the last of which ends the run;
    nothing reaches the target by itself.
    """
    target = "accuracy >= 0.9"
    job = ZeusJob(
        batch_sizes=sizes, default_batch_size=sizes[-1], target=target, max_epochs=epochs, **spec
    )
    phases = [*[Phase.EXPLORE] * (len(sizes) - 1), Phase.INCUMBENT]
    attempts = (
        PlannedAttempt(batch_size=b, phase=p, why="Benchmark.")
        for b, p in zip(sizes, phases, strict=True)
    )
    return Plan(
        job_id="benchmark",
        ti_id="benchmark",
        number=1,
        first_attempt=1,
        spec=job.to_dict(),
        attempts=tuple(attempts),
        state_dir=str(folder),
        heartbeat_s=heartbeat_s,
        power_read_only=job.mode == "measure",
    )


@command()
def main(args: argparse.Namespace) -> int:
    """Print the figures as JSON; the exit status is 1 when a step costs more than it may."""
    with tempfile.TemporaryDirectory() as folder:
        figures = measure("none", Path(folder))
        told = figures["run.step()"]["added_us"]
        heard = figures["heard of torch"]["added_us"]
        ratios = {"step heard / run.step()": round(heard / told, 2), **tasks(Path(folder))}
        of_listener = outside(Path(folder))
    rounded = {name: round(value, 2) for name, value in of_listener.items()}
    print(json.dumps({**figures, **ratios, **rounded}, indent=2))
    fine = all(value <= 1.0 for name, value in ratios.items() if "/" in name)
    fine = fine and all(f["added_us"] <= MOST_US for f in figures.values())
    return int(not fine or bool(too_much(of_listener)))
