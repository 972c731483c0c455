"""Figure 10 on real series: batch size, energy and time slice by slice.

``python -m benchmarks.drift_slices``.

The paper retrains BERT on Capriccio's slices with a window of 10, two runs for each of its five
batch sizes, and sees that a spike in cost makes Zeus try another batch size. Capriccio is not at
hand here (``dags/zeus_capriccio.py`` trains on it where it is), so the real series that are take
its place: the 40 weeks of the weather example, and with ``--series DIR`` the tables of a folder, as
of ``benchmarks.series``. Policy ``zeus`` has a window of two runs for each batch size. Writes
``report.json``, ``report.md`` and ``drift.png``.

A spike is a slice whose cost is above 1.2 times the median of the five before it. How often does
the next kept run have another batch size after a spike, and how often otherwise? A policy's own
spike may come of a batch size that it tried; a spike of always the default comes of the slice
alone. Both are counted. The first slices, two for each batch size, are left out: policy ``zeus``
prunes there. ``docs/evidence/drift.md`` has the report's sentences.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from airflow_provider_zeus.model.job import ZeusJob
from benchmarks.command import command, needs, on_all_cores
from benchmarks.plots import POLICY, panels, save
from benchmarks.quality.slice_tables import (
    TABLE,
    Series,
    Week,
    defaults_of,
    read,
    read_series,
    tables_in,
    weeks_of,
)
from benchmarks.quality.slice_trainings import always, best_limit, replay, truths_of
from benchmarks.report import mean_ci, table, write_report
from benchmarks.simulation.environment import Run
from benchmarks.weather import example_job

EACH = 2  # runs for each batch size: the window of policy ``zeus``, and as long it prunes
VARIANTS = ("zeus", "knowledge_gradient")
WEATHER = "weather"
SPIKE = 1.2
BEFORE = 5
DRAWS = 2000  # of slices, for an interval


class Slice(NamedTuple):
    """What one slice cost, attempts that were given up included,
    and the batch size of its model.
    """

    key: str
    batch_size: int
    attempts: int
    energy_j: float
    time_s: float
    cost: float


class Played(NamedTuple):
    """One replay: its slices, and what always the default would have cost."""

    slices: tuple[Slice, ...]
    default: tuple[Slice, ...]


def play(name: str, table: Path | None, part: tuple[str, int]) -> Played:
    """Replay a series under one variant and seed."""
    variant, seed = part
    weeks, job, series = _series(name, table)
    job = replace(job, policy=variant)
    if variant == "zeus":
        job = replace(job, window=EACH * len(job.batch_sizes))
    truths = series.truths(job.default_batch_size) if series else truths_of(weeks, job)
    log = replay(weeks, truths, job, seed).runs
    fixed = [(run,) for run in always(weeks, truths, job, seed, best_limit)]
    return Played(*(tuple(map(_slice, weeks, of)) for of in (log, fixed)))


def _series(name: str, path: Path | None) -> tuple[Sequence[Week], ZeusJob, Series | None]:
    if path is None:
        return weeks_of(read(TABLE)), replace(example_job(), job_id=name, audit=0.0), None
    series = read_series(path)
    return series.weeks, series.job(defaults_of(series)["small"], "zeus"), series


def _slice(week: Week, runs: Sequence[Run]) -> Slice:
    energy_j, time_s, cost = (
        sum(getattr(run, of) for run in runs) for of in ("energy_j", "time_s", "cost")
    )
    return Slice(week.slice_key, runs[-1].batch_size, len(runs), energy_j, time_s, cost)


def moves(
    slices: Sequence[Slice], costs: Sequence[float], settled: int
) -> dict[bool, dict[int, bool]]:
    """{whether a slice's cost is a spike: {slice:
    whether the next has another batch size}}, from ``settled`` on.
    """
    found: dict[bool, dict[int, bool]] = {True: {}, False: {}}
    for i in range(max(settled, BEFORE), len(slices) - 1):
        usual = statistics.median(costs[i - BEFORE : i])
        found[costs[i] > SPIKE * usual][i] = slices[i + 1].batch_size != slices[i].batch_size
    return found


def figures(paths: Sequence[Played], sizes: int) -> dict[str, Any]:
    """Of one series and variant over all seeds."""
    shares = {
        name: _shares(
            [moves(p.slices, [s.cost for s in getattr(p, of)], EACH * sizes) for p in paths]
        )
        for name, of in (("own", "slices"), ("of_the_slice", "default"))
    }
    ratios = {
        of: mean_ci(
            [
                sum(getattr(s, of) for s in p.slices) / sum(getattr(s, of) for s in p.default)
                for p in paths
            ]
        )
        for of in ("cost", "energy_j", "time_s")
    }
    return {
        **ratios,
        "attempts": statistics.fmean(sum(s.attempts for s in p.slices) for p in paths),
        "other_size": shares,
    }


def _shares(found: Sequence[Mapping[bool, Mapping[int, bool]]]) -> dict[str, Any]:
    seen = {
        spike: [changed for of in found for changed in of[spike].values()]
        for spike in (True, False)
    }
    after, otherwise = (statistics.fmean(of) if of else None for of in (seen[True], seen[False]))
    return {
        "spikes": len(seen[True]) / len(found),
        "after": after,
        "otherwise": otherwise,
        "more": more_often(found),
    }


def more_often(found: Sequence[Mapping[bool, Mapping[int, bool]]]) -> list[float] | None:
    """[share after a spike less the share otherwise, low, high]; None where a series has no spike.

    The seeds meet the same slices, few of which are spikes: the interval is over slices,
    drawn again ``DRAWS`` times.
    """
    slices = sorted({i for of in found for spike in of.values() for i in spike})
    counts = np.array(
        [
            [
                [sum(of[spike].get(i, False) for of in found), sum(i in of[spike] for of in found)]
                for spike in (True, False)
            ]
            for i in slices
        ]
    )
    drawn = np.random.default_rng(0).integers(len(slices), size=(DRAWS, len(slices)))
    sums = np.concatenate([counts.sum(axis=0)[None], counts[drawn].sum(axis=1)])
    if not sums[0, :, 1].all():
        return None
    sums = sums[sums[:, :, 1].all(axis=1)]
    shares = sums[:, 0, 0] / sums[:, 0, 1] - sums[:, 1, 0] / sums[:, 1, 1]
    return [float(x) for x in (shares[0], *np.quantile(shares[1:], [0.025, 0.975]))]


def spikes_said(report: Mapping[str, Any]) -> str:
    """What the paper sees in Figure 10, on every series that has a spike: by how much,
    and whether surely.
    """
    more = {
        name: of["variants"]["zeus"]["other_size"]["of_the_slice"]["more"]
        for name, of in report["series"].items()
    }
    here = {name: [100 * x for x in of] for name, of in more.items() if of is not None}
    by = ", ".join(
        f"{name} {value:+.0f} [{low:+.0f}, {high:+.0f}]"
        for name, (value, low, high) in here.items()
    )
    sure = [name for name, (_, low, _) in here.items() if low > 0]
    return (
        "- The paper sees that another batch size follows a spike. With `zeus`, by how many points"
        " more often than after other slices, for spikes of the slice itself, 95 % intervals over"
        f" the slices: {by or 'no spike'}. Above 0 as a whole: {', '.join(sure) or 'none'}."
    )


def paths_said(first: Mapping[str, Sequence[Slice]]) -> str:
    """What each policy kept and gave up in the second half of one replay."""
    said = []
    for variant, slices in first.items():
        half = slices[len(slices) // 2 :]
        kept = Counter(s.batch_size for s in half)
        b, times = kept.most_common(1)[0]
        tries = sum(s.attempts - 1 for s in half)
        others = f", {len(kept) - 1} other sizes in the rest" if len(kept) > 1 else ""
        said.append(
            f"`{variant}` keeps {b} in {times}{others}, and gives up {tries} attempts at other"
            " sizes"
        )
    return f"In the last {len(half)} slices of the picture {'; '.join(said)}."


def markdown_of(report: Mapping[str, Any]) -> str:
    """``report.md``."""
    rows = []
    for name, of in report["series"].items():
        for variant, f in of["variants"].items():
            changes = [
                f"{100 * (f[k][0] - 1):+.1f} ± {100 * f[k][1]:.1f} %"
                for k in ("cost", "energy_j", "time_s")
            ]
            spikes = []
            for of_kind in f["other_size"].values():
                after, otherwise = (
                    "none" if of_kind[k] is None else f"{of_kind[k]:.0%}"
                    for k in ("after", "otherwise")
                )
                spikes.append(f"{after}, {otherwise} ({of_kind['spikes']:.1f} spikes)")
            rows.append([name, str(of["slices"]), str(of["default"]), variant, *changes, *spikes])
    head = ["series", "slices", "default", "policy", "cost", "energy", "time"]
    head += ["another size after an own spike, otherwise", "after a spike of the slice, otherwise"]
    said = (
        f"{report['seeds']} seeds; changes against always the default at its best power limit."
        " Measured epochs."
    )
    more = [
        spikes_said(report),
        "",
        paths_said(next(iter(report["series"].values()))["first_seed"]),
    ]
    return (
        "\n".join(["# Slice by slice (Figure 10)", "", said, "", *table(head, rows), "", *more])
        + "\n"
    )


def draw(paths: Mapping[str, Played], path: Path) -> Path:
    """Energy, time and batch size of one seed over the slices, as Figure 10."""
    figure, axes = panels(3, across=1, width=9.0, height=2.0)
    shown = (
        ("energy_j", "energy [kJ]", 1000.0),
        ("time_s", "time [s]", 1.0),
        ("batch_size", "batch size", 1),
    )
    for ax, (of, label, unit) in zip(axes, shown, strict=True):
        for variant, found in paths.items():
            values = [getattr(s, of) / unit for s in found.slices]
            name, colour = POLICY[variant]
            style = (
                {"ls": "", "marker": "o", "ms": 4}
                if of == "batch_size"
                else {"marker": ".", "lw": 1.2}
            )
            ax.plot(range(1, len(values) + 1), values, color=colour, label=name, **style)
        if of != "batch_size":
            fixed = next(iter(paths.values())).default
            ax.plot(
                range(1, len(fixed) + 1),
                [getattr(s, of) / unit for s in fixed],
                color="#777777",
                lw=1,
                label="Default",
            )
        ax.set_ylabel(label)
    axes[2].set_yscale("log", base=2)
    axes[2].yaxis.set_major_formatter("{x:.0f}")
    axes[2].set_xlabel("slice: 84 days of weather, moved by a week")
    return save(
        figure,
        path,
        "Retraining on slices that drift (Figure 10), one replay",
        axes[0].get_legend_handles_labels()[0],
    )


@command("--series --seeds --jobs --out", seeds=40, out=Path("drift-report"))
def main(args: argparse.Namespace) -> None:
    """Run what the command line says; 2 where it cannot be run."""
    report: dict[str, Any] = {"source": "simulated", "seeds": args.seeds, "series": {}}
    needs("matplotlib")
    sources = {
        WEATHER: None,
        **({path.stem: path for path in tables_in(args.series)} if args.series else {}),
    }
    for name, path in sources.items():
        weeks, job, _ = _series(name, path)
        parts = [(variant, seed) for variant in VARIANTS for seed in range(args.seeds)]
        played = list(on_all_cores(partial(play, name, path), parts, args.jobs))
        found = {
            v: [p for (of, _), p in zip(parts, played, strict=True) if of == v] for v in VARIANTS
        }
        report["series"][name] = {
            "slices": len(weeks),
            "default": job.default_batch_size,
            "variants": {
                variant: figures(of, len(job.batch_sizes)) for variant, of in found.items()
            },
            "first_seed": {variant: of[0].slices for variant, of in found.items()},
        }
        if name == WEATHER:
            shown = {variant: of[0] for variant, of in found.items()}
    write_report(args.out, report, markdown_of(report))
    draw(shown, args.out / "drift.png")
    print(markdown_of(report), end="")
