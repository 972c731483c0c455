"""Which events of a job hold now, and which of them began, from its newest trials. Pure.

An event has figures with their units, says which trial showed it first, and names a remedy. It
belongs to one DAG, and is read from the runs of this DAG if several share the job. Runs whose type
does not teach (``learn_from``), such as backfills, raise no event.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
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
from airflow_provider_zeus.model.groups import known_values
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.run_numbers import RunNumbers
from airflow_provider_zeus.model.size_bounds import truncated
from airflow_provider_zeus.model.trial import LIMIT, TELL_METRIC, ProfileSample, State, Trial
from airflow_provider_zeus.optimizer.posterior import own_arithmetic
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports.baseline import Baseline
from airflow_provider_zeus.reports.dataset import (
    Dataset,
    RunTrials,
    as_dataset,
    recurrences,
    runs_of,
)
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles
from airflow_provider_zeus.reports.set_aside import SetAside
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.units import money_text, share_text, time_text

NEWEST = 300  # enough for any event, and few enough to read at the end of each run
LOST_RUNS = 10  # one bad run is chance: a loss is one of the sum of so many
DRIFT_RUNS = 6  # an event that never ends is no news

Run = Sequence[Trial]


@own_arithmetic()
def look(
    held: Mapping[str, Held],
    trials: Sequence[Trial],
    profiles: Sequence[ProfileSample],
    *,
    run: Trial,
    prices: Prices,
) -> Looked:
    """The events of a DAG, as a run of it looks at the log when it is decided and when it has
    ended.

    Runs may overlap, and Airflow may try a run again that has failed. So a run counts as ended only
    once it, or one with a higher number, has looked at its end, or if its trial is abandoned.

    :param held: the events that held before, by DAG. Those of other DAGs stay as they are.
    :param trials: the newest of one job, by number.
    :param profiles: samples of its device.
    :param run: a trial of the run that looks.
    """
    dag_id = run.origin.dag_id
    before = held.get(dag_id, Held())
    # The log of another version may hold nothing that can be read here.
    if not trials:
        return Looked(events=held, begun=())
    own = [t for t in trials if t.recurrence == run.recurrence]
    number = before.number
    # an abandoned run may be alive: its lease ends it, not its own look
    if _is_closed(own) and own[-1].state is not State.ABANDONED:
        number = max(number, _number(own))
    events = _events(trials, profiles, looking=run, number=number, before=before, prices=prices)
    names_before = {event.name for event in before.events}
    begun = [event for event in events if event.name not in names_before]
    return Looked(events={**held, dag_id: Held(number=number, events=events)}, begun=begun)


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
    # A backfill over old data would raise alarms of last year.
    teaching = [t for t in trials if t.origin.run_type in job.learn_from]
    closed = [run for run in runs_of(teaching) if _is_closed(run)]
    of_dag = [run for run in closed if run[0].origin.dag_id == dag_id]
    ended = [run for run in of_dag if _has_ended(run, number, looking)]
    own = [t for t in teaching if t.origin.dag_id == dag_id]
    open_trials = [t for t in own if t.state is State.RUNNING]
    log = as_dataset(trials, job).of_target()
    log = replace(log, folded=log.belief())  # learning is the slow part: once for all events
    # a loss lasts until the sum is a saving, so the one before counts
    lost_before = next((event for event in before.events if event.kind == LOST), None)
    events = [
        _drifted(log, closed, dag_id),
        *_ends(ended, before.number),
        _limit(ended),
        _lost(log, dag_id, profiles, prices=prices, before=lost_before),
        *(deadline_at_risk(run) for run in runs_of(open_trials)),
    ]
    return known_values(events)


def _is_closed(run: Run) -> bool:
    """Whether a run has trials, and none of them is open."""
    return bool(run) and all(t.state is not State.RUNNING for t in run)


def _has_ended(run: Run, number: int, looking: Trial) -> bool:
    """Whether a closed run will not be tried again, as far as is known."""
    last = run[-1]
    if last.state is State.ABANDONED:
        # unless it is the one that looks: its lease expired, and its result comes late
        return last.recurrence != looking.recurrence
    return _number(run) <= number


def _number(run: Run) -> int:
    """The number of a run: that of its newest trial."""
    return max(t.number for t in run)


def store_away(job: ZeusJob) -> Event:
    """The event of a run that could not ask the trial log, or not read it at its end."""
    begins = "begins all the same"
    if job.chooses_size:
        begins = f"trains at the default batch size {job.default_batch_size}"
    without = f"a run {begins}, and what it cost is kept and stored later"
    if job.strict:
        without = "a run of this job fails, as it is strict"
    return Event(
        kind=STORE,
        sentence=f"The run log could not be reached. Without it {without}.",
        remedy="airflow zeus doctor says why; the log of the task has the error (docs/death.md).",
    )


def deadline_at_risk(run: Run) -> Event | None:
    """Whether a run is expected to miss its deadline, while it trains.

    One that did miss it is the matter of Airflow's own ``DeadlineAlert``.
    """
    trial = run[-1]
    in_time = trial.planned.in_time
    # Airflow itself tells of a deadline that is over.
    if in_time is None or trial.state is not State.RUNNING:
        return None
    figures = {"finish_by_s": in_time.finish_by_s}
    why = "no known batch size ends in time"
    time_95_s = in_time.time_95_s
    if time_95_s is not None and trial.opened_at + time_95_s > in_time.finish_by_s:
        figures["time_95_s"] = time_95_s
        why = f"95 % of such runs take at most {time_text(time_95_s)}"
    elif not in_time.hurry:
        return None
    due = f"{datetime.fromtimestamp(in_time.finish_by_s, UTC):%Y-%m-%d %H:%M} UTC"
    return _event(
        trial,
        kind=DEADLINE,
        text=f"Run {_named(run)} may miss its deadline, {due}: {why}.",
        remedy="Start it earlier, move ZeusJob.finish_by, or lower max_epochs "
        "(docs/levers/in-time.md).",
        figures=figures,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ending:
    """A way in which runs end that calls for somebody.

    :param did: words after "The newest run", and ``why`` after these; empty: the reason of that
        run.
    """

    kind: str
    states: Collection[State]
    did: str
    remedy: str
    why: str = ""


_FAILED = _Ending(
    kind=FAILING,
    states=[state for state in State if state.died],
    did="left no model",
    remedy="See the log of the task; the tab of the run has what each attempt cost.",
)
_OTHER_ENDINGS = (
    _Ending(
        kind=NO_DATA,
        states=[State.NO_DATA],
        did="had no data",
        remedy="Check whether the data of this slice has arrived.",
        why=": no batch came, and nothing was trained",
    ),
    _Ending(
        kind=NO_METRIC,
        states=[State.NO_METRIC],
        did="reported no metric",
        remedy="Until one comes no batch size is tried. "
        f"{TELL_METRIC[0].upper()}{TELL_METRIC[1:]}.",
    ),
    _Ending(
        kind=NO_TARGET,
        states=[State.EXHAUSTED],
        did="ended below its target",
        remedy="Its model was kept. Raise max_epochs, or set a target that this data can reach.",
    ),
)


def _ends(ended: Sequence[Run], looked_at: int) -> list[Event | None]:
    """How the newest runs ended: with no model, no data, no metric, or a model below its target.

    :param looked_at: number of the newest trial whose run has looked at the job before.
    """
    # a killed process looks at nothing: the next run finds its end
    failing = _in_a_row(ended, _FAILED)
    if failing is None:
        failing = _unseen(ended, looked_at)
    return [failing, *(_in_a_row(ended, ending) for ending in _OTHER_ENDINGS)]


def _in_a_row(ended: Sequence[Run], ending: _Ending) -> Event | None:
    """The event of the newest runs that ended in one way."""
    runs = _newest(ended, lambda run: run[-1].state in ending.states)
    if not runs:
        return None
    which = "The newest run" if len(runs) == 1 else f"Each of the newest {len(runs)} runs"
    why = ending.why or _because(runs[0][-1].reason)
    text = f"{which} {ending.did}{_since(runs)}{why}."
    return _of_runs(runs, ending.kind, text, ending.remedy)


def _unseen(ended: Sequence[Run], looked_at: int) -> Event | None:
    """The runs before the newest one that left no model and could tell nothing: killed, or with a
    late result.
    """
    unseen = _newest(ended[:-1], lambda run: run[-1].state.died and _number(run) > looked_at)
    if not unseen:
        return None
    which = "The run before the newest one"
    if len(unseen) > 1:
        which = f"The {len(unseen)} runs before the newest one"
    text = f"{which} left no model{_since(unseen)}{_because(unseen[0][-1].reason)}."
    remedy = "See the log of the task, and of its host: out of memory, or a host that went away."
    return _of_runs(unseen, FAILING, text, remedy)


def _of_runs(runs: Sequence[Run], kind: str, text: str, remedy: str) -> Event:
    """An event of some runs, newest first; it includes the energy and time of their failed and
    cleared tries.
    """
    figures: dict[str, float | str] = {"runs": len(runs)}
    # nothing compares with these tries, yet somebody paid for them
    aside = SetAside.of(RunTrials(tuple(run)) for run in runs)
    if aside.time_s:
        text += f" {aside.text}."
        figures |= _aside_figures(aside)
    return _event(runs[-1][0], kind=kind, text=text, remedy=remedy, figures=figures)


def _limit(ended: Sequence[Run]) -> Event | None:
    """The event of the newest runs whose power limit could not be set."""
    unset = _newest(ended, lambda run: LIMIT in run[-1].observation.reasons)
    if not unset:
        return None
    last = unset[0][-1].observation
    which = "the newest run" if len(unset) == 1 else f"each of the newest {len(unset)} runs"
    text = (
        f"A power limit could not be set in {which}{_since(unset)}{_because(last.reasons[LIMIT])}."
    )
    figures: dict[str, float | str] = {"runs": len(unset)}
    if last.power_limit_w is not None:
        text += f" The newest one ended at {last.power_limit_w:,.0f} W."
        figures["limit_w"] = last.power_limit_w
    remedy = "airflow zeus doctor says what is missing (docs/power.md)."
    return _event(unset[-1][0], kind=LIMITS, text=text, remedy=remedy, figures=figures)


def _drifted(log: Dataset, closed: Sequence[Run], dag_id: str) -> Event | None:
    """A new change of the data. It belongs to the DAG whose run showed it."""
    changes = log.belief().changes
    # With two runs any difference is a change.
    if len(closed) < 3 or not changes:
        return None
    change = changes[-1]
    shown_at = change.shown_by[-1]
    newest = [run[-1] for run in closed]
    runs_since = [t for t in newest if t.number > shown_at]
    shown_by = [t for t in newest if t.number == shown_at]
    if len(runs_since) >= DRIFT_RUNS or not shown_by:
        return None
    trial = shown_by[0]
    # Two DAGs may share a job: one of them tells it.
    if trial.origin.dag_id != dag_id:
        return None
    more = "more" if change.jump >= 0 else "fewer"
    # people know a run by the number of its first trial
    numbers = RunNumbers(trial for run in closed for trial in run)
    run = numbers.run_with(trial.job_id, change.since)
    return Event(
        kind=DRIFTED,
        since=change.since,
        run_id=trial.origin.run_id,
        sentence=f"The data changed at run {run}: runs need {more} epochs than the earlier ones "
        "showed.",
        remedy="Nothing has to be done: older runs count less from here on. Check whether the data "
        "looks as expected.",
    )


def _lost(
    log: Dataset,
    dag_id: str,
    profiles: Sequence[ProfileSample],
    *,
    prices: Prices,
    before: Event | None,
) -> Event | None:
    """The loss of the newest runs of a DAG: in money if prices are known, else in the cost of the
    job.

    :param before: the loss that held before; None: none did.
    """
    ended, _ = recurrences(log)
    of_dag = [run for run in ended if run.trials[0].origin.dag_id == dag_id]
    teaching = {t.recurrence for t in log.trials if t.origin.run_type in log.job.learn_from}
    runs = [run for run in of_dag if run.id in teaching][-LOST_RUNS:]
    # The first runs pay for exploration: a loss of theirs is meant.
    if len(runs) < LOST_RUNS:
        return None
    base = Baseline.of(log, LimitProfiles.of(profiles))
    # one run of the default is luck: a loss neither begins nor ends by it
    if base.doubt:
        return before
    drawn = [t.observation for run in runs for t in run.compared]
    # As the page does, so that both tell one loss: at the prices of a start at once, and the
    # saving by the wait is added.
    by_start, _ = prices.start_saved(drawn)
    prices = prices.at_once(drawn)
    count = 1
    if log.where is not None:
        _, count, _ = log.where
    per_j, per_s = prices.per_j_and_s(count)
    price = per_j + per_s
    currency = prices.currency
    is_billed = prices.priced and bool(currency)
    # A negative price of energy would make waste a saving.
    can_weigh = per_j >= 0 and price > 0
    if is_billed and can_weigh:
        # Eq. 2 with both prices as its weights is the bill, up to their sum
        compared = base.compare(runs, Weights(per_j / price, 1.0), "")
        saved = compared.saved.times(price).plus(by_start)
        return _loss(
            runs, saved, currency, amount=lambda lost: money_text(lost, currency), before=before
        )
    weights = Weights.of(log.job, log.device)
    compared = base.compare(runs, weights, weights.unit)
    whole = compared.baseline.value

    def amount(cost: float) -> str:
        if whole and not weights.one_alone:
            return share_text(cost / whole)  # energy and time together have no unit of a bill
        return weights.text(cost)

    return _loss(runs, compared.saved, weights.unit, amount, before)


def _loss(
    runs: Sequence[RunTrials],
    saved: Estimate,
    unit: str,
    amount: Callable[[float], str],
    before: Event | None,
) -> Event | None:
    """A loss.

    It begins when the whole interval is one, and ends when the middle is a saving: so it does not
    flap.
    """
    if saved.value is None or saved.low is None or saved.high is None:
        return before
    is_over = before is None or saved.value > 0
    # A saving of which nobody is sure ends a loss, and begins none.
    if saved.high >= 0 and is_over:
        return None
    lost = -saved.value
    least = -saved.high
    most = -saved.low
    interval = f"{amount(least)} to {amount(most)}"
    if least < 0:
        interval = f"{amount(-least)} less to {amount(most)} more"
    # Failed tries are in no comparison, yet somebody paid for them.
    aside = SetAside.of(runs)
    text = (
        f"The newest {LOST_RUNS} runs cost {amount(lost)} more than the default batch size at full "
        f"power would have ({SURE}: {interval})."
    )
    if aside:
        text += f" Besides, {aside.text}."
    remedy = (
        "Pause exploration or pin the default on the tab Zeus cost; see there what was tried, and "
        "why."
    )
    figures: dict[str, float | str] = {
        "runs": LOST_RUNS,
        "lost": lost,
        "low": least,
        "high": most,
        "unit": unit,
        **_aside_figures(aside),
    }
    # it keeps the run that showed it first, so it is sent once
    event = _event(runs[-1].trials[-1], kind=LOST, text=text, remedy=remedy, figures=figures)
    if before is None:
        return event
    return replace(event, since=before.since, run_id=before.run_id)


def _aside_figures(aside: SetAside) -> dict[str, float | str]:
    """Energy and time of failed and cleared tries; empty if there are none, or they are not
    known.
    """
    figures = {"aside_j": aside.energy_j, "aside_s": aside.time_s}
    return {name: value for name, value in figures.items() if value}


def _newest(ended: Sequence[Run], holds: Callable[[Run], bool]) -> list[Run]:
    """The newest runs in a row of which it holds, newest first."""
    return list(takewhile(holds, reversed(ended)))


def _named(run: Run) -> int:
    """The number by which people know a run."""
    return RunNumbers(run).run(run[0])


def _since(runs: Sequence[Run]) -> str:
    """Which runs these are, newest first."""
    oldest = _named(runs[-1])
    if len(runs) == 1:
        return f" (run {oldest})"
    return f", since run {oldest}"


def _because(reason: str | None) -> str:
    if not reason:
        return ""
    return f": {visible(truncated(reason, 200)).rstrip('. ')}"


def _event(
    first: Trial, *, kind: str, text: str, remedy: str, figures: Mapping[str, float | str]
) -> Event:
    """``first``: the trial that showed it first."""
    return Event(
        kind=kind,
        since=first.number,
        run_id=first.origin.run_id,
        sentence=text,
        remedy=remedy,
        figures=figures,
    )
