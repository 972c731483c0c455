"""Nothing that is read by package, DAGs or demo can run: no pickle, weights only,
no text in a statement or a shell.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    p
    for room in ("airflow_provider_zeus", "dags", "demo", "docker")
    for p in sorted((ROOT / room).rglob("*.py"))
]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RISKY = ("torch.load(", "np.load(", "numpy.load(", "read_pickle(", "yaml.load(", "eval(", "exec(")
FORBIDDEN = {
    "pickle",
    "cPickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
    "jsonpickle",
}
STATEMENTS = ("execute", "exec_driver_sql", "executemany", "executescript")
READ_OF_CALLS = {"weights_only", "allow_pickle", "shell"}
CALLED = {"eval", "exec", "compile", "__import__"}


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of a name or of an attribute, "" in place of what is neither."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id if isinstance(node, ast.Name) else "", *reversed(parts)])


def dangers(source: str) -> Iterator[str]:
    """What of a module could run what it reads."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        yield from (f"imports {name}" for name in names if name.split(".")[0] in FORBIDDEN)
        if isinstance(node, ast.Call):
            yield from dangers_of_call(node)


def dangers_of_call(node: ast.Call) -> Iterator[str]:
    """What one call could run."""
    called = dotted(node.func)
    given = {k.arg: ast.unparse(k.value) for k in node.keywords if k.arg in READ_OF_CALLS}
    is_load = called.endswith(("np.load", "numpy.load", "read_pickle"))
    takes_sql = called in ("sa.text", "sqlalchemy.text") or called.split(".")[-1] in STATEMENTS
    is_made = bool(node.args) and isinstance(node.args[0], ast.JoinedStr | ast.BinOp)
    if called in CALLED:
        yield f"calls {called}"
    if called.endswith("torch.load") and given.get("weights_only") != "True":
        yield "calls torch.load without weights_only=True"
    if is_load and given.get("allow_pickle") != "False":
        yield f"calls {called}, which may unpickle"
    if is_made and takes_sql:
        yield f"puts an SQL statement together for {called}"
    if called.endswith("yaml.load"):
        yield "calls yaml.load"
    if given.get("shell") == "True" or called in ("os.system", "os.popen"):
        yield f"hands a text to a shell by {called}"


def shown_dangers(text: str) -> Iterator[str]:
    """What the examples of a page or of docstrings and comments could run;
    an example need not be whole.
    """
    for line in text.splitlines():
        words = line.strip().removeprefix(">>> ").split()
        if (
            len(words) > 1
            and words[0] in ("import", "from")
            and words[1].split(".")[0] in FORBIDDEN
        ):
            yield f"shows {' '.join(words)}"
    for name in RISKY:
        _, *calls = re.split(rf"(?<![\w.]){re.escape(name)}", text)
        for after in calls:
            yield from (f"shows: {danger}" for danger in dangers(name + up_to_its_bracket(after)))


def up_to_its_bracket(text: str) -> str:
    """The arguments of a call, with the bracket that closes it."""
    depth = 1
    for place, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return text[: place + 1]
    return ")"


def test_no_example_of_a_page_or_docstring_runs_what_it_reads() -> None:
    found = {str(p.relative_to(ROOT)): list(shown_dangers(p.read_text())) for p in [*FILES, *PAGES]}
    assert {path: said for path, said in found.items() if said} == {}
    shown = "Resume::\n\n    run.start(model, torch.load(run.previous) if run.previous else None)\n"
    assert list(shown_dangers(shown)) == ["shows: calls torch.load without weights_only=True"]
    assert list(shown_dangers(shown.replace("previous)", "previous, weights_only=True)"))) == []
    assert list(shown_dangers("    import pickle\n")) == ["shows import pickle"]


def test_nothing_that_is_read_can_run() -> None:
    assert len(FILES) > 150
    found = {str(p.relative_to(ROOT)): list(dangers(p.read_text())) for p in FILES}
    assert {path: said for path, said in found.items() if said} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n    from dill import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "eval(text)",
        "subprocess.run(text, shell=True)",
        "connection.execute(sa.text(f'SELECT * FROM {name}'))",
        "cursor.execute('SELECT ' + name)",
    ],
)
def test_the_test_sees_what_it_looks_for(source: str) -> None:
    assert list(dangers(source))


def test_weights_may_be_loaded() -> None:
    assert list(dangers("torch.load(path, weights_only=True)")) == []


def test_the_log_is_kept_as_json_and_text() -> None:
    from airflow_provider_zeus.store.sql.schema import metadata

    kinds = {type(column.type).__name__ for table in metadata.tables.values() for column in table.c}
    assert kinds <= {"Text", "BigInteger", "Integer", "Double", "Boolean", "JSON"}
