"""What the decorator makes of a function while the DAG file is parsed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import DAG

from airflow_provider_zeus.decorators.zeus import zeus_task
from airflow_provider_zeus.model.job import ZeusJob


def test_a_measured_function_that_takes_its_run_is_called_without_it() -> None:
    def first(run: object, n: int) -> None: ...

    def by_name(n: int, *, run: object) -> None: ...

    def without(n: int) -> None: ...

    measured: Any = zeus_task(ZeusJob(mode="measure"))
    with DAG("measured", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
        made = [measured(function)(3).operator for function in (first, by_name, without)]
    assert [(list(one.op_args), one.op_kwargs) for one in made] == [
        ([None, 3], {}),
        ([3], {"run": None}),
        ([3], {}),
    ]
