"""What the examples of a page leave to their reader: data, a network, a loop.

Run before its first block.
"""

from __future__ import annotations

EVERYWHERE = '''
import json, os, sys, types, urllib.request
from datetime import datetime, timedelta
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.optim import Adam
from airflow.sdk import DAG, Asset, BaseNotifier, task
from airflow_provider_zeus import ZeusCommandOperator, ZeusRun, ZeusTrial
from airflow_provider_zeus import ZeusJob as _ZeusJob

def ZeusJob(*rest, **fields):
    """``...`` stands for the fields that every job has."""
    assert rest in ((), (...,))
    usual = {"batch_sizes": [16, 32], "default_batch_size": 32, "target": "accuracy >= 0.84", "max_epochs": 3}
    return _ZeusJob(**({**usual, **fields} if rest else fields))

JOB = ZeusJob(...)
data = TensorDataset(torch.rand(128, 2), torch.rand(128, 1))
data.newest = data
accuracy = 0.95
def Net(): return torch.nn.Linear(2, 1)
def build():
    model = Net()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)
def fit(model, optimizer, x, y):
    optimizer.zero_grad(); torch.nn.functional.mse_loss(model(x), y).backward(); optimizer.step()
def evaluate(model, data=None): return 0.95
def save(model): return "models/1.pt"
def load_slice(key): return data
def load_day(day): return data
def load_model(path): return Net()
'''

OF_PAGES = {
    "docs/how-to/alerts.md": '''
slack = types.ModuleType("slack_webhook")  # its provider is not among the tools of these tests
class SlackWebhookNotifier(BaseNotifier):
    template_fields = ("text",)
    def __init__(self, text): super().__init__(); self.text = text
    def notify(self, context): pass
slack.SlackWebhookNotifier = SlackWebhookNotifier
for name in ("airflow.providers.slack", "airflow.providers.slack.notifications"):
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
monkeypatch.setitem(sys.modules, "airflow.providers.slack.notifications.slack_webhook", slack)
''',
    "docs/levers/whether.md": "model = Net()",
    "docs/cli.md": '''
from airflow_provider_zeus.store.open import open_store
from tests.unit.cli.conftest import recur
for n in (1, 2, 3): recur(open_store(), n, job_id="nightly.train")
from airflow.cli.cli_parser import get_parser
_arguments = get_parser().parse_args(["zeus", "export", "nightly.train", "--output", "runs.csv"])
_arguments.func(_arguments)
def train(run, data):
    for epoch in run.epochs():
        for x, y in run.data_loader(data): pass
        run.report(accuracy=0.5)
''',
    "docs/how-to/exporters.md": '''
import mlflow
mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
class _Tracked(types.SimpleNamespace):  # of a service on another host
    id, summary = "1", {}
    def __enter__(self): return self
    def __exit__(self, *error): pass
    def log(self, *figures, step): pass
wandb = types.SimpleNamespace(init=lambda **of: _Tracked())
''',
    "docs/how-to/frameworks.md": '''
class _Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return {"x": torch.ones(2), "labels": torch.ones(1)}
class _Model(torch.nn.Module):
    def __init__(self): super().__init__(); self.layer = torch.nn.Linear(2, 1)
    def forward(self, x, labels): out = self.layer(x); return {"loss": ((out - labels) ** 2).mean(), "logits": out}
def build(): return _Model()
train_set = eval_set = _Data()
def metrics(of): return {"accuracy": 0.95}
import lightning.pytorch
class Module(lightning.pytorch.LightningModule):
    def __init__(self, lr): super().__init__(); self.layer, self.lr = torch.nn.Linear(2, 1), lr
    def training_step(self, batch): return (self.layer(batch["x"]) ** 2).mean()
    def validation_step(self, batch): self.log("accuracy", 0.95)
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=self.lr)
val_loader = DataLoader(train_set, batch_size=32)
''',
    "docs/how-to/several-gpus.md": '''
import socket
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = str(probe.getsockname()[1])
of_torchrun = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
for name, value in {**of_torchrun, "MASTER_PORT": port}.items():
    monkeypatch.setenv(name, value)
from torch.nn.parallel import DistributedDataParallel
def build(): return Net()
def fit(model, x, y): torch.nn.functional.mse_loss(model(x), y).backward()
''',
    "docs/operators.md": '''
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
def train(run):
    for epoch in run.epochs():
        for x, y in run.data_loader(data): pass
        run.report(accuracy=0.5)
''',
    "docs/how-to/kubernetes.md": "from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator",
    "docs/how-to/permissions.md": 'trial = types.SimpleNamespace(env={})',
    "docs/tutorials/pod.md": '''
def train(run):
    for epoch in run.epochs():
        run.step()
        run.report(accuracy=0.5)
monkeypatch.setitem(sys.modules, "pod", types.SimpleNamespace(JOB=JOB))
monkeypatch.setitem(sys.modules, "train", types.SimpleNamespace(train=train))
ti = types.SimpleNamespace(xcom_pull=lambda task_ids: {"zeus": {"lines": []}, "value": {"model": "a"}})
''',
}  # fmt: skip

BEFORE = {  # a block begins so: what its sentence says of the names above it
    "from airflow_provider_zeus import ZeusRun\n\nZeusRun.from_env()": "train = train.function",
}
