"""What the pages read beside the log, on each store there is."""

from __future__ import annotations

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.store.store_kit import report, request

HERE = ("V100", 1, "simulated")


def test_the_profile_of_a_device(store: Store) -> None:
    store.tell(store.ask(request(1)).trial.key, State.CONVERGED, report(32, profile=3))
    running = store.ask(request(2)).trial
    store.heartbeat(running.key, report(16, profile=1))  # what still runs counts too
    assert [(s.batch_size, s.limit_w, s.samples) for s in store.profile("d.train", HERE, "1")] == [
        (16, 200.0, 10),
        (32, 200.0, 30),
    ]
    assert store.profile("d.train", HERE, "2") == []
    assert store.profile("d.train", ("A40", 1, "simulated"), "1") == []
    assert store.profile("another", HERE, "1") == []
