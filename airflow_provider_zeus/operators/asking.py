"""The question of a recurrence, with a bound: a store that does not answer lets the run train all the same."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.optimizer.trial import Observation, State
from airflow_provider_zeus.store.base import Asked, AskRequest, Report, Store
from airflow_provider_zeus.store.patience import bounded, retried
from airflow_provider_zeus.store.untold import drain
from airflow_provider_zeus.store.variable import VariablePort

ASK_S = 20.0  # for an answer, with all that is tried again
DRAIN_S = 5.0  # of these, for what earlier runs could not tell

log = logging.getLogger(__name__)


def answer_of(request: AskRequest, opened: Callable[[], Store], most_s: float = ASK_S) -> tuple[Store, Asked]:
    """The store and its answer. What may pass, a lock or a lost connection, is tried again for ``most_s`` seconds.

    A strict job, which has no other way, waits for an answer that is under way as long as it takes. A question that is
    asked twice gives the same trial, so one that was answered in vain leaves none behind; an answer that comes when
    nobody waits for it any more is closed. Raises StoreError.
    """
    too_late = threading.Event()

    def once() -> tuple[Store, Asked]:
        if too_late.is_set():
            raise StoreError("Nobody waits for the answer any more.")
        store = opened()
        asked = store.ask(request)
        if too_late.is_set() and not asked.redelivered:
            store.tell(asked.trial.key, State.ABANDONED, Report(observation=Observation()), reason="answered too late")
        return store, asked

    try:
        return bounded(lambda: retried(once, most_s), None if request.job.strict else most_s)
    except TimeoutError:
        raise StoreError(f"The store has not answered for {most_s:g} s.") from None
    finally:
        too_late.set()


def drain_for_a_while(store: Store, port: VariablePort, job_id: str, state_dir: Path) -> None:
    """Tell what earlier runs of a job could not; what is not told within :data:`DRAIN_S` goes on unseen."""
    try:
        bounded(lambda: drain(store, port, job_id, state_dir=state_dir), DRAIN_S)
    except TimeoutError as error:
        log.warning("Costs of %s that were not told are looked for no longer: %s.", job_id, error)
