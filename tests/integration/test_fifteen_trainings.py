"""Fifteen trainings as people write them, unchanged: each is measured, and those with torch steps get a power limit."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_provider_zeus import ZeusCommandOperator, ZeusJob
from airflow_provider_zeus.model.trial import Observation
from airflow_provider_zeus.training.torch_listener import LEAD_STEPS
from tests.integration.jobs import log_of

pytestmark = pytest.mark.slow

START = datetime(2026, 1, 1, tzinfo=UTC)
STEPS = 400
JOB = ZeusJob(
    device="simulated:v100/shufflenet", eta=1.0, power_limits_w=[250.0, 175.0, 100.0], profile_s=0.5
)


def data(width: int = 4) -> tuple[Any, Any]:
    import torch

    torch.manual_seed(0)
    x = torch.randn(8, width)
    return x, x.sum(1, keepdim=True)


def plain() -> float:
    import torch

    (x, y), model = data(), torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    return round(loss.item(), 6)


def gan() -> float:
    import torch

    (x, _), generator, critic = data(), torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
    for i in range(STEPS):
        of_critic.zero_grad()
        loss = critic(generator(torch.randn_like(x)).detach()).mean() - critic(x).mean()
        loss.backward()
        of_critic.step()
        if i % 2:
            of_generator.zero_grad()
            (-critic(generator(torch.randn_like(x))).mean()).backward()
            of_generator.step()
    return round(loss.item(), 6)


def accumulation() -> float:
    import torch

    (x, y), model = data(), torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for i in range(4 * STEPS):
        loss = torch.nn.functional.mse_loss(model(x), y) / 4
        loss.backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    return round(loss.item(), 6)


def skipped_by_amp() -> float:
    import torch

    (x, y), model = data(), torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for i in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x * (float("inf") if i % 10 == 5 else 1.0)), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return round(float(model.weight.sum()), 6)


def lbfgs() -> float:
    import torch

    (x, y), model = data(), torch.nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(STEPS):
        loss = optimizer.step(closure)
    return round(loss.item(), 6)


def lightning() -> int:
    import torch
    from lightning import pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=2)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(
        max_epochs=STEPS // 4, accelerator="cpu", **quiet, enable_model_summary=False
    )
    trainer.fit(Module(), loader)
    return int(trainer.global_step)


def hugging_face(folder: str) -> int:
    import torch
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x: Any, labels: Any) -> Any:
            return {"loss": torch.nn.functional.mse_loss(self.layer(x), labels)}

    x, y = data()
    rows = [{"x": x[i], "labels": y[i]} for i in range(8)]
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=STEPS,
        per_device_train_batch_size=2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
    )
    return int(Trainer(model=Model(), args=arguments, train_dataset=rows).train().global_step)


def accelerated() -> float:
    import torch
    from accelerate import Accelerator

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=2)
    model = torch.nn.Linear(4, 1)
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(STEPS // 4):
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
    return round(loss.item(), 6)


def _rank(rank: int, folder: str) -> None:
    import torch

    store = torch.distributed.FileStore(os.path.join(folder, "rendezvous"), 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    (x, y), model = data(), torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(20):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    torch.distributed.destroy_process_group()


def ddp(folder: str) -> int:
    import torch

    torch.multiprocessing.spawn(_rank, args=(folder,), nprocs=2)
    return 2


def like_keras() -> float:
    """``compile`` and ``fit`` with callbacks, torch below: as Keras does on its torch backend."""
    import torch

    class Model(torch.nn.Module):
        def compile(self, optimizer: str) -> None:
            self.layer = torch.nn.Linear(4, 1)
            self.optimizer = getattr(torch.optim, optimizer)(self.parameters(), lr=0.01)

        def fit(self, x: Any, y: Any, epochs: int, on_epoch_end: Callable[[int], None]) -> float:
            for epoch in range(epochs):
                self.optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(self.layer(x), y)
                loss.backward()
                self.optimizer.step()
                on_epoch_end(epoch)
            return float(loss)

    (x, y), model = data(), Model()
    model.compile("RMSprop")
    return round(model.fit(x, y, epochs=STEPS, on_epoch_end=lambda _: None), 6)


def sklearn() -> float:
    import numpy as np
    from sklearn.linear_model import SGDRegressor

    x = np.random.default_rng(0).normal(size=(64, 4))
    return round(float(SGDRegressor(random_state=0).fit(x, x.sum(1)).score(x, x.sum(1))), 6)


def xgboost() -> float:
    import numpy as np
    from xgboost import XGBRegressor

    x = np.random.default_rng(0).normal(size=(64, 4))
    return round(float(XGBRegressor(n_estimators=5).fit(x, x.sum(1)).score(x, x.sum(1))), 6)


def numpy() -> float:
    import numpy as np

    x = np.random.default_rng(0).normal(size=(64, 4))
    weights = np.zeros(4)
    for _ in range(STEPS):
        weights -= 0.1 * x.T @ (x @ weights - x.sum(1)) / 64
    return round(float(weights.sum()), 6)


def no_training() -> str:
    return "a report"


STEPS_SEEN: dict[Callable[..., Any], int] = {  # those until an optimizer leads included
    plain: STEPS,
    gan: STEPS,
    accumulation: STEPS,
    skipped_by_amp: STEPS - STEPS // 10,
    lbfgs: STEPS,
    lightning: STEPS,
    hugging_face: STEPS,
    accelerated: STEPS,
    like_keras: STEPS,
}
NEEDS = {lightning: "lightning", hugging_face: "transformers", accelerated: "accelerate"}
NEEDS |= {sklearn: "sklearn", xgboost: "xgboost", numpy: "numpy"}


def arguments(function: Callable[..., Any], folder: Path) -> dict[str, str]:
    folder.mkdir()
    return {"folder": str(folder)} if function in (hugging_face, ddp) else {}


def tell(name: str, rung: str, seen: Observation) -> None:
    limit = (
        f"{seen.limit_found_w:g} -> {seen.power_limit_w:g} W"
        if seen.limit_found_w
        else "no limit tuned"
    )
    print(
        f"{name}, {rung}: {seen.time_s} s, {seen.energy_j} J, steps {seen.samples}, {limit}; {dict(seen.reasons)}"
    )


def available(function: Callable[..., Any]) -> None:
    needed = NEEDS.get(function, "torch" if function in STEPS_SEEN or function is ddp else "os")
    try:
        importlib.import_module(needed)
    except ImportError:
        print(f"{function.__name__}: {needed} is not installed")
        pytest.skip(f"{needed} is not installed")


@pytest.mark.parametrize(
    "function", [*STEPS_SEEN, ddp, sklearn, xgboost, numpy, no_training], ids=lambda f: f.__name__
)
def test_it_is_measured_and_tuned_and_returns_what_it_returns_alone(
    run_dag: Any, tmp_path: Path, function: Callable[..., Any]
) -> None:
    available(function)
    alone = function(**arguments(function, tmp_path / "alone"))
    name = f"fifteen_{function.__name__}"
    with DAG(name, schedule=None, start_date=START) as dag:
        for task_id, decorator in (("measured", task.zeus), ("tuned", task.zeus(JOB))):
            decorator(function).override(task_id=task_id)(**arguments(function, tmp_path / task_id))
    dag_run = run_dag(dag)
    assert dag_run.state == "success"
    for task_id in ("measured", "tuned"):
        value = dag_run.get_task_instance(task_id).xcom_pull(task_ids=task_id)
        assert value == alone
        (trial,) = log_of(f"{name}.{task_id}")
        seen = trial.observation
        tell(function.__name__, task_id, seen)
        assert (trial.state.value, trial.reason, trial.batch_size) == ("done", None, None)
        assert seen.time_s or seen.reasons["time_s"]
        if task_id == "tuned" and function in STEPS_SEEN:
            assert seen.samples is not None
            assert seen.samples == STEPS_SEEN[function] - LEAD_STEPS
            assert (seen.limit_found_w, seen.power_limit_w) == (250.0, 100.0)
        else:
            assert (seen.samples, seen.limit_found_w) == (None, None)


def test_a_shell_script_is_measured(run_dag: Any) -> None:
    with DAG("fifteen_shell", schedule=None, start_date=START) as dag:
        ZeusCommandOperator(task_id="measured", command="for i in 1 2 3; do echo epoch $i; done")
    dag_run = run_dag(dag)
    assert dag_run.get_task_instance("measured").xcom_pull(task_ids="measured") == "epoch 3"
    (trial,) = log_of("fifteen_shell.measured")
    tell("a shell script", "measured", trial.observation)
    assert trial.state.value == "done"
