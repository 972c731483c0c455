"""What is kept of an observation is bounded: lists that are too long, and texts."""

from __future__ import annotations

from airflow_provider_zeus.model.size_bounds import truncated_observation
from airflow_provider_zeus.model.trial import Observation


def test_the_energy_of_each_gpu_is_kept_for_a_thousand_gpus_at_most() -> None:
    def kept(gpus: int) -> int | None:
        left = truncated_observation(Observation(gpu_energy_j=(1.0,) * gpus)).gpu_energy_j
        return None if left is None else len(left)

    assert (kept(1000), kept(1001)) == (1000, None)
