"""Two processes that train together with Accelerate: the samples of both count once, whoever draws the batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_zeus.model.trial import BATCH_SIZE
from tests.unit.training.conftest import Kit, incumbent

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
DRAWN = 404  # samples of the data
FILLED = 416  # with those by which processes that draw for themselves fill up their last batches

TRAIN = """
import json, os, sys
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.ranks import Ranks
from airflow_provider_zeus.training.run import ZeusRun

N = 404
DATA = TensorDataset(torch.randn(N, 4), torch.randn(N, 1))

class Stream(IterableDataset):
    def __iter__(self):
        return (DATA[index] for index in range(N))

data, settings, folder = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**settings))

def train(run, counted):
    size = run.batch_size if settings.get("split_batches") else run.local_batch_size
    net = torch.nn.Linear(4, 1)
    net, optimizer, loader = accelerator.prepare(
        net,
        torch.optim.SGD(net.parameters(), lr=0.01),
        DataLoader(Stream() if data == "stream" else DATA, batch_size=size),
    )
    batches = run.data_loader(loader) if counted == "by our loader" else loader
    for epoch in run.epochs():
        for x, y in batches:
            accelerator.backward(torch.nn.functional.mse_loss(net(x), y))
            optimizer.step()
            optimizer.zero_grad()
            if counted == "by the author":
                run.step(len(x))
        run.report(acc=float(epoch == 1))

lines = []
for counted in ("by torch", "by our loader", "by the author"):
    plan = Plan.from_json(os.environ["ZEUS_PLAN"])
    run = ZeusRun.from_plan(plan, sink=lines.append, ranks=Ranks.of(os.environ))
    run.train(train, counted)
if os.environ["RANK"] == "0":
    ends = [line.observation.to_dict() for line in lines if line.kind == "end"]
    with open(os.path.join(folder, "ends.json"), "w") as file:
        json.dump(ends, file)
"""


@pytest.mark.parametrize(
    ("data", "settings", "samples"),
    [
        ("data set", {}, FILLED),
        ("data set", {"dispatch_batches": True}, DRAWN),
        ("data set", {"dispatch_batches": True, "split_batches": True}, DRAWN),
        ("stream", {}, DRAWN),
        ("stream", {"dispatch_batches": False}, FILLED),
    ],
)
def test_samples_of_two_processes_count_once(
    tmp_path: Path, data: str, settings: dict[str, bool], samples: int
) -> None:
    pytest.importorskip("accelerate")
    sizes = {"batch_sizes": [16, 64], "default_batch_size": 16, "device": "none"}
    plan = Kit(tmp_path).plan(incumbent(16), **sizes)
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "ZEUS_PLAN": plan.to_json(),
        "OMP_NUM_THREADS": "1",
    }
    code = tmp_path / "train.py"
    code.write_text(TRAIN)
    done = subprocess.run(
        [*TORCHRUN, str(code), data, json.dumps(settings), str(tmp_path)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    ends = json.loads((tmp_path / "ends.json").read_text())
    assert [(end["samples"], end["samples_per_epoch"]) for end in ends] == [
        (2 * samples, samples)
    ] * 3
    assert not any(BATCH_SIZE in end["reasons"] for end in ends)
    assert "teaches nothing" not in done.stderr
