"""Energy-aware retraining for Apache Airflow: the Zeus system (NSDI'23) as a provider.

The names in ``__all__`` are the public API; docs/operators.md says how long they keep working.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_zeus.errors import BelowTargetError as BelowTargetError
    from airflow_provider_zeus.errors import DeviceError as DeviceError
    from airflow_provider_zeus.errors import JobSpecError as JobSpecError
    from airflow_provider_zeus.errors import ReportError as ReportError
    from airflow_provider_zeus.errors import StoreError as StoreError
    from airflow_provider_zeus.errors import UnknownTrialError as UnknownTrialError
    from airflow_provider_zeus.errors import ZeusError as ZeusError
    from airflow_provider_zeus.hooks.zeus import ZeusHook as ZeusHook
    from airflow_provider_zeus.model.job import ZeusJob as ZeusJob
    from airflow_provider_zeus.operators.command import ZeusCommandOperator as ZeusCommandOperator
    from airflow_provider_zeus.operators.train import ZeusTrainOperator as ZeusTrainOperator
    from airflow_provider_zeus.operators.trial import ZeusTrial as ZeusTrial
    from airflow_provider_zeus.training.interrupts import AttemptOver as AttemptOver
    from airflow_provider_zeus.training.interrupts import TrainingKilled as TrainingKilled
    from airflow_provider_zeus.training.run import ZeusRun as ZeusRun

__version__ = "0.2.0"

_MODULES = {  # no imports: every process that imports airflow.sdk would pay for them
    "AttemptOver": "training.interrupts",
    "BelowTargetError": "errors",
    "DeviceError": "errors",
    "JobSpecError": "errors",
    "ReportError": "errors",
    "StoreError": "errors",
    "TrainingKilled": "training.interrupts",
    "UnknownTrialError": "errors",
    "ZeusCommandOperator": "operators.command",
    "ZeusError": "errors",
    "ZeusHook": "hooks.zeus",
    "ZeusJob": "model.job",
    "ZeusRun": "training.run",
    "ZeusTrainOperator": "operators.train",
    "ZeusTrial": "operators.trial",
}
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: every process that imports ``airflow.sdk`` imports
    this module too.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    member = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return member


def __dir__() -> list[str]:
    return list(__all__)
