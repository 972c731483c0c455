"""DAGs with one usual mistake each, and one without: what ``airflow zeus check`` is tried on.

None may train.
"""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, BaseOperator, task

from airflow_provider_zeus import ZeusCommandOperator, ZeusJob, ZeusTrial

SIZES = {
    "batch_sizes": [16, 32, 64],
    "default_batch_size": 32,
    "max_epochs": 5,
    "device": "simulated:v100/neumf",
}
JOB = ZeusJob(**SIZES, target="accuracy >= 0.9")
SCRIPTS = Path(__file__).with_name("checked_scripts")


class ContainerOperator(BaseOperator):
    """As operators of containers are: a check does not start them."""

    template_fields = ("command", "env")

    def __init__(self, *, command="", env=None, **kwargs):
        super().__init__(**kwargs)
        self.command = command
        self.env = env

    def execute(self, context):
        raise AssertionError("a check starts no container")


class PodOperator(ContainerOperator):
    """As the operator of a pod."""


def train(*given):
    raise AssertionError("a check trains nothing")


def dag_of(name, job=JOB):
    with DAG(name, schedule=None, start_date=datetime(2026, 1, 1)) as dag:

        @task.zeus(job, task_id="train")
        def a_training(run=None):
            return train(run)

        @task
        def publish(found):
            raise AssertionError("a check runs no other task")

        publish(a_training())
    globals()[name] = dag


dag_of("right")
dag_of("wrong_direction", ZeusJob(**SIZES, target="accuracy <= 0.9"))
dag_of("limits_out_of_range", ZeusJob(**SIZES, target="accuracy >= 0.9", power_limits_w=[900.0]))
dag_of("no_signal", ZeusJob(**SIZES, target="accuracy >= 0.9", follow="zeus_carbno"))

with DAG("conn_misspelt", schedule=None, start_date=datetime(2026, 1, 1)):

    @task.zeus(JOB, zeus_conn_id="zeus_defualt")
    def misspelt(run=None):
        return train(run)

    misspelt()

with DAG("one_id_two_jobs", schedule=None, start_date=datetime(2026, 1, 1)):

    @task.zeus(ZeusJob(**SIZES, target="accuracy >= 0.9", job_id="shared"))
    def first(run=None):
        return train(run)

    @task.zeus(
        ZeusJob(**SIZES | {"batch_sizes": [32, 128]}, target="accuracy >= 0.9", job_id="shared")
    )
    def second(run=None):
        return train(run)

    first()
    second()

with DAG("expanded", schedule=None, start_date=datetime(2026, 1, 1)):

    @task.zeus(JOB)
    def by_region(run=None, region=None):
        return train(run)

    by_region.expand(region=["eu", "us"])

with DAG("upstream", schedule=None, start_date=datetime(2026, 1, 1)):

    @task
    def load():
        raise AssertionError("a check runs no other task")

    @task.zeus(JOB)
    def of_loaded(data, run=None):
        raise AssertionError("there are no data")

    of_loaded(load())

with DAG("contexts", schedule=None, start_date=datetime(2026, 1, 1)):

    @task.zeus(JOB)
    def dated(run=None, ds=None):
        return train(run, ds)

    @task.zeus(JOB)
    def by_partition(run=None, partition_key=None):
        return train(run, partition_key)

    @task.zeus(JOB)
    def by_a_template_of_an_xcom(rows, run=None):
        return train(run, rows)

    @task.zeus(JOB)
    def by_a_template_that_fails(rows, run=None):
        return train(run, rows)

    @task.zeus(JOB)
    def by_what_is_triggered(region, run=None):
        return train(run, region)

    by_what_is_triggered("{{ dag_run.conf.region }}")
    dated()
    by_partition()
    by_a_template_of_an_xcom("{{ ti.xcom_pull('load') }}")
    by_a_template_that_fails("{{ 1 / 0 }}")

with DAG("commands", schedule=None, start_date=datetime(2026, 1, 1)):
    for script in ("right", "ignores_its_size", "prints_its_result"):
        ZeusCommandOperator(
            task_id=script, job=JOB, command=[sys.executable, f"checked_scripts/{script}.py"]
        )
    ZeusCommandOperator(
        task_id="several", job=JOB, command=["torchrun", "--nproc-per-node=2", "train.py"]
    )
    ZeusCommandOperator(task_id="submitted", job=JOB, command=["sbatch", "train.sbatch"])
    TRACKED = ZeusJob(**SIZES, target="accuracy >= 0.9", log_to=["mlflow"])
    for script in ("right", "prints_its_result"):
        command = [sys.executable, f"checked_scripts/{script}.py"]
        ZeusCommandOperator(task_id=f"tracked_{script}", job=TRACKED, command=command)

with DAG("trials", schedule=None, start_date=datetime(2026, 1, 1)):
    RIGHT = f"{sys.executable} {SCRIPTS}/right.py"
    with ZeusTrial(JOB, task_id="handed_back") as trial:
        BashOperator(
            task_id="comes_back",
            bash_command=f"{RIGHT} && cat $ZEUS_XCOM",
            env=trial.env | {"ZEUS_XCOM": "zeus.json"},
            append_env=True,
        )
    with ZeusTrial(JOB, task_id="forgotten") as trial:
        BashOperator(task_id="no_xcom", bash_command=RIGHT, env=trial.env, append_env=True)
    with ZeusTrial(JOB, task_id="planless"):
        BashOperator(task_id="no_plan", bash_command=RIGHT)

    with ZeusTrial(JOB, task_id="elsewhere"):
        ContainerOperator(task_id="in_an_image", command="train")
    with ZeusTrial(JOB, task_id="pod") as trial:
        PodOperator(task_id="in_a_pod", env=trial.env, do_xcom_push=False)

with DAG("no_zeus", schedule=None, start_date=datetime(2026, 1, 1), tags=["plain"]):
    BashOperator(task_id="other", bash_command="true")
