"""Prices the energy of a run by the hours in which it drew it: Connections ``zeus_price`` and ``zeus_carbon``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from airflow_provider_zeus.errors import NoSignalError, SignalError
from airflow_provider_zeus.model.job import ZeusJob
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
    :param own: signals of the job itself, which price what has no Connection ``zeus_price`` or ``zeus_carbon``.
    :param live: whether the lines come while the run trains; else the end of an attempt is known by its line alone.
    :param read: returns the series of a signal that is set up, why it gives none, or None where it is not set up.
    """

    began_s: float
    waited_since_s: float | None = None
    own: Sequence[str] = ()
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
                seen = hours.priced(seen, self._read((at[0] - waited_s, at[1]), most_s), at, waited_s)
            except Exception as error:  # of any kind: the cost itself is worth more
                log.warning("Zeus: the hours of this run could not be priced (%s).", type(error).__name__)
        return replace(line, observation=seen)

    def _read(self, over: tuple[float, float], most_s: float) -> dict[str, Series | str]:
        """By price and carbon the series over a span, or why there is none.

        They are read one after the other, each in its share of the time that is left: Airflow 3.2 stops a task of which
        several threads look up Connections at once.
        """
        until_s, names = time.monotonic() + most_s, list(dict.fromkeys((PRICE, CARBON, *self.own)))
        found: dict[str, Series | str] = {}
        unread: list[str] = []  # why an own signal gives nothing; of which kind it is, only its series tells
        for name, left in zip(names, range(len(names), 0, -1), strict=True):
            share_s = max(until_s - time.monotonic(), 0.0) / left
            try:
                series = bounded(partial(self.read, name, *over), share_s)
            except TimeoutError:
                series = str(SignalError.of(name, f"no answer in {share_s:.3g} s"))
            except Exception as error:  # of any kind: the other signal is worth as much
                series = str(SignalError.of(name, type(error).__name__))
            if name in (PRICE, CARBON) and series is not None:
                found[name] = series
            elif isinstance(series, Series):
                found.setdefault(series.unit.goal, series)
            elif series is not None:
                unread.append(series)
        for goal in (PRICE, CARBON):
            for why in unread:
                found.setdefault(goal, why)
        return found


def own_signals(job: ZeusJob) -> list[str]:
    """The signals that a job names itself."""
    return [str(signal) for signal in (job.start_signal, job.follow) if signal]


def read_signal(signal: str, start_s: float, end_s: float, keeper: Keeper | None) -> Series | str | None:
    """The series of ``"price"`` or ``"carbon"`` over a span, why there is none, or None where it is not set up."""
    try:
        return signal_series(signal, min(start_s, end_s - BACK_S), end_s, keeper)
    except NoSignalError:
        return None
    except SignalError as error:
        return str(error)
