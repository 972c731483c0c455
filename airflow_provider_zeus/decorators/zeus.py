"""``@task.zeus(JOB)``: run a training function within the Zeus loop."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, cast

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job import ZeusJob, job_fields
from airflow_provider_zeus.operators.train import (
    RUN,
    ZeusTrainOperator,
    as_job,
    check_function,
    check_run_given,
    positional,
    refuse_task,
)


class ZeusDecoratedOperator(DecoratedOperator, ZeusTrainOperator):
    """The operator of ``@task.zeus``."""

    custom_operator_name: str = "@task.zeus"
    template_fields: Sequence[str] = ZeusTrainOperator.template_fields
    template_fields_renderers: ClassVar[dict[str, str]] = (
        ZeusTrainOperator.template_fields_renderers
    )

    def __init__(
        self,
        *,
        job: ZeusJob | Mapping[str, Any] | None = None,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        mode: str | None = None,
        **kwargs: Any,
    ) -> None:
        args = list(op_args or ())
        keywords = dict(op_kwargs or {})
        # checked while the DAG file is parsed, so that a wrong task is an import error
        gets_run = as_job(job, mode).chooses_size
        check_function(python_callable, hands_run=gets_run)
        if job is None:
            check_run_given(python_callable, args, keywords)
        elif not gets_run:
            gets_run = RUN in inspect.signature(python_callable).parameters
        if gets_run:
            # a place for ``run``: the author calls the function with the other arguments only
            given = positional(python_callable)[: len(args)]
            if RUN in given:
                args.insert(given.index(RUN), None)
            else:
                keywords = {RUN: None, **keywords}
        super().__init__(
            kwargs_to_upstream={
                "job": job,
                "python_callable": python_callable,
                "op_args": args,
                "op_kwargs": keywords,
            },
            python_callable=python_callable,
            op_args=args,
            op_kwargs=keywords,
            mode=mode,
            **kwargs,
        )

    def resume(self, context: Any, event: Any = None, since_s: float | None = None) -> Any:
        """Train after the wait, and hand the value on as :meth:`execute` does."""
        return self._handle_output(return_value=super().resume(context, event, since_s))


def zeus_task(
    job: ZeusJob | Mapping[str, Any] | Callable[..., Any] | None = None,
    python_callable: Callable[..., Any] | None = None,
    multiple_outputs: bool | None = None,
    **kwargs: Any,
) -> TaskDecorator:
    """Measure the decorated function; with a job, train it within the Zeus loop.

    For example::

        @task.zeus(ZeusJob(batch_sizes=[32, 64], default_batch_size=32, target=..., max_epochs=20))
        def train(run): ...

    A bare ``@task.zeus`` leaves the function as it is; ``@task.zeus(mode="optimize")`` tunes the
    power limit of its torch training, too. With a job that names batch sizes it gets the run handle
    as ``run``. Parameters that are named after keys of Airflow's context get their values; call it
    with its other arguments. ``kwargs`` go to the operator, such as ``job_id_by="region"``: one job
    for each mapped value of this argument. Raises JobSpecError if a field of a job is among
    them, or the function is a task already.
    """
    # as an option of the operator it would be ignored, or fail with a TypeError of Airflow
    for name, value in kwargs.items():
        if name in job_fields() and name != "mode":
            remedy = f"write @task.zeus(ZeusJob({name}=...))"
            raise JobSpecError.of(f"@task.zeus: {name}", value, "a field of a ZeusJob", remedy)
    # a bare @task.zeus hands the function in the place of the job
    if callable(job):
        python_callable = job
        job = None
    if isinstance(job, ZeusJob):
        # a dict has no place for objects, so notifiers go beside it
        notify = (*job.notifiers, *kwargs.pop("notify", ()))
        if notify:
            kwargs["notify"] = notify
        job = job.to_dict()  # Airflow finds XComArgs in a dict
    refuse_task(python_callable)
    decorate = task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=ZeusDecoratedOperator,
        job=job,
        **kwargs,
    )
    if python_callable is not None:
        return decorate

    def of_function(function: Callable[..., Any]) -> Any:
        refuse_task(function)
        return decorate(function)

    return cast(TaskDecorator, of_function)
