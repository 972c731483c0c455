"""Sentences of ``docs/evidence/reproduction.md`` that compare.

Each is made from the figures, so that it cannot outlive them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import compress
from statistics import geometric_mean

from benchmarks.parts import profiler_overhead
from benchmarks.parts.profiler_overhead import Extra
from benchmarks.plots import name_of
from benchmarks.quality import reproduction_figures as figures
from benchmarks.quality.claims import POLICIES
from benchmarks.quality.reproduction_figures import Results
from benchmarks.quality.reproduction_tables import (
    PART,
    energy_on,
    gpus_of,
    limits,
    ratio,
    tiny,
)
from benchmarks.quality.sweeps import ALL, BETAS
from benchmarks.replays import UPSTREAM


def papers_gpus(found: Results) -> dict[str, str]:
    """Which of the paper's GPUs are in these traces, as words and as rows of Table 2."""
    here = limits(found)
    missing = [g.upper() for g in figures.PAPERS_GPUS if g not in here]
    rest = ""
    if missing:
        rest = f" {', '.join(missing)}: no power trace in the folder that this page was made from."
    hardware = [
        f"{name} ({here.get(g, 'not replayed')})" for g, name in figures.PAPERS_GPUS.items()
    ]
    return {
        "gpus_here": ", ".join(g.upper() for g in here),
        "gpus_missing": rest,
        "hardware": "; ".join(hardware),
    }


def early(found: Results) -> str:
    """Whether the public algorithm is ahead of grid search from the first recurrence on,
    and flat earlier.
    """
    first: list[bool] = []
    tenth: list[bool] = []
    flat: list[bool] = []
    # Figures 7 and 19 are of one GPU
    papers = [pair.endswith(f"/{found.gpu}") for pair in found.report["pairs"]]
    for pair in found.report["pairs"]:
        zeus, grid_search = (
            found.replays_of(pair, p).expected_regret for p in (UPSTREAM, "grid_search")
        )
        for at, kept in ((0, first), (9, tenth)):
            means = [
                statistics.fmean(c[min(at, len(c) - 1)] for c in curves)
                for curves in (zeus, grid_search)
            ]
            kept.append(means[0] < means[1])
        flat.append(figures.plateau(zeus) < figures.plateau(grid_search))
    return (
        f"Here the public algorithm has the lower regret after the first run on {sum(first)} of"
        f" {len(first)} pairs, after ten on {sum(tenth)}; its curve is flat"
        f" ({100 * figures.PLATEAU:.0f} % of its end) earlier on {sum(flat)}. On"
        f" {found.gpu.upper()}, the paper's GPU: {sum(compress(first, papers))},"
        f" {sum(compress(tenth, papers))} and {sum(compress(flat, papers))} of {sum(papers)}."
    )


def against_baselines(found: Results) -> str:
    """Whether ``zeus`` takes less energy than both baselines and less regret than grid search
    (section 6.3).

    Over the same jobs the policy of lower cost has the lower regret.
    """
    said = []
    for figure, what, default in (
        ("energy", "less energy than both baselines", 1.0),
        ("cost", "less cumulative regret than grid search", math.inf),
    ):
        sure: list[str] = []
        unsure: list[str] = []
        other: list[str] = []
        for workload, row in found.clusters.items():
            if workload == ALL:
                continue
            mean, half = row["zeus"][figure]
            grid_mean, grid_half = row["grid_search"][figure]
            apart = min(default - mean - half, grid_mean - grid_half - mean - half)
            kept = sure if apart > 0 else unsure if mean < min(default, grid_mean) else other
            kept.append(name_of(workload))
        parts = [f"on {', '.join(sure) or 'no workload'}"]
        parts += [f"in the mean alone on {', '.join(unsure)}"] if unsure else []
        parts += [f"not on {', '.join(other)}"] if other else []
        said.append(f"{what} {', '.join(parts)}")
    return f"Here the paper's policy takes {'; '.join(said)}."


def not_drawn(found: Results) -> str:
    """Workloads without a group."""
    rest = [
        name_of(s.pair.workload)
        for s in found.on(found.gpu)
        if s.pair.workload not in found.clusters
    ]
    return (
        f"No group of these draws trains {', '.join(rest)}: such long runs are rare in the"
        " trace.\n\n"
        if rest
        else ""
    )


def profiling_said(extras: Mapping[str, Sequence[Extra]]) -> str:
    """On which workloads our search costs most,
    and where it ended at another limit than the best.
    """
    most = max(extras, key=lambda w: extras[w][2].cost[0])
    said = (
        f"By cost (Eq. 2) our search takes most on {name_of(most)}: {tiny(extras[most][2].cost)} %."
    )
    astray = [
        f"{of[2].astray} on {name_of(workload)}" for workload, of in extras.items() if of[2].astray
    ]
    if not astray:
        return said
    seeds = profiler_overhead.SEEDS
    return (
        f"{said} Of {seeds} trainings it kept another limit than the best in {', '.join(astray)}."
    )


def betas_said(found: Results) -> list[str]:
    """Where beta 2 is not the best."""
    apart = []
    for policy, name in POLICIES.items():
        sweep = found.report["sweeps"]["beta"][policy]
        least, best = min((sweep[beta][found.gpu], beta) for beta in BETAS)
        if least[0] < 1.0:
            surely = "by more" if least[2] < 1 else "not by more"
            apart.append(
                f"- {name}: beta {best:g} is the lowest, {ratio(least)}, {surely} than the"
                " interval."
            )
    if not apart:
        return ["As published, beta 2 is the lowest everywhere."]
    return ["Beta 2 is not the lowest:", "", *apart]


def gpus_said(found: Results) -> str:
    """Figure 14: between what the public algorithm's energy lies over the GPUs,
    and whether all are surely below 1.
    """
    means = {gpu: energy_on(found, gpu, UPSTREAM) for gpu in gpus_of(found)}
    least, most = (choose(means, key=lambda gpu: means[gpu].value) for choose in (min, max))
    dearer = [gpu.upper() for gpu, of in means.items() if of.high >= 1]
    rest = f"all but {', '.join(dearer)}" if dearer else "all"
    beside = [
        gpu.upper() for gpu, of in means.items() if gpu != least and of.low <= means[least].high
    ]
    not_apart = (
        f"; not surely lower on {least.upper()} than on {', '.join(beside)}" if beside else ""
    )
    return (
        f"Here the public algorithm's energy is between {means[least].value:.3f} ({least.upper()})"
        f" and {means[most].value:.3f} ({most.upper()}), surely below 1 on {rest}{not_apart}."
    )


def parts_said(found: Results) -> str:
    """What its loss slows down most: whether surely more than the next,
    and which workload carries it.
    """
    parts = found.report["sweeps"]["parts"]
    return "\n".join(_slowest_part(policy, of["time"]) for policy, of in parts.items())


def _slowest_part(policy: str, by: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    first, *rest = sorted(by, key=lambda part: -by[part][ALL][0])
    pairs = {pair: of for pair, of in by[first].items() if "/" in pair}
    most = sum(all(by[first][pair][0] >= of[pair][0] for of in by.values()) for pair in pairs)
    text = f"- {POLICIES[policy]}: {_part(first)} slows down most"
    if rest and by[first][ALL][1] <= by[rest[0]][ALL][2]:
        text += " (the intervals overlap)"
    text += f", on {most} of {len(pairs)} pairs"
    return text + _without_the_worst(by, first, pairs) + "."


def _without_the_worst(
    by: Mapping[str, Mapping[str, Sequence[float]]],
    first: str,
    pairs: Mapping[str, Sequence[float]],
) -> str:
    """How much it slows down without the workload that it slows down most."""
    worst = max(pairs, key=lambda pair: pairs[pair][0])
    workload, _, _ = worst.partition("/")
    kept = [pair for pair in pairs if not pair.startswith(f"{workload}/")]
    if not kept:
        return ""
    without = {part: geometric_mean(of[pair][0] for pair in kept) for part, of in by.items()}
    heavier = [part for part in by if without[part] > without[first]]
    text = f"; without {name_of(workload)} {without[first]:.2f}"
    if heavier:
        named = " and ".join(f"{_part(part)} {without[part]:.2f}" for part in heavier)
        text += f", less than {named}: {name_of(workload)} alone carries it"
    return text


def _part(part: str) -> str:
    return PART[part.partition("no_")[2]]


def shapes(found: Results) -> list[str]:
    """Figures 5 and 17: on each GPU, which curves are convex over log2 of the batch size,
    and which fall, then rise.
    """
    said = []
    for gpu in gpus_of(found):
        here = {name_of(s.pair.workload): s for s in found.on(gpu)}
        convex, once = (
            [name for name, s in here.items() if so(s)] for so in (figures.convex, figures.unimodal)
        )
        apart = [name for name in here if name not in once]
        two = [name for name, s in here.items() if len(figures.energies(s)) < 3]
        alone = f"; {', '.join(two)} by having two sizes alone" if two else ""
        text = (
            f"- {gpu.upper()}: {len(convex)} of {len(here)} are convex"
            f" ({', '.join(convex) or 'none'}{alone})"
        )
        said.append(f"{text}; {', '.join(apart)} turn more than once." if apart else f"{text}.")
    return said
