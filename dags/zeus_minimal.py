"""The smallest Zeus example, to copy: a daily training on any machine. Its data are generated."""

from datetime import datetime

from airflow.sdk import dag, task

from airflow_provider_zeus import ZeusJob

# device="auto" is the default: without an energy source here the batch size is tuned on time alone,
# and says so.
JOB = ZeusJob(
    batch_sizes=[16, 32, 64, 128, 256], default_batch_size=32, target="mse <= 0.01", max_epochs=80
)


@dag(schedule="@daily", start_date=datetime(2026, 1, 1), catchup=False, tags=["zeus", "example"])
def zeus_minimal():
    """Train daily at the cheapest batch size known, or at a promising one. Needs extra torch."""

    @task.zeus(JOB)
    def train(run):
        import torch
        from torch.utils.data import TensorDataset

        same = torch.Generator().manual_seed(1)  # the same data at every call
        x = torch.rand(2048, 4, generator=same)  # y = x1 x2 + sin(3 x3) + noise; x4 means nothing
        y = x[:, 0] * x[:, 1] + torch.sin(3 * x[:, 2]) + 0.05 * torch.randn(2048, generator=same)
        dataset = TensorDataset(x[:1536], y[:1536])
        # Model and optimizer are built inside: each attempt is a new call of train().
        model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=run.scale_lr(5e-3, "sqrt"))
        for _ in run.epochs():
            for features, wanted in run.data_loader(dataset, shuffle=True):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(features)[:, 0], wanted).backward()
                optimizer.step()
            with torch.no_grad():
                run.report(mse=float((model(x[1536:])[:, 0] - y[1536:]).square().mean()))
        path = run.attempt_dir / "model.pt"  # a folder of this attempt; the kept one stays
        torch.save(model.state_dict(), path)
        # a later task on another host needs shared storage ([zeus] attempt_root), or an upload here
        return str(path)

    train()


zeus_minimal()
