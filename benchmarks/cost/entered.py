"""How many functions of the package a decision and the charts of one DAG enter: ``python -m benchmarks.cost.entered``.

A new process with an Airflow of its own runs the example ``zeus_demo`` once by ``dag.test()``. The decision: from there
until the training has its plan, in all threads, what is imported on the way included. The charts: what the cost page of
that DAG then computes. Comprehensions count as functions, once for each function that holds them; bodies of modules and
classes do not.
"""

from __future__ import annotations

import inspect
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = str(ROOT / "airflow_provider_zeus") + os.sep
DEMO = "zeus_demo"


class Entered(NamedTuple):
    """What was entered at least once."""

    functions: int
    files: int

    def __str__(self) -> str:
        return f"{self.functions:,} functions in {self.files} files"


def entered() -> dict[str, Entered]:
    """What a decision and the charts of a DAG enter, measured in a process of its own."""
    with tempfile.TemporaryDirectory() as home:
        environ = os.environ | {
            "AIRFLOW_HOME": home,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        }
        command = [sys.executable, "-m", "benchmarks.cost.entered", "--here"]
        done = subprocess.run(command, env=environ, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return {what: Entered(*counts) for what, counts in json.loads(done.stdout.splitlines()[-1]).items()}


def known_to_airflow(dag: Any) -> Any:
    """The DAG, once it is in Airflow's database, as its DAG processor puts it there."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    with create_session() as session:
        session.merge(DagBundleModel(name=dag.dag_id))
    bag = DagBag(dag_folder=os.devnull)
    bag.bag_dag(dag)
    sync_bag_to_db(bag, dag.dag_id, None)
    return dag


def _measured_here() -> dict[str, Entered]:
    from airflow.utils import db

    db.initdb()
    dag = known_to_airflow(runpy.run_path(str(ROOT / "dags" / f"{DEMO}.py"))[DEMO]())
    with _profile(until="ZeusRun.from_plan") as decision:
        state = dag.test().state
    assert state == "success", state
    from airflow_provider_zeus.plugin.api import dag_routes

    with _profile() as charts:
        dag_routes.dag_charts.__wrapped__(None, DEMO)  # type: ignore[attr-defined]  # without login and threads
    return {
        name: Entered(len(calls), len({file for file, _ in calls}))
        for name, calls in (("a decision", decision), ("the charts of a DAG", charts))
    }


@contextmanager
def _profile(until: str | None = None) -> Iterator[set[tuple[str, str]]]:
    """File and qualified name of each function of the package that is entered, until that one has returned."""
    calls: set[tuple[str, str]] = set()
    over = False

    def note(frame: Any, event: str, _: object) -> None:
        nonlocal over
        code = frame.f_code
        if over:
            sys.setprofile(None)
        elif code.co_filename.startswith(PACKAGE) and code.co_flags & inspect.CO_OPTIMIZED:
            if event == "call":
                calls.add((code.co_filename, code.co_qualname))
            over = event == "return" and code.co_qualname == until

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert until is None or over, f"{until} was never called"


if __name__ == "__main__":
    if sys.argv[1:] == ["--here"]:  # in the Airflow of its own that :func:`entered` makes
        print(json.dumps(_measured_here()))
    else:
        for what, counts in entered().items():
            print(f"{what}: {counts}")
