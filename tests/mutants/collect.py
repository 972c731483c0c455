"""Which tests execute which lines of the files that have faults:
``python -m tests.mutants contexts``.
"""

from __future__ import annotations

import ast
import json
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coverage import Coverage

from tests.mutants import contexts, scratch
from tests.mutants.faults import Fault

PARTS = {"quick": "not slow and not nightly", "slow": "slow and not nightly"}
_SETTINGS = """[run]
parallel = true
patch = subprocess, _exit
data_file = {data}/coverage
include =
"""


@dataclass
class Contexts:
    """What one run of the tests showed."""

    seconds: dict[str, float] = field(default_factory=dict)  # of each test that passed
    # file -> line -> tests that execute it
    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Contexts:
        """Read what :meth:`write` wrote."""
        data = json.loads(path.read_text(encoding="utf-8"))
        names = list(data["seconds"])
        lines = {
            f: {int(n): [names[i] for i in of] for n, of in found.items()}
            for f, found in data["lines"].items()
        }
        return cls(data["seconds"], lines)

    def write(self, path: Path) -> None:
        """Write a file; tests by their number in it."""
        number = {name: i for i, name in enumerate(self.seconds)}
        lines = {
            f: {n: [number[t] for t in of] for n, of in found.items()}
            for f, found in self.lines.items()
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"seconds": self.seconds, "lines": lines}), encoding="utf-8")

    def add(self, other: Contexts) -> None:
        """Add what a run of other tests showed."""
        self.seconds.update(other.seconds)
        for file, lines in other.lines.items():
            mine = self.lines.setdefault(file, {})
            for line, tests in lines.items():
                mine[line] = sorted({*mine.get(line, ()), *tests})

    def covering(self, fault: Fault, root: Path) -> set[str]:
        """Tests that execute the statement with the fault.

        Of a statement outside of functions, which runs at import, and of one that no process with
        coverage runs: tests that execute any function of the file,
        and those of the files that name it.
        """
        tree = ast.parse(text := (root / fault.file).read_text(encoding="utf-8"))
        known = self.lines.get(fault.file, {})
        inside, own = _statement(tree, fault.lines(text))
        found = {test for line in own if inside for test in known.get(line, ())}
        if found:
            return found
        files = naming(fault.file, {test.partition("::")[0] for test in self.seconds}, root)
        found = {test for test in self.seconds if test.partition("::")[0] in files}
        return found | {test for line in _in_functions(tree) for test in known.get(line, ())}


def mirror(file: str) -> str:
    """The unit tests of a file of the package."""
    place = Path("tests/unit", *Path(file).parts[1:])
    return place.with_name(f"test_{place.name}").as_posix()


def naming(file: str, tests: Iterable[str], root: Path) -> set[str]:
    """The test files that name a module of the package, or import from one that does."""
    texts = {test: (root / test).read_text(encoding="utf-8") for test in tests}
    word = re.compile(rf"\b{Path(file).stem}\b")
    found = {test for test, text in texts.items() if word.search(text)}
    imported = re.compile(rf"\b({'|'.join(sorted(Path(test).stem for test in found))}) import\b")
    return found | {test for test, text in texts.items() if found and imported.search(text)}


def _statement(tree: ast.Module, lines: range) -> tuple[bool, set[int]]:
    """Whether the innermost statement around these lines lies in a function, and its lines;
    of a block, its head.
    """
    inside = False
    own = set(lines)
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or not node.lineno <= lines[0] <= (node.end_lineno or 0):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = inside or lines[0] >= node.body[0].lineno
        body = getattr(node, "body", None)
        if body is None or lines[0] < body[0].lineno:
            own = {
                *lines,
                *range(node.lineno, (body[0].lineno if body else (node.end_lineno or 0) + 1)),
            }
    return inside, own


def _in_functions(tree: ast.Module) -> set[int]:
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {line for f in functions for line in range(f.body[0].lineno, (f.end_lineno or 0) + 1)}


def collect(files: Iterable[str], part: str, jobs: int, paths: Sequence[str]) -> Contexts:
    """Run the tests once, in a copy, with coverage of these files."""
    with tempfile.TemporaryDirectory(prefix="zeus-contexts-") as held:
        folder = Path(held, "copy")
        data = Path(held, "data")
        data.mkdir()
        scratch.copy_to(folder)
        settings = data / "settings.ini"
        times = data / "times.json"
        included = "".join(f"    {folder / file}\n" for file in files)
        settings.write_text(_SETTINGS.format(data=data) + included, encoding="utf-8")
        more = {"COVERAGE_PROCESS_START": str(settings), contexts.TIMES: str(times)}
        arguments = [
            "-p",
            "tests.mutants.contexts",
            "-q",
            "-m",
            PARTS[part],
            "-n",
            str(jobs),
            *paths,
        ]
        # which tests fail without any fault
        print(scratch.pytest(folder, arguments, more).stdout[-3000:])
        measured = Coverage(data_file=str(data / "coverage"), config_file=False)
        measured.combine([str(data)])
        ended = json.loads(times.read_text(encoding="utf-8"))
        passed = {
            test: seconds for test, (outcome, seconds) in ended.items() if outcome == "passed"
        }
        by_line = {
            file: measured.get_data().contexts_by_lineno(str(folder / file)) for file in files
        }
    return Contexts(passed, {file: _tests_of(found, passed) for file, found in by_line.items()})


def _tests_of(found: dict[int, list[str]], passed: Iterable[str]) -> dict[int, list[str]]:
    """Line -> tests; what runs while fixtures are made counts for all tests of the file."""
    of_file: dict[str, list[str]] = {}
    for test in passed:
        of_file.setdefault(test.partition("::")[0], []).append(test)
    known = {test for tests in of_file.values() for test in tests}
    lines: dict[int, list[str]] = {}
    for line, names in found.items():
        tests = {name for name in names if name in known}
        for name in names:
            if name.endswith(contexts.SET_UP):
                tests.update(of_file.get(name.partition("::")[0], ()))
        lines[line] = sorted(tests)
    return lines
