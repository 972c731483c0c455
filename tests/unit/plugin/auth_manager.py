"""An auth manager that tells DAGs apart, which Airflow's simple one does not:
nobody may read the DAG ``secret``.
"""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

SECRET = "secret"


class OneDagDenied(SimpleAuthManager):
    """The simple auth manager, but for one DAG."""

    def is_authorized_dag(self, *, details: Any = None, **asked: Any) -> bool:
        return getattr(details, "id", None) != SECRET and super().is_authorized_dag(
            details=details, **asked
        )
