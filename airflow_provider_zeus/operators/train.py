"""``ZeusTrainOperator``: run a Python training function within the Zeus loop."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_provider_zeus.airflow_compat import (
    create_async_executable_runner,
    create_executable_runner,
    determine_kwargs,
)
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.operators.context_keys import ChecksTemplates, undated_argument
from airflow_provider_zeus.operators.mixins import (
    Notifier,
    ReportsCost,
    StartsLater,
    is_timed_out,
)
from airflow_provider_zeus.patience import bounded, outlived
from airflow_provider_zeus.units import epochs_text

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_zeus.operators.recurrence import Recurrence
    from airflow_provider_zeus.store.sql.store import Store
    from airflow_provider_zeus.training.protocol.plan import Checkpoint, Checkpoints
    from airflow_provider_zeus.training.run import ZeusRun
    from airflow_provider_zeus.training.step_handle import StepHandle

RUN = "run"

log = guarded_log(__name__)


class ZeusTrainOperator(ReportsCost, StartsLater, ChecksTemplates, BaseOperator):
    """Calls ``python_callable(run, ...)`` with a batch size from the store, and reports to the
    store its cost.

    The function gets the run handle as ``run``, and Airflow context keys by the names of its other
    parameters. It is called once per attempt, so build model and optimizer inside it. The task's
    value is that of the call whose model is kept. Without a job, or with one that names no
    batch sizes, the function is called once, as it is, without a run handle, and the task
    is measured.

    Pushes XComs ``zeus_decision`` and ``zeus_cost``. Raises the function's errors,
    BelowTargetError if the job requires its target.

    :param job: a ``ZeusJob`` or its dict; fields may be templates or XComArgs. Default: the task is
        only measured.
    :param python_callable: the training function, with a parameter ``run`` if the job chooses
        batch sizes.
    :param op_args: positional arguments, templated.
    :param op_kwargs: keyword arguments, templated.
    :param mode: without a job: ``"measure"``, the default, or ``"optimize"``, which tunes the power
        limit, too.
    :param job_id_by: a mapped argument of the function, for one job for each of its values: the
        value ends the job's id. Its values are texts or numbers. Default: all map indexes share one
        job.
    :param notify: notifiers for the job's events, besides those of the job and of ``[zeus]
        notifiers``.
    :param zeus_conn_id: Connection of the run log.
    """

    template_fields: Sequence[str] = ("job", "op_args", "op_kwargs")
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "job": "json",
        "op_args": "py",
        "op_kwargs": "py",
    }
    shallow_copy_attrs: Sequence[str] = ("python_callable", "op_kwargs")

    def __init__(
        self,
        *,
        job: ZeusJob | Mapping[str, Any] | None = None,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        mode: str | None = None,
        job_id_by: str | None = None,
        notify: Sequence[Notifier] = (),
        zeus_conn_id: str = "zeus_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.hands_run = job is not None  # without a job its author expects no run handle
        job = as_job(job, mode)
        self.job = job.to_dict()
        self.notify = (*job.notifiers, *notify)
        self.python_callable = check_function(python_callable, hands_run=job.chooses_size)
        self.op_args = op_args or ()
        self.op_kwargs = op_kwargs or {}
        if not self.hands_run:
            check_run_given(self.python_callable, self.op_args, self.op_kwargs)
        self.job_id_by = check_argument(self.python_callable, job_id_by)
        self.zeus_conn_id = zeus_conn_id
        self._recurrence: Recurrence | None = None
        self._run: ZeusRun | None = None

    def execute(self, context: Context) -> Any:
        """Wait for a cheaper start if the job does, ask the store, train, report."""
        self.check_templates(context)
        # else Python's TypeError would name no remedy
        lack = undated_argument(self.python_callable, self.arguments(), context)
        if lack is not None:
            raise lack.error()
        self.wait_for_start(context)
        return self.train_now(context)

    def train_now(self, context: Context) -> Any:
        """Ask the store, train, report."""
        from airflow_provider_zeus.operators.measured import measured
        from airflow_provider_zeus.operators.recurrence import Recurrence
        from airflow_provider_zeus.training.run import ZeusRun
        from airflow_provider_zeus.training.step_handle import StepHandle
        from airflow_provider_zeus.training.step_tuner import StepTuner

        job = ZeusJob.from_dict(self.job)
        recurrence = Recurrence.open(
            job,
            context,
            conn_id=self.zeus_conn_id,
            part=self.part,
            waited_since_s=self.waited_since_s,
        )
        self._recurrence = recurrence
        began_in = os.getpid()

        def train(tuner: StepTuner | None) -> Any:
            parameters = inspect.signature(self.python_callable).parameters
            handle = StepHandle(tuner) if self.hands_run and RUN in parameters else None
            return self.call(handle, context)

        try:
            if not job.chooses_size:
                return measured(recurrence, train, StepTuner)
            try:
                self._run = ZeusRun.from_plan(
                    recurrence.plan, sink=recurrence.reporter, device=recurrence.device
                )
                self._run.checkpoints = checkpoints_of(context, recurrence.opened)
            except BaseException as error:
                recurrence.reporter.never_trained(error)
                recurrence.close_device()
                raise
            return self._run.train(lambda run: self.call(run, context))
        finally:
            with outlived("report what this run cost"):
                if os.getpid() == began_in:  # a child that it forked would report the run twice
                    self.report_cost(
                        context, recurrence.reporter, recurrence.opened, recurrence.decision
                    )

    def on_kill(self) -> None:
        """Stop the training: raise TrainingKilled out of ``execute``, which Airflow itself does not
        interrupt.
        """
        from airflow_provider_zeus.training.interrupts import TrainingKilled

        if self._recurrence is None:
            raise TrainingKilled("Airflow stopped the task before it trained")
        self._recurrence.reporter.hurry()
        if self._run is None:
            if not is_timed_out():
                raise TrainingKilled("Airflow stopped the task")
            return
        self._run.kill("Airflow stopped the task")

    def arguments(self) -> dict[str, Any]:
        """The arguments that the author gives, by name."""
        names = positional(self.python_callable)
        arguments = {**dict(zip(names, self.op_args, strict=False)), **self.op_kwargs}
        arguments.pop(RUN, None)
        return arguments

    def call(self, run: ZeusRun | StepHandle | None, context: Context) -> Any:
        """Call the function once, with the run handle, if any, and the context keys that it asks
        for.
        """
        args = list(self.op_args)
        kwargs: dict[str, Any] = {**context, **self.op_kwargs}
        function = self.python_callable
        if run is None:
            kwargs = dict(determine_kwargs(function, args, kwargs))
            is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
            runner = create_async_executable_runner if is_async else create_executable_runner
            # Airflow's runner puts the Metadata of assets that a function yields there.
            outlets: Any = context.get("outlet_events")
            value = runner(function, outlets, logger=self.log).run(*args, **kwargs)
            return asyncio.run(value) if inspect.iscoroutine(value) else value
        given = positional(function)[: len(args)]
        if RUN in given:
            args[given.index(RUN)] = run
            kwargs.pop(RUN, None)
        else:
            kwargs[RUN] = run
        return function(*args, **determine_kwargs(function, args, kwargs))


def checkpoints_of(context: Mapping[str, Any], opened: Callable[[], Store]) -> Checkpoints:
    """The newest checkpoint of a run in Airflow's task state (since Airflow 3.3), which outlives a
    try of its task.

    Those of a task instance: the one of an earlier try, whose figures go to the log if it lacks
    them. A clear raises ``max_tries``: the checkpoint of an earlier run of the task is left alone.
    Raises nothing.

    :param opened: gives the run log, or raises StoreError.
    """
    from airflow_provider_zeus.model.partial_sums import Report
    from airflow_provider_zeus.model.wire import decode, encode
    from airflow_provider_zeus.training.protocol.plan import Checkpoint, Checkpoints

    ti = context["ti"]
    key = "zeus_checkpoint"
    state = context.get("task_state_store")
    if state is None:
        return Checkpoints()
    newest: Checkpoint | None = None
    with outlived("read where the checkpoint of an earlier attempt lies"):
        entry = state.get(key)
        # a clear raises max_tries, so an equal number is of the same run of the task
        if isinstance(entry, dict) and entry.get("max_tries") == ti.max_tries:
            newest = decode(Checkpoint, entry["checkpoint"])

    def count_once(left: Checkpoint) -> None:
        """Give the trial of the try that died its figures, if those of the log are older.

        Raises StoreError.
        """
        store = opened()
        time_s = left.observation.time_s or 0.0
        for trial in store.recurrence(ti.dag_id, ti.run_id):
            is_older = (trial.observation.time_s or 0.0) < time_s
            if is_older and trial.key == left.key:
                store.heartbeat(left.key, Report(observation=left.observation))

    if newest is not None:
        log.info(
            "Zeus: an earlier attempt left a checkpoint of %s: run.checkpoint.",
            epochs_text(newest.epochs),
        )
        with outlived("write what the earlier attempt took"):
            most_s = 5.0
            bounded(lambda: count_once(newest), most_s)

    def keep(checkpoint: Checkpoint) -> None:
        # Metrics grow with the epochs; the rest stays as short as an entry of Airflow's should be.
        figures = replace(checkpoint.observation, epoch_metrics=None)
        short = replace(checkpoint, observation=figures)
        state.set(key, {"max_tries": ti.max_tries, "checkpoint": encode(short)})

    return Checkpoints(newest, keep)


def as_job(job: ZeusJob | Mapping[str, Any] | None, mode: str | None = None) -> ZeusJob:
    """The job that an operator got; without one, the job that leaves its runs as they are.

    Raises JobSpecError.
    """
    if job is None:
        return ZeusJob(mode=mode or "measure")
    if mode is not None:
        remedy = "set it in the job: ZeusJob(mode=...)"
        raise JobSpecError.of("mode", mode, "given beside a job", remedy)
    return job if isinstance(job, ZeusJob) else ZeusJob.from_dict(job)


def check_function(function: Callable[..., Any], *, hands_run: bool = True) -> Callable[..., Any]:
    """Return the training function.

    Raises JobSpecError: not callable, a task already; async, a generator, no parameter ``run``.

    :param hands_run: whether it gets the run handle; one that does not may be async, and needs no
        such parameter.
    """
    name = getattr(function, "__qualname__", repr(function))
    field = "python_callable"
    if not callable(function):
        remedy = "give the training function itself"
        raise JobSpecError.of(field, function, "not a function", remedy)
    refuse_task(function)
    if not hands_run:
        return function
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        problem = "async functions and generators cannot be trained"
        raise JobSpecError.of(field, name, problem, "use a plain function")
    if RUN not in inspect.signature(function).parameters and not takes_any(function):
        remedy = f"declare it, as in def {function.__name__}({RUN})"
        raise JobSpecError.of(field, name, f"has no parameter {RUN!r}", remedy)
    return function


def takes_any(function: Callable[..., Any]) -> bool:
    """Whether a function has a parameter like ``**options``."""
    parameters = inspect.signature(function).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def refuse_task(function: Any) -> None:
    """Raise JobSpecError if a function is a task already: Airflow would keep one of the two
    decorators alone.
    """
    # by name: each of Airflow's decorators returns an object of its own
    is_decorated = hasattr(function, "override") and hasattr(function, "expand")
    if not is_decorated:
        return
    name = getattr(function, "__qualname__", repr(function))
    remedy = "leave one of the two decorators out: @task.zeus(JOB) stands on the function itself"
    raise JobSpecError.of("python_callable", name, "a task already, by another decorator", remedy)


def check_run_given(
    function: Callable[..., Any], args: Collection[Any], keywords: Mapping[str, Any]
) -> None:
    """Raise JobSpecError if a function without a job waits for a run handle: a ``run`` that no
    argument gives.
    """
    run = inspect.signature(function).parameters.get(RUN)
    if run is None or run.default is not run.empty:
        return
    if RUN in (*keywords, *positional(function)[: len(args)]):
        return
    name = getattr(function, "__qualname__", function)
    problem = f"{name} has a parameter {RUN!r}, and the run handle comes with a ZeusJob"
    remedy = "give one, as in @task.zeus(JOB), or leave the parameter out"
    raise JobSpecError.of("job", None, problem, remedy)


def positional(function: Callable[..., Any]) -> list[str]:
    """Return the names of the positional parameters."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds]


def check_argument(function: Callable[..., Any], name: str | None) -> str | None:
    """Return ``name``.

    Raises JobSpecError if the function has no such parameter besides ``run``.
    """
    if name is None:
        return None
    parameters = inspect.signature(function).parameters.values()
    named = [
        parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD
    ]
    names = [other for other in named if other != RUN]
    if name in names or (name != RUN and takes_any(function)):
        return name
    problem = f"{getattr(function, '__qualname__', function)} has no such parameter"
    remedy = f"name a mapped one: {', '.join(names) or 'it has none yet'}"
    raise JobSpecError.of("job_id_by", name, problem, remedy)
