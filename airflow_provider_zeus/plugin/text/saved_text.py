"""What runs saved or lost, in words, the same on all pages. A loss reads as a saving does. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import SURE, Estimate
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.views.models import Answer, Figure, Tile
from airflow_provider_zeus.reports.baseline import OLD, Saved
from airflow_provider_zeus.reports.dataset import ENERGY
from airflow_provider_zeus.reports.limit_profiles import SAME_W
from airflow_provider_zeus.reports.run_figures import RunSaving
from airflow_provider_zeus.reports.savings import Savings
from airflow_provider_zeus.units import counted, energy_text, share_text, time_text

TOGETHER = "Together"  # energy and time, weighed: a share alone, since its joules would be taken for energy
EARLY = 3  # runs of a job below which it is not compared with its default


@dataclass(frozen=True, slots=True)
class Outcome:
    """A saving or a loss [J or s] in the words that all pages use for it."""

    verb: str  # saved | lost: by the value alone
    kind: str  # saved | lost | even: the interval holds a saving and a loss, or the value is 0
    colour: str  # good | bad; empty: neither is clear
    amount: str
    share: str  # "18 %" of the baseline; empty where that is 0 or not known
    between: (
        str  # "12 to 24 %": the interval of the share, "3 % more to 5 % less" if it holds both; the share if measured
    )
    interval: str  # 90 % interval, or that it was measured

    @property
    def word(self) -> str:
        """The verdict in a word."""
        return "Not clear yet" if self.kind == "even" else self.verb.capitalize()

    @property
    def text(self) -> str:
        """What was saved or lost, with its interval."""
        return f"{self.verb} {'about ' * (self.kind == 'even')}{self.amount}, {self.interval}"

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
            interval = f"{SURE}: between a loss of {text(-low)} and a saving of {text(high)}"
        else:
            least, most = sorted((abs(low), abs(high)))
            interval = f"{SURE}: {text(least)} to {text(most)}"
        colour = {"saved": "good", "lost": "bad", "even": ""}[kind]
        part = abs(value / baseline) if baseline else 0.0
        share = share_text(part) if baseline else ""
        between, spent = share, (baseline or 0.0) - value  # which is known: the doubt is about the default
        if baseline and low != high and low + spent > 0:  # the ends as shares of what the default would have taken then
            ends = [abs(end / (end + spent)) for end in (low, high)]
            least_part, most_part = (share_text(end) for end in sorted(ends))
            if low < 0 < high:
                between = f"{share_text(ends[0])} more to {share_text(ends[1])} less"
            elif least_part != most_part:
                between = f"{least_part.removesuffix(' %')} to {most_part}"
        return cls(verb, kind, colour, text(abs(value)), share, between, interval)

    @classmethod
    def of_cost(cls, cost: Saved) -> Outcome:
        """The same of a cost whose saving is known."""
        value = cost.saved.value
        assert value is not None
        return cls.of(value, cost.saved, lambda v: words.cost(v, cost.unit, value).text, cost.baseline.value)


def share_of_cost(cost: Saved) -> str:
    """What was saved or lost of the default's cost, "18 % (12 to 24 %)"; the amount where no share is known."""
    found = Outcome.of_cost(cost)
    between = f" ({found.between})" if found.between != found.share else ""
    return f"{found.share}{between}" if found.share else found.amount


def saved_sentence(subject: str, kinds: Mapping[str, Saved], beside: str, *, sure: bool = True) -> str:
    """What was saved and lost, each with how sure that is: "They saved 33 % of energy (90 % sure: 5 to 50 %) ...".

    :param kinds: energy and time. ``beside``: what they are compared with.
    :param sure: whether to tell the intervals; else the doubt is told elsewhere.
    """
    texts: dict[str, Callable[[float], str]] = {"energy": energy_text, "time": time_text}
    sures = iter([f"{SURE}: "])  # it is said once, with what is told first
    parts: dict[str, list[str]] = {"saved": [], "lost": [], "even": []}
    outcomes = [
        (name, Outcome.of(of.saved.value, of.saved, texts[name], of.baseline.value))
        for name, of in kinds.items()
        if of.saved.value is not None
    ]
    for name, out in sorted(outcomes, key=lambda found: [*parts].index(found[1].kind)):
        amount = {"saved": f"{out.share or out.amount} of {name}", "lost": f"{out.share or out.amount} more {name}"}
        exact = out.interval == "measured"
        doubt = "measured" if exact else next(sures, "") + (out.between or out.interval.removeprefix(f"{SURE}: "))
        parts[out.kind].append(amount.get(out.kind, name) + f" ({doubt})" * sure)
    saved, lost, even = (" and ".join(found) for found in parts.values())
    if not saved and not lost:
        return f"Whether {subject} saved anything against {beside} is not clear yet: {even}"
    told = " but ".join(filter(None, (saved and f"saved {saved}", lost and f"took {lost}")))
    unclear = f"; {even} is not clear yet" if even else ""
    return f"{subject[0].upper()}{subject[1:]} {told} {'against' if saved else 'than'} {beside}{unclear}"


def in_all(kinds: Mapping[str, Saved], cost: Saved, weights: Weights) -> str:
    """Which of a saving and a loss weighs more: the end of :func:`saved_sentence`; empty where there are not both."""
    if {of.saved.verdict for of in kinds.values()} != {"saved", "lost"} or weights.one_alone:
        return ""
    found = Outcome.of_cost(cost)
    if found.kind == "even":
        return f"; whether that pays, weighed {weights.split}, is not clear yet"
    return f"; weighed {weights.split}, that {'saves' if found.kind == 'saved' else 'loses'} {share_of_cost(cost)}"


def amounts(cost: Saved, energy: Estimate, time: Estimate, spent_j: float | None = None) -> str:
    """What was saved or lost in energy and time, in few words, where both the cost and they are known.

    Beside the verdict on the cost: only what differs from it is named again. ``spent_j``: has the unit of the energy.
    """
    verdict = Outcome.of_cost(cost).kind
    told = []
    for name, saved, text in (("energy", energy, partial(energy_text, beside_j=spent_j)), ("time", time, time_text)):
        if saved.value is not None:
            one = Outcome.of(saved.value, saved, text)
            of = " of energy" if name == "energy" else ""
            amount = f"{one.amount}{of}" if one.verb == verdict else f"{one.amount}{of} {one.verb}"
            told.append((f"{name} not clear yet" if one.kind == "even" else amount).replace(" ", "\u00a0"))
    return ", ".join(told)


def against(default: int) -> str:
    """The name of what runs are compared with, on all pages."""
    return f"always {default} at full power"


def in_words(default: int) -> str:
    """The same in the sentence that comes before it."""
    return f"always batch size {default} at full power"


class Told(NamedTuple):
    """A saving of cost, energy, time, money or carbon, as it is shown."""

    name: str
    saved: Estimate
    figure: Callable[[float], Figure]  # of an amount of at least 0
    baseline: float | None = None  # what the saving is a share of
    weights: Weights = ENERGY  # of energy and time in it, against the default
    factor: float = 1.0  # from their unit to its own
    start: float = 0.0  # of it by waiting for a cheaper start: exact, since it is of the energy that was drawn


def saved_answer(
    about: str, told: Sequence[Told], cost: Saved | None = None, weights: Weights = ENERGY, *, old: bool = False
) -> Answer:
    """The card of what was saved or lost, each figure with its own verdict and its interval on hover.

    Its heading is the verdict on the cost, or on all figures where there is none.

    :param cost: of energy and time together, in a page whose sentence has the intervals; None: the card shows them.
    :param weights: how that cost weighs them.
    :param old: it is measured against a default that has not run for long, which ``about`` says.
    """

    def outcome(of: Told) -> Outcome | None:
        value = of.saved.value
        return None if value is None else Outcome.of(value, of.saved, lambda v: of.figure(v).text, of.baseline)

    outcomes = [outcome(of) for of in told]
    clear = {found.kind for found in outcomes if found} - {"even"}
    verdict = Outcome.of_cost(cost).kind if cost and cost.saved.value else clear.pop() if len(clear) == 1 else "even"
    tiles = []
    for of, found in zip(told, outcomes, strict=True):
        if found is None:
            why = of.saved.reason or ""
            tiles.append(Tile(name=of.name, figure=words.missing(why), note=f"not known: {why}"))
            continue
        value, even = of.saved.value or 0.0, found.kind == "even"
        text = "not clear yet" if even else found.amount if found.kind == verdict else f"{found.verb} {found.amount}"
        exact = f"{found.verb} {'about ' * even}{of.figure(abs(value)).exact}; {found.interval}"
        figure = Figure(value=value, text=text, exact=exact)
        colour = "warn" if old and found.colour else found.colour
        tiles.append(Tile(name=of.name, figure=figure, note="" if cost else found.between, kind=colour))
    if cost and not weights.one_alone:
        tiles += _together(cost, weights, old=old)
    question = {"saved": "Saved", "lost": "Lost", "even": "Saved or lost"}[verdict]
    return Answer(question=question, about=about, figures=tiles)


def _together(cost: Saved, weights: Weights, *, old: bool) -> list[Tile]:
    """The share of energy and time, weighed; empty where it is not known, or nothing was saved."""
    if not cost.saved.value:
        return []
    found = Outcome.of_cost(cost)
    colour = "warn" if old and found.colour else found.colour
    exact = f"{found.verb} {share_of_cost(cost)}; {words.cost_rule(weights)}"
    text = "not clear yet" if found.kind == "even" else found.share or found.word
    return [
        Tile(
            name=TOGETHER,
            figure=Figure(value=cost.saved.value, text=text, exact=exact),
            note=f"weighed {weights.split}",
            kind=colour,
        )
    ]


def not_compared(savings: Savings) -> tuple[str, str]:
    """The word where a job is not compared with its default, and why; both empty where it is."""
    saved, default, full_w = savings.cost.saved, savings.default_batch_size, savings.full_power_w or 0.0
    trials = [t for step in savings.steps for t in step.run.trials]
    if saved.low == saved.high == 0 or (
        trials
        and not any(step.run.not_needed for step in savings.steps)
        and all(t.batch_size == default and (t.observation.power_limit_w or full_w) >= full_w - SAME_W for t in trials)
        and not any(t.generations for t in trials)
    ):
        return "Not exploring yet", f"so far only {default}, the default, ran, at full power: nothing to compare"
    if saved.value is None:
        return "Not known", saved.reason or ""
    if savings.runs < EARLY:
        return "Too early", f"too early to compare: that takes {EARLY} runs"
    return "", ""


def job_word(savings: Savings) -> tuple[str, str]:
    """The verdict on a job in a word, and its colour."""
    word, _ = not_compared(savings)
    if word:
        return word, ""
    found = Outcome.of_cost(savings.cost)
    colour = "warn" if found.colour and outdated(savings) else found.colour
    return found.word, colour


def outdated(found: Savings | RunSaving) -> int:
    """How many of the runs are measured against a default that has not run since the data changed, or for long."""
    runs = found.runs if isinstance(found, RunSaving) else [step.run for step in found.steps]
    since = found.base.old_since
    return sum(since is not None and run.trials[-1].number >= since for run in runs)


def compared(savings: Savings, weights: Weights) -> str:
    """Energy and time of a job beside those of its default at full power, in a sentence."""
    word, why = not_compared(savings)
    if word:
        why = "what was saved is not known" if word == "Not known" else why
        return f"{why[0].upper()}{why[1:]}"
    old, kinds = bool(outdated(savings)), {"energy": savings.energy, "time": savings.time}
    text = saved_sentence("they", kinds, in_words(savings.default_batch_size), sure=not old)
    return text + (f"; that is not sure, but {OLD} it" if old else in_all(kinds, savings.cost, weights))


def how_sure(text: str) -> str:
    """The words of a sentence by :func:`saved_sentence` that say how sure it is; empty where it has none."""
    return next((words for words in (f"{OLD} it", SURE, "measured", "not clear yet") if words in text), "")


def intervals(savings: Savings) -> str:
    """What stands behind :func:`compared`: each saving or loss with its interval; empty where nothing is compared."""
    if not_compared(savings)[0]:
        return ""
    cost, kinds = savings.cost, (("energy", savings.energy), ("time", savings.time))
    texts = [f"{name} {Outcome.of_cost(saved).text}" for name, saved in kinds if saved.saved.value is not None]
    if cost.saved.low != cost.saved.high and savings.measured < savings.runs:
        ran = f"{savings.measured:,} of {counted(savings.runs, 'run')}"
        since = f", in none of the newest {old:,}" if (old := outdated(savings)) else ""
        texts.append(f"estimated, not trained: the default itself ran in {ran}{since}")
    found = "; ".join(texts)
    return f"{found[0].upper()}{found[1:]}."


def paid_off(savings: Savings, *, all_of: bool = True) -> str:
    """What exploration cost, and when the savings made up for it. ``all_of``: the log holds no older runs."""
    if not_compared(savings)[0]:
        return ""
    cost, run, further = savings.cost, savings.break_even_run, savings.break_even_in
    low, high, each = cost.saved.low or 0.0, cost.saved.high or 0.0, savings.per_run
    spent = (
        "" if cost.exploration is None or not cost.spent else f"{explored(cost)} of the cost so far was exploration. "
    )
    if low < 0 < high:
        return f"{spent}Whether it has paid off is not clear yet."
    if run is not None:
        which = f"{'' if all_of else 'the newest '}{savings.runs:,}"
        since = "From the start" if run == 1 else f"From run {run:,} of {which} on"
        return f"{spent}{since} the sum stays at or below the default's."
    if further is not None:
        return f"{spent}It pays off in {counted(further, 'more run')} if each saves what is expected now."
    if each.value is not None and (each.high or 0.0) <= 0:
        return f"{spent}It does not pay off as it stands: a further run saves nothing."
    return f"{spent}When it pays off is not known: whether a further run saves anything is not clear yet."


def explored(cost: Saved) -> str:
    """Exploration as a share of a cost."""
    return words.share((cost.exploration or 0.0) / (cost.spent or 1.0)).text
