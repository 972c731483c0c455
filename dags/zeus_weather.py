"""Example: forecasts of New York's airport temperatures,
retrained week by week on the 84 days before.

``zeus_weather_slices`` emits one weekly partition per run, ``zeus_weather_retrain`` trains once per
partition. The training is real (a small network, seconds on a CPU); its time and power are a
simulated V100's, so the example runs anywhere.
Replace ``device`` by ``"auto"`` to measure your own hardware.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from airflow.sdk import Asset, dag, task
from weather import slices

from airflow_provider_zeus import ZeusJob

JOB = ZeusJob(
    batch_sizes=[16, 32, 64, 128, 256, 512, 1024, 2048],
    default_batch_size=32,  # plausible without measurements, and a poor choice for this GPU
    # each slice is as hard as its weather: its own trivial forecast sets the value
    target="rmse <= runtime",
    max_epochs=60,
    eta=0.5,
    window=26,  # weekly runs of half a year: the season changes what a batch size needs
    device="simulated:v100/shufflenet",
    profile_s=2.0,  # a run is over after some 20 s of that GPU: measure each power limit briefly
)
SLICES = Asset("zeus_weather_slice", uri="zeus-example://weather/slice")

try:
    from airflow.sdk import PartitionedAssetTimetable, PartitionedAtRuntime
except ImportError:
    logging.getLogger(__name__).warning(
        "zeus_weather defines no DAG: its weekly partitions need Airflow 3.3."
    )
else:

    @dag(
        schedule=PartitionedAtRuntime(), catchup=False, max_active_runs=1, tags=["zeus", "example"]
    )
    def zeus_weather_slices() -> None:
        """Each run emits the next weekly slice; trigger it once for each week.

        Needs torch and the readings: `pip install airflow-provider-zeus[demo]`.
        """

        # One partition per run: several in one run would start in random order. What was emitted is
        # read from the asset's own events, so a run that fails before its event was recorded emits
        # the same slice again.
        @task(inlets=[SLICES], outlets=[SLICES], retries=2, retry_delay=timedelta(seconds=5))
        def emit_next(inlet_events: Any = None, outlet_events: Any = None) -> str:
            from airflow.sdk.exceptions import AirflowSkipException

            key = slices.next_key({event.partition_key for event in inlet_events[SLICES]})
            if key is None:
                raise AirflowSkipException(
                    f"No slice is left: all {len(slices.all_keys())} weeks have been emitted."
                )
            outlet_events[SLICES].add_partitions(key)
            return key

        emit_next()

    @dag(
        schedule=PartitionedAssetTimetable(assets=SLICES),
        catchup=False,
        max_active_runs=1,
        tags=["zeus", "example"],
    )
    def zeus_weather_retrain() -> None:
        """One retraining per weekly slice, in order; Zeus picks the batch size and the power limit.

        Needs torch and the readings: `pip install airflow-provider-zeus[demo]`.
        """

        @task.zeus(JOB, retries=1, retry_delay=timedelta(seconds=5))
        def train(run: Any, partition_key: str) -> str:
            """Return the path of the kept model."""
            import torch
            from weather import forecast

            # Each attempt is a new call, so the model and its optimizer are built inside.
            model = forecast.retrain(run, str(partition_key))
            # A folder of this attempt, under [zeus] attempt_root; the kept one stays.
            path = run.attempt_dir / f"{partition_key}.pt"
            torch.save(model.state_dict(), path)
            return str(path)

        train()

    zeus_weather_slices()
    zeus_weather_retrain()
