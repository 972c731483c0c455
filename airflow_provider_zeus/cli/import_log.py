"""``airflow zeus import``: takes trials of another log, or earlier trainings, into the trial log."""

from __future__ import annotations

import math
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import PurePath
from typing import TYPE_CHECKING

from airflow_provider_zeus.cli import read_export
from airflow_provider_zeus.cli.read_export import Read
from airflow_provider_zeus.cli.read_file import EARLIER, OPTIONAL, Entry, entries_of, refuse, table_of, text_of
from airflow_provider_zeus.cli.shell import command, known, opened, os_user, say
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job_checks import check_new_id
from airflow_provider_zeus.model.size_bounds import MOST_TEXT, truncated
from airflow_provider_zeus.model.trial import (
    IMPORTED,
    Decision,
    Observation,
    Origin,
    Phase,
    PlannedAttempt,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.model.wire import LATEST_S, MOST_NUMBER
from airflow_provider_zeus.store.base import History
from airflow_provider_zeus.store.sql.moving import check_elsewhere, moved_to

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store


@command
def import_(args: Namespace) -> None:
    """Take the trials of a file into the log. Writes nothing unless the whole file is good."""
    path = args.file
    about = f"{PurePath(path).name[:100]}, by {os_user()} on {time.strftime('%Y-%m-%d', time.gmtime())}"
    text = text_of(path)
    with opened(args) as store:
        histories, still_open = _read(store, text, path, args.job, about)
        if not histories:
            say(f"No closed trial in {path}.")
            return
        new = _dry(store, histories) if args.dry_run else store.take_in(histories)
        verb = "would be imported" if args.dry_run else "imported"
        for history in histories:
            count = sum(t.job_id == history.job_id for t in new)
            there = len(history.trials) - count
            say(f"{history.job_id}: {_trials(count)} {verb}" + f", {there} in the log already" * bool(there))
        if still_open:
            say(f"{_trials(still_open)} of the file left out: not closed. Export again once closed.")
        say(f"{_trials(len(new))} {verb} into {store.identity}.")


def _trials(count: int) -> str:
    return f"{count} trial{'' if count == 1 else 's'}"


def _read(store: Store, text: str, path: str, job: str | None, about: str) -> tuple[list[History], int]:
    """The histories of a file and how many open trials were left out. Raises JobSpecError."""
    if text.lstrip()[:1] in ("{", "["):
        trials, profiles = (entries_of(text, path, wanted) for wanted in ("trials", "profiles"))
        reads = ((place, read_export.of_json(place, entry)) for place, entry in trials)
        found, still_open = read_export.histories_of(reads, profiles)
    else:
        is_export, lines = table_of(text, path)
        if not is_export:
            return _earlier(store, lines, job, about), 0
        found, still_open = read_export.histories_of(
            (place, read_export.of_csv(place, cells)) for place, cells in lines
        )
    found = [_marked(history, about) for history in found]
    if job is None:
        return found, still_open
    if len(found) > 1:
        names = ", ".join(history.job_id for history in found[:5])
        raise JobSpecError.of("--job", job, f"the file has {len(found)} jobs ({names})", "Export one of them")
    check_new_id("--job", job)
    return [moved_to(history, job) for history in found], still_open


def _earlier(store: Store, lines: Iterable[Entry], job: str | None, about: str) -> list[History]:
    if job is None:
        raise JobSpecError.of("--job", job, "earlier trainings name no job", "Say whose they are with --job JOB")
    newest = store.trials(known(store, job))[-1:]
    if not newest:
        raise JobSpecError.of("--job", job, "has no trial that can be read", "See 'airflow zeus doctor'")
    return read_export.histories_of(trials_of(lines, newest[0], about))[0]


def _marked(history: History, about: str) -> History:
    """The history, its trials marked as imported; one that was imported before keeps its mark."""
    trials = [
        replace(t, observation=replace(t.observation, reasons={IMPORTED: about, **t.observation.reasons}))
        for t in history.trials
    ]
    return replace(history, trials=trials)


def _dry(store: Store, histories: Sequence[History]) -> list[Trial]:
    """The trials that an import would write. Raises StoreError where it would be refused."""
    there = {t.key: t for job in store.jobs() for t in store.trials(job)}
    new = []
    for history in histories:
        left = [t for t in history.trials if t.key not in there or there[t.key].job_id != history.job_id]
        check_elsewhere(replace(history, trials=left), there.get)
        new += left
    return new


# ------------------------------------------------------------------ trainings from before Zeus
# They teach how many epochs a batch size needs. Their energy and time are shown as the file tells them: how they were
# measured is not known, so they are never added to or compared with what Zeus measured.
RUN_TYPE = "manual"  # a person started them, as far as can be told


def trials_of(lines: Iterable[Entry], like: Trial, about: str) -> list[tuple[str, Read]]:
    """The trainings as trials of the job of ``like``, its newest one, in the order of their dates, then of the file.

    The key of a trial comes from its values: a file that is read twice gives the same trials.

    :param about: which file, who imports it and when.

    Raises JobSpecError: a value cannot be used, or the job does not learn from such runs.
    """
    if RUN_TYPE not in like.job.learn_from:
        remedy = f'Add "{RUN_TYPE}" to ZeusJob(learn_from=...): earlier trainings are such runs'
        raise JobSpecError.of("learn_from", list(like.job.learn_from), "such trainings would teach nothing", remedy)
    seen: Counter[str] = Counter()
    found = []
    for place, cells in lines:
        known = {name: cells.get(name, "").strip() for name in (*EARLIER, *OPTIONAL)}
        text = "\n".join((like.job_id, *known.values()))
        seen[text] += 1  # two trainings with equal values are two
        digest = sha256(f"{seen[text]}\n{text}".encode()).hexdigest()[:32]
        found.append((place, _trial(place, known, like, f"imported-{digest}", about)))
    found.sort(key=lambda each: each[1].opened_at)
    return [
        (place, (replace(trial, number=i, told_seq=i, asked_after_seq=i - 1), ()))
        for i, (place, trial) in enumerate(found, 1)
    ]


def _trial(place: str, cells: Mapping[str, str], like: Trial, ti_id: str, about: str) -> Trial:
    size, sizes = cells["batch_size"], list(like.job.batch_sizes)
    if not (size.isascii() and size.isdigit() and len(size) < 14 and int(size) in sizes):
        refuse(place, "batch_size", size, f"not in batch_sizes {sizes} of {like.job_id}", "Correct or remove the line")
    batch_size = min(int(size), MOST_NUMBER)
    epochs, time_s = (_number(place, name, cells[name]) for name in ("epochs", "time_s"))
    energy_j, limit_w = (_number(place, name, cells[name], optional=True) for name in ("energy_j", "power_limit_w"))
    known = {"": True, "true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if cells["reached"].lower() not in known:
        refuse(place, "reached", cells["reached"], "neither true nor false", "Say whether it reached its target")
    reached = known[cells["reached"].lower()]
    began_at, device = _date(place, cells["date"]), cells["device"]
    if truncated(device, MOST_TEXT // 4) != device:
        refuse(place, "device", device, f"longer than {MOST_TEXT // 4} characters", "Shorten it")
    gone = {} if energy_j is not None else {"energy_j": "not in the imported file"}
    attempt = PlannedAttempt(batch_size=batch_size, phase=Phase.IMPORTED, why="A training from before Zeus.")
    return Trial(
        job_id=like.job_id,
        number=0,
        key=TrialKey(ti_id),
        origin=Origin(dag_id=like.origin.dag_id, run_id=ti_id, task_id=like.origin.task_id, run_type=RUN_TYPE),
        spec=like.spec,
        decision=Decision(attempts=(attempt,), seed=0, policy=like.job.policy),
        planned=attempt,
        state=State.CONVERGED if reached else State.EXHAUSTED,
        reason=None if reached else "the imported file says that it did not reach its target",
        opened_at=began_at,
        lease_until=began_at,
        closed_at=began_at + (time_s or 0.0),
        observation=Observation(
            epochs=epochs,
            energy_j=energy_j,
            time_s=time_s,
            power_limit_w=limit_w,
            energy_source=None if energy_j is None else IMPORTED,
            reasons={**gone, IMPORTED: f"{about}; trained on {device}" if device else about},
        ),
    )


def _number(place: str, column: str, cell: str, *, optional: bool = False) -> float | None:
    """A measured value; None where it is optional and empty."""
    if optional and not cell:
        return None
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not 1e-9 <= value <= 1e12:  # of a measured value in any unit
        may = ", or leave the cell empty" if optional else ""
        refuse(place, column, cell, "no number above 0 that can be measured", f"Correct it{may}")
    return value


def _date(place: str, cell: str) -> float:
    """When the training began [s since the epoch], in UTC where the date names no time zone; 0 without one."""
    if not cell:
        return 0.0
    try:
        found = datetime.fromisoformat(cell)
        at_s = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        at_s = math.nan
    if not 0 <= at_s <= LATEST_S:
        refuse(place, "date", cell, "no date", "Write it as 2026-11-24, or 2026-11-24T06:00:00+01:00")
    return at_s
