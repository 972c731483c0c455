"""What runs saved or lost, in words: the verdicts and tiles of all pages. A loss reads as a saving does. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.views.models import Figure, Source, Tile, Verdict
from airflow_provider_zeus.reports.baseline import Saved
from airflow_provider_zeus.reports.run_figures import RunSaving
from airflow_provider_zeus.reports.savings import Savings
from airflow_provider_zeus.units import cost_text, costs_as, counted, energy_text, time_text

RUNNING = Verdict(kind="running", word="Running", text="What it saves or loses is shown when it has ended.")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A saving or a loss [J or s] in the words that all pages use for it."""

    verb: str  # saved | lost: by the value alone
    kind: str  # saved | lost | even: the interval holds a saving and a loss, or the value is 0
    colour: str  # good | bad | warn
    amount: str
    share: str  # "18 %" of the baseline; empty where that is 0 or not known
    interval: str  # 90 % interval, or that it was measured

    @classmethod
    def of(
        cls, value: float, estimate: Estimate, text: Callable[[float], str], baseline: float | None = None
    ) -> Outcome:
        """``value``: that of the estimate, which is known and has an interval; ``text``: of an amount."""
        low, high, verb = estimate.low or 0.0, estimate.high or 0.0, "saved" if value >= 0 else "lost"
        kind = "even" if low < 0 < high or value == 0 else verb
        if low == high:
            interval = "measured"
        elif kind == "even":
            interval = f"90 % interval from a loss of {text(-low)} to a saving of {text(high)}"
        else:
            least, most = sorted((abs(low), abs(high)))
            interval = f"90 % interval {text(least)} to {text(most)}"
        colour = {"saved": "good", "lost": "bad", "even": "warn"}[kind]
        part = abs(value / baseline) if baseline else 0.0
        share = "" if not baseline else "under 1 %" if 0 < part < 0.005 else f"{100 * part:.0f} %"
        return cls(verb, kind, colour, text(abs(value)), share, interval)

    @classmethod
    def of_cost(cls, cost: Saved) -> Outcome:
        """The same of a cost whose saving is known."""
        assert cost.saved.value is not None
        return cls.of(cost.saved.value, cost.saved, costs_as(cost.unit), cost.baseline.value)


def share_of_cost(cost: Saved) -> str:
    """What was saved or lost of the default's cost, "18 % of cost"; the amount where no share is known."""
    found = Outcome.of_cost(cost)
    return f"{found.share} of {'time' if cost.unit == 's' else 'cost'}" if found.share else found.amount


def amounts(found: Savings | RunSaving) -> str:
    """What was saved or lost in energy and time, in few words, where both the cost and they are known.

    Beside the verdict on the cost: only what differs from it is named again.
    """
    verb = Outcome.of_cost(found.cost).verb
    known = [
        Outcome.of(saved.saved.value, saved.saved, text)
        for saved, text in ((found.energy, energy_text), (found.time, time_text))
        if saved.saved.value is not None
    ]
    told = [f"{one.amount}{'' if one.verb == verb else f' {one.verb}'}".replace(" ", "\u00a0") for one in known]
    return f"{'about ' * any(one.kind == 'even' for one in known)}{', '.join(told)}"


def brief(saving: RunSaving) -> str:
    """What a run saved, in few words."""
    word = run_verdict(saving).word
    if saving.cost.saved.value is None:
        return word
    return f"{word} {share_of_cost(saving.cost)}: {amounts(saving)}"


def verdict(saved: Saved, subject: str, default_batch_size: int, full_power_w: float | None) -> Verdict:
    """Whether it was worth it, in a sentence. ``subject``: its first words, such as "It"."""
    if saved.saved.value is None:
        return unknown(saved.saved.reason or "")
    found = Outcome.of(saved.saved.value, saved.saved, costs_as(saved.unit), saved.baseline.value)
    what = "time" if saved.unit == "s" else "cost"
    if saved.saved.value == 0:
        text = f"{subject} only trained batch size {default_batch_size}, the default, at full power: nothing compares."
        return Verdict(kind="even", word="Undecided", text=text)
    amount = f"{'about ' * (found.kind == 'even')}{found.amount} of {what}"
    part = f" ({found.share})" if found.share else ""
    power = "full power" if full_power_w is None else f"full power ({full_power_w:,.0f} W)"
    against = f"batch size {default_batch_size}, the default, at {power}"
    return Verdict(
        kind=found.kind,
        word="Undecided" if found.kind == "even" else found.verb.capitalize(),
        text=f"{subject} {found.verb} {amount}{part} against {against}; {found.interval}.",
    )


def unknown(reason: str) -> Verdict:
    """The verdict where nothing is known."""
    return Verdict(kind="unknown", word="Not known", text=f"What was saved is not known: {reason}.")


def saved_tile(names: tuple[str, str, str], saved: Saved, source: Source) -> Tile:
    """A saving with its share and its interval. ``names``: of the tile where it was saved, lost, undecided."""
    value, reason = saved.saved.value, saved.saved.reason or ""
    if value is None:
        return missing_tile(names[0], reason)
    found = Outcome.of(value, saved.saved, costs_as(saved.unit), saved.baseline.value)
    figure = words.cost(abs(value), saved.unit)
    text = f"{found.verb} about {figure.text}" if found.kind == "even" else figure.text
    return Tile(
        name=names[("saved", "lost", "even").index(found.kind)],
        figure=Figure(value=value, text=text, exact=f"{found.verb} {figure.exact}"),
        note="; ".join(filter(None, (found.share, found.interval))),
        kind=found.colour,
        source=source,
    )


def amount_tile(
    name: str, saved: Estimate, figure: Callable[[float], Figure], source: Source, *, baseline: float | None = None
) -> Tile:
    """A saving or loss of energy, time, money or carbon, with its own verdict and interval.

    :param figure: of an amount of at least 0. ``baseline``: what the saving is a share of.
    """

    def text(amount: float) -> str:
        return figure(amount).text

    if saved.value is None:
        return missing_tile(name, saved.reason or "").model_copy(update={"source": source})
    found = Outcome.of(saved.value, saved, text, baseline)
    low, high = saved.low or 0.0, saved.high or 0.0
    small = low != high and text(abs(low)) == text(abs(high))  # both ends are under the smallest coin
    shown, notes = found.amount, [found.share, "" if small else found.interval]
    if found.kind == "even":
        shown, notes = "undecided", [f"{found.verb} about {found.amount}", found.interval]
    elif found.kind == "lost":
        shown = f"lost {found.amount}"
    told = Figure(value=saved.value, text=shown, exact=f"{found.verb} {figure(abs(saved.value)).exact}")
    return Tile(name=name, figure=told, note="; ".join(filter(None, notes)), kind=found.colour, source=source)


def missing_tile(name: str, why: str) -> Tile:
    """A tile whose figure is not known."""
    return Tile(name=name, figure=words.missing(why), note=f"not known: {why}")


# --- a job


def job_verdict(savings: Savings, *, all_of: bool = True) -> Verdict:
    """Whether the runs of a job saved anything. ``all_of``: the log holds no older runs."""
    count = counted(savings.runs, "run")
    subject = f"Over its {'' if all_of else 'newest '}{count} this job"
    found = verdict(savings.cost, subject, savings.default_batch_size, savings.full_power_w)
    if savings.cost.saved.low != savings.cost.saved.high and savings.measured < savings.runs:
        ran = f"{savings.measured:,} of {savings.runs:,} runs"
        found.text += f" Estimated, not trained: the default itself ran in {ran}."
    return found


def job_tiles(savings: Savings, source: Source, *, all_of: bool = True) -> list[Tile]:
    """Figures of a job in its own unit of cost, below its first line. ``all_of``: the log holds no older runs."""
    return [
        saved_tile(("Saved: cost", "Lost: cost", "Undecided: cost"), savings.cost, source),
        _exploration(savings.cost, source),
        break_even(savings, all_of=all_of),
        _per_run(savings, source),
    ]


def _exploration(cost: Saved, source: Source) -> Tile:
    name, note = "Spent on exploration", "attempts given up or failed, profiling"
    if cost.exploration is None:
        return Tile(name=name, figure=words.missing("a figure of one of its attempts is not known"))
    if cost.settled.value == cost.settled.low == cost.settled.high == 0:
        note += "; without it nothing was saved or lost"
    elif cost.settled.value is not None:
        found = Outcome.of(cost.settled.value, cost.settled, costs_as(cost.unit))
        note += (
            f"; without it {'undecided' if found.kind == 'even' else f'{found.verb} {found.amount}'}, {found.interval}"
        )
    return Tile(name=name, figure=words.cost(cost.exploration, cost.unit), note=note, source=source)


def break_even(savings: Savings, *, all_of: bool = True) -> Tile:
    """When the savings made up for what exploration cost."""
    name, run, further, each = "Break-even", savings.break_even_run, savings.break_even_in, savings.per_run.value
    low, high = savings.cost.saved.low, savings.cost.saved.high
    if low is not None and high is not None and (low < 0 < high or low == high == 0):
        return Tile(name=name, figure=Figure(text="undecided"), note="the sum may be a saving or a loss", kind="warn")
    if run is not None:
        figure = Figure(value=run, text="from the start" if run == 1 else f"at run {run:,}")
        which = f"{'' if all_of else 'the newest '}{savings.runs:,}"
        note = f"of {which}; from there on the sum stays at or below the default's"
        return Tile(name=name, figure=figure, note=note, kind="good")
    if further is not None:
        figure = Figure(value=further, text="in 1 more run" if further == 1 else f"in {further:,} more runs")
        return Tile(name=name, figure=figure, note="if each saves what is expected now", kind="warn")
    if savings.cost.saved.value is not None and each is not None:
        if savings.per_run.low == each == savings.per_run.high == 0:
            note = "the default at full power is what runs now: a further run of it saves nothing"
            return Tile(name=name, figure=Figure(text="not yet"), note=note, kind="warn")
        if (savings.per_run.high or 0.0) <= 0:
            return Tile(name=name, figure=Figure(text="not in sight"), note="a further run saves nothing", kind="bad")
        return missing_tile(name, "whether a further run saves anything is undecided")
    return missing_tile(name, savings.cost.saved.reason or savings.per_run.reason or "not known")


def _per_run(savings: Savings, source: Source) -> Tile:
    value, unit = savings.per_run.value, savings.cost.unit
    if value is None:
        return missing_tile("A run saves", savings.per_run.reason or "")
    found, figure = Outcome.of(value, savings.per_run, costs_as(unit)), words.cost(abs(value), unit)
    note = "expected of the next" + (f"; {found.interval}" if value else "")
    if value and found.kind == "even":
        figure.text, note = "undecided", f"{found.verb} about {found.amount} is {note}"
    name = "A run loses" if found.kind == "lost" else "A run saves"
    return Tile(name=name, figure=figure, note=note, kind=found.colour if value else "", source=source)


# --- a run


def run_verdict(saving: RunSaving | None, why_not: str = "", *, below: bool = False, silent: bool = False) -> Verdict:
    """Whether a run was worth it. ``saving`` None: not known, for ``why_not``.

    :param below: it is below its target.
    :param silent: it reported no metric.
    """
    if saving is None:
        return unknown(why_not)
    cost, value = saving.cost, saving.cost.saved.value
    found = verdict(cost, "It", saving.default_batch_size, saving.full_power_w)
    if value is None:
        return found
    if saving.kept and not saving.measured:
        found.text += " The default is estimated: it did not run on this slice of the data."
    if not saving.kept:
        amount = f"{cost_text(abs(value), cost.unit)} of {'time' if cost.unit == 's' else 'cost'}"
        return Verdict(kind="lost", word="Lost", text=f"It spent {amount} and left no model: all of it is lost.")
    explored = cost.exploration or 0.0
    if value < 0 and explored >= 0.05 * (cost.spent or 0.0):
        found.text += f" {cost_text(explored, cost.unit)} of what it spent was exploration and profiling."
    if below:
        found.text += " Its model is below the target."
    if silent:
        found.text += " It reported no metric, so whether its model reached the target is not known."
    return found


def run_tile(saving: RunSaving | None, source: Source, why_not: str = "") -> Tile:
    """The saving of a run with its interval, in the unit of its cost."""
    if saving is None:
        return missing_tile("Saving", why_not)
    tile = saved_tile(("Saving", "Loss", "Undecided"), saving.cost, source)
    if tile.figure.value is None:
        return tile
    if not saving.kept:
        tile.note, tile.kind = "no model", "bad"
        tile.figure.exact = f"spent {words.cost(saving.cost.spent or 0.0, saving.cost.unit).exact} for no model"
        return tile
    ends = (words.cost(v or 0.0, saving.cost.unit).exact for v in (saving.cost.baseline.value, saving.cost.spent))
    tile.figure.exact = "the default's {} minus its own {}".format(*ends)
    return tile
