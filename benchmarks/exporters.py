"""How much longer a task takes that tells others what it cost: ``python -m benchmarks.exporters``.

Each round runs one task in a fresh process with every exporter off, and one with all of them on, in turns: a training
that ends at once, of a job with 500 trials in its log. Two medians are compared: the whole of ``execute``, and its end,
from the last line of the training to the task's value. Either may grow by 300 ms. Processor time, of all threads, is
printed beside them: a busy host makes the others longer. What Airflow itself sends is in none of them: its client is
made before.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter, process_time
from types import SimpleNamespace
from typing import Any

from benchmarks.command import command, option

MOST_MS = 300.0
ROUNDS = 9
PARTS = ("whole", "end", "processor")
TRIALS = 500
JOB_ID = "exporters.train"
_QUIET = {"AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR", "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}


def everything_on(home: str, port: int) -> dict[str, str]:
    """The settings that switch each exporter on. ``port``: a UDP socket that listens on 127.0.0.1."""
    return {
        "AIRFLOW__METRICS__STATSD_ON": "True",
        "AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED": "True",
        "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
        "AIRFLOW__METRICS__STATSD_PORT": str(port),
        "AIRFLOW__OPENLINEAGE__TRANSPORT": '{"type": "console"}',  # what sends it comes after the task's end
        "MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db",
    }


def measure(rounds: int) -> dict[str, float]:
    """Medians with everything off and on [ms], and how many packets came."""
    with tempfile.TemporaryDirectory() as home, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear:
        ear.bind(("127.0.0.1", 0))
        ear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**22)
        ear.setblocking(False)
        exporters = everything_on(home, ear.getsockname()[1])
        off = {name: value for name, value in os.environ.items() if name not in exporters}  # of who measures, maybe
        off |= {**_QUIET, "AIRFLOW_HOME": home}
        on = {**off, **exporters}
        prepare(Path(home), off)
        found: dict[str, list[dict[str, float]]] = {"off": [], "on": []}
        for n in range(rounds + 1):
            for name, environ in (("off", off), ("on", on)):
                command = [sys.executable, "-m", "benchmarks.exporters", "--task"]
                done = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, text=True)
                if n:  # the first one warms the file cache
                    found[name].append(json.loads(done.stdout.splitlines()[-1]))
        packets = _count(ear)
    medians = {
        f"{part}_{name}_ms": statistics.median(took[part] for took in each)
        for part in PARTS
        for name, each in found.items()
    }
    grows = {f"{part}_grows_ms": medians[f"{part}_on_ms"] - medians[f"{part}_off_ms"] for part in PARTS}
    return {**{name: round(ms, 1) for name, ms in {**medians, **grows}.items()}, "packets": packets}


def task() -> dict[str, float]:
    """Run one task; what its ``execute`` took, the end of it, and its processor time [ms]."""
    from airflow.sdk import DAG, Asset
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics import stats_utils

    from airflow_provider_zeus.operators.train import ZeusTrainOperator
    from benchmarks.cost.store_log import JOB

    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=True)
    stats.incr("ti.start", tags={"dag_id": "exporters", "task_id": "train"})  # as Airflow does before each task
    ended_s = 0.0

    def train(run: Any) -> None:
        nonlocal ended_s
        for _ in run.epochs():
            run.step(1000)
            run.report(accuracy=0.95)
            ended_s = perf_counter()

    on = "MLFLOW_TRACKING_URI" in os.environ
    with DAG("exporters"):
        job = {**JOB.to_dict(), "device": "simulated:v100/shufflenet", "mode": "measure"}
        job |= {"log_to": ["mlflow"]} if on else {}
        outlets = [Asset("model")] if on else []
        operator = ZeusTrainOperator(task_id="train", job=job, python_callable=train, outlets=outlets)
    given = context(operator)
    with _trackers() if on else nullcontext():
        begun_s, begun_cpu_s = perf_counter(), process_time()
        operator.execute(given)
        over_s = perf_counter()
    took_s = {"whole": over_s - begun_s, "end": over_s - ended_s, "processor": process_time() - begun_cpu_s}
    return {name: 1e3 * s for name, s in took_s.items()}


def _trackers() -> Any:
    """What listens beside Airflow's metrics: OpenLineage's provider, and the MLflow run that a training has open."""
    import mlflow
    from airflow.providers.openlineage import conf

    assert not conf.is_disabled()
    return mlflow.start_run()


def context(operator: Any) -> Any:
    """What a task is given; its XComs go nowhere."""
    name = f"{os.getpid()}-{perf_counter()}"
    ti = SimpleNamespace(
        id=name,
        dag_id="exporters",
        task_id=operator.task_id,
        run_id=name,
        try_number=1,
        map_index=-1,
        xcom_push=lambda **_: None,
    )
    from airflow.sdk.execution_time.context import OutletEventAccessors

    run = SimpleNamespace(run_type="scheduled")
    return {"ti": ti, "dag_run": run, "task": operator, "dag": operator.dag, "outlet_events": OutletEventAccessors()}


def prepare(home: Path, environ: Mapping[str, str]) -> None:
    """Airflow's database, and a trial log."""
    from benchmarks.cost.store_log import fill

    fill(f"sqlite:///{home}/zeus.db", [JOB_ID], TRIALS)
    migrate = [sys.executable, "-m", "airflow", "db", "migrate"]
    subprocess.run(migrate, env=environ, check=True, capture_output=True)


def _count(ear: socket.socket) -> int:
    packets = 0
    try:
        while ear.recv(65536):
            packets += 1
    except BlockingIOError:
        return packets
    return packets


@command(
    "",
    option("--rounds", type=int, default=ROUNDS),
    option("--task", action="store_true", help="run one task in this process, and print what it took"),
)
def main(args: argparse.Namespace) -> int:
    """Print the medians as JSON; the exit status is 1 where a task takes too much longer."""
    if args.task:
        print(json.dumps(task()))
        return 0
    figures = measure(args.rounds)
    print(json.dumps(figures, indent=2))
    return int(figures["whole_grows_ms"] > MOST_MS or figures["end_grows_ms"] > MOST_MS)
