"""What the listener of ``[zeus] measure`` costs a task: milliseconds of the processor,
imports included.

Each task is a process of its own, forked from one that has imported what Airflow's task runner
imports, as an executor's worker has.
A plain task is what Airflow itself takes for a task without work in ``dag.test()``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import process_time
from types import SimpleNamespace
from typing import Any

from benchmarks.cost.airflow_dag import known_to_airflow

ROUNDS = 15
TASKS = 20
MOST_NAMED_MS = 150.0
MOST_UNNAMED_MS = 1.0
NAMED = "tag:zeus"
OTHERS = "tag:other, sales_*, !sales_daily.wait_*"


def outside(folder: Path) -> dict[str, float]:
    """The figures of :func:`measure`, in an interpreter of its own,
    which has imported nothing of ours yet.
    """
    module = [sys.executable, "-m", "benchmarks.cost.outside_tasks", str(folder)]
    done = subprocess.run(module, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(folder: Path) -> dict[str, float]:
    """The least [ms] of a task that is named, of one that is not, and of a plain one;
    and ratios to the plain one.

    The least, since others may be using the machine. Needs Airflow with a migrated database.

    :param folder: of the trial log.
    """
    # as in the worker of an executor, which forks the process of each task
    import airflow.sdk.execution_time.supervisor
    import airflow.sdk.execution_time.task_runner  # noqa: F401

    log = {"conn_type": "sqlite", "host": f"{folder}/zeus.db"}
    os.environ["AIRFLOW_CONN_ZEUS_DEFAULT"] = json.dumps(log)
    dag = _dag("outside", 1)
    named_ms = _least_of_children(NAMED, dag)
    unnamed_ms = _least_of_children(OTHERS, dag)
    plain_ms = _plain_ms()
    return {
        "task named, ms": named_ms,
        "task not named, ms": unnamed_ms,
        "plain task, ms": plain_ms,
        "named / plain task": named_ms / plain_ms,
        "not named / plain task": unnamed_ms / plain_ms,
    }


def _least_of_children(patterns: str, dag: Any) -> float:
    os.environ["AIRFLOW__ZEUS__MEASURE"] = patterns
    _child_ms(dag)  # the first one compiles, and makes the log
    return min(_child_ms(dag) for _ in range(ROUNDS))


def _child_ms(dag: Any) -> float:
    """Processor time of the hooks at the begin and the end of a task,
    in a process of its own [ms].
    """
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        took_ms = _hooks_ms(_task_instance(dag))
        os.write(writes, f"{took_ms}".encode())
        os._exit(0)
    os.close(writes)
    os.waitpid(child, 0)
    with os.fdopen(reads) as answer:
        return float(answer.read())


def _hooks_ms(ti: Any) -> float:
    from airflow_provider_zeus.plugin import (
        ZeusPlugin,  # here: it imports Airflow, which reads its home once
    )

    begun_s = process_time()
    (listener,) = ZeusPlugin().listeners
    listener.on_task_instance_running(None, ti)
    if listener._open is not None:
        from airflow_provider_zeus.operators import outside

        outside.LEAST_S = 0.0  # the row is written
    listener.on_task_instance_success(None, ti)
    return (process_time() - begun_s) * 1e3


def _task_instance(dag: Any) -> Any:
    task = dag.tasks[0]
    run = SimpleNamespace(run_type="scheduled")
    ti = SimpleNamespace(
        id=f"{os.getpid()}-{process_time()}",
        dag_id=dag.dag_id,
        task_id=task.task_id,
        run_id=f"{os.getpid()}",
        try_number=1,
        map_index=-1,
        task=task,
    )
    context = {"ti": ti, "dag_run": run, "task": task, "dag": dag}
    ti.get_template_context = lambda: context
    return ti


def _plain_ms() -> float:
    """What Airflow takes for one more task without work [ms of the processor]."""
    os.environ["AIRFLOW__ZEUS__MEASURE"] = ""
    one = known_to_airflow(_dag("plain_one", 1))
    many = known_to_airflow(_dag("plain_many", 1 + TASKS))
    one.test()  # the first one imports
    return min(_ms(many.test) - _ms(one.test) for _ in range(3)) / TASKS


def _ms(call: Callable[[], object]) -> float:
    begun_s = process_time()
    call()
    return (process_time() - begun_s) * 1e3


def _dag(dag_id: str, tasks: int) -> Any:
    from airflow.sdk import DAG, task

    def nothing() -> None:
        """The least that a task could do."""

    start = datetime(2026, 1, 1, tzinfo=UTC)
    with DAG(dag_id, schedule=None, start_date=start, tags=["zeus"]) as dag:
        for number in range(tasks):
            task(task_id=f"task{number}")(nothing)()
    return dag


def too_much(found: dict[str, float]) -> Sequence[str]:
    """What costs more than it may."""
    limits = {"task named, ms": MOST_NAMED_MS, "task not named, ms": MOST_UNNAMED_MS}
    return [name for name, most_ms in limits.items() if found[name] > most_ms]


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
