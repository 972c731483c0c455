"""Plan and result: all that a training process without a database knows and tells (design: "Plan and result").

The plan is one JSON document. The result is JSON lines, each a :class:`Line`; the last one is ``final``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, Self, get_args

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.optimizer.trial import (
    Attempt,
    Observation,
    PowerPoint,
    ProfileSample,
    State,
)
from airflow_provider_zeus.optimizer.typed import check, check_fields

SCHEMA = 1
Kind = Literal["start", "attempt", "beat", "end", "final"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run: the attempts of one decision, and what the job's earlier runs taught about power."""

    job_id: str
    ti_id: str
    number: int  # of the trial that runs the first attempt
    first_attempt: int  # attempt number of attempts[0] under ``ti_id``
    spec: Mapping[str, Any]  # ZeusJob.to_dict(), live settings applied
    attempts: tuple[Attempt, ...]
    stand_in: Attempt | None = None  # for the last attempt, where that does not fit into memory
    second_chance: bool = False  # and where that ends below its target
    seed: int = 0
    profile: tuple[ProfileSample, ...] = ()
    limits_found_w: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # gpu uuid -> (limit found, limit left behind) [W] of an earlier trial that died without giving it back
    heartbeat_s: float = 15.0
    state_dir: str | None = None
    restarts: bool = False  # whoever started this process starts another one for the next attempt
    attempt_root: str | None = None  # of ``run.attempt_dir``; None: the folder for temporary files
    cpu_watts: float | None = None  # of one busy CPU core [W], for an estimate where nothing measures
    power_read_only: bool = False  # never set a limit on a real GPU
    power_socket: str = ""  # of the helper that sets limits of real GPUs; empty: the training does so itself
    gpu_lock_wait_s: float = 3600.0  # how long GPUs of another training are waited for
    gpus_held: tuple[str, ...] = ()  # UUIDs of those that whoever starts the training keeps others off

    @property
    def in_order(self) -> tuple[Attempt, ...]:
        """The attempts, and behind them what stands in for the last one."""
        return self.attempts if self.stand_in is None else (*self.attempts, self.stand_in)

    def exploratory(self, index: int) -> bool:
        """Whether attempt ``index`` (from 0) tries a batch size, and the best known one follows it."""
        return index + 1 < len(self.attempts)

    def followed(self, index: int) -> bool:
        """Whether another attempt follows attempt ``index`` (from 0) where that one's target is not reached."""
        return index + 1 < len(self.in_order if self.second_chance else self.attempts)

    def last_alone(self) -> Self:
        """The plan of a retry under the same decision: whatever ended the first try, this one ends with a model."""
        first = self.first_attempt + len(self.attempts) - 1
        return replace(self, attempts=self.attempts[-1:], first_attempt=first)

    def to_json(self) -> str:
        """One JSON document."""
        data = asdict(self)
        for name in ("stand_in", "second_chance"):  # what reads it may be of a version that knows none
            if not data[name]:
                del data[name]
        return json.dumps({"v": SCHEMA, **data}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote. Raises JobSpecError when it is not a plan of this version."""
        try:
            data = json.loads(text, parse_constant=_refused)
            if data.pop("v") != SCHEMA:
                raise ValueError("another version")
            if not data["attempts"]:
                raise ValueError("no attempts")
            data["attempts"] = tuple(map(Attempt.from_dict, data["attempts"]))
            data["stand_in"] = Attempt.from_dict(data["stand_in"]) if data.get("stand_in") else None
            data["profile"] = tuple(ProfileSample(**s) for s in data["profile"])
            data["gpus_held"] = tuple(data.get("gpus_held", ()))
            data["limits_found_w"] = {k: (found, left) for k, (found, left) in data["limits_found_w"].items()}
            plan = cls(**data)
            check_fields(plan, *plan.in_order, *plan.profile)
            check("limits_found_w", "numbers", [w for both in plan.limits_found_w.values() for w in both])
            if plan.heartbeat_s <= 0 or any(attempt.batch_size < 1 for attempt in plan.in_order):
                raise ValueError("a heartbeat or a batch size below 1")
            return plan
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise JobSpecError.of(
                "plan",
                text[:80],
                f"not a plan of version {SCHEMA} ({error})",
                "use the same package version on both sides",
            ) from error

    @classmethod
    def read(cls, path: Path) -> Self:
        """The plan in a file. Raises JobSpecError: not to be read, or not a plan of this version."""
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
            raise JobSpecError.of("plan", str(path), problem, "give the path of a plan") from error
        return cls.from_json(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a result.

    ``start``: a process took the plan (``start_id`` is random: two starts under one key are two observations).
    ``attempt``: an attempt begins. ``beat``: partial sums, new profile samples, power points. ``end``: that attempt is
    over in ``state``. ``final``: ``attempt`` is the kept one, None when no model was kept; nothing follows it.
    """

    kind: Kind
    start_id: str
    try_number: int | None = None  # in ``start``: of the task that started the process, where it told
    attempt: int | None = None  # attempt number under the plan's ti_id
    batch_size: int | None = None
    state: State | None = None
    reason: str | None = None
    observation: Observation | None = None
    profile: tuple[ProfileSample, ...] = ()  # new since the last line
    points: tuple[PowerPoint, ...] = ()  # new since the last line
    notes: Mapping[str, float] = field(default_factory=dict)  # in ``end``: figures beside the observation

    def to_json(self) -> str:
        """One line of JSON, without the line feed."""
        data = {k: v for k, v in asdict(self).items() if v is not None and v not in ((), {})}
        if self.observation is not None:
            data["observation"] = {k: v for k, v in self.observation.to_dict().items() if v is not None}
        return json.dumps({"v": SCHEMA, **data}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read one line. Raises ValueError when it is not a line of this version (cut off by a death, say)."""
        try:
            data = json.loads(text, parse_constant=_refused)
        except RecursionError:
            raise ValueError(f"not a result line, but nested without end: {text[:80]!r}") from None
        if not isinstance(data, dict) or data.pop("v", None) != SCHEMA:
            raise ValueError(f"not a result line of version {SCHEMA}: {text[:80]!r}")
        try:
            if "state" in data:
                data["state"] = State(data["state"])
            if "observation" in data:
                data["observation"] = Observation.from_dict(data["observation"])
            data["profile"] = tuple(ProfileSample(**s) for s in data.get("profile", ()))
            data["points"] = tuple(PowerPoint(**p) for p in data.get("points", ()))
            data["notes"] = {str(name): float(value) for name, value in data.get("notes", {}).items()}
            line = cls(**data)
            check_fields(line, line.observation or Observation(), *line.profile, *line.points)
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a result line: {error}") from error
        if line.kind not in get_args(Kind) or line.state is State.RUNNING:  # which is the end of nothing
            raise ValueError(f"not a result line: {text[:80]!r}")
        return line


class ResultWriter:
    """Appends lines to a result file, each at once: what is written survives the death of the process.

    A line that an earlier death cut off is removed first, so that the file holds whole lines only.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = path.open("a+b", buffering=0)
        self._file.truncate(_whole_lines(path.read_bytes()))

    def __call__(self, line: Line) -> None:
        """Write one line. Raises OSError when it does not fit, and leaves nothing of it, nor an empty file."""
        if self._file.closed:
            self._file = self._path.open("a+b", buffering=0)
        data, before = line.to_json().encode() + b"\n", os.fstat(self._file.fileno()).st_size
        try:
            while data:
                data = data[self._file.write(data) :]
        except BaseException:
            self._file.truncate(before)
            if not before:
                self._file.close()
                self._path.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_result(path: Path) -> Iterator[Line]:
    """Lines of a result file in order; a last line that is not (yet) whole is left out. Raises OSError, ValueError."""
    yield from read_lines(path.read_bytes())


def read_lines(data: bytes) -> Iterator[Line]:
    """Lines of a result as bytes; a last line that is not whole is left out. Raises ValueError."""
    for text in data[: _whole_lines(data)].split(b"\n")[:-1]:
        yield Line.from_json(text.decode())


def _whole_lines(data: bytes) -> int:
    return data.rfind(b"\n") + 1


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
