"""The trials of an export, checked: from the entries of a file to histories. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from functools import cache
from types import NoneType
from typing import Any, get_args, get_type_hints

from airflow_provider_zeus.cli.read_file import Entry, refuse
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import fits_index
from airflow_provider_zeus.model.size_bounds import MOST_SAMPLES, MOST_TEXT, truncated
from airflow_provider_zeus.model.trial import (
    Lineage,
    Observation,
    Origin,
    PlannedAttempt,
    PowerPoint,
    ProfileSample,
    State,
    Trial,
)
from airflow_provider_zeus.model.wire import MOST_NUMBER, decode
from airflow_provider_zeus.printable import text_of
from airflow_provider_zeus.reports.export_rows import PLANNED_COSTS
from airflow_provider_zeus.store.base import History, Profile, Report
from airflow_provider_zeus.store.rows import DAMAGE, is_known, points_from_lists, trial_from_dict
from airflow_provider_zeus.store.rules import finite, merged

AGAIN = "Correct it, or write the file again with 'airflow zeus export'"

Read = tuple[Trial, Sequence[PowerPoint]]


def histories_of(trials: Iterable[tuple[str, Read]], profiles: Iterable[Entry] = ()) -> tuple[list[History], int]:
    """The histories of the jobs, and how many open trials were left out.

    :param trials: each with its place in the file.

    Raises JobSpecError: two trials with one key, or with one number of a job.
    """
    found: dict[str, list[Read]] = {}
    keys: dict[object, str] = {}
    still_open = 0
    for place, (trial, points) in trials:
        for name, value in (("ti_id and attempt", trial.key), ("job_id and trial", (trial.job_id, trial.number))):
            if value in keys:
                refuse(place, name, str(value), f"stands in {keys[value]} too", "Remove one of them")
            keys[value] = place
        is_open = trial.state is State.RUNNING or trial.told_seq is None
        still_open += is_open
        found.setdefault(trial.job_id, [])
        if not is_open:
            found[trial.job_id].append((trial, points))
    measured: dict[str, list[Profile]] = {}
    for place, entry in profiles:
        job_id, profile = _profile(place, entry)
        if job_id not in found:
            refuse(place, "job_id", job_id, "no trial of this job is in the file", AGAIN)
        measured.setdefault(job_id, []).append(profile)
    return [
        History(
            job_id=job_id,
            trials=[t for t, _ in reads],
            points={t.key: points for t, points in reads if points},
            profiles=measured.get(job_id, ()),
        )
        for job_id, reads in found.items()
        if reads
    ], still_open


def of_json(place: str, entry: Mapping[str, Any]) -> Read:
    """The trial of an entry of a JSON export. Raises JobSpecError."""
    trial = _trial(place, {**entry, "number": entry.get("trial")})
    lists = entry.get("points", [])
    points = points_from_lists(lists)
    if not isinstance(lists, list) or len(points) != len(lists):
        refuse(place, "points", str(lists), "no power over time", AGAIN)
    kept = finite(Report(observation=Observation(), points=points)).points
    if list(kept) != points:
        refuse(place, "points", str(lists), "more than 500, or a value that nothing measures", AGAIN)
    return trial, points


def of_csv(place: str, cells: Mapping[str, str]) -> Read:
    """The trial of a line of a CSV export. Raises JobSpecError."""
    row: dict[str, Any] = {"number": _read(place, "trial", cells["trial"], int)}
    row |= {name: _text(cells[name]) for name in ("job_id", "ti_id", "state", "reason")}
    row |= {name: _read(place, name, cells[name], int) for name in ("attempt", "asked_after_seq", "told_seq")}
    row["lease_s"] = _read(place, "lease_s", cells["lease_s"], float)
    for name in ("opened_at", "lease_until", "closed_at"):
        row[name] = _read(place, f"{name}_utc", cells[f"{name}_utc"], _seconds)
    row |= dict.fromkeys(("dag_id", "run_id", "task_id"), "")  # as an empty cell
    row |= _typed(place, Origin, cells) | _typed(place, Lineage, cells) | _typed(place, Observation, cells)
    row |= {name: _read(place, name, cells[name], json.loads) for name in ("decision", "reasons")}
    row["planned"] = _planned(place, cells, row["decision"])
    spec = {f.name: _text(cells[f"spec_{f.name}"]) for f in fields(ZeusJob)}
    try:
        row["spec"] = ZeusJob.from_dict({name: value for name, value in spec.items() if value is not None}).to_dict()
    except JobSpecError as error:
        refuse(place, "spec_...", str(error), "no job that this version can read", AGAIN)
    return _trial(place, {name: value for name, value in row.items() if value is not None}), ()


def _planned(place: str, cells: Mapping[str, str], decision: Any) -> dict[str, Any]:
    """The attempt as the decision has it, with exact texts and bounds; of a pruned trial as the cells have it."""
    planned = _typed(place, PlannedAttempt, cells, "planned_", PLANNED_COSTS)
    for name in PLANNED_COSTS:
        known = [_read(place, f"planned_{name}_{u}", cells[f"planned_{name}_{u}"], float) for u in ("j", "s")]
        planned[name] = next((value for value in known if value is not None), None)
    exact = decision if isinstance(decision, dict) else {}
    attempts = exact.get("attempts")
    candidates = [*(attempts if isinstance(attempts, list) else ()), exact.get("stand_in")]
    named = ("batch_size", "phase")
    found = [a for a in candidates if isinstance(a, dict) and all(a.get(name) == planned.get(name) for name in named)]
    return found[0] if found else planned


def _trial(place: str, row: Mapping[str, Any]) -> Trial:
    """The trial of a row, with every value that a decision or a page computes with checked. Raises JobSpecError."""
    try:
        trial = trial_from_dict(row)
        trial.job  # noqa: B018 - raises where this version cannot read it
    except (*DAMAGE, JobSpecError) as error:
        refuse(place, "entry", f"{type(error).__name__}: {error}"[:200], "cannot be read", AGAIN)
    if not is_known(trial):
        name = "state" if trial.state not in set(State) else "phase"
        refuse(place, name, str(row.get(name)), "not known to this version", "Upgrade airflow-provider-zeus here")
    _check_sizes(place, trial)
    stored = merged(Observation(), trial.observation)
    for f in fields(Observation):
        value = getattr(trial.observation, f.name)
        if f.name != "reasons" and getattr(stored, f.name) != value:
            refuse(place, f.name, value, stored.reasons.get(f.name, "too long"), AGAIN)
    return replace(trial, observation=stored)


def _check_sizes(place: str, trial: Trial) -> None:
    for name, value in (("number", trial.number), ("told_seq", trial.told_seq)):
        if value == 0:
            refuse(place, name, value, "the first one is 1", AGAIN)
    if trial.batch_size is not None and trial.batch_size > MOST_NUMBER:
        refuse(place, "batch_size", trial.batch_size, f"above {MOST_NUMBER}", AGAIN)
    texts = {f.name: getattr(trial.origin, f.name) for f in fields(Origin)}
    for name, text in {**texts, "job_id": trial.job_id, "ti_id": trial.key.ti_id, "reason": trial.reason}.items():
        if isinstance(text, str) and truncated(text) != text:
            refuse(place, name, text, f"longer than {MOST_TEXT} characters, or no text that can be stored", AGAIN)
    if not fits_index(trial.job_id):
        refuse(
            place,
            "job_id",
            trial.job_id,
            "longer than 1000 bytes of UTF-8",
            "Rename it there ('airflow zeus jobs rename') and export it again",
        )
    if not trial.job_id or not trial.key.ti_id or trial.key.attempt < 1:
        refuse(place, "job_id, ti_id, attempt", str((trial.job_id, trial.key)), "no name of a trial", AGAIN)


def _profile(place: str, entry: Mapping[str, Any]) -> tuple[str, Profile]:
    model, count, source, job_id, version = (
        entry.get(name) for name in ("device_model", "device_count", "energy_source", "job_id", "job_version")
    )
    texts = [text for text in (job_id, model, version, source) if text is not None]
    plain = all(isinstance(text, str) and truncated(text) == text for text in texts) and len(texts) >= 3
    if not plain or not isinstance(count, int) or not 0 < count < 10**6:
        refuse(place, "device", str((model, count, source, version)), "no device", AGAIN)
    try:
        samples = [decode(ProfileSample, each) for each in entry["samples"]]
    except DAMAGE as error:
        refuse(place, "samples", str(error), "cannot be read", AGAIN)
    usable = list(finite(Report(observation=Observation(), profile=samples)).profile)
    if usable != samples or any(s.batch_size > MOST_NUMBER or s.is_mark for s in samples):
        refuse(place, "samples", str(entry["samples"]), f"a value that nothing measures, or over {MOST_SAMPLES}", AGAIN)
    return str(job_id), ((str(model), count, source), str(version), samples)


@cache
def _readers(cls: type, left_out: tuple[str, ...]) -> dict[str, Callable[[str], Any]]:
    """What reads the cell of each field."""
    hints = get_type_hints(cls)
    found: dict[str, Callable[[str], Any]] = {}
    for f in fields(cls):
        if f.name not in left_out:
            kinds = [kind for kind in get_args(hints[f.name]) or (hints[f.name],) if kind is not NoneType]
            found[f.name] = _CELLS.get(kinds[0], _nested)
    return found


def _typed(
    place: str,
    cls: type,
    cells: Mapping[str, str],
    prefix: str = "",
    left_out: tuple[str, ...] = ("reasons", "returned"),
) -> dict[str, Any]:
    """The values of a class, each from its column."""
    readers = _readers(cls, left_out)
    found = {name: _read(place, prefix + name, cells[prefix + name], read) for name, read in readers.items()}
    return {name: value for name, value in found.items() if value is not None}


def _read(place: str, column: str, cell: str, read: Callable[[str], Any]) -> Any:
    """The value of a cell; None where it is empty."""
    try:
        return None if cell == "" else read(cell)
    except (ValueError, RecursionError) as error:
        refuse(place, column, cell, f"cannot be read ({error})", AGAIN)


def _text(cell: str) -> str | None:
    """A text without the apostrophes that keep a spreadsheet from running it."""
    return text_of(cell) or None


def _nested(cell: str) -> Any:
    return json.loads(cell) if cell[:1] in "[{" else _text(cell)


def _flag(cell: str) -> bool:
    flags = {"true": True, "false": False}
    if cell.lower() not in flags:
        raise ValueError("neither true nor false")
    return flags[cell.lower()]


def _seconds(cell: str) -> float:
    return datetime.fromisoformat(cell).timestamp()


_CELLS: dict[object, Callable[[str], Any]] = {int: int, float: float, bool: _flag, str: _text}
