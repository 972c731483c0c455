"""``ZeusSignalHook``: a price or a carbon intensity behind an Airflow Connection."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

if TYPE_CHECKING:
    from airflow_provider_zeus.signals.series import Series


class ZeusSignalHook(BaseHook):
    """Reads the series of a Connection of type *Zeus signal* (docs/levers/signals.md).

    :param zeus_signal_conn_id: ``zeus_price``, ``zeus_carbon``, or another one.
    """

    conn_name_attr = "zeus_signal_conn_id"
    default_conn_name = "zeus_price"
    conn_type = "zeus_signal"
    hook_name = "Zeus signal"

    def __init__(self, zeus_signal_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.zeus_signal_conn_id = zeus_signal_conn_id

    def series(self, start_s: float, end_s: float) -> Series:
        """The series of a span [s since the epoch, UTC]. Raises SignalError."""
        from airflow_provider_zeus.signals.reading import signal_series

        return signal_series(self.zeus_signal_conn_id, start_s, end_s)

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the last two days can be read, and a message."""
        from airflow_provider_zeus.errors import SignalError
        from airflow_provider_zeus.units import counted

        now_s = time.time()
        # prices of tomorrow come in the afternoon: yesterday's are surely there
        try:
            series = self.series(now_s - 2 * 86_400, now_s + 86_400)
        except SignalError as error:
            return False, str(error)
        present = series.at(now_s)
        values = counted(len(series.steps), "value")
        unit = series.unit.name
        if present is None:
            text = f"{values} in {unit} can be read, and none of now"
            return False, f"{text}; a time without an offset is read as UTC."
        return True, f"{values} can be read; at present {present.value:,.4g} {unit}."
