"""Several processes that train together: torchrun with gloo, on simulated GPUs, from a task to the run log."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import textwrap
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_zeus import ZeusJob
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.operators.command import ZeusCommandOperator
from tests.fake_nvml import FakeNvml
from tests.integration.jobs import job, log_of, zeus_dag

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

BEGIN = """
import json, os, signal, sys, time
import torch, torch.distributed as dist
from airflow_provider_zeus import ZeusRun
RANK = int(os.environ["RANK"])
EPOCHS = {16: 19, 32: 4, 64: 5, 2048: 4}

def say(*facts):
    with open(os.environ["SAID"] + str(RANK), "a") as file:
        print(json.dumps(facts), file=file)
"""
LOOP = """
def train(run):
    for epoch in run.epochs():
        for _ in range(max(5000 // run.batch_size, 50)):
            run.step()
        say("epoch", run.batch_size, epoch, os.getpid())
        HOOK
        REPORT
    say("kept", run.batch_size)
    return run.batch_size
"""
REPORT = "run.report(accuracy=0.9 * (epoch + 1) / EPOCHS[run.batch_size])"
RUN = """
run = ZeusRun.from_env()
dist.init_process_group("gloo")
value = run.train(train)
if RANK == 0:
    print("kept", value)
dist.destroy_process_group()
"""


def script(hook: str = "pass", report: str = REPORT, end: str = RUN) -> str:
    return BEGIN + LOOP.replace("HOOK", hook).replace("REPORT", report) + end


class Torchrun:
    """DAGs of one torchrun each; ``said`` is what each of its processes said."""

    def __init__(self, tmp: Path, run_dag: Callable[[DAG], Any]) -> None:
        self.tmp = tmp
        self._run_dag = run_dag

    def dag(self, dag_id: str, code: str, **spec: Any) -> DAG:
        (self.tmp / "train.py").write_text(code)
        env = {"PYTHONPATH": str(ROOT), "SAID": str(self.tmp / "said-"), "OMP_NUM_THREADS": "1"}
        with DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
            ZeusCommandOperator(
                task_id="train",
                job=job(**{"gpus": 2, **spec}),
                command=[*TORCHRUN, "train.py"],
                env=env,
                cwd=str(self.tmp),
            )
        return dag

    def run(self, dag: DAG) -> Any:
        return self._run_dag(dag)

    def run_twice(self, dag: DAG) -> Any:
        """The second run of a job. The first one, of the default, trains in this process, which is quicker."""
        first = self._run_dag(zeus_dag(dag.dag_id, dag.task_dict["train"].job))
        assert first.state == "success"
        return self.run(dag)

    def said(self, rank: int, *kinds: str) -> list[list[Any]]:
        path = self.tmp / f"said-{rank}"
        lines = (
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        )
        return [facts for kind, *facts in lines if kind in kinds]


@pytest.fixture
def torchrun(tmp_path: Path, run_dag: Any) -> Torchrun:
    return Torchrun(tmp_path, run_dag)


def told(dag_id: str) -> list[tuple[int, str, int]]:
    return [(t.batch_size, t.state.value, t.key.attempt) for t in log_of(f"{dag_id}.train")]


def pids_gone(pids: set[int]) -> bool:
    deadline_s = time.monotonic() + 60.0
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.slow
def test_an_error_of_one_rank_at_another_size_is_followed_by_the_default_in_new_processes(
    torchrun: Torchrun,
) -> None:
    fails = "if RANK == 1 and run.batch_size == 64: raise ValueError('bad shape')"
    # so 64 is tried alone
    unreached = {"batch_sizes": [32, 64], "max_epochs": 3, "policy": "knowledge_gradient"}
    dag = torchrun.dag("zeus_ranks_relief", script(fails), **unreached)
    assert [torchrun.run(dag).state for _ in range(3)] == ["success"] * 3
    assert told("zeus_ranks_relief") == [
        (32, "exhausted", 1),
        (64, "failed", 1),
        (32, "exhausted", 2),
        (32, "exhausted", 1),
    ]
    assert [torchrun.said(rank, "kept") for rank in (0, 1)] == [[[32]] * 3] * 2


@pytest.mark.slow
def test_two_processes_are_one_decision_one_trial_and_one_result(torchrun: Torchrun) -> None:
    dag = torchrun.dag("zeus_ranks", script())
    first = torchrun.run(dag)
    second = torchrun.run(dag)
    assert [first.state, second.state] == ["success"] * 2
    assert told("zeus_ranks") == [(32, "converged", 1), (16, "given_up", 1), (32, "converged", 2)]
    epochs = [torchrun.said(rank, "epoch") for rank in (0, 1)]
    assert [e[:2] for e in epochs[0]] == [e[:2] for e in epochs[1]], (
        "both left each attempt in the same epoch"
    )
    assert [torchrun.said(rank, "kept") for rank in (0, 1)] == [[[32], [32]]] * 2
    second_run = [pid for size, epoch, pid in epochs[0] if size == 16] + [epochs[0][-1][2]]
    assert len(set(second_run)) == 1, "the incumbent followed in the same processes"
    trials = log_of("zeus_ranks.train")
    assert {t.observation.device_count for t in trials} == {2}
    assert {t.observation.max_power_w for t in trials} == {500.0}
    given_up = trials[1].observation
    assert given_up.epochs == len([e for e in epochs[0] if e[0] == 16])
    assert given_up.samples == given_up.epochs * (5000 // 16) * 16, "of both processes together"
    cost = second.get_task_instance("train").xcom_pull(task_ids="train", key="zeus_cost")
    assert [a["state"] for a in cost["attempts"]] == ["given_up", "converged"]
    assert (
        second.get_task_instance("train").xcom_pull(task_ids="train", key="return_value")
        == "kept 32"
    )
    assert limits_left(trials[0]) == []


def limits_left(trial: Trial) -> list[Path]:
    from airflow.configuration import AIRFLOW_HOME

    return list((Path(AIRFLOW_HOME) / "zeus").glob("limit-*"))


REAL = """
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

def train(run):
    torch.manual_seed(0)
    x = torch.randn(1001, 4)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in run.epochs():
        seen = []
        for inputs, indices in run.data_loader(TensorDataset(x, torch.arange(1001)), shuffle=True):
            optimizer.zero_grad()
            (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
            seen += indices.tolist()
            size = len(inputs) if len(seen) == len(inputs) else size
        say("epoch", run.batch_size, run.local_batch_size, size, seen)
        error = (model.module(x) - x.sum(1, keepdim=True)).square().mean().item()
        if RANK == 0:
            run.report(accuracy=1 - error)
    return round(model.module.weight.sum().item(), 3)
"""


@pytest.mark.slow
def test_a_real_training_goes_over_disjoint_shares(torchrun: Torchrun) -> None:
    """DistributedDataParallel, run.data_loader(), and a report of rank 0 alone, with the simulated GPUs' profile."""
    # torch's default: gloo for tensors on the CPU, NCCL for those on GPUs
    end = RUN.replace('"gloo"', "")
    dag = torchrun.dag(
        "zeus_ranks_real", BEGIN + REAL + end, target="accuracy >= 0.999", mode="measure"
    )
    assert torchrun.run(dag).state == "success"
    (trial,) = log_of("zeus_ranks_real.train")
    assert trial.state.value == "converged"
    zero = torchrun.said(0, "epoch")
    one = torchrun.said(1, "epoch")
    assert [e[:3] for e in zero] == [e[:3] for e in one] == [[32, 16, 16]] * len(zero)
    for (*_, mine), (*_, theirs) in zip(zero, one, strict=True):
        assert len(mine) == len(theirs) == 501
        assert set(mine) | set(theirs) == set(range(1001))
        assert len(set(mine) & set(theirs)) <= 1, "one sample pads the shares to the same length"
    assert zero[0][3] != zero[1][3], "shuffled anew in each epoch"
    assert trial.observation.samples == len(zero) * 1002
    assert trial.observation.samples_per_epoch == 1002


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_trial_and_everything_is_gone(torchrun: Torchrun) -> None:
    dies = "epoch < 2 or RANK == 0 or os.kill(os.getpid(), signal.SIGKILL)"
    assert torchrun.run(torchrun.dag("zeus_ranks_dies", script(dies))).state == "failed"
    (trial,) = log_of("zeus_ranks_dies.train")
    assert (trial.state.value, trial.batch_size) == ("failed", 32)
    pids = {pid for rank in (0, 1) for *_, pid in torchrun.said(rank, "epoch")}
    assert len(pids) == 2
    assert pids_gone(pids)
    assert torchrun.said(0, "kept") == torchrun.said(1, "kept") == []
    assert limits_left(trial) == [], "and what rank 0 set was given back"


@pytest.mark.nightly
def test_an_error_of_one_rank_ends_the_trial(torchrun: Torchrun) -> None:
    fails = "if epoch == 1 and RANK == 1: raise ValueError('bad data')"
    assert torchrun.run(torchrun.dag("zeus_ranks_error", script(fails))).state == "failed"
    assert told("zeus_ranks_error") == [(32, "failed", 1)]


@pytest.mark.nightly
@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_in_a_try_ends_the_processes_and_the_incumbent_runs_in_new_ones(
    torchrun: Torchrun, rank: int
) -> None:
    fails = f"if run.batch_size == 16 and RANK == {rank}: raise ValueError('16 does not divide the data')"
    dag = torchrun.dag(name := f"zeus_ranks_try_{rank}", script(fails))
    assert torchrun.run_twice(dag).state == "success"
    assert told(name) == [(32, "converged", 1), (16, "failed", 1), (32, "converged", 2)]
    assert torchrun.said(0, "kept") == torchrun.said(1, "kept") == [[32]]


@pytest.mark.nightly
def test_no_data_on_all_ranks_ends_the_run_and_keeps_its_value(torchrun: Torchrun) -> None:
    code = (
        script()
        .replace("range(max(5000 // run.batch_size, 50))", "run.data_loader([])")
        .replace("run.step()", "pass")
    )
    dag_run = torchrun.run(torchrun.dag("zeus_ranks_no_data", code))
    assert dag_run.state == "success"
    assert told("zeus_ranks_no_data") == [(32, "no_data", 1)]


@pytest.mark.nightly
def test_out_of_memory_ends_the_processes_and_the_next_attempt_runs_in_new_ones(
    torchrun: Torchrun,
) -> None:
    """One process alone cannot go on to the next attempt: the others wait for its gradients."""
    full = "if run.batch_size == 16: raise MemoryError('out of memory')"
    dag = torchrun.dag("zeus_ranks_memory", script(full))
    assert torchrun.run_twice(dag).state == "success"
    assert told("zeus_ranks_memory") == [
        (32, "converged", 1),
        (16, "failed", 1),
        (32, "converged", 2),
    ]
    assert log_of("zeus_ranks_memory.train")[1].observation.out_of_memory


WAITS = """
    if run.batch_size == 16 and RANK == 1: raise MemoryError('out of memory')
    time.sleep(600 if run.batch_size == 16 else 0)  # as in a collective whose transport does not notice
"""


@pytest.mark.nightly
@pytest.mark.parametrize("notices", [True, False])
def test_out_of_memory_of_another_rank_is_that_of_the_trial_and_ends_it(
    torchrun: Torchrun, notices: bool
) -> None:
    """Rank 0 sees its connection closed, or nothing at all until torchrun ends it."""
    full = "if run.batch_size == 16 and RANK == 1: raise MemoryError('out of memory')"
    code = (
        script(full)
        if notices
        else script().replace("        pass\n", textwrap.indent(WAITS, "    "))
    )
    dag_id = f"zeus_ranks_memory_of_one_{notices}".lower()
    dag = torchrun.dag(dag_id, code)
    assert torchrun.run_twice(dag).state == "success"
    assert told(dag_id) == [(32, "converged", 1), (16, "failed", 1), (32, "converged", 2)]
    failed = log_of(f"{dag_id}.train")[1]
    assert failed.observation.out_of_memory
    assert (failed.reason or "").startswith("rank 1: MemoryError")


UNEVEN = {"batch_sizes": [15, 32], "default_batch_size": 32}
REMEDY = "15 cannot be divided over 2 processes: a batch size is that of all of them together. Use multiples of 2"


def test_a_batch_size_that_cannot_be_divided_is_refused_at_parse(torchrun: Torchrun) -> None:
    with pytest.raises(JobSpecError, match=REMEDY):
        torchrun.dag("zeus_ranks_uneven", script(), **UNEVEN)


def test_a_batch_size_known_when_the_task_runs_is_refused_before_any_trial(
    torchrun: Torchrun, run_dag: Any
) -> None:
    sizes = {"batch_sizes": "{{ [15, 32] }}", "default_batch_size": 32}
    assert torchrun.run(torchrun.dag("zeus_ranks_late", script(), **sizes)).state == "failed"
    assert log_of("zeus_ranks_late.train") == []


@pytest.mark.nightly
def test_processes_that_the_command_does_not_tell_of_refuse_it_themselves(
    torchrun: Torchrun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        sys.modules[__name__], "TORCHRUN", ["env", "PET_NPROC_PER_NODE=2", *TORCHRUN[:-1]]
    )
    dag = torchrun.dag("zeus_ranks_hidden", script(), **UNEVEN)
    with caplog.at_level(logging.INFO, logger="airflow_provider_zeus"):
        assert torchrun.run(dag).state == "failed"
    assert REMEDY in caplog.text


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "code", "spec", "said"),
    [
        (
            "group",
            script(end=RUN.replace('dist.init_process_group("gloo")', "")),
            {},
            "call torch.distributed.init_process_group() before the loop over run.epochs()",
        ),
        (
            "alone",
            script("if epoch == 1 and RANK == 0: run.report(accuracy=0.1); return"),
            {},
            "rank 0 of 2 left the loop over run.epochs() early",
        ),
        (
            "silent",
            script(report="if RANK == 1: run.report(accuracy=1.0)"),
            {},
            "epoch 0 ended without run.report(accuracy=",
        ),
    ],
)
def test_what_cannot_work_is_said(
    torchrun: Torchrun,
    name: str,
    code: str,
    spec: dict[str, Any],
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, logger="airflow_provider_zeus"):
        dag_run = torchrun.run(torchrun.dag(f"zeus_ranks_{name}", code, **spec))
    assert dag_run.state == "failed"
    assert [state for _, state, _ in told(f"zeus_ranks_{name}")] == ["failed"]
    assert said in caplog.text


@pytest.mark.nightly
def test_a_loop_left_by_all_in_the_same_epoch_keeps_its_model(torchrun: Torchrun) -> None:
    leaves = f"if epoch == 1: {REPORT}; say('kept', 'early'); return run.batch_size"
    assert torchrun.run(torchrun.dag("zeus_ranks_leave", script(leaves))).state == "success"
    (trial,) = log_of("zeus_ranks_leave.train")
    assert trial.state.value == "exhausted"
    assert "after 2 epochs" in (trial.reason or "")


@pytest.mark.nightly
def test_the_loop_alone_without_train(torchrun: Torchrun) -> None:
    end = RUN.replace("run.train(train)", "train(run)")
    dag = torchrun.dag("zeus_ranks_loop", script(end=end))
    assert torchrun.run_twice(dag).state == "success"
    assert told("zeus_ranks_loop") == [
        (32, "converged", 1),
        (16, "given_up", 1),
        (32, "converged", 2),
    ]


HOSTS = """
plan = json.load(open(os.environ["ZEUS_PLAN"]))
plan["state_dir"] = os.path.join(os.environ["SAID"] + "host", str(RANK))  # a host has a path of its own
os.environ.update(ZEUS_PLAN=json.dumps(plan), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
from airflow_provider_zeus.power.factory import open_device
gpu = open_device(plan["spec"]["device"], state_dir=plan["state_dir"])
if RANK == 1:
    gpu.set_limit_w(100.0)  # the slower host
began = gpu.now_s(), gpu.energy_j()
""" + RUN.replace(
    "dist.destroy", "say('gpu', gpu.now_s() - began[0], gpu.energy_j() - began[1])\ndist.destroy"
)


@pytest.mark.nightly
def test_across_hosts_energy_is_summed_and_time_is_the_longest(torchrun: Torchrun) -> None:
    """Two processes that each take themselves for the only one of its host."""
    dag = torchrun.dag(
        "zeus_hosts", script(end=HOSTS), gpus=None, batch_sizes=[2048], default_batch_size=2048
    )
    assert torchrun.run(dag).state == "success"
    (trial,) = log_of("zeus_hosts.train")
    seen = trial.observation
    ((quick_s, quick_j),), ((slow_s, slow_j),) = torchrun.said(0, "gpu"), torchrun.said(1, "gpu")
    assert slow_s > 1.05 * quick_s, "or the test could not tell"
    assert seen.time_s == pytest.approx(slow_s)
    assert seen.energy_j == pytest.approx(quick_j + slow_j, abs=1.0)
    assert (seen.device_count, seen.max_power_w, seen.energy_source) == (2, 500.0, "simulated")
    assert (seen.excess_j, seen.epochs) == (0.0, 4.0), "no limit is profiled across hosts"
    assert os.listdir(f"{torchrun.tmp}/said-host/0") == ["simulated-v100-shufflenet.gpu"]


REAL_TIME = """
def train(run):
    for epoch in run.epochs():
        for _ in range(100):
            time.sleep(0.005)
            run.step()
        HOOK
        run.report(accuracy=0.9 * (epoch + 1) / 6)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("dies", [False, True])
def test_rank_0_alone_sets_the_limits_of_all_gpus_and_each_comes_back(
    torchrun: Torchrun, nvml: FakeNvml, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On GPUs behind NVML, by the host's clock; one of three GPUs is not ours."""
    cards = [nvml.add() for _ in range(3)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    hook = "epoch < 5 or RANK or os.kill(os.getpid(), signal.SIGKILL)" if dies else "pass"
    spec = {"device": "auto", "power_limits_w": [250.0, 150.0], "profile_s": 0.1, "eta": 1.0}
    code = BEGIN + REAL_TIME.replace("HOOK", hook) + RUN
    dag_run = torchrun.run(torchrun.dag(f"zeus_ranks_nvml_{dies}".lower(), code, **spec))
    assert dag_run.state == ("failed" if dies else "success")
    (trial,) = log_of(f"zeus_ranks_nvml_{dies}.train".lower())
    assert nvml.sets.count(150.0) == 2, "of both GPUs, once"
    setters = {pid for pid, watts in zip(nvml.setters, nvml.sets, strict=True) if watts == 150.0}
    assert len(setters) == 1
    deadline_s = time.monotonic() + 60.0
    while [card.limit_w for card in cards] != [250.0] * 3 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert [card.limit_w for card in cards] == [250.0] * 3
    assert trial.state.value == ("failed" if dies else "converged")
    if not dies:
        seen = trial.observation
        assert (seen.device_count, seen.max_power_w, seen.energy_source) == (
            2,
            500.0,
            "nvml_counter",
        )
        assert seen.gpu_uuid == ",".join(cards[i].uuid.decode() for i in (2, 0))
        assert (seen.energy_j or 0) / (seen.time_s or 1) == pytest.approx(2 * 190, rel=0.35), (
            "two at 150 to 240 W"
        )


@pytest.mark.nightly
def test_another_number_of_gpus_than_was_asked_for_is_said(
    torchrun: Torchrun, caplog: pytest.LogCaptureFixture
) -> None:
    assert torchrun.run(torchrun.dag("zeus_ranks_gpus", script(), gpus=None)).state == "success"
    assert re.search("1 x simulated V100.* on 2", caplog.text)
    assert "ZeusJob(gpus=2)" in caplog.text


HUGGINGFACE = """
os.environ["HF_HUB_OFFLINE"] = "1"
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from airflow_provider_zeus.integrations.huggingface import ZeusTrainerCallback, arguments

TINY = BertConfig(vocab_size=32, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
DATA = [{"input_ids": torch.randint(0, 32, (8,)), "labels": i % 2} for i in range(256)]

def train(run):
    evaluated = []
    def metrics(_):
        evaluated.append(run.batch_size)
        say("epoch", run.batch_size, len(evaluated) - 1)
        return {"accuracy": 0.9 * len(evaluated) / EPOCHS[run.batch_size]}
    told = dict(output_dir="out", save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, ddp_backend="gloo")
    trainer = Trainer(
        model=BertForSequenceClassification(TINY), args=TrainingArguments(**told, **arguments(run)),
        train_dataset=DATA, eval_dataset=DATA[:8], compute_metrics=metrics, callbacks=[ZeusTrainerCallback(run)],
    )
    trainer.train()
    say("kept", run.batch_size)
    return run.batch_size
"""
LIGHTNING = """
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset
from airflow_provider_zeus.integrations.lightning import ZeusCallback

DATA = TensorDataset(torch.randn(256, 4))

class Linear(LightningModule):
    def __init__(self, run):
        super().__init__()
        self.layer, self.run = torch.nn.Linear(4, 1), run
    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()
    def validation_step(self, batch, index):
        self.log("accuracy", 0.9 * (self.current_epoch + 1) / EPOCHS[self.run.batch_size], sync_dist=True)
    def on_validation_end(self):
        say("epoch", self.run.batch_size, self.current_epoch)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

def train(run):
    told = dict(accelerator="cpu", strategy="ddp", devices=2, logger=False, enable_checkpointing=False,
                enable_progress_bar=False, num_sanity_val_steps=0)
    trainer = Trainer(max_epochs=run.job.max_epochs, callbacks=[ZeusCallback(run)], **told)
    trainer.fit(Linear(run), DataLoader(DATA, batch_size=run.local_batch_size, shuffle=True), DataLoader(DATA, 64))
    say("kept", run.batch_size)
    return run.batch_size
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code"), [("transformers", HUGGINGFACE), ("lightning", LIGHTNING)]
)
def test_a_frameworks_own_processes(torchrun: Torchrun, name: str, code: str) -> None:
    """The framework initialises the process group, after from_env() and before the first epoch."""
    pytest.importorskip(name, reason=f"{name} is not installed")
    end = RUN.replace('dist.init_process_group("gloo")', "")
    dag = torchrun.dag(f"zeus_ranks_{name}", BEGIN + code + end)
    assert torchrun.run_twice(dag).state == "success"
    assert told(f"zeus_ranks_{name}") == [
        (32, "converged", 1),
        (16, "given_up", 1),
        (32, "converged", 2),
    ]
    epochs = [torchrun.said(rank, "epoch") for rank in (0, 1)]
    assert epochs[0] == epochs[1]
    seen = log_of(f"zeus_ranks_{name}.train")[2].observation
    assert (seen.epochs, seen.samples, seen.device_count) == (4.0, 4 * 256, 2)


UNCHANGED = """
import torch, torch.distributed as dist
from airflow_provider_zeus import ZeusRun

dist.init_process_group("gloo")
with ZeusRun.from_env():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(300):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
rank = dist.get_rank()
dist.destroy_process_group()
if not rank:
    print("trained")
"""


@pytest.mark.slow
@pytest.mark.parametrize("tuned", [True, False])
def test_without_a_batch_size_the_first_process_sets_the_limit_for_all(
    torchrun: Torchrun, tuned: bool
) -> None:
    name = f"zeus_ranks_tuned_{tuned}"
    dag = torchrun.dag(
        name, UNCHANGED if tuned else UNCHANGED.replace("with ZeusRun.from_env():", "if True:")
    )
    quick = {"power_limits_w": [250.0, 100.0], "profile_s": 0.5, "eta": 1.0}
    dag.task_dict["train"].job = ZeusJob(
        device="simulated:v100/shufflenet", **quick if tuned else {"mode": "measure"}
    ).to_dict()
    dag_run = torchrun.run(dag)
    assert (
        dag_run.get_task_instance("train").xcom_pull(task_ids="train", key="return_value")
        == "trained"
    )
    (trial,) = log_of(f"{name}.train")
    seen = trial.observation
    assert (trial.state.value, trial.batch_size) == ("done", None)
    assert (seen.samples, seen.power_limit_w, seen.limit_found_w) == (
        (292, 100.0, 250.0) if tuned else (None, None, None)
    )
