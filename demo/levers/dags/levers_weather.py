"""The decisions that a scheduler owns, in one job: in time, when, and whether.

A run is triggered with ``{"week": "2013-W20"}``. Minutes stand here where a nightly job has hours.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from airflow_provider_zeus import ZeusJob

JOB = ZeusJob(
    batch_sizes=[32, 64, 128, 256, 512],
    default_batch_size=32,
    target="rmse <= runtime",  # each slice is as hard as its weather
    max_epochs=60,
    eta=1.0,  # as little energy as possible ...
    finish_by="15 min",  # ... done in time; of a nightly job: "06:00"
    start_within="10 min",  # "8 h"
    start_signal="carbon",  # Connection zeus_carbon
    retrain_every=2,  # 7
    data_slice="{{ dag_run.conf['week'] }}",
    device="simulated:v100/shufflenet",
    profile_s=1.0,
)


def earlier_is_good(run: Any, week: str) -> bool:
    """Whether the earlier model forecasts the newest week, which it has not seen,
    better than the trivial forecast.
    """
    import torch
    from weather import forecast, samples

    kept = Path(run.previous)
    data = samples.newest_week(week, kept.stem)
    model = forecast.network(data.x.shape[1])
    model.load_state_dict(torch.load(kept, weights_only=True))
    run.set_target(data.trivial_rmse_f)
    good: bool = run.still_good(rmse=forecast.holdout_rmse_f(model, data))
    return good


@dag(schedule=None, max_active_runs=1, tags=["zeus", "demo"])
def zeus_levers() -> None:
    """Retrain only where the earlier model has grown old, at the cleanest minute, in time."""

    @task.zeus(JOB, retries=1, retry_delay=timedelta(seconds=5))
    def train(run: Any, dag_run: Any) -> str:
        """Return the path of the model that serves."""
        import torch
        from weather import forecast

        week = dag_run.conf["week"]
        if run.previous is not None and earlier_is_good(run, week):
            return str(run.previous)  # nothing is trained
        model = forecast.retrain(run, week)
        path = run.attempt_dir / f"{week}.pt"
        torch.save(model.state_dict(), path)
        return str(path)

    train()


zeus_levers()
