"""``@task.zeus(JOB)``: a training function within the Zeus loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.operators.train import RUN, ZeusTrainOperator, check_function, run_position
from airflow_provider_zeus.optimizer.job import ZeusJob


class ZeusDecoratedOperator(DecoratedOperator, ZeusTrainOperator):
    """What ``@task.zeus`` makes of a function."""

    custom_operator_name: str = "@task.zeus"
    template_fields: Sequence[str] = ZeusTrainOperator.template_fields
    template_fields_renderers: ClassVar[dict[str, str]] = ZeusTrainOperator.template_fields_renderers

    def __init__(
        self,
        *,
        job: ZeusJob | Mapping[str, Any],
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        args, keywords = _with_room_for_run(python_callable, op_args or (), op_kwargs or {})
        super().__init__(
            kwargs_to_upstream={"job": job, "python_callable": python_callable, "op_args": args, "op_kwargs": keywords},
            python_callable=python_callable,
            op_args=args,
            op_kwargs=keywords,
            **kwargs,
        )


def zeus_task(
    job: ZeusJob | Mapping[str, Any] | None = None,
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,
    **kwargs: Any,
) -> TaskDecorator:
    """Train the decorated function within the Zeus loop of ``job``.

    The function gets the run handle as ``run`` and any context key that it names; call it with its other arguments.
    ``kwargs`` go to the operator. Raises JobSpecError when used without a job, as a bare ``@task.zeus``.
    """
    if callable(job) or job is None:
        raise JobSpecError.of("@task.zeus", job, "has no job", "write @task.zeus(ZeusJob(...))")
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=ZeusDecoratedOperator,
        job=job.to_dict() if isinstance(job, ZeusJob) else job,  # where Airflow looks for XComArgs, mapped tasks too
        **kwargs,
    )


def _with_room_for_run(
    function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]
) -> tuple[Collection[Any], Mapping[str, Any]]:
    """Arguments with a place for ``run``, so that the author calls the function with the others alone."""
    check_function(function)
    position = run_position(function)
    if position < len(args):
        return [*list(args)[:position], None, *list(args)[position:]], kwargs
    return args, {RUN: None, **kwargs}
