"""What the pages read beside the log, on each store there is."""

from __future__ import annotations

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store.base import Store
from tests.unit.store.store_kit import report, request

ENDED = [State.CONVERGED, State.GIVEN_UP, State.EXHAUSTED, State.CONVERGED, State.FAILED]
HERE = ("V100", 1, "simulated")


def test_complete_trials_of_one_batch_size(store: Store) -> None:
    sizes = {}
    for n, state in enumerate(ENDED, 1):
        trial = store.ask(request(n)).trial
        sizes[n] = trial.batch_size
        store.tell(trial.key, state, report(trial.batch_size))
    for size in set(sizes.values()):
        mine = [n for n, s in enumerate(ENDED, 1) if sizes[n] == size and s.kept_model]
        assert [t.number for t in store.complete("d.train", size, last=9)] == mine
        assert [t.number for t in store.complete("d.train", size, last=1)] == mine[-1:]
    assert sizes[1] == 32
    assert store.complete("d.train", 32, last=9)
    assert store.complete("another", 32, last=9) == []
    assert store.complete("d.train", 4096, last=9) == []


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
