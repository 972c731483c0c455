"""``zeus_weather_slices`` in real runs: one partition per run, in order, until none is left."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import airflow.sdk
import pytest

if not hasattr(airflow.sdk, "PartitionedAtRuntime"):
    pytest.skip("the weather DAGs need Airflow 3.3", allow_module_level=True)

DAGS = Path(__file__).parents[2] / "dags"
THREE = ["2013-W13", "2013-W14", "2013-W15"]


@pytest.fixture
def weather(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example's module, with a year of three weeks."""
    monkeypatch.syspath_prepend(str(DAGS))
    import zeus_weather

    monkeypatch.setattr(zeus_weather.slices, "all_keys", lambda: THREE)
    yield zeus_weather
    for name in [m for m in sys.modules if m == "zeus_weather" or m.split(".")[0] == "weather"]:
        del sys.modules[name]


def events(run_id: str | None = None) -> list[str]:
    """Partition keys of the asset's events in order of recording; of one run or of all."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session

    with create_session() as session:
        found = session.query(AssetEvent).filter(AssetEvent.source_dag_id == "zeus_weather_slices")
        return [
            e.partition_key
            for e in found.order_by(AssetEvent.id)
            if run_id in (None, e.source_run_id)
        ]


def state_of(dag_run: Any) -> str:
    return str(dag_run.get_task_instance("emit_next").state)


@pytest.mark.slow
def test_each_run_emits_the_next_slice_until_none_is_left(weather: Any, run_dag: Any) -> None:
    dag = weather.zeus_weather_slices()
    assert dag.max_active_runs == 1
    runs = [run_dag(dag) for _ in THREE]
    assert [(r.state, state_of(r)) for r in runs] == [("success", "success")] * 3
    assert [events(r.run_id) for r in runs] == [[key] for key in THREE], (
        "exactly one partition per run, in order"
    )

    one_too_many = run_dag(dag)
    assert (one_too_many.state, state_of(one_too_many)) == ("success", "skipped")
    assert events() == THREE, "nothing is emitted twice"
