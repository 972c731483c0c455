"""Kinds of energy sources."""

from __future__ import annotations

from airflow_provider_zeus.model.energy_source import (
    ESTIMATED,
    MEASURED,
    SIMULATED,
    TIME_ALONE,
    kind_of,
)


def test_kinds_of_sources() -> None:
    kinds = [
        kind_of(s) for s in ("nvml_counter", "nvml_poll", "rapl", "estimate", "simulated", None)
    ]
    assert kinds == [MEASURED, MEASURED, MEASURED, ESTIMATED, SIMULATED, TIME_ALONE]
