"""The page from the paper to the functions: which code names which equation,
algorithm or section in its docstring.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from docs_site import ROOT
from docs_site.tables import code, sentence, table

HEAD = """# From the paper to the functions

You, Chung, Chowdhury: *Zeus: Understanding and Optimizing GPU Energy Consumption of DNN Training*, NSDI 2023. Each
function that computes something of the paper names the place in its docstring; this page is read off these docstrings.
What differs from the paper and why: [the policy `"zeus"`](../policy.md#what-differs-from-the-paper-and-why). The
equations of the default policy have numbers of their own: [knowledge gradient](../knowledge-gradient.md).
"""
WHAT = {
    "Eq. 1": "energy of a run",
    "Eq. 2": "cost of a run",
    "Eq. 3": "cost of a run by its mean power",
    "Eq. 5": "the cost as Epochs x EpochCost",
    "Eq. 6": "the cost as Epochs x EpochCost",
    "Eq. 7": "EpochCost at the best power limit",
    "Eq. 9": "regret",
    "Algorithm 1": "Thompson sampling: which batch size runs",
    "Algorithm 2": "Thompson sampling: what a result teaches",
    "Algorithm 3": "pruning exploration",
    "Section 2.3": "energy against time",
    "Section 3": "the two decisions",
    "Section 3.2": "how much runs differ",
    "Section 4": "the algorithms",
    "Section 4.2": "power limits, profiled while a run trains",
    "Section 4.3": "Thompson sampling over batch sizes",
    "Section 4.4": "early stopping, concurrent runs, drift of the data",
    "Section 5": "the implementation",
    "Section 6.1": "the evaluation: workloads, baselines, oracle",
    "Section 6.2": "the evaluation: recurring jobs",
    "Section 7": "other GPUs",
}
_PLACES = re.compile(
    r"(?P<kind>Eq\. |Algorithms? |[Ss]ections? )(?P<numbers>\d+(?:\.\d+)?(?:(?:, | to | and"
    r" )\d+(?:\.\d+)?)*)"
)


def page() -> str:
    """A table for each place of the paper that the code names."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, text in docstrings():
        for place in places(text):
            found[place].append((name, text))
    parts = [HEAD]
    for place in sorted(found, key=lambda place: list(WHAT).index(place)):
        rows = [[code(name), sentence(_summary(text))] for name, text in found[place]]
        parts += [f"## {place}: {WHAT[place]}\n", table(["code", "what it does"], rows)]
    return "\n".join(parts)


def docstrings() -> Iterator[tuple[str, str]]:
    """Name and docstring of each module, class and function of the package."""
    package = ROOT / "airflow_provider_zeus"
    for path in sorted(package.rglob("*.py")):
        module = ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__")
        yield from _of(ast.parse(path.read_text(encoding="utf-8")), module)


def _of(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
        text := ast.get_docstring(node)
    ):
        yield name, text
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            yield from _of(child, f"{name}.{child.name}")


def places(text: str) -> list[str]:
    """The places of the paper that a text names, as ``WHAT`` has them, each once."""
    found: dict[str, None] = {}
    for match in _PLACES.finditer(text):
        kind = match["kind"].strip().rstrip("s").capitalize()
        for part in re.split(r", | and ", match["numbers"]):
            first, _, last = part.partition(" to ")
            for number in range(int(first), int(last) + 1) if last else [first]:
                found[f"{kind} {number}"] = None
    return list(found)


def _summary(text: str) -> str:
    """The first sentence or paragraph of a docstring, without what follows it."""
    return text.split("\n\n")[0]
