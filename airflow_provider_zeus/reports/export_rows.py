"""The rows of an export, one schema for the command line, :func:`read_log` and the pages: columns, CSV, JSON. Pure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, date, datetime
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.cost import Weights, observed_cost
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import DeviceInfo, Lineage, Observation, Origin, PlannedAttempt, Trial
from airflow_provider_zeus.model.wire import encode
from airflow_provider_zeus.printable import cell, plain_name

FORMAT = 1  # of the JSON document; airflow zeus import reads it
PLANNED_COSTS = ("bound_cost", "max_epoch_cost")  # in joules, or in seconds where time alone is weighed

Row = tuple[dict[str, Any], Trial]


def rows_of(pieces: Iterable[Sequence[Trial]]) -> Iterator[list[Row]]:
    """The rows of the trials of one job, piece by piece, each with its trial; in order of number."""
    device: DeviceInfo | None = None  # of the newest trial that reported one; used for a trial without
    for trials in pieces:
        found = []
        for trial in trials:
            device = trial.observation.device or device
            found.append((row(trial, device), trial))
        yield found


def row(trial: Trial, device: DeviceInfo | None) -> dict[str, Any]:
    """Every field of a trial as a flat dict, units in its keys; ``spec``, ``decision`` and ``reasons`` are nested."""
    weights = weights_of(trial, device)
    unit = None if weights is None else weights.unit.lower()
    planned = asdict(trial.planned)
    costs = {"cost": cost_of(trial)[0]} | {f"planned_{name}": planned.pop(name) for name in PLANNED_COSTS}
    seen = trial.observation.to_dict()
    return {
        "job_id": trial.job_id,
        "trial": trial.number,
        "ti_id": trial.key.ti_id,
        "attempt": trial.key.attempt,
        **{f.name: getattr(trial.origin, f.name) for f in fields(Origin)},
        **{f.name: getattr(trial.lineage, f.name) for f in fields(Lineage)},
        "state": trial.state.value,
        "reason": trial.reason,
        **{f"{name}_{u}": value if u == unit else None for name, value in costs.items() for u in ("j", "s")},
        **{name: value for name, value in seen.items() if name not in ("reasons", "returned")},
        **{f"planned_{name}": value for name, value in planned.items()},
        "asked_after_seq": trial.asked_after_seq,
        "told_seq": trial.told_seq,
        "opened_at_utc": _utc(trial.opened_at),
        "lease_until_utc": _utc(trial.lease_until),
        "lease_s": trial.lease_s,
        "closed_at_utc": _utc(trial.closed_at),
        "spec": dict(trial.spec),
        "decision": encode(trial.decision),
        "reasons": seen["reasons"],
    }


def _utc(epoch_s: float | None) -> str | None:
    return None if epoch_s is None else datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="milliseconds")


def weights_of(trial: Trial, fallback: DeviceInfo | None = None) -> Weights | None:
    """Weights of energy and time of the trial's job on its device; None where its spec cannot be read.

    :param fallback: the device of a trial that reported none.
    """
    try:
        return Weights.of(trial.job, trial.observation.device or fallback)
    except JobSpecError:  # another version wrote it
        return None


def cost_of(trial: Trial) -> tuple[float | None, str | None]:
    """Cost of a trial and its unit: "J", or "s" where time alone is weighed; (None, None) where it is not known."""
    weights = weights_of(trial)
    cost = None if weights is None else observed_cost(trial.observation, weights)
    return (None, None) if weights is None or cost is None else (cost, weights.unit)


def exact(trial: Trial) -> dict[str, Any]:
    """What an import needs and no column has: exact times, and the attempt as it was planned."""
    times = {name: getattr(trial, name) for name in ("opened_at", "lease_until", "closed_at")}
    return {**times, "planned": encode(trial.planned)}


def csv_of(pieces: Iterable[Sequence[Row]]) -> Iterator[str]:
    """CSV, a text for each piece, the first with the names of the columns. A missing value is an empty cell.

    A text is in one line; one that a spreadsheet would take for a formula has an apostrophe before it.
    """
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, COLUMNS)
    writer.writeheader()
    for rows in pieces:
        for each, _ in rows:
            writer.writerow({name: cell(value) for name, value in flat(each).items()})
        yield out.getvalue()
        out.seek(0)
        out.truncate()
    if text := out.getvalue():  # there was no piece
        yield text


def json_of(
    entries: Iterable[Sequence[Mapping[str, Any]]],
    profiles: Iterable[Mapping[str, Any]] = (),
    head: Mapping[str, Any] | None = None,
) -> Iterator[str]:
    """One document in ASCII, a text for each piece of entries, a line for each entry and profile.

    :param head: what stands before the trials, besides the format.
    """
    opening = json.dumps({"format": FORMAT, **(head or {})}, allow_nan=False)[:-1] + ', "trials": [\n'
    before = opening
    for piece in filter(None, entries):
        yield before + ",\n".join(json.dumps(entry, allow_nan=False) for entry in piece)
        before = ",\n"
    samples = ",\n".join(json.dumps(each, allow_nan=False) for each in profiles)
    yield f'{opening if before is opening else ""}\n], "profiles": [\n{samples}\n]}}\n'


def file_name(job_id: str, day: date, kind: str) -> str:
    """``zeus-<job>-<day>.csv``, of characters that are valid on every system."""
    return f"zeus-{plain_name(job_id)}-{day:%Y-%m-%d}.{kind}"


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a row; the job's fields are ``spec_...``."""
    return {name: row[name] for name in COLUMNS if name in row} | {
        f"spec_{name}": row["spec"].get(name) for name in _SPEC
    }


_SPEC = tuple(f.name for f in fields(ZeusJob))
COLUMNS = (
    "job_id",
    "trial",
    "ti_id",
    "attempt",
    *(f.name for f in fields(Origin)),
    *(f.name for f in fields(Lineage)),
    "state",
    "reason",
    *(f"{name}_{u}" for name in ("cost", *(f"planned_{n}" for n in PLANNED_COSTS)) for u in ("j", "s")),
    *(f.name for f in fields(Observation) if f.name not in ("reasons", "returned")),
    *(f"planned_{f.name}" for f in fields(PlannedAttempt) if f.name not in PLANNED_COSTS),
    "asked_after_seq",
    "told_seq",
    "opened_at_utc",
    "lease_until_utc",
    "lease_s",
    "closed_at_utc",
    *(f"spec_{name}" for name in _SPEC),
    "decision",
    "reasons",
)
