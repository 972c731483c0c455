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
from airflow_provider_zeus.visible import visible

ASK_S = 20.0  # for an answer, with all that is tried again
DRAIN_S = 5.0  # of these, for what earlier runs could not tell

log = logging.getLogger(__name__)


class Question:
    """One question, asked in a thread of its own.

    What may pass, a lock or a lost connection, is tried again. A question that is asked twice gets the same trial, so
    one that was answered in vain leaves none behind; a trial that is handed out when nobody waits any more is closed.

    :param opened: opens the store, or raises StoreError.
    """

    def __init__(self, request: AskRequest, opened: Callable[[], Store]) -> None:
        self._request, self._opened = request, opened
        self._too_late, self._over = threading.Event(), threading.Event()

    def answer(self, most_s: float = ASK_S) -> tuple[Store, Asked]:
        """The store and its answer, waited for at most ``most_s`` seconds. Raises StoreError.

        A strict job, which has no other way, waits for an answer that is under way as long as it takes.
        """
        try:
            return bounded(lambda: self._asked(most_s), None if self._request.job.strict else most_s)
        except TimeoutError:
            raise StoreError(f"The store has not answered for {most_s:g} s.") from None
        finally:
            self._too_late.set()

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is under way any more: until then no row may be written in place of its trial."""
        return self._over.is_set()

    def _asked(self, most_s: float) -> tuple[Store, Asked]:
        try:
            return retried(self._ask, most_s)
        finally:
            self._over.set()

    def _ask(self) -> tuple[Store, Asked]:
        if self._too_late.is_set():
            raise StoreError("Nobody waits for the answer any more.")
        store = self._opened()
        asked = store.ask(self._request)
        if self._too_late.is_set():
            store.tell(asked.trial.key, State.ABANDONED, Report(observation=Observation()), reason="answered too late")
        return store, asked


def drain_for_a_while(store: Store, port: VariablePort, job_id: str, state_dir: Path) -> None:
    """Tell what earlier runs of a job could not; what is not told within :data:`DRAIN_S` goes on unseen."""
    try:
        bounded(lambda: drain(store, port, job_id, state_dir=state_dir), DRAIN_S)
    except TimeoutError as error:
        log.warning("Costs of %s that were not told are looked for no longer: %s.", visible(job_id), error)
