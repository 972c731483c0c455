"""How many processes a command starts, read from its words; nothing is started."""

from __future__ import annotations

import pytest

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.operators.command import (
    ZeusCommandOperator,
    processes_of,
    submits_to_slurm,
)


def bash(text: str) -> list[str]:
    return ["bash", "-c", text]


@pytest.mark.parametrize(
    ("command", "gpus", "count"),
    [
        (["torchrun", "--nproc-per-node", "4", "train.py"], None, 4),
        (["/venv/bin/torchrun", "--nproc_per_node=4", "--nnodes=2", "train.py"], None, 8),
        (["torchrun", "--standalone", "train.py"], 2, 1),
        (["torchrun", "--nproc-per-node=gpu", "train.py"], 2, 2),
        (["torchrun", "--nproc-per-node=auto", "train.py"], None, None),
        (["torchrun", "--nproc-per-node=cpu", "train.py"], 2, None),
        (["torchrun", "--nproc-per-node=2", "--nnodes=1:4", "train.py"], None, None),
        (["torchrun", "--nproc-per-node=0", "train.py"], None, None),
        (["torchrun", "train.py", "--nproc-per-node"], None, 1),
        (["torchrun", "--nproc-per-node"], None, None),
        (["torchrun", "--nproc-per-node=2", "--nproc-per-node=4", "train.py"], None, 4),
        (["python", "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py"], None, 2),
        (["python", "-m", "torch.distributed.launch", "--nproc_per_node=2", "train.py"], None, 2),
        (
            bash("cd /data && OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 train.py --lr '0.1 '"),
            None,
            2,
        ),
        (bash("torchrun --nproc-per-node $N train.py"), None, None),
        (bash("torchrun --nproc-per-node 2 a.py; torchrun --nproc-per-node 4 b.py"), None, None),
        (bash("echo it's torchrun --nproc-per-node 2"), None, None),
        (["accelerate", "launch", "--num_processes", "2", "train.py"], None, 2),
        (["accelerate", "launch", "train.py"], 2, None),
        (["python", "train.py", "--nproc-per-node", "2"], 2, None),
        (["torchrun"], None, None),
        ([], None, None),
    ],
)
def test_processes_of_a_command(command: list[str], gpus: int | None, count: int | None) -> None:
    assert processes_of(command, gpus) == count


@pytest.mark.parametrize(
    ("command", "count"),
    [
        (["accelerate", "launch", "prep.py", "--num-processes", "12"], None),
        (
            [
                "accelerate",
                "launch",
                "--multi_gpu",
                "--num_processes",
                "2",
                "prep.py",
                "--num-processes",
                "12",
            ],
            2,
        ),
        (["torchrun", "--nproc-per-node=1", "train.py", "--nnodes", "3"], 1),
        (["torchrun", "--standalone", "train.py", "--nnodes", "3"], 1),
        (["torchrun", "--nproc-per-node", "2", "-m", "pkg.train", "--nnodes", "3"], 2),
        (["torchrun", "--nproc-per-node", "2", "--module", "pkg.train", "--nnodes", "3"], 2),
        (["torchrun", "--nproc-per-node", "2", "--", "train", "--nnodes", "3"], 2),
        (["torchrun", "--nproc-per-node", "2", "./train", "--nnodes", "3"], 2),
        (
            [
                "torchrun",
                "--rdzv-backend",
                "c10d",
                "--nproc-per-node=2",
                "train.py",
                "--nnodes",
                "3",
            ],
            2,
        ),
        (["torchrun", "--no-python", "./train", "--nnodes", "3"], None),
        (["torchrun", "--no-python", "./train", "data", "--nnodes", "3"], None),
        (bash("torchrun $MORE --nproc-per-node 2 train.py --nnodes 3"), 2),
        (bash("torchrun --nproc-per-node 2 $SCRIPT --nnodes 3"), None),
        (bash("torchrun \\\n  --nproc-per-node 2 \\\n  train.py --nnodes 3"), 2),
    ],
)
def test_the_scripts_own_options_are_not_the_launchers(
    command: list[str], count: int | None
) -> None:
    assert processes_of(command, None) == count


def operator(command: str, **spec: object) -> ZeusCommandOperator:
    values = {
        "batch_sizes": [15, 32],
        "default_batch_size": 32,
        "target": "acc >= 0.9",
        "max_epochs": 5,
        **spec,
    }
    return ZeusCommandOperator(task_id="train", job=ZeusJob(**values), command=command)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "spec"),
    [
        ("torchrun --nproc-per-node 2 train.py", {}),
        ("torchrun --nproc-per-node gpu train.py", {"gpus": 2}),
    ],
)
def test_what_cannot_be_divided_is_refused_at_parse(command: str, spec: dict[str, object]) -> None:
    with pytest.raises(JobSpecError, match=r"ZeusJob\.batch_sizes = \[15, 32\]"):
        operator(command, **spec)


@pytest.mark.parametrize(
    ("command", "spec"),
    [
        (
            "torchrun --nproc-per-node 3 train.py",
            {"batch_sizes": [15, 33], "default_batch_size": 33},
        ),
        ("torchrun --nproc-per-node {{ params.n }} train.py", {}),
        ("torchrun --nproc-per-node 2 train.py", {"batch_sizes": "{{ params.sizes }}"}),
        ("torchrun --nproc-per-node gpu train.py", {"gpus": "{{ params.gpus }}"}),
        ("accelerate launch prep.py --num-processes 12", {}),
        ("python train.py", {"gpus": 2}),  # one process with a model on two GPUs
    ],
)
def test_what_may_be_right_is_not_refused(command: str, spec: dict[str, object]) -> None:
    assert operator(command, **spec).command == command


@pytest.mark.parametrize(
    ("command", "is_submitted"),
    [
        (["sbatch", "train.sbatch"], True),
        (["/opt/slurm/bin/sbatch", "--wait", "train.sbatch"], True),
        (["python", "sbatch"], False),
        (["srun", "python", "train.py"], False),
        (bash("sbatch train.sbatch"), False),
        ([], False),
    ],
)
def test_what_is_submitted_to_slurm(command: list[str], is_submitted: bool) -> None:
    assert submits_to_slurm(command) is is_submitted
