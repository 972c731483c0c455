"""Energy-aware retraining for Apache Airflow: the Zeus system (NSDI'23) as a provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_zeus.operators.trial import ZeusTrial as ZeusTrial
    from airflow_provider_zeus.optimizer.job import ZeusJob as ZeusJob
    from airflow_provider_zeus.training.run import ZeusRun as ZeusRun

__version__ = "0.1.0"
__all__ = ["ZeusJob", "ZeusRun", "ZeusTrial", "__version__"]


def __getattr__(name: str) -> Any:
    """Each name when it is asked for: every process that imports ``airflow.sdk`` imports this module too."""
    if name == "ZeusJob":
        from airflow_provider_zeus.optimizer.job import ZeusJob

        return ZeusJob
    if name == "ZeusRun":
        from airflow_provider_zeus.training.run import ZeusRun

        return ZeusRun
    if name == "ZeusTrial":
        from airflow_provider_zeus.operators.trial import ZeusTrial

        return ZeusTrial
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
