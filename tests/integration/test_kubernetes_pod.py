"""``dags/zeus_kubernetes.py`` against an API server that runs its pods here: success, failure and retry."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.operators.collect import NO_RESULT
from tests.fake_kubernetes import FakeKubernetes, Pod
from tests.integration.jobs import log_of

ROOT = Path(__file__).parents[2]
TRAIN = f"""
import os, sys
sys.path[:0] = {sys.path!r}  # what the image has installed
os.environ["ZEUS_STATE_DIR"] = STATE_DIR
from pathlib import Path
from airflow_provider_zeus import ZeusRun
def train(run):
    for epoch in run.epochs():
        for _ in range(20):
            run.step()
        run.report(accuracy=0.84 * (epoch + 1) / 4)
        if epoch == 1 and Path(DIES).exists():
            Path(DIES).unlink()
            run.beat()
            os.kill(os.getpid(), 9)
    print("trained at", run.batch_size, "started as", os.environ["ZEUS_TRY"])
ZeusRun.from_env().train(train)
"""


class Example:
    """The example's DAG on a cluster whose worker and pods share a folder."""

    def __init__(self, folder: Path, run_dag: Callable[..., Any]) -> None:
        # a file: while it exists the next training is killed
        self.dies = folder / "dies"
        self._run_dag = run_dag
        code = TRAIN.replace("STATE_DIR", repr(str(folder / "state"))).replace(
            "DIES", repr(str(self.dies))
        )
        (folder / "train.py").write_text(code)
        self.cluster = FakeKubernetes(folder, {"/app/train.py": folder / "train.py"})
        source = (ROOT / "dags" / "zeus_kubernetes.py").read_text()
        assert source.count('"/shared/zeus"') == 1
        module = ModuleType("zeus_kubernetes_here")
        module.__file__ = str(ROOT / "dags" / "zeus_kubernetes.py")
        source = source.replace("/shared/zeus", str(folder / "results")).replace(
            '"zeus_kubernetes"', repr(folder.name)
        )
        exec(source, module.__dict__)
        self.dag = module.dag
        pod = self.dag.get_task("train")
        pod.config_file = str(self.cluster.kube_config)
        pod.in_cluster = False
        pod.pool = "default_pool"
        pod.retry_delay = timedelta(0)
        pod.startup_check_interval_seconds = 1
        pod.startup_timeout_seconds = 120

    def run(self) -> str:
        return str(self._run_dag(self.dag).state)

    def trials(self) -> list[Trial]:
        return sorted(log_of(f"{self.dag.dag_id}.train"), key=lambda trial: trial.state.value)


@pytest.fixture
def example(tmp_path: Path, run_dag: Callable[..., Any]) -> Iterator[Example]:
    found = Example(tmp_path, run_dag)
    yield found
    found.cluster.stop()


@pytest.mark.slow
def test_the_pod_trains_and_its_cost_comes_back(example: Example) -> None:
    assert example.run() == "success"
    (pod,) = example.cluster.pods
    assert "trained at 64 started as 1" in pod.output.read_text()
    assert example.cluster.deleted == [pod.name], "the operator removes what it has started"
    (trial,) = example.trials()
    assert (trial.state.value, trial.batch_size, trial.observation.epochs) == ("converged", 64, 4.0)
    assert (trial.observation.time_s or 0) > 0
    spec = pod.body["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["supplementalGroups"] == [50000]
    assert all("hostPath" not in volume for volume in spec["volumes"])


@pytest.mark.slow
def test_a_pod_that_is_killed_is_followed_by_another_and_both_costs_count(example: Example) -> None:
    example.dies.touch()
    assert example.run() == "success"
    assert len(example.cluster.pods) == 2
    assert "started as 2" in example.cluster.pods[1].output.read_text()
    kept, died = example.trials()
    assert (kept.state.value, died.state.value) == ("converged", "failed")
    assert NO_RESULT in (died.reason or "")
    assert died.observation.epochs == pytest.approx(2, abs=0.1)
    assert (died.observation.time_s or 0) > 0


@pytest.mark.nightly
def test_a_pod_that_cannot_start_is_followed_by_another(example: Example) -> None:
    def without_image(pod: Pod, number: int) -> None:
        pod.unpullable = number == 1

    example.cluster.before_start = without_image
    assert example.run() == "success"
    assert len(example.cluster.pods) == 2
    assert [trial.state.value for trial in example.trials()] == ["converged"]


@pytest.mark.nightly
def test_pods_that_all_fail_fail_the_run_and_leave_a_failed_trial(example: Example) -> None:
    def without_image(pod: Pod, number: int) -> None:
        pod.unpullable = True

    example.cluster.before_start = without_image
    assert example.run() == "failed"
    assert len(example.cluster.pods) == 3, "one and two retries"
    assert {trial.state.value for trial in example.trials()} == {"failed"}
    assert all(trial.observation.time_s is None for trial in example.trials())


@pytest.mark.slow
def test_the_api_server_refuses_what_is_no_pod(example: Example) -> None:
    """So that the tests above say something of the example's form."""
    example.dag.get_task("train").volume_mounts[0].mount_path = 7
    assert example.run() == "failed"
    assert example.cluster.pods == []
