"""What a run cost and saved, in a sentence. Pure."""

from __future__ import annotations

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.plugin.text.saved_text import (
    Outcome,
    amounts,
    explored,
    in_all,
    in_words,
    outdated,
    saved_sentence,
    share_of_cost,
)
from airflow_provider_zeus.plugin.views.models import Verdict
from airflow_provider_zeus.reports.baseline import OLD
from airflow_provider_zeus.reports.dataset import ENERGY
from airflow_provider_zeus.reports.run_figures import RunSaving
from airflow_provider_zeus.units import energy_text, time_text

RUNNING = Verdict(kind="running", word="Running", text="What it saves or loses is shown when it has ended.")


def brief(saving: RunSaving) -> str:
    """What a run saved, in few words."""
    word = run_verdict(saving).word
    if saving.cost.saved.value is None or Outcome.of_cost(saving.cost).kind == "even":
        return word
    told = amounts(saving.cost, saving.energy.saved, saving.time.saved, saving.energy.spent)
    return f"{word} {share_of_cost(saving.cost)}: {told}{f', {OLD} the default' * bool(outdated(saving))}"


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
