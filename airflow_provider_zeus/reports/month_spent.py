"""What was spent in a month as cells and as a record, and what the DAGs of each owner and of each tag spent. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports.months import PeriodSum, Spent, by_kind
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.units import (
    J_PER_KWH,
    S_PER_H,
    UNKNOWN,
    at_least,
    energy_text,
    grams_text,
    money_text,
    time_text,
)

GROUPINGS = ("owner", "tag")
NONE, GONE = "(none)", "(not known: Airflow has no such DAG now)"  # names of groups
SPENT = ("Runs", "Energy", "Time", "Money", "CO₂e")  # names of the cells
SPENT_COLUMNS = (
    *("runs", "energy_kwh", "time_h", "gpu_h"),
    *("money", "currency", "co2e_kg", "attempts_without_energy"),
)  # names of the numbers
GROUP_COLUMNS = ("month", "by", "name", "kind", "jobs", *SPENT_COLUMNS)


class DagAbout(NamedTuple):
    """Tags and owners of a DAG."""

    tags: Sequence[str] = ()
    owners: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSum:
    """What the DAGs of one owner, or with one tag, spent, of one kind of source."""

    by: str  # of GROUPINGS
    name: str
    kind: str
    spent: Spent


def by_group(sums: Iterable[PeriodSum], about: Mapping[str, DagAbout]) -> list[GroupSum]:
    """The sums by owner and by tag, the largest first; empty where nothing is known of any DAG.

    A DAG with two tags counts for both, so groups of one kind do not add up to what was spent.
    """
    found: dict[tuple[str, str, str], list[PeriodSum]] = {}
    for kind, of_kind in by_kind(sums).items() if about else ():
        for s in of_kind:
            dag = about.get(s.dag_id, DagAbout((GONE,), (GONE,)))
            for by, names in zip(GROUPINGS, (dag.owners, dag.tags), strict=True):
                for name in dict.fromkeys(names or (NONE,)):
                    found.setdefault((by, kind, name), []).append(s)
    groups = [GroupSum(by=by, name=name, kind=kind, spent=Spent.of(s)) for (by, kind, name), s in found.items()]
    return sorted(groups, key=lambda g: (g.by, g.kind, -(g.spent.energy_j or 0.0), -g.spent.time_s, g.name))


def group_rows(groups: Iterable[GroupSum], by: str, kind: str, prices: Prices) -> list[list[str]]:
    """The lines of a table: name, jobs, and the cells of :data:`SPENT`."""
    of = (g for g in groups if (g.by, g.kind) == (by, kind))
    return [[visible(g.name), f"{g.spent.jobs:,}", *spent_cells(g.spent, prices)] for g in of]


def spent_cells(spent: Spent, prices: Prices) -> list[str]:
    """The cells of :data:`SPENT`."""
    prices = prices.at_the_time(spent.drawn)
    paid, emitted_g = prices.money_of(spent.energy_j, spent.gpu_s), prices.co2e_g_of(spent.energy_j)
    part = at_least if spent.without_energy else str
    of_money = part if prices.price_per_kwh is not None else str
    return [
        f"{spent.runs:,}",
        UNKNOWN if spent.energy_j is None else part(energy_text(spent.energy_j)),
        time_text(spent.time_s),
        UNKNOWN if paid is None else of_money(money_text(paid, prices.currency)),
        UNKNOWN if emitted_g is None else part(grams_text(emitted_g)),
    ]


def spent_record(spent: Spent, prices: Prices) -> dict[str, Any]:
    """The same as numbers; None: not known."""
    prices = prices.at_the_time(spent.drawn)
    paid, emitted_g = prices.money_of(spent.energy_j, spent.gpu_s), prices.co2e_g_of(spent.energy_j)
    return {
        "runs": spent.runs,
        "energy_kwh": None if spent.energy_j is None else spent.energy_j / J_PER_KWH,
        "time_h": spent.time_s / S_PER_H,
        "gpu_h": spent.gpu_s / S_PER_H,
        "money": paid,
        "currency": None if paid is None else prices.currency,
        "co2e_kg": None if emitted_g is None else emitted_g / 1000.0,
        "attempts_without_energy": spent.without_energy,
    }


def group_record(group: GroupSum, prices: Prices) -> dict[str, Any]:
    """A group as a line of a CSV file, and as JSON."""
    named = {"by": group.by, "name": group.name, "kind": group.kind, "jobs": group.spent.jobs}
    return {**named, **spent_record(group.spent, prices)}
