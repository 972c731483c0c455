"""The runs of a month as charges of FinOps FOCUS 1.4 (dataset Cost and Usage), one row a run. Pure.

A run whose cost is not known is no row, and is counted: FOCUS allows no empty cost, and 0 would be a lie.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.printable import cell
from airflow_provider_zeus.reports.dataset import gpu_s_of, runs_of, total
from airflow_provider_zeus.reports.month_spent import DagAbout
from airflow_provider_zeus.reports.months import MEASURED, kind_of
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.units import J_PER_KWH, S_PER_H, counted

PROVIDER = "airflow-provider-zeus"


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What the attempts of one run that one kind of source measured have cost."""

    trials: Sequence[Trial]
    kind: str
    month: tuple[float, float]
    energy_j: float | None
    gpu_s: float
    prices: Prices  # of the hours of the run
    cost: float
    about: DagAbout

    @property
    def quantity(self) -> tuple[float, str]:
        """What is priced: energy with the site's share, the time of all devices, or both, a run."""
        prices = self.prices
        if prices.price_per_kwh is not None and prices.price_per_gpu_hour is not None:
            return 1.0, "Runs"
        if prices.price_per_kwh is None:
            return self.gpu_s / S_PER_H, "Device-Hours"
        return (self.energy_j or 0.0) / J_PER_KWH * (prices.pue or 1.0), "kWh"

    @property
    def ended_s(self) -> float:
        """When its last attempt ended, at least a second after the run began [s since the epoch]."""
        ends = (
            t.opened_at + (t.observation.time_s or 0.0) if t.closed_at is None else t.closed_at for t in self.trials
        )
        return max(math.ceil(max(ends)), math.floor(self.trials[0].opened_at) + 1)


def charges_of(
    trials: Iterable[Trial], month: tuple[float, float], about: Mapping[str, DagAbout], prices: Prices
) -> tuple[list[Charge], list[str]]:
    """(The charges of one job's runs that began in a month, why each other run with attempts in it is none).

    :param month: its beginning and end [s since the epoch].
    :param about: tags and owners by DAG; ``prices``: in force.
    """
    found, left_out = list[Charge](), list[str]()
    for run in runs_of(t for t in trials if month[0] <= t.opened_at < month[1]):
        told = [t for t in run if t.observation.time_s is not None]
        if any(t.state is State.RUNNING for t in run):
            left_out.append("it has not ended")
            continue
        if not told and any(t.state is not State.NOT_NEEDED for t in run):
            left_out.append("it reported nothing")
        for kind in dict.fromkeys(kind_of(t.observation.energy_source) for t in told):
            own = [t for t in told if kind_of(t.observation.energy_source) == kind]
            seen = [t.observation for t in own]
            then, energy_j = prices.at_the_time(seen), total(o.energy_j for o in seen)
            gpu_s = gpu_s_of(seen)
            cost = then.money_of(energy_j, gpu_s)
            if cost is None or not math.isfinite(cost):
                unset = "no price is set: set [zeus] price_per_kwh or price_per_gpu_hour, and currency"
                left_out.append(then.unpriced or ("its energy is not known" if then.priced else unset))
            elif not re.fullmatch("[A-Z]{3}", then.currency):
                left_out.append(f"its currency {then.currency!r} is none of three capital letters (ISO 4217)")
            else:
                figures = {"energy_j": energy_j, "gpu_s": gpu_s, "prices": then, "cost": cost}
                dag = about.get(own[0].origin.dag_id, DagAbout())
                found.append(Charge(trials=own, kind=kind, month=month, about=dag, **figures))  # type: ignore[arg-type]
    return found, left_out


def _time(epoch_s: float) -> str:
    return f"{datetime.fromtimestamp(math.floor(epoch_s), UTC):%Y-%m-%dT%H:%M:%SZ}"


def _tags(charge: Charge) -> dict[str, Any]:
    """The DAG's tags, which have no value, and our own: its owners, and the run."""
    origin = charge.trials[0].origin
    own = {"owner": ", ".join(charge.about.owners), "run": origin.run_id, "task": origin.task_id}
    return dict.fromkeys(charge.about.tags, True) | {f"zeus/{name}": value for name, value in own.items() if value}


def _said(charge: Charge) -> str:
    sizes = dict.fromkeys(t.batch_size for t in charge.trials if t.batch_size is not None)
    with_sizes = f" with batch size {', '.join(map(str, sizes))}" if sizes else ""
    return f"Training of {charge.trials[0].job_id}{with_sizes}, in {counted(len(charge.trials), 'attempt')}"


# Names, and what may be empty, are those of the published specification 1.4. Our own columns begin with x_.
COLUMNS: Mapping[str, Callable[[Charge], Any]] = {
    "BilledCost": lambda _: 0.0,  # we invoice nothing: whoever sells the energy or the host does
    "BillingAccountId": lambda _: PROVIDER,
    "BillingAccountName": lambda _: None,
    "BillingCurrency": lambda c: c.prices.currency,
    "BillingPeriodEnd": lambda c: _time(c.month[1]),
    "BillingPeriodStart": lambda c: _time(c.month[0]),
    "ChargeCategory": lambda _: "Usage",
    "ChargeClass": lambda _: None,
    "ChargeDescription": _said,
    "ChargeFrequency": lambda _: "Usage-Based",
    "ChargePeriodEnd": lambda c: _time(c.ended_s),
    "ChargePeriodStart": lambda c: _time(c.trials[0].opened_at),
    "ContractedCost": lambda c: c.cost,
    "EffectiveCost": lambda c: c.cost,
    "HostProviderName": lambda _: "Not Applicable",  # we do not know whose machines these are
    "InvoiceIssuerName": lambda _: PROVIDER,
    "ListCost": lambda c: c.cost,
    "PricingQuantity": lambda c: c.quantity[0],
    "PricingUnit": lambda c: c.quantity[1],
    "ResourceId": lambda c: c.trials[0].job_id,
    "ResourceName": lambda c: c.trials[0].job_id,
    "ResourceType": lambda _: "Training job",
    "ServiceCategory": lambda _: "AI and Machine Learning",
    "ServiceName": lambda c: "Model training" if c.kind == MEASURED else f"Model training ({c.kind})",
    "ServiceProviderName": lambda _: PROVIDER,
    "ServiceSubcategory": lambda _: "Machine Learning",
    "SubAccountId": lambda c: c.trials[0].origin.dag_id or None,
    "SubAccountName": lambda c: c.trials[0].origin.dag_id or None,
    "Tags": _tags,
    "x_Co2eKg": lambda c: None if (g := c.prices.co2e_g_of(c.energy_j)) is None else g / 1000.0,
    "x_DeviceHours": lambda c: c.gpu_s / S_PER_H,
    "x_EnergyKwh": lambda c: None if c.energy_j is None else c.energy_j / J_PER_KWH,
    "x_EnergyKind": lambda c: c.kind,
}


def as_csv(charges: Iterable[Charge]) -> Iterator[str]:
    """The CSV file, line by line. A null is an empty cell; a number has no exponent."""
    for values in ([*COLUMNS], *([of(charge) for of in COLUMNS.values()] for charge in charges)):
        out = io.StringIO(newline="")
        csv.writer(out).writerow(format(Decimal(repr(v)), "f") if isinstance(v, float) else cell(v) for v in values)
        yield out.getvalue()
