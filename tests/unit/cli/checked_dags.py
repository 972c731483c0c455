"""DAGs with one usual mistake each, and one without: what ``airflow zeus check`` is tried on. Real loops of torch."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from pathlib import Path

import torch
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, BaseOperator, get_current_context, task
from torch.utils.data import DataLoader, TensorDataset

from airflow_provider_zeus import ZeusCommandOperator, ZeusJob, ZeusTrial

SIZES = {"batch_sizes": [16, 32, 64], "default_batch_size": 32, "max_epochs": 5, "device": "simulated:v100/neumf"}
JOB = ZeusJob(**SIZES, target="accuracy >= 0.9")
X = torch.rand(4096, 2)
DATA = TensorDataset(X, (X.sum(1) > 1).float())
OUTSIDE = torch.nn.Linear(2, 1)
SCRIPTS = Path(__file__).with_name("checked_scripts")


class ContainerOperator(BaseOperator):
    """As operators of containers are: a check does not start them."""

    template_fields = ("command", "env")

    def __init__(self, *, command="", env=None, **kwargs):
        super().__init__(**kwargs)
        self.command, self.env = command, env

    def execute(self, context):
        raise AssertionError("a check starts no container")


class PodOperator(ContainerOperator):
    """As the operator of a pod."""


def new_model():
    return torch.nn.Linear(2, 1)


def fit(model, optimizer, x, y):
    optimizer.zero_grad()
    torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y).backward()
    optimizer.step()


def accuracy(model):
    """Over the whole of the data: a validation that is cut would say something else."""
    right = n = 0
    with torch.no_grad():
        for x, y in DataLoader(DATA, batch_size=256):
            right, n = right + int(((model(x)[:, 0] > 0) == (y > 0)).sum()), n + len(y)
    assert n == len(DATA)
    return 0.5 * right / n


def train(run, *, loader=None, model=new_model, told=True, report=None, value="/models/m.pt", each=1):
    model = model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in run.epochs():
        for i, (x, y) in enumerate(run.data_loader(DATA) if loader is None else loader(run)):
            if (i + 1) % each == 0:
                fit(model, optimizer, x, y)
            if loader is not None and told:
                run.step(len(x) if told is True else None)
        metrics = {"accuracy": accuracy(model)} if report is None else report
        if metrics:
            run.report(**metrics)
    return value


def own(size):
    return lambda run: DataLoader(DATA, batch_size=size or run.batch_size)


def slices(run):
    """Nothing shows their sizes."""
    return zip(*(tensor.split(run.batch_size) for tensor in DATA.tensors), strict=True)


def dag_of(name, job=JOB, **how):
    with DAG(name, schedule=None, start_date=datetime(2026, 1, 1)) as dag:

        @task.zeus(job, task_id="train")
        def a_training(run=None):
            return train(run, **how)

        @task
        def publish(found):
            raise AssertionError("a check runs no other task")

        publish(a_training())
    globals()[name] = dag


dag_of("right")
dag_of("right_own_loader", loader=own(None))
dag_of("right_untold", loader=own(None), told=False)
dag_of("no_loader_no_step", loader=slices, told=False)
dag_of("fixed_size_untold", loader=own(32), told=False)
dag_of("fixed_size", loader=own(32))
dag_of("fixed_size_told_as_chosen", loader=own(32), told="as chosen")
dag_of("fixed_size_in_our_loader", loader=lambda run: run.data_loader(DATA, batch_size=32), told=False)
dag_of("accumulated_on_top", each=4)
dag_of("per_cent", report={"accuracy": 95.0})
dag_of("share_for_per_cent", ZeusJob(**SIZES, target="accuracy >= 90"), report={"accuracy": 0.5})
dag_of("another_metric", report={"acc": 0.5})
dag_of("no_report", report={})
dag_of("not_a_number", report={"accuracy": float("nan")})
dag_of("no_set_target", ZeusJob(**SIZES, target="accuracy >= runtime"), report={"accuracy": 0.5})
dag_of("reached_at_once", ZeusJob(**SIZES, target="accuracy >= 0.1"), report={"accuracy": 0.5})
dag_of("model_outside", model=lambda: OUTSIDE)
dag_of("returns_nothing", value=None)
dag_of("returns_the_model", value=OUTSIDE)
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

    @task.zeus(ZeusJob(**SIZES | {"batch_sizes": [32, 128]}, target="accuracy >= 0.9", job_id="shared"))
    def second(run=None):
        return train(run)

    first()
    second()

with DAG("expanded", schedule=None, start_date=datetime(2026, 1, 1)):

    @task.zeus(JOB)
    def by_region(run=None, region=None):
        assert region == "eu"
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

with DAG("raises", schedule=None, start_date=datetime(2026, 1, 1)):

    @task.zeus(JOB)
    def broken(run=None):
        raise ValueError("no such file")

    @task.zeus(JOB)
    def broken_by_a_made_up_date(run=None, ds=None):
        raise ValueError(f"no data of {ds}")

    @task.zeus(JOB)
    def broken_by_a_partition(run=None, partition_key=None):
        return len(partition_key)

    @task.zeus(JOB)
    def needs_a_run(run=None):
        return get_current_context()["ds"]

    @task.zeus(JOB)
    def needs_a_gpu(run=None):
        return torch.nn.Linear(2, 1).to("cuda")

    @task.zeus(JOB)
    def needs_an_xcom(run=None, ti=None):
        return ti.xcom_pull("load")

    needs_an_xcom()
    broken()
    broken_by_a_made_up_date()
    broken_by_a_partition()
    needs_a_run()
    needs_a_gpu()

with DAG("hangs", schedule=None, start_date=datetime(2026, 1, 1)):

    @task.zeus(JOB)
    def hangs(run=None):
        time.sleep(3600)

    hangs()

with DAG("commands", schedule=None, start_date=datetime(2026, 1, 1)):
    for script in ("right", "never_trains", "ignores_its_size", "prints_its_result"):
        ZeusCommandOperator(task_id=script, job=JOB, command=[sys.executable, f"checked_scripts/{script}.py"])
    ZeusCommandOperator(task_id="several", job=JOB, command=["torchrun", "--nproc-per-node=2", "train.py"])
    ZeusCommandOperator(task_id="submitted", job=JOB, command=["sbatch", "train.sbatch"])

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
    with ZeusTrial(JOB, task_id="printed") as trial:
        BashOperator(task_id="prints_it", bash_command="echo '{\"accuracy\": 0.5}'", env=trial.env, append_env=True)
    with ZeusTrial(JOB, task_id="planless"):
        BashOperator(task_id="no_plan", bash_command=RIGHT)

    with ZeusTrial(JOB, task_id="elsewhere"):
        ContainerOperator(task_id="in_an_image", command="train")
    with ZeusTrial(JOB, task_id="pod") as trial:
        PodOperator(task_id="in_a_pod", env=trial.env, do_xcom_push=False)

with DAG("no_zeus", schedule=None, start_date=datetime(2026, 1, 1)):
    BashOperator(task_id="other", bash_command="true")
