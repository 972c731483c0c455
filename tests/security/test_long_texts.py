"""Attacks on the regular expressions of the package:
no text that somebody else wrote stops a process for long.

A regular expression that backtracks holds the interpreter's lock until it is done,
so no time limit of ours ends it.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import airflow_provider_zeus
from airflow_provider_zeus import patterns
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.operators.external_meter import names
from airflow_provider_zeus.patterns import MOST_CELL, MOST_LINE
from airflow_provider_zeus.printable import cell
from airflow_provider_zeus.signals.parse import Layout, parsed
from airflow_provider_zeus.store.open import passwords
from airflow_provider_zeus.store.sql.engine import hidden
from airflow_provider_zeus.task_patterns import TaskPatterns

PACKAGE = Path(airflow_provider_zeus.__file__).parent
# -> longest text
FUNCTIONS = {"fullmatch": MOST_CELL, "search": MOST_LINE, "findall": MOST_LINE, "sub": MOST_LINE}

# Reads [[function, pattern, longest text], ...] from stdin. Prints each before it is measured, then
# what is too slow.
MEASURE = r"""
import json, re, resource, sys, time

resource.setrlimit(resource.RLIMIT_CPU, (120, 120))  # ends what backtracks without end
ENOUGH_S = 0.05


def texts(pattern, length):
    words = sorted(set(re.findall(r"[A-Za-z]{2,}", pattern)))
    signs = sorted({c for c in pattern if not c.isalnum()} - set("?*+(){}[]|^$<>!\\"))
    units = [*" \t\n._-/=aA0", "\u00e9", *words, *signs, *(f"a{sign}" for sign in signs)]
    units += [f"{one * often}a{other}" for one in signs for other in signs for often in (1, 2)]
    for unit in units:
        yield unit * (length // len(unit))
        yield unit * (length // len(unit) - 1) + "\0"


def cost_s(call, text):
    begun_s = time.process_time()
    call(text)
    return time.process_time() - begun_s


def is_slow(call, text):
    if cost_s(call, text) < ENOUGH_S:
        return False
    short_s, middle_s, long_s = (
        min(cost_s(call, text[: len(text) // share - 1] + text[-1]) for _ in range(5)) for share in (4, 2, 1)
    )
    return long_s > ENOUGH_S and middle_s > 3 * short_s and long_s > 3 * middle_s


for function, pattern, length in json.load(sys.stdin):
    print(json.dumps([pattern, "begun"]), flush=True)
    compiled = re.compile(pattern)
    calls = {"sub": lambda text: compiled.sub("", text)}
    call = calls.get(function) or getattr(compiled, function)
    slow = next((text[:40] for text in texts(pattern, length) if is_slow(call, text)), None)
    if slow is not None:
        print(json.dumps([pattern, slow]), flush=True)
print(json.dumps(["", "done"]))
"""


def text_of_node(node: ast.expr, tree: ast.Module) -> str:
    """The text of a pattern: a literal, a name in its module for one, or an f-string of such."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of_node(part, tree) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return text_of_node(node.value, tree)
    assert isinstance(node, ast.Name), f"{ast.unparse(node)}: write the pattern as a literal"
    named = [
        a.value
        for a in ast.walk(tree)
        if isinstance(a, ast.Assign) and ast.unparse(a.targets[0]) == node.id
    ]
    assigned = [value for value in named if isinstance(value, ast.Constant | ast.JoinedStr)]
    assert len(assigned) == 1, f"{node.id}: give each pattern a name of its own"
    return text_of_node(assigned[0], tree)


def patterns_of(source: str) -> Iterator[tuple[str, str, int]]:
    """(Function, pattern, longest text that it sees) of each regular expression of a module."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if ast.unparse(node.func.value) != "patterns":
            continue
        function = node.func.attr
        most = FUNCTIONS[function]
        for given in (
            (*node.args[2:], *(k.value for k in node.keywords)) if function == "fullmatch" else ()
        ):
            most = getattr(patterns, ast.unparse(given).removeprefix("patterns."))
        yield function, text_of_node(node.args[0], tree), most


def slow_ones(found: list[tuple[str, str, int]]) -> dict[str, str]:
    """Patterns whose cost grows with the square of the text or faster -> the beginning of such a
    text.
    """
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", MEASURE],
        input=json.dumps(found),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    last, state = lines[-1]
    endless = {} if state == "done" else {last: "it did not end"}
    return {pattern: text for pattern, text in lines if text not in ("begun", "done")} | endless


def test_one_module_alone_has_regular_expressions() -> None:
    """Its functions bound the length of what they see."""
    importing = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            importing |= {
                str(path.relative_to(PACKAGE))
                for module in modules
                if module in ("re", "regex", "fnmatch")
            }
    assert importing == {"patterns.py"}


def test_a_text_twice_as_long_costs_no_regular_expression_four_times_as_much() -> None:
    found = sorted(
        {each for path in PACKAGE.rglob("*.py") for each in patterns_of(path.read_text())}
    )
    assert len(found) > 20
    assert slow_ones(found) == {}


@pytest.mark.parametrize("pattern", [r"[\w./-]+\.\w{1,6}\b", r"\s*(UTC|GMT)$"])
def test_the_test_sees_a_slow_one(pattern: str) -> None:
    source = f"WORDS = {pattern!r}\n\ndef f(text):\n    return patterns.search(WORDS, text)\n"
    found = list(patterns_of(source))
    assert found == [("search", pattern, MOST_LINE)]
    assert pattern in slow_ones([("search", pattern, MOST_LINE // 2)])


def test_texts_are_bounded_where_they_meet_a_pattern() -> None:
    long = "a" * (MOST_LINE + 1)
    assert patterns.fullmatch("a*", long[:MOST_CELL])
    assert patterns.fullmatch("a*", long[: MOST_CELL + 1]) is None
    assert patterns.fullmatch("a*", long, MOST_LINE) is None
    assert patterns.search("b", f"{long}b") is None
    assert patterns.findall("a+", long) == [long[:MOST_LINE]]
    assert len(patterns.sub("b", "", long)) == MOST_LINE


# --- what others write: each of these took minutes


def refused(text: str) -> Callable[[], object]:
    def read() -> None:
        with pytest.raises(JobSpecError):
            parsed(text, LAYOUT)

    return read


LAYOUT = Layout(times="$[*].t", values="$[*].v", unit="g/kWh", step_at="$[*].s", unit_at="$[*].u")
BLANKS = " " * 80_000
SIGNAL = json.dumps([{"t": f"2026-01-05{BLANKS}x", "v": 1}])
COLUMNS = ",".join(f"c{n}" for n in range(100_000))
CSV = Layout(times="c0", values="c1", unit="g/kWh")


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(refused(SIGNAL), id="a time of a signal"),
        pytest.param(
            refused(SIGNAL.replace("}", f', "s": "{BLANKS}", "u": "{BLANKS}"}}')),
            id="its other texts",
        ),
        pytest.param(lambda: cell("\t" * 80_000), id="a cell of tabs"),
        pytest.param(
            lambda: TaskPatterns.parse("*a" * 500 + "b").name("a" * 250, "a" * 250, ["a" * 100]),
            id="a pattern of tasks",
        ),
        pytest.param(
            lambda: hidden("x" * 80_000 + '"' * 80_000, {"password": "x" * 80_000}),
            id="a driver's error",
        ),
    ],
)
def test_no_long_text_takes_long(read: Callable[[], object]) -> None:
    assert processor_s(read) < 5.0


@pytest.mark.parametrize(
    "text", ["a" * 500_000, "a:" * 250_000, "//a:" * 125_000, "pass" * 125_000, "@" * 500_000]
)
def test_no_long_field_of_a_connection_takes_long(text: str) -> None:
    connection = SimpleNamespace(
        host=text, login=text, schema=text, extra=text, extra_dejson={"a": text}
    )
    assert processor_s(lambda: passwords(connection)) < 5.0


def test_a_script_of_one_word_takes_not_long(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("a" * 2**20)
    assert (
        processor_s(lambda: names(["python", "train.py"], str(tmp_path), "ZEUS_BATCH_SIZE")) < 5.0
    )


def test_a_table_with_many_columns_and_many_lines_takes_not_long() -> None:
    text = f"{COLUMNS}\n" + "\n".join(f"{1_767_225_600 + 3600 * n},1" for n in range(10_000))
    assert processor_s(lambda: parsed(text, CSV)) < 5.0


def processor_s(call: Callable[[], object]) -> float:
    begun_s = time.process_time()
    call()
    return time.process_time() - begun_s
