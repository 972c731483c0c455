"""Provider metadata. Imported with ``airflow.sdk``: nothing heavy and nothing from Airflow in here."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """What Airflow reads through the ``apache_airflow_provider`` entry point."""
    return {
        "package-name": "airflow-provider-zeus",
        "name": "Zeus",
        "description": "Energy-aware retraining: picks batch size and GPU power limit, shows what a run cost.",
    }
