"""What waiting for a cheaper hour is worth:
``python -m benchmarks.signals --signals DIR --out DIR``.

Replays one job a day of constant power over the hourly series of a folder (``*.csv``: ``time_utc``
and a column of values) with the product's own ``plan_start``: jobs of 1, 2 and 4 h, scheduled at
01:00, 09:00 and 18:00 UTC, that may wait 4, 8 or 16 h. Carbon is forecast by the mean of the last
seven days; prices (columns ``*_per_mwh``) are known from the day-ahead auction, at 13:00 of Central
European time for the next day, and are looked at anew each hour. Saved is ``1 - sum(shifted) /
sum(at once)``. Where the folder has ``savings.csv`` each cell is compared with it.

Also: the best fixed shift of the schedule, a threshold on the present value,
and the 5 % below which nothing waits.
"""

from __future__ import annotations

import argparse
import csv
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import fsum
from pathlib import Path
from statistics import fmean
from typing import Any
from zoneinfo import ZoneInfo

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.signals.forecast import WORTH, Start, plan_start
from airflow_provider_zeus.signals.parse import Layout, parsed
from airflow_provider_zeus.signals.series import PRICE, Series
from airflow_provider_zeus.units import S_PER_H
from benchmarks.command import command, on_all_cores, took
from benchmarks.report import table, table_of, write_report

STARTS_H = (1, 9, 18)
JOBS_H = (1, 2, 4)
WAITS_H = (4, 8, 16)
# the auction's results for the next local day
MARKET = ZoneInfo("Europe/Berlin")
PUBLISHED_H = 13
LOWEST = 1 / 3  # of the last week's values: the threshold rule begins there
UNITS = {"gco2_per_kwh": "g/kWh", "eur_per_mwh": "EUR/MWh"}
# points; share; per cent; per cent
WITHIN = 1.0
KEPT = 0.75
LEAST_PERFECT = 10.0
WORST = 1.0


@dataclass(frozen=True)
class Case:
    """One cell: a signal, and a job that runs every day."""

    signal: str
    scheduled_h: int
    job_h: int
    wait_h: int
    year: int


@dataclass(frozen=True)
class Played:
    """What a rule got in a cell: sums of the means at the starts, and the mean wait [h]."""

    at_once: float
    shifted: float
    wait_h: float

    @property
    def saved(self) -> float:
        """Per cent."""
        return 100 * (1 - self.shifted / self.at_once)


RULES = ("perfect", "forecast", "forecast_5", "threshold", "fixed")
Row = dict[str, Any]


def read_signal(path: Path) -> Series:
    """The series of a file. Raises JobSpecError: it has another form."""
    text = path.read_text(encoding="utf-8")
    column = next((c for c in text.partition("\n")[0].split(",") if c in UNITS), None)
    if column is None:
        raise JobSpecError.of(
            "signal", str(path), "no column of known values", f"name one of {', '.join(UNITS)}"
        )
    return parsed(
        text,
        Layout(times="time_utc", values=column, unit=UNITS[column], step_s=S_PER_H),
        source=path.name,
    )


def play(task: tuple[Case, Series, int]) -> tuple[Case, dict[str, Played]]:
    """All rules on one cell. ``every``: N-th day of the year alone."""
    case, series, every = task
    starts_s = [s for i, s in enumerate(starts_of(case, series)) if i % every == 0]
    duration_s = case.job_h * S_PER_H
    wait_s = case.wait_h * S_PER_H
    mean = series.mean

    def cost(at_s: float) -> float:
        return mean(at_s, at_s + duration_s) or 0.0

    def perfect(at_s: float) -> float:
        return min((at_s + i * S_PER_H for i in range(case.wait_h + 1)), key=cost)

    def planned(worth: float) -> Callable[[float], float]:
        return lambda at_s: wait_for(series, at_s, wait_s, duration_s, worth)

    delay_s = min(
        (i * S_PER_H for i in range(case.wait_h + 1)),
        key=lambda d: fsum(cost(at + d) for at in starts_s),
    )
    rules: dict[str, Callable[[float], float]] = {
        "perfect": perfect,
        "forecast": planned(0.0),
        "forecast_5": planned(WORTH),
        "threshold": lambda at_s: threshold(series, at_s, wait_s),
        "fixed": lambda at_s: at_s + delay_s,
    }
    found = {}
    for name, rule in rules.items():
        chosen = [rule(at_s) for at_s in starts_s]
        waits_h = [(c - s) / S_PER_H for c, s in zip(chosen, starts_s, strict=True)]
        found[name] = Played(sum(map(cost, starts_s)), sum(map(cost, chosen)), fmean(waits_h))
    return case, found


def starts_of(case: Case, series: Series) -> list[float]:
    """The scheduled starts of the year that the series covers,
    with a week before and the longest run after.
    """
    day = datetime(case.year, 1, 1, case.scheduled_h, tzinfo=UTC)
    found = []
    while day.year == case.year:
        at_s = day.timestamp()
        if series.mean(at_s, at_s + (case.wait_h + case.job_h) * S_PER_H) is not None:
            found.append(at_s)
        day += timedelta(days=1)
    return found


def wait_for(series: Series, at_s: float, wait_s: float, duration_s: float, worth: float) -> float:
    """When a run starts that plans at its scheduled start, and, where prices are published,
    anew each hour.
    """
    now_s = at_s
    latest_s = at_s + wait_s
    while True:
        past = part(series, now_s - 8 * 24 * S_PER_H, now_s)
        price = series.unit.goal == PRICE
        ahead = part(series, now_s, published_until(now_s)) if price else Series.of(series.unit, ())
        start: Start = plan_start(
            ahead, past, now_s=now_s, latest_s=latest_s, duration_s=duration_s, worth=worth
        )
        if start.at_s <= now_s or not price:
            return start.at_s
        now_s += S_PER_H


def part(series: Series, start_s: float, end_s: float) -> Series:
    """The steps that begin in a span."""
    steps = series.steps[
        bisect_left(series.steps, (start_s,)) : bisect_left(series.steps, (end_s,))
    ]
    return Series(series.unit, steps, series.source, series.zone)


def published_until(now_s: float) -> float:
    """Up to when the day-ahead auction's prices are known."""
    local = datetime.fromtimestamp(now_s, MARKET)
    day = local + timedelta(days=2 if local.hour >= PUBLISHED_H else 1)
    return day.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()


def threshold(series: Series, at_s: float, wait_s: float) -> float:
    """A rule without a forecast: begin once the present value is in the lowest third of the last
    week's.
    """
    week = sorted(s.value for s in part(series, at_s - 7 * 24 * S_PER_H, at_s).steps)
    low = week[int(LOWEST * (len(week) - 1))] if week else float("inf")
    now_s = at_s
    while now_s < at_s + wait_s:
        step = series.at(now_s)
        if step is None or step.value <= low:
            return now_s
        now_s += S_PER_H
    return at_s + wait_s


def rows_of(
    played: Sequence[tuple[Case, Mapping[str, Played]]], reference: Mapping[tuple[Any, ...], float]
) -> list[Row]:
    """A row for each cell, with the reference's figures where there are any."""
    rows = []
    for case, rules in played:
        row: Row = {
            "signal": case.signal,
            "scheduled_h": case.scheduled_h,
            "job_h": case.job_h,
            "wait_h": case.wait_h,
        }
        row |= {f"{name}_saved": round(p.saved, 2) for name, p in rules.items()}
        row |= {f"{name}_wait_h": round(p.wait_h, 2) for name, p in rules.items()}
        row["reference"] = reference.get((case.signal, case.scheduled_h, case.job_h, case.wait_h))
        rows.append(row)
    return rows


def verdicts(rows: Sequence[Row]) -> list[tuple[bool, str, str]]:
    """(Whether it held, what is asked, what was found)."""
    found = []
    compared = [
        (abs(r["forecast_saved"] - r["reference"]), r) for r in rows if r["reference"] is not None
    ]
    if compared:
        worst, row = max(compared, key=lambda each: each[0])
        asked = f"each cell within {WITHIN:g} point of the reference, without the 5 % rule"
        found.append(
            (worst <= WITHIN, asked, f"worst {worst:.2f}, {_name(row)} ({len(compared)} cells)")
        )
    carbon = [r for r in rows if "price" not in r["signal"] and r["perfect_saved"] >= LEAST_PERFECT]
    if carbon:
        share = sum(r["forecast_5_saved"] for r in carbon) / sum(r["perfect_saved"] for r in carbon)
        asked = (
            f"carbon, where a perfect forecast saves {LEAST_PERFECT:g} % or more: at least"
            f" {KEPT:.0%} of that"
        )
        found.append((share >= KEPT, asked, f"{share:.0%} over {len(carbon)} cells"))
    row = min(rows, key=lambda r: r["forecast_5_saved"])
    asked = f"no cell dearer than starting at once by more than {WORST:g} %"
    found.append(
        (
            row["forecast_5_saved"] >= -WORST,
            asked,
            f"worst {row['forecast_5_saved']:+.1f} %, {_name(row)}",
        )
    )
    return found


def _name(row: Row) -> str:
    return (
        f"{row['signal']}, {row['job_h']} h at {row['scheduled_h']:02d}:00, may wait"
        f" {row['wait_h']} h"
    )


def read_reference(folder: Path) -> dict[tuple[Any, ...], float]:
    """``savings.csv``: forecast ``week`` for carbon, ``published`` for prices;
    empty where there is none.
    """
    path = folder / "savings.csv"
    if not path.exists():
        return {}
    found = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["forecast"] == ("published" if "price" in row["signal"] else "week"):
                key = (
                    row["signal"],
                    int(row["scheduled_utc_h"]),
                    int(row["job_h"]),
                    int(row["may_wait_h"]),
                )
                found[key] = float(row["saved_percent"])
    return found


def markdown(rows: Sequence[Row], found: Sequence[tuple[bool, str, str]]) -> str:
    """``report.md``."""
    names = {
        "perfect": "perfect",
        "forecast": "forecast",
        "forecast_5": "only if >= 5 %",
        "threshold": "threshold",
    }
    names["fixed"] = "fixed shift"
    columns = {
        "signal": "{signal}",
        "scheduled": "{scheduled_h:02d}:00",
        "job": "{job_h} h",
        "may wait": "{wait_h} h",
    }
    columns |= {title: f"{{{name}_saved:+.1f}}" for name, title in names.items()}
    columns["mean wait [h]"] = "{forecast_5_wait_h:.1f}"
    return "\n".join(
        [
            "# What waiting is worth",
            "",
            "Per cent saved against starting at once, one job a day of constant power; in UTC.",
            "",
            *table(
                ["asked", "found", ""],
                [[a, f, "held" if ok else "**missed**"] for ok, a, f in found],
            ),
            "",
            *table_of(columns, rows),
            "",
        ]
    )


def _cases(path: Path) -> list[tuple[Case, Series]]:
    """The cells of a file ``gb_2020.csv`` or ``price_de_2020.csv``; its name is the signal's."""
    series = read_signal(path)
    *words, year = path.stem.split("_")
    goal = "price" if "price" in words else "carbon"
    signal = f"{' '.join(w for w in words if w != 'price')} {goal} {year}"
    return [
        (Case(signal, at, job, wait, int(year)), series)
        for at in STARTS_H
        for job in JOBS_H
        for wait in WAITS_H
    ]


@command("--signals --every --jobs --out", out=Path("signals-report"))
def main(args: argparse.Namespace) -> int:
    """Run what the command line says; 1 where something is missed, 2 where it cannot be run."""
    paths = sorted(p for p in args.signals.glob("*.csv") if p.name != "savings.csv")
    tasks = [(case, series, args.every) for path in paths for case, series in _cases(path)]
    if not tasks:
        raise JobSpecError.of(
            "--signals", str(args.signals), "no series there", "name a folder of CSV files"
        )
    rows = rows_of(list(on_all_cores(play, tasks, args.jobs)), read_reference(args.signals))
    found = verdicts(rows)
    report = {
        "cells": rows,
        "verdicts": [{"held": ok, "asked": a, "found": f} for ok, a, f in found],
    }
    write_report(args.out, report, markdown(rows, found))
    for ok, asked, what in found:
        print(f"{'held  ' if ok else 'MISSED'} {asked}: {what}")
    print(f"{args.out / 'report.md'} after {took(args)}")
    return 0 if all(ok for ok, _, _ in found) else 1
