"""The first two rungs on any machine: a function, its code unchanged,
measured and then tuned, on a simulated GPU.
"""

from datetime import datetime

from airflow.sdk import dag, task

from airflow_provider_zeus import ZeusJob

# on a real GPU neither line names a device: @task.zeus, @task.zeus(mode="optimize")
GPU = "simulated:v100/shufflenet"


def train():
    import torch

    x = torch.rand(2048, 4)
    y = x.sum(dim=1, keepdim=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(40):
        for features, wanted in zip(x.split(32), y.split(32), strict=True):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(features), wanted).backward()
            optimizer.step()


@dag(schedule=None, start_date=datetime(2026, 1, 1), tags=["zeus", "example"])
def zeus_ladder():
    """Train as it is, measured; beside it with the power limit that costs least."""
    measured = task.zeus(ZeusJob(mode="measure", device=GPU), task_id="measured")(train)
    tuned = task.zeus(ZeusJob(mode="optimize", device=GPU), task_id="tuned")(train)
    measured()
    tuned()


zeus_ladder()
