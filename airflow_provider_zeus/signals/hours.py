"""The cost and emission of the energy of an attempt by the hours in which it was drawn.

The series are those of the Connections ``zeus_price`` and ``zeus_carbon``, else those of the job's
own signals. The power is taken as even over the attempt, so the mean of the series over its time is
that of its energy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Self

from airflow_provider_zeus.errors import NoSignalError, SignalError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Observation, Trial
from airflow_provider_zeus.patience import bounded
from airflow_provider_zeus.signals.reading import BACK_S, Keeper, signal_series
from airflow_provider_zeus.signals.series import CARBON, PRICE, Series

log = guarded_log(__name__)

# What a training reports in these fields is not believed: the end of an attempt fills them in.
PRICED = (
    "price_per_kwh",
    "price_source",
    "price_at_once",
    "price_currency",
    "g_co2e_per_kwh",
    "g_co2e_source",
    "g_co2e_at_once",
)


@dataclass(slots=True, kw_only=True)
class HourPrices:
    """Puts prices and carbon intensities into the observations of a run's attempts, when they end.

    Raises nothing.

    :param began_s: when the first attempt was opened [s since the epoch].
    :param waited_since_s: since when the run waited for a cheaper start; None: it did not.
    :param own: signals of the job itself, which price the energy if there is no Connection
        ``zeus_price`` or ``zeus_carbon``.
    :param live: whether the ends come while the run trains; else the end of an attempt is known by
        its line alone.
    :param reader: returns the series of a signal that is set up, why it gives none, or None if it
        is not set up.
    """

    began_s: float
    waited_since_s: float | None = None
    own: Sequence[str] = ()
    live: bool = True
    reader: Callable[[str, float, float], Series | str | None]
    # The clock of a simulated device starts anew with each attempt, so their times are added up.
    _earlier_s: float = field(default=0.0, init=False)

    @classmethod
    def of(
        cls,
        first: Trial,
        job: ZeusJob,
        waited_since_s: float | None,
        reader: Callable[[str, float, float], Series | str | None],
        *,
        live: bool = True,
    ) -> Self:
        """Those of a run of a job, whose first trial this is."""
        own = [str(signal) for signal in (job.start_signal, job.follow) if signal]
        # A run without a row, as while the store is away, began about now.
        began_s = first.opened_at or time.time()
        return cls(
            began_s=began_s, waited_since_s=waited_since_s, own=own, live=live, reader=reader
        )

    def priced(self, observation: Observation, ended_s: float | None, most_s: float) -> Observation:
        """The observation of an attempt that has ended, with its prices.

        Prices that its training reports count for nothing.

        :param ended_s: when it ended, as its training says [s since the epoch].
        :param most_s: how long to wait for the signals at most [s]. 0: none is asked.
        """
        # A training could report the prices that it likes.
        observation = unpriced(observation)
        now_s = time.time()
        # A training that says nothing ended just now; one that was found dead did not.
        if ended_s is None and self.live:
            ended_s = now_s
        if ended_s is not None:
            # The clock of another host, or a training that lies, moves no energy into the future.
            ended_s = min(max(ended_s, self.began_s), now_s)
        drawn = span(observation, began_s=self.began_s, earlier_s=self._earlier_s, ended_s=ended_s)
        self._earlier_s += observation.time_s or 0.0
        if drawn is None or observation.energy_j is None or most_s <= 0:
            return observation
        waited_s = 0.0
        if self.waited_since_s is not None:
            waited_s = self.began_s - self.waited_since_s
        try:
            signals = self._read(Span(drawn.start_s - waited_s, drawn.end_s), most_s)
            return priced(observation, signals, drawn, waited_s)
        except Exception as error:  # of any kind: the cost itself is worth more
            log.warning(
                "Zeus: the hours of this run could not be priced (%s).", type(error).__name__
            )
            return observation

    def _read(self, over: Span, most_s: float) -> dict[str, Series | str]:
        """By price and carbon the series over a span, or why there is none.

        They are read one after the other, each in its share of the time that is left: Airflow 3.2
        stops a task of which several threads look up Connections at once.
        """
        until_s = time.monotonic() + most_s
        # Airflow's own first: they price all runs alike.
        names = list(dict.fromkeys((PRICE, CARBON, *self.own)))
        signals: dict[str, Series | str] = {}
        # Why an own signal gives nothing: of which kind it is, only its series tells.
        problems: list[str] = []
        for i, name in enumerate(names):
            # A signal that answers at once leaves its time to the others.
            share_s = max(until_s - time.monotonic(), 0.0) / (len(names) - i)
            series = self._read_one(name, over, share_s)
            if series is None:
                continue
            if name in (PRICE, CARBON):
                signals[name] = series
            elif isinstance(series, Series):
                signals.setdefault(series.unit.goal, series)
            else:
                # Pages show it to people who may not know the names of Connections: it is masked.
                problems.append(series.replace(repr(name), "..."))
        if problems:
            signals.setdefault(PRICE, problems[0])
            signals.setdefault(CARBON, problems[0])
        return signals

    def _read_one(self, name: str, over: Span, most_s: float) -> Series | str | None:
        """The series of a signal over a span, why there is none, or None if it is not set up.

        Raises nothing.
        """
        try:
            return bounded(partial(self.reader, name, over.start_s, over.end_s), most_s)
        except TimeoutError:
            return str(SignalError.of(name, f"no answer in {most_s:.3g} s"))
        except Exception as error:  # of any kind: the other signal is worth as much
            return str(SignalError.of(name, type(error).__name__))


def read_signal(
    signal: str, start_s: float, end_s: float, keeper: Keeper | None
) -> Series | str | None:
    """The series of ``"price"`` or ``"carbon"`` over a span, why there is none, or None if it is
    not set up.
    """
    try:
        return signal_series(signal, min(start_s, end_s - BACK_S), end_s, keeper)
    except NoSignalError:
        return None
    except SignalError as error:
        return str(error)


def unpriced(observation: Observation) -> Observation:
    """The observation without prices: those that a training reports itself count for nothing."""
    # A reason of the training would hide why a signal gave no price.
    reasons = {name: why for name, why in observation.reasons.items() if name not in PRICED}
    has_values = any(getattr(observation, name) is not None for name in PRICED)
    if reasons == observation.reasons and not has_values:
        return observation
    none: dict[str, Any] = dict.fromkeys(PRICED)
    return replace(observation, reasons=reasons, **none)


class Span(NamedTuple):
    """From ``start_s`` to ``end_s`` [s since the epoch]."""

    start_s: float
    end_s: float


def span(
    observation: Observation, *, began_s: float, earlier_s: float, ended_s: float | None
) -> Span | None:
    """When the energy of an attempt was drawn; None if that is not known.

    The time of a simulated device runs on its own, so its attempt takes its time from the start of
    the run on.

    :param began_s: when the first attempt of the run was opened.
    :param earlier_s: the time of the attempts before it.
    :param ended_s: when the attempt ended.
    """
    if observation.time_s is None:
        return None
    # A simulated hour passes in seconds: the clock of the host says nothing of it.
    if observation.energy_source == "simulated":
        start_s = began_s + earlier_s
        return Span(start_s, start_s + observation.time_s)
    if ended_s is None:
        return None
    # An attempt that says it took longer than its run must not reach into the hours before it.
    first_s = min(began_s, ended_s)
    return Span(max(ended_s - observation.time_s, first_s), ended_s)


def priced(
    observation: Observation,
    signals: Mapping[str, Series | str],
    drawn: Span,
    waited_s: float = 0.0,
) -> Observation:
    """The observation with the means over its hours.

    :param signals: by :data:`PRICE` and :data:`CARBON` the series, or why there is none. A signal
        that is not set up is left out.
    :param drawn: see :func:`span`.
    :param waited_s: by how much later the run began since it waited for a cheaper start; 0: it did
        not wait.
    """
    values: dict[str, Any] = {}
    reasons = dict(observation.reasons)
    for signal, series in signals.items():
        short = "price" if signal == PRICE else "g_co2e"
        name = f"{short}_per_kwh"
        if isinstance(series, str):
            reasons[name] = series
            continue
        # A mistyped Connection may give carbon under the name of a price.
        if series.unit.goal != signal:
            reasons[name] = f"the signal is in {series.unit.name}"
            continue
        mean = series.mean(drawn.start_s, drawn.end_s)
        if mean is None:
            reasons[name] = "the signal has no value for a part of its hours"
            continue
        values[name] = mean
        values[f"{short}_source"] = _source(series, drawn)
        if signal == PRICE:
            # The currency of that hour: the configuration may change later.
            values["price_currency"] = series.unit.name.partition("/")[0]
        # The same hours at the time of a start at once, so that the saving of the wait is known.
        if waited_s > 0:
            at_once = series.mean(drawn.start_s - waited_s, drawn.end_s - waited_s)
            values[f"{short}_at_once"] = at_once
    return replace(observation, reasons=reasons, **values)


def _source(series: Series, drawn: Span) -> str:
    """Who says so, for which zone, and whether a value was estimated: ``"api.example.org, DE,
    estimated"``.
    """
    used = [s for s in series.steps if s.start_s < drawn.end_s and s.end_s > drawn.start_s]
    # One estimated step makes the mean an estimate.
    estimated = "estimated" if any(step.estimated for step in used) else ""
    return ", ".join(filter(None, (series.source, series.zone, estimated)))
