"""The UI plugin: page "Zeus" in the navigation, tab "Zeus cost" on a DAG and on a run.

This module is imported by every Airflow process.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

log = logging.getLogger(__name__)

PREFIX = "zeus"  # where the api-server mounts our pages
# The views' own addresses below plugin/ in Airflow's UI
NAV_ROUTE, DAG_ROUTE, RUN_ROUTE = "zeus", "zeus-cost", "zeus-cost-run"

# No slash in front: behind a path prefix ([api] base_url) an absolute address would miss it.
_DAG_PAGE = f"{PREFIX}/page?dag_id={{DAG_ID}}"


class ZeusPlugin(AirflowPlugin):
    """What Airflow finds by the ``airflow.plugins`` entry point."""

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
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        """Our pages. Only the api-server reads this attribute, so only it loads FastAPI code for us.

        Raises nothing: an exception in here would keep the api-server from starting. Starts no thread: a server may
        fork its workers now, and what a thread was importing could never be imported in any of them.
        """
        try:
            from airflow_provider_zeus.plugin.app import app
        except Exception:
            log.exception("The Zeus cost page is missing: its code could not be loaded.")
            return []
        return [{"app": app, "url_prefix": f"/{PREFIX}", "name": "Zeus cost"}]
