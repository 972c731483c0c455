"""Puts each fault into a copy of the repository and runs the tests that execute it,
until one fails.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutants import contexts, scratch
from tests.mutants.collect import Contexts, mirror, naming
from tests.mutants.faults import Fault

TEST_S = 120  # no quick test takes as long, even on a busy host
TIME_OUT = "time-out"


@dataclass(frozen=True)
class Outcome:
    """Whether tests find a fault."""

    outcome: str  # found, missed, covered by no test
    part: str  # of the tests, quick or slow, that ran last
    found_by: str = ""  # a test, or a file that cannot be imported
    covering: int = 0  # tests that execute the fault
    seconds: float = 0.0

    @property
    def found(self) -> bool:
        """Whether a test failed."""
        return self.outcome == "found"


def in_order(
    fault: Fault, tests: set[str], seconds: dict[str, float], root: Path, most: int
) -> list[list[str]]:
    """So many tests by file: the fault's own unit tests,
    those of files that name its module, the quickest others.
    """
    own = mirror(fault.file)
    names = naming(fault.file, {test.partition("::")[0] for test in tests}, root)

    def far(file: str) -> int:
        return 0 if file == own else 1 if file in names else 2

    files: dict[str, list[str]] = {}
    for test in sorted(tests, key=lambda each: (far(each.partition("::")[0]), seconds[each]))[
        :most
    ]:
        files.setdefault(test.partition("::")[0], []).append(test)
    took = {file: sum(seconds[test] for test in of) for file, of in files.items()}
    return [files[file] for file in sorted(files, key=lambda each: (far(each), took[each]))]


def within(files: list[list[str]], seconds: dict[str, float], most_s: float) -> Iterator[list[str]]:
    """The tests that take at most so long together; one that takes longer runs alone."""
    left_s = most_s
    for number, tests in enumerate(files):
        fitting: list[str] = []
        for test in tests:
            is_first = number == 0 and not fitting
            if seconds[test] <= left_s or is_first:
                fitting.append(test)
                left_s -= seconds[test]
        if fitting:
            yield fitting


def batches(files: list[list[str]]) -> Iterator[list[str]]:
    """One file, then four, sixteen and so on: to import them takes longest."""
    size = 1
    while files:
        yield [test for file in files[:size] for test in file]
        files = files[size:]
        size = size * 4


def try_one(
    fault: Fault, folder: Path, known: Contexts, part: str, most: int, most_s: float
) -> Outcome:
    """Run the tests of one fault in a copy, which is left as it was.

    At most so many tests run, and not for longer than they took before.
    """
    place = folder / fault.file
    begun_s = time.monotonic()
    text = place.read_text(encoding="utf-8")
    tests = known.covering(fault, folder)
    near = in_order(fault, tests, known.seconds, folder, most)
    chosen = list(within(near, known.seconds, most_s))
    found_by = ""
    place.write_text(fault.put_into(text), encoding="utf-8")
    try:
        for batch in batches(chosen):
            found_by = found_by or first_failure(folder, batch, known.seconds)
    except RuntimeError as error:
        return Outcome(f"not run: {error}", part)
    finally:
        place.write_text(text, encoding="utf-8")
    outcome = "found" if found_by else "missed" if tests else "covered by no test"
    return Outcome(outcome, part, found_by, len(tests), round(time.monotonic() - begun_s, 1))


def first_failure(folder: Path, tests: Sequence[str], seconds: dict[str, float]) -> str:
    """The first test that fails, twice; empty where all pass."""
    left = list(tests)
    while left:
        failed = _failure(folder, left, 60 + TEST_S + 5 * sum(seconds[test] for test in left))
        if failed not in left or _failure(folder, [failed], 60 + 2 * TEST_S) == failed:
            return failed
        left.remove(failed)  # by chance: the host was busy
    return ""


def _failure(folder: Path, tests: Sequence[str], most_s: float) -> str:
    """The test that failed, or the file that cannot be imported.

    Raises RuntimeError: pytest did not run them.
    """
    with tempfile.TemporaryDirectory(prefix="zeus-batch-") as held:
        chosen = Path(held, "tests")
        times = Path(held, "times.json")
        chosen.write_text("\n".join(tests), encoding="utf-8")
        arguments = [
            "-p",
            "tests.mutants.contexts",
            "-x",
            "-q",
            f"--timeout={TEST_S}",
            f"@{chosen}",
        ]
        try:
            done = scratch.pytest(folder, arguments, {contexts.TIMES: str(times)}, most_s)
        except subprocess.TimeoutExpired:
            return TIME_OUT
        known = json.loads(times.read_text(encoding="utf-8")) if times.exists() else {}
    failed = [test for test, (outcome, _) in known.items() if outcome == "failed"]
    if done.returncode == 0:
        return ""
    if "while loading conftest" in done.stdout:
        return "a conftest.py"
    if failed or done.returncode not in (3, 4, 5):
        return failed[0] if failed else f"pytest ends by {done.returncode}"
    raise RuntimeError(f"pytest ends by {done.returncode}: {done.stdout[-2000:]}")


def run(
    faults: Sequence[Fault],
    attempt: Callable[[Fault, Path], Outcome],
    told: Callable[[Fault, Outcome], None],
    jobs: int,
) -> None:
    """Try faults side by side, each job in a copy of its own; ``told`` hears of each outcome."""
    with tempfile.TemporaryDirectory(prefix="zeus-mutants-") as held:
        folders = SimpleQueue[Path]()
        for number in range(jobs):
            folder = Path(held, str(number))
            scratch.copy_to(folder)
            folders.put(folder)

        def one(fault: Fault) -> Outcome:
            folder = folders.get()
            try:
                return attempt(fault, folder)
            finally:
                folders.put(folder)

        with ThreadPoolExecutor(jobs) as pool:
            for fault, outcome in zip(faults, pool.map(one, faults), strict=True):
                told(fault, outcome)
