"""Until when a run has to end: the job's ``finish_by``, and what a decision knows of it. Standard library only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from statistics import NormalDist

from airflow_provider_zeus import patterns
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model import wire

SURE = 0.95  # share of the runs that are to end in time
Z_SURE = NormalDist().inv_cdf(SURE)


def as_text(value: object) -> object:
    """A ``finish_by`` as JSON can hold it: a datetime, a time or a timedelta as text, anything else unchanged."""
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.15g} s"
    return value.isoformat() if isinstance(value, datetime | time) else value


def parse(text: object) -> time | datetime | timedelta:
    """What a ``finish_by`` says. Raises JobSpecError that names value and remedy."""
    if isinstance(text, str):
        length = patterns.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h)", text.strip())
        seconds = float(length[1]) * {"s": 1.0, "min": 60.0, "h": 3600.0}[length[2]] if length else 0.0
        if 0 < seconds <= 366 * 86_400:
            return timedelta(seconds=seconds)
        for read in (time.fromisoformat, datetime.fromisoformat):
            try:
                found: time | datetime = read(text.strip())
            except ValueError:
                continue
            if isinstance(found, datetime) and 1970 < found.year < 9999:  # so it is one in each time zone
                return found
            if isinstance(found, time) and ":" in text and found.tzinfo is None:  # 20270301 is a date
                return found
    remedy = (
        "give a time of day as '06:00', a date with a time as '2027-03-01 06:00', or a time after the run's start as "
        "timedelta(hours=2) or '2 h', at most a year"
    )
    raise JobSpecError.of("finish_by", text, "no point in time", remedy)


def deadline_of(text: str, run_after: datetime, zone: tzinfo) -> datetime:
    """When a run has to end: the next such time of day after ``run_after``, that date, or so long after it.

    :param run_after: of the run, with a time zone; the same for all its tries.
    :param zone: of the DAG: of a time of day, and of a date without a time zone. A time of day that a change to summer
        time leaves out is taken as if the clock had not changed.
    """
    wanted = parse(text)
    if isinstance(wanted, timedelta):
        return run_after.astimezone(UTC) + wanted  # hours that pass, not those of a clock that is put back
    if isinstance(wanted, datetime):
        return wanted if wanted.tzinfo else wanted.replace(tzinfo=zone)
    day = run_after.astimezone(zone).date()
    found = [datetime.combine(day + timedelta(days=n), wanted, tzinfo=zone) for n in range(3)]
    twice = [at.replace(fold=fold) for at in found for fold in (0, 1)]  # in the night in which a clock is put back
    return next(at for at in twice if at.timestamp() > run_after.timestamp())


@dataclass(frozen=True, slots=True, kw_only=True)
class InTime:
    """What a decision knows of the time that an attempt may take.

    ``slowdown``: how many times as long as at the highest power limit the attempt may take, as the decision believes.
    """

    finish_by_s: wire.Moment
    reserve_s: wire.Seconds = 0.0  # that the attempt after this one needs, where this one is given up
    slowdown: wire.Amount | None = None  # at least 1; None: not known
    pace: wire.Amount = 1.0  # how many times as long as the profile says training took in the newest runs
    hurry: bool = False  # no known batch size ends in time: time alone decides, and costs are those of eta 0
    log_epochs: tuple[wire.Logarithm, wire.Logarithm] | None = None  # mean and sd of ln Epochs; None: not known
    time_95_s: wire.Seconds | None = None  # that 95 % of such attempts take at most, at the highest power limit

    def epochs_left(self, done: float, most: float) -> float:
        """Epochs that are still to come, with 95 %, after ``done`` of at most ``most`` epochs below the target."""
        if self.log_epochs is None:
            return max(most - done, 0.0)
        mean, sd = self.log_epochs
        below = NormalDist().cdf((math.log(done) - mean) / max(sd, 1e-9)) if done > 0 else 0.0
        share = min(below + SURE * (1 - below), 1 - 1e-12)
        total = math.exp(mean + sd * NormalDist().inv_cdf(max(share, 1e-12)))
        return max(min(total, most) - done, 0.0)

    def slowdown_at(self, now_s: float, done: float, most: float, epoch_s: float | None) -> float | None:
        """How many times as long as at the highest power limit the rest of the attempt may take.

        Below 1 if it is not expected to end in time; None if that is not known.

        :param done: epochs that are trained; ``most``: ``max_epochs``.
        :param epoch_s: time of an epoch at the highest limit, by the profile. Without it the decision's slowdown holds.
        """
        if epoch_s is None or epoch_s <= 0:
            return self.slowdown
        left_s = self.epochs_left(done, most) * epoch_s * self.pace
        room_s = max(self.finish_by_s - self.reserve_s - now_s, 0.0)
        return room_s / left_s if left_s > 0 else math.inf
