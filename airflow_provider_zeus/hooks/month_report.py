"""The report of a calendar month (UTC): what each job spent and saved, by kind of source, as rows and as HTML. Pure.

Figures of different kinds are never added. What jobs saved together is drawn (``months.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from typing import Any

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import Observation
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports.months import (
    SavedDraws,
    SavedSum,
    added,
    co2e_g_saved,
    kind_of,
    money_saved,
)
from airflow_provider_zeus.signals.prices import S_PER_H, Prices
from airflow_provider_zeus.store.base import PeriodSum, silent_text
from airflow_provider_zeus.units import J_PER_KWH, counted, energy_text, grams_text, time_text

DagJob = tuple[str, str]
STYLE = (
    "body{font:15px system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;width:100%}td,th{padding:.3rem .6rem;border-bottom:1px solid #ddd;text-align:left}"
    "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}.note{color:#555}"
    "@media(prefers-color-scheme:dark){body{background:#16181d;color:#ddd}td,th{border-color:#444}.note{color:#aaa}}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthRow:
    """What one job of a DAG spent and saved in the month, of one kind of source. None: not known."""

    dag_id: str
    job_id: str
    kind: str  # measured | estimated | simulated | time alone
    runs: int
    energy_j: float | None
    time_s: float
    gpu_s: float  # time of all devices
    drawn: tuple[Observation, ...]  # its energy, by what its hours cost
    unknown: int  # attempts that reported nothing
    saved: SavedSum | str  # or why that is not known

    @property
    def saved_energy_j(self) -> Estimate:
        """Energy that its runs saved."""
        return Estimate.missing(self.saved) if isinstance(self.saved, str) else self.saved.energy_j

    @property
    def saved_time_s(self) -> Estimate:
        """Time that its runs saved."""
        return Estimate.missing(self.saved) if isinstance(self.saved, str) else self.saved.time_s

    def saved_as(self, of: Callable[[SavedSum, Prices, Sequence[Observation]], Estimate], prices: Prices) -> Estimate:
        """What its runs saved in money or CO2e."""
        return Estimate.missing(self.saved) if isinstance(self.saved, str) else of(self.saved, prices, self.drawn)


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthReport:
    """The rows, those of the month before, and what the jobs of each kind saved together."""

    month: str
    rows: Sequence[MonthRow]
    before: Sequence[MonthRow]
    saved: Mapping[str, SavedSum]
    prices: Prices
    silent: Sequence[PeriodSum] = ()  # attempts that reported nothing, by job

    @property
    def title(self) -> str:
        """ "November 2026"."""
        return f"{date.fromisoformat(f'{self.month}-01'):%B %Y}"


def month_report(
    month: str, sums: Sequence[PeriodSum], saved: Mapping[DagJob, SavedDraws | str], prices: Prices
) -> MonthReport:
    """Put the report together.

    :param sums: of two months: period 0 is the month before, period 1 this one.
    :param saved: what each job of this month saved, or why that is not known.
    """
    return MonthReport(
        month=month,
        rows=_rows([s for s in sums if s.period == 1], saved),
        before=_rows([s for s in sums if s.period == 0], {}),
        saved={each.kind: each for each in added(draws for draws in saved.values() if not isinstance(draws, str))},
        prices=prices,
        silent=[s for s in sums if s.period == 1 and s.unknown],
    )


def _rows(sums: Sequence[PeriodSum], saved: Mapping[DagJob, SavedDraws | str]) -> list[MonthRow]:
    groups: dict[tuple[str, str, str], list[PeriodSum]] = {}
    for s in sums:
        if s.time_s is not None:
            groups.setdefault((kind_of(s.source), s.dag_id, s.job_id), []).append(s)
    unknown = _unknown(sums)
    rows = [_row(key, found, saved.get(key[1:]), unknown[key[1:]]) for key, found in groups.items()]
    return sorted(rows, key=lambda r: (r.kind, -(r.energy_j or 0.0), -r.time_s, r.job_id))


def _unknown(sums: Sequence[PeriodSum]) -> dict[DagJob, int]:
    """Attempts that reported nothing, by job."""
    found: dict[DagJob, int] = {}
    for s in sums:
        found[s.dag_id, s.job_id] = found.get((s.dag_id, s.job_id), 0) + s.unknown
    return found


def _row(
    key: tuple[str, str, str], sums: Sequence[PeriodSum], saved: SavedDraws | str | None, unknown: int
) -> MonthRow:
    kind, dag_id, job_id = key
    energies = [s.energy_j for s in sums if s.energy_j is not None]
    known: SavedSum | str = "no run of it can be read here"
    if isinstance(saved, SavedDraws):
        known = added([saved])[0] if saved.kind == kind else "the default is known by another kind of source"
    elif saved:
        known = saved
    return MonthRow(
        dag_id=dag_id,
        job_id=job_id,
        kind=kind,
        runs=sum(s.runs for s in sums),
        energy_j=sum(energies) if energies else None,
        time_s=sum(s.time_s or 0.0 for s in sums),
        gpu_s=sum(s.gpu_s or 0.0 for s in sums),
        unknown=unknown,
        drawn=tuple(part for s in sums for part in s.drawn()),
        saved=known,
    )


def money(row: MonthRow, prices: Prices) -> tuple[float, str] | None:
    """(What a row costs, its currency); None without prices, or where its energy is not known and priced."""
    prices = prices.at_the_time(row.drawn)
    per_j, per_s = prices.per_j_and_s(1)
    if not prices.priced or (row.energy_j is None and per_j):
        return None
    return (row.energy_j or 0.0) * per_j + row.gpu_s * per_s, prices.currency


def co2e_g(row: MonthRow, prices: Prices) -> float | None:
    """Grams of CO2 equivalent of a row's energy; None where that or the intensity is not known."""
    prices = prices.at_the_time(row.drawn)
    return None if row.energy_j is None or prices.g_co2e_per_kwh is None else row.energy_j * prices.g_per_j


def as_records(report: MonthReport) -> list[dict[str, Any]]:
    """The lines of the CSV file: of each job and kind of source, and of jobs of which nothing is known but attempts."""
    known = {(row.dag_id, row.job_id) for row in report.rows}
    return [as_record(row, report) for row in report.rows] + [
        {"month": report.month, "dag_id": key[0], "job_id": key[1], "attempts_without_figures": count}
        for key, count in sorted(_unknown(report.silent).items())
        if key not in known
    ]


def as_record(row: MonthRow, report: MonthReport) -> dict[str, Any]:
    """One line of the CSV file; None: not known."""
    energy, time = row.saved_energy_j, row.saved_time_s
    earned, emitted = row.saved_as(money_saved, report.prices), row.saved_as(co2e_g_saved, report.prices)
    paid, currency = money(row, report.prices) or (None, None)
    return {
        "month": report.month,
        "dag_id": row.dag_id,
        "job_id": row.job_id,
        "kind": row.kind,
        "runs": row.runs,
        "energy_kwh": _per(row.energy_j, J_PER_KWH),
        "time_h": row.time_s / S_PER_H,
        "gpu_h": row.gpu_s / S_PER_H,
        "money": paid,
        "currency": currency,
        "co2e_kg": _per(co2e_g(row, report.prices), 1000.0),
        **{f"saved_energy_{n}kwh": _per(getattr(energy, f), J_PER_KWH) for n, f in _ENDS},
        **{f"saved_time_{n}h": _per(getattr(time, f), S_PER_H) for n, f in _ENDS},
        **{f"saved_{n}money": getattr(earned, f) for n, f in _ENDS},
        **{f"saved_co2e_{n}kg": _per(getattr(emitted, f), 1000.0) for n, f in _ENDS},
        "saved_not_known": energy.reason if energy.value is None else None,
        "attempts_without_figures": row.unknown,
    }


_ENDS = (("", "value"), ("low_", "low"), ("high_", "high"))
COLUMNS = (
    *("month", "dag_id", "job_id", "kind", "runs", "energy_kwh", "time_h", "gpu_h", "money", "currency", "co2e_kg"),
    *(f"saved_energy_{n}kwh" for n, _ in _ENDS),
    *(f"saved_time_{n}h" for n, _ in _ENDS),
    *(f"saved_{n}money" for n, _ in _ENDS),
    *(f"saved_co2e_{n}kg" for n, _ in _ENDS),
    *("saved_not_known", "attempts_without_figures"),
)  # of the CSV file


def _per(value: float | None, size: float) -> float | None:
    return None if value is None else value / size


def as_html(report: MonthReport) -> str:
    """One page without scripts and without anything from elsewhere, fit for a mail."""
    kinds = list(dict.fromkeys([*(r.kind for r in report.rows), *(r.kind for r in report.before)]))
    parts = [_kind(kind, report) for kind in kinds]
    if silent := silent_text(report.silent):
        parts.append(f"<p>In no figure: {silent}.</p>")
    parts = parts or ["<p>No run began in this month or the one before.</p>"]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>Zeus: {report.title}</title><style>{STYLE}</style></head><body>'
        f"<h1>{report.title}</h1><p class=note>Calendar month in UTC. Savings are against always training with each "
        "job's default batch size at full power, with 90 % intervals; figures of different sources are never added. "
        "Money and CO₂e are those of the hours in which the energy was drawn, where these were priced, and otherwise "
        f"those of the prices of today.</p>{''.join(parts)}</body></html>\n"
    )


def _kind(kind: str, report: MonthReport) -> str:
    now, before = ([r for r in rows if r.kind == kind] for rows in (report.rows, report.before))
    saved = report.saved.get(kind)
    lines = [f"<li>Spent: {_spent(now, report.prices)}</li>"] if now else ["<li>No run in this month.</li>"]
    if saved is not None:
        lines.append(f"<li>Saved by {counted(saved.jobs, 'job')}: {_amount(saved.energy_j, energy_text)} of energy, ")
        lines.append(f"{_amount(saved.time_s, time_text)} of time{_saved_in_money(saved, now, report.prices)}</li>")
    elif now:
        lines.append("<li>Saved: not known of any job</li>")
    if before:
        lines.append(f"<li>The month before: {_spent(before, report.prices)}</li>")
    return f"<h2>{kind.capitalize()}</h2><ul>{''.join(lines)}</ul>{_table(now, report.prices)}"


def _saved_in_money(saved: SavedSum, rows: Sequence[MonthRow], prices: Prices) -> str:
    """What jobs saved together in money and CO2e; empty where neither is known."""
    drawn = [part for row in rows for part in row.drawn]
    earned, emitted = money_saved(saved, prices, drawn), co2e_g_saved(saved, prices, drawn)
    currency = prices.at_the_time(drawn).currency
    parts = [] if earned.value is None else [_amount(earned, lambda value: _price(value, currency))]
    parts += [] if emitted.value is None else [_amount(emitted, grams_text)]
    return "".join(f", {part}" for part in parts)


def _spent(rows: Sequence[MonthRow], prices: Prices) -> str:
    energies = [r.energy_j for r in rows if r.energy_j is not None]
    paid, emitted = [money(r, prices) for r in rows], [co2e_g(r, prices) for r in rows]
    parts = [energy_text(sum(energies))] if energies else []
    parts.append(time_text(sum(r.time_s for r in rows)))
    known = [p for p in paid if p is not None]
    if len(known) == len(paid) and len({currency for _, currency in known}) == 1:
        parts.append(_price(math.fsum(value for value, _ in known), known[0][1]))
    if None not in emitted:
        parts.append(grams_text(sum(e or 0.0 for e in emitted)))
    return f"{', '.join(parts)}, in {counted(sum(r.runs for r in rows), 'run')} of {counted(len(rows), 'job')}"


def _price(value: float, currency: str) -> str:
    return f"{value:,.2f} {escape(currency)}".strip()


def _table(rows: Sequence[MonthRow], prices: Prices) -> str:
    if not rows:
        return ""
    names = ("Job", "DAG", "Runs", "Energy", "Time", "Money", "CO₂e", "Energy saved", "Time saved", "Money saved")
    head = "".join(f"<th{'' if i < 2 else ' class=n'}>{name}</th>" for i, name in enumerate(names))
    body = "".join(f"<tr>{_cells(row, prices)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(row: MonthRow, prices: Prices) -> str:
    paid, emitted = money(row, prices), co2e_g(row, prices)
    figures = [
        f"{row.runs:,}",
        "–" if row.energy_j is None else energy_text(row.energy_j),
        time_text(row.time_s),
        "–" if paid is None else _price(*paid),
        "–" if emitted is None else grams_text(emitted),
        _amount(row.saved_energy_j, energy_text),
        _amount(row.saved_time_s, time_text),
        _money_saved(row, prices),
    ]
    names = "".join(f"<td>{escape(visible(name))}</td>" for name in (row.job_id, row.dag_id))
    return names + "".join(f"<td class=n>{figure}</td>" for figure in figures)


def _money_saved(row: MonthRow, prices: Prices) -> str:
    earned, currency = row.saved_as(money_saved, prices), prices.at_the_time(row.drawn).currency
    return "–" if earned.value is None else _amount(earned, lambda value: _price(value, currency))


def _amount(saved: Estimate, text: Any) -> str:
    """A saving with its interval; a loss and what is undecided are said so."""
    if saved.value is None:
        return f"not known ({escape(saved.reason or '')})"
    low, high = saved.low or 0.0, saved.high or 0.0
    if low < 0 < high or saved.value == 0:
        return f"undecided ({text(abs(low))} lost to {text(high)} saved)" if low < 0 else text(0.0)
    ends = sorted((abs(low), abs(high)))
    lost = " lost" if saved.value < 0 else ""
    return f"{text(abs(saved.value))}{lost} ({text(ends[0])} to {text(ends[1])})"
