"""Default names of jobs: two tasks or values never share one, and a name tells of what it is made."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.job_ids import job_id_of_task, job_id_of_value, names_in

NAMES = st.lists(st.text("ab_-", min_size=1, max_size=3), min_size=1, max_size=3).map(".".join)


def test_dags_groups_and_values_with_the_same_words_are_three_jobs() -> None:
    by_task, by_dag = job_id_of_task("fraud", "eu.train"), job_id_of_task("fraud.eu", "train")
    by_value = job_id_of_value(job_id_of_task("fraud", "eu"), "train")
    assert (by_task, by_dag, by_value) == ("fraud.eu..train", "fraud..eu.train", "fraud.eu.train")


def test_names_without_dots_stay() -> None:
    assert job_id_of_value(job_id_of_task("nightly", "train"), "eu") == "nightly.train.eu"
    assert job_id_of_value("of-its-author.v1", "0.5") == "of-its-author.v1.0..5"


@given(NAMES, NAMES, st.none() | NAMES)
def test_a_name_tells_of_what_it_is_made(dag_id: str, task_id: str, value: str | None) -> None:
    job_id = job_id_of_task(dag_id, task_id)
    if value is not None:
        job_id = job_id_of_value(job_id, value)
    assert names_in(job_id) == [name for name in (dag_id, task_id, value) if name is not None]
