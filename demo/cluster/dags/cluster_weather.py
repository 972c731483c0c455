"""Four jobs on the same data: each run trains on three slices at once, and runs of a job overlap.

A run is triggered with ``{"weeks": ["2013-W13", ...]}``, one mapped task each.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import gpus
from airflow.sdk import DAG, task

from airflow_provider_zeus import ZeusJob

PACE_S = 0.2  # pause in each epoch, so that a worker can be killed in the middle of a training
COMMON: dict[str, Any] = {
    "batch_sizes": [64, 128, 256, 512, 1024],
    "default_batch_size": 64,
    "target": "rmse <= runtime",
    "max_epochs": 40,
    "profile_s": 1.0,
    "data_slice": "{{ dag_run.conf['weeks'][ti.map_index] }}",
}
JOBS = {
    "balanced": ZeusJob(**COMMON, device="simulated:v100/shufflenet"),
    "energy": ZeusJob(**COMMON, eta=1.0, device="simulated:v100/shufflenet"),
    "paper": ZeusJob(**COMMON, policy="zeus", device="simulated:a40/shufflenet"),
    "time": ZeusJob(**COMMON, eta=0.0, device="simulated:a40/shufflenet"),
}
gpus.take_in_a_task()


def retrain(run: Any, key: str) -> Any:
    """Train as the weather example does, slowed down by a pause in each epoch."""
    import torch
    from torch.utils.data import BatchSampler, RandomSampler, TensorDataset
    from weather.forecast import holdout_rmse_f, network
    from weather.samples import of_slice

    torch.set_num_threads(1)
    data = of_slice(key)
    run.set_target(0.65 * data.trivial_rmse_f)
    model = network(data.x.shape[1])  # inside: each attempt is a new call
    optimizer = torch.optim.Adam(
        model.parameters(), lr=run.scale_lr(2e-3, "sqrt", reference_batch_size=256)
    )
    known = TensorDataset(torch.from_numpy(data.x), torch.from_numpy(data.y))
    loader = run.data_loader(
        known, sampler=BatchSampler(RandomSampler(known), run.batch_size, drop_last=False)
    )
    for _ in run.epochs():
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x).squeeze(1), y).backward()
            optimizer.step()
        time.sleep(PACE_S)
        run.report(rmse=holdout_rmse_f(model, data))
    return model


def train(offset: int, run: Any = None, dag_run: Any = None, ti: Any = None) -> str:
    """Returns the path of the model that was kept."""
    import torch

    key = dag_run.conf["weeks"][offset]
    model = retrain(run, key)
    path = Path(os.environ["CLUSTER_MODELS"]) / ti.dag_id / ti.run_id / f"{key}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)  # whole or not at all
    return str(path)


for name, job in JOBS.items():
    with DAG(f"cluster_{name}", schedule=None, max_active_runs=16, tags=["zeus", "cluster"]):
        task.zeus(job, retries=3, retry_delay=timedelta(seconds=1))(train).expand(offset=[0, 1, 2])
