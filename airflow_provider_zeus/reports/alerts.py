"""What somebody should hear of a job outside the page: the events that hold now, from its newest trials. Pure.

An event has figures with their units, says which trial showed it first, and names a remedy. It belongs to the DAG of
that trial, and is read from the runs of this DAG where several share the job. Runs whose type does not teach
(``learn_from``), such as backfills, are no events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import takewhile

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import SURE, Estimate
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.size_bounds import truncated
from airflow_provider_zeus.model.trial import LIMIT, TELL_METRIC, Origin, ProfileSample, State, Trial, newest_here
from airflow_provider_zeus.optimizer.posterior import own_arithmetic
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports.baseline import Baseline
from airflow_provider_zeus.reports.dataset import Dataset, as_dataset, recurrences, runs_of
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.units import costs_as, money_text, share_text, time_text

FAILING, DRIFTED, LOST, LIMITS = "failing", "drifted", "lost", "limit not set"
STORE, DEADLINE, NO_DATA, NO_METRIC = "store away", "deadline at risk", "no data", "no metric reported"
KINDS = (FAILING, DRIFTED, LOST, LIMITS, STORE, DEADLINE, NO_DATA, NO_METRIC)

NEWEST = 300  # trials that the events are read from
LOST_RUNS = 10  # newest runs whose sum is compared with the default

Run = Sequence[Trial]  # the trials of one scheduled run, by number


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One condition that holds. ``name`` is the same while it lasts.

    With another origin it is another event.
    """

    kind: str
    name: str
    since: int | None = None  # trial that showed it first; None: none did
    origin: Origin | None = None  # of that trial
    moves: bool = False  # its first trial is the oldest that is looked at, so that it moves on with each run
    sentence: str
    remedy: str
    figures: Mapping[str, float | str] = field(default_factory=dict)  # of the sentence, with their units in the names


@own_arithmetic()
def events(trials: Sequence[Trial], *, profiles: Sequence[ProfileSample] = (), prices: Prices) -> list[Event]:
    """The events that hold now, but those of the store, which only the run itself knows.

    :param trials: the newest of one job, by number.
    :param profiles: samples of its device.
    """
    if not trials:
        return []
    job = newest_here(trials).job
    here = [t for t in trials if t.observation.imported is None]
    teaching = [t for t in here if t.origin.run_type in job.learn_from]
    ended = [run for run in runs_of(teaching) if all(t.state is not State.RUNNING for t in run)]
    log = as_dataset(trials, job).of_target()
    found = [_drifted(log, ended)]
    for dag_id in dict.fromkeys(t.origin.dag_id for t in teaching):
        own = [run for run in ended if run[0].origin.dag_id == dag_id]
        found += [*_ends(own), _limit(own)]
        found.append(_lost(log, dag_id, profiles, prices))
        found.append(_deadline([t for t in teaching if t.origin.dag_id == dag_id]))
    return [event for event in found if event is not None]


def store_away(job: ZeusJob) -> Event:
    """The event of a run that could not ask the trial log, or not read it at its end."""
    trains = f"trains at the default batch size {job.default_batch_size}" if job.chooses_size else "begins all the same"
    without = f"a run {trains}, and what it cost is kept and stored later"
    if job.strict:
        without = "a run of this job fails, as it is strict"
    return Event(
        kind=STORE,
        name=STORE,
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


def _deadline(trials: Sequence[Trial]) -> Event | None:
    """The first of the open runs, or the run that ended last, whose deadline is at risk: runs may overlap."""
    newest = [run[-1] for run in runs_of(trials)]
    last = max((t for t in newest if t.state is not State.RUNNING), key=lambda t: t.closed_at or 0.0, default=None)
    looked_at = (deadline_at_risk(t) for t in newest if t.state is State.RUNNING or t is last)
    return next(filter(None, looked_at), None)


def _ends(ended: Sequence[Run]) -> list[Event | None]:
    """What the newest runs ended with: no model, no data, no metric."""
    see = "See the log of the task; the tab of the run has what each attempt cost."
    check, nothing = "Check whether the data of this slice has arrived.", ": no batch came, and nothing was trained"
    until = f"Until one comes no batch size is tried. {TELL_METRIC[0].upper()}{TELL_METRIC[1:]}."
    return [
        _in_a_row(ended, FAILING, lambda state: state.died, "left no model", see) or _killed(ended),
        _in_a_row(ended, NO_DATA, lambda state: state is State.NO_DATA, "had no data", check, nothing),
        _in_a_row(ended, NO_METRIC, lambda state: state is State.NO_METRIC, "reported no metric", until),
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
    return _event(kind, first, text, remedy, {"runs": len(found)}, moves=len(found) == len(ended))


def _killed(ended: Sequence[Run]) -> Event | None:
    """The runs in a row before the newest one that were killed, and could tell nothing: the newest one tells it."""
    killed = _newest(ended[:-1], lambda run: run[-1].state is State.ABANDONED)
    if not killed:
        return None
    first = killed[-1][0]
    which = (
        "The run before the newest one was" if len(killed) == 1 else f"The {len(killed)} runs before the newest were"
    )
    text = f"{which} killed and left no model{_since(first, killed)}."
    remedy = "See the log of the task, and of its host: out of memory, or a host that went away."
    return _event(FAILING, first, text, remedy, {"runs": len(killed)})


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
    return _event(LIMITS, first, text, remedy, figures, moves=len(unset) == len(ended))


def _drifted(log: Dataset, ended: Sequence[Run]) -> Event | None:
    changes = log.belief().changes if len(ended) >= 3 else ()
    if not changes or sum(run[-1].number > changes[-1].shown_by[-1] for run in ended) >= 6:
        return None
    since, more = changes[-1].since, "more" if changes[-1].jump >= 0 else "fewer"
    shown_by = next((run[0].origin for run in ended if run[-1].number >= since), None)
    text = f"The data changed at trial {since}: runs need {more} epochs than the earlier ones showed."
    remedy = "Nothing has to be done: older runs count less from here on. Check whether the data looks as expected."
    return Event(kind=DRIFTED, name=DRIFTED, since=since, origin=shown_by, sentence=text, remedy=remedy)


def _lost(log: Dataset, dag_id: str, profiles: Sequence[ProfileSample], prices: Prices) -> Event | None:
    """The loss of the newest runs of a DAG: in money where that is known, else in the cost of the job."""
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
        return _loss(first, paid.saved.plus(by_start), prices.currency, lambda v: money_text(v, prices.currency))
    weights = Weights.of(log.job, log.device)
    found, amount = base.compare(runs, weights, weights.unit), costs_as(weights.unit)
    if (whole := found.baseline.value) and not weights.one_alone:  # energy and time together have no unit of a bill
        amount = lambda v: share_text(v / whole)  # noqa: E731
    return _loss(first, found.saved, weights.unit, amount)


def _loss(first: Trial, saved: Estimate, unit: str, amount: Callable[[float], str]) -> Event | None:
    """A loss, where the whole interval of what was saved lies below 0."""
    if saved.value is None or saved.low is None or saved.high is None or saved.high >= 0:
        return None
    lost, least, most = -saved.value, -saved.high, -saved.low
    text = (
        f"The newest {LOST_RUNS} runs cost {amount(lost)} more than the default batch size at full power would have "
        f"({SURE}: {amount(least)} to {amount(most)})."
    )
    remedy = "Pause exploration or pin the default on the tab Zeus cost; see there what was tried, and why."
    figures: dict[str, float | str] = {"runs": LOST_RUNS, "lost": lost, "low": least, "high": most, "unit": unit}
    return _event(LOST, first, text, remedy, figures, moves=True)


def _newest(ended: Sequence[Run], holds: Callable[[Run], bool]) -> list[Run]:
    """The newest runs in a row of which it holds, newest first."""
    return list(takewhile(holds, reversed(ended)))


def _since(first: Trial, runs: Sequence[Run]) -> str:
    return f" (trial {first.number})" if len(runs) == 1 else f", since trial {first.number}"


def _because(reason: str | None) -> str:
    return f": {visible(truncated(reason, 200)).rstrip('. ')}" if reason else ""


def _event(
    kind: str, first: Trial, text: str, remedy: str, figures: Mapping[str, float | str], *, moves: bool = False
) -> Event:
    since, origin = first.number, first.origin
    return Event(
        kind=kind, name=kind, since=since, origin=origin, sentence=text, remedy=remedy, figures=figures, moves=moves
    )
