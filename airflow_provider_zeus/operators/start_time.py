"""When a run should start by its signal: read the signal, plan the start (``signals/start.py``)."""

from __future__ import annotations

from airflow_provider_zeus.errors import SignalError
from airflow_provider_zeus.operators.kept_series import Keeper
from airflow_provider_zeus.operators.signal_series import ALL_S, BACK_S, signal_series
from airflow_provider_zeus.signals.start import NO_FORECAST, NO_VALUES, Start, plan_start
from airflow_provider_zeus.store.patience import bounded


def planned(
    signal: str, now_s: float, latest_s: float, duration_s: float, keeper: Keeper | None = None
) -> tuple[Start, str]:
    """(the cheapest start up to ``latest_s`` of a run of that length, unit of the signal).

    Raises SignalError where the signal cannot tell.

    :param signal: ``"carbon"``, ``"price"`` or the id of a Connection of type *Zeus signal*.
    :param keeper: keeps the series of services.
    """
    try:
        start, unit = bounded(lambda: _read_and_planned(signal, now_s, latest_s, duration_s, keeper), ALL_S)
    except SignalError:
        raise
    except Exception as error:  # of any kind: a signal never fails a training
        raise SignalError.of(signal, type(error).__name__) from None
    if start.reason in (NO_VALUES, NO_FORECAST):
        raise SignalError.of(signal, start.reason)
    return start, unit


def _read_and_planned(
    signal: str, now_s: float, latest_s: float, duration_s: float, keeper: Keeper | None
) -> tuple[Start, str]:
    series = signal_series(signal, now_s - BACK_S, latest_s + duration_s, keeper)
    return plan_start(series, series, now_s=now_s, latest_s=latest_s, duration_s=duration_s), series.unit.name
