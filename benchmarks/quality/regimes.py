"""Where the policy loses: every regime of ``regime_set`` on measured pairs.

Figures are the total cost of the default policy's runs, against always training the default batch
size and against the paper's policy: arithmetic mean over the pairs and the worst pair, with 95 %
intervals over the seeds. Bold: surely dearer. The costs are expected costs, so those of the default
hang on no seed. A run below target is not charged for being done again, but counted.

What else is said of a regime: recurrences below target from a shift of the data on, and how many of
them after the target was reached again; changes of the data that were seen where there were none,
per 100 recurrences; the share of jobs in which a silent improvement is found, after how many
recurrences, and what looking for it cost, in runs.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.optimizer.policy import learn
from benchmarks.command import on_all_cores
from benchmarks.quality.choosers import always_default
from benchmarks.quality.drifts import SHIFT, Drift
from benchmarks.quality.regime_set import ALARMS, BELOW, BY_NAME, FOUND, REGIMES, Misread, right
from benchmarks.replays import OURS, PAPERS, Replays, below_after, spent_by
from benchmarks.report import (
    bold,
    change,
    change_interval,
    mean_and_worst,
    mean_of,
    ratio_of,
    table,
)
from benchmarks.simulation.driver import replay
from benchmarks.simulation.environment import Log
from benchmarks.simulation.scenario import Scenario

POLICIES = (OURS, PAPERS)


@dataclass
class Played:
    """What is kept of replays, one entry per seed."""

    replays: Replays = field(default_factory=Replays)
    default: list[float] = field(default_factory=list)  # expected cost of always the default [J]
    changes: list[float] = field(default_factory=list)  # detected, per 100 recurrences
    # recurrences until the silent size ran; None: never
    found_after: list[int | None] = field(default_factory=list)
    looking: list[float] = field(default_factory=list)  # what looking cost until then [runs]


class Part(NamedTuple):
    """Replays in one regime on one pair under one policy, all its seeds."""

    regime: str
    scenario: Scenario
    policy: str
    seeds: Sequence[int]
    audit: float = 0.0  # of the job


def play(part: Part) -> Played:
    """Replay them."""
    name, scenario, policy, seeds, audit = part
    regime = BY_NAME[name]
    kept = Played()
    for seed in seeds:
        drift = regime.job(scenario, seed)
        assert drift is not None, "it can befall this pair"
        drift = replace(drift, audit=audit)
        log, changes = watched(drift, policy, seed, regime.misread)
        kept.replays.add(drift.before, log)
        kept.default.append(
            spent_by(always_default(drift.before, drift.recurrences, seed, drift.shifts))
        )
        kept.changes.append(100 * changes / len(log))
        if drift.silent is not None:
            after, looking = found_silent(log, drift)
            kept.found_after.append(after)
            kept.looking.append(looking)
    return kept


def watched(drift: Drift, policy: str, seed: int, misread: Misread = right) -> tuple[Log, int]:
    """(Replay of a job, how many changes were detected); the log that it learns from may be wrong.

    It holds energies and times times ``misread``. The bounds of a run are checked at true costs,
    and which epochs it needs stays true, as do the costs that are returned.
    """
    rng = random.Random(f"misread/{seed}")
    begun = set[int]()

    def learn_and_watch(belief: Belief, trial: Trial) -> Belief:
        after = learn(belief, _as_logged(trial, misread(trial, rng)))
        begun.update(change.since for change in after.changes)
        return after

    job = drift.before.job(policy=policy, expected_runs=drift.expected_runs, audit=drift.audit)
    log = replay(drift.before, job, drift.recurrences, seed, drift.shifts, learn=learn_and_watch)
    return log, len(begun)


def _as_logged(trial: Trial, factor: float) -> Trial:
    seen = trial.observation
    if factor == 1.0 or seen is None:
        return trial
    names = ("energy_j", "time_s", "excess_j", "excess_s")
    known = {name: value * factor for name in names if (value := getattr(seen, name)) is not None}
    return replace(trial, observation=replace(seen, **known))


def found_silent(log: Log, drift: Drift) -> tuple[int | None, float]:
    """(recurrences after the shift until the silent size is kept, or None;
    what looking cost until then).

    Looking: all that was spent beyond the cheapest other size that was kept meanwhile,
    in runs of that one.
    """
    kept = log.batch_size[SHIFT:]
    after = kept.index(drift.silent) if drift.silent in kept else None
    before = log.runs[SHIFT:][:after]
    sizes = {log.batch_size[SHIFT - 1], *kept[:after]} - {drift.silent}
    incumbent = min((drift.shifts[SHIFT].run_cost(b) for b in sizes), default=math.inf)
    spent = math.fsum(run.expected_cost for runs in before for run in runs)
    return None if after is None else after + 1, max(0.0, spent / incumbent - len(before))


def report_of(
    found: Mapping[str, Mapping[str, Mapping[str, Played]]], series: Any = ()
) -> dict[str, Any]:
    """The figures of all regimes, and what holds over all of it,
    and over figures of ``benchmarks.series``.
    """
    replays = [of[OURS].replays for by_pair in found.values() for of in by_pair.values()]
    return {
        "regimes": {name: _of_regime(name, by_pair) for name, by_pair in found.items()},
        "runs_without_model": sum(
            [r.runs_without_model for r in replays] + [f["runs_without_model"] for f in series]
        ),
        "attempts": max([r.attempts for r in replays] + [f["attempts"] for f in series]),
    }


def _of_regime(name: str, by_pair: Mapping[str, Mapping[str, Played]]) -> dict[str, Any]:
    ours = {pair: of[OURS] for pair, of in by_pair.items()}
    spent = {pair: of.replays.spent for pair, of in ours.items()}
    default = {pair: ratio_of(spent[pair], of.default) for pair, of in ours.items()}
    papers = {pair: ratio_of(spent[pair], of[PAPERS].replays.spent) for pair, of in by_pair.items()}
    figures = {
        "pairs": len(ours),
        "vs_default": mean_and_worst(default, mean_of),
        "vs_paper": mean_and_worst(papers, mean_of),
    }
    special = BY_NAME[name].special
    return {**figures, special: SPECIAL[special](ours)} if special else figures


def _below(ours: Mapping[str, Played]) -> dict[str, Any]:
    """Recurrences below target from the shift on."""
    of = {pair: below_after(played.replays, SHIFT) for pair, played in ours.items()}
    below = _mean_and_worst({pair: f["below"][0] for pair, f in of.items()})
    return {**below, "again": statistics.fmean(f["again"][0] for f in of.values())}


def _alarms(ours: Mapping[str, Played]) -> dict[str, Any]:
    """Changes that were detected where nothing changed, per 100 recurrences."""
    return _mean_and_worst(
        {pair: statistics.fmean(played.changes) for pair, played in ours.items()}
    )


def _found(ours: Mapping[str, Played]) -> dict[str, Any]:
    """Whether and when a silent improvement was found, and what looking for it cost."""
    after = [t for played in ours.values() for t in played.found_after]
    hits = [t for t in after if t is not None]
    return {
        "share": len(hits) / len(after),
        "median_recurrence": statistics.median(hits) if hits else None,
        "runs": statistics.fmean(cost for played in ours.values() for cost in played.looking),
    }


def _mean_and_worst(by_pair: Mapping[str, float]) -> dict[str, Any]:
    worst = max(by_pair, key=by_pair.__getitem__)
    return {
        "mean": statistics.fmean(by_pair.values()),
        "worst_case": worst,
        "worst": by_pair[worst],
    }


SPECIAL = {BELOW: _below, ALARMS: _alarms, FOUND: _found}


Found = dict[str, dict[str, dict[str, Played]]]  # by regime, pair and policy


def run_all(
    scenarios: Sequence[Scenario],
    seeds: Sequence[int],
    jobs: int | None = None,
    *,
    policies: Sequence[str] = POLICIES,
    audit: float = 0.0,
) -> Found:
    """Every regime on every pair that it can befall, under each policy."""
    parts = [
        Part(regime.name, scenario, policy, seeds, audit)
        for regime in REGIMES
        for scenario in scenarios
        for policy in policies
        if regime.job(scenario, 0) is not None
    ]
    found: Found = {}
    for part, played in zip(parts, on_all_cores(play, parts, jobs), strict=True):
        by_pair = found.setdefault(part.regime, {})
        by_pair.setdefault(part.scenario.pair.name, {})[part.policy] = played
    return found


def markdown(report: Mapping[str, Any]) -> list[str]:
    """The report as a table."""
    head = [
        "regime",
        "against the default",
        "worst pair",
        "against `zeus`",
        "worst pair",
        "besides",
    ]
    regimes = report["regimes"]
    all_pairs = max((of["pairs"] for of in regimes.values()), default=0)
    rows = []
    for name, of in regimes.items():
        some = "" if of["pairs"] == all_pairs else f" ({of['pairs']} pairs)"
        rows.append([name + some, *_cells(of["vs_default"]), *_cells(of["vs_paper"]), _special(of)])
    counts = (
        f"Runs without a model: {report['runs_without_model']}; attempts of a run:"
        f" {report['attempts']}."
    )
    return [*table(head, rows), "", counts]


def _cells(of: Mapping[str, Any]) -> list[str]:
    mean = bold(change_interval(of["mean"]), of["mean"])
    worst = bold(change(of["worst"]), of["worst"])
    return [mean, f"{worst}, {of['worst_case']}"]


def _special(of: Mapping[str, Any]) -> str:
    if "below_target" in of:
        f = of["below_target"]
        return f"{f['mean']:.1f} below target, {f['again']:.1f} again"
    if "false_alarms" in of:
        f = of["false_alarms"]
        return f"{f['mean']:.2f} false alarms per 100, at worst {f['worst']:.2f}"
    if "found" in of:
        f = of["found"]
        when = "never"
        if f["median_recurrence"] is not None:
            when = f"median {f['median_recurrence']:g} runs"
        return f"found in {f['share']:.0%} of jobs, {when}; looking cost {f['runs']:.1f} runs"
    return ""
