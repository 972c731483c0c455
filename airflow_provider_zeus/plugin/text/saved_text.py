"""Savings and losses of runs in words, the same on all pages. A loss reads as a saving does.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.estimate import SURE, Estimate
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.plugin.answer_parts import Answer, Figure, Tile
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.reports.baseline import OLD, Saved
from airflow_provider_zeus.reports.dataset import ENERGY, RunTrials, total
from airflow_provider_zeus.reports.limit_profiles import SAME_W
from airflow_provider_zeus.reports.run_figures import RunSaving
from airflow_provider_zeus.reports.savings import Savings
from airflow_provider_zeus.units import counted, energy_text, share_text, time_text

# Energy and time, weighed: a share alone, since its joules would be taken for energy.
TOGETHER = "Together"
EARLY = 3  # the interval of two runs is so wide that any verdict would change with the next one
VERDICTS = ("saved", "lost", "even")  # a sentence says “saved … but took …”, so savings come first
COLOURS = {"saved": "good", "lost": "bad"}
QUESTIONS = {"saved": "Saved", "lost": "Lost", "even": "Saved or lost"}

AmountText = Callable[[float], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A saving or a loss [J or s] in the words that all pages use for it.

    :param verb: "saved" or "lost" by the value alone; ``kind`` may also be "even".
    :param share: of the baseline, as "18 %"; empty if it is 0 or not known.
    :param between: the interval of the share, "12 to 24 %", or "3 % more to 5 % less" if it holds
        both; the share if it was measured.
    """

    verb: str
    kind: str  # even: the interval holds both, so nothing can be claimed
    amount: str
    share: str
    between: str
    interval: str

    @property
    def is_clear(self) -> bool:
        """Whether it is a saving or a loss for sure."""
        return self.kind != "even"

    @property
    def colour(self) -> str:
        """good | bad; empty: neither is clear."""
        return COLOURS.get(self.kind, "")

    @property
    def word(self) -> str:
        """The verdict in a word."""
        if not self.is_clear:
            return "Not clear yet"
        return self.verb.capitalize()

    @property
    def about(self) -> str:
        """The saving or loss begins so: "lost", or "lost about" if that is not clear."""
        if not self.is_clear:
            return f"{self.verb} about"
        return self.verb

    @property
    def text(self) -> str:
        """The saving or loss, with its interval."""
        return f"{self.about} {self.amount}, {self.interval}"

    @classmethod
    def of(
        cls, value: float, estimate: Estimate, text: AmountText, baseline: float | None = None
    ) -> Outcome:
        """``value``: that of the estimate, which is known and has an interval."""
        low, high = estimate.ends
        verb = "saved" if value >= 0 else "lost"
        kind = verb
        # An interval with both signs is no verdict, however far its middle is from 0.
        if value == 0 or low < 0 < high:
            kind = "even"
        share = ""
        between = ""
        # Without a baseline there is nothing to be a share of.
        if baseline:
            share = share_text(abs(value / baseline))
            between = _between(low, high, baseline - value, share)
        return cls(
            verb=verb,
            kind=kind,
            amount=text(abs(value)),
            share=share,
            between=between,
            interval=_interval(low, high, text, is_even=kind == "even"),
        )

    @classmethod
    def of_cost(cls, cost: Saved) -> Outcome:
        """The same of a cost whose saving is known."""
        value = cost.saved.value
        assert value is not None

        def text(amount: float) -> str:
            return words.cost(amount, cost.unit, value).text

        return cls.of(value, cost.saved, text, cost.baseline.value)


def _between(low: float, high: float, spent: float, share: str) -> str:
    """The interval of a share. ``spent``: which is known, since the doubt is about the default."""
    # A default that would have cost nothing has no share.
    if low == high or low + spent <= 0:
        return share
    # The doubt is about the default, so each end is a share of another cost of it.
    low_share = abs(low / (low + spent))
    high_share = abs(high / (high + spent))
    if low < 0 < high:
        return f"{share_text(low_share)} more to {share_text(high_share)} less"
    least = share_text(min(low_share, high_share))
    most = share_text(max(low_share, high_share))
    if least == most:
        return share
    return f"{least.removesuffix(' %')} to {most}"


def _interval(low: float, high: float, text: AmountText, *, is_even: bool) -> str:
    if low == high:
        return "measured"
    if is_even:
        return f"{SURE}: between a loss of {text(-low)} and a saving of {text(high)}"
    # A loss has its ends the other way round: texts tell the smaller one first.
    least = min(abs(low), abs(high))
    most = max(abs(low), abs(high))
    return f"{SURE}: {text(least)} to {text(most)}"


def share_of_cost(cost: Saved) -> str:
    """The saving or loss as a share of the default's cost, for example "18 % (12 to 24 %)".

    That is the amount if no share is known.
    """
    outcome = Outcome.of_cost(cost)
    if not outcome.share:
        return outcome.amount
    # An interval that says the same twice helps nobody.
    if outcome.between == outcome.share:
        return outcome.share
    return f"{outcome.share} ({outcome.between})"


def saved_sentence(
    subject: str, kinds: Mapping[str, Saved], beside: str, *, sure: bool = True
) -> str:
    """Savings and losses, each with how sure it is.

    For example "They saved 33 % of energy (90 % sure: 5 to 50 %) ...".

    :param kinds: energy and time. ``beside``: the name of the default.
    :param sure: whether to tell the intervals; else the doubt is told elsewhere.
    """
    texts: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS}
    how_sure = f"{SURE}: "  # said once: with each interval it would drown the figures
    for name, outcome in _in_order(kinds):
        text = _share_of(name, outcome)
        if sure and outcome.interval == "measured":
            text += " (measured)"
        elif sure:
            interval = outcome.between or outcome.interval.removeprefix(f"{SURE}: ")
            text += f" ({how_sure}{interval})"
            how_sure = ""
        texts[outcome.kind].append(text)
    saved, lost, even = (" and ".join(texts[verdict]) for verdict in VERDICTS)
    verbs = []
    against = "than"
    if saved:
        verbs.append(f"saved {saved}")
        against = "against"
    if lost:
        verbs.append(f"took {lost}")
    # Nothing is sure, so no verb may claim it.
    if not verbs:
        return f"Whether {subject} saved anything against {beside} is not clear yet: {even}"
    text = f"{words.sentence_case(subject)} {' but '.join(verbs)} {against} {beside}"
    if even:
        text += f"; {even} is not clear yet"
    return text


def _in_order(kinds: Mapping[str, Saved]) -> Iterator[tuple[str, Outcome]]:
    """Savings and losses as far as they are known, the savings first."""
    texts: dict[str, AmountText] = {"energy": energy_text, "time": time_text}
    outcomes = {
        name: Outcome.of(of.saved.value, of.saved, text=texts[name], baseline=of.baseline.value)
        for name, of in kinds.items()
        if of.saved.value is not None
    }
    yield from sorted(outcomes.items(), key=lambda item: VERDICTS.index(item[1].kind))


def _share_of(name: str, outcome: Outcome) -> str:
    """How much of it was saved or lost; its name alone if that is not clear."""
    if not outcome.is_clear:
        return name
    # A share is read more easily; an amount is always there.
    amount = outcome.share or outcome.amount
    if outcome.kind == "lost":
        return f"{amount} more {name}"
    return f"{amount} of {name}"


def in_all(kinds: Mapping[str, Saved], cost: Saved, weights: Weights) -> str:
    """Which of a saving and a loss weighs more: the end of :func:`saved_sentence`.

    Empty if there are not both.
    """
    verdicts = {of.saved.verdict for of in kinds.values()}
    # With one sign there is no doubt whether it pays.
    if weights.one_alone or verdicts != {"saved", "lost"}:
        return ""
    outcome = Outcome.of_cost(cost)
    if not outcome.is_clear:
        return f"; whether that pays, weighed {weights.split}, is not clear yet"
    verb = "saves" if outcome.kind == "saved" else "loses"
    return f"; weighed {weights.split}, that {verb} {share_of_cost(cost)}"


def amounts(cost: Saved, energy: Estimate, time: Estimate, spent_j: float | None = None) -> str:
    """Savings or losses of energy and time, in few words, as far as they are known.

    They stand beside the verdict on the cost, so only a verb that differs from it is named again.

    :param spent_j: energy that has the same unit.
    """
    verdict = Outcome.of_cost(cost).kind
    texts = []
    if energy.value is not None:
        outcome = Outcome.of(energy.value, energy, partial(energy_text, beside_j=spent_j))
        texts.append(_beside(verdict, outcome, "energy", amount=f"{outcome.amount} of energy"))
    if time.value is not None:
        outcome = Outcome.of(time.value, time, time_text)
        texts.append(_beside(verdict, outcome, "time", outcome.amount))
    # The column is narrow: an amount must not break from its unit.
    return ", ".join(text.replace(" ", "\u00a0") for text in texts)


def _beside(verdict: str, outcome: Outcome, name: str, amount: str) -> str:
    if not outcome.is_clear:
        return f"{name} not clear yet"
    # The column beside it says the verb already.
    if outcome.verb == verdict:
        return amount
    return f"{amount} {outcome.verb}"


class Took(NamedTuple):
    """Energy and time of runs; None: not known."""

    energy_j: float | None
    time_s: float | None

    @classmethod
    def in_all(cls, runs: Savings | RunSaving) -> Took:
        """With failed and cleared tries."""
        return cls(
            energy_j=total([runs.energy.spent, runs.aside.energy_j]),
            time_s=total([runs.time.spent, runs.aside.time_s]),
        )

    @property
    def text(self) -> str:
        """As far as it is known."""
        figures = ((self.energy_j, energy_text), (self.time_s, time_text))
        return " and ".join(text(value) for value, text in figures if value is not None)


def against(default: int) -> str:
    """The name of the default that runs are compared with, on all pages."""
    return f"always {default} at full power"


def in_words(default: int) -> str:
    """The same in the sentence that comes before it."""
    return f"always batch size {default} at full power"


class ShownSaving(NamedTuple):
    """A saving of cost, energy, time, money or carbon, as it is shown."""

    name: str
    saved: Estimate
    figure: Callable[[float], Figure]  # amounts have no sign: the word says "lost"
    baseline: float | None = None
    weights: Weights = ENERGY
    factor: float = 1.0
    # By waiting for a cheaper start: exact, since it is of the energy that was drawn.
    start: float = 0.0

    def text(self, amount: float) -> str:
        """An amount of it."""
        return self.figure(amount).text

    @property
    def outcome(self) -> Outcome | None:
        """None: it is not known."""
        if self.saved.value is None:
            return None
        return Outcome.of(self.saved.value, self.saved, text=self.text, baseline=self.baseline)


def saved_answer(
    about: str,
    savings: Sequence[ShownSaving],
    cost: Saved | None = None,
    weights: Weights = ENERGY,
    *,
    old: bool = False,
) -> Answer:
    """The card of savings and losses, each figure with its own verdict and interval.

    Its heading is the verdict on the cost, or on all figures if there is none.

    :param cost: of energy and time together, in a page whose sentence has the intervals; None: the
        card shows them.
    :param weights: how that cost weighs them.
    :param old: it is measured against a default that has not run for long, which ``about`` says.
    """
    verdict = _verdict(savings, cost)
    tiles = [_tile(saving, verdict, old=old, interval=cost is None) for saving in savings]
    # With one of them alone its own tile says the same.
    if cost is not None and not weights.one_alone:
        tiles += _together(cost, weights, old=old)
    return Answer(question=QUESTIONS[verdict], about=about, figures=tiles)


def _verdict(savings: Sequence[ShownSaving], cost: Saved | None) -> str:
    # The heading is about the cost, by which the policy chooses; energy alone may say otherwise.
    if cost is not None and cost.saved.value:
        return Outcome.of_cost(cost).kind
    outcomes = [saving.outcome for saving in savings]
    # One that saves and one that loses have no common verdict.
    clear = {outcome.kind for outcome in outcomes if outcome is not None} - {"even"}
    if len(clear) == 1:
        return clear.pop()
    return "even"


def _tile(saving: ShownSaving, verdict: str, *, old: bool, interval: bool) -> Tile:
    """``interval``: it is shown."""
    outcome = saving.outcome
    value = saving.saved.value
    if outcome is None or value is None:
        why = saving.saved.reason or ""
        return Tile(name=saving.name, figure=words.missing(why), note=f"not known: {why}")
    text = outcome.amount
    if not outcome.is_clear:
        text = "not clear yet"
    elif outcome.kind != verdict:
        text = f"{outcome.verb} {outcome.amount}"
    exact = f"{outcome.about} {saving.figure(abs(value)).exact}; {outcome.interval}"
    return Tile(
        name=saving.name,
        figure=Figure(value=value, text=text, exact=exact),
        note=outcome.between if interval else "",
        kind=_colour(outcome, old=old),
    )


def _colour(outcome: Outcome, *, old: bool) -> str:
    """Of a verdict; one against an old default is a warning."""
    if old and outcome.is_clear:
        return "warn"
    return outcome.colour


def _together(cost: Saved, weights: Weights, *, old: bool) -> list[Tile]:
    """The share of energy and time, weighed; empty if it is not known, or nothing was saved."""
    if not cost.saved.value:
        return []
    outcome = Outcome.of_cost(cost)
    exact = f"{outcome.verb} {share_of_cost(cost)}; {words.cost_rule(weights)}"
    text = "not clear yet"
    if outcome.is_clear:
        text = outcome.share or outcome.word
    return [
        Tile(
            name=TOGETHER,
            figure=Figure(value=cost.saved.value, text=text, exact=exact),
            note=f"weighed {weights.split}",
            kind=_colour(outcome, old=old),
        )
    ]


class NotCompared(NamedTuple):
    """Why a job is not compared with its default."""

    word: str
    why: str


def not_compared(savings: Savings) -> NotCompared | None:
    """Why a job is not compared with its default; None if it is."""
    saved = savings.cost.saved
    default = savings.default_batch_size
    # Such a job saved exactly nothing, which an interval around 0 would hide.
    if saved.low == saved.high == 0 or _ran_default_alone(savings):
        # Other sizes may have run and left nothing: "ran" would deny them.
        did = "ran"
        if any(trial.batch_size not in (None, default) for trial in trials_of(savings)):
            did = "left a model"
        why = f"so far only {default}, the default, {did}, at full power: nothing to compare"
        return NotCompared("Not exploring yet", why)
    if saved.value is None:
        return NotCompared("Not known", saved.reason or "")
    if savings.runs < EARLY:
        return NotCompared("Too early", f"too early to compare: that takes {EARLY} runs")
    if savings.base.doubt:
        return NotCompared("Not clear yet", f"not clear yet: {savings.base.doubt}")
    return None


def trials_of(savings: Savings) -> list[Trial]:
    """The attempts of all its runs."""
    return list(chain.from_iterable(step.run.trials for step in savings.steps))


def _ran_default_alone(savings: Savings) -> bool:
    """Whether each run trained the default at full power."""
    trials = trials_of(savings)
    # A run that was skipped saved the default's whole cost.
    if any(step.run.not_needed for step in savings.steps):
        return False
    full_w = savings.full_power_w or 0.0
    for trial in trials:
        # A warm start of the default is cheaper than the default itself.
        if trial.generations or trial.batch_size != savings.default_batch_size:
            return False
        limit_w = trial.observation.power_limit_w
        if limit_w and limit_w < full_w - SAME_W:
            return False
    return bool(trials)


class JobWord(NamedTuple):
    """The verdict on a job. ``colour``: good, bad or warn; empty: neither is known."""

    text: str
    colour: str


def job_word(savings: Savings) -> JobWord:
    """The verdict on a job in a word."""
    reason = not_compared(savings)
    if reason is not None:
        return JobWord(reason.word, "")
    outcome = Outcome.of_cost(savings.cost)
    return JobWord(outcome.word, _colour(outcome, old=outdated(savings) > 0))


def outdated(savings: Savings | RunSaving) -> int:
    """How many of the runs are measured against an old default.

    It has not run since the data changed, or for long.
    """
    since = savings.base.old_since
    if since is None:
        return 0
    if isinstance(savings, RunSaving):
        return _since(savings.runs, since)
    return _since([step.run for step in savings.steps], since)


def _since(runs: Sequence[RunTrials], number: int) -> int:
    """How many runs ended from an attempt on."""
    return sum(run.trials[-1].number >= number for run in runs)


def compared(savings: Savings, weights: Weights) -> str:
    """Energy and time of a job beside those of its default at full power, in a sentence."""
    reason = not_compared(savings)
    if reason is not None:
        if reason.word == "Not known":
            return "What was saved is not known"
        return words.sentence_case(reason.why)
    kinds = {"energy": savings.energy, "time": savings.time}
    beside = in_words(savings.default_batch_size)
    if outdated(savings):
        # The intervals know nothing of how the data may have moved since the default ran.
        text = saved_sentence("they", kinds, beside, sure=False)
        return f"{text}; that is not sure, but {OLD} it"
    text = saved_sentence("they", kinds, beside) + in_all(kinds, savings.cost, weights)
    return text + lower_bound(savings)


def lower_bound(of: Savings | RunSaving) -> str:
    """That at least so much was saved, since the default was given up; empty if it was not."""
    # A lower bound of a loss would be no comfort.
    is_saved = of.cost.saved.verdict == "saved"
    if not is_saved or not of.base.at_least:
        return ""
    default = of.default_batch_size
    return f"; the saving is at least so much, since {default} was given up when it ran again"


def how_sure(text: str) -> str:
    """The words of a :func:`saved_sentence` that say how sure it is; empty if none do."""
    for phrase in (f"{OLD} it", SURE, "measured", "not clear yet"):
        if phrase in text:
            return phrase
    return ""


def intervals(savings: Savings) -> str:
    """Each saving or loss of :func:`compared` with its interval; empty if nothing is compared."""
    if not_compared(savings) is not None:
        return ""
    texts = known_outcomes({"energy": savings.energy, "time": savings.time})
    saved = savings.cost.saved
    # A reader takes a figure for a measurement unless told otherwise.
    if savings.measured < savings.runs and saved.low != saved.high:
        ran = f"{savings.measured:,} of {counted(savings.runs, 'run')}"
        old = outdated(savings)
        if old:
            ran += f", in none of the newest {old:,}"
        texts.append(f"estimated, not trained: the default itself ran in {ran}")
    return f"{words.sentence_case('; '.join(texts))}."


def known_outcomes(kinds: Mapping[str, Saved]) -> list[str]:
    """Each saving or loss that is known, with its interval."""
    costs = [(name, of) for name, of in kinds.items() if of.saved.value is not None]
    return [f"{name} {Outcome.of_cost(of).text}" for name, of in costs]


def paid_off(savings: Savings, *, all_of: bool = True) -> str:
    """The cost of exploration, and when the savings made up for it.

    :param all_of: the log holds no older runs.
    """
    if not_compared(savings) is not None:
        return ""
    cost = savings.cost
    spent = ""
    if cost.spent and cost.exploration is not None:
        spent = f"{explored(cost)} of the cost so far was exploration. "
    if cost.saved.verdict == "undecided":
        return f"{spent}Whether it has paid off is not clear yet."
    run = savings.break_even_run
    if run is None:
        return f"{spent}{_expected(savings)}."
    since = "From the start"
    # "From run 1 on" reads as if there had been a time before.
    if run > 1:
        runs = f"{savings.runs:,}"
        if not all_of:
            runs = f"the newest {runs}"
        since = f"From run {run:,} of {runs} on"
    return f"{spent}{since} the sum stays at or below the default's."


def lost_by_tries(savings: Savings) -> str:
    """How many attempts at other sizes the runs paid for in vain, and when that pays off.

    Empty if there are none.
    """
    cost = savings.cost
    if not_compared(savings) is not None:
        return ""
    # A saving needs no excuse.
    is_lost = cost.saved.value is not None and cost.saved.value < 0
    if not is_lost or not cost.exploration:
        return ""
    compared_trials = chain.from_iterable(step.run.compared for step in savings.steps)
    default = savings.default_batch_size
    tries = sum(trial.planned.tried and trial.batch_size != default for trial in compared_trials)
    if not tries:
        return ""
    which = "1 attempt at another size"
    if tries > 1:
        which = f"{tries:,} attempts at other sizes"
    return f"{explored(cost)} of the cost was {which} and profiling. {_expected(savings)}."


def _expected(savings: Savings) -> str:
    """When a loss is expected back, or that it is not."""
    further = savings.break_even_in
    if further is not None:
        return f"It pays off in {counted(further, 'more run')} if each saves what is expected now"
    saved = savings.per_run
    if saved.value is None or (saved.high or 0.0) > 0:
        return (
            "When it pays off is not known: whether a further run saves anything is not clear yet"
        )
    return "It does not pay off as it stands: a further run saves nothing"


def explored(cost: Saved) -> str:
    """Exploration as a share of a cost."""
    return words.share((cost.exploration or 0.0) / (cost.spent or 1.0)).text
