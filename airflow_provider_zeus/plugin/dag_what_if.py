"""What-if: other weights and prices over the same log, in words and figures. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from airflow_provider_zeus.optimizer.cost import Weights
from airflow_provider_zeus.optimizer.estimate import Estimate
from airflow_provider_zeus.optimizer.pareto import pareto
from airflow_provider_zeus.optimizer.what_if import Prospect, WhatIf, what_if
from airflow_provider_zeus.plugin import words
from airflow_provider_zeus.plugin.dag_known import Known
from airflow_provider_zeus.plugin.dag_models import Asked, WhatIfAnswer
from airflow_provider_zeus.plugin.figures_dag_front import front_chart
from airflow_provider_zeus.plugin.models import Figure, Table
from airflow_provider_zeus.plugin.prices import Factors

MOST_PRICE, MOST_CARBON = 1e6, 1e5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the reader moved; None: as it is today."""

    eta: float | None = None
    price_per_kwh: float | None = None
    price_per_gpu_hour: float | None = None
    g_co2e_per_kwh: float | None = None


def answered(known: Known, wish: Wish, configured: Factors) -> WhatIfAnswer:
    """Today's choice beside that under the wish, each with what a settled run of it spends."""
    log = known.log
    found = what_if(log, log.job, eta=wish.eta, profiles=known.profiles)
    moved = {name: value for name in _PRICES if (value := getattr(wish, name)) is not None}
    factors = replace(configured, **moved)
    gpus = log.where[1] if log.where else 1
    weights = Weights.of(log.job if wish.eta is None else replace(log.job, eta=wish.eta), log.device)
    return WhatIfAnswer(
        text=said(found, factors, gpus),
        asked=_asked(found.then.eta if wish.eta is None else wish.eta, factors),
        table=_table(found, factors, gpus),
        front=words.badged(front_chart(pareto(log, log.job, profiles=known.profiles), weights), known.source),
        whose=known.whose,
        source=known.source,
    )


_PRICES = ("price_per_kwh", "price_per_gpu_hour", "g_co2e_per_kwh")


def _asked(eta: float, factors: Factors) -> list[Asked]:
    money = f" [{factors.currency}]" if factors.currency else ""
    labels = {
        "eta": ("eta: weight of energy against time", eta, 1.0, 0.05),
        "price_per_kwh": (f"Price per kWh{money}", factors.price_per_kwh, MOST_PRICE, 0.01),
        "price_per_gpu_hour": (f"Price per GPU-hour{money}", factors.price_per_gpu_hour, MOST_PRICE, 0.1),
        "g_co2e_per_kwh": ("gCO₂e per kWh", factors.g_co2e_per_kwh, MOST_CARBON, 10.0),
    }
    return [
        Asked(name=name, label=label, value=value, most=most, step=step)
        for name, (label, value, most, step) in labels.items()
    ]


def said(found: WhatIf, factors: Factors, gpus: int) -> str:
    """What would be chosen and spent, in sentences."""
    now, then = found.now, found.then
    if now.unit == "s":
        return f"Nothing measures energy there, so that time alone counts and eta changes nothing: {_choice(now)}."
    if now.eta == then.eta:
        head = f"At today's eta {now.eta:g} the log says: {_choice(then)}."
    elif _same(now, then):
        head = f"At eta {then.eta:g} the log says the same as at today's {now.eta:g}: {_choice(then)}."
    else:
        head = f"At eta {then.eta:g} the log says {_choice(then)}; at today's {now.eta:g} it says {_choice(now)}."
    spent = [f"{_text(then.energy_j, words.energy)} and {_text(then.time_s, words.duration)}"]
    money, carbon = _money(then, factors, gpus), factors.carbon(then.energy_j.value)
    spent += [f"{money.text} of money"] if money is not None and money.value is not None else []
    spent += [carbon.text] if carbon is not None and carbon.value is not None else []
    return f"{head} A settled run is then expected to take {', '.join(spent)}{_against(now, then)}."


def _same(now: Prospect, then: Prospect) -> bool:
    return (now.batch_size, now.limit_w) == (then.batch_size, then.limit_w)


def _against(now: Prospect, then: Prospect) -> str:
    """`` (energy −12 % against today's choice)``; empty where the choice is today's."""
    if _same(now, then):
        return ""
    pairs = (("energy", now.energy_j.value, then.energy_j.value), ("time", now.time_s.value, then.time_s.value))
    changes = [f"{name} {100 * (b / a - 1):+.0f} %".replace("-", "−") for name, a, b in pairs if a and b]
    return f" ({', '.join(changes)} against today's choice)" if changes else ""


def _choice(p: Prospect) -> str:
    limit = "" if p.limit_w is None else f" at {words.watts(p.limit_w).text}"
    return f"batch size {p.batch_size}{limit}"


def _text(of: Estimate, say: Callable[[float], Figure]) -> str:
    return "an unknown amount" if of.value is None else say(of.value).text


def _money(p: Prospect, factors: Factors, gpus: int) -> Figure | None:
    return factors.money(p.energy_j.value, p.time_s.value, gpus)


def _table(found: WhatIf, factors: Factors, gpus: int) -> Table:
    pair = (found.now, found.then)

    def row(name: str, text: Callable[[Prospect], str]) -> list[str]:
        return [name, *(text(p) for p in pair)]

    def cell(of: Estimate, say: Callable[[float], Figure]) -> str:
        if of.value is None:
            return f"– ({of.reason})"
        if of.low is None or of.high is None or of.low == of.high:
            return say(of.value).text
        return f"{say(of.value).text} ({say(of.low).text} to {say(of.high).text})"

    def converted(figure: Figure | None) -> str:
        return "–" if figure is None else figure.text

    rows = [
        row("eta", lambda p: f"{p.eta:g}"),
        row("Batch size", lambda p: str(p.batch_size)),
        row("Power limit", lambda p: f"– ({p.limit_source})" if p.limit_w is None else words.watts(p.limit_w).text),
        row("Epochs", lambda p: cell(p.epochs, lambda v: words.epochs(round(v, 1)))),
        row("Energy of a run", lambda p: cell(p.energy_j, words.energy)),
        row("Time of a run", lambda p: cell(p.time_s, words.duration)),
        row("Cost of a run at its eta", lambda p: cell(p.cost, lambda v: words.cost(v, p.unit))),
    ]
    if factors.priced:
        rows.append(row("Money", lambda p: converted(_money(p, factors, gpus))))
    if factors.g_co2e_per_kwh is not None:
        rows.append(row("CO₂e", lambda p: converted(factors.carbon(p.energy_j.value))))
    return Table(
        caption="A settled run, today and as asked; in brackets the 90 % interval of what is expected",
        columns=["", "Today", "As asked"],
        numeric=[False, True, True],
        rows=rows,
    )
