"""Begins and ends the measurement of the tasks that ``[zeus] measure`` names.

Imports nothing heavy.

Airflow calls these hooks in the task's own process. The api-server calls those of an end too, if a
person sets a state; no measurement is open there, so they do nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pluggy import HookimplMarker

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.task_patterns import TaskPatterns

if TYPE_CHECKING:
    from airflow_provider_zeus.operators.outside import OutsideMeasurement

hookimpl = HookimplMarker("airflow")
log = guarded_log(__name__)

DEFAULT = "True"  # of [zeus] enabled, as switch.ON: an import more would slow every task


class TaskListener:
    """Measures one task at a time, that of its process.

    Raises nothing: one that raises stops those after it.

    :param task_patterns: which tasks.
    """

    def __init__(self, task_patterns: TaskPatterns) -> None:
        self._task_patterns = task_patterns
        self._open: OutsideMeasurement | None = None

    @hookimpl(trylast=True)  # what other listeners do at the beginning does not count
    def on_task_instance_running(self, previous_state: Any, task_instance: Any) -> None:
        """Begin to measure."""
        self._open = None
        try:
            if is_measured(task_instance, self._task_patterns):
                from airflow_provider_zeus.operators.outside import OutsideMeasurement

                self._open = OutsideMeasurement(task_instance)
        except Exception:
            log.exception("Zeus does not measure this task.")

    @hookimpl(tryfirst=True)  # what other listeners do at the end does not count
    def on_task_instance_success(self, previous_state: Any, task_instance: Any) -> None:
        """End: it did its work."""
        self._end(task_instance)

    @hookimpl(tryfirst=True)
    def on_task_instance_skipped(self, previous_state: Any, task_instance: Any) -> None:
        """End: it skipped itself."""
        self._end(task_instance, reason="the task skipped itself")

    @hookimpl(tryfirst=True)
    def on_task_instance_failed(self, previous_state: Any, task_instance: Any, error: Any) -> None:
        """End: it failed, whether it is tried again or not."""
        self._end(task_instance, failed=True, error=error)

    @hookimpl(tryfirst=True)
    def before_stopping(self, component: Any) -> None:
        """End of a process whose task goes on later. No other hook hears of that."""
        self._end(None, reason="the task was deferred: what it does later has a line of its own")

    def _end(
        self, ti: Any, *, failed: bool = False, error: Any = None, reason: str | None = None
    ) -> None:
        measurement = self._open
        if measurement is None:
            return
        # The hook may be called for another task instance, whose end is not this one's.
        if ti is not None and str(ti.id) != measurement.ti_id:
            return
        self._open = None
        try:
            measurement.end(failed=failed, error=error, reason=reason)
        except Exception:
            log.exception("Zeus could not write what this task took.")


def named_tasks() -> TaskPatterns:
    """The patterns of ``[zeus] measure``; none if Zeus is switched off. Raises JobSpecError."""
    from airflow.sdk import conf

    task_patterns = TaskPatterns.parse(conf.get("zeus", "measure", fallback=""))
    if not task_patterns.included:
        return task_patterns
    # Each task's process runs this, and the usual case needs no further import.
    if conf.get("zeus", "enabled", fallback=DEFAULT) == DEFAULT:
        return task_patterns
    from airflow_provider_zeus.switch import OFF, enabled

    if enabled() == OFF:
        return TaskPatterns()
    return task_patterns


def is_measured(ti: Any, task_patterns: TaskPatterns) -> bool:
    """Whether a task is measured from outside: it is named, and nothing else of ours measures
    it.
    """
    if not task_patterns.name(ti.dag_id, ti.task_id, ti.task.dag.tags or ()):
        return False
    if is_zeus_task(ti.task) or is_trained_for_a_trial(ti.task):
        return False
    # Each look of such a sensor is a process of its own, and would be a row.
    return not getattr(ti.task, "reschedule", False)


def is_zeus_task(task: Any) -> bool:
    """Whether the operator of a task is of this package, which measures itself."""
    return any(kind.__module__.startswith("airflow_provider_zeus.") for kind in type(task).__mro__)


def is_trained_for_a_trial(task: Any) -> bool:
    """Whether a task is the one within a ``ZeusTrial``, whose row holds its cost."""
    return any(getattr(other, "trains", None) == task.task_id for other in task.dag.tasks)
