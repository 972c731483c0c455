"""Default names of jobs: two tasks or values never share one, and a name tells of what it is made."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_zeus.model.job_ids import job_id_of_task, job_id_of_value, names_in

NAMES = st.text("ab.", min_size=1, max_size=4)
TASKS = st.tuples(NAMES, NAMES, st.none() | NAMES)  # DAG, task, and perhaps a value


def test_dags_groups_and_values_with_the_same_words_are_three_jobs() -> None:
    by_task = job_id_of_task("fraud", "eu.train")
    by_dag = job_id_of_task("fraud.eu", "train")
    by_value = job_id_of_value(job_id_of_task("fraud", "eu"), "train")
    assert (by_task, by_dag, by_value) == ("fraud.eu..train", "fraud..eu.train", "fraud.eu.train")


def test_names_without_dots_stay() -> None:
    assert job_id_of_value(job_id_of_task("nightly", "train"), "eu") == "nightly.train.eu"
    assert job_id_of_value("of-its-author.v1", "0.5") == "of-its-author.v1.0..5"


def job_id_of(dag_id: str, task_id: str, value: str | None) -> str:
    job_id = job_id_of_task(dag_id, task_id)
    return job_id if value is None else job_id_of_value(job_id, value)


@given(TASKS)
def test_a_name_tells_of_what_it_is_made(task: tuple[str, str, str | None]) -> None:
    assert names_in(job_id_of(*task)) == [name for name in task if name is not None]


@given(TASKS, TASKS)
@example(("a.", "b", None), ("a", ".b", None))
@example(("a", "b.", "c"), ("a", "b", ".c"))
@example(("..", "a", None), (".", ".a", None))
def test_no_two_tasks_or_values_share_a_name(
    one: tuple[str, str, str | None], other: tuple[str, str, str | None]
) -> None:
    assert (job_id_of(*one) == job_id_of(*other)) == (one == other)
