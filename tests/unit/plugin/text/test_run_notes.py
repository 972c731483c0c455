"""What is said of runs that do not teach, and of map indexes that share a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zeus.model.deadline import InTime
from airflow_provider_zeus.model.trial import (
    WHY_COLD,
    State,
    Trial,
)
from airflow_provider_zeus.plugin.text.run_notes import (
    deadline,
    renamed,
    shared_job,
    start_unseen,
    untaught,
    untaught_run,
)
from airflow_provider_zeus.training.starts import UNSEEN
from tests.golden import Table
from tests.unit.plugin.kit import JOB, trial

JOB_PAGE = Table("job_page")
RUN_PAGE = Table("run_page")
DEFAULT = JOB.learn_from
ALL = ("scheduled", "asset_triggered", "manual", "backfill", "test")


TESTS = [trial(n, "run1", run_type="test", map_index=n) for n in (1, 2)]
UNTAUGHT = {
    "16 backfills and a test do not teach": [
        *(trial(n, f"run{n}", run_type="backfill") for n in range(1, 17)),
        trial(17, "run16", run_type="backfill"),
        trial(18, "t", run_type="test"),
        trial(19, "s"),
    ],
    "two map indexes of a test do not teach": TESTS,
    "one test does not teach": TESTS[:1],
}


@pytest.mark.parametrize("situation", UNTAUGHT)
def test_runs_that_do_not_teach_are_counted_by_type(situation: str) -> None:
    JOB_PAGE.check(situation, untaught(UNTAUGHT[situation], DEFAULT))
    assert untaught(UNTAUGHT[situation], ALL) == ""


def test_where_all_runs_teach_nothing_is_said() -> None:
    assert untaught([], DEFAULT) == ""
    assert untaught_run("scheduled", DEFAULT) == ""
    RUN_PAGE.check("a backfill does not teach", untaught_run("backfill", ["scheduled"]))


def test_a_shared_job_is_said_with_its_remedy() -> None:
    mapped = [trial(n + 1, "run1", map_index=n) for n in range(3)]
    JOB_PAGE.check("three map indexes share a job", shared_job(mapped))
    assert shared_job([trial(1, "run1", map_index=0), trial(2, "run2", map_index=1)]) == "", (
        "one a run"
    )
    assert shared_job([trial(1, "run1", map_index=0), trial(2, "run1", map_index=0)]) == "", (
        "two attempts of one"
    )
    assert shared_job([trial(1, "run1"), trial(2, "run1", task_id="other")]) == ""
    assert shared_job([]) == ""


def test_a_job_that_looks_renamed_is_told_how_to_get_its_history() -> None:
    old = trial(1, "r1", job_id="d.old name")
    new = trial(2, "r2", job_id="d.new name")
    JOB_PAGE.check("a task looks renamed", renamed(old, new))
    other_dag = replace(new, origin=replace(new.origin, dag_id="e"))
    JOB_PAGE.check("a DAG looks renamed", renamed(old, other_dag))


def test_a_start_that_the_newest_runs_do_not_use_is_said_with_its_remedy() -> None:
    seen = trial(1, "r1", start="warm")
    unseen = [trial(n, f"r{n}", start="cold", reasons={WHY_COLD: UNSEEN}) for n in (2, 3)]
    JOB_PAGE.check(
        "the newest runs do not use their start", start_unseen([*unseen, seen, trial(4, "r4")])
    )
    assert start_unseen([*unseen, trial(5, "r5", start="cold")]) == "", "it is used now"
    other = trial(6, "r6", start="cold", reasons={WHY_COLD: "there is no earlier model"})
    assert start_unseen([*unseen, other]) == start_unseen([]) == ""


def due(
    number: int = 1, *, opened_at: float = 1_000.0, closed_at: float | None, **changes: Any
) -> Trial:
    """An attempt of a run that has to end by 01:17 UTC."""
    made = trial(number, "run1", opened_at=opened_at, **{"time_s": 60.0, **changes})
    planned = replace(made.planned, in_time=InTime(finish_by_s=4_660.0))
    return replace(made, planned=planned, closed_at=closed_at)


DIED = {"state": State.ABANDONED}
DEADLINES = {
    "a deadline was met": [due(closed_at=1_100.0)],
    "a deadline was missed in simulated time": [due(closed_at=1_100.0, time_s=3_720.0)],
    "a deadline is ahead": [due(closed_at=None)],
    "a deadline was missed by the second attempt": [
        due(closed_at=1_100.0),
        due(2, closed_at=4_720.0),
    ],
    "a run with a deadline died": [due(closed_at=None, **DIED)],
    "a run with a deadline died and was closed by the next": [due(closed_at=90_000.0, **DIED)],
    "a deadline was met after an attempt died": [
        due(closed_at=2_000.0, **DIED),
        due(2, opened_at=2_000.0, closed_at=2_060.0),
    ],
}


@pytest.mark.parametrize("situation", DEADLINES)
def test_by_how_much_a_deadline_was_met_or_missed(situation: str) -> None:
    RUN_PAGE.check(situation, deadline(DEADLINES[situation]))


def test_a_run_without_a_deadline_missed_none() -> None:
    assert deadline([trial(1, "run1", opened_at=1_000.0, time_s=60.0)]) == ""
