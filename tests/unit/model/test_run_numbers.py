"""Run 12, attempt 12.2: one maker of these numbers, from whole runs, through all tries."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_zeus.model.run_numbers import RunNumbers, TryNumbers
from airflow_provider_zeus.model.trial import Trial, TrialKey
from tests.unit.store.store_kit import request
from tests.unit.store.test_store_rules import trial


def named(number: int, run: int, ti_id: str, attempt: int = 1, job_id: str = "d.train") -> Trial:
    """A trial of a DAG run."""
    key = TrialKey(ti_id, attempt)
    origin = request(run).origin
    return replace(trial(), number=number, key=key, origin=origin, job_id=job_id)


def test_a_run_has_the_number_of_its_first_trial_and_its_attempts_count_through_its_tries() -> None:
    first = named(12, 1, "try-1")
    second = named(13, 1, "try-1", 2)
    overlapping = named(14, 2, "other")
    retried = named(15, 1, "try-2")
    numbers = RunNumbers([retried, overlapping, second, first])
    of_all = (first, second, overlapping, retried)
    assert [numbers.run(each) for each in of_all] == [12, 12, 14, 12]
    assert [numbers.attempt(each) for each in of_all] == ["12.1", "12.2", "14.1", "12.3"]
    assert numbers.run_with("d.train", 13) == 12, "where the policy knows the trial alone"


def test_runs_of_two_jobs_in_one_dag_run_have_numbers_of_their_own() -> None:
    ours = named(12, 1, "a")
    theirs = named(3, 1, "b", job_id="d.other")
    numbers = RunNumbers([ours, theirs])
    assert (numbers.attempt(ours), numbers.attempt(theirs)) == ("12.1", "3.1")
    assert numbers.run_with("d.other", 12) == 12, "no trial of that job has this number"


def test_what_is_in_no_log_yet_has_no_run() -> None:
    waiting = named(0, 1, "try-1")
    assert RunNumbers([waiting]).run(waiting) == 0
    assert RunNumbers([waiting]).attempt(waiting) == "1"
    later = named(7, 1, "try-2")
    numbers = RunNumbers([waiting, later])
    assert (numbers.attempt(waiting), numbers.attempt(later)) == ("7.1", "7.2")


def test_numbers_of_a_try_are_those_of_the_log() -> None:
    assert TryNumbers(run=12, earlier=1).attempt(1) == "12.2"
    assert TryNumbers().attempt(2) == "2"
