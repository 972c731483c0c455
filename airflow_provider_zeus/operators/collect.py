"""What a training elsewhere left behind, a folder of result files or an XCom, and its way into the store.

Whoever trains there may write anything there. So every part has a bound, what is no result is left out, and no warning
repeats what was read.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from airflow_provider_zeus.operators.teller import Teller
from airflow_provider_zeus.optimizer.bounds import MOST_SAMPLES, brief
from airflow_provider_zeus.optimizer.trial import Observation, State
from airflow_provider_zeus.power.plain_file import named, names_in, open_plain, opened_folder
from airflow_provider_zeus.training.environment import with_memory_of_others
from airflow_provider_zeus.training.outbox import Outbox, folded
from airflow_provider_zeus.training.plan import MOST_LINES, Line, Plan, read_lines

Start = list[Line]  # the lines of one start of the plan, in order

LOST = "retried, result lost"
NO_RESULT = "no result"
MOST_STARTS = 100  # of one plan; each is a line of the ledger
_MOST_KEPT = 1000  # lines of all starts of a result, beats that went into the next line apart
_FOLDED_AT_ONCE = 100  # lines: each time costs as much as the news that wait
_MOST_XCOM = 2**26  # characters of an XCom, the user's own value included
_MOST_POINTS = 10_000  # of all starts
_MOST_SAID = 2**20  # characters of all starts, as JSON; samples and points apart
_MOST_NAMES = 10_000  # looked at in a folder
_MOST_BYTES = 2**28  # of all result files in a folder

log = logging.getLogger(__name__)


def starts_in_folder(folder: Path) -> list[Start]:
    """Starts whose result files lie in a folder, the oldest first; what is no result is left out, with a warning.

    Of the newest 100 starts. A result file is a plain file of the folder's owner with no second name. Neither it, nor
    the folder, nor the folder that this one lies in may be a symbolic link.
    """
    try:
        with opened_folder(folder) as descriptor:
            found = _results(descriptor)
    except FileNotFoundError:
        return []
    except OSError as error:
        problem = f"{error.strerror}; it and the folder that it lies in must be folders, not links"
        log.warning("Zeus: the results in %s cannot be read: %s.", named(folder), problem)
        return []
    return [start for _, _, starts in sorted(found, key=lambda f: f[:2]) for start in starts][-MOST_STARTS:]


def _results(folder: int) -> list[tuple[float, str, list[Start]]]:
    """(time of last change, name, starts) of each result file in an opened folder. Raises OSError: it has no names."""
    found, left, owner = [], _MOST_BYTES, os.fstat(folder).st_uid
    kept, lines_left = 0, iter(range(MOST_LINES))
    names = names_in(folder, ".jsonl", most_looked_at=_MOST_NAMES)
    if len(names) > MOST_STARTS:
        log.warning("Zeus: %d result files lie in one folder; %d are read.", len(names), MOST_STARTS)
    for name in names[:MOST_STARTS]:
        try:
            with open(open_plain(name, folder=folder, owners={owner}), "rb") as file:
                status = os.fstat(file.fileno())
                left -= status.st_size
                if left < 0:
                    raise ValueError(f"the result files have more than {_MOST_BYTES} bytes")
                starts = by_start(_of_these(file, status.st_size, lines_left))
                kept += sum(map(len, starts))
                if kept > _MOST_KEPT:
                    raise ValueError(f"the result files have more than {_MOST_KEPT} lines that are kept")
                found.append((status.st_mtime, name, starts))
        except (OSError, ValueError) as error:  # neither repeats what was read
            said = error.strerror if isinstance(error, OSError) else error
            log.warning("Zeus: %s is not a result that can be read: %s", named(name), said)
    return found


def _of_these(file: BinaryIO, most_bytes: int, lines_left: Iterator[int]) -> Iterator[Line]:
    """Lines that were there when the file was opened: one that grows is not followed. Raises ValueError: too many."""
    for line in read_lines(file):
        if file.tell() > most_bytes:
            return
        if next(lines_left, None) is None:
            raise ValueError(f"the result files have more than {MOST_LINES} lines")
        yield line


def starts_in_xcom(value: Any, result_key: str) -> list[Start]:
    """Starts in an XCom, the document ``{"zeus": {"lines": [...]}}`` or its text; empty where it is something else."""
    try:
        if isinstance(value, str) and len(value) > _MOST_XCOM:
            raise ValueError(f"longer than {_MOST_XCOM} characters")
        document = json.loads(value) if isinstance(value, str) else value
        lines = document[result_key]["lines"]
        if not isinstance(lines, list) or len(lines) > _MOST_KEPT:
            raise ValueError(f"no list of at most {_MOST_KEPT} lines")
        return by_start(Line.from_json(json.dumps(line)) for line in lines)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return []


def by_start(lines: Iterable[Line]) -> list[Start]:
    """Lines of each start together, in the order in which they began; a beat goes into the next line of its attempt.

    Raises ValueError: there are more starts, or more lines are left, than any training has.
    """
    starts: dict[str, Start] = {}
    lines = iter(lines)
    while some := list(islice(lines, _FOLDED_AT_ONCE)):
        for line in some:
            starts.setdefault(line.start_id, []).append(line)
        starts = {start_id: folded(start) for start_id, start in starts.items()}
        if len(starts) > MOST_STARTS or sum(map(len, starts.values())) > _MOST_KEPT:
            raise ValueError(f"it has more than {MOST_STARTS} starts or {_MOST_KEPT} lines")
    return list(starts.values())


def unended(start: Sequence[Line]) -> list[Line]:
    """The newest line of each attempt that began and did not end, with the newest sums that were seen of it."""
    newest: dict[int | None, Line] = {}
    ended = {line.attempt for line in start if line.kind == "end"}
    for line in start:
        if line.kind in ("attempt", "beat") and line.attempt not in ended:
            before = newest.get(line.attempt, line)
            newest[line.attempt] = replace(line, observation=line.observation or before.observation)
    return list(newest.values())


def tell_all(
    starts: Sequence[Start],
    teller: Teller,
    plan: Plan,
    *,
    starts_seen: int | None = None,
    never: str | None = None,
    folder: str | None = None,
) -> None:
    """Tell what every start of a plan came to. Raises nothing: what the store does not take is kept for later.

    :param starts_seen: how many times the task was started, where the newest start told; those that left no result
        are lines of the ledger without a cost.
    :param never: why there are no starts, where that is known.
    :param folder: of the result files, where another process than rank 0 may have left that it ran out of memory.
    """
    outbox = Outbox(teller)
    for start in _little(starts):
        for line in (known := _of_plan(start, plan)):
            outbox.put(line)
        for newest in (open_ones := unended(known)):
            reason = f"the process died: {NO_RESULT} after its last heartbeat"
            observation = newest.observation or Observation()
            end = replace(newest, kind="end", state=State.FAILED, reason=reason, observation=observation)
            end = with_memory_of_others(end, folder and f"{folder}/", plan.ti_id)  # a folder, whatever lies there
            outbox.put(replace(end, profile=(), points=()))  # they were told
        if not open_ones and not any(line.kind == "end" for line in known):
            outbox.put(_nothing(plan, start[0].start_id, "the process died before it trained"))
    if not starts:
        outbox.put(_nothing(plan, "", never or NO_RESULT))
    for number in range(len(starts), starts_seen or 0):
        outbox.put(_nothing(plan, f"lost-{number}", LOST))


def starts_told(starts: Sequence[Start]) -> int | None:
    """Number of the newest start, counted by the task's tries under this plan; None where none told."""
    told = (line.try_number or 0 for start in starts for line in start)
    return max((number for number in told if 0 < number <= MOST_STARTS), default=None)


def _of_plan(start: Sequence[Line], plan: Plan) -> Start:
    """The lines that can be told: of attempts that the plan has, up to the first end of each."""
    attempts = range(plan.first_attempt, plan.first_attempt + len(plan.in_order))
    ended: set[int | None] = set()
    known = []
    unknown = {line.attempt for line in start if line.kind not in ("start", "final")}.difference(attempts)
    if unknown:
        of = f"{len(unknown)} attempts" if len(unknown) > 1 else f"attempt {unknown.pop()}"
        log.warning("Zeus: lines of %s, which the plan does not have, are left out.", of)
    for line in start:
        if line.kind not in ("start", "final"):
            if line.attempt not in attempts:
                continue
            if line.attempt in ended:
                continue
            if line.kind == "end":
                ended.add(line.attempt)
        known.append(line)
    return known


def _little(starts: Sequence[Start]) -> list[Start]:
    """The starts with so much in all: 1000 profile samples, 10,000 power points, 1 MiB of other words and figures.

    The first ones; a line for which no room is left keeps its sums alone.
    """
    samples_left, points_left, room = MOST_SAMPLES, _MOST_POINTS, _MOST_SAID
    kept = []
    for start in starts:
        lines = []
        for line in start:
            line = replace(line, profile=line.profile[:samples_left], points=line.points[:points_left])
            samples_left -= len(line.profile)
            points_left -= len(line.points)
            room -= len(replace(line, profile=(), points=()).to_json())
            lines.append(line if room >= 0 else _sums_of(line))
        kept.append(lines)
    return kept


def _sums_of(line: Line) -> Line:
    seen = line.observation
    if seen is not None:
        model, source = (text and brief(text, 100) for text in (seen.device_model, seen.energy_source))
        seen = replace(seen, reasons={}, gpu_uuid=None, gpu_energy_j=None, device_model=model, energy_source=source)
    return replace(line, reason=line.reason and brief(line.reason, 100), observation=seen, notes={})


def _nothing(plan: Plan, start_id: str, reason: str) -> Line:
    return Line(
        kind="end",
        start_id=start_id,
        attempt=plan.first_attempt,
        batch_size=plan.attempts[0].batch_size,
        state=State.FAILED,
        reason=reason,
        observation=Observation(reasons=dict.fromkeys(("energy_j", "time_s", "epochs"), reason)),
    )
