"""The lines of a JSON export: made of the parts of a log's history, and read again with every value checked. Pure.

Each line is an object with one member: ``format``, then for each job ``job``, its ``profile`` lines and a ``run`` line
for each of its runs, and ``end``. What is read is hostile input: a value that cannot be used is named with its line and
a remedy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NoReturn

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.event import Event
from airflow_provider_zeus.model.job import job_fields
from airflow_provider_zeus.model.job_checks import fits_index
from airflow_provider_zeus.model.size_bounds import MOST_SAMPLES, MOST_TEXT, truncated
from airflow_provider_zeus.model.trial import Observation, Origin, PowerPoint, ProfileSample, State, Trial
from airflow_provider_zeus.model.wire import MOST_NUMBER, decode, encode, refuse_constant
from airflow_provider_zeus.store.base import HistoryPart, JobHead, JobProfile, Report, RunTrials
from airflow_provider_zeus.store.rows import (
    DAMAGE,
    is_known,
    points_from_lists,
    points_to_lists,
    to_row,
    trial_from_dict,
)
from airflow_provider_zeus.store.rules import finite, merged

FORMAT = 1
MOST_LINE = 4 * 1024 * 1024  # bytes: of a few trials with every text as long as it may be
AGAIN = "Correct it, or write the file again with 'airflow zeus export --format json'"
MOST_FIELDS = 20  # names that are shown


@dataclass(slots=True)
class Skipped:
    """What an import leaves out of a file."""

    still_open: int = 0  # trials
    fields: set[str] = field(default_factory=set)  # of jobs, that this version does not know: the first 20

    def note_field(self, name: str) -> None:
        """Remember the name of a job's field."""
        if len(self.fields) < MOST_FIELDS:
            self.fields.add(name[:100])


def line_of(kind: str, value: Any) -> str:
    """A line of the file, in ASCII."""
    return json.dumps({kind: value}, allow_nan=False) + "\n"


def line_of_part(part: HistoryPart) -> str:
    """The line of a part of a job's history."""
    if isinstance(part, JobHead):
        return line_of("job", encode(part))
    if isinstance(part, JobProfile):
        model, count, source = part.where
        device = {"device_model": model, "device_count": count, "energy_source": source}
        samples = encode(part.samples)
        return line_of(
            "profile", {"job_id": part.job_id, **device, "job_version": part.job_version, "samples": samples}
        )
    trials = [
        to_row(trial) | {"points": points_to_lists(points)}
        for trial, points in zip(part.trials, part.points, strict=True)
    ]
    return line_of("run", {"job_id": part.job_id, "trials": trials})


def parts_of(lines: Iterable[bytes], skipped: Skipped) -> Iterator[HistoryPart]:
    """The parts of the history that a file holds, each checked when it is asked for.

    :param skipped: gets what is left out.

    Raises JobSpecError: a value cannot be used, the file is of another format, or it ends too early.
    """
    job_id, trials, ended = "", 0, False
    for number, line in enumerate(lines, 1):
        place = f"line {number}"
        kind, value = _member(place, line)
        if ended:
            refuse(place, "line", kind, "the file has ended before it", AGAIN)
        if number == 1:
            _check_format(place, kind, value)
        elif kind == "end":
            _check_end(place, value, trials)
            ended = True
        elif kind == "job":
            head = _head(place, value, after=job_id)
            job_id = head.job_id
            yield head
        elif job_id != _field(place, value, "job_id"):
            refuse(place, "job_id", value["job_id"], "its job has no line before it", AGAIN)
        elif kind == "profile":
            yield _profile(place, value)
        elif kind == "run":
            run = _run(place, value, skipped)
            trials += len(value["trials"])
            if run.trials:
                yield run
        else:
            refuse(place, "line", kind, "not known to this version", "Upgrade airflow-provider-zeus here")
    if not ended:
        raise JobSpecError.of("FILE", None, "it ends too early", "Write it again with 'airflow zeus export'")


def refuse(place: str, column: str, value: object, problem: str, remedy: str) -> NoReturn:
    """Raise the error of a value in the file."""
    shown = value if value is None or isinstance(value, int | float) else str(value)[:80]
    raise JobSpecError.of(f"{place}, {column}", shown, problem, remedy)


def _member(place: str, line: bytes) -> tuple[str, Any]:
    """Name and value of the one member of a line's object."""
    if len(line) > MOST_LINE:
        refuse(place, "line", "...", f"longer than {MOST_LINE:,} bytes", AGAIN)
    try:
        found = json.loads(line.decode("utf-8"), parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        refuse(place, "line", "...", f"no JSON ({error})", "Give a file of 'airflow zeus export --format json'")
    if not isinstance(found, dict) or len(found) != 1:
        refuse(place, "line", "...", "no object with one member", AGAIN)
    ((kind, value),) = found.items()
    return kind, value


def _check_format(place: str, kind: str, value: Any) -> None:
    if kind != "format" or value != FORMAT:
        shown = value if isinstance(value, int) else "..."
        refuse(place, kind, shown, f"this version reads format {FORMAT} alone", "Write the file with the same version")


def _check_end(place: str, value: Any, trials: int) -> None:
    told = _field(place, value, "trials")
    if told != trials:
        refuse(place, "trials", told, f"there are {trials} before it: a part of the file is missing", AGAIN)


def _field(place: str, value: Any, name: str) -> Any:
    if not isinstance(value, dict) or name not in value:
        refuse(place, name, "...", "missing", AGAIN)
    return value[name]


def _head(place: str, value: Any, *, after: str) -> JobHead:
    """How far the log of a job has got. ``after``: the job before it, whose name comes first in the alphabet."""
    try:
        head = decode(JobHead, value, newer=True)
    except ValueError as error:
        refuse(place, "job", "...", str(error), AGAIN)
    _check_job_id(place, head.job_id)
    if head.job_id <= after:
        refuse(place, "job_id", head.job_id, f"it does not follow {after[:80]!r}: jobs are sorted, each is once", AGAIN)
    for name in ("told_seq", "last_number"):
        count = getattr(head, name)
        if not 0 <= count <= MOST_NUMBER:
            refuse(place, name, count, f"not from 0 to {MOST_NUMBER}", AGAIN)
    for held in head.events.values():
        for event in held.events:
            _check_event(place, event)
    return head


def _check_event(place: str, event: Event) -> None:
    for text in (event.kind, event.run_id, event.sentence, event.remedy):
        if truncated(text) != text:
            refuse(place, "events", text, f"longer than {MOST_TEXT} characters, or no text that can be stored", AGAIN)
    for name, value in event.figures.items():
        is_figure = isinstance(value, int | float) and math.isfinite(value)
        is_text = isinstance(value, str) and truncated(value) == value
        if not is_figure and not is_text:
            refuse(place, f"events, {name[:100]}", value, "no figure", AGAIN)


def _check_job_id(place: str, job_id: str) -> None:
    if not job_id or truncated(job_id) != job_id:
        refuse(place, "job_id", job_id, "no name of a job", AGAIN)
    if not fits_index(job_id):
        remedy = "Rename it there ('airflow zeus jobs rename') and export it again"
        refuse(place, "job_id", job_id, "longer than 1000 bytes of UTF-8", remedy)


def _profile(place: str, entry: Mapping[str, Any]) -> JobProfile:
    model, count, source, version = (
        entry.get(name) for name in ("device_model", "device_count", "energy_source", "job_version")
    )
    texts = [model, version] if source is None else [model, version, source]
    plain = all(isinstance(text, str) and truncated(text) == text for text in texts)
    if not plain or type(count) is not int or not 0 < count < 10**6:
        refuse(place, "device", str((model, count, source, version)), "no device", AGAIN)
    try:
        samples = tuple(decode(ProfileSample, each) for each in entry["samples"])
    except DAMAGE as error:
        refuse(place, "samples", str(error), "cannot be read", AGAIN)
    usable = finite(Report(observation=Observation(), profile=samples)).profile
    if usable != samples or any(s.batch_size > MOST_NUMBER or s.is_mark for s in samples):
        refuse(place, "samples", "...", f"a value that nothing measures, or over {MOST_SAMPLES}", AGAIN)
    where = (str(model), count, source)
    return JobProfile(job_id=entry["job_id"], where=where, job_version=str(version), samples=samples)


def _run(place: str, entry: Mapping[str, Any], skipped: Skipped) -> RunTrials:
    """The closed trials of a run, or of a part of one."""
    rows = _field(place, entry, "trials")
    if not isinstance(rows, list) or not 0 < len(rows) <= RunTrials.MOST:
        refuse(place, "trials", "...", f"no list of 1 to {RunTrials.MOST}", AGAIN)
    trials, points = [], []
    for index, row in enumerate(rows):
        trial = _trial(f"{place}, trials[{index}]", row, skipped)
        if trial.job_id != entry["job_id"]:
            refuse(place, "job_id", trial.job_id, "not that of its run", AGAIN)
        if trial.state is State.RUNNING or trial.told_seq is None:
            skipped.still_open += 1
            continue
        trials.append(trial)
        points.append(_points(f"{place}, trials[{index}]", row.get("points", [])))
    return RunTrials(job_id=entry["job_id"], trials=trials, points=points)


def _points(place: str, lists: Any) -> list[PowerPoint]:
    points = points_from_lists(lists)
    if not isinstance(lists, list) or len(points) != len(lists):
        refuse(place, "points", str(lists), "no power over time", AGAIN)
    kept = finite(Report(observation=Observation(), points=points)).points
    if list(kept) != points:
        refuse(place, "points", str(lists), "more than 500, or a value that nothing measures", AGAIN)
    return points


def _trial(place: str, row: Any, skipped: Skipped) -> Trial:
    """The trial of a row, with every value that a decision or a page computes with checked."""
    if not isinstance(row, dict):
        refuse(place, "trial", "...", "no object", AGAIN)
    spec = row.get("spec")
    if isinstance(spec, dict):
        known = job_fields()
        for name in spec.keys() - known.keys():
            skipped.note_field(name)
        row = row | {"spec": {name: value for name, value in spec.items() if name in known}}
    try:
        trial = trial_from_dict(row)
        trial.job  # noqa: B018 - raises where this version cannot read it
    except (*DAMAGE, JobSpecError) as error:
        refuse(place, "trial", f"{type(error).__name__}: {error}"[:200], "cannot be read", AGAIN)
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
    for name, text in {**texts, "ti_id": trial.key.ti_id, "reason": trial.reason}.items():
        if isinstance(text, str) and truncated(text) != text:
            refuse(place, name, text, f"longer than {MOST_TEXT} characters, or no text that can be stored", AGAIN)
    if not trial.key.ti_id or trial.key.attempt < 1:
        refuse(place, "ti_id, attempt", str(trial.key), "no name of a trial", AGAIN)
