"""Figures, states and live settings as texts of the pages. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.energy_source import NOT_MEASURED
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.size_bounds import truncated
from airflow_provider_zeus.model.target import Target
from airflow_provider_zeus.model.trial import (
    EXCLUDED,
    GPU_HIDDEN,
    NO_RESULT,
    TELL_METRIC,
    WHY_COLD,
    Phase,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.plugin.answer_parts import Figure, Source
from airflow_provider_zeus.store.base import Unreadable, trial_label
from airflow_provider_zeus.units import (
    ESTIMATE,
    UNKNOWN,
    counted,
    energy_text,
    epochs_text,
    share_text,
    time_text,
)

SOURCES = {
    "nvml_counter": "GPU counter",
    "nvml_poll": "GPU, polled",
    "rapl": "CPU counter",
    "rapl_share": "CPU, by share",
    "estimate": ESTIMATE,
    "simulated": "simulated",
}
# The least exact last: a badge takes the last one that it finds.
ESTIMATES = {"rapl_share": "estimate", "estimate": "estimate", "simulated": "simulated"}
# Not every reader knows what a word on a badge means.
MEANINGS = {
    "source": "Measured by the hardware.",
    "estimate": "No hardware measured this: processor time multiplied by the watts of [zeus] "
    "cpu_watts, by default 7 W for a busy hardware thread. The true value is probably between half "
    "and twice of it.",
    "rapl_share": "An estimate: the processors' counters, by this task's share of their time.",
    "simulated": "No hardware drew this: a model computed it.",
    "no-source": "Nothing measures energy where these runs trained: time alone is known. To "
    "measure it, train on a GPU with NVML or a CPU with RAPL; a value of [zeus] cpu_watts gives an "
    "estimate.",
}


WITHOUT_MODEL = {  # a person asks first whether there is a model
    State.GIVEN_UP: "It was given up",
    State.FAILED: "It failed",
    State.ABANDONED: "It was abandoned",
}


def sentence_case(text: str) -> str:
    """The same text with a capital letter at its begin."""
    return f"{text[:1].upper()}{text[1:]}"


def energy(energy_j: float, beside_j: float | None = None) -> Figure:
    """Energy [J] in Wh or kWh, in the unit of the energy beside it; exactly in J and kWh."""
    exact = f"{energy_j:,.3f} J = {energy_j / 3.6e6:,.6g} kWh"
    return Figure(value=energy_j, text=energy_text(energy_j, beside_j), exact=exact)


def duration(time_s: float) -> Figure:
    """Time [s] in the unit that fits; exactly in seconds."""
    return Figure(value=time_s, text=time_text(time_s), exact=f"{time_s:,.3f} s")


def epochs(count: float) -> Figure:
    """Epochs, to a tenth."""
    exact = f"{count:,.4g} epochs"
    if count == 1:
        exact = "1 epoch"
    return Figure(value=count, text=f"{count:,.1f}".removesuffix(".0"), exact=exact)


def watts(power_w: float) -> Figure:
    """Whole watts."""
    return Figure(value=power_w, text=f"{power_w:,.0f} W", exact=f"{power_w:,.3f} W")


def share(of: float) -> Figure:
    """A share from 0 to 1, in per cent."""
    return Figure(value=of, text=share_text(of), exact=f"{100 * of:.2f} %")


def cost(value: float, unit: str, beside_j: float | None = None) -> Figure:
    """A cost as energy, in the unit of the energy beside it, or as time if that alone counts."""
    return duration(value) if unit == "s" else energy(value, beside_j)


def size(batch_size: int | None) -> str:
    """A batch size; a dash if a task was measured alone."""
    if batch_size is None:
        return UNKNOWN
    return str(batch_size)


def sized(trial: Trial) -> str:
    """The batch size of a trial, in words."""
    if trial.batch_size is None:
        return "measured as it is"
    return f"batch size {trial.batch_size}"


def missing(why: str) -> Figure:
    """A figure that is not known, with the reason."""
    return Figure(exact=why)


def data_slice(name: str | None) -> str:
    """The name of a data slice.

    The end of a data interval, a full timestamp, is cut to a day or a minute (UTC).
    """
    # fromisoformat() would read an author's week such as "2026-W05" as a day.
    if name is None or len(name) <= len("2026-01-31"):
        return name or ""
    try:
        moment = datetime.fromisoformat(name).astimezone(UTC)
    except (ValueError, OverflowError):  # no moment, or none that UTC has
        return name
    return f"{moment:%Y-%m-%d %H:%M}".removesuffix(" 00:00")


def source(name: str | None) -> str:
    """The name of an energy source."""
    if name is None:
        return NOT_MEASURED
    return SOURCES.get(name, name)


def why_no_energy(trial: Trial) -> str:
    """Why the energy of a task measured from outside is not known; else empty."""
    why = trial.observation.reasons.get("energy_j", "")
    # Other trainings lack a meter; such a task has an estimate even without one.
    if not trial.is_outside or not why:
        return ""
    return f"Energy is not known: {why}."


def badge(names: Sequence[str | None], why_none: str = "") -> Source:
    """The badge of figures from these sources; its text is empty if nothing was measured yet.

    It tells the least exact of them.

    :param why_none: why there is no source; empty: nothing measures energy there.
    """
    if not names:
        return Source()
    badge = Source(
        name=names[-1],
        text=" and ".join(sorted({source(name) for name in names})),
        why=MEANINGS["source"],
    )
    # One attempt without a meter makes the whole sum incomplete, so it names the badge.
    if None in names:
        badge.kind = "no-source"
        badge.why = why_none or MEANINGS["no-source"]
    # The least exact source decides: a sum is as doubtful as its worst part.
    for name, kind in ESTIMATES.items():
        if name in names:
            badge.kind = kind
            badge.why = MEANINGS[name]
    return badge


def settings(live: Mapping[str, Any]) -> list[str]:
    """Live settings of a job, a text for each."""
    texts = []
    for name, value in live.items():
        if name == "pin_batch_size":
            texts.append(f"batch size pinned to {value}")
        elif name == "pause_exploration":
            if value:
                texts.append("exploration paused")
        elif name == EXCLUDED and len(value) == 1:
            texts.append("1 attempt is excluded: its run teaches nothing")
        elif name == EXCLUDED:
            texts.append(f"{len(value):,} attempts are excluded: their runs teach nothing")
        elif name == "audit_after":
            texts.append("the default to be measured in the next run")
        else:
            texts.append(f"{name.replace('_', ' ')} set to {value}")
    return texts


def live_settings(live: Mapping[str, Any]) -> list[str]:
    """The same on a page of its own."""
    return [f"Live setting: {setting}" for setting in settings(live)]


def facts(job: ZeusJob, weights: Weights | None) -> str:
    """Target, batch sizes and weights of a job, in a line.

    :param weights: None: nothing was measured yet.
    """
    rule = f"eta {job.eta:g} (weight of energy against time)"
    if weights is not None:
        rule = cost_rule(weights)
    if job.chooses_size:
        sizes = ", ".join(map(str, job.batch_sizes))
        default = job.default_batch_size
        return f"Target {job.target} · batch sizes {sizes} (default {default}) · {rule}"
    if job.tries_limits:
        return f"No batch size is chosen; power limit by {rule}"
    return ""


def cost_rule(weights: Weights) -> str:
    """How the cost is computed from energy and time (Eq. 2)."""
    if weights.time_alone:
        return "cost = time alone, since nothing measures energy"
    eta = f" (eta {weights.eta:g})"
    time = f"time × {weights.max_power_w:,.0f} W"
    if weights.eta == 1:
        return f"cost = energy alone{eta}"
    if weights.eta == 0:
        return f"cost = {time}{eta}"
    return f"cost = {weights.eta:g} × energy + {1 - weights.eta:g} × {time}{eta}"


def state(of: State) -> str:
    """The text of a state; a state that a newer version wrote keeps its own name."""
    if of in State:
        return of.text
    return f"{of.value} (unknown here)"


def start(trial: Trial) -> str:
    """The start of an attempt whose job chooses it, such as ``", warm start"``; else empty."""
    start = trial.observation.start
    if start is None or trial.planned.start is None:
        return ""
    return f", {start} start"


def host(trial: Trial) -> str:
    """The energy of the host beside the GPU; empty if that is not known."""
    observation = trial.observation
    # The host's draw is never added to the GPU's: the two are measured by different sources.
    if observation.host_j is None:
        return ""
    drew = f"the host's processors and memory drew {energy_text(observation.host_j)}"
    if observation.host_source == "rapl_share":
        drew += ", by the share of their time"
    return f" Beside the GPU, and in no other figure, {drew}."


def hidden_gpu(trial: Trial) -> str:
    """A further sentence on a task that may have used a GPU that its figures lack; else empty."""
    why = trial.observation.reasons.get(GPU_HIDDEN)
    if not why:
        return ""
    return f" {sentence_case(why)}."


def why_cold(trial: Trial) -> str:
    """A further sentence on an attempt that did not take its planned start; empty for any other."""
    why = trial.observation.reasons.get(WHY_COLD)
    if not why:
        return ""
    return f" It started cold: {why}."


def phase(of: Phase) -> str:
    """The text of a phase; a phase that a newer version wrote keeps its own name."""
    if of in Phase:
        return of.text
    return f"{of.value} (unknown here)"


def left_out(damaged: Sequence[Unreadable]) -> str:
    """A sentence that names the rows that cannot be read; empty if there are none."""
    if not damaged:
        return ""
    names = _first([trial_label(row) for row in damaged], most=5)
    count = counted(len(damaged), "attempt")
    return f"{count} of this log cannot be read: {names}; see “airflow zeus doctor”."


def _first(names: Sequence[str], most: int) -> str:
    """The first names, and that there are more."""
    shown = list(names[:most])
    if len(names) > most:
        shown.append("…")
    return ", ".join(shown)


def without_log(kept: Mapping[TrialKey, tuple[Trial, str]]) -> str:
    """A sentence about the trials of runs that could not use a log; empty if there are none.

    :param kept: trials of pending results, each with its place; those that a log has given a number
        do not count.
    """
    trials = []
    places = []
    for trial, place in kept.values():
        # A number means that a later run has written the row by now.
        if trial.number == 0:
            trials.append(trial)
            places.append(truncated(place, 200))
    if not trials:
        return ""
    newest = max(trials, key=lambda trial: trial.opened_at)
    count = "The cost of 1 run is"
    if len(trials) > 1:
        count = f"The costs of {len(trials):,} runs are"
    which = truncated(f"DAG {newest.origin.dag_id}, task {newest.origin.task_id}", 500)
    why = truncated(newest.planned.why, 500)
    return (
        f"{count} not in this log, which the task could not use ({_first(places, most=3)}). "
        f"{which}: {why}"
    )


def ended(trial: Trial) -> str:
    """Why an attempt ended, in a sentence."""
    # A newer version of the provider shares the log during an upgrade.
    if trial.state not in State:
        return (
            f"Its state is {state(trial.state)}: upgrade airflow-provider-zeus on the api-server."
        )
    if trial.state is State.RUNNING:
        return "It is still running."
    if trial.state is State.NO_METRIC:
        why = f"no result; {TELL_METRIC}"
        if trial.reason and trial.reason != NO_RESULT:
            why = trial.reason
        return f"No metric was reported, so whether it reached its target is not known: {why}."
    if trial.state is State.NO_DATA:
        why = trial.reason or "no optimizer step was made"
        return f"It had no data: {why}. The task's return value was kept."
    if trial.state is State.DONE:
        return _done(trial)
    begin = WITHOUT_MODEL.get(trial.state)
    if begin is None:
        return _with_result(trial)
    return f"{begin}: {trial.reason or 'no reason was recorded'}."


def _done(trial: Trial) -> str:
    did = "It was measured as it is"
    if trial.spec.get("mode") == "optimize":
        did = "It trained, and its power limit was tuned"
    return f"{': '.join(filter(None, (did, trial.reason)))}."


def _with_result(trial: Trial) -> str:
    """Why an attempt that left a model, or needed none, ended, with the metric that it reported."""
    result = metric(trial)
    if result:
        result = f" with {result}"
    if trial.state is State.NOT_NEEDED:
        return f"It trained nothing: the model of an earlier run is still good{result}."
    if trial.state is State.EXHAUSTED:
        return f"It ended below its target{result}: {trial.reason or 'no epoch was left'}."
    after = ""
    if trial.observation.epochs is not None:
        after = f" after {epochs_text(trial.observation.epochs)}"
    return f"It reached its target{after}{result}."


def metric(trial: Trial) -> str:
    """The metric of an attempt and its target; empty if it has reported none."""
    observation = trial.observation
    if observation.metric is None:
        return ""
    try:
        target = Target.parse(trial.spec.get("target"))
    # Another version wrote the target: the metric's own name is not known then.
    except JobSpecError:
        return f"metric {observation.metric:.4g}"
    text = f"{target.metric} {observation.metric:.4g}"
    # A target of "runtime" has its value in the observation alone.
    aim = observation.target_value
    if aim is None:
        aim = target.value
    if aim is None:
        return text
    at = "at least" if target.higher_is_better else "at most"
    return f"{text} (target: {at} {aim:.4g})"
