"""``airflow zeus export``: writes every field of every trial as CSV or JSON."""

from __future__ import annotations

import csv
import errno
import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Any, TextIO

from airflow_provider_zeus.cli.figures import cost_of, device_of, weights_of
from airflow_provider_zeus.cli.shell import command, known, opened, say
from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import DeviceInfo, Observation, Origin, PlannedAttempt, Trial
from airflow_provider_zeus.model.wire import encode
from airflow_provider_zeus.printable import cell
from airflow_provider_zeus.store.base import Store, trial_label
from airflow_provider_zeus.store.rows import points_to_lists

FORMAT = 1  # of the JSON document; airflow zeus import reads it
_COSTS = ("bound_cost", "max_epoch_cost")  # of a planned attempt: in joules, or in seconds where time alone is weighed


@command
def export(args: Namespace) -> None:
    """Write the trials of one job or of all."""
    with opened(args) as store:
        jobs = store.jobs() if args.job is None else [known(store, args.job)]
        rows = [*_rows_and_trials(store, jobs)]  # read them all before the file is opened
        left_out = [trial_label(damage) for damage in store.unreadable]
        profiles = [] if args.format == "csv" else [*_profiles_of(store, jobs)]
        with _target(args.output) as file:
            if args.format == "csv":
                _csv(rows, file)
            else:
                write_json(store, rows, profiles, file)
    if args.output:
        say(f"{len(rows)} trial{'' if len(rows) == 1 else 's'} written to {args.output}.")
    if left_out:
        say(f"Left out, since they cannot be read: {', '.join(left_out)}. See 'airflow zeus doctor'.", file=sys.stderr)


@contextmanager
def _target(path: str | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        return
    try:
        with open(path, "w", encoding="utf-8", newline="", opener=_private) as file:
            yield file
    except OSError as error:
        why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise StoreError(f"{path!r} cannot be written ({why}): name another file with --output.") from None


def _private(path: str, flags: int) -> int:
    """Open a file that only this user may read where it is new. A link is refused: it could lead to another file."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def rows_of(store: Store, jobs: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Every trial of the jobs, as :func:`row` has it."""
    return (each for each, _ in _rows_and_trials(store, jobs))


def _rows_and_trials(store: Store, jobs: Iterable[str]) -> Iterator[tuple[dict[str, Any], Trial]]:
    for job_id in jobs:
        device: DeviceInfo | None = None  # of the newest trial that reported one; used for a trial without
        for trial in store.trials(job_id):
            device = device_of(trial) or device
            yield row(trial, device), trial


def row(trial: Trial, device: DeviceInfo | None) -> dict[str, Any]:
    """Every field of a trial as a flat dict, units in its keys; ``spec``, ``decision`` and ``reasons`` are nested."""
    weights = weights_of(trial, device)
    unit = None if weights is None else "s" if weights.time_alone else "j"
    planned = asdict(trial.planned)
    costs = {"cost": cost_of(trial)[0]} | {f"planned_{name}": planned.pop(name) for name in _COSTS}
    seen = trial.observation.to_dict()
    return {
        "job_id": trial.job_id,
        "trial": trial.number,
        "ti_id": trial.key.ti_id,
        "attempt": trial.key.attempt,
        **{f.name: getattr(trial.origin, f.name) for f in fields(Origin)},
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
        "decision": trial.decision.to_dict(),
        "reasons": seen["reasons"],
    }


def _utc(epoch_s: float | None) -> str | None:
    return None if epoch_s is None else datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="milliseconds")


def _more(store: Store, trial: Trial) -> dict[str, Any]:
    """What an import needs and no column has: exact times, the attempt as it was planned, power over time."""
    exact = {name: getattr(trial, name) for name in ("opened_at", "lease_until", "closed_at")}
    returned, planned = trial.observation.returned, encode(trial.planned)
    return {**exact, "planned": planned, "returned": returned, "points": points_to_lists(store.points(trial.key))}


def _profiles_of(store: Store, jobs: Iterable[str]) -> Iterator[dict[str, Any]]:
    for job_id in jobs:
        for (model, count, source), version, samples in store.profiles(job_id):
            where = {"device_model": model, "device_count": count, "energy_source": source}
            yield {"job_id": job_id, **where, "job_version": version, "samples": encode(list(samples))}


def write_json(
    store: Store,
    rows: Iterable[tuple[Mapping[str, Any], Trial]],
    profiles: Sequence[Mapping[str, Any]],
    file: TextIO,
) -> None:
    """Write one document in ASCII, a line per trial and profile. Power over time is read trial by trial."""
    file.write(f'{{"format": {FORMAT}, "trials": [')
    for i, (each, trial) in enumerate(rows):
        line = json.dumps({**each, **_more(store, trial)}, allow_nan=False)
        file.write(f"{',' * (i > 0)}\n{line}")
    file.write('\n], "profiles": [')
    file.write(",".join("\n" + json.dumps(each, allow_nan=False) for each in profiles) + "\n]}\n")


def _csv(rows: Iterable[tuple[Mapping[str, Any], Trial]], file: TextIO) -> None:
    """Write CSV. A missing value is an empty cell."""
    writer = csv.DictWriter(file, COLUMNS)
    writer.writeheader()
    for each, _ in rows:
        writer.writerow({name: cell(value) for name, value in flat(each).items()})


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
    "state",
    "reason",
    *(f"{name}_{u}" for name in ("cost", *(f"planned_{n}" for n in _COSTS)) for u in ("j", "s")),
    *(f.name for f in fields(Observation) if f.name not in ("reasons", "returned")),
    *(f"planned_{f.name}" for f in fields(PlannedAttempt) if f.name not in _COSTS),
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
