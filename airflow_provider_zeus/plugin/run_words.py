"""What a run saved or lost, and how far it is, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.run_saving import RunSaving, Saved
from airflow_provider_zeus.optimizer.target import Target
from airflow_provider_zeus.optimizer.trial import Phase, Trial
from airflow_provider_zeus.plugin import words
from airflow_provider_zeus.plugin.models import Figure
from airflow_provider_zeus.plugin.run_models import Progress, Tile, Verdict

RUNNING = Verdict(kind="running", word="Running", text="What it saves or loses is told at its end.")


def rival(saving: RunSaving) -> str:
    """What the run is compared with."""
    power = "full power" if saving.full_power_w is None else f"full power ({saving.full_power_w:,.0f} W)"
    return f"batch size {saving.default_batch_size}, the default, at {power}"


def verdict(saving: RunSaving | None, why_not: str = "") -> Verdict:
    """A loss is said as plainly as a saving; where the interval holds both, that too."""
    if saving is None or saving.cost.saved.value is None:
        reason = why_not if saving is None else saving.cost.saved.reason or ""
        return Verdict(kind="unknown", word="Not known", text=f"Whether it saved anything cannot be told: {reason}.")
    cost = saving.cost
    value = saving.cost.saved.value
    amount = words.cost(abs(value), cost.unit).text
    if not saving.kept:
        return Verdict(
            kind="lost", word="Lost", text=f"It spent {amount} of cost and left no model: all of it is lost."
        )
    share = _share(cost)
    if _open(cost):
        side = "saved" if value >= 0 else "lost"
        text = f"It {side} about {amount} of cost{share} against {rival(saving)}, within what chance explains"
        return Verdict(kind="even", word="Undecided", text=f"{text}{_range(cost)}.")
    word, kind, verb = ("Saved", "saved", "saved") if value >= 0 else ("Lost", "lost", "lost")
    text = f"It {verb} {amount} of cost{share} against {rival(saving)}{_range(cost)}."
    return Verdict(kind=kind, word=word, text=text)


def saving_tile(saving: RunSaving | None, why_not: str = "") -> Tile:
    """The saving with its interval, and the same of energy and time alone."""
    if saving is None or saving.cost.saved.value is None:
        reason = why_not if saving is None else saving.cost.saved.reason or ""
        return Tile(name="Saving", figure=words.missing(reason), note=f"not known: {reason}")
    cost, value = saving.cost, saving.cost.saved.value
    said = words.cost(abs(value), cost.unit)
    figure = Figure(value=value, text=f"{said.text}{_share(cost)}", exact=_exact(saving))
    interval = _range(cost).strip(" ()") or cost.saved.reason or ""
    parts = [f"{name} {_signed(s)}" for name, s in (("energy", saving.energy), ("time", saving.time)) if _signed(s)]
    note = "; ".join(filter(None, [interval, *parts]))
    name = "Saving" if value >= 0 else "Loss"
    kind = "warn" if saving.kept and _open(cost) else "good" if value >= 0 else "bad"
    return Tile(name=name, figure=figure, note=note, kind=kind)


def _exact(saving: RunSaving) -> str:
    spent, base = saving.cost.spent or 0.0, saving.cost.baseline.value
    if base is None or not saving.kept:
        return f"spent {words.cost(spent, saving.cost.unit).exact} for no model"
    exact = (words.cost(v, saving.cost.unit).exact for v in (base, spent))
    return "baseline {} minus spent {}".format(*exact)


def _signed(saved: Saved) -> str:
    """``-12 %`` of energy: less than the default took."""
    base, value = saved.baseline.value, saved.saved.value
    if not base or value is None:
        return ""
    return f"{-100 * value / base:+.0f} %"


def _share(saved: Saved) -> str:
    base, value = saved.baseline.value, saved.saved.value
    return f" ({100 * abs(value) / base:.0f} %)" if base and value is not None else ""


def _open(saved: Saved) -> bool:
    """Whether the interval holds both a saving and a loss."""
    low, high = saved.saved.low, saved.saved.high
    return low is not None and high is not None and low < 0 < high


def _range(saved: Saved) -> str:
    """The interval in words; empty where there is none, or nothing in it."""
    low, high = saved.saved.low, saved.saved.high
    if low is None or high is None or low == high:
        return ""

    def side(value: float) -> str:
        return f"{'saving' if value >= 0 else 'loss'} of {words.cost(abs(value), saved.unit).text}"

    if low * high >= 0:
        ends = sorted((abs(low), abs(high)))
        near, far = (words.cost(end, saved.unit).text for end in ends)
        return f" (90 %: {near} to {far})"
    return f" (90 %: {side(low)} to {side(high)})"


def progress(trial: Trial, job: ZeusJob) -> Progress:
    """How far a running trial is."""
    seen, bound = trial.observation, trial.planned.bound_epochs
    most = min((float(b) for b in (job.max_epochs, bound) if b is not None), default=None)
    parts = [f"batch size {trial.batch_size}"]
    if trial.planned.phase is Phase.PEEK:
        parts = [f"a look of a few seconds at batch size {trial.batch_size}"]
        most = None
    if seen.epochs is None:
        parts.append("no epoch has been reported yet")
    else:
        given_up = ", then it is given up" if bound is not None and most == bound else ""
        of = "" if most is None else f" of at most {words.epochs(most).text}{given_up}"
        parts.append(f"epoch {words.epochs(seen.epochs).text}{of}")
    if seen.metric is not None:
        parts.append(f"{_metric(trial, seen.metric)}")
    return Progress(text="Running: " + ", ".join(parts) + ".", epochs=seen.epochs, max_epochs=most)


def _metric(trial: Trial, value: float) -> str:
    try:
        target = Target.parse(trial.spec.get("target"))
    except JobSpecError:
        return f"metric {value:.4g}"
    goal = target.value if trial.observation.target_value is None else trial.observation.target_value
    wanted = "" if goal is None else f" (target: {'at least' if target.higher_is_better else 'at most'} {goal:.4g})"
    return f"{target.metric} {value:.4g}{wanted}"


def notes(trials: Sequence[Trial], waiting: int) -> list[str]:
    """What a reader must know beside the figures."""
    said = []
    count = max((t.observation.device_count or 1 for t in trials), default=1)
    if count > 1:
        said.append(f"Energy is that of all {count} GPUs together: the log holds no figures per GPU.")
    if waiting:
        what = "The cost of one attempt is" if waiting == 1 else f"The costs of {waiting} attempts are"
        said.append(f"{what} not yet told to the log: the job's next run tells it, or “airflow zeus reap”.")
    return said
