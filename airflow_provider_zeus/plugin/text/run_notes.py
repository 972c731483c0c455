"""Notes on a run: its saving, whether it teaches, its shared job, its wait for a cheaper start.

Pure.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Self

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.groups import sum_of_known
from airflow_provider_zeus.model.size_bounds import truncated
from airflow_provider_zeus.model.trial import (
    START_UNSEEN,
    WHY_COLD,
    Observation,
    State,
    Trial,
)
from airflow_provider_zeus.plugin.answer_parts import Figure, Verdict
from airflow_provider_zeus.plugin.text.saved_text import (
    Outcome,
    Took,
    explored,
    in_all,
    in_words,
    lower_bound,
    outdated,
    saved_sentence,
)
from airflow_provider_zeus.reports.dataset import ENERGY
from airflow_provider_zeus.reports.run_figures import RunSaving
from airflow_provider_zeus.signals.series import CARBON, PRICE
from airflow_provider_zeus.units import counted, energy_text, share_text, time_text

OLDER = "Charts and sums are of the newest runs alone; the export has the older ones too."
EXCLUDED_RUN = "Excluded by hand: this run teaches nothing. What it cost and saved still counts."
MOST_WAITS = 20  # a mapped task may have thousands
MOST_WHY = 500  # any DAG may write it, of any length
RUNNING = Verdict(
    kind="running", word="Running", text="What it saves or loses is shown when it has ended."
)


def run_verdict(
    saving: RunSaving | None,
    why_not: str = "",
    weights: Weights = ENERGY,
    *,
    below: bool = False,
    silent: bool = False,
) -> Verdict:
    """The cost and saving of a run. ``saving`` None: not known, for ``why_not``.

    :param weights: of energy and time in its cost.
    :param below: it is below its target.
    :param silent: it reported no metric.
    """
    if saving is None:
        return _unknown(why_not)
    # A run without a model has nothing that the default could be compared with.
    if saving.runs and not saving.kept:
        return _without_model(saving)
    value = saving.cost.saved.value
    if value is None:
        return _unknown(saving.cost.saved.reason or "")
    if value == 0:
        text = (
            f"It trained batch size {saving.default_batch_size}, the default, at full power: there "
            f"is nothing to compare.{_aside(saving)}"
        )
        return Verdict(kind="even", word="Nothing", text=text)
    outcome = Outcome.of_cost(saving.cost)
    text = f"It cost {Took.in_all(saving).text}. {_against_default(saving, weights)}"
    # A share that rounds to little explains no loss.
    explored_cost = saving.cost.exploration or 0.0
    if value < 0 and explored_cost >= 0.05 * (saving.cost.spent or 0.0):
        text += f" {explored(saving.cost)} of what it cost was exploration and profiling."
    if below:
        text += " Its model is below the target."
    if silent:
        text += " It reported no metric, so whether its model reached the target is not known."
    return Verdict(kind=outcome.kind, word=outcome.word, text=text)


def _unknown(why: str) -> Verdict:
    return Verdict(kind="unknown", word="Not known", text=f"What was saved is not known: {why}.")


def _against_default(saving: RunSaving, weights: Weights) -> str:
    """The saving or loss of a run against the default, in sentences."""
    beside = in_words(saving.default_batch_size)
    if saving.full_power_w:
        beside += f" ({saving.full_power_w:,.0f} W)"
    kinds = {"energy": saving.energy, "time": saving.time}
    saved = saved_sentence("it", kinds, beside) + in_all(kinds, saving.cost, weights)
    if saving.measured:
        return f"{saved}.{_aside(saving)}"
    default_did = "did not run"
    tried = [trial for run in saving.runs for trial in run.trials if trial.state is State.GIVEN_UP]
    if any(trial.batch_size == saving.default_batch_size for trial in tried):
        default_did = "was given up"
    estimated = f"The default is estimated: it {default_did} on this slice of the data"
    if outdated(saving):
        estimated += ", nor for long before"
    return f"{saved}{lower_bound(saving)}.{_aside(saving)} {estimated}."


def _aside(saving: RunSaving) -> str:
    """A further sentence on failed and cleared tries; empty if there are none."""
    if not saving.aside:
        return ""
    return f" {saving.aside.text}."


def _without_model(saving: RunSaving) -> Verdict:
    """Of a run that left no model: lost is all that was tried in it.

    A failure is compared with nothing.
    """
    took = Took.in_all(saving).text or "what is not known"
    text = f"It cost {took} and left no model."
    # Nothing was tried on purpose: a failure at the default is no loss by exploring.
    if not any(run.compared for run in saving.runs):
        return Verdict(kind="unknown", word="No model", text=f"{text}{_aside(saving)}")
    tried = Took(saving.energy.spent, saving.time.spent).text or "not known"
    text += f" Lost is what was tried: {tried}.{_aside(saving)}"
    return Verdict(kind="lost", word="Lost", text=text)


def untaught(trials: Iterable[Trial], learn_from: Sequence[str]) -> str:
    """The runs that do not teach, and how to let them; empty if all teach."""
    counts = _untaught(trials, learn_from)
    if not counts:
        return ""
    kinds = sorted(counts)
    named = " and ".join(f"{counted(counts[kind], 'run')} of type {kind}" for kind in kinds)
    do = "do"
    them = "them"
    costs = "Their costs are"
    if counts.total() == 1:
        do = "does"
        them = "it"
        costs = "Its cost is"
    return (
        f"{named} {do} not teach (learn_from: {', '.join(learn_from)}): no batch size is tried in "
        f"{them}, and how many epochs a size needs is not learned from {them}. {costs} shown as "
        f"any run's. {_remedy(learn_from, kinds)}"
    )


def waited(observation: Observation, money: Figure | None) -> str:
    """The share of an attempt that waited for batches, and a remedy; empty below one per cent.

    :param money: of that energy and time.
    """
    wait_s = observation.data_wait_s
    if wait_s is None or not observation.time_s:
        return ""
    # Every loader waits a little: below one per cent a remedy would waste the reader's time.
    if wait_s < 0.01 * observation.time_s:
        return ""
    costs = []
    if observation.data_wait_j is not None:
        costs.append(energy_text(observation.data_wait_j))
    if money is not None and money.value is not None:
        costs.append(money.text)
    took = time_text(wait_s)
    if costs:
        took += f", at most {' and '.join(costs)}"
    share = share_text(min(wait_s / observation.time_s, 1.0))
    text = f"Waiting for batches took {share} of its time: {took}.{observation.wait_remedy}"
    # A price near 0 reads "under 0.01" already.
    return text.replace("at most under", "under")


def idle_gpu(observations: Iterable[Observation]) -> str:
    """That a GPU worked less than half of the time; empty if none did."""
    shares = [one.gpu_busy for one in observations if one.gpu_busy is not None]
    # The worst attempt counts: one idle GPU makes the whole comparison doubtful.
    least = min(shares, default=1.0)
    if least >= 0.5:
        return ""
    return (
        f"The GPU worked {share_text(least)} of the time. A GPU that waits draws less power: part "
        "of what looks cheap here is waiting."
    )


def not_stored(attempts: int) -> str:
    """That the costs of so many attempts are not yet stored, and when they will be."""
    which = "The cost of one attempt is"
    if attempts > 1:
        which = f"The costs of {attempts} attempts are"
    return (
        f"{which} not yet stored in the log: the job's next run stores it, or "
        "“airflow zeus repair”."
    )


def paused(observation: Observation) -> str:
    """For how long an attempt stood still; empty if it found no pause."""
    if not observation.paused_s:
        return ""
    pause = time_text(observation.paused_s)
    # Without a meter the time alone is known.
    if observation.paused_j is not None:
        pause += f", which drew {energy_text(observation.paused_j)}"
    return f"Its training was paused for {pause}: paid for, and not learnt."


def start_unseen(trials: Iterable[Trial]) -> str:
    """That the newest runs were not seen to use the start that they had, and the remedy.

    Empty if one of them was.
    """
    with_start = [trial for trial in trials if trial.observation.start is not None]
    runs = set[tuple[str, ...]]()
    newest_why = ""
    for trial in sorted(with_start, key=lambda trial: -trial.number):
        why = trial.observation.reasons.get(WHY_COLD, "")
        if not why.startswith(START_UNSEEN):
            break
        if not runs:
            newest_why = why
        runs.add(trial.recurrence)
    if not runs:
        return ""
    which = "The newest run counts"
    if len(runs) > 1:
        which = f"The newest {len(runs):,} runs count"
    return f"{which} as cold, and while that is so no other start is tried: {newest_why}."


def renamed(old: Trial, new: Trial) -> str:
    """That a job looks like an older one that was renamed, and how to give it that history."""
    gone = f"DAG {old.origin.dag_id} is gone"
    if old.origin.dag_id == new.origin.dag_id:
        gone = f"task {old.origin.task_id} has not run since"
    rename = "airflow zeus jobs rename"
    name = shlex.quote(new.job_id)
    # A name with runs of its own takes no other history, so they step aside first.
    free_it = f"{rename} {name} {shlex.quote(new.job_id + '.new')}"
    return (
        f"This job looks like {old.job_id} under a new name: {gone}, and its batch sizes and "
        f"target are the same. If so, this gives it that history: {free_it} && {rename} "
        f"{shlex.quote(old.job_id)} {name}"
    )


def none_teaches(trials: Iterable[Trial], learn_from: Sequence[str]) -> str:
    """That none of a job's newest runs teaches, in few words."""
    counts = _untaught(trials, learn_from)
    runs = counts.total()
    which = "Its newest run is"
    if runs != 1:
        which = f"Its newest {runs:,} runs are"
    kinds = sorted(counts)
    remedy = _remedy(learn_from, kinds)
    return f"{which} of type {' and '.join(kinds)}, which does not teach. {remedy}"


def untaught_run(run_type: str, learn_from: Sequence[str]) -> str:
    """The same of one run; empty if it teaches.

    :param learn_from: of the job as it was when the run began.
    """
    if run_type in learn_from:
        return ""
    return (
        f"When this run began, runs of type {run_type} did not teach (learn_from: "
        f"{', '.join(learn_from)}): no batch size was tried in it. "
        f"{_remedy(learn_from, [run_type])}"
    )


def deadline(trials: Sequence[Trial]) -> str:
    """The deadline of a run, and by how much it was met or missed; empty if it had none.

    The time of a simulated device runs on its own, so a run ends at the earliest when its figures
    say so.

    :param trials: by number.
    """
    in_times = filter(None, (trial.planned.in_time for trial in trials))
    deadlines_s = [in_time.finish_by_s for in_time in in_times if in_time.finish_by_s]
    if not deadlines_s:
        return ""
    due_s = deadlines_s[-1]
    by = f"Deadline: {_minute(due_s)}"
    # Its lease ran out at some time after it died, so the end in the log is no end of work.
    if trials[-1].state is State.ABANDONED:
        return f"{by}. The run died and left no result."
    closed_s = [trial.closed_at for trial in trials if trial.closed_at is not None]
    # An attempt without an end may still hold the run up.
    if len(closed_s) < len(trials):
        return f"{by}. The run has not ended."
    trained_s = sum_of_known(trial.observation.time_s for trial in trials)
    began_s = min(trial.opened_at for trial in trials)
    ended_s = max(*closed_s, began_s + trained_s)
    if ended_s <= due_s:
        return f"{by}. The run ended {time_text(due_s - ended_s)} before it."
    return f"{by}. The run ended {time_text(ended_s - due_s)} after it."


def _minute(moment_s: float) -> str:
    """A moment [s since the epoch] to the minute."""
    return f"{datetime.fromtimestamp(moment_s, UTC):%Y-%m-%d %H:%M} UTC"


def _untaught(trials: Iterable[Trial], learn_from: Sequence[str]) -> Counter[str]:
    """How many runs do not teach, by type."""
    type_of = {}
    for trial in trials:
        origin = trial.origin
        # By run, or one with several attempts or tries would count several times.
        type_of[origin.run_id, origin.task_id, origin.map_index] = origin.run_type
    return Counter(kind for kind in type_of.values() if kind not in learn_from)


def _remedy(learn_from: Sequence[str], more: Sequence[str]) -> str:
    listed = ", ".join(f'"{kind}"' for kind in (*learn_from, *more))
    return f"ZeusJob(learn_from=[{listed}]) lets such runs teach, those that have ended too."


def shared_job(trials: Iterable[Trial]) -> str:
    """That map indexes of one task share the job, and how to part them; empty if none does."""
    origins = (trial.origin for trial in trials)
    # A retried index would else look like two that share the job.
    mapped = dict.fromkeys((o.run_id, o.task_id, o.map_index) for o in origins if o.map_index >= 0)
    counts = Counter((run_id, task_id) for run_id, task_id, _ in mapped)
    (_, task), most = max(counts.items(), key=lambda count: count[1], default=(("", ""), 0))
    if most < 2:
        return ""
    return (
        f"Task {task} is mapped, and {most:,} map indexes of a run share this job: Zeus learns "
        "from all of them as from one training. If each has its own data or model, "
        'job_id_by="<mapped argument>" on the task makes one job for each value.'
    )


@dataclass(frozen=True, slots=True)
class StartWait:
    """Until when a task waits for a cheaper start, and why; or that it did not.

    By its XCom ``zeus_wait``. Any task of a DAG may push such an XCom: another form is
    left out.
    """

    until_s: float | None
    why: str
    trains: str | None = None  # readers look for the task that trains, not the one that waits

    @classmethod
    def read(cls, value: object, *, named: bool) -> Self | None:
        """Read the value of an XCom; None if it is something else.

        :param named: whether the user may see the id of the signal's Connection, which ``why`` does
            not name.
        """
        try:
            # The table of XComs holds the value, or its JSON as text.
            if isinstance(value, str):
                value = json.loads(value)
            if not isinstance(value, dict) or not isinstance(value.get("why"), str):
                return None
            wait = cls(until_s=None, why=truncated(value["why"], MOST_WHY))
            if value.get("until") is not None:
                until = datetime.fromisoformat(value["until"])
                wait = replace(wait, until_s=until.astimezone(UTC).timestamp())
        except (TypeError, ValueError, OverflowError, RecursionError):
            return None
        trains = value.get("trains")
        if isinstance(trains, str):
            wait = replace(wait, trains=truncated(trains, 250))
        signal = value.get("signal")
        # Of the configuration's own signals there is no more to tell.
        if named and isinstance(signal, str) and signal not in (CARBON, PRICE):
            why = f"{wait.why} Its signal is Connection {truncated(signal, 250)}."
            wait = replace(wait, why=why)
        return wait

    def text(self, began_s: float | None) -> str:
        """In a sentence. ``began_s``: when the training began; None: it has not."""
        if self.until_s is None or began_s is None:
            return self.why
        planned = _minute(self.until_s)
        return f"The start was planned for {planned}; it began at {_minute(began_s)}. {self.why}"


def waiting(waits: dict[tuple[str, int], StartWait]) -> str:
    """The waits of a run of which no task has begun; empty if none waits."""
    texts = []
    for (task_id, index), wait in sorted(waits.items()):
        if index >= 0:
            task_id = f"{task_id} [{index}]"
        texts.append(f"{task_id}: {wait.why}")
    # A mapped task may have thousands of indexes.
    if len(texts) > MOST_WAITS:
        texts[MOST_WAITS:] = [f"… and {len(texts) - MOST_WAITS} more."]
    return " ".join(texts)


def since(begin_s: float) -> str:
    """The heading of the costs of all tasks of a DAG from a day on [s since the epoch]."""
    day = datetime.fromtimestamp(begin_s, UTC)
    return f"All tasks since {day.day} {day:%B %Y} (UTC)"
