"""Events on the tab of a DAG: those that hold, of its own runs."""

from __future__ import annotations

from functools import partial
from typing import Any

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.reports import alerts
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.plugin.auth_manager import SECRET
from tests.unit.plugin.kit import ran

JOB = "d.train"


def ended(store: Store, n: int, **changes: Any) -> None:
    """Run ``n``, which looks at the job at its end."""
    look = partial(alerts.look, run=ran(store, n, **changes), prices=Prices())
    store.look(JOB, look, last=alerts.NEWEST)


def shown(client: Any) -> list[dict[str, str]]:
    found: list[dict[str, str]] = client.get(
        "/zeus/api/dags/d/costs", params={"job_id": JOB}
    ).json()["alerts"]
    return found


def test_a_viewer_sees_what_holds_and_what_to_do(viewer: Any, store: Store) -> None:
    ran(store, 1)
    assert shown(viewer) == []
    ended(store, 2, state=State.FAILED, reason="disk full")
    (event,) = shown(viewer)
    assert set(event) == {"sentence", "remedy"}
    assert event["sentence"].startswith(
        "The newest run left no model (run 2): disk full. 1 failed attempt took "
    )
    assert event["remedy"].startswith("See the log of the task")
    ended(store, 3)
    assert shown(viewer) == [], "it has ended"


def test_a_dag_shows_its_own_events_alone(viewer: Any, store: Store) -> None:
    ran(store, 1)
    ended(store, 2, dag_id=SECRET, state=State.FAILED, reason="hidden")
    assert shown(viewer) == []
