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


def row(trial: Trial, prices: Prices) -> dict[str, Any]:
    """The columns of a trial. A figure that is not known is None, and ``missing`` says why.

    :param prices: in force; the factors of the hours in which the trial ran come first.
    """
    seen = trial.observation
    priced = prices.at_the_time([seen])
    energy_j, gpu_s = seen.spent
    money = priced.money_of(energy_j, None if seen.time_s is None else gpu_s) if priced.currency else None
    return {
        "job_id": trial.job_id,
        "run_id": trial.origin.run_id,
        "trial": trial.number,
        "opened_at_utc": datetime.fromtimestamp(trial.opened_at, UTC).isoformat(timespec="milliseconds"),
        "data_slice": trial.origin.data_slice,
        "state": trial.state.text,
        "batch_size": trial.batch_size,
        "power_limit_w": seen.power_limit_w,
        "epochs": seen.epochs,
        "metric": seen.metric,
        "energy_j": energy_j,
        "time_s": seen.time_s,
        "energy_source": seen.energy_source,
        "device_model": seen.device_model,
        "device_count": seen.device_count,
        "money": money,
        "currency": None if money is None else priced.currency,
        "co2e_g": priced.co2e_g_of(energy_j),
        "why": trial.planned.why,
        "reason": trial.reason,
        "missing": "; ".join(f"{name}: {why}" for name, why in seen.reasons.items()) or None,
    }


def cost_of(trial: Trial) -> tuple[float | None, str | None]:
    """Cost of a trial and its unit: "J", or "s" where time alone is weighed; (None, None) where it is not known."""
    try:
        weights = Weights.of(trial.job, trial.observation.device)
    except JobSpecError:  # another version wrote it
        return None, None
    cost = observed_cost(trial.observation, weights)
    return (None, None) if cost is None else (cost, weights.unit)


def csv_of(pieces: Iterable[Sequence[Trial]], prices: Prices) -> Iterator[str]:
    """CSV, a text for each piece, the first with the names of the columns. A missing value is an empty cell.

    A text is in one line; one that a spreadsheet would take for a formula has an apostrophe before it.
    """
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, COLUMNS)
    writer.writeheader()
    for trials in pieces:
        for trial in trials:
            writer.writerow({name: cell(value) for name, value in row(trial, prices).items()})
        yield out.getvalue()
        out.seek(0)
        out.truncate()
    if text := out.getvalue():  # there was no piece
        yield text


def file_name(job_id: str, day: date) -> str:
    """``zeus-<job>-<day>.csv``, of characters that are valid on every system."""
    return f"zeus-{plain_name(job_id)}-{day:%Y-%m-%d}.csv"
