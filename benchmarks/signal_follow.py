"""What a power limit that follows a signal is worth:
``python -m benchmarks.signal_follow --signals DIR --traces DIR``.

Replays runs of ``--hours`` at full power, one begun every day at 00:00, 06:00, 12:00 and 18:00 UTC,
on measured power profiles (a workload's default batch size) over hourly series. In each hour the
run takes the limit that the product takes (``signals/forecast.py``): Eq. 7 with its energy term
times the present over the mean of the past week. Beside it: full power; the best single limit by
Eq. 7; and the *frontier* of single limits, two of them mixed, that needs as much time as following
does. What following gains over that frontier is what the hours are worth; the rest any lower limit
gets. ``known`` sees the present value,
``planned`` what was forecast when the run began (the mean of seven days).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.cost import Rate, Weights
from airflow_provider_zeus.signals.forecast import Followed, weighed
from airflow_provider_zeus.signals.series import Series
from airflow_provider_zeus.units import J_PER_KWH, S_PER_H
from benchmarks.command import chosen_traces, command, on_all_cores, option, took
from benchmarks.report import table, table_of, write_report
from benchmarks.signals import part, read_signal
from benchmarks.simulation.traces import Pair

RULES = ("known", "planned", "best limit")
BEGIN_H = (0, 6, 12, 18)
ETAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
DAY_S = 24 * S_PER_H
Spent = tuple[float, float]  # (the signal's sum over the energy: grams, or money; s)
Row = dict[str, Any]


def train(
    series: Series,
    begin_s: float,
    work: float,
    limit_at: Callable[[float], float],
    rates: Mapping[float, Rate],
) -> Spent:
    """Train ``work`` epochs from ``begin_s`` on, at the limit of each hour."""
    spent = 0.0
    at_s = begin_s
    while work > 1e-9:
        step = series.at(at_s)
        if step is None:
            raise ValueError("a gap")
        energy_j, time_s = rates[limit_at(at_s)]
        done = min(work, (step.end_s - at_s) / time_s)
        spent += done * energy_j / J_PER_KWH * step.value
        at_s = at_s + done * time_s
        work = work - done
    return spent, at_s - begin_s


def frontier(single: Iterable[Spent], time_s: float) -> float:
    """The least that single limits, or two of them mixed, spend in at most ``time_s``."""
    points = sorted(single, key=lambda p: p[1])
    best = min(p[0] for p in points if p[1] <= time_s * (1 + 1e-9))
    for fast in points:
        for slow in points:
            if fast[1] <= time_s < slow[1]:
                share = (time_s - fast[1]) / (slow[1] - fast[1])
                best = min(best, fast[0] + share * (slow[0] - fast[0]))
    return best


def play(task: tuple[str, Series, Pair, float, int]) -> list[Row]:
    """A row for each eta and rule of one signal and pair."""
    signal, series, pair, hours, every = task
    rates: dict[float, Rate] = {
        p.limit_w: Rate(p.energy_j, p.time_s) for p in pair.points[pair.default_batch_size]
    }
    top_w = max(rates)
    work = hours * S_PER_H / rates[top_w][1]
    longest_s = work * max(time_s for _, time_s in rates.values())
    followed = {at_s: _followed(series, at_s) for at_s in begins(series, longest_s, every)}
    if not followed:
        return []

    def total(limit_of: Callable[[float], Callable[[float], float]]) -> Spent:
        spent = [train(series, begin_s, work, limit_of(begin_s), rates) for begin_s in followed]
        return sum(s for s, _ in spent), sum(t for _, t in spent)

    single = {w: total(lambda _, w=w: lambda _: w) for w in rates}  # type: ignore[misc]
    full = single[top_w]
    rows = []
    for eta in ETAS:
        weights = Weights(eta, pair.max_power_w)

        def best(ratio: float, weights: Weights = weights) -> float:
            return weighed(weights, ratio).best_w(rates) or top_w

        spent_by = (
            total(lambda b: lambda at_s: best(followed[b][0].ratio(at_s))),
            total(lambda b: lambda at_s: best(followed[b][1].ratio(at_s))),
            single[best(1.0)],
        )
        for rule, (spent, time_s) in zip(RULES, spent_by, strict=True):
            saved = 100 * (1 - spent / full[0])
            slower = 100 * (time_s / full[1] - 1)
            same_time = 100 * (1 - frontier(single.values(), time_s) / full[0])
            rows.append(
                {"signal": signal, "pair": pair.name, "hours": hours, "eta": eta, "rule": rule}
                | {
                    "saved": round(saved, 2),
                    "slower": round(slower, 2),
                    "single_saved": round(same_time, 2),
                }
            )
    return rows


def _followed(series: Series, at_s: float) -> tuple[Followed, Followed]:
    """What the run sees: the values themselves, and what is forecast when it begins."""
    known = Followed.of("carbon", part(series, at_s - 8 * DAY_S, at_s + 2 * DAY_S), at_s)
    planned = Followed.of("carbon", part(series, at_s - 8 * DAY_S, at_s), at_s)
    assert known is not None
    assert planned is not None
    return known, planned


def begins(series: Series, longest_s: float, every: int) -> list[float]:
    """Starts with a week before and the longest run after them; every N-th day alone."""
    first = series.steps[0].start_s
    last = series.steps[-1].end_s
    day = datetime.fromtimestamp(first, UTC).replace(hour=0) + timedelta(days=9)
    found = []
    while (begin_s := day.timestamp()) + DAY_S + longest_s < last:
        found += [begin_s + h * S_PER_H for h in BEGIN_H]
        day += timedelta(days=every)
    return [
        s
        for s in found
        if series.mean(s - 8 * DAY_S, s + longest_s) is not None and longest_s <= 2 * DAY_S
    ]


def markdown(rows: Sequence[Row]) -> str:
    """``report.md``: a table of means, and one of all rows."""
    columns = {name: f"{{{name}}}" for name in ("signal", "pair", "hours", "eta", "rule")}
    columns |= {
        "saved [%]": "{saved}",
        "time [%]": "{slower}",
        "single limits in that time [%]": "{single_saved}",
    }
    means = [
        [rule, f"{eta:g}", *(f"{each:+.2f}" for each in figures)]
        for rule, eta, figures in summary(rows)
    ]
    return "\n".join(
        [
            "# A limit that follows a signal",
            "",
            "Against full power; means over all signals, pairs and lengths.",
            "",
            *table(
                ["rule", "eta", "saved [%]", "time [%]", "gained over single limits [points]"],
                means,
            ),
            "",
            *table_of(columns, rows),
            "",
        ]
    )


def summary(rows: Sequence[Row]) -> list[tuple[str, float, tuple[float, float, float]]]:
    """(Rule, eta, means of: saved [%], more time [%], points gained over single limits)."""
    found = []
    for rule in RULES:
        for eta in ETAS:
            some = [r for r in rows if (r["rule"], r["eta"]) == (rule, eta)]
            means = fmean(r["saved"] for r in some), fmean(r["slower"] for r in some)
            found.append((rule, eta, (*means, fmean(r["saved"] - r["single_saved"] for r in some))))
    return found


@command(
    "--signals --traces --gpus --workloads --every --jobs --out",
    option(
        "--hours", type=float, nargs="+", default=[4.0, 12.0], help="length of a run at full power"
    ),
    every=3,
    out=Path("follow-report"),
)
def main(args: argparse.Namespace) -> None:
    """Run what the command line says; 2 where it cannot be run."""
    pairs = chosen_traces(args).pairs(args.gpus, args.workloads)
    paths = sorted(
        p for p in args.signals.glob("*.csv") if p.name != "savings.csv" and "price" not in p.name
    )
    series = {path.stem: read_signal(path) for path in paths}
    if not series:
        remedy = "name a folder of CSV files"
        raise JobSpecError.of("--signals", str(args.signals), "no carbon series there", remedy)
    tasks = [
        (name, s, pair, h, args.every)
        for name, s in series.items()
        for pair in pairs
        for h in args.hours
    ]
    rows = [row for found in on_all_cores(play, tasks, args.jobs) for row in found]
    write_report(args.out, rows, markdown(rows))
    for rule, eta, (saved, slower, gained) in summary(rows):
        print(
            f"{rule:<10} eta {eta:g}: saved {saved:5.1f} %, time {slower:+5.1f} %, gained"
            f" {gained:+.2f} points"
        )
    print(f"{args.out / 'report.md'} after {took(args)}")
