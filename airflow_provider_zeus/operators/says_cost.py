"""Operators that say what a run cost: in the task's log, by lineage and asset events. Imported at DAG parse."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_zeus.operators.result_reporter import ResultReporter
    from airflow_provider_zeus.reports.run_savings import RunSaving
    from airflow_provider_zeus.store.sql.store import Store

SAVING_S = 1.0  # limit of reading the log and estimating what the run saved

log = logging.getLogger(__name__)


class SaysCost:
    """An operator that says what its run cost: in its log, to OpenLineage, and by the events of its outlets."""

    outlets: list[Any]
    _figures: Mapping[str, Any] | None = None  # of this run, once it has ended

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """What OpenLineage's provider asks for at the end of a task, failed ones included; None: nothing is known."""
        if not self._figures:
            return None
        from airflow_provider_zeus.operators.openlineage import lineage_of

        return lineage_of(self._figures)

    def say_cost(
        self,
        context: Any,
        reporter: ResultReporter,
        opened: Callable[[], Store],
        saving: RunSaving | None = None,
    ) -> None:
        """Log the run's closing line, and give its figures to what listens. Raises nothing: the training has ended.

        :param opened: opens the store, or raises StoreError.
        :param saving: of the run, where it has been worked out.
        """
        try:
            from airflow_provider_zeus.operators.config import OFF, enabled

            saving = saving or saving_in_time(reporter, opened)
            log_closing(reporter, saving)
            if enabled() == OFF or (not self.outlets and not _lineage_is_on()):
                return
            from airflow_provider_zeus.operators.figures import into_outlets

            self._figures = figures_of(reporter, saving)
            into_outlets(self.outlets, context["outlet_events"], self._figures)
        except Exception:
            log.warning("Zeus could not say what this run cost.", exc_info=True)


def saving_in_time(reporter: ResultReporter, opened: Callable[[], Store]) -> RunSaving | None:
    """What a run that has ended saved; None where that is not known, or takes more than :data:`SAVING_S` seconds."""
    from airflow_provider_zeus.operators.figures import saving_of
    from airflow_provider_zeus.store.patience import bounded

    try:
        return None if reporter.stopped else bounded(lambda: saving_of(opened(), reporter.first), SAVING_S)
    except Exception as error:
        log.info("Zeus: what this run saved is not said (%s).", type(error).__name__)
        return None


def log_closing(reporter: ResultReporter, saving: RunSaving | None) -> None:
    """Log in one line how the run ended and what it cost; nothing where no attempt has ended."""
    from airflow_provider_zeus.reports.closing import closing

    if ended := reporter.ended:
        log.info("Zeus: %s.", closing(ended, saving.cost if saving else None))


def figures_of(reporter: ResultReporter, saving: RunSaving | None) -> dict[str, Any]:
    """The figures of a run that has ended."""
    from airflow_provider_zeus.operators.figures import figures
    from airflow_provider_zeus.signals.prices import Prices, of_airflow, read

    return figures(reporter.cost_xcom(), reporter.drawn, Prices(**read(of_airflow)), saving)


def _lineage_is_on() -> bool:
    """Whether OpenLineage's provider sends events from this process."""
    conf = sys.modules.get("airflow.providers.openlineage.conf")  # its listener has loaded it
    return conf is not None and not conf.is_disabled()
