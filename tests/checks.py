"""``python3 -m tests.checks [nightly [TEST ...]]``: the parts of a check, one after the other,
and what came of them.

Each part is a ``make`` target that anybody can run. A part that fails does not keep the next one
from running. One that takes longer than its limit is ended; its test processes write the stacks of
their threads first (:mod:`tests.run_order`). Standard library only, and any Python 3:
it runs before anything is installed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

RESULTS = Path("test-results")
ORDER = RESULTS / "order"  # of the test processes (tests.run_order)
DYING_S = 15  # at most, for stacks to be written before a part that hangs is killed
# lines of the closing block
SLOWEST = 10
FAILURES = 8
FRAMES = 4


class Part(NamedTuple):
    """``make`` with its targets; its limit is three times and more what they take on two idle
    cores.
    """

    name: str
    make: str
    limit_s: int


class Ended(NamedTuple):
    """A part that is over."""

    part: Part
    status: int | None  # None: ended at its limit
    took_s: float

    @property
    def fine(self) -> bool:
        return self.status == 0


CHECK = (
    # side by side: pip and mypy keep one core busy each
    Part("test-lowest", "--jobs 2 lint test-lowest", 20 * 60),
    Part("test", "test", 20 * 60),
    Part("test-slow", "test-slow", 40 * 60),
)
NIGHTLY = (
    Part("nightly-tests", "nightly-tests", 120 * 60),
    Part("nightly-examples", "nightly-examples", 90 * 60),
    Part("nightly-lowest", "nightly-lowest", 15 * 60),
    Part("test-newest", "test-newest", 15 * 60),
)


def run(part: Part) -> Ended:
    """Run a part to its end or limit; what it prints is printed."""
    begun_s = time.monotonic()
    print(f"\n=== make {part.make}", flush=True)
    shutil.rmtree(ORDER, ignore_errors=True)  # of the part before
    process = subprocess.Popen(["make", *shlex.split(part.make)], start_new_session=True)
    status = None
    try:
        status = process.wait(part.limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGUSR1)
        keep_stacks(part)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return Ended(part, status, time.monotonic() - begun_s)


def keep_stacks(part: Part) -> None:
    """Wait until each test process has written its stacks, and keep them."""
    kept = RESULTS / f"order-{part.name}"
    until_s = time.monotonic() + DYING_S
    while time.monotonic() < until_s and not all(
        innermost(stacks) for stacks in ORDER.glob("*.stacks")
    ):
        time.sleep(0.1)
    shutil.rmtree(kept, ignore_errors=True)
    if ORDER.exists():
        ORDER.rename(kept)


def innermost(stacks: Path) -> list[str]:
    """The innermost calls of the thread that runs the tests; none while they are not written."""
    _, *threads = stacks.read_text().split("(most recent call first):")
    of_tests = next((thread for thread in threads if "_pytest" in thread), "")
    calls = re.findall(r'File "(.+)", line (\d+) in (.+)\n', of_tests)[:FRAMES]
    return [f"{file}:{line} {function}" for file, line, function in calls]


def tests_of(part: Part) -> list[tuple[float, str, str]]:
    """(seconds, test, first line of its failure or "") of each test that a part ran to its end."""
    file = RESULTS / f"{part.name}.xml"
    if not file.exists():
        return []
    found = []
    for case in ElementTree.parse(file).iter("testcase"):
        failed = [*case.iter("failure"), *case.iter("error")]
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        why = (failed[0].get("message") or "").strip().splitlines() if failed else []
        found.append((float(case.get("time") or 0), name, (why or ["failed"])[0] if failed else ""))
    return found


def hung(part: Part) -> list[str]:
    """Where each test process of a part stood when it was ended: its test,
    and the innermost calls.
    """
    lines = []
    for stacks in sorted((RESULTS / f"order-{part.name}").glob("*.stacks")):
        tests = stacks.with_suffix(".txt").read_text().splitlines()
        lines.append(f"    {stacks.stem} was in {tests[-1] if tests else 'no test yet'}")
        lines += [f"      {call}" for call in innermost(stacks)]
    return lines


def closing(ended: list[Ended]) -> list[str]:
    """At most some forty lines: each part with its time, what failed and why, the slowest tests."""
    lines = ["", "=== parts"]
    for part, status, took_s in ended:
        said = (
            "passed"
            if status == 0
            else "FAILED"
            if status is not None
            else f"ENDED after {part.limit_s // 60} min"
        )
        lines.append(
            f"{int(took_s) // 60:4d}:{int(took_s) % 60:02d} min  {said:<8}  make {part.make}"
        )
    lines.append(f"{int(sum(e.took_s for e in ended)) // 60:4d} min in all")
    slowest = sorted((test for e in ended for test in tests_of(e.part)), reverse=True)[:SLOWEST]
    lines += ["=== slowest tests", *(f"{seconds:6.1f} s  {name}" for seconds, name, _ in slowest)]
    for each in (e for e in ended if not e.fine):
        failed = [(name, why) for _, name, why in tests_of(each.part) if why]
        lines.append(f"=== why make {each.part.make} failed")
        lines += [f"    {name}: {why[:160]}" for name, why in failed[:FAILURES]]
        lines += [f"    and {len(failed) - FAILURES} more"] if len(failed) > FAILURES else []
        lines += hung(each.part) if each.status is None else []
        if not failed and each.status is not None:
            lines.append("    no test failed: see what it printed above")
        elif failed and "lint" in each.part.make.split():  # it has no list of what failed
            lines.append("    whether lint failed too stands in what it printed above")
    return lines


def nightly_line(ended: list[Ended]) -> str:
    """Date, commit and parts of a nightly run: what is quoted of it."""
    git = ("git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    commit = (
        subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
        or "no commit"
    )
    parts = (
        f"make {e.part.make} {'passed' if e.fine else 'FAILED'} in {e.took_s / 60:.0f} min"
        for e in ended
    )
    return f"{time.strftime('%Y-%m-%d')} {commit}: {'; '.join(parts)}"


def main(arguments: list[str]) -> int:
    """Run all parts; 1 where one failed.

    :param arguments: none: the check of a change; ``nightly``,
        and perhaps the tests that alone are to run.
    """
    nightly = arguments[:1] == ["nightly"]
    only = " ".join(arguments[1:])
    for old in RESULTS.glob("*.xml"):
        old.unlink()
    parts = NIGHTLY if nightly else CHECK
    if only:
        parts = (parts[0]._replace(make=f"{parts[0].make} PART='{only}'"),)
    ended = [run(part) for part in parts]
    print("\n".join(closing(ended)), flush=True)
    if nightly:
        with (RESULTS / "nightly.txt").open("a") as file:
            print(nightly_line(ended), file=file)
        print(nightly_line(ended), flush=True)
    return 0 if all(each.fine for each in ended) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
