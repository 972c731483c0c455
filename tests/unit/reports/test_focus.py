"""Runs as charges of FOCUS 1.4: its published columns, one row a run, and nothing unknown as 0."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_zeus.model.trial import Origin, State, Trial, TrialKey
from airflow_provider_zeus.reports.focus import COLUMNS, as_csv, charges_of
from airflow_provider_zeus.reports.month_spent import DagAbout
from airflow_provider_zeus.signals.prices import Prices
from tests.strategies import make_trial
from tests.unit.reports.test_savings import JOB

KWH_J = 3.6e6
MONTH = (datetime(2026, 11, 1, tzinfo=UTC).timestamp(), datetime(2026, 12, 1, tzinfo=UTC).timestamp())
EUR = Prices(price_per_kwh=0.3, pue=1.5, g_co2e_per_kwh=400.0, currency="EUR")
ABOUT = {"d": DagAbout(["gpu"], ["ann", "ben"])}

# Dataset Cost and Usage of the specification 1.4: the columns that are mandatory; of each whether it may be null.
MANDATORY = {
    **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), False),
    "BillingAccountId": False,
    "BillingAccountName": True,
    "BillingCurrency": False,
    **dict.fromkeys(("BillingPeriodEnd", "BillingPeriodStart", "ChargePeriodEnd", "ChargePeriodStart"), False),
    "ChargeCategory": False,
    "ChargeClass": True,
    "ChargeDescription": True,
    **dict.fromkeys(("HostProviderName", "InvoiceIssuerName", "ServiceProviderName"), False),
    "PricingQuantity": True,
    "PricingUnit": True,
    "ServiceCategory": False,
    "ServiceName": False,
}
# Its other columns that we fill: recommended, or conditional on resources, sub accounts and tags.
OTHERS = {
    "ChargeFrequency": False,
    "ServiceSubcategory": False,
    "Tags": True,
    "SubAccountId": True,
    "SubAccountName": True,
    "ResourceId": True,
    "ResourceName": True,
    "ResourceType": True,
}
DECIMAL = {"BilledCost", "ContractedCost", "EffectiveCost", "ListCost", "PricingQuantity"}
TIMES = {"BillingPeriodEnd", "BillingPeriodStart", "ChargePeriodEnd", "ChargePeriodStart"}
ALLOWED = {
    "ChargeCategory": {"Usage", "Purchase", "Tax", "Credit", "Adjustment"},
    "ChargeClass": {"Correction"},
    "ChargeFrequency": {"One-Time", "Recurring", "Usage-Based"},
    "ServiceCategory": {"AI and Machine Learning"},  # of the long list, those that we use
    "ServiceSubcategory": {"Machine Learning"},
}


def trial(number: int, run: str = "r1", state: State = State.CONVERGED, **seen: Any) -> Trial:
    figures = {"energy_j": 2 * KWH_J, "time_s": 7200.0, "device_model": "V100", "device_count": 2}
    figures |= {"energy_source": "nvml_counter"}
    made = make_trial(number, 32, state, job=JOB, **{**figures, **seen})
    opened_s = MONTH[0] + 1e5 * number
    origin = Origin(dag_id="d", run_id=run, task_id="train")
    return replace(made, origin=origin, key=TrialKey(f"ti-{number}"), opened_at=opened_s, closed_at=opened_s + 7300.5)


def rows(*trials: Trial, prices: Prices = EUR) -> tuple[list[dict[str, str]], list[str]]:
    charges, left_out = charges_of(trials, MONTH, ABOUT, prices)
    return list(csv.DictReader(as_csv(charges))), left_out


def faults(row: dict[str, str]) -> list[str]:
    """What is wrong with a row by the published columns."""
    known, found = MANDATORY | OTHERS, [f"{name} is missing" for name in MANDATORY if name not in row]
    for name, value in row.items():
        if name not in known:
            found += [] if re.fullmatch("x_[A-Z][A-Za-z0-9]*", name) else [f"{name}: no column of the specification"]
        elif not value:
            found += [] if known[name] else [f"{name} is null"]
        elif name in DECIMAL and not re.fullmatch(r"-?\d+(\.\d+)?", value):
            found.append(f"{name} is no number: {value}")
        elif name in TIMES and not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", value):
            found.append(f"{name} is no time: {value}")
        elif value not in ALLOWED.get(name, {value}):
            found.append(f"{name} is not allowed: {value}")
    if not re.fullmatch("[A-Z]{3}", row["BillingCurrency"]):
        found.append("BillingCurrency is none of ISO 4217")
    if not row["BillingPeriodStart"] <= row["ChargePeriodStart"] < row["ChargePeriodEnd"]:
        found.append("its periods do not follow each other")
    return found


def test_a_run_with_its_tries_is_one_row_of_the_published_columns() -> None:
    given, left_out = rows(trial(1, state=State.FAILED), trial(2), trial(3, run="r2"))
    assert [faults(row) for row in given] == [[], []]
    assert left_out == []
    first = given[0]
    assert float(first["EffectiveCost"]) == pytest.approx(4 * 1.5 * 0.3)
    assert (first["PricingQuantity"], first["PricingUnit"], first["BillingCurrency"]) == ("6.0", "kWh", "EUR")
    assert float(first["x_EnergyKwh"]) == 4.0
    assert float(first["x_DeviceHours"]) == 8.0
    assert float(first["x_Co2eKg"]) == pytest.approx(4 * 1.5 * 0.4)
    assert first["ChargePeriodStart"] == "2026-11-02T03:46:40Z"
    assert (first["BillingPeriodStart"], first["BillingPeriodEnd"]) == ("2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z")
    tags = {"gpu": True, "zeus/owner": "ann, ben", "zeus/run": "r1", "zeus/task": "train"}
    assert json.loads(first["Tags"]) == tags
    assert first["BilledCost"] == "0.0", "nothing is invoiced here"


def test_the_rows_add_up_to_the_month() -> None:
    own = [trial(n, run=f"r{n % 3}", energy_j=n * KWH_J) for n in range(1, 20)]
    given, _ = rows(*own)
    in_month = [t.observation.energy_j or 0.0 for t in own]
    assert math.fsum(float(row["x_EnergyKwh"]) for row in given) == pytest.approx(math.fsum(in_month) / KWH_J)
    assert math.fsum(float(row["EffectiveCost"]) for row in given) == EUR.money_of(math.fsum(in_month), 0.0)


@pytest.mark.parametrize(
    ("seen", "prices", "why"),
    [
        ({"energy_j": None}, EUR, "its energy is not known"),
        ({"energy_j": None, "energy_source": None}, EUR, "its energy is not known"),
        ({}, Prices(), "no price is set: set [zeus] price_per_kwh or price_per_gpu_hour, and currency"),
        ({}, replace(EUR, currency=""), "its currency '' is none of three capital letters (ISO 4217)"),
        ({"time_s": None, "energy_j": None}, EUR, "it reported nothing"),
        ({"state": State.RUNNING}, EUR, "it has not ended"),
        ({"energy_j": math.nan}, EUR, "its energy is not known"),
    ],
)
def test_a_run_whose_cost_is_not_known_is_no_row_and_counted(seen: dict[str, Any], prices: Prices, why: str) -> None:
    given, left_out = rows(trial(1, **seen), prices=prices)
    assert (given, left_out) == ([], [why])


def test_a_run_that_was_not_needed_and_other_months_are_no_row() -> None:
    idle = trial(1, state=State.NOT_NEEDED, time_s=None, energy_j=None)
    before = replace(trial(2, run="r2"), opened_at=MONTH[0] - 1)
    assert rows(idle, before) == ([], [])


def test_kinds_of_sources_are_told_apart() -> None:
    given, _ = rows(trial(1, energy_source="simulated"), trial(2, energy_source="estimate"))
    assert [(row["ServiceName"], row["x_EnergyKind"]) for row in given] == [
        ("Model training (simulated)", "simulated"),
        ("Model training (estimated)", "estimated"),
    ]


def test_the_price_of_the_hours_and_of_devices_counts() -> None:
    hours = {"price_per_kwh": 0.1, "price_currency": "USD"}
    (row,), _ = rows(trial(1, **hours))
    assert (row["BillingCurrency"], float(row["EffectiveCost"])) == ("USD", pytest.approx(2 * 1.5 * 0.1))
    by_time = Prices(price_per_gpu_hour=2.0, currency="EUR")
    (row,), _ = rows(trial(1, energy_j=None, energy_source=None), prices=by_time)
    assert (row["PricingUnit"], row["PricingQuantity"], row["EffectiveCost"]) == ("Device-Hours", "4.0", "8.0")
    assert (row["x_EnergyKwh"], row["x_Co2eKg"]) == ("", "")
    (row,), _ = rows(trial(1), prices=replace(EUR, price_per_gpu_hour=2.0))
    assert (row["PricingUnit"], row["PricingQuantity"]) == ("Runs", "1.0")
    (row,), _ = rows(trial(1, energy_j=1e-6))
    assert "e" not in row["EffectiveCost"], "no exponent"


def test_a_short_run_and_a_hostile_name_are_rows_too() -> None:
    odd = replace(trial(1), job_id="=cmd|'/c calc'!A0\x1b[31m", closed_at=MONTH[0] + 1e5 + timedelta(0).total_seconds())
    (row,), _ = rows(odd)
    assert faults(row) == []
    assert row["ResourceId"].startswith("'=")
    assert "\x1b" not in row["ResourceId"]
    assert tuple(row) == tuple(COLUMNS)


def test_a_run_is_charged_in_the_month_in_which_it_began() -> None:
    first, retry = trial(1, state=State.FAILED), replace(trial(2), opened_at=MONTH[1] + 60.0)
    (charge,), _ = charges_of([first, retry], MONTH, ABOUT, EUR)
    assert len(charge.trials) == 2
    assert charges_of([first, retry], (MONTH[1], MONTH[1] + 1e6), ABOUT, EUR) == ([], [])
