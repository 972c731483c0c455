"""Plan and result: all that a training process without a database knows and tells (design: "Plan and result").

The plan is one JSON document. The result is JSON lines, each a :class:`Line`; the last one is ``final``.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, NoReturn, Self, get_args

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.optimizer.bounds import bounded, brief, few_points, few_samples
from airflow_provider_zeus.optimizer.trial import (
    Attempt,
    Observation,
    PowerPoint,
    ProfileSample,
    State,
)
from airflow_provider_zeus.optimizer.typed import check, check_fields
from airflow_provider_zeus.power.plain_file import open_plain, read_plain

SCHEMA = 1
MOST_PLAN_BYTES = 2**24
MOST_LINE_BYTES = 2**20  # far more than 500 points and 1000 samples take
MOST_LINES = 500_000  # of a result: a line every 15 s for three months
_MOST_NOTES = 100
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
                f"{len(text)} characters",
                f"not a plan of version {SCHEMA} ({error})",
                "use the same package version on both sides",
            ) from error

    @classmethod
    def read(cls, path: Path) -> Self:
        """The plan in a file. Raises JobSpecError: not to be read, not a plan of this version, above 16 MiB."""
        try:
            text = read_plain(os.path.realpath(path), MOST_PLAN_BYTES).decode()  # a ConfigMap's files are links
        except (OSError, ValueError) as error:
            problem = f"cannot be read: {error.strerror if isinstance(error, OSError) else error}"
            raise JobSpecError.of("plan", str(path)[:200], problem, "give the path of a plan") from error
        return cls.from_json(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a result.

    ``start``: a process took the plan (``start_id`` is random: two starts under one key are two observations).
    ``attempt``: an attempt begins. ``beat``: partial sums, new profile samples, power points. ``end``: that attempt is
    over in ``state``. ``final``: ``attempt`` is the kept one, None when no model was kept; nothing follows it.
    A line is small whatever a training tells: texts are cut, the newest samples are kept, points are thinned.
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

    def __post_init__(self) -> None:
        seen = self.observation
        small = {
            "reason": None if self.reason is None else brief(self.reason),
            "observation": None if seen is None else bounded(seen),
            "profile": few_samples(self.profile),
            "points": few_points(self.points),
        }
        for name, value in small.items():
            object.__setattr__(self, name, value)

    def to_json(self) -> str:
        """One line of JSON, without the line feed."""
        data = {k: v for k, v in asdict(self).items() if v is not None and v not in ((), {})}
        if self.observation is not None:
            data["observation"] = {k: v for k, v in self.observation.to_dict().items() if v is not None}
        return json.dumps({"v": SCHEMA, **data}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read one line. Raises ValueError when it is not a line of this version (cut off by a death, say).

        The error repeats nothing of the text, which may be of any file.
        """
        if len(text) > MOST_LINE_BYTES:
            raise ValueError(f"a line is longer than {MOST_LINE_BYTES} bytes")
        try:
            data = json.loads(text, parse_constant=_refused)
            if data.pop("v") != SCHEMA:
                raise ValueError("another version")
            return cls._of(data)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            raise ValueError(f"not a result line of version {SCHEMA}") from None

    @classmethod
    def _of(cls, data: dict[str, Any]) -> Self:
        if "state" in data:
            data["state"] = State(data["state"])
        if "observation" in data:
            data["observation"] = Observation.from_dict(data["observation"])
        data["profile"] = tuple(ProfileSample(**s) for s in data.get("profile", ()))
        data["points"] = tuple(PowerPoint(**p) for p in data.get("points", ()))
        notes = list(data.get("notes", {}).items())[:_MOST_NOTES]
        data["notes"] = {brief(name): float(value) for name, value in notes}
        check("notes", "numbers", list(data["notes"].values()))
        check_fields(*data["profile"], *data["points"])  # before they are thinned
        line = cls(**data)
        check_fields(line, line.observation or Observation())
        if line.kind not in get_args(Kind) or line.state is State.RUNNING:  # which is the end of nothing
            raise ValueError("no kind of line")
        return line


class ResultWriter:
    """Appends lines to a result file, each at once: what is written survives the death of the process.

    A line that an earlier death cut off is removed first, so that the file holds whole lines only. A file that is there
    is appended to only where it is this user's, or its folder's owner's, and no link. Raises OSError, ValueError.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = self._opened()
        self._file.truncate(_end_of_lines(self._file.fileno()))

    def __call__(self, line: Line) -> None:
        """Write one line. Raises OSError when it does not fit, and leaves nothing of it, nor an empty file."""
        if self._file.closed:
            self._file = self._opened()
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

    def _opened(self) -> io.FileIO:
        owners = {os.geteuid(), self._path.parent.stat().st_uid}
        return io.FileIO(open_plain(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, owners=owners), "ab+")


def read_result(path: Path) -> Iterator[Line]:
    """Lines of a result file in order; a last line that is not (yet) whole is left out. Raises OSError, ValueError."""
    with open(open_plain(path), "rb") as file:
        yield from read_lines(file)


def read_lines(file: BinaryIO) -> Iterator[Line]:
    """Lines of an opened result; a last line that is not whole is left out.

    Raises ValueError, which repeats nothing of the file: one is no line, or too long, or there are too many.
    """
    for number in range(1, MOST_LINES + 2):
        text = file.readline(MOST_LINE_BYTES + 1)
        if not text.endswith(b"\n"):
            if len(text) > MOST_LINE_BYTES:
                raise ValueError(f"line {number} is longer than {MOST_LINE_BYTES} bytes")
            return
        if number > MOST_LINES:
            raise ValueError(f"it has more than {MOST_LINES} lines")
        try:
            line = Line.from_json(text.decode())
        except ValueError:
            raise ValueError(f"line {number} is no result line of version {SCHEMA}") from None
        yield line


def _end_of_lines(descriptor: int) -> int:
    """Where the last whole line of a file ends [bytes]. Raises ValueError where no line is that long."""
    size = os.fstat(descriptor).st_size
    begin = max(size - MOST_LINE_BYTES, 0)
    end = os.pread(descriptor, size - begin, begin).rfind(b"\n") + 1
    if begin and not end:
        raise ValueError("it is there and is no result")
    return begin + end


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
