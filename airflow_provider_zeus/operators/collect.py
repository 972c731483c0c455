"""Collect the results of a training on another host, from a folder of result files or from an XCom.

Such a training may write anything there. So every part has a size limit, what is no result is left out, and no warning
repeats what was read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.size_bounds import MOST_SAMPLES, truncated
from airflow_provider_zeus.model.trial import LOST, NO_RESULT, PLAIN, Observation, State
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

Start = list[ResultLine]  # the lines of one start of the plan, in order

MOST_STARTS = 100  # of one plan; each is a row of the log
_MOST_KEPT = 1000  # lines of all starts of a result, heartbeats merged into the next line not counted

log = guarded_log(__name__)


class FirstStarts:
    """Keeps the lines of the first 100 starts of a plan, since each start is a row of the log. Warns once of others."""

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
            log.warning("Zeus: over %d processes started with one plan; what the others say is dropped.", MOST_STARTS)
        return False


def starts_in_folder(folder: Path) -> list[Start]:
    """Read the result files of a folder; return the first 100 starts, oldest first. Warns of what is no result.

    A result file is a plain file of the folder's owner without a second hard link. Neither the file, nor the folder,
    nor the folder's parent may be a symbolic link.
    """
    try:
        with opened_folder(folder) as descriptor:
            found = _read_files(descriptor)
    except FileNotFoundError:
        return []
    except OSError as error:
        problem = f"{error.strerror}; it and its parent must be folders, not links"
        log.warning("Zeus: the results in %s cannot be read: %s.", visible(folder), problem)
        return []
    starts = [start for _, _, of_file in sorted(found, key=lambda f: f[:2]) for start in of_file]
    first = FirstStarts()
    return [start for start in starts if first.kept(start)]


def _read_files(folder: int, most_bytes: int = 2**28) -> list[tuple[float, str, list[Start]]]:
    """Return (time of last change, name, starts) of each result file. Raises OSError: the folder cannot be listed."""
    found, left, owner = [], most_bytes, os.fstat(folder).st_uid
    kept, lines_left = 0, iter(range(MOST_LINES))
    names = names_in(folder, ".jsonl", most_looked_at=10_000)
    if len(names) > MOST_STARTS:
        log.warning("Zeus: %d result files lie in one folder; %d are read.", len(names), MOST_STARTS)
    for name in names[:MOST_STARTS]:
        try:
            with open(open_plain(name, folder=folder, owners={owner}), "rb") as file:
                status = os.fstat(file.fileno())
                left -= status.st_size
                if left < 0:
                    raise ValueError(f"the result files have more than {most_bytes} bytes")
                starts = by_start(_lines_up_to(file, status.st_size, lines_left))
                kept += sum(map(len, starts))
                if kept > _MOST_KEPT:
                    raise ValueError(f"the result files have more than {_MOST_KEPT} lines that are kept")
                found.append((status.st_mtime, name, starts))
        except (OSError, ValueError) as error:  # neither repeats what was read
            said = error.strerror if isinstance(error, OSError) else error
            log.warning("Zeus: %s is not a result that can be read: %s", visible(name), said)
    return found


def _lines_up_to(file: BinaryIO, most_bytes: int, lines_left: Iterator[int]) -> Iterator[ResultLine]:
    """Lines within the size that the file had when it was opened: it may grow. Raises ValueError: too many lines."""
    for line in read_lines(file):
        if file.tell() > most_bytes:
            return
        if next(lines_left, None) is None:
            raise ValueError(f"the result files have more than {MOST_LINES} lines")
        yield line


def starts_in_xcom(value: Any, result_key: str, most: int = 2**26) -> list[Start]:
    """Read the document ``{"zeus": {"lines": [...]}}`` of an XCom, or its text; empty where it is something else.

    :param most: characters of that text, the user's own value included.
    """
    try:
        if isinstance(value, str) and len(value) > most:
            raise ValueError(f"longer than {most} characters")
        document = json.loads(value) if isinstance(value, str) else value
        lines = document[result_key]["lines"]
        if not isinstance(lines, list) or len(lines) > _MOST_KEPT:
            raise ValueError(f"no list of at most {_MOST_KEPT} lines")
        return by_start(ResultLine.from_json(json.dumps(line)) for line in lines)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return []


def by_start(lines: Iterable[ResultLine]) -> list[Start]:
    """Group lines by their start, in order of first appearance; merge a heartbeat into the next line of its attempt.

    Raises ValueError: more lines than any training has.
    """
    starts: dict[str, Start] = {}
    lines, first = iter(lines), FirstStarts()
    while some := list(islice(lines, 100)):  # a merge costs as much as the news that wait
        for line in first.kept(some):
            starts.setdefault(line.start_id, []).append(line)
        starts = {start_id: folded(start) for start_id, start in starts.items()}
        if sum(map(len, starts.values())) > _MOST_KEPT:
            raise ValueError(f"it has more than {_MOST_KEPT} lines that are kept")
    return list(starts.values())


def open_attempts(start: Sequence[ResultLine]) -> list[ResultLine]:
    """Return the newest line of each attempt that began and did not end, with the newest sums of that attempt."""
    newest: dict[int | None, ResultLine] = {}
    ended = {line.attempt for line in start if line.kind == "end"}
    for line in start:
        if line.kind in ("attempt", "beat") and line.attempt not in ended:
            before = newest.get(line.attempt, line)
            newest[line.attempt] = replace(line, observation=line.observation or before.observation)
    return list(newest.values())


def report_all(
    starts: Sequence[Start],
    reporter: ResultReporter,
    plan: Plan,
    *,
    starts_seen: int | None = None,
    no_start_reason: str | None = None,
    ended_well: bool = False,
    folder: str | None = None,
) -> None:
    """Report the outcome of every start of a plan. Raises nothing: what the store does not take is kept for later.

    :param starts_seen: number of the task's newest start, if known; starts without a result get a row without a cost.
    :param no_start_reason: why there are no starts, if known.
    :param ended_well: the training ended well and left nothing: its model is kept, of which nothing is known.
    :param folder: of the result files, where a process other than rank 0 may have left that it ran out of memory.
    """
    sender, first = ResultSender(reporter), (plan.first_attempt, plan.attempts[0].batch_size)
    first_starts = FirstStarts()  # a folder and an XCom may have as many each
    starts = [start for start in starts if first_starts.kept(start)]
    first_is_open = bool(starts)
    for start in _within_limits(starts):
        known = LinesOfPlan(plan).known(start)
        for line in known:
            sender.put(line)
        open_ones = open_attempts(known)
        for newest in open_ones:
            reason = f"the process died: {NO_RESULT} after its last heartbeat"
            observation = newest.observation or Observation()
            end = replace(newest, kind="end", state=State.FAILED, reason=reason, observation=observation)
            end = with_memory_of_others(end, folder and f"{folder}/", plan.ti_id)
            sender.put(replace(end, profile=(), points=()))  # they went with the newest line
        never_trained = not open_ones and not any(line.kind == "end" for line in known)
        if never_trained:
            sender.put(without_cost(start[0].start_id, *first, "the process died before it trained", began=False))
        if never_trained or any(line.attempt == plan.first_attempt for line in known):
            first_is_open = False
    if first_is_open:  # all starts speak of later attempts alone
        sender.put(without_cost("", *first, "nothing was reported of this attempt", began=False))
    if not starts:
        end = without_cost("", *first, no_start_reason or NO_RESULT, began=no_start_reason is None)
        seen = end.observation
        if ended_well and seen is not None:
            seen = replace(seen, reasons={**seen.reasons, PLAIN: NOT_STOPPED})
            end = replace(end, state=State.NO_METRIC, observation=seen)
        sender.put(end)
        if ended_well:
            sender.put(ResultLine(kind="final", start_id="", attempt=first[0]))
    for number in range(len(starts), starts_seen or 0):
        sender.put(without_cost(f"lost-{number}", *first, LOST))


def newest_start(starts: Sequence[Start]) -> int | None:
    """Return the highest number of a start, counted by the task's tries under this plan; None where none gives one."""
    numbers = (line.try_number or 0 for start in starts for line in start)
    return max((number for number in numbers if 0 < number <= MOST_STARTS), default=None)


class LinesOfPlan:
    """Keeps the lines of attempts that a plan has, up to the first end of each in one start. Warns once of others.

    That an attempt began is kept once for each start: such a line waits for the log.
    """

    def __init__(self, plan: Plan) -> None:
        self._attempts = range(plan.first_attempt, plan.first_attempt + len(plan.in_order))
        self._sizes = plan.job.batch_sizes
        self._begun: set[tuple[str, int | None]] = set()
        self._ended: set[tuple[str, int | None]] = set()
        self._warned = False

    def known(self, lines: Sequence[ResultLine]) -> list[ResultLine]:
        """Return those of the next lines that are kept."""
        of_attempts = [line for line in lines if line.kind not in ("start", "final")]
        unknown = {line.attempt for line in of_attempts if not self._has(line)}
        if unknown:
            of = f"{len(unknown)} attempts" if len(unknown) > 1 else f"attempt {unknown.pop()}"
            self._warn(f"lines of {of}, which the plan does not have, are left out")
        kept = []
        for line in lines:
            attempt, is_end = (line.start_id, line.attempt), line.kind == "end"
            if line.kind not in ("start", "final"):
                if is_end and attempt in self._ended and self._has(line):
                    self._warn(f"a second end of attempt {line.attempt} is left out")
                if attempt in self._ended or not self._has(line):
                    continue
            if line.kind == "attempt":
                if attempt in self._begun:
                    continue
                self._begun.add(attempt)
            if is_end:
                self._ended.add(attempt)
            kept.append(line)
        return kept

    def _has(self, line: ResultLine) -> bool:
        """Whether the plan has the attempt; one more may follow, with a size that fits a small slice."""
        is_one_more = line.attempt == self._attempts.stop
        return line.attempt in self._attempts or (is_one_more and line.batch_size in self._sizes)

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("Zeus: %s.", what)


def _within_limits(starts: Sequence[Start]) -> list[Start]:
    """Cut the starts to 1000 profile samples, 10,000 power points and 1 MiB of other JSON in all, the first ones first.

    A line beyond the last limit keeps its sums alone.
    """
    samples_left, points_left, room = MOST_SAMPLES, 10_000, 2**20
    kept = []
    for start in starts:
        lines = []
        for line in start:
            line = replace(line, profile=line.profile[:samples_left], points=line.points[:points_left])
            samples_left -= len(line.profile)
            points_left -= len(line.points)
            room -= len(replace(line, profile=(), points=()).to_json())
            if room < 0:  # beyond the last limit a line keeps its sums alone
                seen = line.observation
                if seen is not None:
                    model, source = (text and truncated(text, 100) for text in (seen.device_model, seen.energy_source))
                    seen = replace(seen, reasons={}, gpu_uuid=None, gpu_energy_j=None)
                    seen = replace(seen, device_model=model, energy_source=source)
                line = replace(line, reason=line.reason and truncated(line.reason, 100), observation=seen, notes={})
            lines.append(line)
        kept.append(lines)
    return kept
