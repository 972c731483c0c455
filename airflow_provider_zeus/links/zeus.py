"""The button "Zeus cost" on a task instance."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey  # not importable at run time on every version


class ZeusCostLink(BaseOperatorLink):
    """Links to the tab with the cost of the task's run."""

    name = "Zeus cost"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the path relative to Airflow's address, so that it works behind a path prefix."""
        return run_path(ti_key.dag_id, ti_key.run_id)


def run_path(dag_id: str, run_id: str) -> str:
    """The tab with the cost of a run, relative to Airflow's address."""
    # The id of a run may have a slash, which quote() leaves as it is by default.
    return f"dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}/plugin/zeus-cost-run"


def dag_path(dag_id: str) -> str:
    """The tab with the costs of a DAG, relative to Airflow's address."""
    return f"dags/{quote(dag_id, safe='')}/plugin/zeus-cost"
