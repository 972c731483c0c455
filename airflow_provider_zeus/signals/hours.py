"""What the energy of an attempt cost and emitted by the hours in which it was drawn.

The series are those of the Connections ``zeus_price`` and ``zeus_carbon``, else those of the job's own signals. The
power is taken as even over the attempt, so the mean of the series over its time is that of its energy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from airflow_provider_zeus.errors import NoSignalError, SignalError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Observation, Trial
from airflow_provider_zeus.patience import bounded
from airflow_provider_zeus.signals.reading import BACK_S, Keeper, signal_series
from airflow_provider_zeus.signals.series import CARBON, PRICE, Series

log = guarded_log(__name__)


@dataclass(slots=True, kw_only=True)
class HourPrices:
    """Puts prices and carbon intensities into what a run's attempts observed, when they end. Raises nothing.

    :param began_s: when the first attempt was opened [s since the epoch].
    :param waited_since_s: since when the run waited for a cheaper start; None: it did not.
    :param own: signals of the job itself, which price what has no Connection ``zeus_price`` or ``zeus_carbon``.
    :param live: whether the ends come while the run trains; else the end of an attempt is known by its line alone.
    :param read: returns the series of a signal that is set up, why it gives none, or None where it is not set up.
    """

    began_s: float
    waited_since_s: float | None = None
    own: Sequence[str] = ()
    live: bool = True
    read: Callable[[str, float, float], Series | str | None]
    _earlier_s: float = field(default=0.0, init=False)  # what the attempts that have ended took

    @classmethod
    def of(
        cls,
        first: Trial,
        job: ZeusJob,
        waited_since_s: float | None,
        read: Callable[[str, float, float], Series | str | None],
        *,
        live: bool = True,
    ) -> Self:
        """Those of a run of a job, whose first trial this is."""
        own = [str(signal) for signal in (job.start_signal, job.follow) if signal]
        began_s = first.opened_at or time.time()
        return cls(began_s=began_s, waited_since_s=waited_since_s, own=own, live=live, read=read)

    def priced(self, seen: Observation, ended_s: float | None, most_s: float) -> Observation:
        """The observation of an attempt that has ended, with its prices; those that its training reports count nothing.

        :param ended_s: when it ended, as its training says [s since the epoch].
        :param most_s: waits at most so many seconds for the signals, 0: it asks none.
        """
        seen, now_s = unpriced(seen), time.time()
        if ended_s is None and self.live:
            ended_s = now_s
        ended_s = ended_s and min(max(ended_s, self.began_s), now_s)
        at = span(seen, began_s=self.began_s, earlier_s=self._earlier_s, ended_s=ended_s)
        self._earlier_s += seen.time_s or 0.0
        if at is None or seen.energy_j is None or most_s <= 0:
            return seen
        waited_s = 0.0 if self.waited_since_s is None else self.began_s - self.waited_since_s
        try:
            return priced(seen, self._read((at[0] - waited_s, at[1]), most_s), at, waited_s)
        except Exception as error:  # of any kind: the cost itself is worth more
            log.warning("Zeus: the hours of this run could not be priced (%s).", type(error).__name__)
            return seen

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
                unread.append(series.replace(repr(name), "..."))  # pages show it, and it names a Connection
        for goal in (PRICE, CARBON):
            for why in unread:
                found.setdefault(goal, why)
        return found


def read_signal(signal: str, start_s: float, end_s: float, keeper: Keeper | None) -> Series | str | None:
    """The series of ``"price"`` or ``"carbon"`` over a span, why there is none, or None where it is not set up."""
    try:
        return signal_series(signal, min(start_s, end_s - BACK_S), end_s, keeper)
    except NoSignalError:
        return None
    except SignalError as error:
        return str(error)


def unpriced(seen: Observation) -> Observation:
    """The observation without prices: those that a training reports itself count for nothing."""
    names = [f"{of}{end}" for of in ("price", "g_co2e") for end in ("_per_kwh", "_source", "_at_once")]
    names.append("price_currency")
    reasons = {name: why for name, why in seen.reasons.items() if name not in names}
    if reasons == seen.reasons and all(getattr(seen, name) is None for name in names):
        return seen
    none: dict[str, Any] = dict.fromkeys(names)
    return replace(seen, reasons=reasons, **none)


def span(seen: Observation, *, began_s: float, earlier_s: float, ended_s: float | None) -> tuple[float, float] | None:
    """When the energy of an attempt was drawn: (start, end) [s since the epoch]; None where that is not known.

    The time of a simulated device runs on its own, so its attempt takes its time from the start of the run on.

    :param began_s: when the first attempt of the run was opened.
    :param earlier_s: what the attempts before it took.
    :param ended_s: when the attempt ended.
    """
    if seen.time_s is None:
        return None
    if seen.energy_source == "simulated":
        return began_s + earlier_s, began_s + earlier_s + seen.time_s
    return None if ended_s is None else (max(ended_s - seen.time_s, min(began_s, ended_s)), ended_s)


def priced(
    seen: Observation, found: Mapping[str, Series | str], at: tuple[float, float], waited_s: float = 0.0
) -> Observation:
    """The observation with the means over its hours.

    :param found: by :data:`PRICE` and :data:`CARBON` the series, or why there is none; a signal that is not set up is
        left out.
    :param at: see :func:`span`.
    :param waited_s: by how much later the run began since it waited for a cheaper start; 0: it did not wait.
    """
    values: dict[str, Any] = {}
    reasons = dict(seen.reasons)
    for signal, series in found.items():
        short = "price" if signal == PRICE else "g_co2e"
        name = f"{short}_per_kwh"
        if isinstance(series, str):
            reasons[name] = series
            continue
        mean = series.mean(*at) if series.unit.goal == signal else None
        if mean is None:
            no_value = "the signal has no value for a part of its hours"
            reasons[name] = no_value if series.unit.goal == signal else f"the signal is in {series.unit.name}"
            continue
        estimated = any(step.estimated for step in series.steps if step.start_s < at[1] and step.end_s > at[0])
        source = ", ".join(filter(None, (series.source, series.zone, "estimated" if estimated else "")))
        values |= {name: mean, f"{short}_source": source}
        if signal == PRICE:
            values["price_currency"] = series.unit.name.partition("/")[0]
        if waited_s > 0:
            values[f"{short}_at_once"] = series.mean(at[0] - waited_s, at[1] - waited_s)
    return replace(seen, reasons=reasons, **values)
