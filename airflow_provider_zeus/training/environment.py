"""How a process started with a plan in its environment finds the plan, and where its result goes.

- ``ZEUS_PLAN``: the plan's path, or its JSON.
- ``ZEUS_RESULT``: a file to which the result's lines are appended; a folder (or what ends in ``/``) gets one file per
  start, which is the form that survives any death.
- ``ZEUS_XCOM``: where the result is written as one JSON document for the task's XCom when the training ends; by
  default ``/airflow/xcom/return.json`` where that folder exists, as it does in a pod whose XCom Airflow collects.
- ``ZEUS_BATCH_SIZE``: batch size of the plan's first attempt, for a process that does not import this package.
- ``ZEUS_TRY``: number of the task's try that started the process.
- ``ZEUS_ATTEMPT_ROOT``: ``[zeus] attempt_root`` of the host that trains, where it is another than the plan's.
- ``ZEUS_POWER_SOCKET``: ``[zeus] power_socket`` of the host that trains, where it is another than the plan's.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid4, uuid5

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.points import thinned
from airflow_provider_zeus.optimizer.trial import Observation, State
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.limit import LimitControl
from airflow_provider_zeus.power.none import NoneDevice
from airflow_provider_zeus.power.open import device_of
from airflow_provider_zeus.power.plain_file import opened_folder, read_plain, write_whole
from airflow_provider_zeus.training.outbox import Sink, folded
from airflow_provider_zeus.training.plan import Line, Plan, ResultWriter
from airflow_provider_zeus.training.ranks import Ranks

PLAN, RESULT, XCOM, TRY = "ZEUS_PLAN", "ZEUS_RESULT", "ZEUS_XCOM", "ZEUS_TRY"
BATCH_SIZE, POWER_SOCKET = "ZEUS_BATCH_SIZE", "ZEUS_POWER_SOCKET"
ATTEMPT_ROOT = "ZEUS_ATTEMPT_ROOT"
RESULT_KEY = "zeus"  # entry of the XCom document that holds the result

_MOST_SAID = 2**16  # bytes of the line that another process leaves of its memory
_POD_XCOM = Path("/airflow/xcom/return.json")

log = logging.getLogger(__name__)


def plan_of(environ: Mapping[str, str]) -> Plan:
    """The plan. Raises JobSpecError: none given, not to be read, of another version."""
    plan = environ.get(PLAN, "")
    if not plan:
        raise JobSpecError.of(
            PLAN,
            None,
            "is not set: this process was not started with a plan",
            "start it by an operator of this package, or use ZeusRun.from_plan(path)",
        )
    return Plan.from_json(plan) if plan.lstrip().startswith("{") else Plan.read(Path(plan))


def device_of_plan(plan: Plan, job: ZeusJob, state_dir: str | os.PathLike[str], ranks: Ranks) -> Device:
    """The device that a plan's job measures on. Raises JobSpecError for an unknown one."""
    if not ranks.measures:
        return NoneDevice(job.max_power_w, why="the first process of this host measures it for all")
    return device_of(
        job,
        state_dir,
        cpu_watts=plan.cpu_watts,
        read_only=plan.power_read_only,
        power_socket=os.environ.get(POWER_SOCKET, plan.power_socket),
        gpu_lock_wait_s=plan.gpu_lock_wait_s,
        gpus_held=plan.gpus_held,
        processes=ranks.local_size,
        hosts=ranks.hosts,
    )


def limits_of_plan(plan: Plan, job: ZeusJob, state_dir: str, device: Device, ranks: Ranks) -> LimitControl | None:
    """What sets the limits of that device, not yet entered; None where none is to be set, or by another process."""
    if job.mode not in ("optimize", "observe") or ranks.rank or device.limit_range() is None:
        return None
    if ranks.hosts > 1:
        log.warning("Zeus sets no power limits: this training runs on %d hosts; they are measured.", ranks.hosts)
        return None
    return LimitControl(device, state_dir, found_earlier_w=plan.limits_found_w.get(device.uuid or ""))


def try_of(environ: Mapping[str, str]) -> int | None:
    """The task's try number, None where nobody told."""
    text = environ.get(TRY, "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


class Results:
    """Sink of a started process: takes its lines to each place that the environment names.

    A place that cannot be written is said once and left out: the training goes on.

    :param ti_id: of the plan, where several processes train: another one's want of memory is then looked for.
    """

    def __init__(self, environ: Mapping[str, str], ti_id: str = "") -> None:
        self._environ, self._ti_id = environ, ti_id
        self._sinks: list[Sink] = []
        self._document: Document | None = None
        if result := environ.get(RESULT):
            try:
                self._sinks.append(ResultWriter(_file_of(result)))
            except (OSError, ValueError) as error:
                log.error(
                    "Zeus: %s=%s cannot be written (%s): nobody will learn this run's cost.", RESULT, result, error
                )
        path = Path(environ[XCOM]) if environ.get(XCOM) else _POD_XCOM
        if environ.get(XCOM) or path.parent.is_dir():
            self._document = Document(path)
            self._sinks.append(self._document)

    def __call__(self, line: Line) -> None:
        """Take one line. Raises OSError where a file does not take it."""
        line = with_memory_of_others(line, self._environ.get(RESULT), self._ti_id)
        for sink in self._sinks:
            sink(line)

    def hand_over(self, value: Any) -> None:
        """Take what the kept attempt's function returned."""
        if self._document is not None:
            self._document.hand_over(value)


class OtherRank:
    """Sink of a process other than rank 0. Nobody takes its lines but one, beside the result: it ran out of memory.

    There rank 0, which may only see that a process is gone, and whoever started them on this host find it.
    """

    def __init__(self, environ: Mapping[str, str], ti_id: str, rank: int) -> None:
        self._result, self._ti_id, self._rank = environ.get(RESULT), ti_id, rank

    def __call__(self, line: Line) -> None:
        """Take one line. Raises OSError where the file cannot be written."""
        if self._result and line.kind == "end" and line.observation is not None and line.observation.out_of_memory:
            said = replace(line, reason=f"rank {self._rank}: {line.reason}", notes={})
            said = replace(said, observation=Observation(out_of_memory=True), profile=(), points=())
            write_whole(_folder_of(self._result) / _memory_name(self._ti_id, line.attempt), said.to_json())


def with_memory_of_others(line: Line, result: str | None, ti_id: str) -> Line:
    """A line of a result; the end of an attempt that failed says so where another process of it ran out of memory.

    What that one left is a line of a result too, and is taken for nothing else. In a folder of results it belongs to
    the folder's owner, beside a file to this process's user.
    """
    seen = line.observation
    if not (result and ti_id and line.kind == "end" and line.state is State.FAILED) or seen is None:
        return line
    try:
        with opened_folder(_folder_of(result)) as folder:
            owner = os.fstat(folder).st_uid if _is_folder(result) else os.geteuid()
            name = _memory_name(ti_id, line.attempt)
            said = Line.from_json(read_plain(name, _MOST_SAID, folder=folder, owners={owner}).decode())
    except (OSError, ValueError):
        return line
    if said.observation is None or not said.observation.out_of_memory or said.attempt != line.attempt:
        return line
    return replace(line, reason=said.reason, observation=replace(seen, out_of_memory=True))


class Document:
    """The result as one JSON document, ``{"zeus": {"lines": [...]}, "value": ...}``, written whole when it is final."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[Line] = []
        self._value: Any = None

    def __call__(self, line: Line) -> None:
        """Take one line; the final one writes the document. Raises OSError."""
        self._lines = folded([*self._lines, line])
        self._lines[-1] = _small(self._lines[-1])
        if line.kind == "final":
            self._write()

    def hand_over(self, value: Any) -> None:
        """Write the document anew with the user's value; one that is no JSON is left out, with a warning."""
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            log.warning("Zeus: what the training returned is no JSON (%s): XCom gets null in its place.", error)
            return
        self._value = value
        try:
            self._write()
        except OSError as error:
            log.error("Zeus: %s cannot be written: %s.", self._path, error)

    def _write(self) -> None:
        lines = [json.loads(line.to_json()) for line in self._lines]
        write_whole(self._path, json.dumps({RESULT_KEY: {"lines": lines}, "value": self._value}))


def _file_of(result: str) -> Path:
    return Path(result) / f"{uuid4().hex}.jsonl" if _is_folder(result) else Path(result)


def _folder_of(result: str) -> Path:
    return Path(result) if _is_folder(result) else Path(result).parent


def _memory_name(ti_id: str, attempt: int | None) -> str:
    return f"memory-{uuid5(NAMESPACE_OID, ti_id).hex}-{attempt}"


def _is_folder(result: str) -> bool:
    return result.endswith(os.sep) or Path(result).is_dir()


def _small(line: Line) -> Line:
    return replace(line, points=tuple(thinned(line.points)))
