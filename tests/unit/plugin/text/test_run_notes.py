"""What is said of runs that do not teach, and of map indexes that share a job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_zeus.model.deadline import InTime
from airflow_provider_zeus.model.trial import BATCH_SIZE, OF_TRAINER, TELL_STEPS, TELL_TRAINER, WHY_COLD, State
from airflow_provider_zeus.plugin.text.run_notes import (
    bypassed,
    deadline,
    shared_job,
    start_unseen,
    untaught,
    untaught_run,
)
from airflow_provider_zeus.training.starts import UNSEEN
from tests.unit.plugin.kit import JOB, trial

DEFAULT = JOB.learn_from
ALL = ("scheduled", "asset_triggered", "manual", "backfill", "test")


def test_runs_are_counted_by_type_and_the_remedy_names_them() -> None:
    trials = [trial(n, f"run{n}", run_type="backfill") for n in range(1, 17)]
    trials += [trial(17, "run16", run_type="backfill"), trial(18, "t", run_type="test"), trial(19, "s")]
    said = untaught(trials, DEFAULT)
    assert said.startswith("16 runs of type backfill and 1 run of type test do not teach")
    assert 'learn_from=["scheduled", "asset_triggered", "manual", "backfill", "test"]' in said
    assert untaught(trials, ALL) == ""
    assert untaught([], DEFAULT) == ""


def test_map_indexes_are_runs_of_their_own() -> None:
    trials = [trial(n, "run1", run_type="test", map_index=n) for n in (1, 2)]
    assert untaught(trials, DEFAULT).startswith("2 runs of type test do")
    assert untaught(trials[:1], DEFAULT).startswith("1 run of type test does")


def test_one_run() -> None:
    assert untaught_run("scheduled", DEFAULT) == ""
    assert 'ZeusJob(learn_from=["scheduled", "backfill"])' in untaught_run("backfill", ["scheduled"])


def test_a_shared_job_is_said_with_its_remedy() -> None:
    mapped = [trial(n + 1, "run1", map_index=n) for n in range(3)]
    said = shared_job(mapped)
    assert ("3 map indexes" in said, "job_id_by=" in said) == (True, True)
    assert shared_job([trial(1, "run1", map_index=0), trial(2, "run2", map_index=1)]) == "", "one a run"
    assert shared_job([trial(1, "run1", map_index=0), trial(2, "run1", map_index=0)]) == "", "two attempts of one"
    assert shared_job([trial(1, "run1"), trial(2, "run1", task_id="other")]) == ""
    assert shared_job([]) == ""


def test_a_start_that_the_newest_runs_do_not_use_is_said_with_its_remedy() -> None:
    seen = trial(1, "r1", start="warm")
    unseen = [trial(n, f"r{n}", start="cold", reasons={WHY_COLD: UNSEEN}) for n in (2, 3)]
    said = start_unseen([*unseen, seen, trial(4, "r4")])
    assert said.startswith("The newest 2 runs count as cold")
    assert "call run.start(model, state) after the model is built, or run.started(...)" in said
    assert start_unseen([*unseen, trial(5, "r5", start="cold")]) == "", "it is used now"
    other = trial(6, "r6", start="cold", reasons={WHY_COLD: "there is no earlier model"})
    assert start_unseen([*unseen, other]) == start_unseen([]) == ""


def test_a_bypassed_loader_names_its_newest_reason_and_the_remedy() -> None:
    trials = [trial(n, f"r{n}", reasons={BATCH_SIZE: f"reason {n}"}) for n in (1, 2)]
    said = bypassed([*trials, trial(3, "r3")])
    assert said.startswith("2 runs teach nothing")
    assert "reason 2" in said
    assert TELL_STEPS[1:] in said
    assert bypassed([trial(3, "r3")]) == ""
    said = bypassed([trial(4, "r4", reasons={BATCH_SIZE: f"torch made steps{OF_TRAINER}"})])
    assert said.endswith(f"torch made steps{OF_TRAINER}. {TELL_TRAINER[0].upper()}{TELL_TRAINER[1:]}.")
    assert "run.data_loader" not in said


def test_by_how_much_a_deadline_was_met_or_missed() -> None:
    plain = trial(1, "run1", opened_at=1_000.0, time_s=60.0)
    due = replace(plain, planned=replace(plain.planned, in_time=InTime(finish_by_s=4_660.0)), closed_at=1_100.0)
    assert deadline([plain]) == ""
    assert deadline([due]) == "Deadline: 1970-01-01 01:17 UTC. The run ended 59 min 20 s before it."
    late = replace(due, observation=replace(due.observation, time_s=3_720.0))
    assert deadline([late]) == "Deadline: 1970-01-01 01:17 UTC. The run ended 1 min 00 s after it.", "simulated time"
    assert deadline([replace(due, closed_at=None)]).endswith("The run has not ended.")
    slow = replace(trial(2, "run1", opened_at=1_000.0, time_s=60.0), planned=plain.planned, closed_at=4_720.0)
    assert deadline([due, slow]).endswith("The run ended 1 min 00 s after it.")


@pytest.mark.parametrize("closed_at", [None, 90_000.0], ids=["not yet closed", "closed by the next run"])
def test_a_run_that_died_missed_its_deadline_by_no_time(closed_at: float | None) -> None:
    died = trial(1, "run1", state=State.ABANDONED, opened_at=1_000.0, time_s=60.0)
    died = replace(died, planned=replace(died.planned, in_time=InTime(finish_by_s=4_660.0)), closed_at=closed_at)
    assert deadline([died]) == "Deadline: 1970-01-01 01:17 UTC. The run died and left no result."
    again = replace(trial(2, "run1", opened_at=2_000.0, time_s=60.0), planned=died.planned, closed_at=2_060.0)
    assert deadline([replace(died, closed_at=2_000.0), again]).endswith("The run ended 43 min 20 s before it.")
