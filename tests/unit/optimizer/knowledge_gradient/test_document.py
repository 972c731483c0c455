"""``docs/knowledge-gradient.md`` against the code: equation numbers and constants."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.constants import CONSTANTS, KG

ROOT = Path(__file__).parents[4]
PAGE = "docs/knowledge-gradient.md"
TEXT = (ROOT / PAGE).read_text()
NUMBER = re.compile(r"KG-(\d+)")


def cited() -> Iterator[tuple[int, str]]:
    """(number, function or class) of each equation named in a docstring of the package."""
    for path in sorted((ROOT / "airflow_provider_zeus").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                docstring = ast.get_docstring(node) or ""
                numbers = {int(n) for n in NUMBER.findall(docstring)}
                assert not numbers or PAGE in docstring, f"{path.name}: {node.name} does not name the page"
                yield from ((n, f"{path.stem}.{node.name}") for n in numbers)


def defined() -> list[int]:
    """Numbers at the end of the lines of equations, in the order of the page."""
    return [int(n) for n in re.findall(r"^    .*\(KG-(\d+)\)$", TEXT, re.MULTILINE)]


def test_equations_are_numbered_in_order_without_gaps() -> None:
    assert defined() == list(range(1, len(defined()) + 1))
    assert {int(n) for n in NUMBER.findall(TEXT)} == set(defined()), "every number in the text is an equation's"


def test_every_equation_is_computed_by_exactly_one_function_or_class() -> None:
    places: dict[int, list[str]] = {n: [] for n in defined()}
    for number, place in cited():
        places.setdefault(number, []).append(place)
    assert {n: found for n, found in places.items() if len(found) != 1} == {}
    assert set(places) == set(defined()), "docstrings name no other number"


def test_an_indented_equation_has_a_number() -> None:
    blocks = re.findall(r"(?:^    .*\n)+", TEXT, re.MULTILINE)
    assert [block for block in blocks if not NUMBER.search(block) and "python -m" not in block] == []


def test_the_table_has_the_present_value_of_each_constant() -> None:
    """The rows are what ``benchmarks.constants`` reads; that each constant has one is a test of its own."""
    lines = [line.strip("| \n").split(" | ") for line in TEXT.splitlines() if line.startswith("| `")]
    said = [(cells[0].strip("`"), cells[1].strip("`"), cells[2]) for cells in lines]
    assert said == [(c.name, c.module.removeprefix(f"{KG}."), str(c)) for c in CONSTANTS]
