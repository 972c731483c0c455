"""Operators whose lineage events and asset events say what a run cost. Imported at DAG parse."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_zeus.operators.result_reporter import ResultReporter
    from airflow_provider_zeus.reports.run_savings import RunSaving
    from airflow_provider_zeus.store.base import Store

SAVING_S = 1.0  # limit of reading the log and estimating what the run saved

log = logging.getLogger(__name__)


class SaysCost:
    """An operator that says what its run cost, to OpenLineage and by the events of its outlets."""

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
        """Work out the figures of the run where anything listens. Raises nothing: the training has ended.

        :param opened: opens the store, or raises StoreError.
        :param saving: of the run, where it has been worked out.
        """
        try:
            if not self.outlets and not _lineage_is_on():
                return
            from airflow_provider_zeus.operators.figures import into_outlets

            self._figures = figures_of(reporter, opened, saving)
            into_outlets(self.outlets, context["outlet_events"], self._figures)
        except Exception:
            log.warning("Zeus could not say what this run cost to asset and lineage events.", exc_info=True)


def figures_of(
    reporter: ResultReporter, opened: Callable[[], Store], saving: RunSaving | None = None
) -> dict[str, Any]:
    """The figures of a run that has ended; without its saving where that takes more than :data:`SAVING_S` seconds."""
    from airflow_provider_zeus.operators.figures import figures, saving_of
    from airflow_provider_zeus.signals.prices import Prices, of_airflow, read
    from airflow_provider_zeus.store.patience import bounded

    try:
        if saving is None and not reporter.stopped:
            saving = bounded(lambda: saving_of(opened(), reporter.first), SAVING_S)
    except Exception as error:
        log.info("Zeus: what this run saved is not said (%s).", type(error).__name__)
    return figures(reporter.cost_xcom(), reporter.drawn, Prices(**read(of_airflow)), saving)


def _lineage_is_on() -> bool:
    """Whether OpenLineage's provider sends events from this process."""
    conf = sys.modules.get("airflow.providers.openlineage.conf")  # its listener has loaded it
    return conf is not None and not conf.is_disabled()
