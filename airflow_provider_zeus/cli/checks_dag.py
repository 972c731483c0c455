"""The Zeus tasks of a DAG as ``airflow zeus check`` sees them, and the findings of their
definition alone.
"""

# Some of Airflow's functions have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from types import SimpleNamespace
from typing import Any

from jinja2 import UndefinedError

from airflow_provider_zeus import patterns
from airflow_provider_zeus.cli.finding import Finding, error, ok, warning
from airflow_provider_zeus.cli.made_up_run import Runs, is_mapped, made_up_context, rendered
from airflow_provider_zeus.model.deadline import deadline_of, parse
from airflow_provider_zeus.model.groups import grouped
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import is_deferred
from airflow_provider_zeus.model.job_ids import job_id_of_task
from airflow_provider_zeus.operators.command import ZeusCommandOperator, submits_to_slurm
from airflow_provider_zeus.operators.context_keys import (
    Lack,
    no_date,
    no_partition,
    templates_of,
    undated_argument,
    undefined_in,
)
from airflow_provider_zeus.operators.external_meter import names
from airflow_provider_zeus.operators.train import ZeusTrainOperator, positional
from airflow_provider_zeus.operators.trial import ZeusAskOperator

MOVES = 'give a time of day, as "06:00", or timedelta(hours=8): they move with each run'
BRING_BACK = (
    'begin the command with `export ZEUS_XCOM="$(mktemp)"` and end it with `cat "$ZEUS_XCOM"`'
)


@dataclass(frozen=True, slots=True)
class ZeusTask:
    """A task of the DAG: a Zeus operator, mapped or not."""

    task: Any

    @property
    def task_id(self) -> str:
        """Of the task that trains."""
        return str(getattr(self.task, "trains", None) or self.task.task_id)

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments that every instance of a mapped task has; of another task, its fields."""
        arguments: Mapping[str, Any] | None = getattr(self.task, "partial_kwargs", None)
        if arguments is None:
            arguments = vars(self.task)
        return arguments

    @property
    def conn_id(self) -> str:
        """Connection of the trial log."""
        return str(self.arguments.get("zeus_conn_id") or "zeus_default")

    @property
    def upstream(self) -> list[str]:
        """Tasks whose XComs it needs, the setup of a ``ZeusTrial`` left out."""
        from airflow.sdk import XComArg

        # An XCom stands in a templated field, or Airflow would not render it.
        values = [self.arguments.get(name) for name in self.task.template_fields]
        operators = [operator for operator, _ in XComArg.iter_xcom_references(values)]
        # The values that a task is mapped over are in none of these fields.
        if self.task.is_mapped:
            operators += self.task.iter_mapped_dependencies()
        return sorted({operator.task_id for operator in operators})

    def written(self, name: str) -> Any:
        """A field of its job as the author wrote it; None if it is not there, or each instance
        has a job.
        """
        job = self.arguments.get("job")
        if not isinstance(job, Mapping):
            return None
        return job.get(name)

    def job(self, dag: Any, days: int = 0) -> ZeusJob | None:
        """The job as a made-up run has it, so many days from now; None if a real run alone knows
        it.

        Of a mapped task that of its first instance.
        """
        with suppress(Exception):  # of templates it fails, and is read again once rendered
            return ZeusJob.from_dict(self.arguments["job"]).check(rendered=True)
        with suppress(Exception):  # a template may ask for what a real run alone has
            operator, _ = rendered(self.task, dag, days=days)
            return ZeusJob.from_dict(operator.job).check(rendered=True)
        return None


def zeus_tasks(dag: Any) -> list[ZeusTask]:
    """The tasks of a DAG that this package runs, in the order in which the file defines them."""
    ours = (ZeusTrainOperator, ZeusCommandOperator, ZeusAskOperator)
    # A mapped task is no instance of its operator: it only names the class.
    kinds = [(task, getattr(task, "operator_class", type(task))) for task in dag.tasks]
    return [
        ZeusTask(task) for task, kind in kinds if inspect.isclass(kind) and issubclass(kind, ours)
    ]


def of_definition(tasks: Sequence[ZeusTask], dag: Any) -> Iterator[Finding]:
    """Which tasks of a DAG share one job, and which mapped ones share theirs among their
    instances.
    """
    by_id = defaultdict[str, dict[str, ZeusJob]](dict)
    for task in tasks:
        job = task.job(dag)
        if job is not None:
            job_id = job.job_id or job_id_of_task(dag.dag_id, task.task_id)
            by_id[job_id][task.task_id] = job
    # Tasks that share a job on purpose have the same sizes and target.
    for job_id, jobs in by_id.items():
        what = f"{' and '.join(jobs)} share the job {job_id}"
        # their order does not matter to what is learned
        kinds = {(tuple(sorted(job.batch_sizes)), job.target) for job in jobs.values()}
        if len(kinds) > 1:
            yield error(
                "job ids",
                f"{what}, with other batch sizes or another target",
                "give each its own job_id",
            )
        elif len(jobs) > 1:
            yield ok("job ids", f"{what}, with the same batch sizes and target")
    for task in tasks:
        # Without "job" among them the job itself is mapped, so each instance has its own.
        has_own = "job" not in task.arguments or "{{" in str(task.written("job_id"))
        # Two trainings with one name would teach each other.
        is_named = has_own or task.arguments.get("job_id_by") is not None
        if is_mapped(task.task) and not is_named:
            yield warning(
                f"{task.task_id}: mapped",
                "its map indexes share one job: Zeus learns from all of them as from one training",
                'if each has its own data or model, name the mapped argument: job_id_by="region"',
            )


def of_schedule(task: ZeusTask, job: ZeusJob, dag: Any) -> Iterator[Finding]:
    """Whether runs that teach come, each with the name of its own data, and may end in time."""
    runs = Runs.of(dag)
    yield from _of_learn_from(job, runs)
    # a name that a year does not change is no name of a slice
    later = task.job(dag, days=400)
    by_hand = patterns.search(
        r"\b(params|conf|dag_run|partition_key|map_index|var)\b", str(task.written("data_slice"))
    )
    is_fixed = later is not None and later.data_slice == job.data_slice and not by_hand
    # A slice of one name tells the policy that runs on new data are repeats.
    if is_fixed and job.data_slice is not None:
        what = (
            f"it is {job.data_slice!r} in each run, so all runs count as trained on the same data"
        )
        remedy = f'name the data of a run, as data_slice="{{{{ {runs.key} }}}}", or leave it out'
        yield warning("data_slice", what, f"{remedy}; a job whose data never change needs none")
    yield from _of_deadline(job, task.written("finish_by"), dag.timezone, recur=runs.recur)


def _of_learn_from(job: ZeusJob, runs: Runs) -> Iterator[Finding]:
    """Whether the runs that a schedule gives teach, or at least some that somebody starts."""
    kinds = {
        "asset_triggered": runs.by_assets,
        "scheduled": runs.by_time,
        "manual": runs.by_hand,
    }
    scheduled = [kind for kind, is_given in kinds.items() if is_given]
    others = {"manual"}
    if runs.by_time:
        others.add("backfill")
    # One kind that teaches is enough: the others may be left out on purpose.
    if not set(scheduled).isdisjoint(job.learn_from):
        return
    remedy = f"add {' and '.join(map(repr, scheduled))}, or leave learn_from out"
    if others.isdisjoint(job.learn_from):
        what = f"no run of this DAG is {' or '.join(job.learn_from)}, so none teaches: "
        what += f"its schedule gives {scheduled[0]} runs"
        yield error("learn_from", what, remedy)
        return
    what = f"{' and '.join(scheduled)} runs, which its schedule gives, teach nothing"
    yield warning("learn_from", what, remedy)


def _of_deadline(job: ZeusJob, written: Any, zone: tzinfo, *, recur: bool) -> Iterator[Finding]:
    """Whether the deadline of a job is a date that is over, or one date for many runs.

    :param written: the deadline as the author wrote it.
    """
    now = datetime.now(UTC)
    slack_s = 0.0
    # a template is rendered for a made-up run, whose day may be over
    if is_deferred(written):
        slack_s = 2 * 86_400.0
    if isinstance(job.finish_by, str):
        late_s = now.timestamp() - deadline_of(job.finish_by, now, zone).timestamp()
        if late_s >= slack_s:
            what = f"{job.finish_by} is past, so each run counts as late and trains at full power"
            yield error("finish_by", what, MOVES)
            return
    # What a template gives is another time in each run.
    if not isinstance(written, str) or is_deferred(written):
        return
    # A date that is still to come is right for one run only.
    if recur and isinstance(parse(written), datetime):
        what = (
            f"{written} is one date, and the DAG recurs: each run after it is late and trains at "
            "full power"
        )
        yield error("finish_by", what, MOVES)


def of_context(task: ZeusTask, dag: Any) -> Iterator[Finding]:
    """Values that templates and arguments ask for and runs of this DAG lack: one finding of all."""
    runs = Runs.of(dag)
    operators = [(task.task, task.arguments)]
    # The operator in a ZeusTrial has templates of its own, which may lack a value as well.
    if isinstance(task.task, ZeusAskOperator):
        inner = dag.task_dict[task.task_id]
        operators.append((inner, vars(inner)))
    dated = list[Lack]()
    undated = list[Lack]()
    for operator, arguments in operators:
        # Both kinds of runs are tried, since a schedule may give either.
        if runs.may_be_dated:
            dated += _lacks(operator, arguments, dag, dated=True)
        if runs.may_be_undated:
            undated += _lacks(operator, arguments, dag, dated=False)
    lacks = dated or undated
    if not lacks:
        return
    what = "; ".join(
        f"{' and '.join(f'{lack.where} = {lack.value!r}' for lack in of_one)}: {problem}"
        for problem, of_one in grouped(lacks, lambda lack: lack.problem).items()
    )
    remedy = "; ".join(dict.fromkeys(lack.remedy for lack in lacks))
    if runs.by_hand and not dated:  # a run that is started with a date lacks nothing
        yield warning("context", what, remedy)
    else:
        yield error("context", what, remedy)


def _lacks(operator: Any, arguments: Mapping[str, Any], dag: Any, *, dated: bool) -> Iterator[Lack]:
    """Values that an operator asks for and a run with, or without, a logical date lacks."""
    context = made_up_context(operator, dag, dated=dated)
    key = Runs.of(dag).key
    fields = SimpleNamespace(**{**arguments, "template_fields": operator.template_fields})
    # A template that is None in a run that lacks nothing, too, means it.
    full = made_up_context(operator, dag, dated=True) | {"partition_key": "2026-01-01"}
    environment = operator.get_template_env()
    for where, text in templates_of(fields):
        # Any other error of a template comes again, and is told, as the task is rendered.
        with suppress(Exception):
            template = environment.from_string(text)
            try:
                has_none = "None" in str(template.render(context))
            except UndefinedError as problem:
                yield undefined_in(where, text, str(problem), context)
                continue
            # A word "None" in the text itself is no missing value.
            if not has_none or "None" in str(template.render(full)):
                continue
            if "partition_key" in text:
                yield no_partition(where, text, key)
            else:
                yield no_date(where, text, "logical_date", context)
    # a decorator's mapped task has it beside its arguments
    function = arguments.get("python_callable") or getattr(operator, "python_callable", None)
    if not callable(function):
        return
    filled = _filled(operator, function, arguments)
    lack = undated_argument(function, filled, context)
    if lack is not None:
        yield lack
    # Airflow fills a parameter by its name, from the context
    asked = set(inspect.signature(function).parameters) - filled
    if "partition_key" in asked and context.get("partition_key") is None:
        name = getattr(function, "__name__", repr(function))
        yield no_partition(f"an argument of {name}()", "partition_key", key)


def _filled(operator: Any, function: Callable[..., Any], arguments: Mapping[str, Any]) -> set[str]:
    """The parameters of a function that its task fills, those of a mapped one included."""
    filled = set(positional(function)[: len(arguments.get("op_args") or ())])
    keywords = [arguments.get("op_kwargs")]
    for expanded in ("expand_input", "op_kwargs_expand_input"):
        values = getattr(getattr(operator, expanded, None), "value", None)
        if isinstance(values, Mapping):
            keywords += [values, *values.get("op_kwargs", ())]
    return filled.union(*(values for values in keywords if isinstance(values, Mapping)))


def of_function(operator: ZeusTrainOperator, job: ZeusJob) -> Iterator[Finding]:
    """How a training function draws its hold-out."""
    drawn = _names_in(operator.python_callable)
    drawn &= {"random_split", "train_test_split", "KFold", "ShuffleSplit", "StratifiedKFold"}
    if job.chooses_start and drawn:
        what = (
            f"{min(drawn)} draws a hold-out on parts of which the earlier model may have trained: "
            "its metric is void"
        )
        yield warning(
            "starts",
            what,
            "hold out the newest data, which no earlier model has seen (docs/levers/starts.md)",
        )


def _names_in(function: Callable[..., Any]) -> set[str]:
    """The names that the code of a function and of the functions within it use."""
    names: set[str] = set()
    # A decorator hides the author's function.
    codes = [getattr(inspect.unwrap(function), "__code__", None)]
    for code in codes:  # it grows: a name may be used in a function within alone
        if code is not None:
            names |= set(code.co_names)
            codes += [constant for constant in code.co_consts if hasattr(constant, "co_names")]
    return names


def of_command(arguments: Sequence[str], cwd: str | None, job: ZeusJob) -> Iterator[Finding]:
    """Whether a command, or a script that it names, reads the batch size, and can have a run of
    a tracker.
    """
    if not job.chooses_size or submits_to_slurm(arguments):  # Slurm's host has the script
        return
    takes_plan = names(arguments, cwd, "airflow_provider_zeus")
    if takes_plan or names(arguments, cwd, "ZEUS_BATCH_SIZE"):
        yield ok("batch size", "the command names ZEUS_BATCH_SIZE or airflow_provider_zeus")
    else:
        yield warning(
            "batch size",
            "neither the command nor a script that it names has the word ZEUS_BATCH_SIZE or "
            "airflow_provider_zeus",
            "read the batch size from the variable ZEUS_BATCH_SIZE, or train by "
            "ZeusRun.from_env().train(fn)",
        )
    if takes_plan:
        return
    for tracker in job.log_to:
        what = f"a command without ZeusRun has no run of {tracker} that Zeus could find"
        remedy = "train by ZeusRun.from_env().train(fn), with an open run, or leave log_to out"
        yield warning("log_to", what, remedy)


def of_trial(setup: Any, inner: Any) -> Iterator[Finding]:
    """Whether the operator in a ``ZeusTrial`` gets its plan, and its result comes back, as far
    as its fields say so.
    """
    name = inner.task_id
    kind = type(inner).__name__
    fields = {*inner.template_fields, "env", "env_vars", "environment"}
    # of whatever type they are: a pod's variables are objects
    words = repr([getattr(inner, field, None) for field in sorted(fields)])
    if "ZEUS_PLAN" in words:
        yield ok(f"{name}: plan", "it gets its plan by trial.env")
    else:
        remedy = (
            "give it env_vars=trial.env (environment, or env with append_env=True in a "
            "BashOperator: as the operator names it)"
        )
        yield warning(
            f"{name}: plan", f"no variable ZEUS_PLAN is among the fields of this {kind}", remedy
        )
    yield _of_result(f"{name}: result", setup, inner, has_xcom="ZEUS_XCOM" in words)


def _of_result(check: str, setup: Any, inner: Any, *, has_xcom: bool) -> Finding:
    """Whether the result of a ``ZeusTrial`` comes back: by files, by a pod's XCom, or by its
    output.
    """
    kind = type(inner).__name__
    if setup.result_path:
        return ok(check, f"it comes back by files in {setup.result_path}")
    # by name, since their provider may not be installed
    if "Pod" in kind or "Kubernetes" in kind:
        if inner.do_xcom_push:
            return ok(check, "it comes back by the pod's XCom")
        remedy = (
            "set do_xcom_push=True, or ZeusTrial(result_path=...) to a folder that both hosts share"
        )
        return error(check, "do_xcom_push is off, so no result comes back", remedy)
    if has_xcom:
        return ok(
            check, "ZEUS_XCOM is set, so the result can come back as the last line of its output"
        )
    what = f"nothing says how the result of this {kind} comes back: ZEUS_XCOM is not set"
    return warning(check, what, f"{BRING_BACK}, or use ZeusTrial(result_path=...)")
