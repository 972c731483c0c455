"""What may befall a job, beyond what the policy was made for:
each regime builds a job from a measured pair.

Times are recurrences, from 0. Jobs recur 100 times where nothing else is said. Whatever changes,
``max_epochs`` has room for it, as a job's author would have to give it beforehand.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from airflow_provider_zeus.model.trial import State, Trial
from benchmarks.quality.drifts import (
    END,
    END_SILENT,
    LOST,
    SHIFT,
    SILENT,
    TILTS,
    Drift,
    away_from_best,
    changed,
    scaled,
    shifted,
    times,
    with_room,
)
from benchmarks.simulation.scenario import Scenario

RECURRENCES = 100
FEW = 10
ROUGH = 20  # in so many runs one takes LONG times as long
LONG = 3.0
BELOW = "below_target"
ALARMS = "false_alarms"
FOUND = "found"


# factor on energy and time that the log holds of a trial
Misread = Callable[[Trial, random.Random], float]


def right(trial: Trial, rng: random.Random) -> float:
    """What was measured is true."""
    return 1.0


def given_up_times(factor: float) -> Misread:
    """EpochCost of a run that was given up is off by a factor; complete runs are measured right."""
    return lambda trial, rng: factor if trial.state is State.GIVEN_UP else 1.0


def noisy(sd: float) -> Misread:
    """EpochCost of every run has a log-normal error of its own."""
    return lambda trial, rng: rng.lognormvariate(0.0, sd)


@dataclass(frozen=True)
class Regime:
    """One regime."""

    name: str
    # (a pair as measured, seed); None: it cannot befall this pair
    job: Callable[[Scenario, int], Drift | None]
    misread: Misread = right
    special: str | None = None  # what is counted besides costs


def steady(
    scenario: Scenario, seed: int, recurrences: int = RECURRENCES, expected_runs: int | None = None
) -> Drift:
    """Nothing changes."""
    return Drift(scenario, recurrences, expected_runs=expected_runs)


def shift(kind: str, scenario: Scenario, seed: int) -> Drift | None:
    """One shift of ``benchmarks.quality.drifts``."""
    truths = shifted(kind, scenario, [scenario])
    if truths is None:
        return None
    silent = away_from_best(scenario) if kind == SILENT else None
    return Drift(truths[0], END if silent is None else END_SILENT, {SHIFT: truths[1]}, silent)


def hopeless(share: float, scenario: Scenario, seed: int) -> Drift:
    """Each slice is with this probability one whose target no batch size reaches."""
    rng = random.Random(f"hopeless/{seed}")
    none = changed(scenario, epochs=dict.fromkeys(scenario.pair.batch_sizes, (math.inf,)))
    return Drift(
        scenario,
        RECURRENCES,
        {t: none if rng.random() < share else scenario for t in range(RECURRENCES)},
    )


def level(factor: float, high: Callable[[int], bool], scenario: Scenario, seed: int) -> Drift:
    """All runs take so many times as long in some recurrences."""
    low, up = with_room(scenario, times(scenario, lambda b: factor))
    return Drift(low, RECURRENCES, {t: up if high(t) else low for t in range(RECURRENCES)})


def slow_tilt(kind: str, scenario: Scenario, seed: int) -> Drift:
    """A tilt of ``benchmarks.quality.drifts`` that grows from nothing,
    every ten recurrences by a tenth.
    """
    default = scenario.pair.default_batch_size
    exponent = TILTS[kind]

    def tilted(share: float) -> Scenario:
        return times(scenario, lambda b: math.pow(b / default, share * exponent))

    first, last = with_room(scenario, tilted(1.0))
    most = last.pair.max_epochs
    steps = range(0, RECURRENCES, 10)
    return Drift(
        first, RECURRENCES, {t: changed(tilted(t / RECURRENCES), max_epochs=most) for t in steps}
    )


def rough(one_in: int, scenario: Scenario, seed: int) -> Drift:
    """Of so many runs of each batch size one takes three times as long."""
    calm, _ = with_room(scenario, times(scenario, lambda b: LONG))
    long = scaled(calm.pair, lambda b: LONG)
    return Drift(
        changed(
            calm, epochs={b: runs * (one_in - 1) + long[b] for b, runs in calm.pair.epochs.items()}
        ),
        RECURRENCES,
    )


REGIMES = (
    Regime("nothing changes", steady, special=ALARMS),
    Regime("ten recurrences alone", partial(steady, recurrences=FEW)),
    Regime(
        "ten recurrences, and the job expects ten",
        partial(steady, recurrences=FEW, expected_runs=FEW),
    ),
    *(Regime(kind, partial(shift, kind), special=BELOW) for kind in LOST),
    *(
        Regime(f"{100 * share:g} % of slices that nobody reaches", partial(hopeless, share))
        for share in (0.1, 0.3)
    ),
    Regime("level x2, on and off every ten", partial(level, 2.0, lambda t: t // 10 % 2 == 1)),
    Regime("weekly season x3", partial(level, 3.0, lambda t: t % 7 == 6)),
    *(Regime(f"slow tilt {kind}", partial(slow_tilt, kind)) for kind in TILTS),
    Regime("5 % of runs take three times as long", partial(rough, ROUGH), special=ALARMS),
    Regime(
        "two modes: every second run takes three times as long", partial(rough, 2), special=ALARMS
    ),
    Regime("EpochCost 20 % too dear where a run is given up", steady, given_up_times(1.2)),
    Regime("EpochCost 20 % too cheap where a run is given up", steady, given_up_times(0.8)),
    Regime("EpochCost of every run with 5 % noise", steady, noisy(0.05)),
    Regime("silent improvement", partial(shift, SILENT), special=FOUND),
)
BY_NAME = {regime.name: regime for regime in REGIMES}
