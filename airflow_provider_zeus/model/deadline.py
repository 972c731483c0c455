"""Until when a run has to end: the job's ``finish_by``, and the facts that a decision has of it.

Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from statistics import NormalDist

from airflow_provider_zeus import patterns
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model import wire

SURE = 0.95  # a mean would miss half of the deadlines
Z_SURE = NormalDist().inv_cdf(SURE)
_UNITS_S = {"s": 1.0, "min": 60.0, "h": 3600.0}


def as_text(value: object) -> object:
    """A ``finish_by`` as JSON can hold it: a datetime, a time or a timedelta as text, else
    unchanged.
    """
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.15g} s"
    if isinstance(value, datetime | time):
        return value.isoformat()
    return value


def parse(text: object) -> time | datetime | timedelta:
    """The meaning of a ``finish_by``. Raises JobSpecError that names value and remedy."""
    if isinstance(text, str):
        for parse in (_length, _time_of_day, _date):
            point = parse(text.strip())
            if point is not None:
                return point
    remedy = (
        "give a time of day as '06:00', a date with a time as '2027-03-01 06:00', or a time after "
        "the run's start as "
        "timedelta(hours=2) or '2 h', at most a year"
    )
    raise JobSpecError.of("finish_by", text, "no point in time", remedy)


def _length(text: str) -> timedelta | None:
    """A length of time of at most a year, such as "2 h"."""
    length = patterns.fullmatch(r"(?P<number>\d+(?:\.\d+)?) ?(?P<unit>s|min|h)", text)
    if length is None:
        return None
    unit_s = _UNITS_S[length["unit"]]
    seconds = float(length["number"]) * unit_s
    if 0 < seconds <= 366 * 86_400:
        return timedelta(seconds=seconds)
    return None


def _time_of_day(text: str) -> time | None:
    # without a colon 20270301 would be one, too
    if ":" not in text:
        return None
    try:
        point = time.fromisoformat(text)
    except ValueError:
        return None
    if point.tzinfo is None:
        return point
    return None


def _date(text: str) -> datetime | None:
    """A date with a time; it has to be one in each time zone."""
    try:
        point = datetime.fromisoformat(text)
    except ValueError:
        return None
    if 1970 < point.year < 9999:
        return point
    return None


def deadline_of(text: str, run_after: datetime, zone: tzinfo) -> datetime:
    """When a run has to end: the next such time of day after ``run_after``, that date, or so long
    after it.

    :param run_after: of the run, with a time zone; the same for all its tries.
    :param zone: of the DAG: of a time of day, and of a date without a time zone. A time of day that
        a change to summer time leaves out is taken as if the clock had not changed.
    """
    wanted = parse(text)
    if isinstance(wanted, timedelta):
        # hours that pass, not those of a clock that is put back
        return run_after.astimezone(UTC) + wanted
    if isinstance(wanted, datetime):
        if wanted.tzinfo:
            return wanted
        return wanted.replace(tzinfo=zone)
    day = run_after.astimezone(zone).date()
    while True:
        at = datetime.combine(day, wanted, tzinfo=zone)
        # in the night in which a clock is put back there are two such times
        for point in (at, at.replace(fold=1)):
            if point.timestamp() > run_after.timestamp():
                return point
        day += timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class InTime:
    """The facts that a decision has of the time of an attempt.

    :param slowdown: how many times as long as at the highest power limit the attempt may take, as
        the decision believes; at least 1.
    :param time_95_s: 95 % of such attempts take less, at the highest power limit.
    """

    finish_by_s: wire.Moment
    # An attempt that is given up must leave the next one the time to end.
    reserve_s: wire.Seconds = 0.0
    slowdown: wire.Amount | None = None
    # Shared hosts are slower than their profile: the newest runs took so many times as long.
    pace: wire.Amount = 1.0
    # No known batch size ends in time, so energy is no matter any more: costs are those of eta 0.
    hurry: bool = False
    # Epochs spread by factors, so these are mean and sd of ln Epochs. None: not known.
    log_epochs: tuple[wire.Logarithm, wire.Logarithm] | None = None
    # For the alert, which by a mean would miss half of the late runs.
    time_95_s: wire.Seconds | None = None

    def epochs_left(self, done: float, most: float) -> float:
        """Epochs that are still to come, with 95 %, after ``done`` of at most ``most`` epochs below
        the target.
        """
        if self.log_epochs is None:
            return max(most - done, 0.0)
        mean, sd = self.log_epochs
        below = NormalDist().cdf((math.log(done) - mean) / max(sd, 1e-9)) if done > 0 else 0.0
        # It has not ended by now, so the part of the distribution below is ruled out. Bounds keep
        # off 0 and 1, of which inv_cdf() knows no quantile.
        share = min(below + SURE * (1 - below), 1 - 1e-12)
        total = math.exp(mean + sd * NormalDist().inv_cdf(max(share, 1e-12)))
        return max(min(total, most) - done, 0.0)

    def slowdown_at(
        self, now_s: float, done: float, most: float, epoch_s: float | None
    ) -> float | None:
        """How many times as long as at the highest power limit the rest of the attempt may take.

        Below 1 if it is not expected to end in time; None if that is not known.

        :param done: epochs that are trained; ``most``: ``max_epochs``.
        :param epoch_s: time of an epoch at the highest limit, by the profile. Without it the
            decision's slowdown holds.
        """
        if epoch_s is None or epoch_s <= 0:
            return self.slowdown
        left_s = self.epochs_left(done, most) * epoch_s * self.pace
        room_s = max(self.finish_by_s - self.reserve_s - now_s, 0.0)
        if left_s > 0:
            return room_s / left_s
        return math.inf
