"""What a template or a function asks for and its run lacks: the field, the name and the remedy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, Context
from jinja2 import Environment, StrictUndefined, UndefinedError

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.operators.command import ZeusCommandOperator
from airflow_provider_zeus.operators.context_keys import (
    no_partition,
    templates_of,
    undated_argument,
    undefined_in,
)

RUN: dict[str, Any] = {
    "run_id": "r",
    "params": {"target": "x", "rows": 3},
    "dag_run": SimpleNamespace(logical_date=None, conf={}),
}
DATED = {**RUN, "ds": "2026-01-05", "logical_date": "2026-01-05"}


def lack(template: str, context: dict[str, Any]) -> Any:
    with pytest.raises(UndefinedError) as caught:
        Environment(undefined=StrictUndefined, autoescape=True).from_string(template).render(
            context
        )
    return undefined_in("command", template, str(caught.value), context)


@pytest.mark.parametrize(
    ("template", "problem", "remedy"),
    [
        (
            "--date {{ ds }}",
            "this run has no ds: asset-triggered runs",
            "take run_id, which each run has",
        ),
        ("{{ data_interval_end.date() }}", "this run has no data_interval_end", "take run_id"),
        ("{{ dag_run.logical_date.year }}", "this run has no logical_date", "take run_id"),
        (
            "{{ params.tgt }}",
            "there is no param tgt",
            "correct its name; the params are: rows, target",
        ),
        ("{{ params['tgt'] | int }}", "there is no param tgt", "correct its name"),
        ("{{ parms.rows }}", "no run has parms", "did you mean params"),
        ("{{ qqq }}", "no run has qqq", "give it a default"),
        (
            "{{ dag_run.conf.region }}",
            "dag_run.conf has no region",
            "correct the name, or give it a default: only a run that somebody triggers has a conf",
        ),
        ("{{ dag_run.cnf }}", "dag_run has no cnf", "correct the name"),
    ],
)
def test_what_a_template_lacks(template: str, problem: str, remedy: str) -> None:
    found = lack(template, RUN)
    assert (found.where, found.value) == ("command", template)
    assert problem in found.problem
    assert remedy in found.remedy
    assert f"command = {template!r}: {found.problem}. {found.remedy}." == str(found.error())


def test_a_run_of_a_partition_is_told_of_its_key() -> None:
    assert (
        lack("{{ ds }}", {**RUN, "partition_key": "eu"}).remedy
        == "take partition_key, the name of its data"
    )


@pytest.mark.parametrize(
    ("template", "context", "told"),
    [
        ("{{ dag_run.logical_date }}", RUN, "this run has no logical_date"),
        ("{{ partition_key }}", {**DATED, "partition_key": None}, "or take ds"),
        ("part-{{ partition_key }}", {**RUN, "partition_key": None}, "or take run_id"),
        ("{{ partition_key or run_id }}", {**RUN, "partition_key": None}, None),
        ("{{ dag_run.logical_date or run_id }}", RUN, None),
        ("{{ partition_key }}", {**RUN, "partition_key": "eu"}, None),
        ("None", RUN, None),
    ],
)
@pytest.mark.parametrize("native", [False, True])
def test_a_key_that_a_run_has_as_none_is_no_value(
    template: str, context: dict[str, Any], told: str | None, native: bool
) -> None:
    if "partition_key" not in Context.__annotations__ and told is not None:
        told = told if "logical_date" in told else "no task gets partition_key before Airflow 3.3"
    with DAG("d", render_template_as_native_obj=native):
        operator = ZeusCommandOperator(task_id="train", command="train.sh", env={"DAY": template})
    operator.render_template_fields(context)  # type: ignore[arg-type]
    if told is None:
        operator.check_templates(context)
        return
    with pytest.raises(JobSpecError, match=told) as caught:
        operator.check_templates(context)
    assert str(caught.value).startswith(f"env['DAY'] = {template!r}: ")


def test_an_argument_that_only_a_run_with_a_date_fills() -> None:
    def train(run: Any, ds: str, ts: str = "", **context: Any) -> None: ...

    found = undated_argument(train, (), RUN)
    assert found is not None
    assert found.where == "an argument of train()"
    assert undated_argument(train, {"ds"}, RUN) is None, "the author gives it"
    assert undated_argument(train, (), DATED) is None


def test_the_templates_of_each_field() -> None:
    fields = {
        "job": {"eta": "{{ a }}", "target": "x"},
        "command": ["{{ b }}", 3],
        "env": {"X": "{% c %}"},
        "cwd": None,
    }
    operator = SimpleNamespace(template_fields=tuple(fields), **fields)
    assert list(templates_of(operator)) == [
        ("ZeusJob.eta", "{{ a }}"), ("command", "{{ b }}"), ("env['X']", "{% c %}"),
    ]  # fmt: skip


def test_a_run_without_a_partition_is_told_by_the_airflow_that_is_here() -> None:
    found = no_partition("an argument", "'partition_key'", "run_id")
    if "partition_key" in Context.__annotations__:
        assert found.remedy == "give it such a schedule, or take run_id"
    else:
        assert found.remedy == "take run_id, or upgrade Airflow"
