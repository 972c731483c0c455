"""The Zeus tasks of a DAG as ``airflow zeus check`` sees them, and what their definition alone shows."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from airflow_provider_zeus.cli.finding import Finding, error, ok, warning
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.operators.command import ZeusCommandOperator
from airflow_provider_zeus.operators.train import ZeusTrainOperator
from airflow_provider_zeus.operators.trial import ZeusAskOperator

BRING_BACK = "set ZEUS_XCOM=/tmp/zeus.json among its variables and end the command with `cat /tmp/zeus.json`"


class NotHereError(Exception):
    """The check has no such value, since nothing has run. The text says which value."""


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

        fields = [self.arguments.get(name) for name in self.task.template_fields]
        found = {operator.task_id for operator, _ in XComArg.iter_xcom_references(fields)}
        if self.task.is_mapped:
            found |= {operator.task_id for operator in self.task.iter_mapped_dependencies()}
        return sorted(found)

    def job(self) -> ZeusJob | None:
        """The job as the author wrote it; None where it is known only in a run."""
        try:
            return ZeusJob.from_dict(self.arguments["job"]).check(rendered=True)
        except (JobSpecError, KeyError):
            return None


def zeus_tasks(dag: Any) -> list[ZeusTask]:
    """The tasks of a DAG that this package runs, in the order in which the file defines them."""
    ours = (ZeusTrainOperator, ZeusCommandOperator, ZeusAskOperator)
    kinds = ((task, getattr(task, "operator_class", type(task))) for task in dag.tasks)
    return [ZeusTask(task) for task, kind in kinds if isinstance(kind, type) and issubclass(kind, ours)]


def rendered(task: Any, dag: Any, xcoms: Mapping[tuple[str, str], Any]) -> tuple[Any, dict[str, Any]]:
    """A task with its templates rendered, the first instance of a mapped one, and the context of a made-up run.

    ``dag.test()`` would write a DAG run and its XComs into Airflow's database, and run the other tasks.

    :param xcoms: known ones, by task id and key.

    Raises NotHereError for any other XCom, and what a template raises.
    """
    now, copy = datetime.now(UTC).replace(microsecond=0), task.prepare_for_execution()
    run_id = f"check__{now.isoformat()}"

    def pull(task_ids: Any = None, key: str = "return_value", **_: Any) -> Any:
        if (task_ids, key) not in xcoms:
            raise NotHereError(f"XCom {key} of task {task_ids}")
        return xcoms[task_ids, key]

    def refuse(*_: Any, **__: Any) -> Any:
        raise NotHereError("XCom of an instance of a mapped task")

    ti = SimpleNamespace(
        id=str(uuid4()), dag_id=dag.dag_id, task_id=task.task_id, run_id=run_id, try_number=1, task=copy,
        max_tries=int(getattr(task, "retries", 0) or 0), map_index=0 if is_mapped(task) else -1,
        xcom_pull=pull, get_relevant_upstream_map_indexes=refuse,
    )  # fmt: skip
    dag_run = SimpleNamespace(run_type="manual", run_after=now, run_id=run_id, conf={}, logical_date=now)
    context = {
        "conn": None, "dag": dag, "dag_run": dag_run, "ti": ti, "task_instance": ti, "task": copy, "run_id": run_id,
        "logical_date": now, "data_interval_start": now - timedelta(days=1), "data_interval_end": now,
        "ds": f"{now:%Y-%m-%d}", "ds_nodash": f"{now:%Y%m%d}", "ts": now.isoformat(),
        "ts_nodash": f"{now:%Y%m%dT%H%M%S}", "partition_key": None, "test_mode": True,
        "params": {name: getattr(param, "value", param) for name, param in dag.params.items()},
    }  # fmt: skip
    copy.render_template_fields(context)
    return context["task"], context


def is_mapped(task: Any) -> bool:
    """Whether a task has several instances."""
    return bool(task.is_mapped or task.get_closest_mapped_task_group() is not None)


def made_up(task: Any, operator: Any) -> str:
    """What a training function gets that was made up for the check: keys of the context, rendered templates."""
    from airflow.sdk import Context

    names = inspect.signature(operator.python_callable).parameters
    keys = [name for name in names if name in Context.__annotations__ and not operator.arguments().get(name)]
    arguments = getattr(task, "partial_kwargs", None) or vars(task)
    if "{{" in repr([arguments.get("op_args"), arguments.get("op_kwargs")]):
        keys.append("template")
    return ", ".join(keys)


# ------------------------------------------------------------------ findings of the definition alone
def of_definition(tasks: Sequence[ZeusTask], dag: Any) -> Iterator[Finding]:
    """Which tasks of a DAG share one job, and which mapped ones share theirs among their instances."""
    by_id: dict[str, list[tuple[ZeusTask, ZeusJob]]] = {}
    for each in tasks:
        if (job := each.job()) is not None:
            by_id.setdefault(job.job_id or f"{dag.dag_id}.{each.task_id}", []).append((each, job))
    for job_id, group in by_id.items():
        what = f"{' and '.join(each.task_id for each, _ in group)} share the job {job_id}"
        kinds = {(tuple(sorted(job.batch_sizes)), job.target) for _, job in group}
        if len(kinds) > 1:
            yield error("job ids", f"{what}, with other batch sizes or another target", "give each its own job_id")
        elif len(group) > 1:
            yield ok("job ids", f"{what}, with the same batch sizes and target")
    for each in tasks:
        if is_mapped(each.task) and each.arguments.get("job_id_by") is None:
            yield warning(
                f"{each.task_id}: mapped",
                "its map indexes share one job: Zeus learns from all of them as from one training",
                'if each has its own data or model, name the mapped argument: job_id_by="region"',
            )


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


def import_dag(dag_id: str, file: str | None) -> tuple[Any, Finding]:
    """The DAG of a file or of the DAG bundles, None where there is none; and what its import showed."""
    from airflow_provider_zeus.airflow_compat import BundleDagBag, DagBundlesManager

    def folders() -> Iterator[tuple[Path, str]]:
        if file is not None:
            yield Path(file).resolve().parent, "check"
            return
        for bundle in DagBundlesManager().get_all_dag_bundles():
            bundle.initialize()
            yield bundle.path, bundle.name

    problems: dict[str, str] = {}
    ids: list[str] = []
    for folder, name in folders():
        bag = BundleDagBag(dag_folder=file or folder, bundle_path=folder, bundle_name=name)
        problems |= bag.import_errors
        ids += bag.dags
        if dag_id in bag.dags:
            return bag.dags[dag_id], ok("import", f"{dag_id} in {bag.dags[dag_id].fileloc}")
    if problems:
        texts = [f"{os.path.basename(path)}: {text.strip().splitlines()[-1]}" for path, text in problems.items()]
        what = f"{dag_id} is in no file that can be imported; {'; '.join(texts[:3])}"
        return None, error("import", what, "correct it")
    near = difflib.get_close_matches(dag_id, ids, cutoff=0.5) or sorted(ids)[:10]
    remedy = f"did you mean {', '.join(near)}" if near else "name the file that defines it by --file"
    return None, error("import", f"there is no DAG {dag_id}", remedy)
