"""What ``learn`` and ``choose`` cost: ``python -m benchmarks.learn``.

Each figure also stands as a ratio to a yardstick of the same run, ``json.dumps`` of one observation, so that runs on
different machines compare.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import reduce

from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.policy import choose, learn, prior
from airflow_provider_zeus.optimizer.trial import (
    Attempt,
    Decision,
    DeviceInfo,
    Observation,
    Origin,
    Phase,
    State,
    Trial,
    TrialKey,
)

TRIALS = 10_000
WINDOW = 500
CHOICES = 300
LEARN_AIM_US = 50.0
GPU = DeviceInfo(model="V100", max_power_w=250.0, energy_source="nvml_counter")


def job_with(count: int) -> ZeusJob:
    """A job with this many batch sizes, the middle one its default."""
    sizes = [8 * (i + 1) for i in range(count)]
    return ZeusJob(
        batch_sizes=sizes, default_batch_size=sizes[count // 2], target="acc >= 0.9", max_epochs=50, window=WINDOW
    )


def log_of(job: ZeusJob, count: int) -> list[Trial]:
    """A log with every batch size in it: nine runs in ten converge, the others are given up."""
    rng, spec, log = random.Random(0), job.to_dict(), []
    for number in range(1, count + 1):
        attempt = Attempt(batch_size=rng.choice(job.batch_sizes), phase=Phase.SAMPLE, why="Because.")
        epochs = rng.uniform(5, 15)
        seen = Observation(
            epochs=epochs,
            samples=int(epochs * 1000),
            samples_per_epoch=1000.0,
            energy_j=epochs * rng.uniform(4e3, 5e3),
            time_s=epochs * rng.uniform(20, 25),
            rest_j=epochs * 200,
            rest_s=epochs * 2,
            device_model=GPU.model,
            device_count=1,
            max_power_w=GPU.max_power_w,
            energy_source=GPU.energy_source,
        )
        trial = Trial(
            job_id="dag.train",
            number=number,
            key=TrialKey(str(number)),
            origin=Origin(run_type="scheduled"),
            spec=spec,
            decision=Decision(attempts=(attempt,), seed=number, policy=job.policy),
            planned=attempt,
            state=State.CONVERGED if rng.random() < 0.9 else State.GIVEN_UP,
            observation=seen,
        )
        log.append(trial)
    return log


def median_us(call: Callable[[int], object], times: int) -> float:
    """Median duration of one call [us]."""
    spent: list[float] = []
    for i in range(times):
        start = time.perf_counter()
        call(i)
        spent.append(time.perf_counter() - start)
    return statistics.median(spent) * 1e6


def learn_us(job: ZeusJob, log: Sequence[Trial]) -> float:
    """Mean duration of ``learn`` per trial over the whole log [us]."""
    start = time.perf_counter()
    reduce(learn, log, prior(job))
    return (time.perf_counter() - start) / len(log) * 1e6


def choose_us(count: int) -> float:
    """Median duration of ``choose`` with this many batch sizes and a full window [us]."""
    job = job_with(count)
    belief = reduce(learn, log_of(job, 2 * WINDOW), prior(job))
    return median_us(lambda seed: choose(job, belief, device=GPU, seed=seed), CHOICES)


def main() -> None:
    """Print the figures; exit with 1 where ``learn`` is slower than its aim."""
    job = job_with(8)
    log = log_of(job, TRIALS)
    yardstick = median_us(lambda i: json.dumps(log[i % len(log)].observation.to_dict()), 5_000)
    per_trial = learn_us(job, log)
    print(f"yardstick: json.dumps of one observation {yardstick:8.1f} us")
    print(f"learn, {len(log):,} trials, window {WINDOW}    {per_trial:8.1f} us  {per_trial / yardstick:6.1f} x")
    for count in (8, 15):
        median = choose_us(count)
        print(f"choose, {count:2} batch sizes (median)      {median:8.1f} us  {median / yardstick:6.1f} x")
    if per_trial > LEARN_AIM_US:
        raise SystemExit(f"learn takes {per_trial:.1f} us per trial, more than {LEARN_AIM_US:.0f}")


if __name__ == "__main__":
    main()
