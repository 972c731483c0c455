"""A calendar month (UTC) by job: what each job spent and saved, by kind of source, as records and as cells. Pure.

Figures of different kinds are never added. What owners and tags spent is in ``month_spent.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports.month_spent import SPENT, SPENT_COLUMNS, spent_cells, spent_record
from airflow_provider_zeus.reports.months import (
    PeriodSum,
    SavedDraws,
    SavedSum,
    Spent,
    by_kind,
    co2e_g_saved,
    money_saved,
)
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.units import J_PER_KWH, S_PER_H, energy_text, time_text

DagJob = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthRow:
    """What one job of a DAG spent and saved in the month, of one kind of source."""

    dag_id: str
    job_id: str
    kind: str  # measured | estimated | simulated | time alone
    spent: Spent
    unknown: int  # attempts that reported nothing
    saved: SavedSum | str  # or why that is not known

    def saved_estimates(self, prices: Prices) -> dict[str, Estimate]:
        """What its runs saved, by figure."""
        if isinstance(self.saved, str):
            return dict.fromkeys(("energy", "time", "money", "co2e"), Estimate.missing(self.saved))
        return {
            "energy": self.saved.energy_j,
            "time": self.saved.time_s,
            "money": money_saved(self.saved, prices, self.spent.drawn),
            "co2e": co2e_g_saved(self.saved, prices, self.spent.drawn),
        }


def month_rows(sums: Sequence[PeriodSum], saved: Mapping[DagJob, SavedDraws | str]) -> list[MonthRow]:
    """The rows of a month: by kind of source, what used most energy first.

    :param sums: of this month alone.
    :param saved: what each job saved in it, or why that is not known.
    """
    silent = silent_attempts(sums)
    rows = list[MonthRow]()
    for kind, of_kind in by_kind(sums).items():
        for key in dict.fromkeys((s.dag_id, s.job_id) for s in of_kind):
            row = MonthRow(
                dag_id=key[0],
                job_id=key[1],
                kind=kind,
                spent=Spent.of([s for s in of_kind if (s.dag_id, s.job_id) == key]),
                unknown=silent.get(key, 0),
                saved=_saved_of_kind(kind, saved.get(key)),
            )
            rows.append(row)
    return sorted(rows, key=lambda r: (r.kind, -(r.spent.energy_j or 0.0), -r.spent.time_s, r.job_id))


def _saved_of_kind(kind: str, draws: SavedDraws | str | None) -> SavedSum | str:
    """What a job saved, if that is of the same kind as what it spent; else why it is not known."""
    if draws is None:
        return "no run of it can be read here"
    if isinstance(draws, str):
        return draws
    if draws.kind != kind:
        return "the default is known by another kind of source"
    return SavedSum.of(kind, [draws])


def silent_attempts(sums: Sequence[PeriodSum]) -> dict[DagJob, int]:
    """How many attempts of each job reported nothing; jobs without such attempts are left out."""
    silent: dict[DagJob, int] = {}
    for s in sums:
        if s.unknown:
            silent[s.dag_id, s.job_id] = silent.get((s.dag_id, s.job_id), 0) + s.unknown
    return silent


_SAVED = {  # column -> figure of MonthRow.saved_estimates, end of its interval, size of the unit
    name.format(end): (figure, field, size)
    for figure, name, size in (
        ("energy", "saved_energy_{}kwh", J_PER_KWH),
        ("time", "saved_time_{}h", S_PER_H),
        ("money", "saved_{}money", 1.0),
        ("co2e", "saved_co2e_{}kg", 1000.0),
    )
    for end, field in (("", "value"), ("low_", "low"), ("high_", "high"))
}
COLUMNS = (
    *("month", "dag_id", "job_id", "kind"),
    *SPENT_COLUMNS,
    *_SAVED,
    *("saved_not_known", "attempts_without_figures"),
)


def job_records(
    month: str, rows: Sequence[MonthRow], silent: Mapping[DagJob, int], prices: Prices
) -> list[dict[str, Any]]:
    """The rows as numbers, by :data:`COLUMNS`; then the jobs of which only the number of attempts is known."""
    shown = {(row.dag_id, row.job_id) for row in rows}
    records = [job_record(month, row, prices) for row in rows]
    for (dag_id, job_id), attempts in sorted(silent.items()):
        if (dag_id, job_id) not in shown:
            record = {"month": month, "dag_id": dag_id, "job_id": job_id, "attempts_without_figures": attempts}
            records.append(record)
    return records


def job_record(month: str, row: MonthRow, prices: Prices) -> dict[str, Any]:
    """One row as numbers; None: not known."""
    saved = row.saved_estimates(prices)
    ends = {column: (getattr(saved[figure], field), size) for column, (figure, field, size) in _SAVED.items()}
    return {
        "month": month,
        "dag_id": row.dag_id,
        "job_id": row.job_id,
        "kind": row.kind,
        **spent_record(row.spent, prices),
        **{column: None if value is None else value / size for column, (value, size) in ends.items()},
        "saved_not_known": saved["energy"].reason if saved["energy"].value is None else None,
        "attempts_without_figures": row.unknown,
    }


def job_cells(row: MonthRow, prices: Prices) -> dict[str, str]:
    """One row for people: what was saved is energy, or time if nothing measures energy."""
    names = [name.lower() for name in SPENT]
    return {
        "job": visible(row.job_id),
        "dag": visible(row.dag_id),
        "source": row.kind,
        **dict(zip(names, spent_cells(row.spent, prices), strict=True)),
        "saved": _saved_text(row.saved_estimates(prices)),
    }


def _saved_text(saved: Mapping[str, Estimate]) -> str:
    if saved["energy"].value is None and saved["time"].value is not None:
        return _amount(saved["time"], time_text)
    return _amount(saved["energy"], energy_text)


def _amount(saved: Estimate, text: Callable[[float], str]) -> str:
    """A saving with its interval; a loss and what is undecided are said so."""
    if saved.value is None:
        return f"not known ({saved.reason or ''})"
    low, high = saved.low or 0.0, saved.high or 0.0
    if low < 0 < high or saved.value == 0:
        return f"not clear yet ({text(abs(low))} lost to {text(high)} saved)" if low < 0 else text(0.0)
    ends = sorted((abs(low), abs(high)))
    lost = " lost" if saved.value < 0 else ""
    return f"{text(abs(saved.value))}{lost} ({text(ends[0])} to {text(ends[1])})"
