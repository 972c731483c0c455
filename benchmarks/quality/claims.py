"""A published figure beside ours: one row of ``docs/evidence/reproduction.md``,
and whether the two agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.plots import name_of
from benchmarks.replays import UPSTREAM
from benchmarks.report import table

POLICIES = {
    UPSTREAM: "public algorithm",
    "zeus": "paper's policy",
    "knowledge_gradient": "default policy",
}


class Measured(NamedTuple):
    """Our figure with the ends of its 95 % interval, in the unit of its claim."""

    value: float
    low: float
    high: float
    note: str = ""  # the workload, say


class Claim(NamedTuple):
    """One published figure.

    :param published: a number in ``unit``, or words where the paper gives none.
    :param ours: by policy, or under the key ``data`` where no policy has a part in it.
    :param why: what is said where the published number lies outside an interval.
    """

    what: str
    published: float | str
    ours: Mapping[str, Measured]
    unit: str = "%"
    why: str = ""
    digits: int = 1

    def differs(self) -> list[str]:
        """Policies whose interval does not hold the published number as it was rounded."""
        if isinstance(self.published, str):
            return []
        half = 0.5 * 10.0**-self.digits + 1e-9
        return [
            p for p, m in self.ours.items() if not m.low - half <= self.published <= m.high + half
        ]


def cell(claim: Claim, key: str) -> str:
    """A figure of ours, bold where the published one lies outside its interval."""
    if key not in claim.ours:
        return ""
    m = claim.ours[key]
    digits = claim.digits
    text = number(m.value, claim.unit, digits)
    if m.high - m.low > 1e-9:
        text += f" [{plain(m.low, claim.unit, digits)}, {plain(m.high, claim.unit, digits)}]"
    text = f"**{text}**" if key in claim.differs() else text
    return f"{text}, {m.note}" if m.note else text


def plain(value: float, unit: str, digits: int) -> str:
    """A number, with its sign where it is a change."""
    text = f"{value:+.{digits}f}" if unit == "%" else f"{value:,.{digits}f}"
    return text.replace("-", "−") if float(f"{value:.{digits}f}") else text.lstrip("+-")


def number(value: float, unit: str, digits: int) -> str:
    """A number with its unit."""
    return f"{plain(value, unit, digits)} {unit}".rstrip()


def lines_of(claims: Sequence[Claim]) -> list[str]:
    """A table, and a sentence for each claim that differs; claims with the same one share it."""
    keys = [key for key in ("data", *POLICIES) if any(key in c.ours for c in claims)]
    head = [
        "figure",
        "published",
        *({"data": "here", **POLICIES}[key] for key in keys),
    ]
    given = (
        c.published if isinstance(c.published, str) else number(c.published, c.unit, c.digits)
        for c in claims
    )
    rows = [
        [c.what, of, *(cell(c, key) for key in keys)] for c, of in zip(claims, given, strict=True)
    ]
    apart: dict[str, list[str]] = {}
    for c in claims:
        if c.differs():
            apart.setdefault(c.why, []).append(c.what)
    said = [f"- *{', '.join(what)}*: {why}" for why, what in apart.items()]
    return [*table(head, rows), *(["", "Differences:", "", *said] if said else [])]


# ---------------------------------------------------------------------- claims of replays
def change(figure: Sequence[float], note: str = "") -> Measured:
    """[mean, half of ci95] of a multiple of the default, as a change in %."""
    mean, half = figure
    return Measured(100 * (mean - 1), 100 * (mean - half - 1), 100 * (mean + half - 1), note)


def interval(figure: Sequence[float], note: str = "") -> Measured:
    """[value, low, high]."""
    value, low, high = figure
    return Measured(value, low, high, note)


def extremes(
    report: Mapping[str, Any], gpu: str, figure: str, *, most: bool
) -> dict[str, Measured]:
    """The workload with the greatest (or least) change of one figure on a GPU, by policy."""
    found = {}
    for policy in POLICIES:
        pairs = {
            p: of[policy][figure] for p, of in report["pairs"].items() if p.endswith(f"/{gpu}")
        }
        pair = (max if most else min)(pairs, key=lambda p: pairs[p][0])
        found[policy] = change(pairs[pair], name_of(pair.partition("/")[0]))
    return found
