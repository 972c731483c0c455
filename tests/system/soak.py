"""Three jobs side by side for hundreds of recurrences, some of them killed:
``python -m tests.system.soak``.

Each job has a process of its own that lives from the first recurrence to the last and runs them by
``dag.test()``; all share one run log. About one in twelve is run by a process that gets SIGKILL at
a random moment (seeded) of its training, so that its lease, its power limit and its guardian are
left to the others. Nothing may pile up: memory, open files, threads and children of the three
processes, open trials, records of limits. Exit status 1 where something does.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.command import command, option
from benchmarks.cost.airflow_dag import known_to_airflow
from benchmarks.report import table_of

JOBS = ("one", "two", "three")
KILLED = 1 / 12
HEARTBEAT_S = 0.2
LEASE_S = 1.0
START_S = 300.0  # until a process that is to be killed has asked: on a busy host, too
# of memory that leaks: a recurrence; at once, however many there are
MOST_MIB = 0.05
ANYWAY_MIB = 8.0
STAYS_MIB = 24.0  # and of all that stays besides, however it came
WARM = 0.2  # of the recurrences, before the first figures: caches are filled
EPOCH_S = "ZEUS_SOAK_EPOCH_S"  # how long an epoch of a job takes, in a process that is to be killed
COLUMNS = {
    "job": "{job}",
    "recurrences": "{done}",
    "memory [MiB]": "{mib:.1f}",
    "open files": "{files}",
}
COLUMNS |= {"threads": "{threads}", "children": "{children}", "open trials": "{open}"}
PARTS = 4  # of the others, with figures at the end of each


# ---------------------------------------------------------------------- the driver
def soak(folder: Path, recurrences: int, seed: int) -> int:
    """Run the three processes; print what they and the run log came to."""
    began_s = time.monotonic()
    each = math.ceil(recurrences / len(JOBS))
    workers = {name: _started(folder, name, each, seed) for name in JOBS}
    try:
        for worker in workers.values():
            worker.wait()
    finally:
        for worker in workers.values():
            worker.kill()
    written = {name: folder / name / "figures.jsonl" for name in JOBS}
    lines = {
        name: list(map(json.loads, f.read_text().splitlines())) if f.exists() else []
        for name, f in written.items()
    }
    said = [
        f"{name}: ended with {worker.returncode}, see {folder / name / 'out'}"
        for name, worker in workers.items()
        if worker.returncode
    ]
    print(f"{recurrences} recurrences of {len(JOBS)} jobs on one run log, seed {seed}.\n")
    cells = [{"job": name, **f} for name, figures in lines.items() for f in figures]
    print("\n".join(table_of(COLUMNS, cells)))
    for name, figures in lines.items():
        said += [] if workers[name].returncode else _piled_up(name, figures)
    said += _left(folder, lines)
    print(f"\nIt took {time.monotonic() - began_s:.0f} s.")
    print("\n".join(said) or "Nothing piled up.")
    return 1 if said else 0


def _started(folder: Path, name: str, each: int, seed: int) -> subprocess.Popen[bytes]:
    home = folder / name
    home.mkdir()
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        # else memory grows by an arena where threads meet, as they do on a busy host
        "MALLOC_ARENA_MAX": "2",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        "AIRFLOW__ZEUS__STATE_DIR": str(home / "zeus"),
        "AIRFLOW__ZEUS__HEARTBEAT_S": str(HEARTBEAT_S),
        "AIRFLOW__ZEUS__LEASE_S": str(LEASE_S),
        "AIRFLOW_CONN_ZEUS_DEFAULT": json.dumps(
            {"conn_type": "sqlite", "host": str(folder / "zeus.db")}
        ),
    }
    command = [
        sys.executable,
        "-m",
        "tests.system.soak",
        "--worker",
        name,
        "--recurrences",
        str(each),
    ]
    with (home / "out").open("wb") as out:
        return subprocess.Popen(
            [*command, "--seed", str(seed)], env=environment, stdout=out, stderr=out
        )


def _piled_up(name: str, figures: list[dict[str, Any]]) -> Iterator[str]:
    first = figures[0]
    last = figures[-1]
    runs = last["done"] - first["done"]
    stays = last["mib"] - first["mib"]
    grown = [after["mib"] - before["mib"] for before, after in itertools.pairwise(figures)]
    # what leaks grows in each part; a cache that is filled grows in one
    leaks = len(grown) * min(grown)
    most = ANYWAY_MIB + MOST_MIB * runs
    if leaks > most or stays > STAYS_MIB + most:
        yield (
            f"{name}: {stays:.1f} MiB of memory stay after {runs} recurrences, {leaks:.1f} of them"
            " as a leak would"
        )
    for what in ("files", "threads"):
        if last[what] > first[what] + 2:
            yield f"{name}: {first[what]} {what} became {last[what]}"
    if last["children"]:
        yield f"{name}: {last['children']} children are left"


def _left(folder: Path, lines: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """What the run log and the state folders hold at the end."""
    from airflow_provider_zeus.model.trial import State
    from airflow_provider_zeus.store.sql.store import SqlStore

    time.sleep(LEASE_S + 2.0)  # the last leases run out, the last guardians give back
    store = SqlStore(f"sqlite:///{folder / 'zeus.db'}")
    for name in JOBS:
        job_id = f"{name}.train"
        store.reap(job_id)
        log = store.trials(job_id)
        states = Counter(t.state.value for t in log)
        killed = lines[name][-1]["killed"] if lines[name] else 0
        print(
            f"\n{name}: {len(log)} trials, {dict(states)}; {killed} recurrences were killed", end=""
        )
        if [t.number for t in log] != list(range(1, len(log) + 1)):
            yield f"{name}: numbers are missing or there twice"
        if states[State.RUNNING.value]:
            yield f"{name}: {states[State.RUNNING.value]} leases are held by nobody"
        kept = len({t.origin.run_id for t in log if t.state.kept_model})
        if killed and not states[State.ABANDONED.value]:
            yield f"{name}: no kill met a training"
        if lines[name] and kept < lines[name][-1]["done"] - killed:
            yield f"{name}: only {kept} runs kept a model"
        records = list((folder / name / "zeus").glob("limit-*"))
        if records:
            yield f"{name}: {len(records)} records of limits that were not given back"
    print()
    store.close()
    mark = str(folder).encode()
    alive = []
    for pid in psutil.pids():
        with suppress(OSError):  # it has ended, or is somebody else's
            if pid != os.getpid() and mark in Path(f"/proc/{pid}/environ").read_bytes():
                alive.append(pid)
    if alive:
        yield f"processes are left: {alive}"


# ---------------------------------------------------------------------- one of the three
def work(name: str, recurrences: int, seed: int) -> None:
    """Run the recurrences of one job, and write down figures at the start and after each part."""
    from airflow.utils import db

    db.initdb()
    dag = known_to_airflow(_dag(name))
    chance = random.Random(f"{seed} {name}")
    killed = 0
    marks = {
        round(recurrences * (WARM + (1 - WARM) * part / PARTS)): part for part in range(PARTS + 1)
    }
    figures = Path(os.environ["AIRFLOW_HOME"]) / "figures.jsonl"
    for done in range(1, recurrences + 1):
        if chance.random() < KILLED:
            killed += _killed(name, chance.uniform(0.0, 0.3))
        else:
            dag.test()
        if done in marks:
            with figures.open("a") as file:
                file.write(
                    json.dumps(
                        {"part": marks[done], "done": done, "killed": killed, **_figures(name)}
                    )
                    + "\n"
                )


def _killed(name: str, after_s: float) -> int:
    """A recurrence in a process of its own that is killed so long after it has asked;
    whether it was still there.

    Not in a forked child: Airflow's API of ``dag.test()`` is a thread, which would not come along.
    """
    # its training lasts for seconds, so that the kill meets it
    slow = {**os.environ, EPOCH_S: "2.0"}
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.system.soak", "--worker", name, "--once"], env=slow
    )
    until_s = time.monotonic() + START_S
    while child.poll() is None and not _open_trials(name) and time.monotonic() < until_s:
        time.sleep(0.02)
    time.sleep(after_s)
    child.kill()
    return int(child.wait() == -signal.SIGKILL)


def _open_trials(name: str) -> int:
    from airflow_provider_zeus.model.trial import State
    from airflow_provider_zeus.store.open import open_store

    store = open_store()
    opened = [t for t in store.trials(f"{name}.train", last=100) if t.state is State.RUNNING]
    store.close()
    return len(opened)


def _figures(name: str) -> dict[str, Any]:
    import gc

    gc.collect()
    # the C library's own: what is free goes back to the system
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    time.sleep(0.5)  # a guardian ends after its trainer
    me = psutil.Process()
    return {
        "mib": me.memory_info().rss / 2**20,
        "files": me.num_fds(),
        "threads": me.num_threads(),
        "children": len(me.children(recursive=True)),
        "open": _open_trials(name),
    }


def _dag(name: str) -> Any:
    from datetime import UTC, datetime

    from airflow.sdk import DAG

    from airflow_provider_zeus import ZeusJob
    from airflow_provider_zeus.operators.train import ZeusTrainOperator

    job = ZeusJob(
        batch_sizes=[16, 32, 64],
        default_batch_size=32,
        target="accuracy >= 0.9",
        max_epochs=20,
        device="simulated:v100/shufflenet",
        learn_from=["test"],
    )
    epochs = {16: 19, 32: 4, 64: 5}

    def train(run: Any = None) -> int:
        for epoch in run.epochs():
            for _ in range(5000 // run.batch_size):
                run.step()
            time.sleep(float(os.environ.get(EPOCH_S, "0.02")))
            run.report(accuracy=0.9 * (epoch + 1) / epochs[run.batch_size])
        return int(run.batch_size)

    with DAG(name, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        ZeusTrainOperator(task_id="train", job=job, python_callable=train)
    return dag


@command(
    "",
    option("--recurrences", type=int, default=500, help="of all three jobs together"),
    option("--seed", type=int, default=0),
    option("--worker", help=argparse.SUPPRESS),
    option("--once", action="store_true", help=argparse.SUPPRESS),
)
def main(args: argparse.Namespace) -> int:
    """Print the table; 1 where something piles up."""
    if args.once:
        _dag(args.worker).test()
        return 0
    if args.worker:
        work(args.worker, args.recurrences, args.seed)
        return 0
    with tempfile.TemporaryDirectory(prefix="zeus-soak-", ignore_cleanup_errors=True) as folder:
        return soak(Path(folder), args.recurrences, args.seed)
