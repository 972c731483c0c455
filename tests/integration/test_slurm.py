"""``ZeusCommandOperator(["sbatch", ...])`` on a Slurm cluster whose node shares one folder with the worker."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.operators.command import ZeusCommandOperator
from airflow_provider_zeus.operators.external_meter import ELSEWHERE
from tests.fake_slurm import FakeSlurm
from tests.integration.jobs import job, log_of
from tests.integration.test_torchrun import script as ranks_script

START = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[2]
TRAIN = """
import os, sys, time
from pathlib import Path
from airflow_provider_zeus.training.run import ZeusRun
EPOCHS = {16: 19, 32: 4, 64: 5}
shared = Path(os.environ["SLURM_JOB_OUTPUTS"])
(shared / "node_tmp").write_text(" ".join(sorted(os.listdir("/tmp"))))
def train(run):
    for epoch in run.epochs():
        for _ in range(5000 // run.batch_size):
            run.step()
        run.report(accuracy=0.9 * (epoch + 1) / EPOCHS[run.batch_size])
        AFTER_EPOCH
    with open(shared / "saves", "a") as file:
        print(run.batch_size, file=file)
    return run.batch_size
run = ZeusRun.from_env()
print("kept", RUN)
"""


class Cluster:
    """DAGs with one task that submits ``train.sbatch``."""

    def __init__(self, slurm: FakeSlurm, run_dag: Callable[..., Any]) -> None:
        self.slurm = slurm
        self.run_dag = run_dag

    def dag(
        self,
        dag_id: str,
        *options: str,
        after_epoch: str = "pass",
        loop: bool = False,
        **kwargs: Any,
    ) -> DAG:
        code = TRAIN.replace("AFTER_EPOCH", after_epoch).replace(
            "RUN", "train(run)" if loop else "run.train(train)"
        )
        (self.slurm.shared / "train.py").write_text(code)
        script = self.slurm.shared / "train.sbatch"
        exports = f"export PYTHONPATH={ROOT} SLURM_JOB_OUTPUTS={self.slurm.shared} ZEUS_STATE_DIR=/tmp/zeus\n"
        script.write_text(
            f"#!/bin/bash\n#SBATCH --time=00:10:00\n{exports}{sys.executable} {script.parent}/train.py\n"
        )
        words = [
            str(self.slurm.bin / "sbatch"),
            *options,
            *([] if "--wrap" in options else [str(script)]),
        ]
        with DAG(dag_id, schedule=None, start_date=START) as dag:
            own = {"job": job(), "cwd": str(self.slurm.shared)}
            ZeusCommandOperator(task_id="train", command=words, **{**own, **kwargs})
        return dag

    def run(self, dag_id: str, *options: str, **kwargs: Any) -> Any:
        return self.run_dag(self.dag(dag_id, *options, **kwargs))

    def saves(self) -> list[int]:
        path = self.slurm.shared / "saves"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def left(self) -> list[str]:
        """Folders of plans and results that were not removed."""
        return [path.name for path in self.slurm.shared.glob("exchange/zeus-*")]


@pytest.fixture
def cluster(
    tmp_path: Path, run_dag: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    slurm = FakeSlurm(tmp_path)
    monkeypatch.setenv("AIRFLOW__ZEUS__ATTEMPT_ROOT", str(slurm.shared / "exchange"))
    yield Cluster(slurm, run_dag)
    slurm.stop()


def states(dag_id: str) -> list[tuple[int, str, str | None]]:
    return [(t.batch_size, t.state.value, t.reason) for t in log_of(f"{dag_id}.train")]


@pytest.mark.slow
def test_one_job_for_each_run_trains_both_attempts_and_its_cost_comes_back(
    cluster: Cluster,
) -> None:
    dag = cluster.dag("zeus_slurm")
    first = cluster.run_dag(dag)
    second = cluster.run_dag(dag)
    assert [first.state, second.state] == ["success"] * 2
    assert [j["state"] for j in cluster.slurm.jobs()] == ["COMPLETED"] * 2
    assert cluster.saves() == [32, 32], "16 is given up in the second run, and 32 trains to the end"
    assert [s[:2] for s in states("zeus_slurm")] == [
        (32, "converged"),
        (16, "given_up"),
        (32, "converged"),
    ]
    trials = log_of("zeus_slurm.train")
    assert all((t.observation.energy_j or 0) > 0 for t in trials)
    assert {t.observation.device_model for t in trials} == {trials[0].observation.device_model}
    ti = second.get_task_instance("train")
    assert ti.xcom_pull(task_ids="train") == "Submitted batch job 2"
    assert "kept 32" in cluster.slurm.output(2), "the training's own output is in the job's file"
    assert cluster.left() == []


def test_nothing_of_the_workers_temporary_folder_is_needed(cluster: Cluster) -> None:
    if not cluster.slurm.has_own_tmp:
        pytest.skip(
            "this host lets no test make a mount namespace: the node shares its /tmp with the worker"
        )
    assert cluster.run("zeus_slurm_tmp").state == "success"
    names = (cluster.slurm.shared / "node_tmp").read_text().split()
    seen = [
        path
        for path in (cluster.slurm.shared, ROOT, Path(sys.prefix))
        if path.is_relative_to("/tmp")
    ]
    assert set(names) <= {
        "slurmd-script-1",
        "zeus",
        *(path.relative_to("/tmp").parts[0] for path in seen),
    }


@pytest.mark.slow
def test_a_loop_alone_is_submitted_once_for_each_attempt(cluster: Cluster) -> None:
    dag = cluster.dag("zeus_slurm_loop", loop=True)
    assert [cluster.run_dag(dag).state, cluster.run_dag(dag).state] == ["success"] * 2
    assert len(cluster.slurm.jobs()) == 3
    assert [s[:2] for s in states("zeus_slurm_loop")] == [
        (32, "converged"),
        (16, "given_up"),
        (32, "converged"),
    ]


def test_a_job_that_fails_fails_the_task_and_keeps_its_cost_so_far(cluster: Cluster) -> None:
    dag_run = cluster.run("zeus_slurm_fails", after_epoch="epoch < 1 or (run.beat(), os._exit(7))")
    assert dag_run.state == "failed"
    assert (cluster.slurm.jobs()[0]["state"], cluster.slurm.jobs()[0]["status"]) == ("FAILED", 7)
    assert states("zeus_slurm_fails") == [
        (32, "failed", "the command ended with status 7 without a result")
    ]
    seen = log_of("zeus_slurm_fails.train")[0].observation
    assert (seen.energy_j or 0) > 0
    assert seen.epochs == pytest.approx(2, abs=1)


# so 64 is tried alone
UNREACHED = {"batch_sizes": [32, 64], "max_epochs": 3, "policy": "knowledge_gradient"}


@pytest.mark.slow
def test_a_job_that_fails_at_another_size_is_followed_by_one_with_the_default(
    cluster: Cluster,
) -> None:
    dag = cluster.dag(
        "zeus_slurm_relief",
        after_epoch="run.batch_size == 64 and os._exit(7)",
        job=job(**UNREACHED),
    )
    assert [cluster.run_dag(dag).state for _ in range(3)] == ["success"] * 3
    assert [each["state"] for each in cluster.slurm.jobs()] == [
        "COMPLETED",
        "FAILED",
        "COMPLETED",
        "COMPLETED",
    ]
    assert [s[:2] for s in states("zeus_slurm_relief")] == [
        (32, "exhausted"),
        (64, "failed"),
        (32, "exhausted"),
        (32, "exhausted"),
    ]


@pytest.mark.slow
def test_nothing_follows_a_job_that_was_cancelled(cluster: Cluster) -> None:
    waits = "run.batch_size == 64 and time.sleep(600)"
    dag = cluster.dag("zeus_slurm_cancelled", after_epoch=waits, job=job(**UNREACHED))
    assert cluster.run_dag(dag).state == "success"

    def cancel() -> None:
        cluster.slurm.wait_for("RUNNING")
        subprocess.run([cluster.slurm.bin / "scancel", "2"], check=True)

    canceller = threading.Timer(2.0, cancel)
    canceller.start()
    assert cluster.run_dag(dag).state == "failed"
    canceller.join()
    assert [each["state"] for each in cluster.slurm.jobs()] == ["COMPLETED", "CANCELLED"]
    assert [s[:2] for s in states("zeus_slurm_cancelled")] == [(32, "exhausted"), (64, "failed")]


def test_a_job_that_a_signal_ends_reads_status_1(cluster: Cluster) -> None:
    assert (
        cluster.run(
            "zeus_slurm_killed", after_epoch="os.kill(os.getppid(), 9); time.sleep(60)"
        ).state
        == "failed"
    )
    assert states("zeus_slurm_killed") == [
        (32, "failed", "the command ended with status 1 without a result")
    ]


@pytest.mark.parametrize(
    ("export", "ends"),
    [
        pytest.param("NONE", "failed", marks=pytest.mark.nightly),
        pytest.param("ZEUS_PLAN,ZEUS_RESULT", "success", marks=pytest.mark.slow),
    ],
)
def test_what_sbatch_exports_decides_whether_the_job_finds_its_plan(
    cluster: Cluster, export: str, ends: str
) -> None:
    name = f"zeus_slurm_{export.lower().replace(',', '_')}"
    assert cluster.run(name, f"--export={export}").state == ends
    ((_, state, _),) = states(name)
    assert state == {"success": "converged", "failed": "failed"}[ends]
    assert ("ZEUS_PLAN" in cluster.slurm.output(1)) == (ends == "failed"), (
        "the job's output names what is missing"
    )


@pytest.mark.slow
def test_a_site_that_exports_nothing_is_overruled_by_the_command(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_EXPORT", "NONE")
    assert cluster.run("zeus_slurm_site").state == "failed"
    assert cluster.run("zeus_slurm_site", "--export=ALL").state == "success"


def test_a_job_without_a_result_reports_no_metric(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    dag_run = cluster.run("zeus_slurm_silent", "--wrap", "echo trained at $ZEUS_BATCH_SIZE")
    assert dag_run.state == "success"
    assert "trained at 32" in cluster.slurm.output(1)
    assert states("zeus_slurm_silent") == [
        (32, "no_metric", "the command ended with status 0 without a result")
    ]
    seen = log_of("zeus_slurm_silent.train")[0].observation
    assert (seen.energy_j, seen.time_s) == (None, None), (
        "the time of the command includes its wait in the queue"
    )
    assert seen.reasons["time_s"] == ELSEWHERE
    assert "docs/how-to/slurm.md" in caplog.text


@pytest.mark.parametrize("when", ["PENDING", "RUNNING"])
def test_a_stopped_task_cancels_its_job(cluster: Cluster, when: str) -> None:
    """As Airflow does it: SIGTERM calls on_kill while the task waits for the command."""
    dag = cluster.dag(f"zeus_slurm_{when.lower()}", after_epoch="time.sleep(600)")
    if when == "PENDING":
        cluster.slurm.drain()

    def stop_it(*_: object) -> None:
        dag.get_task("train").on_kill()

    def when_it_is_there() -> None:
        cluster.slurm.wait_for(when)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, stop_it)
    waiter = threading.Thread(target=when_it_is_there)
    waiter.start()
    try:
        dag_run = cluster.run_dag(dag)
    finally:
        waiter.join()
        signal.signal(signal.SIGTERM, before)
    assert dag_run.state == "failed"
    cluster.slurm.wait_for("CANCELLED")
    ((_, state, reason),) = states(dag.dag_id)
    assert (state, "stopped the task" in (reason or "")) == ("failed", True)
    assert cluster.saves() == []
    assert cluster.left() == []


@pytest.mark.nightly
def test_the_recipe_for_several_nodes_trains_them_as_one(cluster: Cluster) -> None:
    """The script of the page, with a process for each node, and both nodes on this host."""
    page = (
        (ROOT / "docs" / "how-to" / "several-gpus.md")
        .read_text()
        .partition("### Several nodes of Slurm")[2]
    )
    script = page.partition("```bash\n")[2].partition("```")[0]
    shared = cluster.slurm.shared
    (shared / "train.py").write_text(ranks_script())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    for there, here in (
        ("source /shared/venv/bin/activate", f"export PYTHONPATH={ROOT}"),
        ("--nproc-per-node=4", "--nproc-per-node=1"),
        ("torchrun ", f"{sys.executable} -m torch.distributed.run "),
        (":29500", f":{port}"),
        ("/shared/train/train.py", str(shared / "train.py")),
    ):
        assert there in script
        script = script.replace(there, here)
    (shared / "nodes.sbatch").write_text(script)
    path = f"{cluster.slurm.bin}:{os.environ['PATH']}"
    with DAG("zeus_slurm_nodes", schedule=None, start_date=START) as dag:
        ZeusCommandOperator(
            task_id="train",
            job=job(),
            command=["sbatch", str(shared / "nodes.sbatch")],
            env={"PATH": path, "SAID": f"{shared}/said-", "OMP_NUM_THREADS": "1"},
            cwd=str(shared),
        )
    assert cluster.run_dag(dag).state == "success", cluster.slurm.output(1)
    assert states("zeus_slurm_nodes") == [(32, "converged", None)]
    seen = log_of("zeus_slurm_nodes.train")[0].observation
    assert (seen.device_count, seen.max_power_w, seen.epochs) == (2, 500.0, 4.0), (
        "the GPUs of both nodes"
    )
    assert [(shared / f"said-{rank}").exists() for rank in (0, 1)] == [True, True]


def test_without_a_shared_folder_nothing_is_submitted(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW__ZEUS__ATTEMPT_ROOT")
    assert cluster.run("zeus_slurm_unshared").state == "failed"
    assert (cluster.slurm.jobs(), log_of("zeus_slurm_unshared.train")) == ([], [])


def test_sbatch_in_a_text_is_refused_at_parse() -> None:
    with pytest.raises(JobSpecError, match=r'sbatch in a shell.*\["sbatch", "train.sbatch"\]'):
        ZeusCommandOperator(task_id="train", job=job(), command="sbatch --wait train.sbatch")
