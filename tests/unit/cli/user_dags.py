"""DAG files as users write them: twenty usual mistakes, each in several ways, and fifteen that are right."""

from __future__ import annotations

from dataclasses import dataclass

HEAD = """
import functools
import sys
from datetime import datetime, timedelta
from types import SimpleNamespace

import torch
from airflow.sdk import DAG, Asset, PartitionedAssetTimetable, Variable, dag, task
from airflow.timetables.assets import AssetOrTimeSchedule
from airflow.timetables.trigger import CronTriggerTimetable
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from airflow_provider_zeus import ZeusCommandOperator, ZeusJob, ZeusTrainOperator

SIZES = {"batch_sizes": [16, 32, 64], "default_batch_size": 32, "max_epochs": 5, "mode": "measure"}
torch.manual_seed(0)
X = torch.rand(1024, 2)
Y = (X.sum(1) > 1).float()
TRAIN, HELD = TensorDataset(X[:768], Y[:768]), TensorDataset(X[768:], Y[768:])


def new_model():
    return torch.nn.Linear(2, 1)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y).backward()
    optimizer.step()


@torch.no_grad()
def accuracy(model, loader=None):
    right = sum(int(((model(x)[:, 0] > 0) == (y > 0)).sum()) for x, y in loader or DataLoader(HELD, batch_size=128))
    return 0.5 * right / len(HELD)
"""

LOADER = "run.data_loader(TRAIN, shuffle=True)"
STEP = "step(model, optimizer, x, y)"
BATCHES = f"        for x, y in {LOADER}:\n            {STEP}\n"
REPORT = "run.report(accuracy=accuracy(model))"
TRAIN = f"""
def train(run):
    model = new_model()
    optimizer = sgd(model)
    for epoch in run.epochs():
{BATCHES}        {REPORT}
    return "/models/m.pt"
"""
SLICES = """        for at in range(0, 768, run.batch_size):
            step(model, optimizer, X[at : at + run.batch_size], Y[at : at + run.batch_size])
"""
ENDS = ("training",)  # an error that ends the training is an error of the training, too


def dag_file(train: str = TRAIN, job: str = 'target="accuracy >= 0.9"', dag: str = 'schedule="@daily"') -> str:
    """The text of a DAG file with one training; ``job`` and ``dag`` are arguments."""
    end = f'with DAG("nightly", {dag}, start_date=datetime(2026, 1, 1)):\n    task.zeus(JOB)(train)()\n'
    return f"{HEAD}\n\nJOB = ZeusJob(**SIZES | dict({job}))\n\n{train}\n\n{end}"


def changed(*changes: tuple[str, str], before: str = "") -> str:
    """The right training after some lines of code, changed."""
    text = TRAIN
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return before + text


def own(loader: str, told: str = "run.step(len(x))", before: str = "") -> str:
    return changed((LOADER, loader), (STEP, f"{STEP}\n            {told}"), before=before)


def cached(model: str, before: str) -> str:
    return changed(("new_model()", model), before=before)


def reports(what: str) -> str:
    return changed((REPORT, what))


def returns(what: str) -> str:
    return changed(('"/models/m.pt"', what))


@dataclass(frozen=True)
class Mistake:
    """A DAG file and the one finding of it: the check, and words of the finding or its remedy."""

    text: str
    check: str
    words: str
    ends: bool = False  # the training ends by it, which is a finding as well
    status: str = "error"


def of_job(job: str, check: str, words: str, status: str = "error", dag: str = 'schedule="@daily"') -> Mistake:
    return Mistake(dag_file(job=f'target="accuracy >= 0.9", {job}', dag=dag), check, words, status=status)


CACHED = "\n@functools.lru_cache\ndef cached():\n    return new_model()\n"
TWICE = f"""
def train(run):
    for fold in range(2):
        model = new_model()
        optimizer = sgd(model)
        for epoch in run.epochs():
            for x, y in {LOADER}:
                {STEP}
            {REPORT}
    return "/models/m.pt"
"""
TWICE_BY_HELPER = f"""
def fit(run, model, optimizer):
    for epoch in run.epochs():
{BATCHES}        {REPORT}


def train(run):
    for fold in range(2):
        model = new_model()
        fit(run, model, sgd(model))
    return "/models/m.pt"
"""
LEARN = f"""
def learn(run, model, optimizer, x, y):
    {STEP}
    run.step(len(x))
    {REPORT}
"""
BATCHED = """
def batches(size):
    for at in range(0, 768, size):
        yield X[at : at + size], Y[at : at + size]
"""
GET = """
class Models:
    kept = {}

    @classmethod
    def get(cls):
        return cls.kept.setdefault("m", new_model())
"""
GLOBAL = """
MODEL = None


def the_model():
    global MODEL
    if MODEL is None:
        MODEL = new_model()
    return MODEL
"""
VALIDATE = "\ndef validate(run, model):\n    return accuracy(model, run.data_loader(HELD))\n"
MLFLOW = """
def active_run():
    return MLFLOW.run


MLFLOW = SimpleNamespace(active_run=active_run, get_tracking_uri=str, run=None)
sys.modules["mlflow"] = MLFLOW
"""
OPEN = "MLFLOW.run = SimpleNamespace(info=SimpleNamespace(run_id='1'))"

# Of each kind the first one is tried after every edit, the others before a merge.
MISTAKES: dict[str, list[Mistake]] = {
    "wrong direction": [
        Mistake(dag_file(job='target="accuracy <= 0.2"'), "metric", 'write "accuracy >= 0.2"'),
        Mistake(dag_file(reports("run.report(loss=3.3)"), 'target="loss >= 0.2"'), "metric", 'write "loss <= 0.2"'),
        Mistake(dag_file(job='target="accuracy <= 0.9"'), "metric", 'write "accuracy >= 0.9"'),
        Mistake(dag_file(reports("run.report(loss=0.7)"), 'target="loss >= 0.1"'), "metric", 'write "loss <= 0.1"'),
        Mistake(
            dag_file(changed(("accuracy=", "val_f1=")), 'target="val_f1 <= 0.8"'), "metric", 'write "val_f1 >= 0.8"'
        ),
        Mistake(
            dag_file(changed(("accuracy=", "quality=")), 'target="quality <= 0.9"'),
            "metric",
            'or is "quality >= 0.9" meant',
            status="warning",
        ),
    ],
    "two reports an epoch": [
        Mistake(dag_file(reports(f"{REPORT}\n        {REPORT}")), "epochs", "once in each epoch", ends=True),
        Mistake(
            dag_file(
                changed(
                    (REPORT, f"{REPORT}\n        told(run, model)"), before=f"\ndef told(run, model):\n    {REPORT}\n"
                )
            ),
            "epochs",
            "twice in one epoch",
            ends=True,
        ),
        Mistake(dag_file(reports(f"for part in (0, 1):\n            {REPORT}")), "epochs", "twice", ends=True),
        Mistake(
            dag_file(reports("run.report(accuracy=0.4, loss=0.7)\n        run.report(loss=0.6, lr=0.1)")),
            "epochs",
            "with all metrics",
            ends=True,
        ),
    ],
    "report in the batch loop": [
        Mistake(dag_file(reports(f"    {REPORT}")), "epochs", "not within it", ends=True),
        Mistake(
            dag_file(
                changed(
                    (f"for x, y in {LOADER}", f"for i, (x, y) in enumerate({LOADER})"),
                    (REPORT, f"    if i % 10 == 0:\n                {REPORT}"),
                )
            ),
            "epochs",
            "not within it",
        ),
        Mistake(
            dag_file(
                changed(
                    (LOADER, "DataLoader(TRAIN, batch_size=run.batch_size)"),
                    (STEP, "learn(run, model, optimizer, x, y)"),
                    (f"        {REPORT}\n", ""),
                    before=LEARN,
                )
            ),
            "epochs",
            "not within it",
            ends=True,
        ),
        Mistake(
            dag_file(changed((BATCHES, f"{SLICES}            run.step()\n"), (REPORT, f"    {REPORT}"))),
            "epochs",
            "not within it",
            ends=True,
        ),
    ],
    "metric typo": [
        Mistake(dag_file(changed(("accuracy=", "acuracy="))), "metric", "name acuracy in the job's target", ends=True),
        Mistake(
            dag_file(reports('run.report(**{f"val_{name}": accuracy(model) for name in ["accuracy"]})')),
            "metric",
            "run.report(accuracy=value)",
            ends=True,
        ),
        Mistake(
            dag_file(reports('metrics = {"acc": accuracy(model)}\n        run.report(**metrics)')),
            "metric",
            "run.report(accuracy=value)",
            ends=True,
        ),
        Mistake(dag_file(job='target="Accuracy >= 0.9"'), "metric", "run.report(Accuracy=value)", ends=True),
    ],
    "unit": [
        Mistake(dag_file(changed(("=accuracy", "=100 * accuracy"))), "metric", "report it as a share", ends=True),
        Mistake(dag_file(job='target="accuracy >= 90"'), "metric", "in the unit of the target", status="warning"),
        Mistake(dag_file(job='target="accuracy >= 90 %"'), "metric", "in the unit of the target", status="warning"),
        Mistake(
            dag_file(reports("run.report(error_rate=60.0)"), 'target="error_rate <= 0.1"'),
            "metric",
            "in the unit of the target",
            status="warning",
        ),
    ],
    "range()": [
        Mistake(dag_file(changed(("run.epochs()", "range(20)"))), "epochs", "for epoch in run.epochs()", ends=True),
        Mistake(dag_file(changed(("run.epochs()", "range(run.job.max_epochs)"))), "epochs", "range(...)", ends=True),
        Mistake(
            dag_file(changed(("run.epochs()", "range(5)"), (LOADER, "DataLoader(TRAIN, batch_size=run.batch_size)"))),
            "epochs",
            "range(...)",
            ends=True,
        ),
        Mistake(
            dag_file(
                changed(
                    (BATCHES, f"        for again in range(3):\n    {BATCHES}"),
                    (f"\n            {STEP}", f"\n                {STEP}"),
                    (f"        {REPORT}", f"            {REPORT}"),
                )
            ),
            "epochs",
            "repeats the pass by itself",
            ends=True,
        ),
        Mistake(
            dag_file(
                changed(
                    ("for epoch in run.epochs():", "for epoch in range(3):"), (f"        {REPORT}", f"    {REPORT}")
                )
            ),
            "epochs",
            "for epoch in run.epochs()",
        ),
    ],
    "a loop that is left": [
        Mistake(dag_file(reports(f"{REPORT}\n        return 1")), "epochs", "`return` is inside", status="warning"),
        Mistake(dag_file(reports(f"{REPORT}\n        break")), "epochs", "after its first epoch", status="warning"),
    ],
    "two loops": [
        Mistake(dag_file(TWICE), "training", "one run trains one model"),
        Mistake(dag_file(TWICE_BY_HELPER), "training", "use one task for each model"),
    ],
    "returned module": [
        Mistake(dag_file(returns("model")), "value", "return its path"),
        Mistake(dag_file(returns('{"weights": model.weight}')), "value", "return its path"),
        Mistake(dag_file(returns("model.state_dict()")), "value", "return its path"),
        Mistake(dag_file(returns("[accuracy(model), torch.tensor(0.5)]")), "value", "return its path"),
    ],
    "cached model": [
        Mistake(dag_file(cached("cached()", CACHED)), "model", "no cache"),
        Mistake(dag_file(cached("the_model()", GLOBAL)), "model", "global variable"),
        Mistake(dag_file(cached("Models.get()", GET)), "model", "inside the function"),
        Mistake(dag_file(cached("cached()", CACHED.replace("lru_cache", "cache"))), "model", "no cache"),
        Mistake(dag_file(cached("OUTSIDE", "OUTSIDE = new_model()\n")), "model", "inside the function"),
        Mistake(
            dag_file(
                changed(
                    ("model = new_model()", "model = train.__dict__.setdefault('model', new_model())"),
                )
            ),
            "model",
            "inside the function",
        ),
    ],
    "fixed loader": [
        Mistake(dag_file(own("DataLoader(TRAIN, batch_size=32)")), "batch size", "run.data_loader(data)"),
        Mistake(dag_file(own("DataLoader(TRAIN, batch_size=32)", "run.step()")), "batch size", "32 samples are drawn"),
        Mistake(
            dag_file(own("DataLoader(TRAIN, batch_sampler=BatchSampler(RandomSampler(TRAIN), 32, False))")),
            "batch size",
            "32 samples are drawn",
        ),
        Mistake(dag_file(own("zip(X.split(32), Y.split(32))")), "batch size", "32 samples"),
        Mistake(dag_file(own("zip(X.split(32), Y.split(32))", "run.step()")), "batch size", "at any batch size"),
        Mistake(
            dag_file(own("FIXED", before="FIXED = DataLoader(TRAIN, batch_size=32)\n")), "batch size", "32 samples"
        ),
    ],
    "own loader with steps unseen": [
        Mistake(dag_file(changed((BATCHES, SLICES))), "steps", "run.data_loader(data)"),
        Mistake(dag_file(own("zip(X.split(run.batch_size), Y.split(run.batch_size))", "pass")), "steps", "run.step"),
        Mistake(
            dag_file(own("batches(run.batch_size)", "pass", BATCHED)),
            "steps",
            "run.step",
        ),
        Mistake(
            dag_file(own("map(TRAIN.__getitem__, BatchSampler(range(768), run.batch_size, True))", "pass")),
            "steps",
            "run.step",
        ),
    ],
    "no report": [
        Mistake(dag_file(changed((f"        {REPORT}\n", ""))), "metric", "run.report(accuracy=...)", ends=True),
        Mistake(dag_file(reports("print(accuracy(model))")), "metric", "report the last value", ends=True),
        Mistake(
            dag_file(reports(f"if epoch == 4:\n            {REPORT}")), "metric", "report the last value", ends=True
        ),
        Mistake(dag_file(reports("run.report(loss=0.7, lr=0.1)")), "metric", "run.report(accuracy=value)", ends=True),
    ],
    "drop_last with a size beyond the data": [
        Mistake(
            dag_file(
                changed(("shuffle=True", "drop_last=True")), 'target="accuracy >= 0.9", batch_sizes=[16, 32, 1024]'
            ),
            "drop_last",
            "leave no batch of 1024",
        ),
        Mistake(
            dag_file(
                own("DataLoader(TRAIN, batch_size=run.batch_size, drop_last=True)"),
                'target="accuracy >= 0.9", batch_sizes=[16, 32, 800, 900]',
            ),
            "drop_last",
            "leave no batch of 800, 900",
        ),
        Mistake(
            dag_file(
                own("DataLoader(TRAIN, batch_sampler=BatchSampler(RandomSampler(TRAIN), run.batch_size, True))"),
                'target="accuracy >= 0.9", batch_sizes=[16, 32, 1024]',
            ),
            "drop_last",
            "take these out of the job's batch_sizes",
        ),
        Mistake(
            dag_file(
                changed(("shuffle=True", "drop_last=True")),
                'target="accuracy >= 0.9", batch_sizes=[1024, 2048], default_batch_size=2048',
            ),
            "drop_last",
            "leave no batch of 1024, 2048",
            ends=True,
        ),
    ],
    "validation by run.data_loader": [
        Mistake(
            dag_file(reports("run.report(accuracy=accuracy(model, run.data_loader(HELD)))")),
            "validation",
            "validation counts as training",
        ),
        Mistake(
            dag_file(changed((REPORT, "run.report(accuracy=validate(run, model))"), before=VALIDATE)),
            "validation",
            "a DataLoader of their own",
        ),
        Mistake(
            dag_file(
                changed(
                    (BATCHES, f"        held = accuracy(model, run.data_loader(HELD))\n{BATCHES}"),
                    ("=accuracy(model)", "=held"),
                )
            ),
            "validation",
            "validation counts as training",
        ),
        Mistake(
            dag_file(changed(('    return "', '    print(accuracy(model, run.data_loader(HELD)))\n    return "'))),
            "validation",
            "validation counts as training",
        ),
    ],
    "nvml without a GPU": [
        of_job('device="nvml"', "device", "device='auto'"),
        of_job('device="nvml", mode="optimize"', "device", "device='auto'"),
        of_job('device="nvml", gpus=2', "device", "on this host"),
        of_job('device="rapl"', "device", "device='auto'"),
    ],
    "signal without Connection": [
        of_job(
            'follow="carbon", mode="optimize", device="simulated:v100/neumf"', "Connection zeus_carbon", "Zeus signal"
        ),
        of_job('start_signal="price", start_within=timedelta(hours=4)', "Connection zeus_price", "docs/signals.md"),
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
            'learn_from=["manual"]', "learn_from", "teach nothing", status="warning", dag="schedule=timedelta(days=1)"
        ),
    ],
    "constant data_slice": [
        of_job('data_slice="2026-11-01"', "data_slice", 'data_slice="{{ ds }}"', status="warning"),
        of_job('data_slice="{{ dag.dag_id }}"', "data_slice", "'nightly' in each run", status="warning"),
        of_job(
            'data_slice="sales.csv"',
            "data_slice",
            "the same data",
            status="warning",
            dag='schedule=[Asset("s3://new")]',
        ),
        of_job("data_slice=\"{{ macros.ds_add('2026-11-01', 1) }}\"", "data_slice", "leave it out", status="warning"),
    ],
    "log_to without an open run": [
        of_job('log_to=["mlflow"]', "log_to", "mlflow.start_run()", status="warning"),
        Mistake(
            dag_file(MLFLOW + TRAIN, 'target="accuracy >= 0.9", log_to=["mlflow"]'),
            "log_to",
            "was open",
            status="warning",
        ),
        Mistake(
            dag_file(
                MLFLOW + changed((BATCHES, f"        {OPEN}\n{BATCHES}        MLFLOW.run = None\n")),
                'target="accuracy >= 0.9", log_to=["mlflow"]',
            ),
            "log_to",
            "was open",
            status="warning",
        ),
        Mistake(
            dag_file(
                MLFLOW + changed(("    return", f"    {OPEN}\n    MLFLOW.run = None\n    return")),
                'target="accuracy >= 0.9", log_to=["mlflow"]',
            ),
            "log_to",
            "was open",
            status="warning",
        ),
    ],
}


def right(train: str = TRAIN, job: str = 'target="accuracy >= 0.9"', dag: str = 'schedule="@daily"') -> str:
    return dag_file(train, job, dag)


SCRIPT = """
import json
import os

size = int(os.environ["ZEUS_BATCH_SIZE"])
print(json.dumps({"accuracy": 0.5, "epochs": 2}))
"""
BY_COMMAND = """
from airflow_provider_zeus import ZeusRun


def train(run):
    for epoch in run.epochs():
        for at in range(0, 4096, run.batch_size):
            run.step(min(run.batch_size, 4096 - at))
        run.report(accuracy=0.5)
    return "/models/m.pt"


ZeusRun.from_env().train(train)
"""

# Fifteen and more: of each kind of mistake what is near it, and right.
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
        model = new_model()
        optimizer = sgd(model)
        for epoch in run.epochs():
            for x, y in run.data_loader(TRAIN, shuffle=True):
                step(model, optimizer, x, y)
            run.report(accuracy=accuracy(model), loss=0.7)
        torch.save(model.state_dict(), run.attempt_dir / "m.pt")
        return str(run.attempt_dir / "m.pt")

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
        job='target="accuracy >= 0.9", data_slice="{{ data_interval_end | ds }}", finish_by=timedelta(hours=3), '
        'learn_from=["scheduled", "backfill"]'
    ),
    "a signal with its Connection": right(
        job='target="accuracy >= 0.9", mode="optimize", device="simulated:v100/neumf", follow="carbon", '
        'start_signal="grid", start_within=timedelta(hours=6), finish_by="23:59"'
    ),
    "assets": right(
        job='target="accuracy >= 0.9", learn_from=["asset_triggered"], data_slice="{{ run_id }}"',
        dag='schedule=[Asset("s3://new")]',
    ),
    "partitions of an asset": right(
        changed(("(run):", "(run, partition_key):"), ("model = new", "assert partition_key\n    model = new")),
        dag='schedule=PartitionedAssetTimetable(assets=Asset("x"))',
    ),
    "assets or a time": right(
        job='target="accuracy >= 0.9", learn_from=["scheduled"]',
        dag='schedule=AssetOrTimeSchedule(timetable=CronTriggerTimetable("@daily", timezone="UTC"), assets=Asset("x"))',
    ),
    "by hand": right(job='target="accuracy >= 0.9", learn_from=["manual"]', dag="schedule=None"),
    "own loaders, drop_last that fits": right(
        own("DataLoader(TRAIN, batch_size=run.batch_size, drop_last=True)").replace(
            REPORT, "run.report(accuracy=accuracy(model, DataLoader(HELD, batch_size=500, drop_last=False)))"
        )
    ),
    "drop_last in the validation": right(
        reports("accuracy(model, DataLoader(TRAIN, batch_size=700, drop_last=True))\n        run.report(accuracy=0.5)")
    ),
    "accumulated gradients": right(
        changed(
            (LOADER, "DataLoader(TRAIN, batch_size=run.batch_size // 4, drop_last=True)"),
            ("for x, y in", "for i, (x, y) in enumerate("),
            ("drop_last=True):", "drop_last=True)):"),
            (
                STEP,
                "torch.nn.functional.mse_loss(model(x)[:, 0], y).backward()\n            if i % 4 == 3:\n"
                "                optimizer.step()\n                optimizer.zero_grad()\n                run.step()",
            ),
        )
    ),
    "an early return of metrics": right(
        reports(
            f'score = accuracy(model)\n        {REPORT}\n        if score > 0.9:\n            return {{"score": score}}'
        )
    ),
    "a report in a helper, others beside it": right(
        changed(
            (REPORT, "run.report(loss=0.7, lr=0.1)\n        tell(run, model)"),
            before="\ndef tell(run, model):\n    run.report(**{'accuracy': accuracy(model)})\n",
        )
    ),
    "two loops, of which the first one is left": right(
        TWICE.replace(REPORT, f"{REPORT}\n            if epoch == 2:\n                break")
    ),
    "a metric of any size": right(reports("run.report(reward=0.4)"), job='target="reward >= 20"'),
    "a schedule of steps": right(
        changed(
            (
                BATCHES,
                "        batches = iter(run.data_loader(TRAIN))\n        for at in range(2):\n"
                f"            x, y = next(batches)\n            {STEP}\n",
            ),
        )
    ),
    "a backbone that is kept and frozen": right(
        changed(
            ("model = new_model()", "model = torch.nn.Sequential(backbone(), torch.nn.Linear(4, 1))"),
            before="\n@functools.lru_cache\ndef backbone():\n    return torch.nn.Linear(2, 4).requires_grad_(False)\n",
        )
    ),
    "a model that is copied, or set anew": right(
        changed(
            ("model = new_model()", "model = kept()\n    model.load_state_dict(START)"),
            before="\n@functools.cache\ndef kept():\n    return new_model()\n\n\nSTART = new_model().state_dict()\n",
        )
    ),
    "a model that is looked at later": right(
        changed(('    return "', '    SHOWN.append(model)\n    return "'), before="SHOWN = []\n")
    ),
    "a model for each batch size": right(
        cached("KEPT.setdefault((run.batch_size, str(run.attempt_dir)), new_model())", "KEPT = {}\n")
    ),
    "views of each sample, told as chosen": right(
        own("zip(X.split(run.batch_size), Y.split(run.batch_size))", "run.step()").replace(
            STEP, "step(model, optimizer, torch.cat([x, x]), torch.cat([y, y]))"
        )
    ),
    "a report with the last batch": right(
        changed(
            (f"for x, y in {LOADER}", f"loader = {LOADER}\n        for i, (x, y) in enumerate(loader)"),
            (REPORT, f"    if i == len(loader) - 1:\n                {REPORT}"),
        )
    ),
    "a target of a loss": right(reports("run.report(val_loss=0.7)"), job='target="val_loss <= 0.3"'),
    "per cent in both": right(changed(("=accuracy", "=100 * accuracy")), job='target="accuracy >= 90 %"'),
    "an open run of the tracker": right(
        MLFLOW + changed((BATCHES, f"        {OPEN}\n{BATCHES}")), job='target="accuracy >= 0.9", log_to=["mlflow"]'
    ),
    "nothing returned": right(changed(('    return "/models/m.pt"\n', ""))),
    "values for the next task": HEAD
    + returns('{"path": "/models/m.pt", "accuracy": accuracy(model), "sizes": [1, 2]}')
    + """
with DAG("nightly", schedule="@daily", start_date=datetime(2026, 1, 1)):

    @task
    def publish(found):
        print(found["path"])

    publish(task.zeus(ZeusJob(**SIZES, target="accuracy >= 0.9"))(train)())
""",
}
