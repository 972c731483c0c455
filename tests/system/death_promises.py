"""What has succeeded stays so: each promise of docs/death.md, the tests that hold it, and how they ended."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
HEAD = ("Case", "What holds", "Test", "Played")


@dataclass(frozen=True, slots=True)
class Promise:
    """One row: a case, what holds in it, and its tests as ``path::name``; all parameters of a name belong to it."""

    case: str
    holds: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """How one test ended: ``passed``, ``failed``, or ``skipped``, and how long it took [s]."""

    test: str
    ended: str
    took_s: float


_RUNS = "tests/integration/test_kept_value.py"
_FAILING = "tests/unit/training/test_failing_sizes.py"
_NO_DATA = "tests/unit/training/test_no_data.py"
_FOLDER = "tests/unit/training/test_attempt_dir.py"
_TORCHRUN = "tests/integration/test_torchrun.py"

PROMISES: dict[str, tuple[Promise, ...]] = {
    "kept": (
        Promise(
            "A function that saves in `finally`, or clears its folder when it begins",
            "nothing is called after the kept value; what lies there is the kept model",
            (
                f"{_FAILING}::test_the_kept_call_is_the_last_one_whatever_ran_before",
                f"{_RUNS}::test_what_runs_before_the_kept_value_never_runs_after_it",
            ),
        ),
        Promise(
            "The device fails after the function has returned",
            "the value is kept",
            (f"{_FAILING}::test_a_model_that_was_returned_is_kept_where_the_device_fails_at_the_end",),
        ),
        Promise(
            "A try raises an error, or reports NaN or infinity",
            "the incumbent trains in the same task; the try is failed, with its reason",
            (
                f"{_FAILING}::test_an_exploratory_attempt_that_raises_is_given_up_and_the_incumbent_trains",
                f"{_FAILING}::test_an_exploratory_attempt_that_reports_no_finite_number_is_given_up",
                f"{_RUNS}::test_a_function_whose_try_fails_keeps_the_incumbents_model",
            ),
        ),
        Promise(
            "The process of a try is killed (command)",
            "the command is started again with the incumbent",
            (
                f"{_RUNS}::test_a_script_whose_try_fails_is_followed_by_the_incumbent",
                f"{_RUNS}::test_a_script_that_knows_nothing_of_us_is_started_again_with_the_incumbent",
            ),
        ),
        Promise(
            "One rank of a try raises an error (torchrun)",
            "all processes end, and the command is started again with the incumbent",
            (f"{_TORCHRUN}::test_an_error_in_a_try_ends_the_processes_and_the_incumbent_runs_in_new_ones",),
        ),
        Promise(
            "A pod dies in its try (`ZeusTrial`)",
            "its retry trains the incumbent alone",
            (f"{_RUNS}::test_a_pod_that_dies_in_its_try_is_retried_with_the_incumbent_alone",),
        ),
        Promise(
            "The incumbent or the default raises; Airflow's Skip and Fail; `strict=True`",
            "the error is the author's",
            (
                f"{_FAILING}::test_an_error_of_the_incumbent_or_the_default_is_its_authors",
                f"{_FAILING}::test_what_steers_the_task_leaves_the_run",
                f"{_FAILING}::test_a_strict_job_fails_with_its_exploratory_attempt",
            ),
        ),
        Promise(
            "A training goes on from a checkpoint",
            "its epochs are not learnt where it says so; `run.attempt_dir` is fresh for each attempt",
            (
                "tests/unit/training/test_resumed.py::test_epochs_go_on_where_the_checkpoint_was_and_are_not_learnt",
                f"{_FOLDER}::test_the_kept_attempts_folder_stays_and_the_others_goes",
            ),
        ),
        Promise(
            "A process dies with an attempt's folder",
            "the next run on the host removes it; folders of living processes and kept ones stay",
            (
                f"{_FOLDER}::test_what_a_killed_process_left_is_removed_by_the_next_run_and_what_a_living_one_has_is_not",
            ),
        ),
        Promise(
            "An empty slice of data",
            "state `no_data`, the task's value is kept, nothing is learnt",
            (
                f"{_NO_DATA}::test_an_epoch_without_a_step_ends_the_run_without_data_and_keeps_the_value",
                f"{_RUNS}::test_an_empty_slice_keeps_the_tasks_value_and_teaches_nothing",
            ),
        ),
        Promise(
            "A forked child of the training exits or raises",
            "it writes nothing of its parent's trial",
            ("tests/unit/training/test_forked.py::test_a_child_that_leaves_the_function_writes_nothing",),
        ),
    ),
}


def play(names: Iterable[str]) -> list[Result]:
    """Run the tests of these parts, slow ones too."""
    nodes = [test for name in names for promise in PROMISES[name] for test in promise.tests]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "slow or not slow", f"--junit-xml={report}", *nodes]
        subprocess.run(command, cwd=ROOT, check=False)
        return [_result(case) for case in ElementTree.parse(report).iter("testcase")]


def table(promises: Iterable[Promise], results: Iterable[Result]) -> str:
    """A table in Markdown, a row for each promise."""
    known = list(results)
    lines = [f"| {' | '.join(HEAD)} |", "|---|---|---|---|"]
    for promise in promises:
        mine = [r for r in known for test in promise.tests if r.test.partition("[")[0] == test]
        tests = ", ".join(f"`{test.removeprefix('tests/')}`" for test in promise.tests)
        lines.append(f"| {promise.case} | {promise.holds} | {tests} | {_said(mine)} |")
    return "\n".join(lines)


def _said(results: list[Result]) -> str:
    if not results:
        return "not played"
    bad = sorted({r.ended for r in results} - {"passed"})
    return " and ".join(bad) if bad else f"held, {sum(r.took_s for r in results):.1f} s"


def _result(case: ElementTree.Element) -> Result:
    ended = {"failure": "failed", "error": "failed", "skipped": "skipped"}
    tags = [ended[child.tag] for child in case if child.tag in ended]
    parts = case.get("classname", "").split(".")
    n = next(n for n in range(len(parts), 0, -1) if (ROOT / "/".join(parts[:n])).with_suffix(".py").exists())
    test = "::".join(["/".join(parts[:n]) + ".py", *parts[n:], case.get("name", "")])
    return Result(test, tags[0] if tags else "passed", float(case.get("time", 0)))
