"""What a run saved or lost, and how far it is, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.optimizer.baseline import Saved
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.run_saving import RunSaving
from airflow_provider_zeus.optimizer.target import Target
from airflow_provider_zeus.optimizer.trial import Trial
from airflow_provider_zeus.plugin import words
from airflow_provider_zeus.plugin.models import Figure
from airflow_provider_zeus.plugin.run_models import Progress, Tile, Verdict

NOTABLE = 0.05  # share of a cost that is worth a sentence
RUNNING = Verdict(kind="running", word="Running", text="What it saves or loses is told at its end.")


def rival(saving: RunSaving) -> str:
    """What the run is compared with."""
    power = "full power" if saving.full_power_w is None else f"full power ({saving.full_power_w:,.0f} W)"
    return f"batch size {saving.default_batch_size}, the default, at {power}"


def verdict(saving: RunSaving | None, why_not: str = "", *, below: bool = False) -> Verdict:
    """A loss is said as plainly as a saving; where the interval holds both, that too. ``below``: below its target."""
    if saving is None or saving.cost.saved.value is None:
        reason = why_not if saving is None else saving.cost.saved.reason or ""
        return Verdict(kind="unknown", word="Not known", text=f"Whether it saved anything cannot be told: {reason}.")
    value, cost = saving.cost.saved.value, saving.cost
    amount = f"{words.cost(abs(value), cost.unit).text} {'of time' if cost.unit == 's' else 'of cost'}"
    if not saving.kept:
        return Verdict(kind="lost", word="Lost", text=f"It spent {amount} and left no model: all of it is lost.")
    side = "saved" if value >= 0 else "lost"
    parts = [f"It {side} {amount}{_share(cost)} against {rival(saving)}; {interval(saving)}."]
    explored = saving.exploration or 0.0
    if value < 0 and explored >= NOTABLE * (cost.spent or 0.0):
        parts.append(f"{words.cost(explored, cost.unit).text} of what it spent was exploration and profiling.")
    if below:
        parts.append("Its model is below the target.")
    word = side.capitalize()
    if words.undecided(cost.saved):
        side, word = "even", "Undecided"
    return Verdict(kind=side, word=word, text=" ".join(parts))


def saving_tile(saving: RunSaving | None, why_not: str = "") -> Tile:
    """The saving with its interval, and the same of energy and time alone."""
    if saving is None or saving.cost.saved.value is None:
        reason = why_not if saving is None else saving.cost.saved.reason or ""
        return Tile(name="Saving", figure=words.missing(reason), note=f"not known: {reason}")
    cost, value = saving.cost, saving.cost.saved.value
    said, name = words.cost(abs(value), cost.unit), "Saving" if value >= 0 else "Loss"
    if not saving.kept:
        spent = f"spent {words.cost(cost.spent or 0.0, cost.unit).exact} for no model"
        return Tile(name=name, figure=Figure(value=value, text=said.text, exact=spent), note="no model", kind="bad")
    ends = (words.cost(v, cost.unit).exact for v in (cost.baseline.value or 0.0, cost.spent or 0.0))
    exact = "the default's {} minus its own {}".format(*ends)
    changes = [f"{what} {_change(s)}" for what, s in (("energy", saving.energy), ("time", saving.time)) if _change(s)]
    return Tile(
        name=name,
        figure=Figure(value=value, text=said.text, exact=exact),
        note="; ".join(filter(None, [_share(cost).strip(" ()"), interval(saving), ", ".join(changes)])),
        kind="warn" if words.undecided(cost.saved) else "good" if value >= 0 else "bad",
    )


def _change(saved: Saved) -> str:
    """``−12 %`` of energy: less than the default took."""
    base, value = saved.baseline.value, saved.saved.value
    if not base or value is None:
        return ""
    return f"{-100 * value / base:+.0f}\u00a0%".replace("-", "−")


def _share(saved: Saved) -> str:
    """Of the default's cost."""
    base, value = saved.baseline.value, saved.saved.value
    if not base or value is None:
        return ""
    return f" ({100 * abs(value) / base:.0f} % {'less' if value >= 0 else 'more'})"


def interval(saving: RunSaving) -> str:
    """Where 90 % of the belief lies, or why there is no interval."""
    return words.interval(saving.cost.saved, lambda v: words.cost(v, saving.cost.unit).text)


def progress(trial: Trial, job: ZeusJob) -> Progress:
    """How far a running trial is."""
    seen, bound = trial.observation, trial.planned.bound_epochs
    most = min((float(b) for b in (job.max_epochs, bound) if b is not None), default=None)
    parts = [f"batch size {trial.batch_size}"]
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
        said.append(f"Energy is that of all {count} GPUs together; what each of them drew is shown below.")
    if waiting:
        what = "The cost of one attempt is" if waiting == 1 else f"The costs of {waiting} attempts are"
        said.append(f"{what} not yet told to the log: the job's next run tells it, or “airflow zeus reap”.")
    return said
