"""Which events of a job hold now, and which of them began, from its newest trials. Pure.

An event has figures with their units, says which trial showed it first, and names a remedy. It belongs to one DAG, and
is read from the runs of this DAG if several share the job. Runs whose type does not teach (``learn_from``), such as
backfills, raise no event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import takewhile

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import SURE, Estimate
from airflow_provider_zeus.model.event import (
    DEADLINE,
    DRIFTED,
    FAILING,
    LIMITS,
    LOST,
    NO_DATA,
    NO_METRIC,
    NO_TARGET,
    STORE,
    Event,
    Held,
    Looked,
)
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.size_bounds import truncated
from airflow_provider_zeus.model.trial import LIMIT, TELL_METRIC, ProfileSample, State, Trial
from airflow_provider_zeus.optimizer.posterior import own_arithmetic
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports.baseline import Baseline
from airflow_provider_zeus.reports.dataset import Dataset, as_dataset, recurrences, runs_of
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.units import costs_as, money_text, share_text, time_text

NEWEST = 300  # trials that the events are read from
LOST_RUNS = 10  # newest runs whose sum is compared with the default
DRIFT_RUNS = 6  # runs for which a change of the data is new

Run = Sequence[Trial]  # the trials of one scheduled run, by number


@own_arithmetic()
def look(
    held: Mapping[str, Held],
    trials: Sequence[Trial],
    profiles: Sequence[ProfileSample],
    *,
    run: Trial,
    prices: Prices,
) -> Looked:
    """What a run finds in the log of its job, when it is decided and when it has ended: the events of its DAG.

    Runs may overlap, and Airflow may try a run again that has failed. So a run counts as ended only once it, or one
    with a higher number, has looked at its end, or if its trial is abandoned.

    :param held: what held before, by DAG. That of other DAGs stays as it is.
    :param trials: the newest of one job, by number.
    :param profiles: samples of its device.
    :param run: a trial of the run that looks.
    """
    dag_id = run.origin.dag_id
    before = held.get(dag_id, Held())
    if not trials:
        return Looked(held=held, begun=())
    own = [t for t in trials if t.recurrence == run.recurrence]
    number = before.number
    if _is_closed(own) and own[-1].state is not State.ABANDONED:
        number = max(number, _number(own))
    events = _events(trials, profiles, looking=run, number=number, before=before, prices=prices)
    names_before = {event.name for event in before.events}
    begun = [event for event in events if event.name not in names_before]
    return Looked(held={**held, dag_id: Held(number=number, events=events)}, begun=begun)


def _events(
    trials: Sequence[Trial],
    profiles: Sequence[ProfileSample],
    *,
    looking: Trial,
    number: int,
    before: Held,
    prices: Prices,
) -> list[Event]:
    """The events of a DAG that hold now.

    :param looking: a trial of the run that looks.
    :param number: of the newest trial whose run has looked at its end.
    """
    dag_id = looking.origin.dag_id
    job = trials[-1].job
    teaching = [t for t in trials if t.origin.run_type in job.learn_from]
    closed = [run for run in runs_of(teaching) if _is_closed(run)]
    of_dag = [run for run in closed if run[0].origin.dag_id == dag_id]
    ended = [run for run in of_dag if _has_ended(run, number, looking)]
    open_runs = [t for t in teaching if t.origin.dag_id == dag_id and t.state is State.RUNNING]
    log = as_dataset(trials, job).of_target()
    log = replace(log, folded=log.belief())  # learned once for all events
    lost_before = next((event for event in before.events if event.kind == LOST), None)
    found = [
        _drifted(log, closed, dag_id),
        *_ends(ended, before.number),
        _limit(ended),
        _lost(log, dag_id, profiles, prices, lost_before),
        *_deadlines(open_runs, ended),
    ]
    return [event for event in found if event is not None]


def _is_closed(run: Run) -> bool:
    """Whether a run has trials, and none of them is open."""
    return bool(run) and all(t.state is not State.RUNNING for t in run)


def _has_ended(run: Run, number: int, looking: Trial) -> bool:
    """Whether a closed run will not be tried again, as far as is known."""
    if run[-1].state is State.ABANDONED:
        is_alive = run[-1].recurrence == looking.recurrence  # its lease expired, and its result comes late
        return not is_alive
    return _number(run) <= number


def _number(run: Run) -> int:
    """The number of a run: that of its newest trial."""
    return max(t.number for t in run)


def store_away(job: ZeusJob) -> Event:
    """The event of a run that could not ask the trial log, or not read it at its end."""
    trains = f"trains at the default batch size {job.default_batch_size}" if job.chooses_size else "begins all the same"
    without = f"a run {trains}, and what it cost is kept and stored later"
    if job.strict:
        without = "a run of this job fails, as it is strict"
    return Event(
        kind=STORE,
        sentence=f"The trial log could not be reached. Without it {without}.",
        remedy="airflow zeus doctor says why; the log of the task has the error (docs/store.md).",
    )


def deadline_at_risk(trial: Trial) -> Event | None:
    """Whether a run is expected to miss its deadline, or did. ``trial``: the newest of the run."""
    known = trial.planned.in_time
    if known is None:
        return None
    due = f"{datetime.fromtimestamp(known.finish_by_s, UTC):%Y-%m-%d %H:%M} UTC"
    figures = {"finish_by_s": known.finish_by_s}
    if trial.state is not State.RUNNING:
        dead = trial.state is State.ABANDONED  # then it was closed long after it died, if at all
        late_s = (trial.lease_until - trial.lease_s if dead else trial.closed_at or 0.0) - known.finish_by_s
        if late_s <= 0:
            return None
        ended = "left no result, and was last heard of" if dead else "ended"
        text = f"The run of trial {trial.number} {ended} {time_text(late_s)} after its deadline, {due}."
        figures["late_s"] = late_s
    elif known.time_95_s is not None and trial.opened_at + known.time_95_s > known.finish_by_s:
        most = time_text(known.time_95_s)
        text = f"The run of trial {trial.number} may miss its deadline, {due}: 95 % of such runs take at most {most}."
        figures["time_95_s"] = known.time_95_s
    elif known.hurry:
        text = f"The run of trial {trial.number} may miss its deadline, {due}: no known batch size ends in time."
    else:
        return None
    remedy = "Start it earlier, move ZeusJob.finish_by, or lower max_epochs (docs/in-time.md)."
    return _event(DEADLINE, trial, text, remedy, figures)


def _deadlines(open_runs: Sequence[Trial], ended: Sequence[Run]) -> list[Event | None]:
    """The deadlines of the open runs that are at risk, and that of the run that ended last if it ended too late."""
    last = max((run[-1] for run in ended), key=lambda t: t.closed_at or 0.0, default=None)
    newest = [run[-1] for run in runs_of(open_runs)]
    return [deadline_at_risk(t) for t in (*newest, last) if t is not None]


def _ends(ended: Sequence[Run], looked_at: int) -> list[Event | None]:
    """What the newest runs ended with: no model, no data, no metric, a model below its target.

    :param looked_at: number of the newest trial whose run has looked at the job before.
    """
    see = "See the log of the task; the tab of the run has what each attempt cost."
    check, nothing = "Check whether the data of this slice has arrived.", ": no batch came, and nothing was trained"
    until = f"Until one comes no batch size is tried. {TELL_METRIC[0].upper()}{TELL_METRIC[1:]}."
    below = "Its model was kept. Raise max_epochs, or set a target that this data can reach."
    return [
        _in_a_row(ended, FAILING, lambda state: state.died, "left no model", see) or _unseen(ended, looked_at),
        _in_a_row(ended, NO_DATA, lambda state: state is State.NO_DATA, "had no data", check, nothing),
        _in_a_row(ended, NO_METRIC, lambda state: state is State.NO_METRIC, "reported no metric", until),
        _in_a_row(ended, NO_TARGET, lambda state: state is State.EXHAUSTED, "ended below its target", below),
    ]


def _in_a_row(
    ended: Sequence[Run], kind: str, holds: Callable[[State], bool], did: str, remedy: str, why: str = ""
) -> Event | None:
    """The event of the newest runs that ended in one way.

    :param did: what they did, after "The newest run".
    :param why: after that; default: the reason of the newest one.
    """
    found = _newest(ended, lambda run: holds(run[-1].state))
    if not found:
        return None
    last, first = found[0][-1], found[-1][0]
    which = "The newest run" if len(found) == 1 else f"Each of the newest {len(found)} runs"
    text = f"{which} {did}{_since(first, found)}{why or _because(last.reason)}."
    return _event(kind, first, text, remedy, {"runs": len(found)})


def _unseen(ended: Sequence[Run], looked_at: int) -> Event | None:
    """The runs before the newest one that left no model and could tell nothing: killed, or with a late result."""
    unseen = _newest(ended[:-1], lambda run: run[-1].state.died and _number(run) > looked_at)
    if not unseen:
        return None
    first = unseen[-1][0]
    which = "The run before the newest one" if len(unseen) == 1 else f"The {len(unseen)} runs before the newest one"
    text = f"{which} left no model{_since(first, unseen)}{_because(unseen[0][-1].reason)}."
    remedy = "See the log of the task, and of its host: out of memory, or a host that went away."
    return _event(FAILING, first, text, remedy, {"runs": len(unseen)})


def _limit(ended: Sequence[Run]) -> Event | None:
    unset = _newest(ended, lambda run: LIMIT in run[-1].observation.reasons)
    if not unset:
        return None
    last, first = unset[0][-1].observation, unset[-1][0]
    at = "" if last.power_limit_w is None else f" The newest one ended at {last.power_limit_w:,.0f} W."
    which = "the newest run" if len(unset) == 1 else f"each of the newest {len(unset)} runs"
    text = f"A power limit could not be set in {which}{_since(first, unset)}{_because(last.reasons[LIMIT])}.{at}"
    figures: dict[str, float | str] = {"runs": len(unset)}
    if last.power_limit_w is not None:
        figures["limit_w"] = last.power_limit_w
    remedy = "airflow zeus doctor says what is missing (docs/power.md)."
    return _event(LIMITS, first, text, remedy, figures)


def _drifted(log: Dataset, closed: Sequence[Run], dag_id: str) -> Event | None:
    """A new change of the data. It belongs to the DAG whose run showed it."""
    changes = log.belief().changes if len(closed) >= 3 else ()
    if not changes:
        return None
    change = changes[-1]
    shown_at = change.shown_by[-1]
    runs_since = [run for run in closed if run[-1].number > shown_at]
    shown_by = next((run[-1] for run in closed if run[-1].number == shown_at), None)
    if len(runs_since) >= DRIFT_RUNS or shown_by is None or shown_by.origin.dag_id != dag_id:
        return None
    more = "more" if change.jump >= 0 else "fewer"
    text = f"The data changed at trial {change.since}: runs need {more} epochs than the earlier ones showed."
    remedy = "Nothing has to be done: older runs count less from here on. Check whether the data looks as expected."
    return Event(kind=DRIFTED, since=change.since, run_id=shown_by.origin.run_id, sentence=text, remedy=remedy)


def _lost(
    log: Dataset, dag_id: str, profiles: Sequence[ProfileSample], prices: Prices, before: Event | None
) -> Event | None:
    """The loss of the newest runs of a DAG: in money where that is known, else in the cost of the job.

    :param before: the loss that held before; None: none did.
    """
    ended = [run for run in recurrences(log)[0] if run.trials[0].origin.dag_id == dag_id]
    runs = [run for run in ended if any(t.origin.run_type in log.job.learn_from for t in run.trials)][-LOST_RUNS:]
    if len(runs) < LOST_RUNS:
        return None
    base = Baseline.of(log, LimitProfiles.of(profiles))
    first = runs[0].trials[0]
    seen = [t.observation for run in runs for t in run.trials]
    prices, (by_start, _) = prices.at_once(seen), prices.start_saved(seen)  # as the page does
    per_j, per_s = prices.per_j_and_s(log.where[1] if log.where else 1)
    if prices.priced and prices.currency and per_j >= 0 and per_j + per_s > 0:
        paid = base.compare(runs, Weights(per_j / (per_j + per_s), 1.0), "").times(per_j + per_s)
        saved, unit = paid.saved.plus(by_start), prices.currency
        return _loss(first, saved, unit, lambda v: money_text(v, prices.currency), before)
    weights = Weights.of(log.job, log.device)
    found, amount = base.compare(runs, weights, weights.unit), costs_as(weights.unit)
    if (whole := found.baseline.value) and not weights.one_alone:  # energy and time together have no unit of a bill
        amount = lambda v: share_text(v / whole)  # noqa: E731
    return _loss(first, found.saved, weights.unit, amount, before)


def _loss(
    first: Trial, saved: Estimate, unit: str, amount: Callable[[float], str], before: Event | None
) -> Event | None:
    """A loss. It begins when the whole interval is one, and ends when the middle is a saving, so it does not flap."""
    if saved.value is None or saved.low is None or saved.high is None:
        return before
    begins = saved.high < 0
    lasts = before is not None and saved.value <= 0
    if not begins and not lasts:
        return None
    lost, least, most = -saved.value, -saved.high, -saved.low
    interval = f"{amount(least)} to {amount(most)}"
    if least < 0:
        interval = f"{amount(-least)} less to {amount(most)} more"
    text = (
        f"The newest {LOST_RUNS} runs cost {amount(lost)} more than the default batch size at full power would have "
        f"({SURE}: {interval})."
    )
    remedy = "Pause exploration or pin the default on the tab Zeus cost; see there what was tried, and why."
    figures: dict[str, float | str] = {"runs": LOST_RUNS, "lost": lost, "low": least, "high": most, "unit": unit}
    return _event(LOST, first, text, remedy, figures)


def _newest(ended: Sequence[Run], holds: Callable[[Run], bool]) -> list[Run]:
    """The newest runs in a row of which it holds, newest first."""
    return list(takewhile(holds, reversed(ended)))


def _since(first: Trial, runs: Sequence[Run]) -> str:
    return f" (trial {first.number})" if len(runs) == 1 else f", since trial {first.number}"


def _because(reason: str | None) -> str:
    return f": {visible(truncated(reason, 200)).rstrip('. ')}" if reason else ""


def _event(kind: str, first: Trial, text: str, remedy: str, figures: Mapping[str, float | str]) -> Event:
    run_id = first.origin.run_id
    return Event(kind=kind, since=first.number, run_id=run_id, sentence=text, remedy=remedy, figures=figures)
