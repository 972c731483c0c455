"""Draws faults by a seed: ``python -m tests.mutants draw``.

Each place in the package where a small edit changes what the code does is a candidate. The kinds of
edit take turns; each takes a place in the part of the package from which the fewest have been
drawn.
"""

from __future__ import annotations

import ast
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.faults import Fault

PACKAGE = "airflow_provider_zeus"
PARTS = (
    "model", "optimizer", "signals", "reports", "power", "training", "integrations", "store", "operators", "cli",
    "plugin", "hooks",
)  # fmt: skip
_LEFT_OUT = ("store/sql/migrations/",)
_COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="),
}  # fmt: skip
_REVERSED: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
}  # fmt: skip
_SAFE_TEXT = {"escape", "visible", "cell", "plain_name", "quote"}
_LOGS = {"debug", "info", "warning", "error", "exception", "critical", "say"}
_FLAGS = "O_NOFOLLOW", "O_EXCL", "O_CLOEXEC", "O_NONBLOCK", "O_DIRECTORY", "O_NOCTTY"


@dataclass(frozen=True)
class Edit:
    """Replaces a stretch of a file by another text."""

    kind: str
    file: str
    function: str
    start: int
    end: int
    new: str
    what: str


def draw(root: Path, count: int = 30, seed: int = 60) -> list[Edit]:
    """Draw edits of the package in the folder ``root``."""
    rng = random.Random(seed)
    places: dict[str, dict[str, list[Edit]]] = defaultdict(lambda: defaultdict(list))
    for part in PARTS:
        for path in sorted((root / PACKAGE / part).rglob("*.py")):
            file = path.relative_to(root).as_posix()
            if not any(each in file for each in _LEFT_OUT):
                for edit in edits_of(file, path.read_text(encoding="utf-8")):
                    places[edit.kind][part].append(edit)
    kinds = sorted(places)
    taken = Counter[str]()
    drawn = list[Edit]()
    while len(drawn) < count and any(any(parts.values()) for parts in places.values()):
        for kind in rng.sample(kinds, len(kinds)):
            parts = [part for part, found in places[kind].items() if found]
            if parts and len(drawn) < count:
                part = min(rng.sample(parts, len(parts)), key=lambda each: taken[each])
                drawn.append(places[kind][part].pop(rng.randrange(len(places[kind][part]))))
                taken[part] += 1
    return drawn


def faults(root: Path, count: int = 30, seed: int = 60) -> list[Fault]:
    """The same as entries of the list."""
    return [
        fault_of(edit, (root / edit.file).read_text(encoding="utf-8"), number)
        for number, edit in enumerate(draw(root, count, seed), 1)
    ]


def fault_of(edit: Edit, text: str, number: int) -> Fault:
    """An edit of a file's ``text`` as an entry of the list: whole lines,
    as many as make them unique.
    """
    first = text.rfind("\n", 0, edit.start) + 1
    last = text.find("\n", edit.end)
    while text.count(text[first:last]) > 1:
        first = text.rfind("\n", 0, first - 1) + 1
    old = text[first:last]
    new = old[: edit.start - first] + edit.new + old[edit.end - first :]
    what = f"{edit.function or 'The module'}: {edit.what}."
    return Fault(f"drawn-{number:02d}", "drawn", edit.file, old, new, what)


def edits_of(file: str, text: str) -> Iterator[Edit]:
    """Every candidate in a file."""
    offsets = [0]
    for line in text.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    lines = text.splitlines()

    def at(line: int, column: int) -> int:  # ast counts columns in bytes
        return offsets[line - 1] + len(lines[line - 1].encode()[:column].decode())

    for node, function in _walk(ast.parse(text), ""):
        start = at(node.lineno, node.col_offset)
        end = at(node.end_lineno or 0, node.end_col_offset or 0)
        for kind, pattern, new, what in _changes(node, text[start:end]):
            if found := re.search(pattern, text[start:end]):
                group = found.re.groups
                yield Edit(
                    kind,
                    file,
                    function,
                    start + found.start(group),
                    start + found.end(group),
                    new,
                    what,
                )


def _walk(
    node: ast.AST, function: str
) -> Iterator[tuple[ast.expr | ast.stmt | ast.excepthandler, str]]:
    """Every node that matters, with the function that it lies in."""
    for child in ast.iter_child_nodes(node):
        if (
            isinstance(child, ast.JoinedStr | ast.Assert)
            or _only_tells(child)
            or child in _annotations(node)
        ):
            continue
        inside = function
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{function}.{child.name}".lstrip(".")
        if isinstance(child, ast.expr | ast.stmt | ast.excepthandler):
            yield child, inside
        yield from _walk(child, inside)


def _only_tells(node: ast.AST) -> bool:
    """Whether a node is a log line, a block for type checkers,
    or the text that a debugger shows.
    """
    if isinstance(node, ast.Call):
        name = (
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        )
        return name in _LOGS
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, ast.FunctionDef) and node.name in ("__repr__", "__str__")


def _annotations(node: ast.AST) -> tuple[ast.AST | None, ...]:
    return tuple(getattr(node, name, None) for name in ("annotation", "returns"))


def _changes(node: ast.AST, text: str) -> Iterator[tuple[str, str, str, str]]:
    """Edits of one node: kind, pattern (its last group, or all, is replaced), new text,
    what goes wrong.
    """
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[_]) if type(op) in _COMPARED:
            old, new = _COMPARED[type(op)]
            yield "bound", _between(left, old), new, f"a comparison is {new} where {old} was meant"
        case ast.BinOp(left=left, op=op) if type(op) in _REVERSED and not _is_text(node):
            old, new = _REVERSED[type(op)]
            yield "sign", _between(left, old), new, f"{old} became {new}"
        case ast.BinOp(op=ast.BitOr()) if flags := re.search(
            rf"\| os\.({'|'.join(_FLAGS)})$", text
        ):
            yield "flag", rf"( \| os\.{flags[1]})$", "", f"a file is opened without {flags[1]}"
        case ast.BoolOp(op=op, values=[first, *_]):
            old, new = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
            yield (
                "junction",
                _between(first, old),
                new,
                f"two conditions are joined by '{new}', not by '{old}'",
            )
        case ast.UnaryOp(op=ast.Not()):
            yield "not", r"^(not )", "", "a condition is asked the wrong way round"
        case ast.Constant(value=bool() | str() | bytes() | None):
            return
        case ast.Constant(value=int() | float() as value):
            small = value == 0 or (isinstance(value, int) and value < 10)
            new = (
                str(value + 1)
                if small
                else str(value // 2 if isinstance(value, int) else value / 2)
            )
            yield "number", r"^(.+)$", new, f"the number is {new}, not {text}"
        case _:
            yield from _changes_of_a_block(node, text)


def _changes_of_a_block(node: ast.AST, text: str) -> Iterator[tuple[str, str, str, str]]:
    """Edits of one node that is a block, a call or a statement."""
    match node:
        case ast.With(items=[ast.withitem(context_expr=held, optional_vars=None)]) if re.search(
            r"lock\b|_locked\(|flock|mutex", ast.unparse(held)
        ):
            yield "lock", r"^(with [^\n]+:)", "if True:", f"{ast.unparse(held)} is not held"
        case ast.Call(func=ast.Name(id=name), args=[_, *_]) if name in ("min", "max"):
            new = "max" if name == "min" else "min"
            yield "extreme", rf"^({name})", new, f"the {new}imum is taken, not the {name}imum"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[given, *_]) if (
            name in _SAFE_TEXT
        ):
            yield "escape", r"(?s)^(.+)$", ast.unparse(given), f"a text goes out without {name}()"
        case ast.ExceptHandler(body=[body, *_]) if not isinstance(body, ast.Pass | ast.Continue):
            yield (
                "swallowed",
                r"(?s)^except[^\n]*:(?: *#[^\n]*)?\n\s+(.+)$",
                "pass",
                "an error is swallowed",
            )
        case ast.Raise(exc=ast.expr()) if "NotImplemented" not in text:
            yield "raise", r"(?s)^(.+)$", "pass", "what must be refused is let through"
        case ast.Return(value=ast.Constant(value=value)) if value is None or isinstance(
            value, bool | int | float
        ):
            new = {"None": "0", "True": "False", "False": "True"}.get(str(value), "1")
            yield "return", r"^return (.+)$", new, f"{new} is returned, not {value}"


def _between(left: ast.expr, operator: str) -> str:
    """A pattern for the operator that follows ``left``, which the text begins with,
    perhaps in brackets.
    """
    if left.lineno != left.end_lineno:
        return r"(?!)"
    spelled = rf".{{{(left.end_col_offset or 0) - left.col_offset}}}"
    return rf"(?s)^[(\s]*{spelled}[)\s]*(?:#[^\n]*\n[)\s]*)?({re.escape(operator)})"


def _is_text(node: ast.BinOp) -> bool:
    """Whether an operator joins texts or lists."""
    joined = ast.Constant | ast.JoinedStr | ast.List | ast.Tuple
    sides = [each for each in (node.left, node.right) if isinstance(each, joined)]
    return any(not isinstance(getattr(each, "value", None), int | float) for each in sides)
