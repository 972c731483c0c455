"""How the package's code is cut, beside four code bases to compare with: sizes of modules and functions.

    python -m benchmarks.style                        # this package beside the recorded figures of the others
    python -m benchmarks.style --package FOLDER ...   # packages of your choice, measured now
    python -m benchmarks.style --rooms                # each room of this package

What is counted: modules (``*.py`` without migrations, tests and ``_version``), their lines, functions and methods
(``def``, nested ones too), the lines of a function from ``def`` to its end, modules that exactly one other module of
the package imports (imports within functions and for type checking count), and modules that import each other.
The figures are reported and bound nothing: what counts is that a reader finds the right file.
"""

from __future__ import annotations

import argparse
import ast
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent / "airflow_provider_zeus"
SKIPPED = {"migrations", "tests", "_version.py", "__pycache__"}
HEAD = (
    ("", "modules", "", "", "functions", "", "", "", "", "modules with", "modules in"),
    (
        "package",
        "number",
        "median",
        "largest",
        "number",
        "per 1,000",
        "median",
        "p90",
        "longest",
        "one importer",
        "circles",
    ),
)


@dataclass(frozen=True, slots=True)
class Style:
    """The figures of one package."""

    modules: int
    module_median: float  # [lines]
    module_most: int  # [lines]
    functions: int
    per_1000_lines: float
    function_median: float  # [lines]
    function_p90: float  # [lines]
    function_most: int  # [lines]
    one_importer: int  # modules that exactly one other one imports
    circles: int  # modules that import each other, directly or by way of others

    def cells(self) -> list[str]:
        """The figures as texts, in the order of :data:`HEAD`."""
        figures = (getattr(self, name) for name in self.__dataclass_fields__)
        return [f"{value:,.0f}" for value in figures]


# Measured by this command: the wheels of three code bases, and this package before its modules were sorted into rooms.
RECORDED: Mapping[str, Style] = {
    "optuna 5.0.0": Style(220, 114.0, 1685, 1553, 39.1, 11, 42, 236, 97, 131),
    "astronomer-cosmos 1.15.1": Style(121, 67, 1542, 805, 38.9, 11, 38, 205, 22, 22),
    "zeus 0.16.0": Style(83, 122, 775, 671, 42.6, 9, 38, 403, 21, 0),
    "version 1 of this package": Style(217, 112, 369, 1907, 72.4, 6, 18, 65, 70, 7),
}


def style_of(package: Path, top: Path | None = None) -> Style:
    """Measure one package. Raises FileNotFoundError where the folder holds no module.

    :param top: the package that it is a part of, if it is: its modules are imported by their names from there.
    """
    paths = {_name(top or package, path): path for path in _modules(package)}
    if not paths:
        raise FileNotFoundError(f"{package} holds no Python module: name the folder of a package.")
    texts = {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    lines = [len(text.splitlines()) for text in texts.values()]
    lengths = sorted(length for tree in trees.values() for length in _function_lengths(tree))
    imports = imports_of(trees, {name for name, path in paths.items() if path.name == "__init__.py"})
    importers = Counter(module for imported in imports.values() for module in imported)
    return Style(
        modules=len(trees),
        module_median=statistics.median(lines),
        module_most=max(lines),
        functions=len(lengths),
        per_1000_lines=1000 * len(lengths) / max(sum(lines), 1),
        function_median=statistics.median(lengths or [0]),
        function_p90=lengths[int(0.9 * len(lengths))] if lengths else 0,
        function_most=max(lengths, default=0),
        one_importer=sum(count == 1 for count in importers.values()),
        circles=sum(name in _reachable(imports, name) for name in trees),
    )


def imports_of(trees: Mapping[str, ast.Module], packages: Set[str]) -> dict[str, set[str]]:
    """The modules of ``trees`` that each of them imports. ``packages``: those that are an ``__init__.py``."""
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
                asked |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in trees else base for alias in node.names}
        found[name] = {module for module in asked if module in trees and module != name}
    return found


def _modules(package: Path) -> list[Path]:
    return sorted(p for p in package.rglob("*.py") if SKIPPED.isdisjoint(p.relative_to(package).parts))


def _name(package: Path, path: Path) -> str:
    parts = (package.name, *path.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _function_lengths(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def _reachable(imports: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(imports[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += imports[name]
    return seen


def table(styles: Mapping[str, Style]) -> str:
    """The figures of several packages, a line each."""
    rows = [*HEAD, *((name, *style.cells()) for name, style in styles.items())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def rooms(package: Path) -> dict[str, Style]:
    """The figures of each room. Imports from other rooms do not count."""
    return {
        path.name: style_of(path, package) for path in sorted(package.iterdir()) if path.is_dir() and _modules(path)
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--package", type=Path, nargs="+", default=[], help="folders of packages to measure")
    parser.add_argument("--rooms", action="store_true", help="this package, room by room")
    options = parser.parse_args(arguments)
    if options.rooms:
        styles = rooms(HERE)
    elif options.package:
        styles = {str(folder): style_of(folder) for folder in options.package}
    else:
        styles = {"this package": style_of(HERE), **RECORDED}
    print(table(styles))


if __name__ == "__main__":
    main()
