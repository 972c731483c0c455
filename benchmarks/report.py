"""Figures with their intervals, as text and in tables, and the files that a report is written to.

A ratio of two policies' regrets has a 95 % interval (delta method on the logarithm, paired by
seed). Under common random numbers both policies are lucky in the same seeds, so a ratio of means is
known better than either mean. With a, b the two per seed: the variance of log(mean a / mean b) is
that of a / mean a - b / mean b, over the number of seeds. The same batch size draws the same
numbers in every scenario, so a geometric mean over scenarios is paired by seed as well. Few seeds
know their own scatter badly: intervals are Student's.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

# of 1 to 9 degrees of freedom
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
LEAST = 1e-6  # of a mean regret [C*], so that it has a logarithm


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % confidence interval of a mean; one value shows no spread: 0."""
    if len(values) < 2:
        return 0.0
    return student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def student(free: int) -> float:
    """The 97.5 % quantile of Student's t (Cornish and Fisher's series,
    within 0.001 from 10 degrees of freedom on).
    """
    if free <= len(_T):
        return _T[free - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return math.fsum(term / free**i for i, term in enumerate(terms))


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of means; ``pulls``, one per seed, are by how much each seed pulls its logarithm."""

    value: float
    pulls: tuple[float, ...]

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval.

        One seed shows no spread: the interval is the ratio itself.
        """
        return self.value * math.exp(-half_width(self.pulls))

    @property
    def high(self) -> float:
        """Upper end."""
        return self.value * math.exp(half_width(self.pulls))

    def to_json(self) -> list[float]:
        """[ratio, lower end, upper end]."""
        return [self.value, self.low, self.high]


def ratio_of(ours: Sequence[float], theirs: Sequence[float], floor: float = LEAST) -> Ratio:
    """Mean of ``ours`` over the mean of ``theirs``, seed by seed alike.

    :param floor: the least that either mean counts as,
        where a ratio to or of next to nothing would say nothing.
    """
    above = max(statistics.fmean(ours), floor)
    below = max(statistics.fmean(theirs), floor)
    pulls = (a - b for a, b in zip(_pulls(ours, floor), _pulls(theirs, floor), strict=True))
    return Ratio(above / below, tuple(pulls))


def _pulls(values: Sequence[float], floor: float) -> list[float]:
    """Each value over their mean; a mean that is raised to the floor is pulled by nothing."""
    mean = statistics.fmean(values)
    return [0.0] * len(values) if mean < floor else [v / mean for v in values]


def geomean_of(ratios: Iterable[Ratio]) -> Ratio:
    """Geometric mean of ratios over the same seeds."""
    found = list(ratios)
    mean = math.exp(statistics.fmean(math.log(r.value) for r in found))
    return Ratio(
        mean,
        tuple(statistics.fmean(pulls) for pulls in zip(*(r.pulls for r in found), strict=True)),
    )


def mean_of(ratios: Iterable[Ratio]) -> Ratio:
    """Arithmetic mean of ratios over the same seeds."""
    found = list(ratios)
    mean = statistics.fmean(r.value for r in found)
    by_seed = zip(*(r.pulls for r in found), strict=True)
    pulls = (
        statistics.fmean(r.value * p for r, p in zip(found, of, strict=True)) / mean
        for of in by_seed
    )
    return Ratio(mean, tuple(pulls))


def mean_and_worst(
    ratios: Mapping[str, Ratio], mean: Callable[[Iterable[Ratio]], Ratio]
) -> dict[str, Any]:
    """Ratios by case as JSON: their mean, and the highest with the name of its case."""
    worst = max(ratios, key=lambda name: ratios[name].value)
    return {
        "mean": mean(ratios.values()).to_json(),
        "worst_case": worst,
        "worst": ratios[worst].to_json(),
    }


def mean_ci(values: Sequence[float]) -> list[float]:
    """[mean, half the width of its 95 % confidence interval]."""
    return [statistics.fmean(values), half_width(values)]


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(mean, lower and upper end of its 95 % confidence interval)."""
    mean, half = mean_ci(values)
    return mean, mean - half, mean + half


# ---------------------------------------------------------------------- as text
def plus_minus(figure: Sequence[float], form: str = ".2f") -> str:
    """[mean, half of its interval]."""
    return f"{figure[0]:{form}}±{figure[1]:{form.lstrip('+')}}"


def change(ratio: Sequence[float]) -> str:
    """[ratio, low, high] as the change that it is, in percent."""
    return f"{100 * (ratio[0] - 1):+.1f}"


def change_interval(ratio: Sequence[float]) -> str:
    """The same with its interval, if that has a width at these digits."""
    low, high = (f"{100 * (r - 1):+.1f}" for r in ratio[1:])
    return change(ratio) if low == high else f"{change(ratio)} [{low}, {high}]"


def percent(ratio: Sequence[float]) -> str:
    """The same with its unit, for sentences."""
    low, high = (100 * (r - 1) for r in ratio[1:])
    return f"{change(ratio)} % [{low:+.1f}, {high:+.1f}]"


def bold(text: str, ratio: Sequence[float]) -> str:
    """The text of a ratio, bold if it is surely dearer."""
    return f"**{text}**" if ratio[1] > 1 else text


def table(head: Sequence[str] | str, rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table.

    ``head``: a name for each column, or all of them as in the table.
    """
    names = head.split(" | ") if isinstance(head, str) else head
    head_line, *row_lines = (f"| {' | '.join(row)} |" for row in (names, *rows))
    return [head_line, "|---" * len(names) + "|", *row_lines]


def table_of(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The same of records: ``columns`` has the text of each cell below its head,
    as ``{name:.2f}``.
    """
    return table(list(columns), [[text.format(**row) for text in columns.values()] for row in rows])


# ---------------------------------------------------------------------- in files
def write_report(
    out: Path, report: Mapping[str, Any] | Sequence[Any], text: str, name: str = "report"
) -> None:
    """``report.json`` and ``report.md``, or files of another name, in a folder, which is made."""
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / f"{name}.json", report)
    (out / f"{name}.md").write_text(text)


def write_json(path: Path | None, report: Mapping[str, Any] | Sequence[Any]) -> None:
    """A file of figures, where one is wanted."""
    if path is not None:
        path.write_text(json.dumps(report, indent=1) + "\n")


def fill_in(page: str, words: Mapping[str, str], lines: Mapping[str, Sequence[str]]) -> str:
    """A page of the docs: its text in ``data/`` with words and lines where ``$name`` stands."""
    text = (Path(__file__).with_name("data") / f"{page}.md").read_text(encoding="utf-8")
    return Template(text).substitute(words, **{name: "\n".join(of) for name, of in lines.items()})
