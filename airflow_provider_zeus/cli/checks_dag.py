"""The Zeus tasks of a DAG as ``airflow zeus check`` sees them, and what their definition alone shows."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import inspect
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
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import is_deferred
from airflow_provider_zeus.model.job_ids import job_id_of_task
from airflow_provider_zeus.operators.command import ZeusCommandOperator, submits_to_slurm
from airflow_provider_zeus.operators.context_keys import Lack, no_date, templates_of, undated_argument, undefined_in
from airflow_provider_zeus.operators.external_meter import names
from airflow_provider_zeus.operators.train import ZeusTrainOperator, positional
from airflow_provider_zeus.operators.trial import ZeusAskOperator

MOVES = 'give a time of day, as "06:00", or timedelta(hours=8): they move with each run'
BRING_BACK = "set ZEUS_XCOM=/tmp/zeus.json among its variables and end the command with `cat /tmp/zeus.json`"


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
        """What the author gave to every instance of a mapped task; of another task, its fields."""
        partial: Mapping[str, Any] | None = getattr(self.task, "partial_kwargs", None)
        return vars(self.task) if partial is None else partial

    @property
    def conn_id(self) -> str:
        """Connection of the trial log."""
        return str(self.arguments.get("zeus_conn_id") or "zeus_default")

    @property
    def upstream(self) -> list[str]:
        """Tasks whose XComs it needs, the setup of a ``ZeusTrial`` left out."""
        from airflow.sdk import XComArg

        given = [self.arguments.get(name) for name in self.task.template_fields]
        found = {each.task_id for each, _ in XComArg.iter_xcom_references(given)}
        mapped = self.task.iter_mapped_dependencies() if self.task.is_mapped else ()
        return sorted(found.union(each.task_id for each in mapped))

    def written(self, name: str) -> Any:
        """A field of its job as the author wrote it; None where it is not there, or each instance has a job."""
        job = self.arguments.get("job")
        return job.get(name) if isinstance(job, Mapping) else None

    def job(self, dag: Any, days: int = 0) -> ZeusJob | None:
        """The job as a made-up run has it, so many days from now; None where a real run alone knows it.

        Of a mapped task that of its first instance.
        """
        for read in (lambda: self.arguments["job"], lambda: rendered(self.task, dag, {}, days=days)[0].job):
            with suppress(Exception):  # there is none, or has templates; of a template
                return ZeusJob.from_dict(read()).check(rendered=True)
        return None


def zeus_tasks(dag: Any) -> list[ZeusTask]:
    """The tasks of a DAG that this package runs, in the order in which the file defines them."""
    ours = (ZeusTrainOperator, ZeusCommandOperator, ZeusAskOperator)
    kinds = ((task, getattr(task, "operator_class", type(task))) for task in dag.tasks)
    return [ZeusTask(task) for task, kind in kinds if isinstance(kind, type) and issubclass(kind, ours)]


# ------------------------------------------------------------------ findings of the definition alone
def of_definition(tasks: Sequence[ZeusTask], dag: Any) -> Iterator[Finding]:
    """Which tasks of a DAG share one job, and which mapped ones share theirs among their instances."""
    by_id: dict[str, list[tuple[ZeusTask, ZeusJob]]] = {}
    for each in tasks:
        if (job := each.job(dag)) is not None:
            by_id.setdefault(job.job_id or job_id_of_task(dag.dag_id, each.task_id), []).append((each, job))
    for job_id, group in by_id.items():
        what = f"{' and '.join(each.task_id for each, _ in group)} share the job {job_id}"
        kinds = {(tuple(sorted(job.batch_sizes)), job.target) for _, job in group}
        if len(kinds) > 1:
            yield error("job ids", f"{what}, with other batch sizes or another target", "give each its own job_id")
        elif len(group) > 1:
            yield ok("job ids", f"{what}, with the same batch sizes and target")
    for each in tasks:
        own_ids = "job" not in each.arguments or "{{" in str(each.written("job_id"))  # a job, or a name, for each
        if is_mapped(each.task) and each.arguments.get("job_id_by") is None and not own_ids:
            yield warning(
                f"{each.task_id}: mapped",
                "its map indexes share one job: Zeus learns from all of them as from one training",
                'if each has its own data or model, name the mapped argument: job_id_by="region"',
            )


def of_schedule(task: ZeusTask, job: ZeusJob, dag: Any) -> Iterator[Finding]:
    """Whether runs that teach come, each with the name of its own data, and may end in time."""
    runs = Runs.of(dag)
    given = ["asset_triggered"] if runs.by_assets else []
    if runs.by_time:
        given.append("scheduled")
    if runs.by_hand:
        given.append("manual")
    if not {*given, "manual", *(["backfill"] if runs.by_time else []), "test"}.intersection(job.learn_from) - {"test"}:
        what = (
            f"no run of this DAG is {' or '.join(job.learn_from)}, so none teaches: its schedule gives {given[0]} runs"
        )
        yield error("learn_from", what, f"add {' and '.join(map(repr, given))}, or leave learn_from out")
    elif not {*given}.intersection(job.learn_from):
        what = f"{' and '.join(given)} runs, which its schedule gives, teach nothing"
        yield warning("learn_from", what, f"add {' and '.join(map(repr, given))}, or leave learn_from out")
    later = task.job(dag, days=400)
    by_hand = patterns.search(r"\b(params|conf|dag_run|partition_key|map_index|var)\b", str(task.written("data_slice")))
    if job.data_slice is not None and later is not None and later.data_slice == job.data_slice and not by_hand:
        what = f"it is {job.data_slice!r} in each run, so all runs count as trained on the same data"
        remedy = f'name the data of a run, as data_slice="{{{{ {runs.key} }}}}", or leave it out'
        yield warning("data_slice", what, f"{remedy}; a job whose data never change needs none")
    written = task.written("finish_by")
    past = list(of_deadline(job, dag.timezone, slack_s=2 * 86_400.0 if is_deferred(written) else 0.0))
    yield from past
    if past or not runs.recur or not isinstance(written, str) or is_deferred(written):
        return
    if isinstance(parse(written), datetime):
        what = f"{written} is one date, and the DAG recurs: each run after it is late and trains at full power"
        yield error("finish_by", what, MOVES)


def of_deadline(job: ZeusJob, zone: tzinfo = UTC, *, slack_s: float = 0.0) -> Iterator[Finding]:
    """Whether the deadline of a job is a date that is over, for so many seconds."""
    now = datetime.now(UTC)
    if (
        isinstance(job.finish_by, str)
        and deadline_of(job.finish_by, now, zone).timestamp() <= now.timestamp() - slack_s
    ):
        what = f"{job.finish_by} is past, so each run counts as late and trains at full power"
        yield error("finish_by", what, MOVES)


def of_context(task: ZeusTask, dag: Any) -> Iterator[Finding]:
    """What templates and arguments ask for that runs of this DAG lack: one finding of all."""
    runs = Runs.of(dag)
    operators = [(task.task, task.arguments)]
    if isinstance(task.task, ZeusAskOperator):
        inner = dag.task_dict[task.task_id]
        operators.append((inner, vars(inner)))
    lacks: list[Lack] = []
    for operator, arguments in operators:
        if runs.may_be_dated:
            lacks += _lacks(operator, arguments, dag, dated=True)
    is_doubt = False
    if not lacks and runs.may_be_undated:
        for operator, arguments in operators:
            lacks += _lacks(operator, arguments, dag, dated=False)
        is_doubt = runs.by_hand  # some of these runs have a date
    if lacks:
        places: dict[str, list[str]] = {}
        for lack in lacks:
            places.setdefault(lack.problem, []).append(f"{lack.where} = {lack.value!r}")
        what = "; ".join(f"{' and '.join(found)}: {problem}" for problem, found in places.items())
        remedy = "; ".join(dict.fromkeys(lack.remedy for lack in lacks))
        yield warning("context", what, remedy) if is_doubt else error("context", what, remedy)


def _lacks(operator: Any, arguments: Mapping[str, Any], dag: Any, *, dated: bool) -> Iterator[Lack]:
    """What an operator asks for that a run with, or without, a logical date lacks."""
    runs = Runs.of(dag)
    context = made_up_context(operator, dag, {}, dated=dated)
    full = made_up_context(operator, dag, {}, dated=True) | {"partition_key": "2026-01-01"}
    environment = operator.get_template_env()
    fields = SimpleNamespace(**{**arguments, "template_fields": operator.template_fields})
    for where, template in templates_of(fields):
        with suppress(Exception):  # of a value that only a run has, or of the template: the task is undecided
            try:
                text = str(environment.from_string(template).render(context))
            except UndefinedError as problem:
                yield undefined_in(where, template, str(problem), context)
                continue
            is_none = "None" in text and "None" not in str(environment.from_string(template).render(full))
            if is_none and "partition_key" in template:
                yield _no_partition(where, template, runs)
            elif is_none:
                yield no_date(where, template, "logical_date", context)
    function = arguments.get("python_callable")
    if not callable(function):
        return
    given = _given(operator, function, arguments)
    lack = undated_argument(function, given, context)
    if lack is not None:
        yield lack
    if "partition_key" in inspect.signature(function).parameters and "partition_key" not in given:
        name = getattr(function, "__name__", repr(function))
        if context.get("partition_key") is None:
            yield _no_partition(f"an argument of {name}()", "partition_key", runs)


def _no_partition(where: str, value: str, runs: Runs) -> Lack:
    from airflow.sdk import Context

    if "partition_key" not in Context.__annotations__:
        return Lack(
            where, value, "no task gets partition_key before Airflow 3.3", f"take {runs.key}, or upgrade Airflow"
        )
    problem = "partition_key is None in each run of a DAG without a schedule by partitions"
    return Lack(where, value, problem, f"give it such a schedule, or take {runs.key}")


def _given(operator: Any, function: Callable[..., Any], arguments: Mapping[str, Any]) -> set[str]:
    """The parameters of a function that its task fills, those of a mapped one included."""
    given = set(positional(function)[: len(arguments.get("op_args") or ())])
    keywords = [arguments.get("op_kwargs")]
    for expanded in ("expand_input", "op_kwargs_expand_input"):
        values = getattr(getattr(operator, expanded, None), "value", None)
        if isinstance(values, Mapping):
            keywords += [values, *values.get("op_kwargs", ())]
    for named in keywords:
        given |= set(named) if isinstance(named, Mapping) else set()
    return given


def of_function(operator: ZeusTrainOperator, job: ZeusJob) -> Iterator[Finding]:
    """How a training function draws its hold-out."""
    drawn = _names_in(operator.python_callable)
    drawn &= {"random_split", "train_test_split", "KFold", "ShuffleSplit", "StratifiedKFold"}
    if job.chooses_start and drawn:
        what = f"{min(drawn)} draws a hold-out on parts of which the earlier model may have trained: its metric is void"
        yield warning("starts", what, "hold out the newest data, which no earlier model has seen (docs/starts.md)")


def _names_in(function: Callable[..., Any]) -> set[str]:
    """The names that the code of a function and of the functions within it use."""
    names: set[str] = set()
    codes = [getattr(inspect.unwrap(function), "__code__", None)]
    for code in codes:  # it grows by the functions within
        if code is not None:
            names |= set(code.co_names)
            codes += [constant for constant in code.co_consts if hasattr(constant, "co_names")]
    return names


def of_command(arguments: Sequence[str], cwd: str | None, job: ZeusJob) -> Iterator[Finding]:
    """Whether a command, or a script that it names, reads the batch size, and can have a run of a tracker."""
    if not job.chooses_size or submits_to_slurm(arguments):  # its script is another host's
        return
    takes_plan = names(arguments, cwd, "airflow_provider_zeus")
    if takes_plan or names(arguments, cwd, "ZEUS_BATCH_SIZE"):
        yield ok("batch size", "the command names ZEUS_BATCH_SIZE or airflow_provider_zeus")
    else:
        yield warning(
            "batch size",
            "neither the command nor a script that it names has the word ZEUS_BATCH_SIZE or airflow_provider_zeus",
            "read the batch size from the variable ZEUS_BATCH_SIZE, or train by ZeusRun.from_env().train(fn)",
        )
    for tracker in job.log_to if not takes_plan else ():
        remedy = "train by ZeusRun.from_env().train(fn), with an open run, or leave log_to out"
        yield warning("log_to", f"a command without ZeusRun has no run of {tracker} that Zeus could find", remedy)


def of_trial(setup: Any, inner: Any) -> Iterator[Finding]:
    """Whether the operator in a ``ZeusTrial`` gets its plan, and its result comes back, as far as its fields say so."""
    name, kind = inner.task_id, type(inner).__name__
    fields = {*inner.template_fields, "env", "env_vars", "environment"}
    words = repr([getattr(inner, field, None) for field in sorted(fields)])
    if "ZEUS_PLAN" in words:
        yield ok(f"{name}: plan", "it gets its plan by trial.env")
    else:
        remedy = "give it env_vars=trial.env (env, environment: as the operator names it)"
        yield warning(f"{name}: plan", f"no variable ZEUS_PLAN is among the fields of this {kind}", remedy)
    check = f"{name}: result"
    if setup.result_path:
        yield ok(check, f"it comes back by files in {setup.result_path}")
    elif "Pod" in kind or "Kubernetes" in kind:
        if inner.do_xcom_push:
            yield ok(check, "it comes back by the pod's XCom")
        else:
            remedy = "set do_xcom_push=True, or ZeusTrial(result_path=...) to a folder that both hosts share"
            yield error(check, "do_xcom_push is off, so no result comes back", remedy)
    elif "ZEUS_XCOM" in words:
        yield ok(check, "ZEUS_XCOM is set, so the result can come back as the last line of its output")
    else:
        what = f"nothing says how the result of this {kind} comes back: ZEUS_XCOM is not set"
        yield warning(check, what, f"{BRING_BACK}, or use ZeusTrial(result_path=...)")
