"""``airflow zeus check`` and ``airflow_provider_zeus.check()``: what is wrong, before the first run.

Each training runs two steps on the CPU. No trial is opened, no power limit set, no XCom pushed.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

from airflow_provider_zeus.cli import checks_dag, checks_host, doctor
from airflow_provider_zeus.cli.checks_dag import NotHereError, ZeusTask
from airflow_provider_zeus.cli.checks_training import of_training, parted, training
from airflow_provider_zeus.cli.dag_file import import_dag
from airflow_provider_zeus.cli.finding import Finding, error, lines, ok, show, undecided, warning
from airflow_provider_zeus.cli.rehearsal import TIMEOUT_S, Outcome, Stage, Start
from airflow_provider_zeus.cli.shell import command, stdout_kept_clean
from airflow_provider_zeus.errors import UndefinedConnectionError, ZeusError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Observation
from airflow_provider_zeus.operators.collect import starts_in_xcom
from airflow_provider_zeus.operators.command import ZeusCommandOperator, processes_of, submits_to_slurm
from airflow_provider_zeus.operators.config import ZeusConfig
from airflow_provider_zeus.operators.external_meter import names, outcome_of
from airflow_provider_zeus.operators.mixins import DECISION, PLAN, job_part
from airflow_provider_zeus.operators.train import ZeusTrainOperator, check_function
from airflow_provider_zeus.operators.trial import ZeusAskOperator
from airflow_provider_zeus.optimizer.policy import measured
from airflow_provider_zeus.power.factory import open_device
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports.next_run import next_rung
from airflow_provider_zeus.store.open import DEFAULT_CONN_ID
from airflow_provider_zeus.training.protocol.plan import Plan


class Findings(tuple[Finding, ...]):
    """The findings of a check. Printed, or as the last line of a notebook's cell, they are the lines of the command."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(map(visible, lines(self)))


@command
def check_dag(args: Namespace) -> int:
    """Check a DAG. Exit status 1 where something is an error."""
    stage = Stage(timeout_s=args.timeout, gpu=args.gpu, to_report=args.to_report)
    with stdout_kept_clean():
        findings = Findings(_of_dag(args.dag_id, args.file, args.task, stage))
    return show(findings, as_json=args.json)


def check(
    job: ZeusJob | Mapping[str, Any],
    train: Callable[..., Any],
    *args: Any,
    timeout_s: float = TIMEOUT_S,
    gpu: bool = False,
    to_report: bool = False,
    zeus_conn_id: str = DEFAULT_CONN_ID,
    **kwargs: Any,
) -> Findings:
    """Check a training before its first run, for instance in a notebook; return the findings, which print themselves.

    ``train(run, *args, **kwargs)`` is called in a fork of this process, on the CPU: two steps at another batch size
    than the default, one report, and its end; again, where that leaves a doubt. What it saves there, it saves.

    :param timeout_s: after which it is stopped [s].
    :param gpu: let it see this host's GPUs; no power limit is set.
    :param to_report: end it at its first report, so that nothing after the loop runs.
    :param zeus_conn_id: Connection of the trial log.

    Raises JobSpecError: the job, or ``train`` has no parameter ``run``.
    """
    job = (job if isinstance(job, ZeusJob) else ZeusJob.from_dict(job)).check(rendered=True)
    check_function(train)
    stage = Stage(timeout_s=timeout_s, gpu=gpu, to_report=to_report)
    outcome = stage.function(job, lambda run: train(run, *args, **kwargs), train)
    shown = of_training(outcome, timeout_s=timeout_s, to_report=to_report, train=train)
    return Findings([*shown, *checks_dag.of_deadline(job), *_of_host(zeus_conn_id, is_worker=False), *_of_job(job)])


def _of_dag(dag_id: str, file: str | None, task_id: str | None, stage: Stage) -> Iterator[Finding]:
    dag, finding = import_dag(dag_id, file, timeout_s=stage.timeout_s)
    yield finding
    if dag is None:
        return
    tasks = checks_dag.zeus_tasks(dag)
    chosen = [task for task in tasks if task_id in (None, task.task_id)]
    if not chosen:
        names = ", ".join(task.task_id for task in tasks) or "none"
        problem = f"no Zeus task {task_id}" if task_id else "no Zeus task"
        yield error("tasks", f"{dag_id} has {problem}", f"its Zeus tasks are: {names}; use @task.zeus(JOB)")
        return
    for task in chosen:
        job = task.job(dag)
        for found in (*_of_task(task, dag, stage), *(checks_dag.of_schedule(task, job, dag) if job else ())):
            yield replace(found, check=f"{task.task_id}: {found.check.removeprefix(f'{task.task_id}: ')}")
    yield from checks_dag.of_definition(tasks, dag)
    for conn_id in dict.fromkeys(task.conn_id for task in chosen):
        yield from _of_host(conn_id)
    jobs = filter(None, (task.job(dag) for task in chosen))
    yield from dict.fromkeys(found for job in jobs for found in _of_job(job))


def _of_task(task: ZeusTask, dag: Any, stage: Stage) -> Iterator[Finding]:
    """Two steps of a task; what cannot be tried is undecided, with the reason."""
    if task.upstream:
        what = f"it needs values of {', '.join(task.upstream)}, which did not run"
        yield undecided("training", what, "check its function with such values in a notebook: docs/cli.md")
        return
    try:
        operator, context = checks_dag.rendered(task.task, dag, {})
        job = ZeusJob.from_dict(operator.job).check(rendered=True)
        if not job.chooses_size:
            yield ok("training", f"it is not tried here. {measured(job).attempts[0].why} {next_rung(job)}")
        elif isinstance(operator, ZeusTrainOperator):
            job_part(operator.job_id_by, operator.arguments())
            made_up, unset = checks_dag.made_up(task.task, operator, dag)
            train = operator.python_callable
            outcome = stage.function(job, lambda run: operator.call(run, context), train)  # type: ignore[arg-type]
            yield from of_training(
                outcome,
                made_up=made_up,
                unset=unset,
                readers=task.readers(dag),
                timeout_s=stage.timeout_s,
                to_report=stage.to_report,
                train=train,
            )
        elif isinstance(operator, ZeusCommandOperator):
            job_part(operator.job_id_by, {"cwd": operator.cwd, **(operator.env or {})})
            yield from _of_command(job, operator.started_as(context), stage)
        else:
            yield from _of_trial(operator, dag, job, stage)
    except NotHereError as missing:
        yield undecided("training", f"it needs {missing}, which only a run has", "check its function in a notebook")
    except ZeusError as problem:
        yield error("training", str(problem))
    except Exception as problem:  # of a template, of a class of the author's
        what = f"it could not be prepared outside of a run: {type(problem).__name__}: {problem}"
        yield undecided("training", what, "check its function in a notebook: docs/cli.md")


def _of_command(job: ZeusJob, start: Start, stage: Stage) -> Iterator[Finding]:
    arguments, _, cwd = start
    count = processes_of(arguments, job.gpus)
    if count != 1 if count is not None else "torchrun" in " ".join(arguments):
        yield undecided("training", "it starts several processes that train together", "check it with one process")
        return
    if submits_to_slurm(arguments):
        yield undecided("training", "it is a Slurm job, which is not submitted for a check", "check its script alone")
        return
    outcome = stage.command(job, lambda plan: start)
    yield from of_command(
        outcome, names_zeus=names(arguments, cwd, "ZEUS_BATCH_SIZE", "airflow_provider_zeus"), timeout_s=stage.timeout_s
    )


def of_command(outcome: Outcome, *, names_zeus: bool, timeout_s: float, prints: bool = True) -> Iterator[Finding]:
    """Findings of a command: as a training where it took the plan; else what its output and its words show.

    :param names_zeus: whether the command or its script names this package or ``ZEUS_BATCH_SIZE``.
    :param prints: whether the last line of its output is read as its metric.
    """
    took = outcome.seen is not None or any(line.kind == "start" for line in outcome.lines)
    if took and outcome.ended is not None and outcome.seen is None and outcome.ended.error is None:
        remedy = "call run.train(fn), or loop over run.epochs()"
        yield error("training", "it took its plan by ZeusRun.from_env() and trained nothing", remedy)
        return
    if took:
        found = list(of_training(outcome, timeout_s=timeout_s))
        yield from (f for f in found if f.check != "value")
        return
    ended = outcome.ended
    if ended is None:
        yield undecided(
            "training",
            f"it did not take its plan by ZeusRun.from_env(), so it cannot be ended after two steps; it was stopped "
            f"after {timeout_s:g} s",
            "give it more time by --timeout, or use ZeusRun.from_env() in it",
        )
    else:
        yield training(outcome, timeout_s=timeout_s)
    for name in outcome.plan.job.log_to:
        remedy = "train by ZeusRun.from_env().train(fn), with an open run, or leave log_to out"
        yield warning("log_to", f"a command without ZeusRun has no run of {name} that Zeus could find", remedy)
    if names_zeus:
        yield undecided("batch size", "a command without ZeusRun is believed to use ZEUS_BATCH_SIZE")
    else:
        yield warning(
            "batch size",
            "neither the command nor a script that it names has the word ZEUS_BATCH_SIZE or airflow_provider_zeus",
            "read the batch size from the variable ZEUS_BATCH_SIZE, or train by ZeusRun.from_env().train(fn)",
        )
    if prints and ended is not None and ended.error is None:
        yield _printed(outcome.plan.job, outcome.last_output)


def _printed(job: ZeusJob, last_line: str) -> Finding:
    """Whether the last line of its output has the metric, in the target's unit and direction."""
    target = job.parsed_target
    _, reason, printed = outcome_of(job, last_line, Observation())
    if printed.metric is None:
        what, _, remedy = str(reason).partition(": ")
        return error("metric", what, remedy)
    if not target.turned and (misread := target.misread(printed.metric)):
        return error("metric", *parted(misread))
    if doubt := target.doubt(printed.metric):
        return (error if target.turned else warning)("metric", *doubt)
    return ok("metric", f"{target.metric} comes: {printed.metric:g}")


def _of_trial(setup: ZeusAskOperator, dag: Any, job: ZeusJob, stage: Stage) -> Iterator[Finding]:
    """The operator in a ``ZeusTrial``: a Bash command runs here, any other one elsewhere."""
    inner = dag.task_dict[setup.trains]
    if type(inner).__name__ != "BashOperator" or setup.result_path:
        yield from checks_dag.of_trial(setup, inner)
        why = f"it trains in a {type(inner).__name__}, which is not started for a check"
        yield undecided("training", why, "check its function in a notebook, as check(JOB, train): docs/cli.md")
        return

    def start(plan: Plan) -> Start:
        size = plan.attempts[0].batch_size
        decision = {"batch_size": size, "attempts": [{"batch_size": size}]}
        xcoms = {(setup.task_id, PLAN): plan.to_json(), (setup.task_id, DECISION): decision}
        bash, _ = checks_dag.rendered(inner, dag, xcoms)
        inherited = dict(os.environ) if bash.env is None or bash.append_env else {}
        return ["bash", "-c", bash.bash_command], {**inherited, **(bash.env or {})}, bash.cwd

    outcome = stage.command(job, start, by_env=False)
    starts = starts_in_xcom(outcome.last_output, "zeus")
    outcome = replace(outcome, lines=starts[-1] if starts else ())
    yield from of_command(outcome, names_zeus=True, timeout_s=stage.timeout_s, prints=False)
    if outcome.ended is not None and outcome.ended.error is None:
        if starts:
            yield ok("result", "its last line of output is the result")
        else:
            what = "its last line of output, which is its XCom, is not the result"
            begin = "" if outcome.seen else "train by ZeusRun.from_env().train(fn), "
            yield error("result", what, f"{begin}{checks_dag.BRING_BACK}")


def _of_host(conn_id: str, *, is_worker: bool = True) -> Iterator[Finding]:
    """The Connection of the trial log, as doctor sees it. ``is_worker``: this host should reach it as the tasks do."""
    for name, examine in (("store", doctor.store), ("schema", doctor.schema)):
        try:
            yield replace(examine(conn_id), check=f"{name} {conn_id}")
        except UndefinedConnectionError as problem:
            yield error(f"Connection {conn_id}", str(problem))
            return
        except ZeusError as problem:
            yield (error if is_worker else undecided)(f"{name} {conn_id}", str(problem))
            return


def _of_job(job: ZeusJob) -> Iterator[Finding]:
    """What the job needs of this host: Connections of its signals, a device, a power limit."""
    for signal in dict.fromkeys(filter(None, (job.follow, job.start_signal))):
        yield checks_host.signal(signal)
    if job.mode == "off":
        yield ok("power limit", "mode='off' measures nothing")
        return
    config = ZeusConfig.read()
    with TemporaryDirectory(prefix="zeus-check-") as folder:  # of the state of a simulated GPU
        try:
            device = open_device(job.device, state_dir=folder, host=config, gpus=job.gpus)
        except ZeusError as problem:
            yield error("device", f"on this host: {problem}", "check it where the task trains, or use device='auto'")
            return
        try:
            sets = job.tries_limits
            yield (
                checks_host.limits_of(job, device, config.power_socket)
                if sets
                else ok("power limit", f"mode={job.mode!r} sets none")
            )
        except ZeusError as problem:
            yield error("power limit", str(problem))
        finally:
            device.close()
