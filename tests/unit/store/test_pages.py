"""What only pages and files for people read: runs in pieces,
and the version of what an answer was made of.
"""

from __future__ import annotations

import pytest

from airflow_provider_zeus.store.sql import pages
from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.store.variables.store import VariableStore
from airflow_provider_zeus.store.variables.tables import KEPT_TRIALS
from tests.unit.plugin.kit import JOB, ran
from tests.unit.store.store_kit import report, request


def test_pieces_hold_what_runs_answers(store: Store) -> None:
    for n in range(1, 8):
        ran(store, n)
    ran(store, 8, run_id="run2")  # cleared: run2 is the newest again
    ran(store, 9, dag_id="other")
    for last in (100, 3, 1):
        found = [trial for piece in store.pieces("d", "d.train", last=last) for trial in piece]
        assert found == store.runs("d", "d.train", last=last)


def test_a_piece_is_of_bounded_length(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pages.PIECE <= 500
    monkeypatch.setattr(pages, "PIECE", 6)
    for n in range(1, pages.PIECE + 5):
        ran(store, n)
    lengths = [len(piece) for piece in store.pieces("d", "d.train", last=1000)]
    assert sum(lengths) == pages.PIECE + 4
    assert max(lengths) <= (KEPT_TRIALS if isinstance(store, VariableStore) else pages.PIECE)


def test_the_version_changes_with_whatever_an_answer_is_made_of(store: Store) -> None:
    ran(store, 1)
    first = store.version("d", "d.train", last=1000)
    if first is None:
        return  # this store cannot tell, so nothing of it is kept
    seen = [first]

    def is_another() -> bool:
        assert store.version("d", "d.train", last=1000) == store.version("d", "d.train", last=1000)
        seen.append(store.version("d", "d.train", last=1000))
        return seen[-1] not in seen[:-1]

    assert not is_another()
    ran(store, 2)
    assert is_another()
    opened = store.ask(request(3, job=JOB, ti_id="open")).trial
    assert is_another()
    store.heartbeat(opened.key, report(opened.batch_size, epochs=1.0))
    assert is_another()
    store.close_trial("d.train", opened.number, by="a test")
    assert is_another()
