"""What a reader is told of a run: what it saved, whether it teaches, what it shared and waited for. Pure."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from typing import Self

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.size_bounds import truncated
from airflow_provider_zeus.model.trial import START_UNSEEN, WHY_COLD, Observation, State, Trial, remedy_of_steps
from airflow_provider_zeus.plugin.text.saved_text import (
    Outcome,
    explored,
    in_all,
    in_words,
    outdated,
    saved_sentence,
)
from airflow_provider_zeus.plugin.views.models import Figure, Verdict
from airflow_provider_zeus.reports.dataset import ENERGY
from airflow_provider_zeus.reports.run_figures import RunSaving
from airflow_provider_zeus.signals.series import CARBON, PRICE
from airflow_provider_zeus.units import energy_text, share_text, time_text

OLDER = "Charts and sums are of the newest runs alone; the export has the older ones too."
EXCLUDED_RUN = "Excluded by hand: this run teaches nothing. What it cost and saved still counts."
MOST_WHY = 500  # characters of why a task waits
RUNNING = Verdict(kind="running", word="Running", text="What it saves or loses is shown when it has ended.")


def run_verdict(
    saving: RunSaving | None, why_not: str = "", weights: Weights = ENERGY, *, below: bool = False, silent: bool = False
) -> Verdict:
    """What a run took and saved. ``saving`` None: not known, for ``why_not``.

    :param weights: of energy and time in its cost.
    :param below: it is below its target.
    :param silent: it reported no metric.
    """
    value = None if saving is None else saving.cost.saved.value
    if saving is None or value is None:
        reason = why_not if saving is None else saving.cost.saved.reason or ""
        return Verdict(kind="unknown", word="Not known", text=f"What was saved is not known: {reason}.")
    cost, default = saving.cost, saving.default_batch_size
    if value == 0:
        text = f"It trained batch size {default}, the default, at full power: there is nothing to compare."
        return Verdict(kind="even", word="Nothing", text=text)
    took = " and ".join(
        text(of.spent) for of, text in ((saving.energy, energy_text), (saving.time, time_text)) if of.spent is not None
    )
    if not saving.kept:
        return Verdict(kind="lost", word="Lost", text=f"It cost {took} and left no model: all of it is lost.")
    out, power = Outcome.of_cost(cost), f" ({saving.full_power_w:,.0f} W)" if saving.full_power_w else ""
    kinds = {"energy": saving.energy, "time": saving.time}
    text = saved_sentence("it", kinds, f"{in_words(default)}{power}") + in_all(kinds, cost, weights)
    found = Verdict(kind=out.kind, word=out.word, text=f"It cost {took}. {text}.")
    if not saving.measured:
        old = ", nor for long before" * bool(outdated(saving))
        found.text += f" The default is estimated: it did not run on this slice of the data{old}."
    if value < 0 and (cost.exploration or 0.0) >= 0.05 * (cost.spent or 0.0):
        found.text += f" {explored(cost)} of what it cost was exploration and profiling."
    if below:
        found.text += " Its model is below the target."
    if silent:
        found.text += " It reported no metric, so whether its model reached the target is not known."
    return found


def untaught(trials: Iterable[Trial], learn_from: Sequence[str]) -> str:
    """What the runs are that do not teach, and how to let them; empty where all teach."""
    counts = _untaught(trials, learn_from)
    if not counts:
        return ""
    named = " and ".join(f"{n:,} {'run' if n == 1 else 'runs'} of type {kind}" for kind, n in sorted(counts.items()))
    do, them, their = ("does", "it", "Its cost is") if counts.total() == 1 else ("do", "them", "Their costs are")
    return (
        f"{named} {do} not teach (learn_from: {', '.join(learn_from)}): no batch size is tried in {them}, and how many "
        f"epochs a size needs is not learned from {them}. {their} shown as any run's. "
        f"{_remedy(learn_from, sorted(counts))}"
    )


def waited(seen: Observation, money: Figure | None) -> str:
    """What waiting for batches took of an attempt; empty below one per cent.

    :param money: of that energy and time.
    """
    if seen.data_wait_s is None or not seen.time_s or seen.data_wait_s < 0.01 * seen.time_s:
        return ""
    cost = [] if seen.data_wait_j is None else [energy_text(seen.data_wait_j)]
    cost += [] if money is None or money.value is None else [money.text]
    took = f"{time_text(seen.data_wait_s)}{', at most ' if cost else ''}{' and '.join(cost)}"
    share = share_text(min(seen.data_wait_s / seen.time_s, 1.0))
    return f"Waiting for batches took {share} of its time: {took}.".replace("at most under", "under")


def paused(seen: Observation) -> str:
    """For how long an attempt stood still; empty where it found no pause."""
    if not seen.paused_s:
        return ""
    drawn = "" if seen.paused_j is None else f", which drew {energy_text(seen.paused_j)}"
    return f"Its training was paused for {time_text(seen.paused_s)}{drawn}: paid for, and not learnt."


def bypassed(trials: Iterable[Trial]) -> str:
    """That runs did not use their batch size as far as can be told, and what to do; empty where all did."""
    found = [t for t in trials if t.observation.bypassed is not None]
    if not found:
        return ""
    newest = max(found, key=lambda t: t.number)
    count = len({(t.origin.run_id, t.origin.task_id, t.origin.map_index) for t in found})
    which = "1 run teaches nothing and counts" if count == 1 else f"{count:,} runs teach nothing and count"
    why = newest.observation.bypassed or ""
    remedy = remedy_of_steps(why)
    return f"{which} as no saving: {why}. {remedy[0].upper()}{remedy[1:]}."


def start_unseen(trials: Iterable[Trial]) -> str:
    """That the newest runs were not seen to use the start that they were given, and what to do; empty where one was."""
    told = sorted((t for t in trials if t.observation.start is not None), key=lambda t: -t.number)
    whys = [t.observation.reasons.get(WHY_COLD, "") for t in told]
    unseen = list(takewhile(lambda why: why.startswith(START_UNSEEN), whys))
    if not unseen:
        return ""
    count = len({t.recurrence for t in told[: len(unseen)]})
    which = "The newest run counts" if count == 1 else f"The newest {count:,} runs count"
    return f"{which} as cold, and while that is so no other start is tried: {unseen[0]}."


def renamed(old: Trial, new: Trial) -> str:
    """That a new job looks like an older one whose DAG or task was renamed, and how to give it that history."""
    same_dag = old.origin.dag_id == new.origin.dag_id
    gone = f"task {old.origin.task_id} has not run since" if same_dag else f"DAG {old.origin.dag_id} is gone"
    rename = "airflow zeus jobs rename"
    name = shlex.quote(new.job_id)
    free_it = f"{rename} {name} {shlex.quote(new.job_id + '.new')}"  # the runs that it has by now step aside
    return (
        f"This job looks like {old.job_id} under a new name: {gone}, and its batch sizes and target are the same. "
        f"If so, this gives it that history: {free_it} && {rename} {shlex.quote(old.job_id)} {name}"
    )


def none_teaches(trials: Iterable[Trial], learn_from: Sequence[str]) -> str:
    """That none of a job's newest runs teaches, in few words."""
    counts = _untaught(trials, learn_from)
    which = "Its newest run is" if counts.total() == 1 else f"Its newest {counts.total():,} runs are"
    kinds = sorted(counts)
    return f"{which} of type {' and '.join(kinds)}, which does not teach. {_remedy(learn_from, kinds)}"


def untaught_run(run_type: str, learn_from: Sequence[str]) -> str:
    """The same of one run; empty where it teaches. ``learn_from``: of the job as it was when the run began."""
    if run_type in learn_from:
        return ""
    return (
        f"When this run began, runs of type {run_type} did not teach (learn_from: {', '.join(learn_from)}): no batch "
        f"size was tried in it. {_remedy(learn_from, [run_type])}"
    )


def deadline(trials: Sequence[Trial]) -> str:
    """The deadline of a run, and by how much it was met or missed; empty where it had none. ``trials``: by number.

    The time of a simulated device runs on its own, so a run ends at the earliest when its figures say so.
    """
    due_s = next((k.finish_by_s for t in reversed(trials) if (k := t.planned.in_time) and k.finish_by_s), None)
    if due_s is None:
        return ""
    by = f"Deadline: {datetime.fromtimestamp(due_s, UTC):%Y-%m-%d %H:%M} UTC"
    if trials[-1].state is State.ABANDONED:  # it was closed long after it died, if at all
        return f"{by}. The run died and left no result."
    if any(t.closed_at is None for t in trials):
        return f"{by}. The run has not ended."
    trained_s = sum(t.observation.time_s or 0.0 for t in trials)
    ended_s = max(max(t.closed_at or 0.0 for t in trials), min(t.opened_at for t in trials) + trained_s)
    if ended_s <= due_s:
        return f"{by}. The run ended {time_text(due_s - ended_s)} before it."
    return f"{by}. The run ended {time_text(ended_s - due_s)} after it."


def _untaught(trials: Iterable[Trial], learn_from: Sequence[str]) -> Counter[str]:
    """How many runs do not teach, by type."""
    runs = {(t.origin.run_id, t.origin.task_id, t.origin.map_index): t.origin.run_type for t in trials}
    return Counter(kind for kind in runs.values() if kind not in learn_from)


def _remedy(learn_from: Sequence[str], more: Sequence[str]) -> str:
    listed = ", ".join(f'"{kind}"' for kind in (*learn_from, *more))
    return f"ZeusJob(learn_from=[{listed}]) lets such runs teach, those that have ended too."


def shared_job(trials: Iterable[Trial]) -> str:
    """That map indexes of one task share the job, and how to part them; empty where none does."""
    indexes: dict[tuple[str, str], set[int]] = {}
    for t in trials:
        if t.origin.map_index >= 0:
            indexes.setdefault((t.origin.run_id, t.origin.task_id), set()).add(t.origin.map_index)
    (_, task_id), most = max(indexes.items(), key=lambda each: len(each[1]), default=(("", ""), set()))
    if len(most) < 2:
        return ""
    return (
        f"Task {task_id} is mapped, and {len(most):,} map indexes of a run share this job: Zeus learns from all of "
        'them as from one training. If each has its own data or model, job_id_by="<mapped argument>" on the task makes '
        "one job for each value."
    )


@dataclass(frozen=True, slots=True)
class StartWait:
    """Until when a task waits for a cheaper start, and why; or that it did not. By its XCom ``zeus_wait``.

    Any task of a DAG may push such an XCom: what is not of its form is left out.
    """

    until_s: float | None  # s since the epoch; None: it started at once
    why: str
    trains: str | None = None  # task that trains, where another one waits for it

    @classmethod
    def read(cls, value: object, *, named: bool) -> Self | None:
        """Read the value of an XCom; None where it is something else.

        :param named: whether the user may see the id of the signal's Connection, which ``why`` does not name.
        """
        try:
            data = json.loads(value) if isinstance(value, str) else value
            if not isinstance(data, dict) or not isinstance(data.get("why"), str):
                return None
            until, trains = data.get("until"), data.get("trains")
            until_s = None if until is None else datetime.fromisoformat(until).astimezone(UTC).timestamp()
            trains = truncated(trains, 250) if isinstance(trains, str) else None
            why, signal = truncated(data["why"], MOST_WHY), data.get("signal")
            if named and isinstance(signal, str) and signal not in (CARBON, PRICE):
                why += f" Its signal is Connection {truncated(signal, 250)}."
            return cls(until_s, why, trains)
        except (TypeError, ValueError, OverflowError, RecursionError):
            return None

    def text(self, began_s: float | None) -> str:
        """In a sentence. ``began_s``: when the training began; None: it has not."""
        if self.until_s is None or began_s is None:
            return self.why
        until = f"{datetime.fromtimestamp(self.until_s, UTC):%Y-%m-%d %H:%M} UTC"
        began = f"{datetime.fromtimestamp(began_s, UTC):%Y-%m-%d %H:%M} UTC"
        return f"The start was planned for {until}; it began at {began}. {self.why}"


def waiting(waits: dict[tuple[str, int], StartWait]) -> str:
    """What a run waits for, of which no task has begun; empty where none waits."""
    named = [
        f"{task_id}{'' if index < 0 else f' [{index}]'}: {wait.why}" for (task_id, index), wait in sorted(waits.items())
    ]
    return " ".join(named[:20]) + (f" … and {len(named) - 20} more." if len(named) > 20 else "")
