"""What each lever saved, as a table: batch size, power limit, and both together. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.plugin.text.saved_text import Outcome
from airflow_provider_zeus.plugin.views.models import Table
from airflow_provider_zeus.reports.levers import Lever
from airflow_provider_zeus.units import costs_as, energy_text, time_text

CAPTION = "What saved it"
TOGETHER, START = "Together", "Start"
NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """What the levers saved in money or CO2e, of which waiting for a cheaper start is one."""

    name: str
    levers: Sequence[Lever]
    start: float  # exact: it is of the energy that was drawn
    total: Estimate  # ``start`` counts in it
    text: Callable[[float], str]


def lever_table(
    levers: Mapping[str, Sequence[Lever]],
    totals: Mapping[str, Estimate],
    unit: str,
    priced: Sequence[Priced] = (),
) -> Table | None:
    """A row for each lever and one for their sum; None where nothing was saved or lost, or none of it is known.

    A column of which nothing is known is left out.

    :param levers: by "energy" [J], "time" [s] and "cost" [``unit``]; ``totals``: their sums.
    :param priced: further columns.
    """
    if not any(lever.saved.value for each in levers.values() for lever in each) and not any(p.start for p in priced):
        return None
    texts: dict[str, Callable[[float], str]] = {"energy": energy_text, "time": time_text, "cost": costs_as(unit)}
    names = [lever.name for lever in levers["cost"]]
    rows = [
        [name, *(_cell(levers[c][i].saved, text) for c, text in texts.items())]
        + [_cell(p.levers[i].saved, p.text) for p in priced]
        for i, name in enumerate(names)
    ]
    if any(p.start for p in priced):
        rows.append([START, *("0" for _ in texts), *(_cell(_exact(p.start), p.text) for p in priced)])
    rows.append([TOGETHER, *(_cell(totals[c], t) for c, t in texts.items()), *(_cell(p.total, p.text) for p in priced)])
    columns = ["", *(c.capitalize() for c in texts), *(p.name for p in priced)]
    known = [i for i in range(len(columns)) if i == 0 or not all(row[i].startswith(NOT_KNOWN) for row in rows)]
    return Table(
        caption=CAPTION,
        columns=[columns[i] for i in known],
        numeric=[i > 0 for i in known],
        rows=[[row[i] for i in known] for row in rows],
    )


def _exact(value: float) -> Estimate:
    return Estimate(value, value, value)


def _cell(saved: Estimate, text: Callable[[float], str]) -> str:
    if saved.value is None:
        return f"{NOT_KNOWN}: {saved.reason}"
    if saved.value == 0 == saved.low == saved.high:
        return "0"
    found = Outcome.of(saved.value, saved, text)
    if found.kind == "even":
        return f"undecided: {text(abs(saved.low or 0.0))} lost to {text(saved.high or 0.0)} saved"
    ends = sorted((abs(saved.low or 0.0), abs(saved.high or 0.0)))
    between = "" if text(ends[0]) == text(ends[1]) else f" ({text(ends[0])} to {text(ends[1])})"
    return f"{found.verb} {found.amount}{between}"
