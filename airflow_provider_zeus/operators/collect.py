"""What a training elsewhere left behind, a folder of result files or an XCom, and its way into the store."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_zeus.operators.teller import Teller
from airflow_provider_zeus.optimizer.trial import Observation, State
from airflow_provider_zeus.power.plain_file import open_plain
from airflow_provider_zeus.training.environment import with_memory_of_others
from airflow_provider_zeus.training.outbox import Outbox
from airflow_provider_zeus.training.plan import Line, Plan, read_lines

Start = list[Line]  # the lines of one start of the plan, in order

LOST = "retried, result lost"
NO_RESULT = "no result"
MOST_TRIES = 1000  # of one task; a higher number is a mistake, and each would be a line of the ledger

log = logging.getLogger(__name__)


def starts_in_folder(folder: Path) -> list[Start]:
    """Starts whose result files lie in a folder, the oldest first; what is no result is left out, with a warning."""
    found = []
    for path in folder.glob("*.jsonl"):
        try:
            with open(open_plain(path), "rb") as file:
                found.append((path.stat().st_mtime, path.name, by_start(read_lines(file.read()))))
        except (OSError, ValueError, TypeError) as error:
            log.warning("Zeus: %s is not a result that can be read: %s", path, error)
    return [start for _, _, starts in sorted(found, key=lambda f: f[:2]) for start in starts]


def starts_in_xcom(value: Any, result_key: str) -> list[Start]:
    """Starts in an XCom, the document ``{"zeus": {"lines": [...]}}`` or its text; empty where it is something else."""
    try:
        document = json.loads(value) if isinstance(value, str) else value
        lines = document[result_key]["lines"]
        return by_start(Line.from_json(json.dumps(line)) for line in lines)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return []


def by_start(lines: Iterable[Line]) -> list[Start]:
    """Lines of each start together, in the order in which they began."""
    starts: dict[str, Start] = {}
    for line in lines:
        starts.setdefault(line.start_id, []).append(line)
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
    for start in starts:
        for line in (known := _of_plan(start, plan)):
            outbox.put(line)
        for newest in (open_ones := unended(known)):
            reason = f"the process died: {NO_RESULT} after its last heartbeat"
            observation = newest.observation or Observation()
            end = replace(newest, kind="end", state=State.FAILED, reason=reason, observation=observation)
            end = with_memory_of_others(end, folder, plan.ti_id)
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
    return max((number for number in told if 0 < number <= MOST_TRIES), default=None)


def _of_plan(start: Sequence[Line], plan: Plan) -> Start:
    """The lines that can be told: of attempts that the plan has, up to the first end of each."""
    attempts = range(plan.first_attempt, plan.first_attempt + len(plan.in_order))
    ended: set[int | None] = set()
    known = []
    for line in start:
        if line.kind not in ("start", "final"):
            if line.attempt not in attempts:
                log.warning("Zeus: a line of attempt %r, which the plan does not have, is left out.", line.attempt)
                continue
            if line.attempt in ended:
                continue
            if line.kind == "end":
                ended.add(line.attempt)
        known.append(line)
    return known


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
