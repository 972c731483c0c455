"""Figures, states and live settings as texts of the pages. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.size_bounds import truncated
from airflow_provider_zeus.model.target import Target
from airflow_provider_zeus.model.trial import EXCLUDED, NO_RESULT, TELL_METRIC, WHY_COLD, Phase, State, Trial, TrialKey
from airflow_provider_zeus.plugin.views.models import Figure, Source
from airflow_provider_zeus.store.base import Unreadable, trial_label
from airflow_provider_zeus.units import counted, energy_text, share_text, time_text

SOURCES = {
    "nvml_counter": "GPU counter",
    "nvml_poll": "GPU, polled",
    "rapl": "CPU counter",
    "rapl_share": "CPU, by share",
    "estimate": "estimate",
    "simulated": "simulated",
}


def energy(energy_j: float, beside_j: float | None = None) -> Figure:
    """Energy [J] in Wh or kWh, in the unit of what it stands beside; exactly in joules and kilowatt hours."""
    exact = f"{energy_j:,.3f} J = {energy_j / 3.6e6:,.6g} kWh"
    return Figure(value=energy_j, text=energy_text(energy_j, beside_j), exact=exact)


def duration(time_s: float) -> Figure:
    """Time [s] in the unit that fits; exactly in seconds."""
    return Figure(value=time_s, text=time_text(time_s), exact=f"{time_s:,.3f} s")


def epochs(count: float) -> Figure:
    """Epochs, to a tenth."""
    return Figure(value=count, text=f"{count:,.1f}".removesuffix(".0"), exact=f"{count:,.4g} epochs")


def watts(power_w: float) -> Figure:
    """Whole watts."""
    return Figure(value=power_w, text=f"{power_w:,.0f} W", exact=f"{power_w:,.3f} W")


def share(of: float) -> Figure:
    """A share from 0 to 1, in per cent."""
    return Figure(value=of, text=share_text(of), exact=f"{100 * of:.2f} %")


def cost(value: float, unit: str, beside_j: float | None = None) -> Figure:
    """A cost as energy, in the unit of the energy beside it, or as time where that alone counts."""
    return duration(value) if unit == "s" else energy(value, beside_j)


def size(batch_size: int | None) -> str:
    """A batch size; a dash where a task was measured alone."""
    return "–" if batch_size is None else str(batch_size)


def sized(trial: Trial) -> str:
    """The batch size of a trial, in words."""
    return "measured as it is" if trial.batch_size is None else f"batch size {trial.batch_size}"


def missing(why: str) -> Figure:
    """A figure that is not known, with the reason."""
    return Figure(exact=why)


def data_slice(name: str | None) -> str:
    """The name of a data slice; the end of a data interval, a full timestamp, is cut to a day or a minute (UTC)."""
    try:
        moment = datetime.fromisoformat(name or "").astimezone(UTC)
    except (ValueError, OverflowError):  # no moment, or none that UTC has
        return name or ""
    if len(name or "") <= len("2026-01-31"):  # a day or a week that the DAG's author named
        return name or ""
    return f"{moment:%Y-%m-%d}" if (moment.hour, moment.minute) == (0, 0) else f"{moment:%Y-%m-%d %H:%M}"


def source(name: str | None) -> str:
    """The name of an energy source."""
    return "energy not measured" if name is None else SOURCES.get(name, name)


def badge(names: Sequence[str | None]) -> Source:
    """The badge of figures from these sources; its text is empty where nothing was measured yet."""
    if not names:
        return Source()
    meaning = {
        "source": "Measured by the hardware.",
        "estimate": "No hardware measured this: processor time multiplied by the watts of [zeus] cpu_watts.",
        "rapl_share": "An estimate: the processors' counters, by this task's share of their time.",
        "simulated": "No hardware drew this: a model computed it.",
        "no-source": "Nothing measures energy where these runs trained: time alone is known. To measure it, "
        "train on a GPU with NVML or a CPU with RAPL; [zeus] cpu_watts gives an estimate.",
    }
    own = ("estimate", "rapl_share", "simulated")
    kinds = ["no-source" if n is None else n if n in own else "source" for n in names]
    kind = next((k for k in ("simulated", "estimate", "rapl_share", "no-source") if k in kinds), "source")
    different = sorted({source(n) for n in names})
    drawn = "estimate" if kind == "rapl_share" else kind
    return Source(name=names[-1], text=" and ".join(different), kind=drawn, why=meaning[kind])


def settings(live: Mapping[str, Any]) -> list[str]:
    """Live settings of a job, a text for each."""
    texts = []
    for name, value in live.items():
        if name == "pin_batch_size":
            texts.append(f"batch size pinned to {value}")
        elif name == "pause_exploration":
            texts += ["exploration paused"] if value else []
        elif name == EXCLUDED:
            texts.append(f"trials {', '.join(map(str, value))} are excluded: they teach nothing")
        elif name == "audit_after":
            texts.append(f"the default to be measured in the next run after trial {value}")
        else:
            texts.append(f"{name.replace('_', ' ')} set to {value}")
    return texts


def facts(job: ZeusJob, weights: Weights | None) -> str:
    """Target, batch sizes and weights of a job, in a line. ``weights`` None: nothing was measured yet."""
    rule = cost_rule(weights) if weights else f"eta {job.eta:g} (weight of energy against time)"
    if not job.chooses_size:
        return f"No batch size is chosen; power limit by {rule}" if job.tries_limits else ""
    sizes = ", ".join(str(b) for b in job.batch_sizes)
    return f"Target {job.target} · batch sizes {sizes} (default {job.default_batch_size}) · {rule}"


def cost_rule(weights: Weights) -> str:
    """How the cost is computed from energy and time (Eq. 2)."""
    if weights.time_alone:
        return "cost = time alone, since nothing measures energy"
    eta, time = f" (eta {weights.eta:g})", f"time × {weights.max_power_w:,.0f} W"
    if weights.eta == 1:
        return f"cost = energy alone{eta}"
    if weights.eta == 0:
        return f"cost = {time}{eta}"
    return f"cost = {weights.eta:g} × energy + {1 - weights.eta:g} × {time}{eta}"


def state(of: State) -> str:
    """The text of a state; a state that a newer version wrote keeps its own name."""
    return of.text if of in State else f"{of.value} (unknown here)"


def start(trial: Trial) -> str:
    """The start of an attempt whose job chooses it, such as ``", warm start"``; empty for any other."""
    taken = trial.observation.start
    return f", {taken} start" if taken is not None and trial.planned.start is not None else ""


def host(trial: Trial) -> str:
    """What the host drew beside the GPU; empty where that is not known."""
    seen = trial.observation
    if seen.host_j is None:
        return ""
    share = ", by the share of their time" if seen.host_source == "rapl_share" else ""
    drew = f"the host's processors and memory drew {energy_text(seen.host_j)}{share}"
    return f" Beside the GPU, and in no other figure, {drew}."


def why_cold(trial: Trial) -> str:
    """A further sentence on an attempt that did not take its planned start; empty for any other."""
    why = trial.observation.reasons.get(WHY_COLD)
    return f" It started cold: {why}." if why else ""


def phase(of: Phase) -> str:
    """The text of a phase; a phase that a newer version wrote keeps its own name."""
    return of.text if of in Phase else f"{of.value} (unknown here)"


def left_out(damaged: Sequence[Unreadable]) -> str:
    """A sentence that names the trials that cannot be read; empty where there are none."""
    if not damaged:
        return ""
    shown = ", ".join(map(trial_label, damaged[:5])) + (", …" if len(damaged) > 5 else "")
    count = counted(len(damaged), "trial")
    return f"{count} of this log cannot be read: {shown}; see “airflow zeus doctor”."


def without_log(kept: Mapping[TrialKey, tuple[Trial, str]]) -> str:
    """A sentence about the trials of runs that could not use a log; empty where there are none.

    :param kept: trials of pending results, each with its place; those that a log has given a number do not count.
    """
    alone = [(trial, place) for trial, place in kept.values() if trial.number == 0]
    if not alone:
        return ""
    newest, _ = max(alone, key=lambda each: each[0].opened_at)
    count = "The cost of 1 run is" if len(alone) == 1 else f"The costs of {len(alone):,} runs are"
    places = ", ".join(truncated(place, 200) for _, place in alone[:3]) + (", …" if len(alone) > 3 else "")
    which = f"DAG {newest.origin.dag_id}, task {newest.origin.task_id}"
    why = truncated(newest.planned.why, 500)
    return f"{count} not in this log, which the task could not use ({places}). {truncated(which, 500)}: {why}"


def ended(trial: Trial) -> str:
    """Why an attempt ended, in a sentence."""
    seen, reason = trial.observation, trial.reason
    measured = f" with {text}" if (text := metric(trial)) else ""
    if trial.state is State.RUNNING:
        return "It is still running."
    if trial.state is State.CONVERGED:
        after = "" if seen.epochs is None else f" after {epochs(seen.epochs).text} epochs"
        return f"It reached its target{after}{measured}."
    if trial.state is State.EXHAUSTED:
        return f"It ended below its target{measured}: {reason or 'no epoch was left'}."
    if trial.state is State.DONE:
        return f"It was measured as it is{f': {reason}' if reason else ''}."
    if trial.state is State.NO_METRIC:
        why = f"no result; {TELL_METRIC}" if reason in (None, NO_RESULT) else reason
        return f"No metric was reported, so whether it reached its target is not known: {why}."
    if trial.state is State.NO_DATA:
        return f"It had no data: {reason or 'no optimizer step was made'}. The task's return value was kept."
    if trial.state is State.NOT_NEEDED:
        return f"It trained nothing: the model of an earlier run is still good{measured}."
    if trial.state not in State:
        return f"Its state is {state(trial.state)}: upgrade airflow-provider-zeus on the api-server."
    head = {State.GIVEN_UP: "It was given up", State.FAILED: "It failed"}.get(trial.state, "It was abandoned")
    return f"{head}: {reason or 'no reason was recorded'}."


def metric(trial: Trial) -> str:
    """The metric of an attempt and its target; empty where it has reported none."""
    seen = trial.observation
    if seen.metric is None:
        return ""
    try:
        target = Target.parse(trial.spec.get("target"))
    except JobSpecError:
        return f"metric {seen.metric:.4g}"
    value = target.value if seen.target_value is None else seen.target_value
    wanted = "" if value is None else f" (target: {'at least' if target.higher_is_better else 'at most'} {value:.4g})"
    return f"{target.metric} {seen.metric:.4g}{wanted}"
