"""Costs of a month as cells and as a record, and those of the DAGs of each owner and of each tag.
Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from airflow_provider_zeus.model.period_sum import PeriodSum
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports.months import Spent, by_kind
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
# In parentheses, so that nobody takes them for an owner or a tag.
NONE = "(none)"
GONE = "(not known: Airflow has no such DAG now)"
SPENT = ("Runs", "Energy", "Time", "Money", "CO₂e")
# A CSV file tells a unit by the name of its column alone.
SPENT_COLUMNS = (
    *("runs", "energy_kwh", "time_h", "gpu_h"),
    *("money", "currency", "co2e_kg", "attempts_without_energy"),
)
GROUP_COLUMNS = ("month", "by", "name", "kind", "jobs", *SPENT_COLUMNS)


class DagAbout(NamedTuple):
    """Tags and owners of a DAG."""

    tags: Sequence[str] = ()
    owners: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSum:
    """The cost of the DAGs of one owner, or with one tag, of one kind of source."""

    by: str
    name: str
    kind: str
    spent: Spent


def by_group(sums: Iterable[PeriodSum], about: Mapping[str, DagAbout]) -> list[GroupSum]:
    """The sums by owner and by tag, the largest first; empty if nothing is known of any DAG.

    A DAG with two tags counts for both, so groups of one kind do not add up to the whole cost.
    """
    if not about:
        return []
    members = defaultdict[tuple[str, str, str], list[PeriodSum]](list)
    for kind, of_kind in by_kind(sums).items():
        for s in of_kind:
            dag = about.get(s.dag_id, DagAbout(tags=(GONE,), owners=(GONE,)))
            for owner in dict.fromkeys(dag.owners or (NONE,)):
                members["owner", kind, owner].append(s)
            for tag in dict.fromkeys(dag.tags or (NONE,)):
                members["tag", kind, tag].append(s)
    groups = [
        GroupSum(by=by, name=name, kind=kind, spent=Spent.of(of_group))
        for (by, kind, name), of_group in members.items()
    ]
    return sorted(groups, key=lambda g: (g.by, g.kind, *g.spent.largest_first, g.name))


def group_rows(groups: Iterable[GroupSum], by: str, kind: str, prices: Prices) -> list[list[str]]:
    """The lines of a table: name, jobs, and the cells of :data:`SPENT`."""
    of = (g for g in groups if (g.by, g.kind) == (by, kind))
    return [[visible(g.name), f"{g.spent.jobs:,}", *spent_cells(g.spent, prices)] for g in of]


def spent_cells(spent: Spent, prices: Prices) -> list[str]:
    """The cells of :data:`SPENT`."""
    prices = prices.at_the_time(spent.drawn)
    of_energy: Callable[[str], str] = str
    if spent.without_energy:
        of_energy = at_least  # a part must not read as the whole
    energy = money = emitted = UNKNOWN
    if spent.energy_j is not None:
        energy = of_energy(energy_text(spent.energy_j))
    paid = prices.money_of(spent.energy_j, spent.gpu_s)
    if paid is not None:
        money = money_text(paid, prices.currency)
        if prices.price_per_kwh is not None:
            money = of_energy(money)
    emitted_g = prices.co2e_g_of(spent.energy_j)
    if emitted_g is not None:
        emitted = of_energy(grams_text(emitted_g))
    return [f"{spent.runs:,}", energy, time_text(spent.time_s), money, emitted]


def spent_record(spent: Spent, prices: Prices) -> dict[str, Any]:
    """The same as numbers; None: not known."""
    prices = prices.at_the_time(spent.drawn)
    paid = prices.money_of(spent.energy_j, spent.gpu_s)
    return {
        "runs": spent.runs,
        "energy_kwh": in_unit(spent.energy_j, J_PER_KWH),
        "time_h": spent.time_s / S_PER_H,
        "gpu_h": spent.gpu_s / S_PER_H,
        "money": paid,
        "currency": None if paid is None else prices.currency,
        "co2e_kg": in_unit(prices.co2e_g_of(spent.energy_j), 1000.0),
        "attempts_without_energy": spent.without_energy,
    }


def in_unit(value: float | None, size: float) -> float | None:
    """A figure in a larger unit; None if it is not known."""
    if value is None:
        return None
    return value / size


def group_record(group: GroupSum, prices: Prices) -> dict[str, Any]:
    """A group as a line of a CSV file, and as JSON."""
    named = {"by": group.by, "name": group.name, "kind": group.kind, "jobs": group.spent.jobs}
    return {**named, **spent_record(group.spent, prices)}
