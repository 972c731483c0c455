"""The columns of an export for people, one schema for the command line and the pages. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.cost import Weights, observed_cost
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.model.trial_fields import FIELDS
from airflow_provider_zeus.printable import cell, plain_name
from airflow_provider_zeus.signals.prices import Prices

COLUMNS = (
    "job_id",
    "run_id",
    "trial",
    "opened_at_utc",
    "data_slice",
    "state",
    "batch_size",
    "power_limit_w",
    "epochs",
    "metric",
    "energy_j",
    "time_s",
    "energy_source",
    "device_model",
    "device_count",
    "money",
    "currency",
    "co2e_g",
    "why",
    "reason",
    "missing",
)

_STORED = [field for field in FIELDS if field.name in COLUMNS]


def row(trial: Trial, prices: Prices) -> dict[str, Any]:
    """The columns of a trial. A figure that is not known is None, and ``missing`` says why.

    :param prices: in force; the factors of the hours in which the trial ran come first.
    """
    o = trial.observation
    prices = prices.at_the_time([o])
    energy_j, gpu_s = o.spent
    money = None
    currency = None
    # an amount without a currency has no unit
    if prices.currency:
        money = prices.money_of(energy_j, None if o.time_s is None else gpu_s)
    if money is not None:
        currency = prices.currency
    opened_at = datetime.fromtimestamp(trial.opened_at, UTC)
    missing = "; ".join(f"{name}: {why}" for name, why in o.reasons.items())
    values = {field.name: field.of(trial) for field in _STORED} | {
        "trial": trial.number,
        "opened_at_utc": opened_at.isoformat(timespec="milliseconds"),
        "state": trial.state.text,
        "money": money,
        "currency": currency,
        "co2e_g": prices.co2e_g_of(energy_j),
        "why": trial.planned.why,
        "missing": missing or None,
    }
    return {name: values[name] for name in COLUMNS}


def cost_of(trial: Trial) -> tuple[float | None, str | None]:
    """Cost of a trial and its unit: "J", or "s" if time alone is weighed; (None, None) if it is not
    known.
    """
    try:
        weights = Weights.of(trial.job, trial.observation.device)
    except JobSpecError:  # a job of another version may not be read here
        return None, None
    cost = observed_cost(trial.observation, weights)
    if cost is None:
        return None, None
    return cost, weights.unit


def csv_of(pieces: Iterable[Sequence[Trial]], prices: Prices) -> Iterator[str]:
    """CSV, a text for each piece, the first with the names of the columns.

    A missing value is an empty cell.

    A text is in one line; one that a spreadsheet would take for a formula has an apostrophe before
    it.
    """
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, COLUMNS)
    writer.writeheader()
    for trials in pieces:
        for trial in trials:
            writer.writerow({name: cell(value) for name, value in row(trial, prices).items()})
        yield out.getvalue()
        # one buffer for all pieces, so the memory does not grow with the log
        out.seek(0)
        out.truncate()
    header = out.getvalue()
    if header:  # a file without rows still has a header
        yield header


def file_name(job_id: str, day: date) -> str:
    """``zeus-<job>-<day>.csv``, of characters that are valid on every system."""
    return f"zeus-{plain_name(job_id)}-{day:%Y-%m-%d}.csv"
