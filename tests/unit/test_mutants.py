"""The list of faults fits the package as it is, and a comparison notices what is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.mutants import draw, faults, report, scratch
from tests.mutants.run import Outcome, batches, in_order

FOUND = Outcome("found", "quick", "tests/unit/test_a.py::test_b", 1, 1.0)
MISSED = Outcome("missed", "quick", "", 1, 1.0)


@pytest.mark.parametrize("fault", faults.read(), ids=lambda fault: fault.id)
def test_a_fault_can_be_put_into_its_file(fault: faults.Fault) -> None:
    text = (scratch.ROOT / fault.file).read_text(encoding="utf-8")

    changed = fault.put_into(text)

    assert changed != text
    compile(changed, fault.file, "exec")
    assert fault.lines(text)


def test_a_faults_lines_are_those_that_differ() -> None:
    fault = replace(faults.read()[0], old="a\nb\nc\nd", new="a\nB\nd")

    assert fault.lines("0\na\nb\nc\nd") == range(3, 5)
    assert replace(fault, old="b + c", new="b - c").lines("a\nb + c\n") == range(2, 3)


def test_half_are_drawn_and_half_undo_a_fix() -> None:
    listed = faults.read()

    assert Counter(fault.origin.split()[0] for fault in listed) == {"drawn": 30, "fix": 30}
    assert len({fault.id for fault in listed}) == 60
    assert len({fault.put_into((scratch.ROOT / fault.file).read_text(encoding="utf-8")) for fault in listed}) == 60


def test_a_seed_draws_the_same_again() -> None:
    assert draw.draw(scratch.ROOT, 12, seed=1) == draw.draw(scratch.ROOT, 12, seed=1)
    assert draw.draw(scratch.ROOT, 12, seed=1) != draw.draw(scratch.ROOT, 12, seed=2)


def test_a_loss_is_noticed() -> None:
    before = {"a": FOUND, "b": FOUND, "c": MISSED, "d": FOUND}
    after = {"a": FOUND, "b": MISSED, "c": FOUND}

    assert report.compare(before, before) == 0
    assert report.compare(before, after) == 1
    assert report.lost(before, after) == ["b", "d"]


def test_what_slow_tests_alone_find_is_told_apart() -> None:
    before, after = {"a": FOUND}, {"a": replace(FOUND, part="slow")}

    assert report.lost(before, after) == []
    assert report.slower(before, after) == ["a"]


def test_a_file_of_ones_own_comes_first() -> None:
    fault = replace(faults.read()[0], file="airflow_provider_zeus/model/cost.py")
    seconds = {
        "tests/unit/model/test_cost.py::a": 9.0,
        "tests/ui/test_x.py::b": 1.0,
        "tests/unit/model/test_y.py::c": 2.0,
    }

    files = in_order(fault, set(seconds), seconds)

    assert files == [[each] for each in sorted(seconds, reverse=True) if "cost" in each] + [
        ["tests/unit/model/test_y.py::c"],
        ["tests/ui/test_x.py::b"],
    ]
    assert [len(batch) for batch in batches(files)] == [1, 2]
