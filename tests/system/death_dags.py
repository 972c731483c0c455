"""DAGs whose trainings can be held in the middle:
read by the servers of test_real_scheduler.py, not by pytest.

While a file ``<dag>.hold`` lies in ``$ZEUS_TEST_DIR`` a training steps on for ever in its second
epoch. Each appends its pids to ``<dag>.pids`` and what it saves to ``<dag>.saves``; where
``<dag>.fail`` lies, it takes that and raises.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, task

from airflow_provider_zeus import ZeusJob, ZeusTrial
from airflow_provider_zeus.operators.command import ZeusCommandOperator

HERE = Path(os.environ["ZEUS_TEST_DIR"])
COMMON = {
    "batch_sizes": [32, 64],
    "default_batch_size": 32,
    "target": "accuracy >= 0.9",
    "max_epochs": 20,
    "profile_s": 1.0,
    "power_limits_w": [125.0, 150.0],  # whichever is best, it is not the limit found
}
TRAIN = """
import os, time
from pathlib import Path

HERE = Path(os.environ["ZEUS_TEST_DIR"])

def append(name, text):
    with (HERE / name).open("a") as file:
        print(text, file=file)

def train(run, name):
    append(f"{name}.pids", f"train {os.getpid()}")
    append(f"{name}.pids", f"above {os.getppid()}")
    for epoch in run.epochs():
        for _ in range(200):
            run.step()
        while epoch == 1 and (HERE / f"{name}.hold").exists():
            run.step()
            time.sleep(0.01)
        if epoch == 1 and (HERE / f"{name}.fail").exists():
            (HERE / f"{name}.fail").unlink()
            raise RuntimeError("disk full")
        run.report(accuracy=(epoch + 1) / 3)
    append(f"{name}.saves", run.batch_size)
    return run.batch_size
"""
SCRIPT = (
    TRAIN
    + """
import subprocess, sys
from airflow_provider_zeus.training.run import ZeusRun

if sys.argv[2:]:  # a worker that ignores SIGTERM, in a session of its own, which no signal to a group reaches
    worker = subprocess.Popen(["bash", "-c", "trap '' TERM; sleep 600"], start_new_session=True)
    append(f"{sys.argv[1]}.pids", f"worker {worker.pid}")
ZeusRun.from_env().train(train, sys.argv[1])
if sys.argv[2:]:
    worker.kill()
"""
)
# the same function in the task and in the script
exec(compile(TRAIN, str(HERE / "train.py"), "exec"))
(HERE / "train.py").exists() or (HERE / "train.py").write_text(SCRIPT)

with DAG("real_task", schedule=None, max_active_runs=1):

    @task.zeus(ZeusJob(**COMMON, device="simulated:v100/bert_sa"))
    def train_it(run=None):
        return train(run, "real_task")  # noqa: F821

    train_it.override(task_id="train")()

with DAG("real_retry", schedule=None):

    @task.zeus(
        ZeusJob(**COMMON, device="simulated:v100/resnet50"), retries=1, retry_delay=timedelta(0)
    )
    def train_again(run=None):
        return train(run, "real_retry")  # noqa: F821

    train_again.override(task_id="train")()

with DAG("real_command", schedule=None):
    ZeusCommandOperator(
        task_id="train",
        job=ZeusJob(**COMMON, device="simulated:a40/bert_sa"),
        command=[sys.executable, str(HERE / "train.py"), "real_command", "with a worker"],
        retries=1,
        retry_delay=timedelta(seconds=8),  # longer than a lease
    )

with (
    DAG("real_trial", schedule=None),
    ZeusTrial(ZeusJob(**COMMON, device="simulated:a40/resnet50")) as trial,
):
    xcom = str(HERE / "return.json")
    BashOperator(
        task_id="train",
        bash_command=f"{sys.executable} {HERE}/train.py real_trial > /dev/null && cat {xcom}",
        env=trial.env | {"ZEUS_XCOM": xcom, "ZEUS_STATE_DIR": str(HERE / "state")},
        append_env=True,
    )

with (
    DAG("real_past", schedule=None, default_args={"depends_on_past": True}),
    ZeusTrial(ZeusJob(**COMMON, device="simulated:v100/neumf")) as after,
):
    own_xcom = str(HERE / "{{ run_id }}.json")
    BashOperator(
        task_id="train",
        bash_command=(
            f"export ZEUS_XCOM='{own_xcom}'; {sys.executable} {HERE}/train.py real_past > /dev/null"
            f" && cat '{own_xcom}'"
        ),
        env=after.env | {"ZEUS_STATE_DIR": str(HERE / "state")},
        append_env=True,
    )
