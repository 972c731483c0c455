"""Operators whose task may wait for a cheaper start. Imported at DAG parse."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.operators.xcoms import WAIT

if TYPE_CHECKING:
    from airflow_provider_zeus.operators.waiting import Wait

SHORT_S = 120.0  # a wait below is slept: Airflow fails tasks that defer for some seconds
NET_S = 900.0  # after the latest start: then the task trains though the triggerer has never fired
_FAILED = "__fail__"  # what Airflow resumes where a trigger failed, or was not heard of in time

log = logging.getLogger(__name__)


class StartsLater:
    """An operator whose task may wait for a cheaper start. It holds no worker meanwhile: the triggerer waits.

    ``train_now(context)`` is what it does then, in a new process and on a new instance.
    """

    job: Mapping[str, Any]
    zeus_conn_id: str
    waited_since_s: float | None = None  # set by the wait; None: there was none

    def wait_for_start(self, context: Any, *, part: str | None, task_id: str | None = None) -> None:
        """Return where the training begins now; else defer the task: raises TaskDeferred.

        :param part: end of the job's id, by the mapped value.
        :param task_id: of the task that trains, where that is another one.
        """
        if self.job.get("start_within") is None:
            return
        from airflow_provider_zeus.operators.config import ON, enabled
        from airflow_provider_zeus.operators.recurrence import job_id_of, push
        from airflow_provider_zeus.operators.waiting import wait_of

        if enabled() != ON:
            return
        job = ZeusJob.from_dict(self.job).check(rendered=True)
        job_id = job_id_of(job, context["ti"], task_id=task_id, part=part)
        wait = wait_of(job, context, job_id=job_id, conn_id=self.zeus_conn_id)
        if wait is None:
            return
        log.info("Zeus: %s", wait.why)
        push(context, WAIT, wait.xcom() | {"trains": task_id or context["ti"].task_id})
        left_s = 0.0 if wait.until_s is None else wait.until_s - time.time()
        if left_s >= SHORT_S:
            self._defer(wait)
        elif left_s > 0:
            self.waited_since_s = time.time()
            time.sleep(left_s)

    def _defer(self, wait: Wait) -> None:
        from airflow_provider_zeus.operators.start_trigger import ZeusStartTrigger

        assert wait.until_s is not None
        assert wait.latest_s is not None
        assert wait.duration_s is not None
        trigger = ZeusStartTrigger(wait.until_s, wait.latest_s, wait.duration_s, wait.signal, self.zeus_conn_id)
        net = timedelta(seconds=max(wait.latest_s - time.time(), 0.0) + NET_S)
        since = {"since_s": time.time()}
        self.defer(trigger=trigger, method_name="resume", kwargs=since, timeout=net)  # type: ignore[attr-defined]

    def resume(self, context: Any, event: Any = None, since_s: float | None = None) -> Any:
        """Train, after a wait that began at ``since_s`` [s since the epoch]."""
        self.waited_since_s = since_s
        return self.train_now(context)  # type: ignore[attr-defined]

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        """Train also where the wait has failed: no fault of a trigger fails a training."""
        if next_method != _FAILED:
            return super().resume_execution(next_method, next_kwargs, context)  # type: ignore[misc]
        why = (next_kwargs or {}).get("error", "unknown")
        log.warning("Zeus: the wait for a cheaper start failed (%s). The training begins now.", why)
        return self.resume(context)
