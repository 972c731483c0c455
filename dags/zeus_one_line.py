"""The first two rungs, to copy: one line measures what a task takes, a second word lowers it.

Its code is unchanged.
"""

from datetime import datetime

from airflow.sdk import dag, task


@dag(schedule="@daily", start_date=datetime(2026, 1, 1), catchup=False, tags=["zeus", "example"])
def zeus_one_line():
    """Prepare data and train on them daily; the tab *Zeus cost* shows what both took.

    Needs torch.
    """

    @task.zeus
    def prepare():
        return sorted((i * 7919) % 10_007 for i in range(200_000))[:3]

    @task.zeus(mode="optimize")
    def train(seeds):
        import torch

        torch.manual_seed(seeds[0])
        x = torch.rand(2048, 4)
        y = x.sum(dim=1, keepdim=True)
        model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        for _ in range(20):
            for features, wanted in zip(x.split(64), y.split(64), strict=True):
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(features), wanted)
                loss.backward()
                optimizer.step()
        return loss.item()

    train(prepare())


zeus_one_line()
