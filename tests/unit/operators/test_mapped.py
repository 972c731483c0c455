"""``job_id_by``: the job id of a mapped value, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, XComArg, task_group

from airflow_provider_zeus import ZeusCommandOperator, ZeusJob, ZeusTrainOperator, ZeusTrial
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.operators.mixins import job_part
from airflow_provider_zeus.operators.recurrence import ask_request
from airflow_provider_zeus.printable import MOST_NAME
from airflow_provider_zeus.store.variables.airflow import SETTINGS, variable_key
from tests.unit.operators.test_recurrence import context

JOB = ZeusJob(batch_sizes=[16, 32], default_batch_size=32, target="accuracy >= 0.9", max_epochs=5)


def part(value: Any) -> str | None:
    return job_part("region", {"region": value})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("eu-west", "eu-west"),
        (7, "7"),
        (np.int64(7), "7"),
        (0.5, "0.5"),
        (0, "0"),
        ("A_b.c", "A_b.c"),
    ],
)
def test_a_plain_value_ends_the_job_id_as_it_is(value: Any, said: str) -> None:
    assert part(value) == said


@pytest.mark.parametrize(
    "value",
    ["eu/west", "Île-de-France", "a b", "x\0y", "\ud800", "r" * 300, "../../etc", "{{ x }}"],
)
def test_any_other_text_is_made_safe_and_short(value: str) -> None:
    found = part(value)
    assert found
    assert len(found) <= MOST_NAME
    assert variable_key(SETTINGS, f"d.train.{found}") == f"zeus-settings:d.train.{found}"
    assert found == part(value)


def test_two_values_are_never_one_job() -> None:
    values = ["eu/west", "eu_west", "eu west", "eu\\west", "r" * 300, "r" * 301, "Ä", "Ö"]
    assert len({part(value) for value in values}) == len(values)


@pytest.mark.parametrize("value", [None, "", True, ["eu"], ("eu", 1), {"name": "eu"}, object()])
def test_a_value_of_another_kind_is_refused_by_name(value: Any) -> None:
    with pytest.raises(JobSpecError, match=r"^job_id_by = 'region': its value .* texts or numbers"):
        part(value)


def test_a_name_that_the_task_does_not_get_is_refused() -> None:
    with pytest.raises(JobSpecError, match=r"^job_id_by = 'regoin': .* region, size"):
        job_part("regoin", {"region": "eu", "size": 3})


def test_without_a_name_nothing_changes() -> None:
    assert job_part(None, {"region": object()}) is None
    assert ask_request(JOB, context(), None, lease_s=90).job_id == "d.train"


def test_the_part_ends_the_default_and_the_given_job_id() -> None:
    assert ask_request(JOB, context(), None, lease_s=90, part="eu").job_id == "d.train.eu"
    named = ZeusJob.from_dict({**JOB.to_dict(), "job_id": "nightly"})
    assert ask_request(named, context(), None, lease_s=90, part="eu").job_id == "nightly.eu"


def test_an_argument_that_the_function_does_not_have_is_refused_at_parse() -> None:
    def train(run: Any, region: str) -> None: ...

    def anything(run: Any, **more: Any) -> None: ...

    def made(function: Any, name: str) -> ZeusTrainOperator:
        return ZeusTrainOperator(task_id="train", job=JOB, python_callable=function, job_id_by=name)

    with pytest.raises(JobSpecError, match=r"job_id_by = 'regoin': .* region"):
        made(train, "regoin")
    with pytest.raises(JobSpecError, match="job_id_by = 'run'"):
        made(anything, "run")
    assert (made(train, "region").job_id_by, made(anything, "region").job_id_by) == (
        "region",
        "region",
    )


def test_positional_arguments_have_names_too() -> None:
    def train(run: Any, region: str, size: int) -> None: ...

    made = ZeusTrainOperator(
        task_id="train",
        job=JOB,
        python_callable=train,
        op_args=[None, "eu"],
        op_kwargs={"size": 3},
        job_id_by="region",
    )
    assert job_part(made.job_id_by, made.arguments()) == "eu"


def test_a_command_takes_variables_of_its_environment() -> None:
    made = ZeusCommandOperator.partial(
        task_id="train", job=JOB, command=["true"], job_id_by="REGION"
    )
    with DAG("d", schedule=None):
        assert (
            made.expand(env=[{"REGION": "eu"}, {"REGION": "us"}]).partial_kwargs["job_id_by"]
            == "REGION"
        )


class TestZeusTrial:
    """A group's argument, by its name."""

    @staticmethod
    def ask(by: str, /, **expanded: Any) -> Any:
        with DAG("d", schedule=None) as dag:

            @task_group
            def region(name: str, size: int = 1) -> None:
                with ZeusTrial(JOB, job_id_by=by):
                    EmptyOperator(task_id="train")

            region.expand(**expanded)
        return dag.get_task("region.zeus_ask")

    def test_an_argument_of_the_group(self) -> None:
        assert list(self.ask("name", name=["north", "south"]).mapped) == ["name"]

    def test_an_argument_that_is_not_mapped(self) -> None:
        with pytest.raises(JobSpecError, match=r"job_id_by = 'size': task group region .* name"):
            self.ask("size", name=["north", "south"])

    def test_without_a_mapped_group(self) -> None:
        with (
            pytest.raises(JobSpecError, match=r"job_id_by = 'name': no task group"),
            DAG("d", schedule=None),
        ):
            ZeusTrial(JOB, job_id_by="name").__enter__()

    def test_arguments_that_are_known_only_when_it_runs(self) -> None:
        with DAG("d", schedule=None) as dag:
            rows = EmptyOperator(task_id="rows")

            @task_group
            def region(name: str) -> None:
                with ZeusTrial(JOB, job_id_by="name"):
                    EmptyOperator(task_id="train")

            region.expand_kwargs(XComArg(rows))
        assert list(dag.get_task("region.zeus_ask").mapped) == ["name"]
        assert "rows" in dag.get_task("region.zeus_ask").upstream_task_ids
