"""``airflow zeus check``: mistakes in the Zeus tasks of a DAG, as far as they are known without
training.

Nothing is trained or written: no trial is opened, no power limit set, no XCom pushed.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from tempfile import TemporaryDirectory
from typing import Any

from airflow_provider_zeus.cli import checks_dag, checks_host, doctor
from airflow_provider_zeus.cli.checks_dag import ZeusTask
from airflow_provider_zeus.cli.dag_file import import_dag
from airflow_provider_zeus.cli.finding import Finding, error, ok, show, undecided
from airflow_provider_zeus.cli.made_up_run import NotHereError, rendered
from airflow_provider_zeus.cli.shell import command, stdout_kept_clean
from airflow_provider_zeus.errors import UndefinedConnectionError, ZeusError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.operators.command import ZeusCommandOperator
from airflow_provider_zeus.operators.config import ZeusConfig
from airflow_provider_zeus.operators.mixins import job_part
from airflow_provider_zeus.operators.train import ZeusTrainOperator
from airflow_provider_zeus.optimizer.policy import measured
from airflow_provider_zeus.power.factory import open_device
from airflow_provider_zeus.reports.next_run import next_rung
from airflow_provider_zeus.signals.prices import of_airflow
from airflow_provider_zeus.task_patterns import TaskPatterns
from airflow_provider_zeus.units import counted


@command
def check_dag(args: Namespace) -> int:
    """Check a DAG. Exit status 1 if a check is an error."""
    # a DAG file may print: standard output is for the findings alone
    with stdout_kept_clean():
        findings = list(_of_dag(args.dag_id, args.file, args.task))
    return show(findings, as_json=args.json)


def _of_dag(dag_id: str, file: str | None, task_id: str | None) -> Iterator[Finding]:
    dag, finding = import_dag(dag_id, file)
    yield finding
    if dag is None:
        return
    tasks = checks_dag.zeus_tasks(dag)
    chosen = [task for task in tasks if task_id in (None, task.task_id)]
    if not chosen:
        yield _without_task(dag, tasks, task_id)
        return
    of_host = list[Finding]()
    for task in chosen:
        findings = list(_of_task(task, dag))
        job = task.job(dag)
        if job is not None:
            findings += checks_dag.of_schedule(task, job, dag)
            of_host += _of_host(job)
        # Some findings name their task already, and would name it twice.
        prefix = f"{task.task_id}: "
        for finding in findings:
            yield replace(finding, check=prefix + finding.check.removeprefix(prefix))
    yield from checks_dag.of_definition(tasks, dag)
    # Tasks mostly share a log, and each look at one opens a connection.
    for conn_id in dict.fromkeys(task.conn_id for task in chosen):
        yield from _of_store(conn_id)
    # Two tasks on one device would print the same finding twice.
    yield from dict.fromkeys(of_host)


def _without_task(dag: Any, tasks: Sequence[ZeusTask], task_id: str | None) -> Finding:
    """Nothing can be checked: no error if ``[zeus] measure`` names what was asked for.

    :param tasks: the Zeus tasks of the DAG. ``task_id``: the one asked for; None: all.
    """
    task_patterns = TaskPatterns.parse(of_airflow("measure"))
    asked = [task for task in dag.task_ids if task_id in (None, task)]
    named = [task for task in asked if task_patterns.name(dag.dag_id, task, dag.tags)]
    if named:
        count = counted(len(named), "task")
        return ok("tasks", f"[zeus] measure names {count}, and there is no Zeus task to check")
    if task_id is not None and task_id not in dag.task_ids:
        near = get_close_matches(task_id, dag.task_ids, cutoff=0.5) or sorted(dag.task_ids)[:10]
        remedy = f"did you mean {', '.join(near)}"
        return error("tasks", f"{dag.dag_id} has no task {task_id}", remedy)
    problem = f"{dag.dag_id} has no Zeus task"
    if task_id:
        problem += f" {task_id}"
    if tasks:
        names = ", ".join(task.task_id for task in tasks)
        return error("tasks", problem, f"its Zeus tasks are: {names}")
    return error("tasks", problem, "use @task.zeus(JOB), or name it in [zeus] measure")


def _of_task(task: ZeusTask, dag: Any) -> Iterator[Finding]:
    """Findings of the fields of a task; a value that only a run knows is undecided, with the
    reason.
    """
    lacks = list(checks_dag.of_context(task, dag))
    yield from lacks
    # its templates would fail again, and say less
    if any(lack.status == "error" for lack in lacks):
        return
    if task.upstream:
        job = task.job(dag)
        if job is not None:
            yield from _of_job(job)
        yield undecided(
            "context", f"it needs values of {', '.join(task.upstream)}, which did not run"
        )
        return
    try:
        yield from _of_rendered(task, dag)
    except NotHereError as missing:
        yield undecided("context", f"it needs {missing}, which only a run has")
    except ZeusError as problem:
        yield error("job", str(problem))
    except Exception as problem:  # a template, or a class of the author's, may raise anything
        yield undecided(
            "context",
            f"it could not be prepared outside of a run: {type(problem).__name__}: {problem}",
        )


def _of_rendered(task: ZeusTask, dag: Any) -> Iterator[Finding]:
    """Findings of its operator once the templates are rendered. Raises the errors of these."""
    operator, context = rendered(task.task, dag)
    job = ZeusJob.from_dict(operator.job).check(rendered=True)
    yield from _of_job(job)
    if isinstance(operator, ZeusTrainOperator):
        job_part(operator.job_id_by, operator.arguments())
        yield from checks_dag.of_function(operator, job)
    elif isinstance(operator, ZeusCommandOperator):
        job_part(operator.job_id_by, {"cwd": operator.cwd, **(operator.env or {})})
        arguments, _, cwd = operator.started_as(context)
        yield from checks_dag.of_command(arguments, cwd, job)
    else:
        yield from checks_dag.of_trial(operator, dag.task_dict[operator.trains])


def _of_job(job: ZeusJob) -> Iterator[Finding]:
    """The mode of a job, and whether its target has the right direction."""
    if not job.chooses_size:
        yield ok("job", f"{measured(job).attempts[0].why} {next_rung(job)}")
        return
    sizes = ", ".join(map(str, sorted(job.batch_sizes)))
    yield ok("job", f"batch sizes {sizes}, default {job.default_batch_size}, until {job.target}")
    target = job.parsed_target
    if target.turned:
        yield error("target", target.turned, f'write "{target.other_way}"')


def _of_store(conn_id: str) -> Iterator[Finding]:
    """The Connection of the trial log, as doctor sees it."""
    for name, examine in (("store", doctor.store), ("schema", doctor.schema)):
        try:
            yield replace(examine(conn_id), check=f"{name} {conn_id}")
        # Without the Connection the check of the schema would only say the same again.
        except UndefinedConnectionError as problem:
            yield error(f"Connection {conn_id}", str(problem))
            return
        except ZeusError as problem:
            yield error(f"{name} {conn_id}", str(problem))
            return


def _of_host(job: ZeusJob) -> Iterator[Finding]:
    """The needs of a job on this host: Connections of its signals, a device, a power limit."""
    for signal in dict.fromkeys(filter(None, (job.follow, job.start_signal))):
        yield checks_host.signal(signal)
    if job.mode == "off":
        yield ok("power limit", "mode='off' measures nothing")
        return
    config = ZeusConfig.read()
    # a check must leave no state of a simulated GPU behind
    with TemporaryDirectory(prefix="zeus-check-") as folder:
        try:
            device = open_device(job.device, state_dir=folder, host=config, gpus=job.gpus)
        except ZeusError as problem:
            yield error(
                "device",
                f"on this host: {problem}",
                "check it where the task trains, or use device='auto'",
            )
            return
        try:
            if job.tries_limits:
                yield checks_host.limits_of(job, device, config.power_socket)
            else:
                yield ok("power limit", f"mode={job.mode!r} sets none")
        except ZeusError as problem:
            yield error("power limit", str(problem))
        finally:
            device.close()
