"""DAG files as users write them: usual mistakes, each in several ways, and some that are right."""

from __future__ import annotations

from dataclasses import dataclass

HEAD = """
import sys
from datetime import datetime, timedelta

from airflow.sdk import DAG, Asset, PartitionedAssetTimetable, Variable, dag, task
from airflow.timetables.assets import AssetOrTimeSchedule
from airflow.timetables.trigger import CronTriggerTimetable

from airflow_provider_zeus import ZeusCommandOperator, ZeusJob, ZeusTrainOperator, ZeusTrial

SIZES = {"batch_sizes": [16, 32, 64], "default_batch_size": 32, "max_epochs": 5, "mode": "measure"}
"""
TRAIN = """
def train(run):
    raise AssertionError("a check trains nothing")
"""


def dag_file(
    train: str = TRAIN, job: str = 'target="accuracy >= 0.9"', dag: str = 'schedule="@daily"'
) -> str:
    """The text of a DAG file with one training; ``job`` and ``dag`` are arguments."""
    end = (
        f'with DAG("nightly", {dag}, start_date=datetime(2026, 1, 1)):\n   '
        " task.zeus(JOB)(train)()\n"
    )
    return f"{HEAD}\n\nJOB = ZeusJob(**SIZES | dict({job}))\n\n{train}\n\n{end}"


@dataclass(frozen=True)
class Mistake:
    """A DAG file and the one finding of it: the check, and words of the finding or its remedy."""

    text: str
    check: str
    words: str
    status: str = "error"


def of_job(
    job: str, check: str, words: str, status: str = "error", dag: str = 'schedule="@daily"'
) -> Mistake:
    return Mistake(
        dag_file(job=f'target="accuracy >= 0.9", {job}', dag=dag), check, words, status=status
    )


BY_COMMAND_OF_ASSET = (
    HEAD
    + """
with DAG("nightly", schedule=[Asset("x")], start_date=datetime(2026, 1, 1)):
    command = [sys.executable, "-c", "import airflow_provider_zeus", "DATA"]
    ZeusCommandOperator(task_id="train", job=ZeusJob(**SIZES, target="accuracy >= 0.9"), command=command)
"""
)
MAPPED_OF_ASSET = dag_file(
    "def train(run, region, ds):\n    pass\n", dag='schedule=[Asset("x")]'
).replace(
    "task.zeus(JOB)(train)()",
    'task.zeus(JOB, job_id_by="region")(train).expand(region=["eu", "us"])',
)
IN_A_TRIAL = (
    HEAD
    + """
from airflow.providers.standard.operators.bash import BashOperator

with DAG("nightly", schedule=[Asset("x")], start_date=datetime(2026, 1, 1)):
    with ZeusTrial(ZeusJob(**SIZES, target="accuracy >= 0.9"), result_path="/results") as trial:
        BashOperator(task_id="train", bash_command="train {{ ts_nodash }}", env=trial.env)
"""
)

# Of each kind the first one is tried after every edit, the others before a merge.
MISTAKES: dict[str, list[Mistake]] = {
    "wrong direction": [
        Mistake(dag_file(job='target="accuracy <= 0.2"'), "target", 'write "accuracy >= 0.2"'),
        Mistake(dag_file(job='target="loss >= 0.2"'), "target", 'write "loss <= 0.2"'),
        Mistake(dag_file(job='target="val_f1 <= 0.8"'), "target", 'write "val_f1 >= 0.8"'),
    ],
    "a hold-out that the earlier model has seen": [
        Mistake(
            dag_file(
                "def train(run):\n    def part():\n        return random_split(DATA, [8, 2])\n   "
                " return part()\n",
                'target="accuracy >= 0.9", starts=["cold", "warm"]',
            ),
            "starts",
            "random_split draws a hold-out",
            status="warning",
        ),
    ],
    "partition_key without partitions": [
        Mistake(dag_file("def train(run, partition_key):\n    pass\n"), "context", "take ds"),
    ],
    "nvml without a GPU": [
        of_job('device="nvml"', "device", "device='auto'"),
        of_job('device="nvml", mode="optimize"', "device", "device='auto'"),
        of_job('device="nvml", gpus=2', "device", "on this host"),
        of_job('device="rapl"', "device", "device='auto'"),
    ],
    "signal without Connection": [
        of_job(
            'follow="carbon", mode="optimize", device="simulated:v100/neumf"',
            "Connection zeus_carbon",
            "Zeus signal",
        ),
        of_job(
            'start_signal="price", start_within=timedelta(hours=4)',
            "Connection zeus_price",
            "docs/levers/signals.md",
        ),
        of_job('follow="zeus_carbno"', "Connection zeus_carbno", "correct the name"),
        of_job(
            'follow="{{ params.signal }}"',
            "Connection grid",
            "define grid",
            dag='schedule="@daily", params={"signal": "grid"}',
        ),
    ],
    "past finish_by": [
        of_job('finish_by="2026-01-31 06:00"', "finish_by", "they move with each run"),
        of_job("finish_by=datetime(2026, 2, 1, 6)", "finish_by", "is past"),
        of_job('finish_by="2026-01-31T06:00:00+02:00"', "finish_by", "timedelta(hours=8)"),
        of_job(
            'finish_by="{{ params.until }}"',
            "finish_by",
            "is past",
            dag='schedule="@daily", params={"until": "2026-03-01 06:00"}',
        ),
    ],
    "one date as finish_by of many runs": [
        of_job('finish_by="2999-01-31 06:00"', "finish_by", "one date, and the DAG recurs"),
        of_job(
            "finish_by=datetime(2999, 2, 1, 6)",
            "finish_by",
            "timedelta(hours=8)",
            dag='schedule=[Asset("x")]',
        ),
    ],
    "a date of a run that has none": [
        of_job(
            'data_slice="{{ ds }}"',
            "context",
            "no ds: asset-triggered runs",
            dag='schedule=[Asset("x")]',
        ),
        of_job('data_slice="{{ ds }}"', "context", "take run_id", dag='schedule=[Asset("x")]'),
        of_job(
            'data_slice="{{ ds }}"',
            "context",
            "ZeusJob.data_slice = '{{ ds }}'",
            dag=(
                'schedule=AssetOrTimeSchedule(timetable=CronTriggerTimetable("@daily",'
                ' timezone="UTC"), assets=Asset("x"))'
            ),
        ),
        of_job(
            'data_slice="{{ logical_date | ds }}"',
            "context",
            "no logical_date",
            dag='schedule=[Asset("x")]',
        ),
        of_job(
            'data_slice="{{ dag_run.logical_date }}"',
            "context",
            "no logical_date",
            dag='schedule=[Asset("x")]',
        ),
        of_job(
            'data_slice="{{ ds }}"',
            "context",
            "some manual ones",
            status="warning",
            dag="schedule=None",
        ),
        Mistake(
            dag_file("def train(run, ds):\n    pass\n", dag='schedule=[Asset("x")]'),
            "context",
            "an argument of train() = 'ds': this run has no ds",
        ),
        Mistake(MAPPED_OF_ASSET, "context", "an argument of train() = 'ds': this run has no ds"),
        Mistake(
            dag_file(
                "def train(run, *, data_interval_end):\n    pass\n", dag='schedule=[Asset("x")]'
            ),
            "context",
            "take run_id",
        ),
        Mistake(
            BY_COMMAND_OF_ASSET.replace("DATA", "--date={{ ds }}"),
            "context",
            "command = '--date={{ ds }}'",
        ),
        Mistake(
            BY_COMMAND_OF_ASSET.replace("DATA", "{{ params.rows }}"),
            "context",
            "there is no param rows",
        ),
        Mistake(IN_A_TRIAL, "context", "no ts_nodash"),
    ],
    "a date of a run of partitions": [
        of_job(
            'data_slice="{{ ds }}"',
            "context",
            "take partition_key, the name of its data",
            dag='schedule=PartitionedAssetTimetable(assets=Asset("x"))',
        ),
    ],
    "a misspelt name in a template": [
        Mistake(
            dag_file(
                job="target='{{ params.tgt }}'",
                dag='schedule="@daily", params={"target": "accuracy >= 0.9", "a": 1}',
            ),
            "context",
            "ZeusJob.target = '{{ params.tgt }}': there is no param tgt -> correct its name; the"
            " params are: a, target",
        ),
        Mistake(dag_file(job="target='{{ params[\"tgt\"] }}'"), "context", "no param tgt"),
        Mistake(
            dag_file(job="target='{{ parms.target }}'"),
            "context",
            "no run has parms -> did you mean params",
        ),
        of_job('data_slice="{{ partition_key }}"', "context", "take ds"),
    ],
    "learn_from that no schedule gives": [
        of_job('learn_from=["scheduled"]', "learn_from", "'manual'", dag="schedule=None"),
        of_job('learn_from=["asset_triggered"]', "learn_from", "'scheduled'"),
        of_job(
            'learn_from=["scheduled", "backfill"]',
            "learn_from",
            "'asset_triggered'",
            dag='schedule=[Asset("s3://new")]',
        ),
        of_job(
            'learn_from=["manual"]',
            "learn_from",
            "teach nothing",
            status="warning",
            dag="schedule=timedelta(days=1)",
        ),
    ],
    "constant data_slice": [
        of_job(
            'data_slice="a"',
            "data_slice",
            '"{{ run_id }}"',
            status="warning",
            dag='schedule=[Asset("x")]',
        ),
        of_job('data_slice="2026-11-01"', "data_slice", 'data_slice="{{ ds }}"', status="warning"),
        of_job(
            'data_slice="{{ dag.dag_id }}"', "data_slice", "'nightly' in each run", status="warning"
        ),
        of_job(
            'data_slice="sales.csv"',
            "data_slice",
            "the same data",
            status="warning",
            dag='schedule=[Asset("s3://new")]',
        ),
        of_job(
            "data_slice=\"{{ macros.ds_add('2026-11-01', 1) }}\"",
            "data_slice",
            "leave it out",
            status="warning",
        ),
    ],
}


def right(
    train: str = TRAIN, job: str = 'target="accuracy >= 0.9"', dag: str = 'schedule="@daily"'
) -> str:
    return dag_file(train, job, dag)


SCRIPT = """
import os

size = int(os.environ["ZEUS_BATCH_SIZE"])
raise AssertionError("a check trains nothing")
"""
BY_COMMAND = """
from airflow_provider_zeus import ZeusRun

raise AssertionError("a check trains nothing")
"""

# Of each kind of mistake what is near it, and right.
RIGHT: dict[str, str] = {
    "decorator": HEAD
    + """
@dag(schedule="@daily", start_date=datetime(2026, 1, 1))
def nightly():
    @task
    def publish(path):
        print(path)

    @task.zeus(ZeusJob(**SIZES, target="accuracy >= 0.9"))
    def train(run=None, ds=None):
        raise AssertionError("a check trains nothing")

    publish(train())


nightly()
""",
    "operators": HEAD
    + TRAIN
    + """
JOB = ZeusJob(**SIZES, target="accuracy >= 0.9", job_id="nightly")
with DAG("nightly", schedule="0 3 * * *", start_date=datetime(2026, 1, 1)):
    ZeusTrainOperator(task_id="train", job=JOB, python_callable=train)
with DAG("by_hand", schedule=None):
    ZeusTrainOperator(task_id="train", job=JOB, python_callable=train)
""",
    "commands": HEAD
    + """
with DAG("nightly", schedule="@daily", start_date=datetime(2026, 1, 1)):
    for script in ("script.py", "by_command.py"):
        ZeusCommandOperator(
            task_id=script.removesuffix(".py"),
            job=ZeusJob(**SIZES, target="accuracy >= 0.9"),
            command=[sys.executable, script, "--data", "/data/{{ ds }}"],
        )
""",
    "mapped": HEAD
    + TRAIN.replace("(run)", "(run, region)")
    + """
with DAG("nightly", schedule="@daily", start_date=datetime(2026, 1, 1)):
    job = ZeusJob(**SIZES, target="accuracy >= 0.9", data_slice="{{ ds }}")
    ZeusTrainOperator.partial(task_id="train", job=job, python_callable=train, job_id_by="region").expand(
        op_kwargs=[{"region": "eu"}, {"region": "us"}]
    )
    jobs = [ZeusJob(**SIZES, target="accuracy >= 0.9", job_id=f"train.{name}").to_dict() for name in ("a", "b")]
    ZeusTrainOperator.partial(task_id="each", python_callable=train, op_kwargs={"region": "eu"}).expand(job=jobs)
""",
    "params and a Variable": HEAD
    + TRAIN.replace("(run)", "(run, rows, region=None)")
    + """
with DAG("nightly", schedule="@daily", start_date=datetime(2026, 1, 1), params={"rows": 100, "until": "06:00"}):
    job = ZeusJob.from_dict(SIZES | {"target": "{{ var.json.zeus_job.target }}", "finish_by": "{{ params.until }}",
                                     "data_slice": "{{ params.rows }}"})
    task.zeus(job)(train)("{{ params.rows }}", region="{{ var.value.get('region', 'eu') }}")
""",
    "slices, deadline": right(
        job=(
            'target="accuracy >= 0.9", data_slice="{{ data_interval_end | ds }}",'
            ' finish_by=timedelta(hours=3), learn_from=["scheduled", "backfill"]'
        )
    ),
    "a signal with its Connection": right(
        job=(
            'target="accuracy >= 0.9", mode="optimize", device="simulated:v100/neumf",'
            ' follow="carbon", start_signal="grid", start_within=timedelta(hours=6),'
            ' finish_by="23:59"'
        )
    ),
    "assets": right(
        job='target="accuracy >= 0.9", learn_from=["asset_triggered"], data_slice="{{ run_id }}"',
        dag='schedule=[Asset("s3://new")]',
    ),
    "partitions of an asset": right(
        TRAIN.replace("(run)", "(run, partition_key)"),
        dag='schedule=PartitionedAssetTimetable(assets=Asset("x"))',
    ),
    "assets or a time": right(
        job='target="accuracy >= 0.9", learn_from=["scheduled"]',
        dag=(
            'schedule=AssetOrTimeSchedule(timetable=CronTriggerTimetable("@daily", timezone="UTC"),'
            ' assets=Asset("x"))'
        ),
    ),
    "assets, with a name for runs without a date": right(
        TRAIN.replace("(run)", "(run, ds=None)"),
        job='target="accuracy >= 0.9", data_slice="{{ ds | default(run_id) }}"',
        dag='schedule=[Asset("s3://new")]',
    ),
    "all that a run has": right(
        job=(
            'target="accuracy >= 0.9", data_slice="{{ ts_nodash_with_tz }}", job_version="{{'
            ' params.v }}"'
        ),
        dag='schedule="@daily", params={"v": "2"}',
    ),
    "one date of one run": right(
        job='target="accuracy >= 0.9", finish_by="2999-01-31 06:00"', dag='schedule="@once"'
    ),
    "one date of runs by hand": right(
        job='target="accuracy >= 0.9", finish_by="2999-01-31 06:00"', dag="schedule=None"
    ),
    "a template of a date": right(
        job='target="accuracy >= 0.9", finish_by="{{ params.until }}"',
        dag='schedule="@daily", params={"until": "2999-01-31 06:00"}',
    ),
    "by hand": right(job='target="accuracy >= 0.9", learn_from=["manual"]', dag="schedule=None"),
    "values of another task": HEAD
    + TRAIN.replace("(run)", "(run, rows)")
    + """
with DAG("nightly", schedule="@daily", start_date=datetime(2026, 1, 1)):

    @task
    def load():
        raise AssertionError("a check runs no other task")

    task.zeus(ZeusJob(**SIZES, target="accuracy >= 0.9"))(train)(load())
""",
}
