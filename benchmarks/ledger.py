"""Is what the pages say of savings true? ``python -m benchmarks.ledger [--traces DIR] [--series
DIR]``.

Replays make the logs that production has: of the weather example's weeks, of real retraining series
(``--series``), and of the measured pairs of ``--traces``, whose data never change; with a small, a
near-optimal and a large default. After 3, 5, 10, 20 and 40 runs the baseline, what the default at
full power would have cost on the same slices, is estimated as the pages do (``reports/savings.py``)
and compared with the truth: what the default's training of that slice and seed does cost. Only runs
in which the default did not train itself are counted as single runs.

``--made`` takes made jobs instead, of eighteen kinds (``quality/situations.py``): data that drift,
sizes that miss, outliers, a first run of the default that was unlucky.

``wrong sign``: the interval says *saved* where the runs lost, or the reverse; a truth within 1 % of
what was spent has no sign. ``undecided``: it holds both. ``open``: undecided, or nothing could be
said since the default had not reached its target.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import POLICIES
from airflow_provider_zeus.model.trial import ProfileSample, Trial
from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.optimizer.policy import learn
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.savings import saving
from benchmarks.command import chosen_traces, command, on_all_cores, option, took
from benchmarks.quality import situations
from benchmarks.quality import slice_trainings as weather_replay
from benchmarks.quality.slice_tables import KINDS, Series, defaults_of, series_of
from benchmarks.report import table, write_json
from benchmarks.simulation import driver
from benchmarks.simulation.scenario import Scenario

LENGTHS = (3, 5, 10, 20, 40)
NO_SIGN = 0.01  # relative difference of spent and truth below which neither sign is wrong
EXACT = 1e-3  # relative difference up to which a measured baseline is the true one
AUDIT = 0.02  # of a job by default
PROFILE_SD = 0.008  # of the log J and s that a made job's profile measured
SHARES = ("covered", "wrong_sign", "undecided")
REAL = "real series"
STATIONARY = "pairs, stationary"


class Log(NamedTuple):
    """One replay."""

    job: ZeusJob
    trials: Sequence[Trial]
    profiles: Sequence[ProfileSample]
    truth: Sequence[float]  # of the default at full power, by run [J]


class Part(NamedTuple):
    """One replay to be made."""

    kind: str
    source: Series | Scenario | situations.Job
    default: str  # one of KINDS; of a made job its own
    policy: str
    audit: float
    seed: int


class Verdict(NamedTuple):
    """An interval beside the truth."""

    covered: bool
    wrong: bool  # of sign
    undecided: bool


class Judged(NamedTuple):
    """Estimates after so many runs, beside the truth."""

    runs: int
    error: float | None  # of the mean, as a share of the truth; None: nothing could be said
    covered: bool
    wrong: bool
    undecided: bool
    singles: tuple[Verdict, ...]  # of each run


def judged(part: Part) -> list[Judged]:
    """Make the log and judge it at each length that it has."""
    log = log_of(part)
    return [_after(log, n) for n in LENGTHS if n <= len(log.truth)]


def log_of(part: Part) -> Log:
    """Replay it."""
    if isinstance(part.source, Series):
        return _of_series(part.source, part)
    if isinstance(part.source, situations.Job):
        return _of_made(part.source, part)
    return _of_pair(part.source, part)


def _after(log: Log, runs: int) -> Judged:
    """Where the default has not reached its target, nothing can be said:
    the pages say *not known*.
    """
    slices = list(dict.fromkeys(t.key.ti_id for t in log.trials))[:runs]
    trials = [t for t in log.trials if t.key.ti_id in slices]
    found = saving(as_dataset(trials, log.job), rng=random.Random(0), profiles=log.profiles)
    truth = math.fsum(log.truth[:runs])
    spent = found.cost.spent or 0.0
    estimate = found.cost.baseline
    if estimate.value is None:
        return Judged(runs, None, covered=False, wrong=False, undecided=True, singles=())
    said = _compared(estimate, truth, spent)
    if found.base.doubt:  # the pages give no verdict
        said = Verdict(covered=said.covered, wrong=False, undecided=True)
    steps = zip(found.steps, log.truth[: len(found.steps)], strict=True)
    singles = tuple(
        _compared(step.baseline, of, step.spent or 0.0) for step, of in steps if not step.measured
    )
    return Judged(runs, estimate.value / truth - 1, *said, singles)


def _compared(baseline: Estimate, truth: float, spent: float) -> Verdict:
    if baseline.low is None or baseline.high is None:
        return Verdict(covered=False, wrong=False, undecided=True)
    said = 1 if baseline.low > spent else -1 if baseline.high < spent else 0
    covered = baseline.low * (1 - EXACT) <= truth <= baseline.high * (1 + EXACT)
    wrong = said * (truth - spent) < 0 and abs(truth - spent) > NO_SIGN * spent
    return Verdict(covered, wrong, not said)


def _kept_by(replay: Callable[..., object], *args: Any, **kwargs: Any) -> list[Trial]:
    """The trials that a replay learns from."""
    trials: list[Trial] = []

    def learn_and_keep(belief: Belief, trial: Trial) -> Belief:
        trials.append(trial)
        return learn(belief, trial)

    replay(*args, **kwargs, learn=learn_and_keep)
    return trials


def _of_series(series: Series, part: Part) -> Log:
    b = defaults_of(series)[part.default]
    job = replace(series.job(b, part.policy), audit=part.audit)
    truths = series.truths(b)
    trials = _kept_by(weather_replay.replay, series.weeks, truths, job, part.seed)
    default = weather_replay.always(series.weeks, truths, job, part.seed, weather_replay.full_power)
    return Log(
        job,
        trials,
        _profile(truths[0], series.weeks[0].samples_per_epoch),
        [run.cost for run in default],
    )


def _of_pair(scenario: Scenario, part: Part) -> Log:
    pair = scenario.pair
    sure = [b for b, epochs in sorted(pair.epochs.items()) if all(map(math.isfinite, epochs))]
    b = {"small": sure[0], "near_optimal": scenario.best, "large": sure[-1]}[part.default]
    scenario = Scenario(replace(pair, default_batch_size=b))
    job = scenario.job(policy=part.policy, audit=part.audit)
    trials = _kept_by(driver.replay, scenario, job, LENGTHS[-1], part.seed)
    own = {
        t.key.ti_id: t.observation.epochs
        for t in trials
        if t.batch_size == b and t.state.kept_model
    }
    rng = random.Random(f"truth/{part.seed}")
    epoch = scenario.epoch(scenario.full_power(b)).cost
    drawn = {run: rng.choice(pair.epochs[b]) for run in dict.fromkeys(t.key.ti_id for t in trials)}
    return Log(
        job,
        trials,
        _profile(scenario, driver.SLICE),
        [epoch * (own.get(run) or e) for run, e in drawn.items()],
    )


def _of_made(made: situations.Job, part: Part) -> Log:
    job = made.spec(part.policy, part.audit)
    truths = made.truths
    env = situations.trainings(made, job, part.seed)
    trials = _kept_by(weather_replay.replay, made.weeks, truths, job, part.seed, env=env)
    default = situations.trainings(made, job, part.seed)
    costs = []
    for truth in truths:
        default.scenario = truth
        costs.append(default.train_at(made.default, weather_replay.full_power(truth)).cost)
    rng = random.Random(f"profiles/{part.kind}/{part.seed}")
    profiles = [
        replace(
            sample,
            energy_j=sample.energy_j * math.exp(rng.gauss(0.0, PROFILE_SD)),
            time_s=sample.time_s * math.exp(rng.gauss(0.0, PROFILE_SD)),
        )
        for sample in _profile(truths[0], situations.SAMPLES)
    ]
    return Log(job, trials, profiles, costs)


def _profile(truth: Scenario, samples: int) -> list[ProfileSample]:
    return [
        ProfileSample(
            batch_size=b,
            limit_w=p.limit_w,
            samples=samples,
            energy_j=p.energy_j,
            time_s=p.time_s,
            steps=1000,
        )
        for b, points in truth.pair.points.items()
        for p in points
    ]


def figures(found: Sequence[Judged]) -> dict[str, Any]:
    """Shares over all logs of one length."""
    singles = [single for judged in found for single in judged.singles]
    known = [
        (j.error, Verdict(j.covered, j.wrong, j.undecided)) for j in found if j.error is not None
    ]

    def shares(of: Sequence[Verdict]) -> dict[str, float | None]:
        return {
            name: statistics.fmean(s[i] for s in of) if of else None
            for i, name in enumerate(SHARES)
        }

    return {
        "logs": len(found),
        "rmse": math.sqrt(statistics.fmean(error**2 for error, _ in known)) if known else None,
        "bias": statistics.fmean(error for error, _ in known) if known else None,
        "sums": shares([sums for _, sums in known]),
        "open": statistics.fmean(j.undecided for j in found),
        "runs": shares(singles),
    }


def measure(parts: Sequence[Part], jobs: int | None = None) -> dict[str, dict[str, dict[str, Any]]]:
    """Figures by kind of data and length."""
    found: dict[str, dict[int, list[Judged]]] = {}
    for part, results in zip(parts, on_all_cores(judged, parts, jobs), strict=True):
        for one in results:
            found.setdefault(part.kind, {}).setdefault(one.runs, []).append(one)
    return {kind: {str(n): figures(of[n]) for n in sorted(of)} for kind, of in found.items()}


def markdown(measured: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """The figures as a table; shares in per cent."""
    head = ["logs of", "runs", "logs", "RMSE", "bias", "sums: covered", "wrong sign", "undecided"]
    head += ["open", "runs: covered", "wrong sign", "undecided"]

    def share(value: float | None) -> str:
        return "–" if value is None else f"{100 * value:.1f}"

    rows = [
        [
            kind,
            n,
            str(f["logs"]),
            share(f["rmse"]),
            "–" if f["bias"] is None else f"{100 * f['bias']:+.1f}",
        ]
        + [share(f["sums"][name]) for name in SHARES]
        + [share(f["open"]), *(share(f["runs"][name]) for name in SHARES)]
        for kind, of_length in measured.items()
        for n, f in of_length.items()
    ]
    return table(head, rows)


@command(
    "--traces --every --series --max-epochs --seeds --report --jobs",
    option(
        "--made",
        action="store_true",
        help="made jobs alone, one for each kind and seed",
    ),
    option("--first-seed", type=int, default=0, metavar="N"),
    seeds=20,
)
def main(args: argparse.Namespace) -> None:
    """Run what the command line says; 2 where it cannot be run."""
    pairs = (
        [Scenario(pair) for pair in chosen_traces(args).pairs()[:: args.every]]
        if args.traces
        else []
    )
    series = series_of(args.series, dict(args.max_epochs))
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    part = partial(Part, policy=POLICIES[0], audit=AUDIT)
    parts = [
        part(REAL, s, default=k, seed=seed)
        for s in series.values()
        for k in KINDS
        for seed in seeds
    ]
    parts += [
        part(STATIONARY, p, default=k, seed=seed) for p in pairs for k in KINDS for seed in seeds
    ]
    if args.made:
        parts = [
            part(kind, situations.made(kind, n), default="", seed=n)
            for kind in situations.KINDS
            for n in seeds
        ]
    found = measure(parts, args.jobs)
    print("\n".join(markdown(found)))
    print(
        f"{args.seeds} seeds, audit={AUDIT:g}; simulated power; shares in %, 90 % intervals;"
        f" {took(args)}"
    )
    write_json(args.report, {"policy": POLICIES[0], "audit": AUDIT, "seeds": args.seeds, **found})
