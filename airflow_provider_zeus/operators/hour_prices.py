"""Prices the energy of a run by the hours in which it drew it: Connections ``zeus_price`` and ``zeus_carbon``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from airflow_provider_zeus.errors import NoSignalError, SignalError
from airflow_provider_zeus.operators.kept_series import Keeper
from airflow_provider_zeus.operators.signal_series import BACK_S, signal_series
from airflow_provider_zeus.signals import hours
from airflow_provider_zeus.signals.series import CARBON, PRICE, Series
from airflow_provider_zeus.store.patience import bounded
from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.training.protocol.sender import ENDED_AT_S

PRICED_S = 6.0  # limit of reading the signals at the end of an attempt

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class HourPrices:
    """Puts prices and carbon intensities into the ends of a run's attempts. Raises nothing.

    :param began_s: when the first attempt was opened [s since the epoch].
    :param waited_since_s: since when the run waited for a cheaper start; None: it did not.
    :param own: signal of the job itself, which prices what has no Connection ``zeus_price`` or ``zeus_carbon``.
    :param live: whether the lines come while the run trains; else the end of an attempt is known by its line alone.
    :param read: returns the series of a signal that is set up, why it gives none, or None where it is not set up.
    """

    began_s: float
    waited_since_s: float | None = None
    own: str | None = None
    live: bool = True
    read: Callable[[str, float, float], Series | str | None]
    _earlier_s: float = field(default=0.0, init=False)  # what the attempts that have ended took

    def priced(self, line: ResultLine, most_s: float) -> ResultLine:
        """The end of an attempt with its prices; waits at most ``most_s`` seconds for the signals, 0: it asks none."""
        seen = line.observation and hours.unpriced(line.observation)
        if seen is None:
            return line
        now_s = time.time()
        ended_s = line.notes.get(ENDED_AT_S, now_s if self.live else None)
        ended_s = ended_s and min(max(ended_s, self.began_s), now_s)
        at = hours.span(seen, began_s=self.began_s, earlier_s=self._earlier_s, ended_s=ended_s)
        self._earlier_s += seen.time_s or 0.0
        if at is not None and seen.energy_j is not None and most_s > 0:
            waited_s = 0.0 if self.waited_since_s is None else self.began_s - self.waited_since_s
            try:
                seen = hours.priced(seen, bounded(partial(self._read, at, waited_s), most_s), at, waited_s)
            except Exception as error:  # of any kind: the cost itself is worth more
                log.warning("Zeus: the hours of this run could not be priced (%s).", type(error).__name__)
        return replace(line, observation=seen)

    def _read(self, at: tuple[float, float], waited_s: float) -> dict[str, Series | str]:
        found = {name: self.read(name, at[0] - waited_s, at[1]) for name in (PRICE, CARBON)}
        known = {name: series for name, series in found.items() if series is not None}
        if self.own is not None and self.own not in found and len(known) < len(found):
            series = self.read(self.own, at[0] - waited_s, at[1])
            if isinstance(series, Series):
                known.setdefault(series.unit.goal, series)
        return known


def read_signal(signal: str, start_s: float, end_s: float, keeper: Keeper | None) -> Series | str | None:
    """The series of ``"price"`` or ``"carbon"`` over a span, why there is none, or None where it is not set up."""
    try:
        return signal_series(signal, min(start_s, end_s - BACK_S), end_s, keeper)
    except NoSignalError:
        return None
    except SignalError as error:
        return str(error)
