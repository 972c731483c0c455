"""The events of a job in Airflow's Variables, and which of two tasks sends one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.reports.alert_book import Record, Silence
from airflow_provider_zeus.store.alerts import change_book, claimed, keep_taken, read_book
from airflow_provider_zeus.store.sql.store import SqlStore, Store
from tests.unit.store.store_kit import Clock

RECORD = Record(
    kind="failing", name="failing", since=3, sentence="S.", remedy="R.", dag_id="d", run_id="r", began_s=1.0
)


class Variables(dict[str, str]):
    def set(self, key: str, text: str) -> None:
        self[key] = text

    def delete(self, key: str) -> None:
        self.pop(key, None)

    def keys(self, prefix: str = "") -> Any:
        return [key for key in self if key.startswith(prefix)]


def test_one_of_many_tasks_sends_an_event(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'zeus.db'}"
    SqlStore(url, create=True).close()
    with ThreadPoolExecutor(8) as pool:
        mine = list(pool.map(lambda _: claimed(SqlStore(url, create=False), "j", RECORD)[0], range(8)))
    assert sum(mine) == 1
    store = SqlStore(url, create=False)
    assert claimed(store, "j", replace(RECORD, since=9))[0], "it began anew"
    assert not claimed(store, "j", replace(RECORD, since=9))[0]
    assert claimed(store, "j", replace(RECORD, tries=1))[0], "somebody did not take it"
    assert claimed(store, "other job", RECORD)[0]


def test_who_took_an_event_is_remembered_where_the_note_in_the_variable_is_lost(store: Store, clock: Clock) -> None:
    assert claimed(store, "j", RECORD) == (True, [])
    keep_taken(store, "j", RECORD, ["Mail", "Chat 2"])
    clock.t += 3600.0
    assert claimed(store, "j", RECORD) == (True, ["Mail", "Chat 2"])
    clock.t += 3600.0
    assert claimed(store, "j", replace(RECORD, since=3 + 16)) == (True, []), "another event in the same row"
    nobodys = replace(RECORD, since=None)
    keep_taken(store, "j", nobodys, ["Mail"])
    assert claimed(store, "j", nobodys) == (True, []), "it may have begun anew"


def test_a_change_is_made_again_on_what_another_wrote() -> None:
    class Crossed(Variables):
        crossed = False

        def set(self, key: str, text: str) -> None:
            super().set(key, text)
            if not self.crossed:
                self.crossed = True
                other = Variables()
                change_book(other, "j", lambda book: book.with_silence("lost", Silence(by="eve", at_s=2.0)))
                self.update(other)

    port = Crossed()
    change_book(port, "j", lambda book: book.with_silence("failing", Silence(by="ada", at_s=1.0)))
    assert set(read_book(port, "j").silenced) == {"failing", "lost"}


def test_what_changes_nothing_writes_nothing_and_what_does_not_stay_is_an_error() -> None:
    port = Variables()
    change_book(port, "j", lambda book: book)
    assert port == {}

    class Fixed(Variables):
        def set(self, key: str, text: str) -> None:
            pass

    with pytest.raises(StoreError, match="does not keep what is written to it"):
        change_book(Fixed(), "j", lambda book: book.with_silence("lost", Silence(by="eve", at_s=2.0)))
