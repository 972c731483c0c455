"""What ``learn`` and ``choose`` cost: ``python -m benchmarks.learn``.

Each figure also stands as a ratio to a yardstick of the same run, ``json.dumps`` of one
observation, so that runs on different machines compare.

``choose`` is timed from a folded belief to the decision, as a task meets it, which decides once per
process: each time with an unused belief and with every cache of ``optimizer/`` empty, so that the
Gaussian process is fitted again. Only imports are warm (``benchmarks.imports``). The other line,
``learn``, is the time to learn the log; the store keeps the belief as a checkpoint.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import POLICIES
from airflow_provider_zeus.model.trial import (
    Decision,
    Origin,
    Phase,
    PlannedAttempt,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.optimizer.policy import choose, learn, prior
from airflow_provider_zeus.optimizer.situation import Situation
from airflow_provider_zeus.optimizer.thompson import ROUNDS
from benchmarks.command import command
from benchmarks.cost.store_log import DEVICE, seen

TRIALS = 10_000
WINDOW = 500
SIZES = 15
HISTORIES = (0, 10, 100, 1_000, 10_000)
CHOICES = 300
LEARN_AIM_US = 50.0
CHOOSE_AIM_US = 50_000.0


def job_with(count: int, policy: str = "zeus") -> ZeusJob:
    """A job with this many batch sizes, the middle one its default."""
    sizes = [8 * (i + 1) for i in range(count)]
    default = sizes[count // 2]
    return ZeusJob(
        batch_sizes=sizes,
        default_batch_size=default,
        target="acc >= 0.9",
        max_epochs=50,
        window=WINDOW,
        policy=policy,
    )


def log_of(job: ZeusJob, count: int) -> list[Trial]:
    """A log with every batch size in it: both rounds of exploration, which all converge,
    then samples.

    Of these nine in ten converge, the others are given up.
    """
    rng = random.Random(0)
    spec = job.to_dict()
    log = list[Trial]()
    sizes = job.batch_sizes
    for number in range(1, count + 1):
        round_ = (number - 1) // len(sizes) + 1
        if round_ <= ROUNDS:
            b = sizes[(number - 1) % len(sizes)]
            attempt = PlannedAttempt(
                batch_size=b, phase=Phase.EXPLORE, round=round_, why="Because."
            )
        else:
            attempt = PlannedAttempt(
                batch_size=rng.choice(sizes), phase=Phase.SAMPLE, why="Because."
            )
        converged = round_ <= ROUNDS or rng.random() < 0.9
        trial = Trial(
            job_id="dag.train",
            number=number,
            key=TrialKey(str(number)),
            origin=Origin(run_type="scheduled"),
            spec=spec,
            decision=Decision(attempts=(attempt,), seed=number, policy=job.policy),
            planned=attempt,
            state=State.CONVERGED if converged else State.GIVEN_UP,
            observation=seen(attempt.batch_size, number),
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


def choose_us(job: ZeusJob, belief: Belief) -> float:
    """Median duration of ``choose`` on a belief that was folded and not asked yet,
    caches empty [us].
    """
    choose(Situation(job, replace(belief), device=DEVICE))  # imports
    modules = [
        module
        for name, module in sys.modules.items()
        if name.startswith("airflow_provider_zeus.optimizer.")
    ]
    caches = [
        value
        for module in modules
        for value in vars(module).values()
        if hasattr(value, "cache_clear")
    ]
    spent: list[float] = []
    for seed in range(CHOICES):
        fresh = replace(belief)
        for cache in caches:
            cache.cache_clear()
        start = time.perf_counter()
        choose(Situation(job, fresh, device=DEVICE, seed=seed))
        spent.append(time.perf_counter() - start)
    return statistics.median(spent) * 1e6


def histories(job: ZeusJob, counts: Sequence[int]) -> Iterator[tuple[int, Belief]]:
    """(trials, belief) of one growing log."""
    log = log_of(job, max(counts))
    belief = prior(job)
    done = 0
    for count in counts:
        belief = reduce(learn, log[done:count], belief)
        done = count
        yield count, belief


@command()
def main(args: argparse.Namespace) -> None:
    """Print the figures; exit with 1 where ``learn`` or ``choose`` is slower than its aim."""
    job = job_with(8)
    log = log_of(job, TRIALS)
    yardstick = median_us(lambda i: json.dumps(log[i % len(log)].observation.to_dict()), 5_000)
    start = time.process_time()
    reduce(learn, log, prior(job))
    per_trial = (time.process_time() - start) / len(log) * 1e6
    print(f"yardstick: json.dumps of one observation {yardstick:8.1f} us")
    print(
        f"learn, zeus, {len(log):,} trials, window {WINDOW} {per_trial:7.1f} us "
        f" {per_trial / yardstick:6.1f} x"
    )
    slow = [f"learn takes {per_trial:.1f} us per trial, more than {LEARN_AIM_US:.0f}"] * (
        per_trial > LEARN_AIM_US
    )
    print(
        f"choose, {SIZES} batch sizes, median of {CHOICES}; the belief was not asked before,"
        " imports alone are warm"
    )
    for policy in POLICIES:
        job = job_with(SIZES, policy)
        for count, belief in histories(job, HISTORIES):
            median = choose_us(job, belief)
            print(
                f"  {policy:18} {count:7,} trials  {median / 1e3:8.3f} ms "
                f" {median / yardstick:6.0f} x"
            )
            if median > CHOOSE_AIM_US:
                slow.append(
                    f"choose takes {median / 1e3:.1f} ms, more than {CHOOSE_AIM_US / 1e3:.0f}"
                )
    if slow:
        raise SystemExit("\n".join(slow))
