"""Trainings to be killed: forks one for each line of JSON on stdin,
from a process that has Airflow loaded already.

A line is ``{"cell": folder, "who": ..., "device": ..., "stage": ..., "env": {...}}``. ``trainer``
runs a plan without Airflow; ``task`` runs ``@task.zeus`` in a task process under Airflow's own
supervisor, which is the forked process, and only the API server behind it is a stub; ``recurrence``
asks, trains and tells (death_training.py). At its stage the training writes ``<cell>/there`` and
waits to be killed. The answer to a line is the pid of what was forked;
whatever of it ends is collected.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORKERS = 4


def train(run: Any) -> int:
    """A training that stops at ``$ZEUS_STAGE``, with forked loader workers that live on."""
    from airflow_provider_zeus.training.profiling import measurement_windows

    stage = os.environ["ZEUS_STAGE"]
    simulated = run.device.info.energy_source == "simulated"
    measurement_windows.SETTLE_S = measurement_windows.SETTLE_S if simulated else 0.02
    found_w = run.device.limit_w()
    workers = [fork_worker() for _ in range(WORKERS)]
    feed_on_demand("task")
    for epoch in run.epochs():
        if stage == "before profiling":
            wait_here(run, workers)
        for _ in range(2000):
            run.step()
            if not simulated:
                time.sleep(0.001)
            if (
                run.progress.live._sweep.active
                and run.device.seen_limit_w < found_w
                and stage == "during profiling"
            ):
                wait_here(run, workers)
            if not run.progress.live._sweep.active:
                break
        run.report(acc=float(epoch == 1))
        if stage == "between epochs":
            wait_here(run, workers)
    if stage == "after the last epoch":
        wait_here(run, workers)
    return run.batch_size


def wait_here(run: Any, workers: list[int]) -> None:
    cell = Path(os.environ["ZEUS_CELL"])
    said = {
        "pid": os.getpid(),
        "pgid": os.getpgid(0),
        "workers": workers,
        "limit_w": run.device.limit_w(),
    }
    (cell / "there.new").write_text(json.dumps(said))
    (cell / "there.new").rename(cell / "there")
    while True:
        time.sleep(0.05)


def fork_worker() -> int:
    if (pid := os.fork()) == 0:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(120)
        os._exit(0)
    return pid


def feed_on_demand(role: str) -> None:
    """Once ``<cell>/eat-<role>`` is there, take memory until there is none."""
    path = Path(os.environ["ZEUS_CELL"]) / f"eat-{role}"
    owner = os.getpid()

    def eat() -> None:
        kept = []
        while os.getpid() == owner:
            if path.exists():
                kept.append(bytearray(os.urandom(1)) * 2**23)
            else:
                time.sleep(0.01)

    threading.Thread(target=eat, daemon=True).start()


def as_trainer(request: dict[str, Any]) -> None:
    from airflow_provider_zeus.model.trial import Phase, PlannedAttempt
    from airflow_provider_zeus.training.protocol.plan import Plan
    from airflow_provider_zeus.training.run import ZeusRun

    attempt = PlannedAttempt(batch_size=32, phase=Phase.INCUMBENT, why="Known.")
    plan = Plan(
        job_id="kill.train",
        ti_id="ti",
        number=1,
        first_attempt=1,
        spec=job(request["device"]).to_dict(),
        attempts=(attempt,),
        state_dir=os.environ["AIRFLOW__ZEUS__STATE_DIR"],
    )
    ZeusRun.from_plan(plan).train(train)


def job(device: str) -> Any:
    from airflow_provider_zeus import ZeusJob

    simulated = device.startswith("simulated")
    # until something is profiled the limit found stays in force; from then on none may be chosen
    # that is the one found
    found_w = [225.0] if os.environ["ZEUS_STAGE"] == "before profiling" else []
    return ZeusJob(
        batch_sizes=[32],
        default_batch_size=32,
        target="acc >= 0.9",
        max_epochs=5,
        eta=1.0,
        device=device,
        job_id=f"kill-{os.environ['ZEUS_TEST']}",
        power_limits_w=[*found_w, 175.0, 150.0],
        profile_s=1.0 if simulated else 0.02,
    )


def as_recurrence(request: dict[str, Any]) -> None:
    """One recurrence with a store: ask, train, tell."""
    from tests.system.death_training import recur

    recur(request)


def as_supervisor(request: dict[str, Any]) -> None:
    """Airflow's supervisor, which forks the task; dag_of_kills below is what the task finds."""
    import httpx
    from airflow.sdk.api.client import Client
    from airflow.sdk.api.datamodels import _generated
    from airflow.sdk.execution_time import supervisor

    try:
        from airflow.sdk.api.datamodels._generated import TaskInstance
    except ImportError:
        from airflow.executors.workloads import TaskInstance  # type: ignore[assignment]
    dto: Any = TaskInstance
    feed_on_demand("supervisor")
    known = {
        "task_id": "train",
        "dag_id": "kills",
        "run_id": "r",
        "try_number": 1,
        "map_index": -1,
        "id": uuid.uuid4(),
    }
    more = {
        "dag_version_id": uuid.uuid4(),
        "pool_slots": 1,
        "queue": "default",
        "priority_weight": 1,
    }
    fields = {name: value for name, value in {**known, **more}.items() if name in dto.model_fields}
    client = Client(base_url=None, dry_run=True, token="", transport=httpx.MockTransport(api))
    run: Callable[..., int] = getattr(supervisor, "supervise_task", None) or supervisor.supervise
    run(
        ti=dto(**fields),
        bundle_info=_generated.BundleInfo(name="dags-folder"),
        dag_rel_path="dag_of_kills.py",
        token="",
        client=client,
        log_path=None,
    )


def api(request: Any) -> Any:
    """The execution API as far as one task goes: no Connection, no Variable, every write taken."""
    import httpx

    path = request.url.path
    now = "2026-01-01T00:00:00Z"
    if path.endswith("/run"):
        dag_run = {
            "dag_id": "kills",
            "run_id": "r",
            "logical_date": now,
            "data_interval_start": now,
            "data_interval_end": now,
            "start_date": now,
            "end_date": None,
            "run_after": now,
            "run_type": "manual",
            "state": "running",
            "consumed_asset_events": [],
            "partition_key": None,
        }
        return httpx.Response(200, json={"dag_run": dag_run, "max_tries": 0, "should_retry": False})
    if request.method == "GET":
        return httpx.Response(404, json={"detail": {"reason": "not_found", "message": "not here"}})
    return (
        httpx.Response(204)
        if "state" in path or "heartbeat" in path
        else httpx.Response(200, json={"message": "ok"})
    )


def run(request: dict[str, Any]) -> None:
    os.environ.update(request["env"], ZEUS_CELL=request["cell"], ZEUS_STAGE=request["stage"])
    os.setpgid(0, 0)
    out = os.open(f"{request['cell']}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(out, descriptor)
    {"trainer": as_trainer, "task": as_supervisor, "recurrence": as_recurrence}[request["who"]](
        request
    )


def main() -> None:
    import airflow.sdk.execution_time.supervisor
    import airflow.sdk.execution_time.task_runner  # noqa: F401

    import tests.system.death_training  # noqa: F401  and with it the provider

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                run(json.loads(line))
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
