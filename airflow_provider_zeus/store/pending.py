"""Results that could not be stored: each waits in a Variable, or in a file, until the job's next
run stores it.

A task that was measured from outside waits in a file of its host, until the next such task, or the
next run of any job, on that host stores it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from airflow_provider_zeus import private_files
from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.size_bounds import truncated
from airflow_provider_zeus.model.trial import State, Trial, TrialKey
from airflow_provider_zeus.model.wire import Name, decode, encode, parse
from airflow_provider_zeus.patience import bounded
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.store.rows import trial_from_dict, trial_to_dict
from airflow_provider_zeus.store.variables.airflow import AirflowVariables, variable_key
from airflow_provider_zeus.untrusted_files import read_all, write_whole

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store

SCHEMA = 1
PREFIX = "zeus-untold"
MOST_BYTES = 2**24  # another process may write a huge file; 500 power points take far less
VARIABLE_S = 5.0  # the end of a task must not hang on Airflow's API

log = guarded_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingResult:
    """The arguments of a ``tell`` that failed. ``trial``: the row, if the store never got it."""

    job_id: Name
    key: TrialKey
    state: State
    report: Report
    reason: str | None = None
    trial: Trial | None = None

    def to_json(self) -> str:
        """One JSON document."""
        data = {
            "v": SCHEMA,
            "job_id": self.job_id,
            "ti_id": self.key.ti_id,
            "attempt": self.key.attempt,
            "state": self.state.value,
            "reason": self.reason,
            "report": encode(self.report),
            "trial": trial_to_dict(self.trial) if self.trial else None,
        }
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the text of :meth:`to_json`. Raises ValueError when it is something else."""
        try:
            data = parse(text, SCHEMA, nan=True)
            parts = {name: data[name] for name in ("job_id", "state", "report")}
            parts["key"] = {"ti_id": data["ti_id"], "attempt": data["attempt"]}
            parts["reason"] = data["reason"] and truncated(data["reason"])
            pending = decode(cls, parts)
            if pending.state is State.RUNNING:
                raise ValueError("state = 'running' does not close an attempt")
            if not data["trial"]:
                return pending
            return replace(pending, trial=trial_from_dict(data["trial"]))
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a pending result: {error!r}") from error

    @property
    def is_outside(self) -> bool:
        """Whether it is of a task that was measured from outside."""
        return self.trial is not None and self.trial.is_outside

    def tell(self, store: Store) -> None:
        """Store it now. Raises StoreError when the store cannot."""
        key = self.key
        if self.trial:
            # By its start's id a row is found that got another key, and no second one is written.
            observation = replace(self.trial.observation, start_id=self.report.observation.start_id)
            key = store.adopt(replace(self.trial, observation=observation)).key
        store.tell(key, self.state, self.report, reason=self.reason)


def remember(
    port: AirflowVariables | None,
    key: TrialKey,
    state: State,
    report: Report,
    job_id: str,
    reason: str | None = None,
    *,
    trial: Trial | None = None,
    state_dir: Path | None = None,
    most_s: float = VARIABLE_S,
    earlier: int = 0,
) -> str:
    """Save a result that could not be stored; return the place, in words.

    Raises StoreError when it cannot be saved at all, with the figures and how a person enters them
    by hand.

    :param port: None: there is no time for Airflow's API; use a file.
    :param trial: the row itself, if the store could not be reached before either.
    :param state_dir: folder of the file that is written when Variables cannot be reached.
    :param most_s: time limit of Airflow's API [s].
    :param earlier: results of this key from other starts that came before: each has a place of its
        own.
    """
    pending = PendingResult(
        job_id=job_id, key=key, state=state, report=report, reason=reason, trial=trial
    )
    name = pending_key(key)
    if earlier:
        name = f"{name}:{earlier + 1}"
    text = pending.to_json()
    try:
        if port is None:
            raise StoreError("The task is being stopped: there is no time for Airflow's API.")
        bounded(lambda: port.set(name, text), most_s)
    except (StoreError, TimeoutError) as late:
        error = late
        if isinstance(late, TimeoutError):
            error = StoreError(
                f"Variable {name!r} cannot be written ({late}); check that Airflow's API answers."
            )
        if state_dir is None:
            raise error from None
        path = state_dir / f"{name.replace(':', '-')}.json"
        try:
            private_files.make_folder(state_dir)
            # A reader must not find half a document.
            write_whole(path, text, private_files.open_file)
        except OSError as full:
            small = replace(pending, report=replace(report, profile=(), points=()))
            raise StoreError(
                f"{error} Nor can it be kept in {path} ({full.strerror}). To enter it by hand: "
                "make room or set [zeus] "
                f"state_dir, save the following line as {path}, and run 'airflow zeus repair': "
                f"{small.to_json()}"
            ) from error
        return f"file {path}"
    return f"Variable {name}"


def drain(
    store: Store,
    port: AirflowVariables | None,
    job_id: str | None,
    *,
    state_dir: Path | None = None,
    with_outside: bool = False,
) -> int:
    """Store the pending results of a job (None: of all jobs) and delete them; return how many.

    Raises nothing.

    :param port: None: look at files alone.
    :param with_outside: also the files of tasks that were measured from outside: their next run may
        be on another host.

    A crash between storing and deleting stores a result twice, which changes nothing. A result that
    cannot be read or stored stays, with a warning.
    """
    stored = 0
    in_variables = _variables(store, port, job_id) if port else ()
    for where, load, delete in [*in_variables, *_files(state_dir)]:
        try:
            text = load()
            if text is None:
                continue
            pending = PendingResult.from_json(text)
            is_of_outside = with_outside and pending.is_outside
            # A task waits for this: another job's result would need that job's lock, too.
            if is_of_outside or job_id in (None, pending.job_id):
                # First stored, then deleted: a crash in between stores it twice, which changes
                # nothing.
                pending.tell(store)
                delete()
                stored += 1
        except FileNotFoundError:  # another task of this host has stored it meanwhile
            continue
        except (StoreError, OSError) as error:
            log.warning("The pending result in %s is not stored yet: %s", visible(where), error)
        except ValueError:  # its text may repeat what was read
            log.warning("%s holds no pending result that this version can read.", visible(where))
    return stored


def pending_places(port: AirflowVariables, state_dir: Path) -> list[str]:
    """Places of all pending results, in words.

    Raises StoreError if Variables cannot be listed.
    """
    return [
        *(f"Variable {key}" for key in port.keys(f"{PREFIX}:")),
        *(where for where, _, _ in _files(state_dir)),
    ]


def pending_key(key: TrialKey) -> str:
    """Key of the Variable for the pending result of a trial."""
    return f"{variable_key(PREFIX, key.ti_id)}:{key.attempt}"


# (place in words, read, delete). Read in its turn only: another task may have stored it by then.
_Place = tuple[str, Callable[[], str | None], Callable[[], None]]


def _variables(store: Store, port: AirflowVariables, job_id: str | None) -> Iterator[_Place]:
    """Pending results in Variables.

    If those cannot be listed, the keys of the job's newest trials are tried.
    """
    try:
        keys = port.keys(f"{PREFIX}:")
    except StoreError as error:
        if job_id is None:
            log.warning("Pending results cannot be searched: %s", error)
            return
        try:
            trials = [t for t in store.trials(job_id, last=50) if t.state.awaits_result]
            keys = [key for trial in trials for key in _keys_of(trial.key, port)]
        except StoreError as away:
            log.warning("Pending results of %s cannot be searched: %s", visible(job_id), away)
            return
    for key in keys:
        yield f"Variable {key}", partial(port.get, key), partial(port.delete, key)


def _keys_of(key: TrialKey, port: AirflowVariables) -> list[str]:
    """Keys of a trial's pending results: more than one if several starts ended its attempt.

    Raises StoreError.
    """
    name = pending_key(key)
    others = (f"{name}:{start}" for start in range(2, 100))
    return [name, *takewhile(port.get, others)]


def _files(state_dir: Path | None) -> Iterator[_Place]:
    for path in kept_files(state_dir):
        yield (
            f"file {visible(path)}",
            partial(read_file, path),
            partial(path.unlink, missing_ok=True),
        )


def kept_files(state_dir: Path | None) -> list[Path]:
    """The files of pending results. Raises nothing."""
    if state_dir is None:
        return []
    try:
        return sorted(state_dir.glob(f"{PREFIX}-*.json"))
    except OSError as error:  # no reason to fail a task: a later run stores them
        log.warning("Pending results in %s cannot be searched: %s", visible(str(state_dir)), error)
        return []


def read_file(path: Path) -> str:
    """Text of the file of a pending result.

    Raises OSError (a pipe, another user's) or ValueError (huge, no text).
    """
    return read_all(private_files.open_file(path, os.O_RDONLY), MOST_BYTES).decode()
