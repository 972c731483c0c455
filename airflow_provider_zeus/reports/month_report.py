"""A calendar month (UTC) by job: costs and savings of each job, by kind of source, as records and
as cells. Pure.

Figures of different kinds are never added. Costs by owner and tag are in ``month_spent.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_zeus.model.energy_source import kind_text
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.groups import grouped
from airflow_provider_zeus.model.period_sum import PeriodSum
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports.month_spent import (
    SPENT,
    SPENT_COLUMNS,
    in_unit,
    spent_cells,
    spent_record,
)
from airflow_provider_zeus.reports.months import (
    SavedDraws,
    SavedSum,
    Spent,
    by_kind,
    co2e_g_saved,
    money_saved,
)
from airflow_provider_zeus.reports.set_aside import SetAside
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.units import J_PER_KWH, S_PER_H, energy_text, time_text

DagJob = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthRow:
    """Cost and saving of one job of a DAG in the month, of one kind of source.

    :param kind: "measured", "estimated", "simulated" or "time alone".
    :param saved: or why it is not known.
    """

    dag_id: str
    job_id: str
    kind: str
    spent: Spent
    unknown: int  # told beside the figures, as none of them holds these
    saved: SavedSum | str

    @property
    def aside(self) -> SetAside | None:
        """Its failed and cleared tries; None if its runs cannot be read."""
        if isinstance(self.saved, str):
            return None
        return self.saved.aside

    def saved_estimates(self, prices: Prices) -> dict[str, Estimate]:
        """The savings of its runs, by figure."""
        saved = self.saved
        if isinstance(saved, str):
            return dict.fromkeys(("energy", "time", "money", "co2e"), Estimate.missing(saved))
        return {
            "energy": saved.energy_j,
            "time": saved.time_s,
            "money": money_saved(saved, prices, self.spent.drawn),
            "co2e": co2e_g_saved(saved, prices, self.spent.drawn),
        }


def month_rows(
    sums: Sequence[PeriodSum], saved: Mapping[DagJob, SavedDraws | str]
) -> list[MonthRow]:
    """The rows of a month: by kind of source, those of most energy first.

    :param sums: of this month alone.
    :param saved: draws of the saving of each job in it, or why it is not known.
    """
    silent = silent_attempts(sums)
    rows = list[MonthRow]()
    for kind, of_kind in by_kind(sums).items():
        by_job = grouped(of_kind, lambda s: (s.dag_id, s.job_id))
        for (dag_id, job_id), of_job in by_job.items():
            row = MonthRow(
                dag_id=dag_id,
                job_id=job_id,
                kind=kind,
                spent=Spent.of(of_job),
                unknown=silent[dag_id, job_id],
                saved=_saved_of_kind(kind, saved.get((dag_id, job_id))),
            )
            rows.append(row)
    return sorted(rows, key=lambda row: (row.kind, *row.spent.largest_first, row.job_id))


def _saved_of_kind(kind: str, draws: SavedDraws | str | None) -> SavedSum | str:
    """The saving of a job, if it is of the same kind as the cost; else why it is not known."""
    if draws is None:
        return "no run of it can be read here"
    if isinstance(draws, str):
        return draws
    if draws.kind != kind:
        return "the default is known by another kind of source"
    return SavedSum.of(kind, [draws])


def silent_attempts(sums: Sequence[PeriodSum]) -> Counter[DagJob]:
    """How many attempts of each job reported nothing; jobs without such attempts are left out."""
    silent = Counter[DagJob]()
    for s in sums:
        silent[s.dag_id, s.job_id] += s.unknown
    return +silent


_SAVED = {
    name.format(end): (figure, field, size)
    for figure, name, size in (
        ("energy", "saved_energy_{}kwh", J_PER_KWH),
        ("time", "saved_time_{}h", S_PER_H),
        ("money", "saved_{}money", 1.0),
        ("co2e", "saved_co2e_{}kg", 1000.0),
    )
    for end, field in (("", "value"), ("low_", "low"), ("high_", "high"))
}
_ASIDE = ("failed_tries", "cleared_tries", "aside_kwh", "aside_h")
COLUMNS = (
    *("month", "dag_id", "job_id", "kind"),
    *SPENT_COLUMNS,
    *_SAVED,
    *_ASIDE,
    *("saved_not_known", "attempts_without_figures"),
)


def job_records(
    month: str, rows: Sequence[MonthRow], silent: Mapping[DagJob, int], prices: Prices
) -> list[dict[str, Any]]:
    """The rows as numbers, by :data:`COLUMNS`; then the jobs of which only the number of attempts
    is known.
    """
    shown = {(row.dag_id, row.job_id) for row in rows}
    records = [job_record(month, row, prices) for row in rows]
    for (dag_id, job_id), attempts in sorted(silent.items()):
        if (dag_id, job_id) not in shown:
            record = {
                "month": month,
                "dag_id": dag_id,
                "job_id": job_id,
                "attempts_without_figures": attempts,
            }
            records.append(record)
    return records


def job_record(month: str, row: MonthRow, prices: Prices) -> dict[str, Any]:
    """One row as numbers; None: not known."""
    saved = row.saved_estimates(prices)
    record: dict[str, Any] = {
        "month": month,
        "dag_id": row.dag_id,
        "job_id": row.job_id,
        "kind": row.kind,
        **spent_record(row.spent, prices),
    }
    for column, (figure, end, size) in _SAVED.items():
        record[column] = in_unit(getattr(saved[figure], end), size)
    # a job whose runs cannot be read has them, too: columns are fixed
    record |= dict.fromkeys(_ASIDE)
    aside = row.aside
    if aside is not None:
        record |= {
            "failed_tries": aside.failed,
            "cleared_tries": aside.cleared,
            "aside_kwh": in_unit(aside.energy_j, J_PER_KWH),
            "aside_h": in_unit(aside.time_s, S_PER_H),
        }
    record["saved_not_known"] = None
    if saved["energy"].value is None:
        record["saved_not_known"] = saved["energy"].reason
    record["attempts_without_figures"] = row.unknown
    return record


def job_cells(row: MonthRow, prices: Prices) -> dict[str, str]:
    """One row for people: the saving is of energy, or of time if nothing measures energy."""
    names = [name.lower() for name in SPENT]
    saved = row.saved_estimates(prices)
    text = _amount(saved["energy"], energy_text)
    if saved["energy"].value is None and saved["time"].value is not None:
        text = f"time: {_amount(saved['time'], time_text)}"
    if row.aside:
        text += f"; {row.aside.text}"
    return {
        "job": visible(row.job_id),
        "dag": visible(row.dag_id),
        "source": kind_text(row.kind),
        **dict(zip(names, spent_cells(row.spent, prices), strict=True)),
        "energy saved": text,
    }


def _amount(saved: Estimate, text: Callable[[float], str]) -> str:
    """A saving with its interval; a loss, or an undecided sum, is called so."""
    if saved.value is None:
        return f"not known ({saved.reason or ''})"
    low, high = saved.ends
    if low < 0 and (high > 0 or saved.value == 0):
        return f"not clear yet ({text(-low)} lost to {text(high)} saved)"
    if saved.value == 0:
        return text(0.0)
    least, most = sorted((abs(low), abs(high)))
    amount = text(abs(saved.value))
    if saved.value < 0:
        amount += " lost"
    return f"{amount} ({text(least)} to {text(most)})"
