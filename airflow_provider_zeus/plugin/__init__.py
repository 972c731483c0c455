"""The UI plugin: page "Zeus" in the navigation, tab "Zeus cost" on a DAG and on a run.

Every Airflow process imports this module, so it imports nothing heavy.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_provider_zeus.log_guard import guarded_log

log = guarded_log(__name__)

PREFIX = "zeus"  # all plugins share one server, so each has a prefix
# Airflow leaves out a view whose route another plugin has already taken.
NAV_ROUTE = "zeus"
DAG_ROUTE = "zeus-cost"
RUN_ROUTE = "zeus-cost-run"

# Relative: an absolute address would lack the path prefix of [api] base_url.
_DAG_PAGE = f"{PREFIX}/page?dag_id={{DAG_ID}}"


class ZeusPlugin(AirflowPlugin):
    """The plugin that Airflow loads from the ``airflow.plugins`` entry point."""

    name = "zeus"
    external_views = [  # noqa: RUF012 - Airflow declares it as a plain attribute
        {"name": "Zeus", "href": f"{PREFIX}/page", "destination": "nav", "url_route": NAV_ROUTE},
        {"name": "Zeus cost", "href": _DAG_PAGE, "destination": "dag", "url_route": DAG_ROUTE},
        {
            "name": "Zeus cost",
            "href": f"{_DAG_PAGE}&run_id={{RUN_ID}}",
            "destination": "dag_run",
            "url_route": RUN_ROUTE,
        },
    ]

    @cached_property
    def listeners(self) -> list[Any]:  # type: ignore[override]
        """The listener that measures tasks, if ``[zeus] measure`` names any. Raises nothing.

        With any listener, Airflow refuses DAGs that have a task with ``end_from_trigger=True``.
        """
        try:
            from airflow_provider_zeus.plugin.listener import TaskListener, named_tasks

            task_patterns = named_tasks()
            # A listener that measures nothing would still make Airflow refuse some DAGs.
            if not task_patterns.included:
                return []
            return [TaskListener(task_patterns)]
        except Exception:
            log.exception("Zeus measures no task from outside: its listener could not be loaded.")
            return []

    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        """The pages' app.

        Only the api-server reads this attribute, so only it imports FastAPI code of the provider.

        Raises nothing: an exception here would keep the api-server from starting. Starts no thread:
        the server may fork its workers after this, and a module that a thread is importing at that
        time stays locked in every worker.
        """
        try:
            from airflow_provider_zeus.plugin.api.app import app
        except Exception:
            log.exception("The Zeus cost page is missing: its code could not be loaded.")
            return []
        return [{"app": app, "url_prefix": f"/{PREFIX}", "name": "Zeus cost"}]
