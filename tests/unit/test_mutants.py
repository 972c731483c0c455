"""The list of faults fits the package as it is, and a comparison notices what is lost."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from tests.mutants import draw, faults, report, scratch
from tests.mutants.__main__ import main
from tests.mutants.collect import Contexts
from tests.mutants.run import Outcome, batches, first_failure, in_order, within

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
    assert replace(fault, old="a\nd", new="a\nb\nd").lines("a\nd\n") == range(2, 3)


def test_half_are_drawn_and_half_undo_a_fix() -> None:
    listed = faults.read()

    assert Counter(fault.origin.split()[0] for fault in listed) == {"drawn": 30, "fix": 30}
    assert len({fault.id for fault in listed}) == 60
    assert (
        len(
            {
                fault.put_into((scratch.ROOT / fault.file).read_text(encoding="utf-8"))
                for fault in listed
            }
        )
        == 60
    )


def test_a_seed_draws_the_same_again(tmp_path: Path) -> None:
    shutil.copytree(scratch.ROOT / draw.PACKAGE / "model", tmp_path / draw.PACKAGE / "model")

    drawn = draw.draw(tmp_path, 12, seed=1)

    assert drawn == draw.draw(tmp_path, 12, seed=1)
    assert drawn != draw.draw(tmp_path, 12, seed=2)
    for number, edit in enumerate(drawn):
        text = (tmp_path / edit.file).read_text(encoding="utf-8")
        compile(draw.fault_of(edit, text, number).put_into(text), edit.file, "exec")


def test_a_loss_is_noticed() -> None:
    before = {"a": FOUND, "b": FOUND, "c": MISSED, "d": FOUND}
    after = {"a": FOUND, "b": MISSED, "c": FOUND}

    assert report.compare(before, before) == 0
    assert report.compare(before, after) == 1
    assert report.lost(before, after) == ["b", "d"]


def test_what_slow_tests_alone_find_is_told_apart() -> None:
    before = {"a": FOUND}
    after = {"a": replace(FOUND, part="slow")}

    assert report.lost(before, after) == []
    assert report.slower(before, after) == ["a"]


def test_a_file_of_ones_own_comes_first_then_those_that_name_it(tmp_path: Path) -> None:
    fault = replace(faults.read()[0], file="airflow_provider_zeus/model/cost.py")
    for file, text in (
        ("tests/unit/model/test_cost.py", ""),
        ("tests/ui/test_x.py", ""),
        ("tests/test_y.py", "cost"),
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    seconds = {
        "tests/ui/test_x.py::b": 1.0,
        "tests/test_y.py::c": 2.0,
        "tests/unit/model/test_cost.py::a": 9.0,
    }

    files = in_order(fault, set(seconds), seconds, tmp_path, 3)

    assert files == [[each] for each in reversed(seconds)]
    assert in_order(fault, set(seconds), seconds, tmp_path, 1) == files[:1]
    assert [len(batch) for batch in batches(files)] == [1, 2]


def test_tests_are_taken_as_long_as_they_fit_into_the_time() -> None:
    seconds = {"a::1": 4.0, "a::2": 9.0, "b::1": 5.0, "b::2": 7.0, "c::1": 1.0}
    files = [["a::1", "a::2"], ["b::1", "b::2"], ["c::1"]]

    assert list(within(files, seconds, inf)) == files
    assert list(within(files, seconds, 10.0)) == [["a::1"], ["b::1"], ["c::1"]]
    assert list(within(files, seconds, 9.5)) == [["a::1"], ["b::1"]]
    assert list(within(files, seconds, 2.0)) == [["a::1"]], "one runs, however long it takes"


def test_a_stopped_run_of_drawn_faults_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(scratch.ROOT / draw.PACKAGE / "model", tmp_path / draw.PACKAGE / "model")
    drawn = draw.faults(tmp_path, 5, seed=1)
    monkeypatch.setattr(scratch, "ROOT", tmp_path)
    monkeypatch.setattr("tests.mutants.__main__.report.write", lambda path, known: None)
    done = {drawn[0].id: FOUND, drawn[1].id: MISSED}
    monkeypatch.setattr("tests.mutants.__main__.report.read", lambda path: done)
    tried: list[str] = []
    monkeypatch.setattr(
        "tests.mutants.__main__.run.run",
        lambda left, attempt, told, jobs: tried.extend(fault.id for fault in left),
    )
    contexts = tmp_path / "contexts.json"
    Contexts().write(contexts)
    words = ["run", "--drawn", "5", "--seed", "1", "--report", str(contexts)]
    monkeypatch.setattr("sys.argv", ["mutants", *words, "--contexts", str(contexts)])

    assert main() == 0
    assert tried == [fault.id for fault in drawn[2:]]


def test_a_fault_that_keeps_a_conftest_from_being_imported_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "ImportError while loading conftest 'tests/conftest.py'."
    ended = subprocess.CompletedProcess([], 4, said)
    monkeypatch.setattr(scratch, "pytest", lambda *arguments: ended)

    assert first_failure(tmp_path, ["tests/test_a.py::b"], {"tests/test_a.py::b": 1.0})
