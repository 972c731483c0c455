"""Environment variables of a process that is started with a plan: the places of the plan and of
its result.

- ``ZEUS_PLAN``: the plan's path, or its JSON.
- ``ZEUS_RESULT``: a file to which the result's lines are appended. In a folder (a path that ends in
  ``/``, or an existing folder) each start writes a new file, so no line is lost when a process
  dies.
- ``ZEUS_XCOM``: file to which the result is written as one JSON document for XCom when the
  training ends; by default ``/airflow/xcom/return.json`` if that folder exists, as in a pod whose
  XCom Airflow collects.
- ``ZEUS_BATCH_SIZE``: batch size of the plan's first attempt, for a process that does not import
  this package.
- ``ZEUS_START``: start of that attempt, ``cold``, ``shrunk`` or ``warm``, if the job chooses
  starts.
- ``ZEUS_TRY``: number of the task's try that started the process.
- ``ZEUS_ATTEMPT_ROOT``: ``[zeus] attempt_root`` of the host that trains, if it differs from the
  plan's.
- ``ZEUS_POWER_SOCKET``: ``[zeus] power_socket`` of the host that trains, if it differs from the
  plan's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid4, uuid5

from airflow_provider_zeus import patterns
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.log_guard import guarded_log, level
from airflow_provider_zeus.model.partial_sums import thinned
from airflow_provider_zeus.model.trial import Observation, State
from airflow_provider_zeus.power.device import Device, NoneDevice
from airflow_provider_zeus.power.factory import device_of
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.training.protocol.events import (
    ResultLine,
    ResultWriter,
    Sink,
    folded,
    log_costs,
)
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.ranks import Ranks
from airflow_provider_zeus.untrusted_files import opened_folder, read_plain, write_whole

PLAN = "ZEUS_PLAN"
RESULT = "ZEUS_RESULT"
XCOM = "ZEUS_XCOM"
TRY = "ZEUS_TRY"
BATCH_SIZE = "ZEUS_BATCH_SIZE"
START = "ZEUS_START"

_POD_XCOM = Path("/airflow/xcom/return.json")

log = guarded_log(__name__)


def plan_of(environ: Mapping[str, str]) -> Plan:
    """Read the plan.

    Raises JobSpecError: none is given, it cannot be read, it has another version.
    """
    plan = environ.get(PLAN, "")
    if not plan:
        raise JobSpecError.of(
            PLAN,
            None,
            "is not set: this process was not started with a plan",
            "start it by its task, such as a ZeusCommandOperator: to try it out, `airflow dags "
            "test DAG_ID`",
        )
    if plan.lstrip().startswith("{"):
        return Plan.from_json(plan)
    return Plan.read(Path(plan))


def device_of_plan(plan: Plan, ranks: Ranks) -> Device:
    """Open the device that a plan's job measures. Raises JobSpecError for an unknown one."""
    if not ranks.measures:
        return NoneDevice(
            plan.job.max_power_w, why="the first process of this host measures it for all"
        )
    host = replace(plan, power_socket=os.environ.get("ZEUS_POWER_SOCKET", plan.power_socket))
    shared = {"processes": ranks.local_size, "hosts": ranks.hosts}
    return device_of(plan.job, plan.state_folder, host, gpus_held=plan.gpus_held, **shared)


def limits_of_plan(plan: Plan, device: Device, ranks: Ranks) -> LimitControl | None:
    """The control of that device's power limits, not yet entered; None if this process sets no
    limits.
    """
    if ranks.rank or not plan.job.tries_limits:
        return None
    if device.limit_range() is None:
        return None
    if ranks.hosts > 1:
        log.warning(
            "Zeus sets no power limits: this training runs on %d hosts; they are measured.",
            ranks.hosts,
        )
        return None
    return LimitControl(
        device, plan.state_folder, found_earlier_w=plan.limits_found_w.get(device.uuid or "")
    )


def try_of(environ: Mapping[str, str]) -> int | None:
    """The task's try number; None if it is not set."""
    text = environ.get(TRY, "").strip()
    return int(text) if patterns.fullmatch("[0-9]{1,9}", text) else None


def is_retry(try_number: int | None) -> bool:
    """Whether an earlier try of the task may have trained; None: it is not known."""
    return try_number is not None and try_number > 1


class Results:
    """Sink of a started process: writes its lines to each place that the environment names.

    A place that cannot be written is logged once and left out: the training goes on. Lines that it
    did not take wait for it, as long as another place takes them.

    :param ti_id: of the plan, if several processes train: the notes of :class:`OtherRank` are then
        looked for.
    """

    def __init__(self, environ: Mapping[str, str], ti_id: str = "") -> None:
        self._environ = environ
        self._ti_id = ti_id
        self._places: list[_Place] = []
        self._document: Document | None = None
        result = environ.get(RESULT)
        if result:
            try:
                file = Path(result)
                if _is_folder(result):
                    file /= f"{uuid4().hex}.jsonl"
                self._places.append(_Place(f"{RESULT}={result}", ResultWriter(file)))
            except (OSError, ValueError) as error:
                log.error(
                    "Zeus: %s=%s cannot be written (%s): the cost of this run is lost.",
                    RESULT,
                    result,
                    error,
                )
        named = environ.get(XCOM)
        path = Path(named or _POD_XCOM)
        if named or path.parent.is_dir():
            self._document = Document(path)
            self._places.append(_Place(f"{XCOM}={path}", self._document))

    def __call__(self, line: ResultLine) -> None:
        """Write one line to each place.

        Raises the first place's error, as OSError, if none took the line.
        """
        line = with_memory_of_others(line, self._environ.get(RESULT), self._ti_id)
        missed: dict[_Place, Exception] = {}
        for place in self._places:
            try:
                place.take(line)
            except Exception as error:
                missed[place] = error
        # One copy is enough: the sender keeps a line only if no place has it.
        if missed and len(missed) == len(self._places):
            first = self._places[0]
            if line.kind == "final":
                log_costs(first.waiting)  # lost otherwise: no document holds them
            raise missed[first]
        for place, problem in missed.items():
            place.keep(line, problem)

    def hand_over(self, value: Any) -> None:
        """Write the value of the kept attempt's function."""
        if self._document is not None:
            self._document.hand_over(value)


class _Place:
    """A sink, and the lines that it did not take and another place did.

    They go before the next line.
    """

    def __init__(self, name: str, sink: Sink) -> None:
        self._name = name
        self._sink = sink
        self.waiting: list[ResultLine] = []  # a store that is away takes them later
        self._failing = False  # each heartbeat would repeat the warning

    def take(self, line: ResultLine) -> None:
        """Write the lines that wait, then this one. Raises the errors of the sink."""
        while self.waiting:
            self._sink(self.waiting[0])
            self.waiting.pop(0)  # only now: a sink that raises must not lose it
        self._sink(line)
        self._failing = False

    def keep(self, line: ResultLine, error: Exception) -> None:
        """Let a line wait that the sink did not take."""
        self.waiting = folded([*self.waiting, line])
        log.log(
            level(again=self._failing),
            "Zeus could not write a %r line to %s (%s); it tries again.",
            line.kind,
            self._name,
            error,
        )
        self._failing = True


@dataclass(frozen=True)
class OtherRank:
    """Sink of a process other than rank 0. It drops all lines but the end of an attempt that ran
    out of memory.

    That line is written to a file beside the result, which rank 0 and the starter of the processes
    on this host read. Otherwise rank 0 would only see that a process is gone.
    """

    environ: Mapping[str, str]
    ti_id: str
    rank: int

    def __call__(self, line: ResultLine) -> None:
        """Write the line of an attempt out of memory.

        Raises OSError if the file cannot be written.
        """
        result = self.environ.get(RESULT)
        is_noted = line.kind == "end" and line.figures.out_of_memory
        if result and is_noted:
            note = replace(
                line,
                reason=f"rank {self.rank}: {line.reason}",
                notes={},
                observation=Observation(out_of_memory=True),
                profile=(),
                points=(),
            )
            folder, name = _note_place(result, self.ti_id, line.attempt)
            write_whole(folder / name, note.to_json())


def with_memory_of_others(line: ResultLine, result: str | None, ti_id: str) -> ResultLine:
    """Mark the end of a failed attempt as out of memory if another of its processes was; return
    other lines as is.

    The note of :class:`OtherRank` must be a result line of the same attempt. In a folder of results
    it must belong to the folder's owner, beside a file to this process's user.
    """
    # A line has a state only if it is an end, so its kind needs no look.
    if line.state is not State.FAILED:
        return line
    if not result or not ti_id:
        return line
    max_note = 2**16  # another process writes it, and it must not fill the memory of this one
    try:
        path, name = _note_place(result, ti_id, line.attempt)
        with opened_folder(path) as folder:
            owner = os.fstat(folder).st_uid if _is_folder(result) else os.geteuid()
            note = ResultLine.from_json(
                read_plain(name, max_note, folder=folder, owners={owner}).decode()
            )
    except (OSError, ValueError):
        return line
    if note.attempt != line.attempt or not note.figures.out_of_memory:
        return line
    observation = replace(line.figures, out_of_memory=True)
    return replace(line, reason=note.reason, observation=observation)


class Document:
    """The result as one JSON document, ``{"zeus": {"lines": [...]}, "value": ...}``, written whole
    when it is final.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[ResultLine] = []
        self._value: Any = None

    def __call__(self, line: ResultLine) -> None:
        """Keep one line; the final one writes the document. Raises OSError."""
        # Nothing is sent before the end: the points of a long training would fill the memory.
        *earlier, last = folded([*self._lines, line])
        self._lines = [*earlier, replace(last, points=tuple(thinned(last.points)))]
        if line.kind == "final":
            self._write()

    def hand_over(self, value: Any) -> None:
        """Write the document again with the function's value.

        A value that is no JSON is left out, with a warning.
        """
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            log.warning(
                "Zeus: the value that the training returned is no JSON (%s): XCom gets null "
                "instead.",
                error,
            )
            return
        self._value = value
        try:
            self._write()
        except OSError as error:
            log.error("Zeus: %s cannot be written: %s.", self._path, error)

    def _write(self) -> None:
        lines = [json.loads(line.to_json()) for line in self._lines]
        write_whole(self._path, json.dumps({"zeus": {"lines": lines}, "value": self._value}))


def _note_place(result: str, ti_id: str, attempt: int | None) -> tuple[Path, str]:
    """Folder and name of the note that an attempt's process was out of memory."""
    folder = Path(result) if _is_folder(result) else Path(result).parent
    return folder, f"memory-{uuid5(NAMESPACE_OID, ti_id).hex}-{attempt}"


def _is_folder(result: str) -> bool:
    return result.endswith(os.sep) or Path(result).is_dir()
