"""A cost that could not be told: kept in one Variable, or in a file, until the next question of the job tells it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from airflow_provider_zeus import private
from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.optimizer.bounds import brief
from airflow_provider_zeus.optimizer.trial import State, Trial, TrialKey
from airflow_provider_zeus.optimizer.typed import check_fields
from airflow_provider_zeus.power.plain_file import named, read_all
from airflow_provider_zeus.store.base import Report, Store
from airflow_provider_zeus.store.patience import bounded
from airflow_provider_zeus.store.rows import report_from_dict, report_to_dict, trial_from_dict, trial_to_dict
from airflow_provider_zeus.store.settings import variable_key
from airflow_provider_zeus.store.variable import VariablePort
from airflow_provider_zeus.visible import visible

SCHEMA = 1
PREFIX = "zeus-untold"
MOST_BYTES = 2**24  # of a file that keeps a cost: far more than 500 power points take
LOOKED_BACK = 50  # newest trials looked at where Variables cannot be listed
VARIABLE_S = 5.0  # for Airflow's API to take a Variable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Untold:
    """What ``tell`` would have been called with. ``trial``: the row, where the store could not even be asked."""

    job_id: str
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
            "report": report_to_dict(self.report),
            "trial": trial_to_dict(self.trial) if self.trial else None,
        }
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote. Raises ValueError when it is something else."""
        try:
            data: dict[str, Any] = json.loads(text)
            if data["v"] != SCHEMA:
                raise ValueError(f"version {str(data['v'])[:80]!r} is not {SCHEMA}")
            untold = cls(
                job_id=data["job_id"],
                key=TrialKey(data["ti_id"], data["attempt"]),
                state=State(data["state"]),
                reason=data["reason"] and brief(data["reason"]),
                report=report_from_dict(data["report"]),
                trial=trial_from_dict(data["trial"]) if data["trial"] else None,
            )
            check_fields(untold, untold.key)
            if untold.state is State.RUNNING:
                raise ValueError("state = 'running' is no end")
            return untold
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"not an untold cost: {error!r}") from error

    def tell(self, store: Store) -> None:
        """Tell it now. Raises StoreError when the store cannot take it."""
        key = self.key
        if self.trial:
            seen = replace(self.trial.observation, start_id=self.report.observation.start_id)
            key = store.adopt(replace(self.trial, observation=seen)).key
        store.tell(key, self.state, self.report, reason=self.reason)


def remember(
    port: VariablePort | None,
    key: TrialKey,
    state: State,
    report: Report,
    job_id: str,
    reason: str | None = None,
    *,
    trial: Trial | None = None,
    state_dir: Path | None = None,
    most_s: float = VARIABLE_S,
) -> str:
    """Keep a cost that could not be told; where, in words.

    Raises StoreError when neither place takes it, with the figures and how a person enters them by hand.

    :param port: None: there is no time for Airflow's API, so a file takes it.
    :param trial: the row itself, where the store could not even be asked for one.
    :param state_dir: takes a file when Variables cannot be reached either.
    :param most_s: seconds that Airflow's API has.
    """
    untold = Untold(job_id=job_id, key=key, state=state, report=report, reason=reason, trial=trial)
    name, text = untold_key(key), untold.to_json()
    try:
        _set(port, name, text, most_s)
    except StoreError as error:
        if state_dir is None:
            raise
        path = state_dir / f"{name.replace(':', '-')}.json"
        try:
            _write(path, text)
        except OSError as full:
            small = replace(untold, report=replace(report, profile=(), points=()))
            raise StoreError(
                f"{error} Nor can it be kept in {path} ({full.strerror}). To enter it by hand: make room or set [zeus] "
                f"state_dir, save the following line as {path}, and run 'airflow zeus reap': {small.to_json()}"
            ) from error
        return f"file {path}"
    return f"Variable {name}"


def _set(port: VariablePort | None, name: str, text: str, most_s: float) -> None:
    if port is None:
        raise StoreError("The task is being stopped: there is no time for Airflow's API.")
    try:
        bounded(lambda: port.set(name, text), most_s)
    except TimeoutError as error:
        raise StoreError(f"Variable {name!r} cannot be written ({error}); see that Airflow's API answers.") from None


def drain(store: Store, port: VariablePort, job_id: str | None, *, state_dir: Path | None = None) -> int:
    """Tell what is kept of a job (None: of all jobs) and delete it; how many were told. Raises nothing.

    A crash between the two tells twice, which changes nothing. What cannot be read or told is left, with a warning.
    """
    told = 0
    for where, read, delete in [*_variables(store, port, job_id), *_files(state_dir)]:
        try:
            text = read()
            untold = None if text is None else Untold.from_json(text)
            if untold and job_id in (None, untold.job_id):
                untold.tell(store)
                delete()
                told += 1
        except (StoreError, OSError) as error:
            log.warning("The cost kept in %s is not told yet: %s", visible(where), error)
        except ValueError:  # its text may repeat what was read
            log.warning("What is kept in %s is no cost that this version can read.", visible(where))
    return told


def kept(port: VariablePort, state_dir: Path) -> list[str]:
    """Where costs are kept that are not yet told, in words. Raises StoreError: Variables cannot be listed."""
    return [*(f"Variable {key}" for key in port.keys(f"{PREFIX}:")), *(where for where, _, _ in _files(state_dir))]


def untold_key(key: TrialKey) -> str:
    """Key of the Variable that keeps the cost of a trial."""
    return f"{variable_key(PREFIX, key.ti_id)}:{key.attempt}"


_Kept = tuple[str, Callable[[], str | None], Callable[[], None]]  # where, how to read it, how to delete it


def _variables(store: Store, port: VariablePort, job_id: str | None) -> Iterator[_Kept]:
    for key in _keys(store, port, job_id):
        yield f"Variable {key}", lambda key=key: port.get(key), lambda key=key: port.delete(key)  # type: ignore[misc]


def _keys(store: Store, port: VariablePort, job_id: str | None) -> list[str]:
    try:
        return port.keys(f"{PREFIX}:")
    except StoreError as error:
        if job_id is None:
            log.warning("Costs that were not told cannot be looked for: %s", error)
            return []
    try:
        trials = store.trials(job_id, last=LOOKED_BACK)
    except StoreError as error:
        log.warning("Costs of %s that were not told cannot be looked for: %s", visible(job_id), error)
        return []
    return [untold_key(t.key) for t in trials if t.state in (State.ABANDONED, State.RUNNING)]


def _files(state_dir: Path | None) -> Iterator[_Kept]:
    for path in sorted(state_dir.glob(f"{PREFIX}-*.json")) if state_dir else ():
        yield f"file {named(path)}", partial(read_file, path), path.unlink


def read_file(path: Path) -> str:
    """Text of a file that keeps a cost. Raises OSError (a pipe, another user's) or ValueError (huge, no text)."""
    return read_all(private.open_file(path, os.O_RDONLY), MOST_BYTES).decode()


def _write(path: Path, text: str) -> None:
    """Whole or not at all: a reader must never find half a document. Raises OSError, and leaves no file then."""
    private.make_folder(path.parent)
    half = path.with_suffix(".tmp")
    half.unlink(missing_ok=True)  # of a process that died while it wrote
    try:
        with open(private.open_file(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    except BaseException:
        with suppress(OSError):
            half.unlink()
        raise
