"""Collect the results of a training on another host, from a folder of result files or from an XCom.

Such a training may write anything there. So every part has a size limit, anything else than
a result is left out, and no warning repeats the texts of such a file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.groups import grouped
from airflow_provider_zeus.model.partial_sums import joined
from airflow_provider_zeus.model.size_bounds import MOST_SAMPLES, truncated
from airflow_provider_zeus.model.trial import LOST, NO_RESULT, PLAIN, State
from airflow_provider_zeus.operators.external_meter import NOT_STOPPED
from airflow_provider_zeus.operators.result_reporter import ResultReporter
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.training.protocol.environment import with_memory_of_others
from airflow_provider_zeus.training.protocol.events import (
    MOST_LINES,
    ResultLine,
    ResultSender,
    folded,
    read_lines,
    without_cost,
)
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.untrusted_files import names_in, open_plain, opened_folder

Start = list[ResultLine]

MOST_STARTS = 100  # each is a row of the log, and a hostile file may have any number
# A hostile result may have any number of lines, and each takes memory.
_MOST_KEPT = 1000

log = guarded_log(__name__)


class ResultFile(NamedTuple):
    """A result file: when it was last changed [s since the epoch], its name and its starts."""

    changed_s: float
    name: str
    starts: list[Start]


class FirstStarts:
    """Keeps the lines of the first 100 starts of a plan, since each start is a row of the log.

    Warns once of others.
    """

    def __init__(self) -> None:
        self._start_ids: set[str] = set()
        self._warned = False

    def kept(self, lines: Iterable[ResultLine]) -> list[ResultLine]:
        """Those of the next lines that are kept."""
        return [line for line in lines if self._keeps(line.start_id)]

    def _keeps(self, start_id: str) -> bool:
        if start_id in self._start_ids:
            return True
        if len(self._start_ids) < MOST_STARTS:
            self._start_ids.add(start_id)
            return True
        if not self._warned:
            self._warned = True
            log.warning(
                "Zeus: over %d processes started with one plan; what the others say is dropped.",
                MOST_STARTS,
            )
        return False


def starts_in_folder(folder: Path) -> list[Start]:
    """Read the result files of a folder; return the first 100 starts, oldest first.

    Warns of other files.

    A result file is a plain file of the folder's owner without a second hard link. Neither the
    file, nor the folder, nor the folder's parent may be a symbolic link.
    """
    try:
        with opened_folder(folder) as descriptor:
            files = _read_files(descriptor)
    except FileNotFoundError:
        return []
    except OSError as error:
        problem = f"{error.strerror}; it and its parent must be folders, not links"
        log.warning("Zeus: the results in %s cannot be read: %s.", visible(folder), problem)
        return []
    # by age: only the first hundred starts are kept, and the order of a folder's names is any
    files.sort(key=lambda file: (file.changed_s, file.name))
    first = FirstStarts()
    return [start for file in files for start in file.starts if first.kept(start)]


def _read_files(folder: int, most_bytes: int = 2**28) -> list[ResultFile]:
    """Read the result files of a folder. Raises OSError: it cannot be listed."""
    files = []
    bytes_left = most_bytes
    # another user of the host could put a file beside those of the training
    owner = os.fstat(folder).st_uid
    kept = 0
    lines_left = iter(range(MOST_LINES))
    names = names_in(folder, ".jsonl", most_looked_at=10_000)
    if len(names) > MOST_STARTS:
        log.warning(
            "Zeus: %d result files lie in one folder; %d are read.", len(names), MOST_STARTS
        )
    for name in names[:MOST_STARTS]:
        try:
            with open(open_plain(name, folder=folder, owners={owner}), "rb") as file:
                status = os.fstat(file.fileno())
                # counted before it is read: one large file must not take the
                # worker's memory
                bytes_left -= status.st_size
                if bytes_left < 0:
                    raise ValueError(f"the result files have more than {most_bytes} bytes")
                starts = by_start(_lines_up_to(file, status.st_size, lines_left))
                kept += sum(map(len, starts))
                if kept > _MOST_KEPT:
                    raise ValueError(
                        f"the result files have more than {_MOST_KEPT} lines that are kept"
                    )
                files.append(ResultFile(status.st_mtime, name, starts))
        # Both are safe to log: neither repeats the text of a file that may be hostile.
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", error)
            log.warning("Zeus: %s is not a result that can be read: %s", visible(name), why)
    return files


def _lines_up_to(
    file: BinaryIO, most_bytes: int, lines_left: Iterator[int]
) -> Iterator[ResultLine]:
    """Lines within the size that the file had when it was opened: it may grow.

    Raises ValueError: too many lines.
    """
    for line in read_lines(file):
        if file.tell() > most_bytes:
            return
        if next(lines_left, None) is None:
            raise ValueError(f"the result files have more than {MOST_LINES} lines")
        yield line


def starts_in_xcom(value: Any, result_key: str, most: int = 2**26) -> list[Start]:
    """Read the document ``{"zeus": {"lines": [...]}}`` of an XCom, or its text; empty if it is
    something else.

    :param most: characters of that text, the user's own value included.
    """
    try:
        if isinstance(value, str):
            # an XCom is the training's to write: it may be of any length
            if len(value) > most:
                raise ValueError(f"longer than {most} characters")
            value = json.loads(value)
        lines = value[result_key]["lines"]
        if not isinstance(lines, list) or len(lines) > _MOST_KEPT:
            raise ValueError(f"no list of at most {_MOST_KEPT} lines")
        return by_start(ResultLine.from_json(json.dumps(line)) for line in lines)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return []


def by_start(lines: Iterable[ResultLine]) -> list[Start]:
    """Group lines by their start, in order of first appearance; merge a heartbeat into the next
    line of its attempt.

    Raises ValueError: more lines than any training has.
    """
    starts: dict[str, Start] = {}
    lines = iter(lines)
    first = FirstStarts()
    # By the hundred: each merge goes through all news that wait.
    while some := list(islice(lines, 100)):
        for line in first.kept(some):
            starts.setdefault(line.start_id, []).append(line)
        starts = {start_id: folded(start) for start_id, start in starts.items()}
        if sum(map(len, starts.values())) > _MOST_KEPT:
            raise ValueError(f"it has more than {_MOST_KEPT} lines that are kept")
    return list(starts.values())


def open_attempts(start: Sequence[ResultLine]) -> list[ResultLine]:
    """Return the newest line of each attempt that began and did not end, with the newest sums of
    that attempt.
    """
    ended = {line.attempt for line in start if line.kind == "end"}
    running = [line for line in start if line.kind in ("attempt", "beat")]
    lines_of = grouped(running, attrgetter("attempt"))
    # a later heartbeat has newer sums, but only its own samples and points
    return [joined(lines) for attempt, lines in lines_of.items() if attempt not in ended]


def report_all(
    starts: Sequence[Start],
    reporter: ResultReporter,
    plan: Plan,
    *,
    starts_seen: int = 0,
    no_start_reason: str | None = None,
    ended_well: bool = False,
    folder: str | None = None,
) -> None:
    """Report the outcome of every start of a plan.

    Raises nothing: a line that the store does not take is kept for later.

    :param starts_seen: :func:`newest_start` of the task; starts without a result get a row without
        a cost.
    :param no_start_reason: why there are no starts, if known.
    :param ended_well: the training ended well and left no start: its model is kept, of which
        nothing is known.
    :param folder: of the result files, in which a process other than rank 0 may have left that it
        ran out of memory.
    """
    sender = ResultSender(reporter)
    first = (plan.first_attempt, plan.attempts[0].batch_size)
    first_starts = FirstStarts()  # a folder and an XCom may have the most each
    starts = [start for start in starts if first_starts.kept(start)]
    trained = set[int | None]()
    for start in _within_limits(starts):
        attempts = _report_start(start, sender, plan, folder)
        if not attempts:
            reason = "the process died before it trained"
            sender.put(without_cost(start[0].start_id, *first, reason, began=False))
        trained |= attempts or {plan.first_attempt}
    if ended_well:
        sender.put(_ended_well(without_cost("", *first, NO_RESULT)))
        sender.put(ResultLine(kind="final", start_id="", attempt=plan.first_attempt))
    elif not starts:
        reason = no_start_reason or NO_RESULT
        sender.put(without_cost("", *first, reason, began=no_start_reason is None))
    # Else the first attempt, of which no start speaks, would stay open until its lease ends.
    elif plan.first_attempt not in trained:
        sender.put(without_cost("", *first, "nothing was reported of this attempt", began=False))
    # each start that left nothing has cost energy, and so gets a row without figures
    for number in range(len(starts), starts_seen):
        sender.put(without_cost(f"lost-{number}", *first, LOST))


def _report_start(
    start: Start, sender: ResultSender, plan: Plan, folder: str | None
) -> set[int | None]:
    """Send the lines of one start, and an end of each attempt that it left open; return the
    attempts that it trained.
    """
    lines = LinesOfPlan(plan).known(start)
    for line in lines:
        sender.put(line)
    result = None if folder is None else f"{folder}/"
    for newest in open_attempts(lines):
        # a process that was killed wrote no end, and its attempt would stay open until its
        # lease ends
        end = replace(
            newest,
            kind="end",
            state=State.FAILED,
            reason=f"the process died: {NO_RESULT} after its last heartbeat",
            observation=newest.figures,
        )
        end = with_memory_of_others(end, result, plan.ti_id)
        # The newest line has brought samples and points: twice they would count twice.
        sender.put(replace(end, profile=(), points=()))
    return {line.attempt for line in lines if line.kind in ("attempt", "beat", "end")}


def _ended_well(end: ResultLine) -> ResultLine:
    """The end of a training that left nothing, as that of one whose model is kept."""
    observation = replace(end.figures, reasons={**end.figures.reasons, PLAIN: NOT_STOPPED})
    return replace(end, state=State.NO_METRIC, observation=observation)


def newest_start(starts: Sequence[Start]) -> int:
    """Return the highest number of a start, counted by the task's tries under this plan; 0 if none
    gives one.
    """
    numbers = [line.try_number or 0 for line in chain.from_iterable(starts)]
    return max([number for number in numbers if 0 <= number <= MOST_STARTS], default=0)


class LinesOfPlan:
    """Keeps the lines of attempts that a plan has, up to the first end of each in one start.

    Warns once of others.

    That an attempt began is kept once for each start: such a line waits for the log.
    """

    def __init__(self, plan: Plan) -> None:
        self._attempts = range(plan.first_attempt, plan.first_attempt + len(plan.in_order))
        self._numbers = plan.numbers
        self._sizes = plan.job.batch_sizes
        self._said: set[tuple[object, str]] = set()
        self._warned = False

    def known(self, lines: Sequence[ResultLine]) -> list[ResultLine]:
        """Return those of the next lines that are kept."""
        unknown = {line.number for line in lines if not self._has(line)}
        if unknown:
            of = f"{len(unknown)} attempts"
            if len(unknown) == 1:
                of = f"attempt {self._numbers.attempt(unknown.pop())}"
            self._warn(f"lines of {of}, which the plan does not have, are left out")
        return [line for line in lines if self._has(line) and self._is_new(line)]

    def _has(self, line: ResultLine) -> bool:
        """Whether the plan has the line's attempt; one more may follow, with a size that fits a
        small slice.
        """
        if line.kind in ("start", "final") or line.attempt in self._attempts:
            return True
        return line.attempt == self._attempts.stop and line.batch_size in self._sizes

    def _is_new(self, line: ResultLine) -> bool:
        """Whether a line says more of its attempt than those before; remembers that it began or
        ended.
        """
        if line.kind in ("start", "final"):
            return True
        # a file may be changed after the training: the first end of an attempt counts
        if (line.start_attempt, "end") in self._said:
            if line.kind == "end":
                number = self._numbers.attempt(line.number)
                self._warn(f"a second end of attempt {number} is left out")
            return False
        if line.kind == "beat":
            return True
        says = (line.start_attempt, line.kind)
        is_new = says not in self._said
        self._said.add(says)
        return is_new

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("Zeus: %s.", text)


def _within_limits(starts: Sequence[Start]) -> list[Start]:
    """Cut the starts to 1000 profile samples, 10,000 power points and 1 MiB of other JSON in all,
    the first ones first.

    A line beyond the last limit keeps its sums alone.
    """
    # Over all starts: a hostile folder may have a hundred, and each is written to the log.
    samples_left = MOST_SAMPLES
    points_left = 10_000
    room = 2**20
    kept = []
    for start in starts:
        lines = []
        for line in start:
            line = replace(
                line, profile=line.profile[:samples_left], points=line.points[:points_left]
            )
            samples_left -= len(line.profile)
            points_left -= len(line.points)
            room -= len(replace(line, profile=(), points=()).to_json())
            lines.append(line if room >= 0 else _sums_alone(line))
        kept.append(lines)
    return kept


def _sums_alone(line: ResultLine) -> ResultLine:
    observation = line.observation
    if observation is not None:
        observation = replace(
            observation,
            reasons={},
            gpu_uuid=None,
            gpu_energy_j=None,
            device_model=_short(observation.device_model),
            energy_source=_short(observation.energy_source),
        )
    return replace(line, reason=_short(line.reason), observation=observation, notes={})


def _short(text: str | None) -> str | None:
    return None if text is None else truncated(text, 100)
