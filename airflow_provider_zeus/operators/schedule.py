"""When a run begins and has to end: what its schedule says of it, and whether it waits for a cheaper start, and why."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count, islice, takewhile
from statistics import median
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from airflow_provider_zeus.airflow_compat import is_test_run
from airflow_provider_zeus.errors import SignalError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.deadline import deadline_of, parse
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.patience import bounded
from airflow_provider_zeus.signals.forecast import NOT_WORTH_IT, NOW_IS_BEST, WAITS, Start
from airflow_provider_zeus.signals.reading import CONNECTIONS, planned_start
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.units import time_text

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store

USUAL = 8  # newest runs that say how long a run takes
QUEUE_S = 120.0  # from the end of a wait until a worker trains, where the run has to end in time

log = guarded_log(__name__)


def runs_left(context: Mapping[str, Any], most: int = 100) -> int | None:
    """Scheduled runs after this one until the task's ``end_date``, ``most`` at most: no policy looks further ahead.

    Raises nothing. None where the task and its DAG have no ``end_date``, or the schedule is neither one cron expression
    nor one interval.
    """
    end, timetable = getattr(context["task"], "end_date", None), getattr(context.get("dag"), "timetable", None)
    if end is None or timetable is None:
        return None
    try:
        after = context.get("data_interval_end" if hasattr(timetable, "interval") else "data_interval_start")
        dates = _dates(timetable, after or context["dag_run"].run_after)
        return None if dates is None else sum(1 for _ in takewhile(lambda date: date <= end, islice(dates, most)))
    except Exception:  # of a timetable of the author
        log.warning("Zeus could not count the runs until %s and assumes that they are many.", end, exc_info=True)
        return None


def interval_s(context: Mapping[str, Any]) -> float | None:
    """Time from this run to the next one by the schedule [s]; None without a schedule of known dates."""
    timetable, run_after = getattr(context.get("dag"), "timetable", None), context["dag_run"].run_after
    try:
        dates = None if timetable is None else _dates(timetable, run_after)
        return None if dates is None else (next(dates) - run_after).total_seconds()
    except Exception:  # of a timetable of the author
        return None


def _dates(timetable: Any, after: datetime) -> Iterator[datetime] | None:
    """The dates of a timetable that Airflow compares with ``end_date``."""
    expression, delta = getattr(timetable, "expression", None), getattr(timetable, "delta", None)
    if isinstance(expression, str):
        from croniter import croniter

        zone = timetable.timezone
        start = after.astimezone(ZoneInfo(zone) if isinstance(zone, str) else zone)
        dates: Iterator[datetime] = croniter(expression, start).all_next(datetime)
        return dates
    return None if delta is None else (after + i * delta for i in count(1))


def of_another_time(context: Mapping[str, Any]) -> bool:
    """Whether a run has data of another time: a backfill, or a test. It has no deadline and waits for nothing."""
    run_type = context["dag_run"].run_type
    return str(getattr(run_type, "value", run_type)) == "backfill" or is_test_run()


def finish_by_s(job: ZeusJob, context: Mapping[str, Any]) -> float | None:
    """The deadline [s since the epoch], the same for all tries of a run; None for a run that has none.

    A deadline that is past is warned of.
    """
    if not isinstance(job.finish_by, str) or of_another_time(context):
        return None
    zone = getattr(context.get("dag"), "timezone", None) or ZoneInfo("UTC")
    at = deadline_of(job.finish_by, context["dag_run"].run_after, zone)
    if at.timestamp() <= time.time():
        log.warning(
            "Zeus: ZeusJob.finish_by = %r: %s is past, so the fastest known batch size runs at full power. Remedy: a "
            "time of day or a timedelta moves with each run; a run that is cleared later keeps its deadline.",
            job.finish_by,
            f"{at:%Y-%m-%d %H:%M %Z}",
        )
    return at.timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWait:
    """Until when a task waits [s since the epoch], and why. ``until_s`` is None where it starts at once."""

    signal: str
    why: str
    until_s: float | None = None
    latest_s: float | None = None
    duration_s: float | None = None  # believed
    saves: float | None = None  # expected, as a share of starting at once; None: nothing, or not known

    def xcom(self) -> dict[str, Any]:
        """Value of XCom ``zeus_wait``: plain JSON."""
        return {
            "until": None if self.until_s is None else datetime.fromtimestamp(self.until_s, UTC).isoformat(),
            "latest": None if self.latest_s is None else datetime.fromtimestamp(self.latest_s, UTC).isoformat(),
            "signal": self.signal,
            "why": self.why,
            "saves": self.saves,
            "duration_s": self.duration_s,
        }


def planned_wait(
    job: ZeusJob, context: Mapping[str, Any], *, job_id: str, conn_id: str, now_s: float | None = None
) -> PlannedWait | None:
    """Whether a task waits, and until when; None for a job that never does, and for backfills and tests.

    Raises nothing: any fault of a signal, or of the log, means to start at once.
    """
    if job.start_within is None or of_another_time(context):
        return None
    signal, now_s = str(job.start_signal), time.time() if now_s is None else now_s

    def read() -> tuple[Store, list[Trial]]:
        store = open_store(conn_id)
        return store, trials_for_durations(store, job_id)

    _warn_of_a_long_window(job, context)
    try:
        store, trials = bounded(read, 8.0)
        took = durations(trials)
        if took is None:
            return PlannedWait(signal=signal, why="It starts at once: no run has shown yet how long it takes.")
        usual_s, most_s = took
        latest_s = (context["dag_run"].run_after + window(job)).timestamp()
        if (due_s := finish_by_s(job, context)) is not None:
            latest_s = min(latest_s, due_s - most_s - QUEUE_S)
        start, unit = planned_start(signal, now_s, latest_s, usual_s, store)
    except SignalError as error:
        return PlannedWait(signal=signal, why=f"It starts at once. {_without_connection(str(error), signal)}")
    except Exception as error:  # of the store, or of what the DAG gives
        return PlannedWait(
            signal=signal, why=f"It starts at once: the trial log cannot be read ({type(error).__name__})."
        )
    at_once = {NOW_IS_BEST: "now is the cheapest start", NOT_WORTH_IT: "waiting would save less than 5 %"}
    why, until_s, share = f"It starts at once: {at_once.get(start.reason, start.reason)}.", None, None
    if start.reason == WAITS:
        share = start.saving / abs(start.mean_at_once) if start.mean_at_once else None
        name = signal if signal in CONNECTIONS else "its signal"
        why, until_s = _sentence(name, start, unit, usual_s, share), start.at_s
    return PlannedWait(signal=signal, why=why, until_s=until_s, latest_s=latest_s, duration_s=usual_s, saves=share)


def trials_for_durations(store: Store, job_id: str) -> list[Trial]:
    """The newest trials of a job, so many that they say how long a run takes (:func:`durations`)."""
    trials = list[Trial]()
    for last in (8 * USUAL, 1_000):  # some train nothing
        trials = store.trials(job_id, last=last)
        if len(_kept_runs(trials)) >= USUAL:
            break
    return trials


def window(job: ZeusJob) -> timedelta:
    """How long a job may wait after its scheduled start: ``ZeusJob.start_within``, which is set."""
    within = parse(job.start_within)
    assert isinstance(within, timedelta)  # checked with the job
    return within


def _warn_of_a_long_window(job: ZeusJob, context: Mapping[str, Any]) -> None:
    """Log that a run may wait for longer than until the next one."""
    next_s = interval_s(context)
    if next_s is None or window(job).total_seconds() <= next_s:
        return
    log.warning(
        "Zeus: ZeusJob.start_within = %r: longer than the %s until the next run, so two runs may wait at once, or the "
        "next one begins late (max_active_runs). Remedy: a window shorter than the schedule's interval.",
        job.start_within,
        time_text(next_s),
    )


def _without_connection(text: str, signal: str) -> str:
    """A text that pages show: the id of a Connection is for those who may read Connections."""
    return text if signal in CONNECTIONS else text.replace(repr(signal), "...")


def _sentence(signal: str, start: Start, unit: str, usual_s: float, share: float | None) -> str:
    less = "" if share is None else f", {100 * share:.0f} % less than at once"
    until = datetime.fromtimestamp(start.at_s, UTC)
    return (
        f"It waits until {until:%Y-%m-%d %H:%M} UTC: over the {time_text(usual_s)} of a run the mean of {signal} is "
        f"expected to be {start.mean_then:.4g} instead of {start.mean_at_once:.4g} {unit}{less}."
    )


def durations(trials: Iterable[Trial]) -> tuple[float, float] | None:
    """(usual time of a run, time that nearly all take) [s], by the newest runs; None where none has ended."""
    kept = _kept_runs(trials)[-USUAL:]
    if not kept:
        return None
    took = [sum(t.observation.time_s or 0.0 for t in run) for run in kept]
    known = next((attempt.in_time for attempt in kept[-1][-1].decision.attempts[-1:]), None)  # none where pruned
    most_s = known.time_95_s if known and known.time_95_s else 0.0
    return median(took), max(most_s, *took)


def _kept_runs(trials: Iterable[Trial]) -> list[list[Trial]]:
    """Of each run that trained a model, in order: the attempts of its newest try that did."""
    runs: dict[tuple[str, ...], list[Trial]] = {}
    tries: dict[str, list[Trial]] = {}
    for trial in trials:
        own = tries.setdefault(trial.key.ti_id, [])
        own.append(trial)
        if trial.state.kept_model and trial.observation.time_s:
            runs[trial.recurrence] = own
    return list(runs.values())
