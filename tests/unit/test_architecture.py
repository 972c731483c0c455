"""``docs/architecture.md`` is true: rooms import downwards only, and its words are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Set
from functools import cache
from importlib import import_module
from pathlib import Path

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


@cache
def trees() -> dict[str, ast.Module]:
    """Each module of the package by its name, but the migrations."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        if "migrations" not in path.parts:
            parts = (PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(
                path.read_text()
            )
    return found


def packages() -> set[str]:
    return {
        name
        for name in trees()
        if (PACKAGE.parent / name.replace(".", "/") / "__init__.py").exists()
    }


def imports_of(trees: Mapping[str, ast.Module], packages: Set[str]) -> dict[str, set[str]]:
    """The modules of ``trees`` that each of them imports.

    ``packages``: those that are an ``__init__.py``.
    """
    found: dict[str, set[str]] = {}
    for name, tree in trees.items():
        asked: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                asked |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                parts = name.split(".")
                above = parts[: len(parts) - node.level + (name in packages)] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                asked |= {
                    f"{base}.{alias.name}" if f"{base}.{alias.name}" in trees else base
                    for alias in node.names
                }
        found[name] = {module for module in asked if module in trees and module != name}
    return found


def room_of(module: str) -> str:
    _, _, inside = module.partition(".")
    return inside.partition(".")[0] if "." in inside or (PACKAGE / inside).is_dir() else ""


def test_every_room_stands_in_the_table() -> None:
    assert sorted(rooms()) == sorted(
        p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()
    )


def test_a_module_imports_only_from_its_room_and_those_above() -> None:
    order = ["", *rooms()]
    beside = {"hooks", "decorators"}  # one row of the table
    # the root exports names of every room, and get_provider_info describes them
    free = {PACKAGE.name, f"{PACKAGE.name}.get_provider_info"}
    upwards = []
    for module, imported in (
        (m, i) for m, of in imports_of(trees(), packages()).items() for i in of
    ):
        here = room_of(module)
        there = room_of(imported)
        if module in free or imported == PACKAGE.name:
            continue
        if order.index(there) > order.index(here) or (here != there and {here, there} == beside):
            upwards.append(f"{module} imports {imported}")
    assert upwards == []


def test_the_rooms_of_the_pages_import_one_way() -> None:
    order = ["answer_parts", "text", "charts", "views", "api"]
    pages = f"{PACKAGE.name}.plugin."
    upwards = [
        f"{module} imports {imported}"
        for module, of in imports_of(trees(), packages()).items()
        for imported in of
        if module.startswith(pages) and imported.startswith(pages)
        if _place(imported, pages, order) > _place(module, pages, order)
    ]
    assert upwards == []


def _place(module: str, pages: str, order: list[str]) -> int:
    """The place of a module's room; the plugin itself and its listener are above all rooms."""
    room = module.removeprefix(pages).partition(".")[0]
    return order.index(room) if room in order else len(order)


def test_no_two_modules_import_each_other() -> None:
    imports = imports_of(trees(), packages())

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [name for name in imports[start] if name != PACKAGE.name]
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += [other for other in imports[name] if other != PACKAGE.name]
        return seen

    assert [
        module for module in trees() if module != PACKAGE.name and module in reachable(module)
    ] == []


def glossary() -> dict[str, list[str]]:
    """What bears each word, or each row of words, in the code."""
    lines = re.findall(r"^- \*\*(.+?)\*\* \((.+?)\): ", part("Glossary"), re.MULTILINE)
    return {word: re.findall(r"`([\w.]+)`", names) for word, names in lines}


def test_what_bears_a_word_is_there() -> None:
    named = glossary()
    assert len(named) == len(re.findall(r"^- ", part("Glossary"), re.MULTILINE)) > 40
    assert [word for word, names in named.items() if not names] == []
    assert [
        name for names in named.values() for name in names if not is_there(f"{PACKAGE.name}.{name}")
    ] == []


def is_there(name: str) -> bool:
    """Whether a module, or what it has, is there by its full name."""
    module, _, attribute = name.rpartition(".")
    return name in trees() or (module in trees() and hasattr(import_module(module), attribute))


def test_each_step_of_a_walk_is_there() -> None:
    steps = re.findall(r"^\d+\. `([^`]+)`: ", part("Three walks"), re.MULTILINE)
    assert steps
    assert [missing for step in steps for missing in missing_of(step)] == []


def missing_of(step: str) -> Iterator[str]:
    """A step, where its file or its function is not there."""
    file, _, function = step.partition(": ")
    module = (
        f"{PACKAGE.name}/{file}".removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    )
    nodes: list[ast.stmt] = trees()[module].body if module in trees() else []
    for name in function.split(".") if function else []:
        nodes = next(
            (getattr(node, "body", []) for node in nodes if getattr(node, "name", "") == name), []
        )
    if not (PACKAGE / file).exists() or (function and not nodes):
        yield step


def test_each_word_stands_once() -> None:
    words = [word.strip() for row in glossary() for word in row.split(",")]
    assert sorted(words) == sorted(set(words))


def test_the_code_cites_documents_that_are_there() -> None:
    for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.js")]:
        if path.name.startswith("echarts"):
            continue
        text = path.read_text()
        assert "(design" not in text, path
        for cited in re.findall(
            r"\b(?:docs|benchmarks|tests|docker|demo)/[\w/]+\.(?:md|py)\b", text
        ):
            assert (ROOT / cited).exists(), f"{path} cites {cited}"


def test_each_file_of_the_page_is_there() -> None:
    named = re.findall(
        r"`((?:model|store|plugin|training|power|optimizer|reports)/[\w/]+\.py)`", TEXT
    )
    assert named
    assert [path for path in named if not (PACKAGE / path).exists()] == []
