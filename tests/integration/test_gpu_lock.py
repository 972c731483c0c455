"""Tasks and commands on a GPU that has a lock: the fake driver, a real operator, a real child process."""

from __future__ import annotations

import fcntl
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.operators.command import ZeusCommandOperator
from airflow_provider_zeus.power.limits.gpu_lock import held_here
from tests.fake_nvml import FakeNvml
from tests.integration.jobs import job, log_of

ROOT = Path(__file__).parents[2]
SCRIPT = """
import math
import sys
import time
from airflow_provider_zeus.power import meter
from airflow_provider_zeus.training.profiling import measurement_windows
from airflow_provider_zeus.training.run import ZeusRun
measurement_windows.SETTLE_S = 0.02
# on a busy host readings take so long that no limit would be profiled
meter.MOST_SHARE = measurement_windows.MOST_SHARE = math.inf
limits_to_measure = int(sys.argv[1])
def train(run):
    for _ in run.epochs():
        deadline_s = time.monotonic() + 120
        steps = 0
        # a busy host needs long to measure a limit
        while steps < 100 or len(run.progress.present.measured) < limits_to_measure:
            assert time.monotonic() < deadline_s, "no limit was measured"
            time.sleep(0.001)
            run.step()
            steps += 1
        run.report(accuracy=1.0)
    return run.batch_size
ZeusRun.from_env().train(train)
"""


@pytest.fixture
def command_dag(nvml: FakeNvml, tmp_path: Path) -> Any:
    def build(dag_id: str, limits_to_measure: int, **changes: Any) -> DAG:
        script = tmp_path / "script.py"
        script.write_text(SCRIPT)
        # long enough that a pause of the process between two readings does not hide its power
        spec = job(device="auto", profile_s=0.5, power_limits_w=[250, 150], **changes)
        with DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
            env = {"PYTHONPATH": str(ROOT), **nvml.environment}
            ZeusCommandOperator(
                task_id="train",
                job=spec,
                command=[sys.executable, str(script), str(limits_to_measure)],
                env=env,
            )
        return dag

    return build


def test_a_command_trains_under_the_lock_of_its_operator(
    run_dag: Any, nvml: FakeNvml, command_dag: Any
) -> None:
    """The operator measures from outside too; its command must not wait for it, nor count it as another training."""
    card = nvml.add(tick_s=0.002, settle_s=0.002)
    run_dag(command_dag("zeus_lock_command", limits_to_measure=2))
    seen = log_of("zeus_lock_command.train")[-1].observation
    assert seen.energy_source == "nvml_counter"
    assert (seen.energy_j or 0) > 0
    assert 150.0 in nvml.sets
    assert card.limit_w == 250.0
    assert held_here() == (), "it ends with the task"


def test_a_task_beside_another_training_shares_and_says_so(
    run_dag: Any, nvml: FakeNvml, command_dag: Any, airflow_home: Path
) -> None:
    uuid = nvml.add().uuid.decode()
    path = airflow_home / "zeus" / f"gpu-{uuid}.lock"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as other:
        other.write("another training")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        run_dag(command_dag("zeus_lock_shared", limits_to_measure=0, gpu_lock="share"))
    trial = log_of("zeus_lock_shared.train")[-1]
    assert trial.state is State.CONVERGED
    assert trial.observation.energy_j is None
    assert "another training" in trial.observation.reasons["energy_j"]
    assert nvml.sets == []
    assert held_here() == ()
