"""The result: the reports of a training process. JSON lines; the last one is ``final``.

Two threads may send them: in order, each one until its sink has taken it.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self
from uuid import uuid4

from airflow_provider_zeus.log_guard import guarded_log, level
from airflow_provider_zeus.model.partial_sums import bounded_points, joined
from airflow_provider_zeus.model.size_bounds import MOST_SAMPLES, truncated, truncated_observation
from airflow_provider_zeus.model.trial import (
    NO_STRIKE,
    Observation,
    PowerPoint,
    ProfileSample,
    State,
)
from airflow_provider_zeus.model.wire import Count, StartId, decode, encode, parse, without_none
from airflow_provider_zeus.untrusted_files import open_plain

if TYPE_CHECKING:
    from airflow_provider_zeus.training.attempt import LiveAttempt

SCHEMA = 1
MOST_LINE_BYTES = 2**20  # far more than 500 points and 1000 samples take
MOST_LINES = 500_000  # a line every 15 s for three months: more is no result
# A line may be read long after it was written: the hours of a training are priced by this.
ENDED_AT_S = "ended_at_s"
AUTHORS = "authors"  # no relief runs after such an end: another batch size would not mend it
# A training in another process knows the samples of its slice, and its starter the sizes to try.
TOO_FEW = "too_few"
Kind = Literal["start", "attempt", "beat", "end", "final"]

log = guarded_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultLine:
    """One line of a result.

    ``start``: a process took the plan (``start_id`` is random: two starts under one key are two
    observations; ``try_number``: of its task, if known). ``attempt``: an attempt begins. ``beat``:
    partial sums, new profile samples, power points. ``end``: that attempt is over in ``state``.
    ``final``: ``attempt`` is the kept one, None when no model was kept; nothing follows it. A line
    has a limited size: texts are cut, only the newest samples stay, points are thinned.

    Notes of a failed end: :data:`AUTHORS`: it was not within an epoch, or of a kind that no other
    batch size would mend; :data:`TOO_FEW`: samples of the slice, fewer than the batch size; 0: not
    known.
    """

    kind: Kind
    start_id: StartId
    try_number: Count | None = None
    attempt: Count | None = None
    batch_size: int | None = None
    state: State | None = None
    reason: str | None = None
    observation: Observation | None = None
    # New ones alone, of points too: with all of them a file would grow with its square.
    profile: tuple[ProfileSample, ...] = ()
    points: tuple[PowerPoint, ...] = ()
    notes: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.reason is not None:
            object.__setattr__(self, "reason", truncated(self.reason))
        if self.observation is not None:
            object.__setattr__(self, "observation", truncated_observation(self.observation))
        object.__setattr__(self, "profile", tuple(self.profile[-MOST_SAMPLES:]))
        object.__setattr__(self, "points", bounded_points(self.points))

    @property
    def start_attempt(self) -> tuple[str, int | None]:
        """(start id, number) of the attempt."""
        return self.start_id, self.attempt

    @property
    def number(self) -> int:
        """Number of the attempt; 0: the line is of none."""
        return self.attempt or 0

    @property
    def ended_in(self) -> State:
        """The state of an end; one that names none is of a failure."""
        return self.state or State.FAILED

    @property
    def figures(self) -> Observation:
        """The observation; an empty one if there is none."""
        return self.observation or Observation()

    def to_json(self) -> str:
        """One line of JSON, without the line feed."""
        data = {name: value for name, value in encode(self).items() if value not in (None, [], {})}
        if self.observation is not None:
            data["observation"] = without_none(data["observation"])
        return json.dumps({"v": SCHEMA, **data}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read one line. Raises ValueError when it is not a line of this version.

        The error does not repeat the text, which may come from any file.
        """
        if len(text) > MOST_LINE_BYTES:
            raise ValueError(f"a line is longer than {MOST_LINE_BYTES} bytes")
        most_notes = 100
        try:
            data = parse(text, SCHEMA)
            notes = list(data.get("notes", {}).items())[:most_notes]
            line = decode(
                cls, {**data, "notes": {truncated(name): float(value) for name, value in notes}}
            )
            if line.state is State.RUNNING:
                raise ValueError("running does not end an attempt")
            return line
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            raise ValueError(f"not a result line of version {SCHEMA}") from None


Sink = Callable[[ResultLine], None]


def without_cost(
    start_id: str, attempt: int, batch_size: int, reason: str, *, began: bool = True
) -> ResultLine:
    """The end of an attempt that failed and of which nothing was measured, since ``reason``.

    :param began: whether it trained, as far as is known; else its end says nothing against its
        batch size.
    """
    reasons = dict.fromkeys(("energy_j", "time_s", "epochs"), reason)
    if not began:
        reasons[NO_STRIKE] = reason
    return ResultLine(
        kind="end",
        start_id=start_id,
        attempt=attempt,
        batch_size=batch_size,
        state=State.FAILED,
        reason=reason,
        observation=Observation(reasons=reasons),
    )


class ResultWriter:
    """Appends lines to a result file, without a buffer: written lines survive the death of the
    process.

    First removes an incomplete last line of an earlier process. Appends to an existing file only if
    this user or the owner of the folder owns it, and it is no link. Several processes may write to
    one file, a line at a time. Raises OSError, ValueError.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = self._opened()
        with self._alone():
            descriptor = self._file.fileno()
            size = os.fstat(descriptor).st_size
            begin = max(size - MOST_LINE_BYTES, 0)
            # A process that died may have left a part of a line: the next one would be lost in it.
            whole = os.pread(descriptor, size - begin, begin).rfind(b"\n") + 1
            if begin and not whole:
                raise ValueError("the file exists and is no result")
            self._file.truncate(begin + whole)

    def __call__(self, line: ResultLine) -> None:
        """Write one line.

        Raises OSError when it does not fit, and then leaves no part of it and no empty file.
        """
        if self._file.closed:
            self._file = self._opened()
        with self._alone():
            data = line.to_json().encode() + b"\n"
            before = os.fstat(self._file.fileno()).st_size
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

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes of the same command from writing meanwhile; if that hangs, go on
        after a second.
        """
        descriptor = os.dup(self._file.fileno())  # a write that fails may close the file
        try:
            for _ in range(20):
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.05)
                except OSError:  # a file system without locks
                    break
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _opened(self) -> io.FileIO:
        owners = {os.geteuid(), self._path.parent.stat().st_uid}
        return io.FileIO(
            open_plain(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, owners=owners), "ab+"
        )


def read_lines(file: BinaryIO) -> Iterator[ResultLine]:
    """Lines of an open result file, without an incomplete last line.

    Raises ValueError, without any text of the file: a line is invalid or too long, or there are too
    many.
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
            line = ResultLine.from_json(text.decode())
        except ValueError:
            raise ValueError(f"line {number} is no result line of version {SCHEMA}") from None
        yield line


class ResultSender:
    """Lines that the sink did not take wait, and go before the next one.

    A failing sink never fails the training.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._start_id = uuid4().hex
        self._lock = RLock()  # a signal handler may send while its own thread does
        self._waiting: list[ResultLine] = []
        self._sending = False
        self._failing = False  # each heartbeat would repeat the warning

    def send(self, kind: Kind, live: LiveAttempt | None = None, **fields: Any) -> None:
        """Send a line; with ``live``, of that attempt, with its unsent samples and points.

        No beat follows its end.
        """
        with self._lock:
            if live is not None:
                if kind == "beat" and live.ended:
                    return
                profile, points = live.take_unsent()
                fields |= {
                    "attempt": live.number,
                    "batch_size": live.planned.batch_size,
                    "profile": profile,
                    "points": points,
                }
                if kind == "end":
                    fields["notes"] = {
                        **live.notes,
                        **fields.get("notes", {}),
                        ENDED_AT_S: time.time(),
                    }
            line = ResultLine(kind=kind, start_id=self._start_id, **fields)
            if live is not None and kind == "end":
                live.ended = True
            self.put(line)

    def put(self, line: ResultLine) -> None:
        """Send a line that exists already, after those that wait.

        A failing sink keeps them waiting.
        """
        with self._lock:
            self._waiting.append(line)
            if self._sending:  # a signal handler came in between: the send below takes its line too
                return
            self._sending = True
            try:
                self._waiting[:] = folded(self._waiting)
                while self._waiting:
                    self._sink(self._waiting[0])
                    self._waiting.pop(0)
                self._failing = False
            except Exception:
                log.log(
                    level(again=self._failing),
                    "Zeus could not write a %r line of its result; it tries again.",
                    self._waiting[0].kind,
                    exc_info=True,
                )
                self._failing = True
            finally:
                self._sending = False

    def close(self) -> None:
        """Log the figures of each end that the sink did not take; nothing is sent after that."""
        with self._lock:
            log_costs(self._waiting)


def log_costs(lines: Iterable[ResultLine]) -> None:
    """Log the figures of each end among lines that nothing took."""
    for line in lines:
        if line.kind == "end":
            text = replace(line, profile=(), points=()).to_json()
            log.error("Zeus cannot write the cost of attempt %s anywhere: %s", line.attempt, text)


def folded(lines: Iterable[ResultLine]) -> list[ResultLine]:
    """Merge each beat into the next line of its attempt, beat or end: its sums are newer, samples
    and points are added.

    So no line waits behind a beat, and after a long failure one line of at most 500 power points is
    left.
    """
    groups: list[list[ResultLine]] = []
    for line in lines:
        if groups and _goes_into(groups[-1][-1], line):
            groups[-1].append(line)
        else:
            groups.append([line])
    return [joined(group) for group in groups]


def _goes_into(beat: ResultLine, line: ResultLine) -> bool:
    """Whether a line is the next one of the same attempt as a beat, and has its sums, too."""
    is_same = beat.start_attempt == line.start_attempt
    return is_same and beat.kind == "beat" and line.kind in ("beat", "end")
