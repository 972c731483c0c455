"""``docs/architecture.md`` is true: rooms import downwards only, and its words are there."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.style import imports_of

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "airflow_provider_zeus"
TEXT = (ROOT / "docs" / "architecture.md").read_text()


def part(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    lines = [line for line in part(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def rooms() -> list[str]:
    """The rooms in the order of the table."""
    return [room for row in rows("The rooms") for room in re.findall(r"`(\w+)/`", row[0])]


def trees() -> dict[str, ast.Module]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        if "migrations" not in path.parts:
            parts = (PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return found


TREES = trees()
PACKAGES = {name for name in TREES if (PACKAGE.parent / name.replace(".", "/") / "__init__.py").exists()}
IMPORTS = imports_of(TREES, PACKAGES)


def room_of(module: str) -> str:
    _, _, inside = module.partition(".")
    return inside.partition(".")[0] if "." in inside or module in PACKAGES else ""


def test_every_room_stands_in_the_table() -> None:
    assert sorted(rooms()) == sorted(p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists())


@pytest.mark.parametrize("module", sorted(TREES))
def test_a_module_imports_only_from_its_room_and_those_above(module: str) -> None:
    if module in (PACKAGE.name, f"{PACKAGE.name}.get_provider_info"):
        return  # the root exports names of every room, and get_provider_info describes them
    order = ["", *rooms()]
    beside = {"hooks", "decorators"}  # one row of the table
    for imported in IMPORTS[module]:
        if imported == PACKAGE.name:
            continue
        here, there = room_of(module), room_of(imported)
        assert order.index(there) <= order.index(here), f"{module} imports {imported}"
        assert not (here != there and {here, there} == beside), f"{module} imports {imported}"


def test_no_two_modules_import_each_other() -> None:
    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [name for name in IMPORTS[start] if name != PACKAGE.name]
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += [other for other in IMPORTS[name] if other != PACKAGE.name]
        return seen

    assert [module for module in TREES if module != PACKAGE.name and module in reachable(module)] == []


@pytest.mark.parametrize("row", rows("Glossary"), ids=lambda row: row[0])
def test_what_bears_a_word_is_there(row: list[str]) -> None:
    names = re.findall(r"`([\w.]+)`", row[1])
    assert names
    for name in names:
        full = f"{PACKAGE.name}.{name}"
        if full in TREES:
            import_module(full)
        else:
            module, _, attribute = full.rpartition(".")
            assert hasattr(import_module(module), attribute), name


@pytest.mark.parametrize("step", re.findall(r"^\| `([^`]+)` \|", part("Three walks"), re.MULTILINE))
def test_a_step_of_a_walk_is_there(step: str) -> None:
    file, _, function = step.partition(": ")
    assert (PACKAGE / file).exists()
    if function:
        nodes: list[ast.stmt] = ast.parse((PACKAGE / file).read_text()).body
        for name in function.split("."):
            found = [node for node in nodes if getattr(node, "name", "") == name]
            assert found, f"{file} has no {function}"
            nodes = getattr(found[0], "body", [])


def test_each_word_stands_once() -> None:
    words = [word.strip() for row in rows("Glossary") for word in row[0].split(",")]
    assert sorted(words) == sorted(set(words))


def test_the_code_cites_documents_that_are_there() -> None:
    for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.js")]:
        if path.name.startswith("echarts"):
            continue
        text = path.read_text()
        assert "(design" not in text, path
        for cited in re.findall(r"\b(?:docs|benchmarks|tests|docker|demo)/[\w/]+\.(?:md|py)\b", text):
            assert (ROOT / cited).exists(), f"{path} cites {cited}"


@pytest.mark.parametrize(
    "path", re.findall(r"`((?:model|store|plugin|training|power|optimizer|reports)/[\w/]+\.py)`", TEXT)
)
def test_a_file_of_the_page_is_there(path: str) -> None:
    assert (PACKAGE / path).exists()
