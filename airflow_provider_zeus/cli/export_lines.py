"""The lines of a JSON export: made of the parts of a log's history, and read again with every value
checked. Pure.

Each line is an object with one member: ``format``, then for each job ``job``, its ``profile`` lines
and a ``run`` line for each of its runs, and ``end``. The file is hostile input: a value that cannot
be used is named with its line and a remedy.
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
from airflow_provider_zeus.model.partial_sums import Report, finite, merged
from airflow_provider_zeus.model.size_bounds import MOST_SAMPLES, MOST_TEXT, truncated
from airflow_provider_zeus.model.trial import (
    Observation,
    PowerPoint,
    ProfileSample,
    State,
    Trial,
)
from airflow_provider_zeus.model.trial_fields import FIELDS, flat
from airflow_provider_zeus.model.wire import MOST_NUMBER, decode, encode, refuse_constant
from airflow_provider_zeus.store.base import HistoryPart, JobHead, JobProfile, RunTrials
from airflow_provider_zeus.store.rows import (
    DAMAGE,
    is_known,
    points_from_lists,
    points_to_lists,
    trial_from_dict,
)

FORMAT = 1
MOST_LINE = 4 * 1024 * 1024  # a few trials with every text as long as it may be must fit
AGAIN = "Correct it, or write the file again with 'airflow zeus export --format json'"
UPGRADE = "Upgrade airflow-provider-zeus here"
MOST_FIELDS = 20  # a hostile file may have any number of them


@dataclass(slots=True)
class Skipped:
    """Parts of a file that an import leaves out."""

    still_open: int = 0
    # A newer version wrote them: the user should know what is lost. The first 20 tell it.
    fields: set[str] = field(default_factory=set)

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
        return line_of("profile", encode(part))
    trials = [
        flat(trial) | {"points": points_to_lists(points)}
        for trial, points in zip(part.trials, part.points, strict=True)
    ]
    return line_of("run", {"job_id": part.job_id, "trials": trials})


def parts_of(lines: Iterable[bytes], skipped: Skipped) -> Iterator[HistoryPart]:
    """The parts of the history that a file holds, each checked when it is asked for.

    :param skipped: gets the parts that are left out.

    Raises JobSpecError: a value cannot be used, the file is of another format, or it ends too
    early.
    """
    job_id = ""
    trials = 0
    ended = False
    for number, line in enumerate(lines, 1):
        place = f"line {number}"
        kind, value = _member(place, line)
        # a file that was put together of two would count twice
        if ended:
            refuse(place, "line", kind, "the file has ended before it")
        if number == 1:
            _check_format(place, kind, value)
        elif kind == "end":
            _check_end(place, value, trials)
            ended = True
        else:
            part = _part(place, kind, value, job_id, skipped)
            job_id = part.job_id
            if isinstance(part, RunTrials):
                # open ones too: the last line counts all that were written
                trials += len(value["trials"])
                if not part.trials:
                    continue
            yield part
    if not ended:
        raise JobSpecError.of(
            "FILE", None, "it ends too early", "Write it again with 'airflow zeus export'"
        )


def _part(place: str, kind: str, value: Any, job_id: str, skipped: Skipped) -> HistoryPart:
    """``job_id``: of the line before."""
    if kind == "job":
        return _head(place, value, after=job_id)
    if job_id != _field(place, value, "job_id"):
        refuse(place, "job_id", value["job_id"], "its job has no line before it")
    if kind == "profile":
        return _profile(place, value)
    if kind != "run":
        refuse(place, "line", kind, "not known to this version", UPGRADE)
    return _run(place, value, skipped)


def refuse(place: str, column: str, value: object, problem: str, remedy: str = AGAIN) -> NoReturn:
    """Raise the error of a value in the file."""
    if value is not None and not isinstance(value, int | float):
        value = str(value)[:80]
    raise JobSpecError.of(f"{place}, {column}", value, problem, remedy)


def _check_text(place: str, name: str, text: object) -> None:
    """Refuse a text that cannot be stored as it is."""
    # What would be cut at an import would differ from what was exported.
    if isinstance(text, str) and truncated(text) != text:
        problem = f"longer than {MOST_TEXT} characters, or no text that can be stored"
        refuse(place, name, text, problem)


def _member(place: str, line: bytes) -> tuple[str, Any]:
    """Name and value of the one member of a line's object."""
    # before it is parsed: JSON takes many times its size in memory
    if len(line) > MOST_LINE:
        refuse(place, "line", "...", f"longer than {MOST_LINE:,} bytes")
    try:
        member = json.loads(line.decode("utf-8"), parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        remedy = "Give a file of 'airflow zeus export --format json'"
        refuse(place, "line", "...", f"no JSON ({error})", remedy)
    if not isinstance(member, dict) or len(member) != 1:
        refuse(place, "line", "...", "no object with one member")
    ((kind, value),) = member.items()
    return kind, value


def _check_format(place: str, kind: str, value: Any) -> None:
    if kind == "format" and value == FORMAT:
        return
    # Any text may stand there, and would fill the terminal.
    if not isinstance(value, int):
        value = "..."
    problem = f"this version reads format {FORMAT} alone"
    refuse(place, kind, value, problem, "Write the file with the same version")


def _check_end(place: str, value: Any, trials: int) -> None:
    count = _field(place, value, "trials")
    # A file that was cut off ends at a line like any other.
    if count != trials:
        problem = f"there are {trials} before it: a part of the file is missing"
        refuse(place, "trials", count, problem)


def _field(place: str, value: Any, name: str) -> Any:
    if not isinstance(value, dict) or name not in value:
        refuse(place, name, "...", "missing")
    return value[name]


def _head(place: str, value: Any, *, after: str) -> JobHead:
    """How far the log of a job has got.

    ``after``: the job before it, whose name comes first in the alphabet.
    """
    try:
        # A newer version may have added fields, which an older one can do without.
        head = decode(JobHead, value, newer=True)
    except ValueError as error:
        refuse(place, "job", "...", str(error))
    _check_job_id(place, head.job_id)
    # in order, no set of all jobs has to be kept to see one twice
    if head.job_id <= after:
        problem = f"it does not follow {after[:80]!r}: jobs are sorted, each is once"
        refuse(place, "job_id", head.job_id, problem)
    for name in ("told_seq", "last_number"):
        count = getattr(head, name)
        if not 0 <= count <= MOST_NUMBER:
            refuse(place, name, count, f"not from 0 to {MOST_NUMBER}")
    for of_dag in head.events.values():
        for event in of_dag.events:
            _check_event(place, event)
    return head


def _check_event(place: str, event: Event) -> None:
    for text in (event.kind, event.run_id, event.sentence, event.remedy):
        _check_text(place, "events", text)
    for name, value in event.figures.items():
        if isinstance(value, str):
            is_figure = truncated(value) == value
        else:
            is_figure = isinstance(value, int | float) and math.isfinite(value)
        if not is_figure:
            refuse(place, f"events, {name[:100]}", value, "no figure")


def _check_job_id(place: str, job_id: str) -> None:
    if not job_id or truncated(job_id) != job_id:
        refuse(place, "job_id", job_id, "no name of a job")
    if not fits_index(job_id):
        remedy = "Rename it there ('airflow zeus jobs rename') and export it again"
        refuse(place, "job_id", job_id, "longer than 1000 bytes of UTF-8", remedy)


def _profile(place: str, entry: Mapping[str, Any]) -> JobProfile:
    model = entry.get("device_model")
    count = entry.get("device_count")
    source = entry.get("energy_source")
    version = entry.get("job_version")
    texts = [model, version]
    if source is not None:
        texts.append(source)
    are_texts = all(isinstance(text, str) and truncated(text) == text for text in texts)
    # a bool is an int to isinstance
    is_count = type(count) is int and 0 < count < 10**6
    # They are a key of a table: another type would be another device.
    if not are_texts or not is_count:
        refuse(place, "device", str((model, count, source, version)), "no device")
    try:
        samples = tuple(decode(ProfileSample, sample) for sample in entry["samples"])
    except DAMAGE as error:
        refuse(place, "samples", str(error), "cannot be read")
    # By the check of a report: a file must not bring in what no training may report.
    usable = finite(Report(observation=Observation(), profile=samples)).profile
    is_usable = usable == samples and not any(sample.is_mark for sample in samples)
    if not is_usable or any(sample.batch_size > MOST_NUMBER for sample in samples):
        problem = f"a value that nothing measures, or over {MOST_SAMPLES}"
        refuse(place, "samples", "...", problem)
    return JobProfile(
        job_id=entry["job_id"],
        device_model=str(model),
        device_count=entry["device_count"],
        energy_source=source,
        job_version=str(version),
        samples=samples,
    )


def _run(place: str, entry: Mapping[str, Any], skipped: Skipped) -> RunTrials:
    """The closed trials of a run, or of a part of one."""
    rows = _field(place, entry, "trials")
    # A line of any number of trials would not fit into memory.
    if not isinstance(rows, list) or not 0 < len(rows) <= RunTrials.MOST:
        refuse(place, "trials", "...", f"no list of 1 to {RunTrials.MOST}")
    trials = []
    points = []
    for index, row in enumerate(rows):
        trial = _trial(f"{place}, trials[{index}]", row, skipped)
        # A trial of another job would change what that job has learned.
        if trial.job_id != entry["job_id"]:
            refuse(place, "job_id", trial.job_id, "not that of its run")
        # Its own log will still change it, and a later import writes no trial again.
        if trial.state is State.RUNNING or trial.told_seq is None:
            skipped.still_open += 1
            continue
        trials.append(trial)
        points.append(_points(f"{place}, trials[{index}]", row.get("points", [])))
    return RunTrials(job_id=entry["job_id"], trials=trials, points=points)


def _points(place: str, lists: Any) -> list[PowerPoint]:
    points = points_from_lists(lists)
    if not isinstance(lists, list) or len(points) != len(lists):
        refuse(place, "points", str(lists), "no power over time")
    usable = finite(Report(observation=Observation(), points=points)).points
    if list(usable) != points:
        problem = "more than 500, or a value that nothing measures"
        refuse(place, "points", str(lists), problem)
    return points


def _trial(place: str, row: Any, skipped: Skipped) -> Trial:
    """The trial of a row, with every value that a decision or a page computes with checked."""
    if not isinstance(row, dict):
        refuse(place, "trial", "...", "no object")
    spec = row.get("spec")
    if isinstance(spec, dict):
        names = job_fields().keys()
        for name in spec.keys() - names:
            skipped.note_field(name)
        # a newer version may have added fields; the others still decide
        row = row | {"spec": {name: value for name, value in spec.items() if name in names}}
    try:
        trial = trial_from_dict(row)
        trial.job  # noqa: B018 - raises if this version cannot read it
    except (*DAMAGE, JobSpecError) as error:
        refuse(place, "trial", f"{type(error).__name__}: {error}"[:200], "cannot be read")
    # A state of a newer version cannot be decided with.
    if not is_known(trial):
        name = "phase" if trial.state in set(State) else "state"
        refuse(place, name, str(row.get(name)), "not known to this version", UPGRADE)
    _check_sizes(place, trial)
    # A log is written by these rules: a value that they would change comes from no log.
    stored = merged(Observation(), trial.observation)
    figures = [f.name for f in fields(Observation) if f.name != "reasons"]
    for name in figures:
        value = getattr(trial.observation, name)
        if getattr(stored, name) != value:
            refuse(place, name, value, stored.reasons.get(name, "too long"))
    return replace(trial, observation=stored)


def _check_sizes(place: str, trial: Trial) -> None:
    for name, value in (("number", trial.number), ("told_seq", trial.told_seq)):
        if value == 0:
            refuse(place, name, value, "the first one is 1")
    if trial.batch_size is not None and trial.batch_size > MOST_NUMBER:
        refuse(place, "batch_size", trial.batch_size, f"above {MOST_NUMBER}")
    # Names of DAGs, tasks and runs are keys: one that is cut would be another's.
    texts = {field.name: field.of(trial) for field in FIELDS if field.part in ("origin", "key")}
    for name, text in (*texts.items(), ("reason", trial.reason)):
        _check_text(place, name, text)
    if not trial.key.ti_id or trial.key.attempt < 1:
        refuse(place, "ti_id, attempt", str(trial.key), "no name of an attempt")
