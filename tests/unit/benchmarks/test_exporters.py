"""What exporters add to a task, as the benchmark measures it."""

from __future__ import annotations

import pytest

from benchmarks import exporters

pytest.importorskip("statsd")


@pytest.mark.nightly
def test_a_task_takes_little_longer_with_all_exporters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///of-who-measures.db")  # mlflow itself sets it where it is used
    found = exporters.measure(3)
    assert found["packets"] > 0
    assert found["processor_grows_ms"] < exporters.MOST_MS  # of the others a busy host makes more
