"""What-if: other weights and prices over the same log, in words and figures. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from pydantic import BaseModel

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import SURE, Estimate
from airflow_provider_zeus.plugin.charts.dag_front import front_chart
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.views.dag_known import JobAnalysis
from airflow_provider_zeus.plugin.views.factors import Factors
from airflow_provider_zeus.plugin.views.models import Chart, Figure, Table
from airflow_provider_zeus.reports.what_if import Forecast, WhatIf, what_if
from airflow_provider_zeus.units import counted

MOST_PRICE, MOST_CARBON = 1e6, 1e5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the reader changed; None: as it is today."""

    eta: float | None = None
    price_per_kwh: float | None = None
    price_per_gpu_hour: float | None = None
    g_co2e_per_kwh: float | None = None


class WhatIfInput(BaseModel):
    """One weight or price of the what-if, with the value that the answer used."""

    name: str
    label: str
    value: float | None  # None: not given
    most: float
    step: float


class WhatIfAnswer(BaseModel):
    """What would be chosen and spent under other weights and prices."""

    note: str | None = None  # instead of an answer: why there is none
    text: str  # what would be chosen and spent, in sentences
    asked: list[WhatIfInput]
    table: Table | None  # today beside the asked
    front: Chart | None


def answered(known: JobAnalysis, wish: Wish, configured: Factors) -> WhatIfAnswer:
    """Today's choice beside that under the wish, each with what a run without exploration spends."""
    log = known.log
    fit = known.saving.base.epochs
    found = what_if(log, eta=wish.eta, profiles=known.profiles, epochs=fit, decided=known.decided)
    names = ("price_per_kwh", "price_per_gpu_hour", "g_co2e_per_kwh")
    changed = {name: value for name in names if (value := getattr(wish, name)) is not None}
    factors, gpus = replace(configured, **changed), log.where[1] if log.where else 1
    weights = Weights.of(log.job if wish.eta is None else replace(log.job, eta=wish.eta), log.device)
    front = front_chart(known.front(), weights, found.then.batch_size, found.then.limit_w, found.then.start)
    money = f" [{factors.currency}]" if factors.currency else ""
    inputs = (
        ("eta", "eta: weight of energy against time", found.then.eta if wish.eta is None else wish.eta, 1.0, 0.05),
        ("price_per_kwh", f"Price per kWh{money}", factors.price_per_kwh, MOST_PRICE, 0.01),
        ("price_per_gpu_hour", f"Price per GPU-hour{money}", factors.price_per_gpu_hour, MOST_PRICE, 0.1),
        ("g_co2e_per_kwh", "gCO₂e per kWh", factors.g_co2e_per_kwh, MOST_CARBON, 10.0),
    )
    return WhatIfAnswer(
        text=_text(found, factors, gpus),
        asked=[
            WhatIfInput(name=name, label=label, value=value, most=most, step=step)
            for name, label, value, most, step in inputs
        ],
        table=_table(found, factors, gpus),
        front=front,
    )


def _text(found: WhatIf, factors: Factors, gpus: int) -> str:
    """What would be chosen and spent, in sentences."""
    now, then = found.now, found.then
    today, other = (
        f"batch size {_size(p)}{'' if p.limit_w is None else f' at {words.watts(p.limit_w).text}'}" for p in (now, then)
    )
    if now.unit == "s":
        return (
            f"Nothing measures energy where these runs trained, so time alone counts and eta changes nothing: {today}."
        )
    if now.eta == then.eta:
        head = f"At today's eta {now.eta:g} the log says: {other}."
    elif found.same:
        head = f"At eta {then.eta:g} the log says the same as at today's {now.eta:g}: {other}."
    elif not found.gains:
        return _unclear(found, today, other)
    else:
        least, most = (_share(v or 0.0, found) for v in (found.gain.low, found.gain.high))
        head = (
            f"At eta {then.eta:g} the log says {other}; at today's {now.eta:g} it says {today}. A run then costs less "
            f"by {_share(found.gain.value or 0.0, found)}, energy and time weighed so ({SURE}: {least} to {most})."
        )
    energy_j, time_s, changes = then.energy_j.value, then.time_s.value, []
    for name, a, b in (("energy", now.energy_j.value, energy_j), ("time", now.time_s.value, time_s)):
        if not found.same and a and b:
            changes.append(f"{name} {100 * (b / a - 1):+.0f} %".replace("-", "−"))
    if energy_j is None and time_s is None:
        return f"{head} What a settled run would take is not known: {then.time_s.reason}."
    known = (("energy", then.energy_j, words.energy), ("time", then.time_s, words.duration))
    spent = [
        " and ".join(
            f"{name} that is not known ({of.reason})" if of.value is None else figure(of.value).text
            for name, of, figure in known
        )
    ]
    money, carbon = factors.money(energy_j, then.time_s.times(gpus).value), factors.carbon(energy_j)
    spent += [money.text] if money is not None and money.value is not None else []
    spent += [carbon.text] if carbon is not None and carbon.value is not None else []
    against = f" ({', '.join(changes)} against today's choice)" if changes else ""
    return f"{head} A settled run is then expected to take {', '.join(spent)}{against}."


def _size(found: Forecast) -> str:
    return f"{found.batch_size}{f' from a {found.start} start' if found.start else ''}"


def _unclear(found: WhatIf, today: str, other: str) -> str:
    """The sentences where another choice would be made, and nothing shows that it would be cheaper."""
    now, then, gain = found.now, found.then, found.gain
    head = f"At eta {then.eta:g} the policy would run {other} instead of {today}"
    if gain.value is None or gain.low is None or gain.high is None:
        return f"{head}; whether that is cheaper is not known: {gain.reason}."
    if gain.high <= 0:
        return f"{head}, which gains nothing at that eta: stay with today's {now.eta:g}."
    return (
        f"{head}; whether that gains anything is not clear yet ({SURE} of a run: between a loss of "
        f"{_share(-gain.low, found)} and a saving of {_share(gain.high, found)})."
    )


def _share(gain: float, found: WhatIf) -> str:
    """Of the cost of a run, at the asked weights, of what would be chosen."""
    return words.share(gain / (found.then.cost.value or math.inf)).text


def _table(found: WhatIf, factors: Factors, gpus: int) -> Table:
    def row(name: str, text: Callable[[Forecast], str]) -> list[str]:
        return [name, text(found.now), text(found.then)]

    def cell(of: Estimate, figure: Callable[[float], Figure]) -> str:
        if of.value is None:
            return f"– ({of.reason})"
        if of.low is None or of.high is None or of.low == of.high:
            return figure(of.value).text
        return f"{figure(of.value).text} ({figure(of.low).text} to {figure(of.high).text})"

    def seen(of: Forecast, value: float | None, figure: Callable[[float], Figure]) -> str:
        if value is None:
            return "– (no run at this size and limit)" if not of.observed.runs else "– (not measured in each)"
        return f"{figure(value).text} (mean of {counted(of.observed.runs, 'run')})"

    rows = [
        row("eta (weight of energy)", lambda p: f"{p.eta:g}"),
        row("Batch size", _size),
        row("Power limit", lambda p: f"– ({p.limit_source})" if p.limit_w is None else words.watts(p.limit_w).text),
        row("Epochs", lambda p: cell(p.epochs, lambda v: words.epochs(round(v, 1)))),
        row("Energy of a run", lambda p: cell(p.energy_j, words.energy)),
        row("… observed", lambda p: seen(p, p.observed.energy_j, words.energy)),
        row("Time of a run", lambda p: cell(p.time_s, words.duration)),
        row("… observed", lambda p: seen(p, p.observed.time_s, words.duration)),
    ]
    for name, figures in (
        ("Money", [factors.money(p.energy_j.value, p.time_s.times(gpus).value) for p in (found.now, found.then)]),
        ("CO₂e", [factors.carbon(p.energy_j.value) for p in (found.now, found.then)]),
    ):
        texts = [figure.text for figure in figures if figure is not None]
        rows += [[name, *texts]] if texts else []
    rows = [each for each in rows if not all(text.startswith("–") for text in each[1:])]
    return Table(
        caption=f"A settled run, today and as asked: believed, in brackets the range that is {SURE}, "
        "and observed at this batch size and limit",
        columns=["", "Today", "As asked"],
        numeric=[False, True, True],
        rows=rows,
    )
