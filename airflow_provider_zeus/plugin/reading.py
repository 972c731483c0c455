"""From the store to what the views are made of: the one place that opens the log, in a handful of queries."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.optimizer.trial import State, Trial, TrialKey
from airflow_provider_zeus.store.airflow_variables import AirflowVariables
from airflow_provider_zeus.store.base import Store
from airflow_provider_zeus.store.open import DEFAULT_CONN_ID, embedded_path, open_store, store_url
from airflow_provider_zeus.store.untold import PREFIX, untold_key

log = logging.getLogger(__name__)


def open_log() -> Store | None:
    """The trial log, never made or migrated here; None while there is none yet. Raises StoreError.

    Opened for each answer: what is expensive, the engine, is kept per URL, and a changed Connection counts at once.
    """
    try:
        return open_store(create=False)
    except StoreError:
        if store_url(DEFAULT_CONN_ID) == f"sqlite:///{embedded_path()}" and not embedded_path().exists():
            return None
        raise


def untold(trials: Sequence[Trial]) -> dict[TrialKey, str]:
    """Trials whose cost waits to be told by the job's next run -> where it is kept, in words. Only looked at."""
    waiting = {untold_key(t.key): t.key for t in trials if t.state in (State.ABANDONED, State.RUNNING)}
    if not waiting:
        return {}
    return _files(waiting) | _variables(waiting)


def _variables(waiting: dict[str, TrialKey]) -> dict[TrialKey, str]:
    try:
        kept = AirflowVariables().keys(f"{PREFIX}:")
    except StoreError as error:
        log.warning("Costs that are not yet told cannot be looked for: %s", error)
        return {}  # the page says "abandoned" then, which is true as well
    return {waiting[name]: f"Variable {name}" for name in kept if name in waiting}


def _files(waiting: dict[str, TrialKey]) -> dict[TrialKey, str]:
    """Costs kept in ``[zeus] state_dir``, where tasks run on this host or the folder is shared with it."""
    from airflow.configuration import conf

    folder = Path(conf.get("zeus", "state_dir", fallback="") or embedded_path().parent / "zeus")
    names = {f"{name.replace(':', '-')}.json": name for name in waiting}
    try:
        return {waiting[names[p.name]]: f"file {p}" for p in folder.glob(f"{PREFIX}-*.json") if p.name in names}
    except OSError:
        return {}
