"""Figures, states and settings in words. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.optimizer.cost import Weights
from airflow_provider_zeus.optimizer.estimate import Estimate
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.target import Target
from airflow_provider_zeus.optimizer.trial import Phase, State, Trial
from airflow_provider_zeus.plugin.models import Chart, Figure, Source
from airflow_provider_zeus.store.base import Unreadable, named

STATES = {
    State.RUNNING: "running",
    State.CONVERGED: "reached target",
    State.GIVEN_UP: "given up",
    State.EXHAUSTED: "below target",
    State.FAILED: "failed",
    State.NO_DATA: "no data",
    State.ABANDONED: "abandoned",
}
PHASES = {
    Phase.EXPLORE: "exploring",
    Phase.RETURN: "tried again",
    Phase.SAMPLE: "sampling",
    Phase.INCUMBENT: "cheapest known",
    Phase.PINNED: "pinned",
    Phase.FALLBACK: "without the log",
}
SOURCES = {
    "nvml_counter": "GPU counter",
    "nvml_poll": "GPU, polled",
    "rapl": "CPU counter",
    "estimate": "estimate",
    "simulated": "simulated",
}
NO_SOURCE = "no source"
MEANING = {
    "source": "Measured by the hardware.",
    "estimate": "No hardware measured this: processor time multiplied by the watts of [zeus] cpu_watts.",
    "simulated": "No hardware drew this: a model computed it.",
    "no-source": "Nothing measures energy there: the job is tuned on time alone. A GPU with NVML, a CPU with RAPL, or "
    "[zeus] cpu_watts for an estimate gives it a source.",
}
NEWER = "unknown here"  # a newer version wrote it
SIMULATED = "simulated"
_ENERGY = ((3.6e6, 3.6e6, "kWh"), (1e6, 3600.0, "Wh"), (1e3, 1e3, "kJ"))  # from so many joules on, size, unit


def energy(joules: float) -> Figure:
    """Joules in the unit that fits (J, kJ, Wh, kWh); exactly in joules and kilowatt hours."""
    return Figure(value=joules, text=_energy_text(joules), exact=f"{joules:,.3f} J = {joules / 3.6e6:,.6g} kWh")


def _energy_text(joules: float) -> str:
    size, unit = next(((s, u) for least, s, u in _ENERGY if abs(joules) >= 0.9995 * least), (1.0, "J"))
    return f"{_three(joules / size)} {unit}"


def duration(seconds: float) -> Figure:
    """Seconds, minutes and seconds, or hours and minutes; exactly in seconds."""
    return Figure(value=seconds, text=_duration_text(seconds), exact=f"{seconds:,.3f} s")


def _duration_text(seconds: float) -> str:
    whole = round(seconds)
    if seconds < 59.95:
        return f"{_three(seconds)} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def epochs(count: float) -> Figure:
    """Epochs, a tenth exactly."""
    return Figure(value=count, text=f"{count:,.1f}".removesuffix(".0"), exact=f"{count:,.4g} epochs")


def watts(power_w: float) -> Figure:
    """Whole watts."""
    return Figure(value=power_w, text=f"{power_w:,.0f} W", exact=f"{power_w:,.3f} W")


def cost(value: float, unit: str) -> Figure:
    """A cost in joules, or in seconds where time alone counts."""
    return duration(value) if unit == "s" else energy(value)


def cost_text(value: float, unit: str) -> str:
    """The text of :func:`cost` alone, where there are thousands of them."""
    return _duration_text(value) if unit == "s" else _energy_text(value)


def missing(why: str) -> Figure:
    """A figure that is not known."""
    return Figure(exact=why)


def data_slice(name: str | None) -> str:
    """A data slice; the end of a data interval, written to the microsecond, becomes a day or a minute (UTC)."""
    try:
        moment = datetime.fromisoformat(name or "").astimezone(UTC)
    except ValueError:
        return name or ""
    if len(name or "") <= len("2026-01-31"):  # a day or a week of the author's own
        return name or ""
    return f"{moment:%Y-%m-%d}" if (moment.hour, moment.minute) == (0, 0) else f"{moment:%Y-%m-%d %H:%M}"


def source(name: str | None) -> str:
    """An energy source."""
    return NO_SOURCE if name is None else SOURCES.get(name, name)


def badge(names: Sequence[str | None]) -> Source:
    """The badge of figures from these sources; without a text where there is none of them yet."""
    if not names:
        return Source()
    kinds = ["no-source" if n is None else n if n in ("estimate", SIMULATED) else "source" for n in names]
    kind = next((k for k in ("simulated", "estimate", "no-source") if k in kinds), "source")
    different = sorted({source(n) for n in names})
    return Source(name=names[-1], text=" and ".join(different), kind=kind, why=MEANING[kind])


def badged(chart: Chart, source: Source) -> Chart:
    """The chart with the badge of its figures, where it shows any."""
    return chart if chart.option is None else chart.model_copy(update={"source": source})


def settings(live: Mapping[str, Any]) -> list[str]:
    """Live settings of a job."""
    said = []
    for name, value in live.items():
        if name == "pin_batch_size":
            said.append(f"batch size pinned to {value}")
        elif name == "pause_exploration":
            said += ["exploration paused"] if value else []
        else:
            said.append(f"{name.replace('_', ' ')} set to {value}")
    return said


def facts(job: ZeusJob, weights: Weights | None) -> list[str]:
    """What the job is after, and how its cost is made. ``weights`` None: nothing was measured yet."""
    sizes = ", ".join(str(b) for b in job.batch_sizes)
    said = [f"Target {job.target}", f"batch sizes {sizes}; default {job.default_batch_size}", f"eta {job.eta:g}"]
    return [*said, cost_rule(weights)] if weights else said


def cost_rule(weights: Weights) -> str:
    """How a cost is made of energy and time (Eq. 2)."""
    if weights.time_alone:
        return "cost = time alone, since nothing measures energy"
    if weights.eta == 1:
        return "cost = energy"
    time = f"{weights.max_power_w:,.0f} W × time"
    if weights.eta == 0:
        return f"cost = {time}"
    return f"cost = {weights.eta:g} × energy + {1 - weights.eta:g} × {time}"


def state(of: State) -> str:
    """A state; one that a newer version wrote, by its name."""
    return STATES.get(of) or f"{of.value} ({NEWER})"


def phase(of: Phase) -> str:
    """A phase; one that a newer version wrote, by its name."""
    return PHASES.get(of) or f"{of.value} ({NEWER})"


def left_out(damaged: Sequence[Unreadable]) -> str:
    """The sentence about trials that cannot be read; empty where there are none."""
    if not damaged:
        return ""
    shown = ", ".join(map(named, damaged[:5])) + (", …" if len(damaged) > 5 else "")
    count = "1 trial" if len(damaged) == 1 else f"{len(damaged):,} trials"
    return f"{count} of this log cannot be read: {shown}; see “airflow zeus doctor”."


def ended(trial: Trial) -> str:
    """Why an attempt ended, in a sentence."""
    seen, reason = trial.observation, trial.reason
    if trial.state is State.RUNNING:
        return "It is still running."
    if trial.state is State.CONVERGED:
        after = "" if seen.epochs is None else f" after {epochs(seen.epochs).text} epochs"
        return f"It reached its target{after}{_metric(trial)}."
    if trial.state is State.EXHAUSTED:
        return f"It ended below its target{_metric(trial)}: {reason or 'no epoch was left'}."
    if trial.state is State.NO_DATA:
        return f"It teaches nothing: {reason or 'no optimizer step was made'}. What the task returned was kept."
    if trial.state not in STATES:
        return f"Its state is {state(trial.state)}: upgrade airflow-provider-zeus on the api-server."
    head = {State.GIVEN_UP: "It was given up", State.FAILED: "It failed"}.get(trial.state, "Nobody came back for it")
    return f"{head}: {reason or 'no reason was written down'}."


def _metric(trial: Trial) -> str:
    seen = trial.observation
    if seen.metric is None:
        return ""
    try:
        target = Target.parse(trial.spec.get("target"))
    except JobSpecError:
        return f" with {seen.metric:.4g}"
    value = target.value if seen.target_value is None else seen.target_value
    wanted = "" if value is None else f" (target: {'at least' if target.higher_is_better else 'at most'} {value:.4g})"
    return f" with {target.metric} {seen.metric:.4g}{wanted}"


def _three(value: float) -> str:
    """Three digits, never as a power of ten."""
    return f"{float(f'{value:.3g}'):,.9g}"


def interval(of: Estimate, say: Callable[[float], str]) -> str:
    """Where 90 % of the belief in a saving lies, or why there is no interval."""
    if of.low is None or of.high is None:
        return f"no interval: {of.reason or 'not known'}"
    if of.low == of.high:
        return "no interval: all runs of the default took equally many epochs"
    low, high = (say(abs(end)) for end in (of.low, of.high))
    if undecided(of):
        return f"90 % interval from a loss of {low} to a saving of {high}"
    return f"90 % interval {low} to {high}" if of.low >= 0 else f"90 % interval {high} to {low}"


def undecided(of: Estimate) -> bool:
    """Whether the interval holds both a saving and a loss."""
    return of.low is not None and of.high is not None and of.low < 0 < of.high
