"""The state of a job and the trend of its costs, from its newest trials alone. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from itertools import pairwise, takewhile

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.size_bounds import truncated
from airflow_provider_zeus.model.trial import Phase, State, Trial
from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.plugin.text import run_notes
from airflow_provider_zeus.plugin.views.models import JobState, RunRow, Trend
from airflow_provider_zeus.reports.dataset import runs_of
from airflow_provider_zeus.units import counted

NEWEST = 12  # trials read
RECENT = 3  # runs: exploration among them makes a job "exploring"; fewer settle nothing


def state_of(trials: Sequence[Trial], now: float) -> JobState:
    """The state of a job: failing or no metric before stale, that before waiting, exploring, learning or settled.

    :param trials: the newest of the job by number, at least one.
    :param now: seconds since the epoch.
    """
    runs = runs_of(trials)
    ended = [run for run in runs if run[-1].state is not State.RUNNING]
    if found := _failing(ended) or _stale(runs, now):
        return found
    if trials[-1].planned.phase is Phase.MEASURED:
        return JobState(name="measured", why="Its runs are measured as they are; its tab says more.")
    try:
        learn_from = trials[-1].job.learn_from
    except JobSpecError:  # a newer version wrote it
        learn_from = [t.origin.run_type for t in trials]
    if not any(t.origin.run_type in learn_from for t in trials):
        return JobState(name="waiting", why=run_notes.none_teaches(trials, learn_from))
    return _exploring(trials, learn_from)


def _failing(ended: Sequence[Sequence[Trial]]) -> JobState | None:
    if not ended:
        return None
    last = ended[-1][-1]
    if last.state.died:
        gone = len(list(takewhile(lambda run: run[-1].state.died, reversed(ended))))
        which = "Its newest run" if gone == 1 else f"Each of its newest {gone} runs"
        reason = f": {truncated(last.reason, 300)}" if last.reason else ""
        return JobState(name="failing", why=f"{which} left no model{reason}".rstrip(".") + ".")
    if last.state is State.NO_METRIC:
        why = f"Its newest run reported none: {truncated(last.reason or 'no reason was recorded', 300)}".rstrip(".")
        return JobState(name="no metric", why=f"{why}.")
    below = [run[-1].state is State.EXHAUSTED for run in ended[-2:]]
    if len(below) == 2 and all(below):
        return JobState(name="failing", why="Its newest two runs ended below the target.")
    return None


def _stale(runs: Sequence[Sequence[Trial]], now: float) -> JobState | None:
    first: dict[str, float] = {}  # by DAG run: the map indexes of one begin together
    for run in runs:
        first.setdefault(run[0].origin.run_id, run[0].opened_at)
    began = sorted(first.values())
    if any(t.state is State.RUNNING for run in runs for t in run):
        return None
    gaps = [late - early for early, late in pairwise(began)]
    usual = statistics.median(gaps) if len(gaps) >= 2 else None
    # three times its interval, but a job that runs every minute is not stale after three
    limit_s = 30 * 86400.0 if usual is None else max(3 * usual, 3600.0)
    age = now - began[-1]
    if age <= limit_s:
        return None
    why = f"Its newest run began {_span(age)} ago"
    rhythm = "" if usual is None else f"; usually one begins every {_span(usual)}"
    return JobState(name="stale", why=f"{why}{rhythm}.")


def _exploring(trials: Sequence[Trial], learn_from: Collection[str]) -> JobState:
    """The state by the runs that show what the policy does. ``learn_from``: types of runs that teach."""
    teaching = [run for run in runs_of(trials) if run[-1].origin.run_type in learn_from]
    runs = [run for run in teaching if run[-1].planned.phase is not Phase.FALLBACK]  # it could not use the log
    ended = [run for run in teaching if run[-1].state is not State.RUNNING]
    reached = any(run[-1].state is State.CONVERGED for run in ended)
    pinned, spec = trials[-1].planned.phase is Phase.PINNED, trials[-1].spec
    default, several = spec.get("default_batch_size"), len(spec.get("batch_sizes") or ()) > 1 and not pinned
    if reached and several and len(trials) < NEWEST and {t.batch_size for run in runs for t in run} == {default}:
        return JobState(name="not exploring yet", why=f"Only batch size {default}, the default, has run so far.")
    recent = runs[-RECENT:]
    tried = [t for run in recent for t in run if t.planned.tried]
    if tried:
        last = tried[-1]
        return JobState(name="exploring", why=f"It tried batch size {last.batch_size}.")
    if not reached:
        return JobState(name="exploring", why="No run among its newest has reached the target yet.")
    if pinned:
        return JobState(name="settled", why=f"Batch size {trials[-1].batch_size} is pinned.")
    known = sum(any(t.state.conclusive for t in run) for run in runs)
    if known < RECENT:
        why = f"Not enough runs yet: {known} of its newest runs taught something, and {RECENT} are needed."
        return JobState(name="learning", why=why)
    which = f"Its newest {RECENT} runs" if recent == runs_of(trials)[-RECENT:] else f"The newest {RECENT} that teach"
    sizes = " and ".join(str(b) for b in sorted({run[-1].batch_size for run in recent}))
    return JobState(name="settled", why=f"{which} took batch size {sizes} and tried no other one.")


def drifted(belief: Belief, trials: Sequence[Trial]) -> JobState | None:
    """The state "drifted" where the data changed within the newest runs. ``belief``: of the whole log."""
    if not belief.changes or not trials:
        return None
    change = belief.changes[-1]
    after = [run for run in runs_of(trials) if run[-1].number >= change.since]
    if sum(run[-1].number > change.shown_by[-1] for run in after) >= 2 * RECENT:
        return None
    runs = counted(len(after), "run")
    slower = "more" if change.jump >= 0 else "fewer"
    why = f"The data changed {runs} ago, at trial {change.since}: runs need {slower} epochs than before."
    return JobState(name="drifted", why=f"{why} Older runs count less from here on.")


def trend_of(rows: Sequence[RunRow]) -> Trend:
    """The trend of the runs that compare, by unit and source, with the newest of known cost. ``rows``: newest first."""
    known = [r for r in rows if r.cost.value is not None and r.state != State.NO_DATA.value]
    same = [r for r in known if (r.unit, r.source.text) == (known[0].unit, known[0].source.text)][::-1]
    costs = [r.cost.value for r in same if r.cost.value is not None]
    if len(costs) < 4:  # two of them newer than the others
        return Trend(text="too few runs", exact="A trend needs 4 runs of known cost and of one energy source.")
    low, high, heights = min(costs), max(costs), "▁▂▃▄▅▆▇█"
    step = (high - low) / (len(heights) - 1)
    blocks = "".join(heights[round((c - low) / step) if step > 0 else 3] for c in costs)
    half = len(costs) // 2
    before, after = statistics.fmean(costs[:half]), statistics.fmean(costs[-half:])
    change = after / before - 1 if before > 0 else 0.0
    arrow = "→ steady" if abs(change) < 0.05 else f"{'↑' if change > 0 else '↓'} {abs(change):.0%}".replace("%", " %")
    exact = f"Cost of the newest {len(costs)} runs that compare, oldest first; newer half against older."
    return Trend(blocks=blocks, text=arrow, exact=exact)


def _span(seconds: float) -> str:
    for size, name in ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute")):
        if seconds >= 0.95 * size:
            count = max(round(seconds / size), 1)
            return f"{count:,} {name}{'s' if count > 1 else ''}"
    return f"{seconds:.0f} second{'' if round(seconds) == 1 else 's'}"
