"""How the package's code is cut, beside three code bases and what it was: sizes, and what a decision runs through.

    python -m benchmarks.style                        # this package beside the recorded figures of the others
    python -m benchmarks.style --package FOLDER ...   # packages of your choice, measured now
    python -m benchmarks.style --rooms                # each room of this package

What is counted: modules (``*.py`` without tests and ``_version``); code lines (without blank lines, comments and
docstrings) and statements; functions and methods (``def``, nested ones too) and their lines from ``def`` to the end;
module constants (assignments to names in capitals) and fields of classes with a default; lines of imports, within
functions too, as a share of all lines; modules that exactly one other module of the package imports (for type checking
too), and modules that import each other. For this package, by a profile: how many functions in how many files a
decision and the charts of one DAG enter (:mod:`benchmarks.cost.entered`).
The figures are reported and bound nothing: what counts is that a reader finds the right file.
"""

from __future__ import annotations

import argparse
import ast
import io
import statistics
import tokenize
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command import command, option
from benchmarks.cost.entered import Entered, entered
from benchmarks.report import table

HERE = Path(__file__).resolve().parent.parent / "airflow_provider_zeus"
SKIPPED = {"tests", "_version.py", "__pycache__"}
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
HEAD = (
    "package | modules | median lines | largest | code lines | statements | functions | per 1,000 code | median lines"
    " | p90 | longest | constants per 1,000 | fields with a default | import lines | modules with one importer"
    " | modules in circles"
)


@dataclass(frozen=True, slots=True)
class Style:
    """The figures of one package."""

    modules: int
    module_median: float  # [lines]
    module_most: int  # [lines]
    code: int  # [lines] without blank ones, comments and docstrings
    statements: int
    functions: int
    per_1000_code: float
    function_median: float  # [lines]
    function_p90: float  # [lines]
    function_most: int  # [lines]
    constants_per_1000: float  # of modules, against code lines
    defaults: int  # fields of classes that have one
    import_share: float  # of all lines
    one_importer: int  # modules that exactly one other one imports
    circles: int  # modules that import each other, directly or by way of others

    def cells(self) -> list[str]:
        """The figures as texts, in the order of :data:`HEAD`."""
        figures = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return [f"{value:.1%}" if name == "import_share" else f"{value:,.0f}" for name, value in figures.items()]


BEFORE = "this package as it was"
# Measured by this command: the wheels of three code bases, and this package before its code was made less.
RECORDED: Mapping[str, Style] = {
    BEFORE: Style(337, 108, 705, 28913, 25500, 2707, 93.6, 7, 20, 108, 27.496, 487, 0.086502, 84, 0),
    "optuna 5.0.0": Style(220, 114, 1685, 24577, 16233, 1553, 63.2, 11, 42, 236, 3.5, 30, 0.0587, 97, 131),
    "astronomer-cosmos 1.15.1": Style(121, 67, 1542, 12919, 9188, 805, 62.3, 11, 38, 205, 8.5, 268, 0.0722, 22, 22),
    "zeus 0.16.0": Style(84, 120.5, 775, 8768, 6969, 674, 76.9, 9, 38, 403, 2.3, 160, 0.0463, 21, 0),
}
ENTERED_BEFORE = {"a decision": Entered(413, 87), "the charts of a DAG": Entered(653, 76)}


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
    code = sum(len(_code_lines(text, trees[name])) for name, text in texts.items())
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    lengths = sorted(_length(node) for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    constants = sum(
        isinstance(node, ast.Assign) and _is_constant(node) for tree in trees.values() for node in tree.body
    )
    import_lines = sum(_length(node) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))
    imports = imports_of(trees, {name for name, path in paths.items() if path.name == "__init__.py"})
    importers = Counter(module for imported in imports.values() for module in imported)
    return Style(
        modules=len(trees),
        module_median=statistics.median(lines),
        module_most=max(lines),
        code=code,
        statements=sum(isinstance(node, ast.stmt) for node in nodes),
        functions=len(lengths),
        per_1000_code=1000 * len(lengths) / max(code, 1),
        function_median=statistics.median(lengths or [0]),
        function_p90=lengths[int(0.9 * len(lengths))] if lengths else 0,
        function_most=max(lengths, default=0),
        constants_per_1000=1000 * constants / max(code, 1),
        defaults=sum(
            isinstance(field, ast.AnnAssign) and field.value is not None
            for node in nodes
            if isinstance(node, ast.ClassDef)
            for field in node.body
        ),
        import_share=import_lines / max(sum(lines), 1),
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


def _code_lines(text: str, tree: ast.Module) -> set[int]:
    """The numbers of the lines that hold code."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    held = {line for t in tokens if t.type not in LAYOUT for line in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(tree):
        if isinstance(node, Documented) and ast.get_docstring(node, clean=False) is not None:
            held -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return held


def _is_constant(node: ast.Assign) -> bool:
    names = (name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name))
    return any(name == name.upper() for name in names)


def _length(node: ast.AST) -> int:
    first: int = node.lineno  # type: ignore[attr-defined]
    last: int = node.end_lineno  # type: ignore[attr-defined]
    return last - first + 1


def _reachable(imports: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(imports[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += imports[name]
    return seen


def shown(styles: Mapping[str, Style]) -> str:
    """The figures of several packages, a line each."""
    return "\n".join(table(HEAD, ([name, *style.cells()] for name, style in styles.items())))


def rooms(package: Path) -> dict[str, Style]:
    """The figures of each room. Imports from other rooms do not count."""
    return {
        path.name: style_of(path, package) for path in sorted(package.iterdir()) if path.is_dir() and _modules(path)
    }


@command(
    "",
    option("--package", type=Path, nargs="+", default=[], help="folders of packages to measure"),
    option("--rooms", action="store_true", help="this package, room by room"),
)
def main(args: argparse.Namespace) -> None:
    """Print the table."""
    if args.rooms:
        print(shown(rooms(HERE)))
    elif args.package:
        print(shown({str(folder): style_of(folder) for folder in args.package}))
    else:
        print(shown({"this package": style_of(HERE), **RECORDED}))
        print()
        for what, now in entered().items():
            print(f"{what}: {now} entered; as it was: {ENTERED_BEFORE[what]}")
