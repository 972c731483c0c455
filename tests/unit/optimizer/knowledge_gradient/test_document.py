"""``docs/knowledge-gradient.md`` against the code: equation numbers and constants."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from airflow_provider_zeus import optimizer
from airflow_provider_zeus.optimizer.knowledge_gradient.acquisition import NormalGrid

ROOT = Path(__file__).parents[4]
PAGE = "docs/knowledge-gradient.md"
TEXT = (ROOT / PAGE).read_text()
ALSO = ("docs/policy.md", "docs/levers/starts.md")  # pages that have constants, too
NUMBER = re.compile(r"KG-(\d+)")


def cited() -> Iterator[tuple[int, str]]:
    """(number, function or class) of each equation named in a docstring of the package."""
    for path in sorted((ROOT / "airflow_provider_zeus").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                docstring = ast.get_docstring(node) or ""
                numbers = {int(n) for n in NUMBER.findall(docstring)}
                assert not numbers or PAGE in docstring, (
                    f"{path.name}: {node.name} does not name the page"
                )
                yield from ((n, f"{path.stem}.{node.name}") for n in numbers)


def defined() -> list[int]:
    """Numbers at the end of the lines of equations, in the order of the page."""
    return [int(n) for n in re.findall(r"^    .*\(KG-(\d+)\)$", TEXT, re.MULTILINE)]


def test_equations_are_numbered_in_order_without_gaps() -> None:
    assert defined() == list(range(1, len(defined()) + 1))
    assert {int(n) for n in NUMBER.findall(TEXT)} == set(defined()), (
        "every number in the text is an equation's"
    )


def test_every_equation_is_computed_by_exactly_one_function_or_class() -> None:
    places: dict[int, list[str]] = {n: [] for n in defined()}
    for number, place in cited():
        places.setdefault(number, []).append(place)
    assert {n: found for n, found in places.items() if len(found) != 1} == {}
    assert set(places) == set(defined()), "docstrings name no other number"


def test_an_indented_equation_has_a_number() -> None:
    blocks = re.findall(r"(?:^    .*\n)+", TEXT, re.MULTILINE)
    assert [
        block for block in blocks if not NUMBER.search(block) and "python -m" not in block
    ] == []


Row = tuple[str, str, str]  # (module below optimizer, name, value)


def constants_of_the_pages() -> list[list[Row]]:
    """The rows of each table; first those of the constants that decide."""
    tables: list[list[Row]] = []
    within = False
    for page in (PAGE, *ALSO):
        for line in (ROOT / page).read_text().splitlines():
            if line.startswith("| constant | module |"):
                tables.append([])
                within = True
            elif not line.startswith("|"):
                within = False
            elif within and line.startswith("| `"):
                tables[-1].append(row_of(line))
    return tables


def row_of(line: str) -> Row:
    """One line of a table."""
    (folder,) = optimizer.__path__
    name, module, value, *_ = (cell.strip("`") for cell in line.strip("| ").split(" | "))
    if Path(folder, "knowledge_gradient", f"{module}.py").exists():
        module = f"knowledge_gradient.{module}"
    return module, name, value


def shown(value: object) -> str:
    """A constant as the page has it."""
    points = value.z if isinstance(value, NormalGrid) else value
    if isinstance(points, np.ndarray | tuple):
        return f"{len(points)} points, {points[0]:g} to {points[-1]:g}"
    return f"{points:g}"


def test_the_tables_have_the_present_value_of_each_constant() -> None:
    for module, name, value in (row for table in constants_of_the_pages() for row in table):
        home = importlib.import_module(f"{optimizer.__name__}.{module}")
        assert value == shown(getattr(home, name)), f"{module}.{name}"


# of the sentence of a decision alone
WORDS = {("belief", "TARGET_IS_NEW"), ("learn", "_MOST_TARGET")}


def is_numeric(value: object) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(map(is_numeric, value))
    return isinstance(value, int | float | np.ndarray) and not isinstance(value, bool)


def numeric_constants() -> set[tuple[str, str]]:
    """(module below optimizer, name) of each upper-case name that a module assigns a number or numbers."""
    (root,) = optimizer.__path__
    found = set()
    for path in sorted(Path(root).rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        if path.stem == "__init__":
            continue
        values = vars(importlib.import_module(f"{optimizer.__name__}.{module}"))
        for node in ast.parse(path.read_text()).body:
            targets = list(node.targets) if isinstance(node, ast.Assign) else []
            targets += [node.target] if isinstance(node, ast.AnnAssign) else []
            names = {
                n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)
            }
            capitals = {name for name in names if re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name)}
            found |= {(module, name) for name in capitals if is_numeric(values[name])}
    return found - WORDS


def test_every_numeric_constant_of_the_optimizer_is_listed_once() -> None:
    listed = [(module, name) for table in constants_of_the_pages() for module, name, _ in table]
    assert numeric_constants() == set(listed)
    assert len(set(listed)) == len(listed)


def test_few_constants_decide() -> None:
    deciding, *_ = constants_of_the_pages()
    assert len(deciding) <= 14
