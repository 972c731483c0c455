"""The state of a job and the trend of its costs, from its newest trials alone. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from itertools import chain, pairwise, takewhile

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.run_numbers import RunNumbers
from airflow_provider_zeus.model.size_bounds import truncated
from airflow_provider_zeus.model.trial import UNCAPPED, Phase, State, Trial
from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.plugin.answer_parts import JobState, RunRow, Trend
from airflow_provider_zeus.plugin.text import run_notes
from airflow_provider_zeus.reports.dataset import often_below, runs_of
from airflow_provider_zeus.units import counted

NEWEST = 12  # the list of all jobs is read at once, so few of each
RECENT = 3  # runs: two that took one size may have drawn it by chance


def state_of(trials: Sequence[Trial], now: float) -> JobState:
    """The state of a job: failing or no metric before stale, that before the work of its policy.

    :param trials: the newest of the job by number, at least one.
    :param now: seconds since the epoch.
    """
    # A failing job is stale as well once its DAG is paused: the failure says more.
    runs = runs_of(trials)
    ended = [run for run in runs if run[-1].state is not State.RUNNING]
    for state in (_failing(ended), _stale(runs, now)):
        if state is not None:
            return state
    newest = trials[-1]
    if newest.planned.phase is Phase.MEASURED:
        return _without_sizes(newest)
    try:
        learn_from = newest.job.learn_from
    except JobSpecError:
        # A newer version wrote it: no run may look excluded by a list that cannot be read.
        learn_from = [trial.origin.run_type for trial in trials]
    if not any(trial.origin.run_type in learn_from for trial in trials):
        return JobState(name="waiting", why=run_notes.none_teaches(trials, learn_from))
    return _exploring(trials, learn_from)


def _without_sizes(newest: Trial) -> JobState:
    """The state of a job that chooses no batch size: it is tuned, or only measured."""
    if newest.spec.get("mode") != "optimize":
        return JobState(
            name="measured", why="Its runs are measured as they are; its tab says more."
        )
    if UNCAPPED in newest.observation.reasons:
        return JobState(name="tuned", why="No power limit can save anything here.")
    return JobState(name="tuned", why="It chooses no batch size; its power limit is tuned.")


def _failing(ended: Sequence[Sequence[Trial]]) -> JobState | None:
    if not ended:
        return None
    last = ended[-1][-1]
    if last.state.died:
        died = len(list(takewhile(lambda run: run[-1].state.died, reversed(ended))))
        why = "Its newest run left no model"
        if died > 1:
            why = f"Each of its newest {died} runs left no model"
        if last.reason:
            why += f": {truncated(last.reason, 300)}"
        return JobState(name="failing", why=_with_period(why))
    # Without a metric nothing is ever learned, so this comes before all that the policy does.
    if last.state is State.NO_METRIC:
        reason = truncated(last.reason or "no reason was recorded", 300)
        return JobState(
            name="no metric", why=_with_period(f"Its newest run reported none: {reason}")
        )
    # One run below its target may be an odd slice of the data.
    if [run[-1].state for run in ended[-2:]] == [State.EXHAUSTED] * 2:
        return JobState(name="failing", why="Its newest two runs ended below the target.")
    return None


def _with_period(text: str) -> str:
    return f"{text.rstrip('.')}."


def _stale(runs: Sequence[Sequence[Trial]], now: float) -> JobState | None:
    first: dict[str, float] = {}  # map indexes begin together: no gap of the schedule
    for run in runs:
        if any(trial.state is State.RUNNING for trial in run):
            return None
        began = run[0]
        first.setdefault(began.origin.run_id, began.opened_at)
    begins_s = sorted(first.values())
    # The rhythm is that of the schedule as it ran, whatever the DAG says now.
    gaps_s = [late - early for early, late in pairwise(begins_s)]
    # Two runs have no rhythm: a month is longer than any usual schedule.
    limit_s = 30 * 86400.0
    rhythm = ""
    if len(gaps_s) >= 2:
        usual_s = statistics.median(gaps_s)
        # Three times its interval, but a job that runs every minute is not stale after three.
        limit_s = max(3 * usual_s, 3600.0)
        rhythm = f"; usually one begins every {_span(usual_s)}"
    age_s = now - begins_s[-1]
    if age_s <= limit_s:
        return None
    return JobState(name="stale", why=f"Its newest run began {_span(age_s)} ago{rhythm}.")


def _exploring(trials: Sequence[Trial], learn_from: Collection[str]) -> JobState:
    """The state by the runs that show the work of the policy.

    :param learn_from: types of runs that teach.
    """
    every = runs_of(trials)
    teaching = [run for run in every if run[-1].origin.run_type in learn_from]
    # A run that could not use the log shows nothing of the policy.
    runs = [run for run in teaching if run[-1].planned.phase is not Phase.FALLBACK]
    ended = [run for run in teaching if run[-1].state is not State.RUNNING]
    reached = any(run[-1].state is State.CONVERGED for run in ended)
    newest = trials[-1]
    default = newest.spec.get("default_batch_size")
    sizes = {trial.batch_size for trial in chain.from_iterable(runs)}
    # With as many trials as are read there may be older ones, of other sizes.
    ran_default_alone = sizes == {default} and len(trials) < NEWEST
    if reached and ran_default_alone and _has_sizes(newest):
        why = f"Only batch size {default}, the default, has run so far."
        return JobState(name="not exploring yet", why=why)
    recent = runs[-RECENT:]
    tries = [trial for trial in chain.from_iterable(recent) if trial.planned.tried]
    if tries:
        return JobState(name="exploring", why=f"It tried batch size {tries[-1].batch_size}.")
    # Until a size reaches the target there is nothing to settle on.
    if not reached:
        return JobState(name="exploring", why="No run among its newest has reached the target yet.")
    below = often_below(ended)
    if below:
        why = f"{below} of its newest {len(ended)} runs ended below the target."
        return JobState(name="below target", why=why)
    if newest.planned.phase is Phase.PINNED:
        return JobState(name="settled", why=f"Batch size {newest.batch_size} is pinned.")
    conclusive = sum(any(trial.state.conclusive for trial in run) for run in runs)
    if conclusive < RECENT:
        why = (
            f"Not enough runs yet: {conclusive} of its newest runs taught something, and {RECENT} "
            "are needed."
        )
        return JobState(name="learning", why=why)
    are_newest = recent == every[-RECENT:]
    return _settled(recent, are_newest=are_newest)


def _settled(runs: Sequence[Sequence[Trial]], *, are_newest: bool) -> JobState:
    """The state of a job whose runs tried nothing.

    :param are_newest: no other run is newer than these.
    """
    which = f"The newest {RECENT} that teach"
    if are_newest:
        which = f"Its newest {RECENT} runs"
    sizes = sorted({run[-1].batch_size for run in runs})
    names = " and ".join(map(str, sizes))
    return JobState(name="settled", why=f"{which} took batch size {names} and tried no other one.")


def _has_sizes(newest: Trial) -> bool:
    """Whether the job has several batch sizes to choose from, and none is pinned."""
    sizes = newest.spec.get("batch_sizes") or ()
    return len(sizes) > 1 and newest.planned.phase is not Phase.PINNED


def drifted(belief: Belief, trials: Sequence[Trial]) -> JobState | None:
    """The state "drifted" if the data changed within the newest runs.

    :param belief: of the whole log.
    """
    if not belief.changes or not trials:
        return None
    change = belief.changes[-1]
    after = [run for run in runs_of(trials) if run[-1].number >= change.since]
    # The new epochs are learned by then: the state would warn of nothing.
    if sum(run[-1].number > change.shown_by[-1] for run in after) >= 2 * RECENT:
        return None
    runs = counted(len(after), "run")
    slower = "more" if change.jump >= 0 else "fewer"
    run = RunNumbers(trials).run_with(trials[0].job_id, change.since)
    why = f"The data changed {runs} ago, at run {run}: runs need {slower} epochs than before."
    return JobState(name="drifted", why=f"{why} Older runs count less from here on.")


def trend_of(rows: Sequence[RunRow]) -> Trend:
    """The trend of the runs that compare, by unit and source, with the newest of known cost.

    :param rows: newest first.
    """
    costs = _comparable(rows)
    # With one run in a half, a single odd one would be the trend.
    if len(costs) < 4:
        return Trend(
            text="too few runs",
            exact="A trend needs 4 runs of known cost and of one energy source.",
        )
    half = len(costs) // 2
    before = statistics.fmean(costs[:half])
    after = statistics.fmean(costs[-half:])
    change = after / before - 1 if before > 0 else 0.0
    text = "→ steady"
    if abs(change) >= 0.05:
        arrow = "↑" if change > 0 else "↓"
        text = f"{arrow} {100 * abs(change):.0f} %"
    exact = (
        f"Cost of the newest {len(costs)} runs that compare, oldest first; newer half against "
        "older."
    )
    return Trend(blocks=_blocks(costs), text=text, exact=exact)


def _comparable(rows: Sequence[RunRow]) -> list[float]:
    """The costs in the unit and of the source of the newest known one, oldest first."""
    # A run without data cost next to nothing, and would draw a dip.
    with_data = [row for row in rows if row.state != State.NO_DATA.value]
    figures = [(row.cost.value, row.unit, row.source.text) for row in with_data]
    costs = [(cost, kind) for cost, *kind in figures if cost is not None]
    return [cost for cost, kind in reversed(costs) if kind == costs[0][1]]


def _blocks(costs: Sequence[float]) -> str:
    """A block for each cost, the higher the dearer."""
    heights = "▁▂▃▄▅▆▇█"
    low = min(costs)
    step = (max(costs) - low) / (len(heights) - 1)
    # All costs are equal: blocks of half the height read as a flat line.
    if step <= 0:
        return heights[3] * len(costs)
    return "".join(heights[round((cost - low) / step)] for cost in costs)


def _span(seconds: float) -> str:
    for size, name in ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute")):
        # Else 23.6 hours would read "24 hours".
        if seconds >= 0.95 * size:
            count = max(round(seconds / size), 1)
            return counted(count, name)
    return counted(round(seconds), "second")
