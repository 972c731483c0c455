"""When a run begins and has to end: by its schedule, and whether it waits for a
cheaper start, and why.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count, islice, takewhile
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

from airflow_provider_zeus.airflow_compat import is_test_run
from airflow_provider_zeus.errors import SignalError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.deadline import deadline_of, parse
from airflow_provider_zeus.model.groups import sum_of_known
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.operators.origin import type_of
from airflow_provider_zeus.patience import bounded
from airflow_provider_zeus.signals.forecast import NOT_WORTH_IT, NOW_IS_BEST, WAITS, Start
from airflow_provider_zeus.signals.reading import CONNECTIONS, planned_start
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.units import time_text

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store

USUAL = 8  # older runs had other data and code
QUEUE_S = 120.0  # a worker may be busy when a wait ends, and the deadline is near

log = guarded_log(__name__)


def runs_left(context: Mapping[str, Any], most: int = 100) -> int | None:
    """Scheduled runs after this one until the task's ``end_date``, ``most`` at most: no policy
    looks further ahead.

    Raises nothing. None if the task and its DAG have no ``end_date``, or the schedule is neither
    one cron expression nor one interval.
    """
    end = getattr(context["task"], "end_date", None)
    timetable = getattr(context.get("dag"), "timetable", None)
    if end is None:
        return None
    try:
        edge = "data_interval_end" if hasattr(timetable, "interval") else "data_interval_start"
        dates = _dates(timetable, context.get(edge) or context["dag_run"].run_after)
        if dates is None:
            return None
        return len(list(takewhile(lambda date: date <= end, islice(dates, most))))
    except Exception:  # an author's own timetable may raise anything
        log.warning(
            "Zeus could not count the runs until %s and assumes that they are many.",
            end,
            exc_info=True,
        )
        return None


def interval_s(context: Mapping[str, Any]) -> float | None:
    """Time from this run to the next one by the schedule [s]; None without a schedule of known
    dates.
    """
    timetable = getattr(context.get("dag"), "timetable", None)
    run_after = context["dag_run"].run_after
    try:
        dates = _dates(timetable, run_after)
        if dates is None:
            return None
        next_date: datetime = next(dates)
        return float((next_date - run_after).total_seconds())
    except Exception:  # no run fails for a timetable of the author that raises
        return None


def _dates(timetable: Any, after: datetime) -> Iterator[datetime] | None:
    """The dates of a timetable that Airflow compares with ``end_date``."""
    expression = getattr(timetable, "expression", None)
    delta = getattr(timetable, "delta", None)
    if isinstance(expression, str):
        from croniter import croniter

        zone = timetable.timezone
        start = after.astimezone(ZoneInfo(zone) if isinstance(zone, str) else zone)
        dates: Iterator[datetime] = croniter(expression, start).all_next(datetime)
        return dates
    return None if delta is None else (after + i * delta for i in count(1))


def of_another_time(context: Mapping[str, Any]) -> bool:
    """Whether a run has data of another time: a backfill, or a test.

    It has no deadline and waits for nothing.
    """
    return type_of(context["dag_run"]) == "backfill" or is_test_run()


def finish_by_s(job: ZeusJob, context: Mapping[str, Any]) -> float | None:
    """The deadline [s since the epoch], the same for all tries of a run; None for a run that has
    none.

    A deadline that is past is warned of.
    """
    if not isinstance(job.finish_by, str) or of_another_time(context):
        return None
    zone = getattr(context.get("dag"), "timezone", None) or ZoneInfo("UTC")
    at = deadline_of(job.finish_by, context["dag_run"].run_after, zone)
    if at.timestamp() <= time.time():
        log.warning(
            "Zeus: ZeusJob.finish_by = %r: %s is past, so the fastest known batch size runs at "
            "full power. Remedy: a time of day or a timedelta moves with each run; a run that is "
            "cleared later keeps its deadline.",
            job.finish_by,
            f"{at:%Y-%m-%d %H:%M %Z}",
        )
    return at.timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWait:
    """Until when a task waits [s since the epoch], and why.

    ``until_s`` is None if it starts at once.
    """

    signal: str
    why: str
    until_s: float | None = None
    latest_s: float | None = None
    duration_s: float | None = None
    # None without a wait, and if the mean at once is 0: nothing is a share of that.
    saves: float | None = None

    def xcom(self) -> dict[str, Any]:
        """Value of XCom ``zeus_wait``: plain JSON."""
        return {
            "until": _iso(self.until_s),
            "latest": _iso(self.latest_s),
            "signal": self.signal,
            "why": self.why,
            "saves": self.saves,
            "duration_s": self.duration_s,
        }


def _iso(moment_s: float | None) -> str | None:
    return None if moment_s is None else datetime.fromtimestamp(moment_s, UTC).isoformat()


def planned_wait(
    job: ZeusJob,
    context: Mapping[str, Any],
    *,
    job_id: str,
    conn_id: str,
    now_s: float,
) -> PlannedWait | None:
    """Whether a task waits, and until when; None for a job that never does, and for backfills and
    tests.

    Raises nothing: any fault of a signal, or of the log, means to start at once.
    """
    if job.start_within is None or of_another_time(context):
        return None
    signal = str(job.start_signal)

    def read() -> tuple[Store, list[Trial]]:
        store = open_store(conn_id)
        return store, trials_for_durations(store, job_id)

    _warn_of_a_long_window(job, context)
    try:
        store, trials = bounded(read, 8.0)
        took = durations(trials)
        if took is None:
            why = "It starts at once: no run has shown yet how long it takes."
            return PlannedWait(signal=signal, why=why)
        usual_s, most_s = took
        # by the scheduled start, not by now: a late scheduler does not move the window
        latest_s = (context["dag_run"].run_after + window(job)).timestamp()
        # a run that waits too long would miss its own deadline
        due_s = finish_by_s(job, context)
        if due_s is not None:
            latest_s = min(latest_s, due_s - most_s - QUEUE_S)
        start, unit = planned_start(signal, now_s, latest_s, duration_s=usual_s, keeper=store)
    except SignalError as error:
        # pages show it, and the id of a Connection is for those who may read Connections
        text = str(error) if signal in CONNECTIONS else str(error).replace(repr(signal), "...")
        return PlannedWait(signal=signal, why=f"It starts at once. {text}")
    except Exception as error:  # store and timetable may raise anything: the run starts
        why = f"It starts at once: a later start cannot be planned ({type(error).__name__})."
        return PlannedWait(signal=signal, why=why)
    at_once = {
        NOW_IS_BEST: "now is the cheapest start",
        NOT_WORTH_IT: "waiting would save less than 5 %",
    }
    why = f"It starts at once: {at_once.get(start.reason, start.reason)}."
    until_s = None
    share = None
    if start.reason == WAITS:
        share = start.saving / abs(start.mean_at_once) if start.mean_at_once else None
        name = signal if signal in CONNECTIONS else "its signal"
        why = _sentence(name, start, unit, usual_s, share)
        until_s = start.at_s
    return PlannedWait(
        signal=signal, why=why, until_s=until_s, latest_s=latest_s, duration_s=usual_s, saves=share
    )


def trials_for_durations(store: Store, job_id: str) -> list[Trial]:
    """The newest trials of a job, so many that they say how long a run takes
    (:func:`durations`).
    """
    trials = list[Trial]()
    for last in (8 * USUAL, 1_000):  # most of the newest may have trained nothing
        trials = store.trials(job_id, last=last)
        if len(_kept_runs(trials)) >= USUAL:
            break
    return trials


def window(job: ZeusJob) -> timedelta:
    """How long a job may wait after its scheduled start: ``ZeusJob.start_within``, which is set."""
    within = parse(job.start_within)
    assert isinstance(within, timedelta)  # ZeusJob.check() refuses a time of day
    return within


def _warn_of_a_long_window(job: ZeusJob, context: Mapping[str, Any]) -> None:
    """Log that a run may wait for longer than until the next one."""
    next_s = interval_s(context)
    if next_s is None or window(job).total_seconds() <= next_s:
        return
    log.warning(
        "Zeus: ZeusJob.start_within = %r: longer than the %s until the next run, so two runs may "
        "wait at once, or the next one begins late (max_active_runs). Remedy: a window shorter "
        "than the schedule's interval.",
        job.start_within,
        time_text(next_s),
    )


def _sentence(signal: str, start: Start, unit: str, usual_s: float, share: float | None) -> str:
    less = "" if share is None else f", {100 * share:.0f} % less than at once"
    until = datetime.fromtimestamp(start.at_s, UTC)
    return (
        f"It waits until {until:%Y-%m-%d %H:%M} UTC: over the {time_text(usual_s)} of a run the "
        f"mean of {signal} is expected to be {start.mean_then:.4g} instead of "
        f"{start.mean_at_once:.4g} {unit}{less}."
    )


class Durations(NamedTuple):
    """Time that a run usually takes, and time that nearly all take [s]."""

    usual_s: float
    most_s: float


def durations(trials: Iterable[Trial]) -> Durations | None:
    """How long the newest runs took; None if none has ended."""
    runs = _kept_runs(trials)[-USUAL:]
    if not runs:
        return None
    took_s = [sum_of_known(trial.observation.time_s for trial in run) for run in runs]
    most_s = max(took_s)
    attempts = runs[-1][-1].decision.attempts  # `airflow zeus prune` deletes those of old runs
    in_time = attempts[-1].in_time if attempts else None
    # the belief knows more than eight runs, if it has learned enough
    if in_time is not None and in_time.time_95_s:
        most_s = max(most_s, in_time.time_95_s)
    return Durations(median(took_s), most_s)


def _kept_runs(trials: Iterable[Trial]) -> list[list[Trial]]:
    """Of each run that trained a model, in order: the attempts of its newest try that did."""
    runs: dict[tuple[str, ...], list[Trial]] = {}
    tries: dict[str, list[Trial]] = {}
    for trial in trials:
        own = tries.setdefault(trial.key.ti_id, [])
        own.append(trial)
        # a retry that trained again replaces the run's earlier try
        if trial.state.kept_model and trial.observation.time_s:
            runs[trial.recurrence] = own
    return list(runs.values())
