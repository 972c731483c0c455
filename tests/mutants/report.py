"""Reports of which tests find which faults, and what one of them has lost against another."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from tests.mutants import scratch
from tests.mutants.run import Outcome

Report = dict[str, Outcome]  # by the fault's id


def read(path: Path) -> Report:
    """Read a report."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return {fault: Outcome(**outcome) for fault, outcome in data["faults"].items()}


def write(path: Path, report: Mapping[str, Outcome]) -> None:
    """Write a report, with the commit that the tests are of."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(
        command, cwd=scratch.ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    outcomes = {fault: asdict(report[fault]) for fault in sorted(report)}
    path.write_text(
        json.dumps({"commit": commit, "faults": outcomes}, indent=1) + "\n", encoding="utf-8"
    )


def summary(report: Mapping[str, Outcome]) -> str:
    """How many faults were found, and by which part of the tests."""
    counts = Counter(f"found by {o.part} tests" if o.found else o.outcome for o in report.values())
    return ", ".join(f"{count} {what}" for what, count in counts.most_common())


def lost(before: Mapping[str, Outcome], after: Mapping[str, Outcome]) -> list[str]:
    """Faults that were found before and are not any more."""
    return [
        fault
        for fault, outcome in before.items()
        if outcome.found and not (fault in after and after[fault].found)
    ]


def slower(before: Mapping[str, Outcome], after: Mapping[str, Outcome]) -> list[str]:
    """Faults that quick tests found before, and slow ones alone find now."""
    quick = [
        fault for fault, outcome in before.items() if outcome.found and outcome.part == "quick"
    ]
    return [
        fault
        for fault in quick
        if fault in after and after[fault].found and after[fault].part == "slow"
    ]


def compare(before: Mapping[str, Outcome], after: Mapping[str, Outcome]) -> int:
    """Say what differs; the exit status is 1 where a fault is lost."""
    print(f"before: {summary(before)}\nafter: {summary(after)}")
    for fault in slower(before, after):
        print(f"{fault}: slow tests alone find it now ({after[fault].found_by})")
    for fault in lost(before, after):
        print(f"{fault}: LOST; before it was found by {before[fault].found_by}")
    return 1 if lost(before, after) else 0
