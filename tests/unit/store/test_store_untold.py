"""Costs that could not be told are kept, told later, and told once."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import Phase, State, TrialKey
from airflow_provider_zeus.store.pending import drain, pending_key, remember
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.unit.store.store_kit import Clock, DictPort, began_alone, report, request, seen


@pytest.fixture
def store(sqlite_url: str, clock: Clock) -> SqlStore:
    return SqlStore(sqlite_url, create=True, now=clock)


@pytest.fixture
def port() -> DictPort:
    return DictPort()


def kept(store: SqlStore, port: DictPort, n: int = 1, **changes: object) -> TrialKey:
    """A recurrence whose result is remembered instead of told."""
    key = store.ask(request(n)).trial.key
    remember(
        port, key, State.CONVERGED, report(profile=2, points=3), "d.train", "on time", **changes
    )  # type: ignore[arg-type]
    return key


def test_what_is_remembered_is_told_in_full_and_deleted(
    store: SqlStore, port: DictPort, clock: Clock
) -> None:
    key = kept(store, port)
    assert list(port.data) == ["zeus-untold:ti-1:1"] == [pending_key(key)]
    clock.t += 1000  # its lease is over meanwhile
    assert drain(store, port, "d.train") == 1
    (trial,) = store.trials("d.train")
    assert (trial.state, trial.reason, trial.observation) == (State.CONVERGED, "on time", seen())
    assert len(store.points(key)) == 3
    assert [s.samples for s in store.ask(request(2)).profile] == [20]
    assert port.data == {}
    assert drain(store, port, "d.train") == 0


def test_a_file_that_another_user_puts_there_meanwhile_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where they have guessed the name of the half-written one."""
    monkeypatch.setattr(os, "urandom", bytes)
    half = tmp_path / f".{pending_key(TrialKey('ti-1')).replace(':', '-')}.json.{bytes(8).hex()}"
    half.write_text("theirs")
    half.chmod(0o600)
    with pytest.raises(StoreError):
        remember(None, TrialKey("ti-1"), State.CONVERGED, report(), "d.train", state_dir=tmp_path)
    assert half.read_text() == "theirs"


def test_a_crash_between_telling_and_deleting_tells_twice_harmlessly(
    store: SqlStore, port: DictPort
) -> None:
    kept(store, port)
    text = dict(port.data)
    drain(store, port, "d.train")
    before = store.trials("d.train")
    port.data.update(text)
    drain(store, port, "d.train")
    assert store.trials("d.train") == before
    assert port.data == {}


def test_only_the_costs_of_the_job_are_told(store: SqlStore, port: DictPort) -> None:
    kept(store, port)
    assert drain(store, port, "other") == 0
    assert len(port.data) == 1
    assert drain(store, port, None) == 1


def test_where_variables_cannot_be_listed_the_jobs_own_trials_name_the_keys(
    store: SqlStore, clock: Clock
) -> None:
    port = DictPort(listable=False)
    kept(store, port)
    clock.t += 1000
    assert drain(store, port, "d.train") == 1
    assert store.trials("d.train")[0].state is State.CONVERGED
    assert drain(store, port, None) == 0


def test_the_ends_of_other_starts_are_found_where_variables_cannot_be_listed(
    store: SqlStore, clock: Clock
) -> None:
    port = DictPort(listable=False)
    key = kept(store, port)
    for earlier in (1, 2):
        remember(port, key, State.CONVERGED, report(), "d.train", earlier=earlier)
    assert [*port.data] == [f"zeus-untold:ti-1:1{end}" for end in ("", ":2", ":3")]
    clock.t += 1000
    assert drain(store, port, "d.train") == 3
    assert port.data == {}


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"v": 99}', '{"v": 1, "job_id": "d.train"}', "null"]
)
def test_a_broken_one_is_left_with_a_warning_and_stops_no_other(
    store: SqlStore, port: DictPort, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    kept(store, port)
    port.data["zeus-untold:broken:1"] = text
    with caplog.at_level(logging.WARNING, "airflow_provider_zeus"):
        assert drain(store, port, "d.train") == 1
    assert port.data == {"zeus-untold:broken:1": text}
    assert any("zeus-untold:broken:1" in r.getMessage() for r in caplog.records)


def test_what_the_store_refuses_is_kept(
    store: SqlStore, port: DictPort, caplog: pytest.LogCaptureFixture
) -> None:
    remember(port, TrialKey("never-asked"), State.CONVERGED, report(), "d.train", None)
    with caplog.at_level(logging.WARNING, "airflow_provider_zeus"):
        assert drain(store, port, "d.train") == 0
    assert len(port.data) == 1
    assert any("never-asked" in r.getMessage() for r in caplog.records)


def test_a_run_that_could_not_ask_is_logged_with_its_cost(store: SqlStore, port: DictPort) -> None:
    trial = began_alone(1, opened_at=500.0)
    remember(port, trial.key, State.CONVERGED, report(), "d.train", None, trial=trial)
    assert drain(store, port, "d.train") == 1
    (logged,) = store.trials("d.train")
    assert (logged.number, logged.state, logged.planned.phase) == (
        1,
        State.CONVERGED,
        Phase.FALLBACK,
    )
    assert logged.observation == seen()


def test_without_the_api_a_file_keeps_it(store: SqlStore, port: DictPort, tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    port.down = True
    kept(store, port, state_dir=state_dir)
    (path,) = state_dir.iterdir()
    assert json.loads(path.read_text())["job_id"] == "d.train"
    assert drain(store, port, "d.train", state_dir=state_dir) == 1  # the API is still gone
    assert list(state_dir.iterdir()) == []
    assert store.trials("d.train")[0].state is State.CONVERGED


def test_where_neither_takes_it_the_error_says_both(
    store: SqlStore, port: DictPort, tmp_path: Path
) -> None:
    port.down = True
    key = store.ask(request(1)).trial.key
    with pytest.raises(StoreError, match="no API"):
        remember(port, key, State.CONVERGED, report(), "d.train", None)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"no API.*state_dir"):
        remember(
            port, key, State.CONVERGED, report(), "d.train", None, state_dir=tmp_path / "file" / "x"
        )


@pytest.mark.parametrize("ti_id", ["../../etc/passwd", "a b/c", "ü"])
def test_ids_of_any_characters_name_a_file_inside_the_folder(
    port: DictPort, tmp_path: Path, ti_id: str
) -> None:
    port.down = True
    remember(port, TrialKey(ti_id), State.CONVERGED, report(), "d.train", None, state_dir=tmp_path)
    assert len(list(tmp_path.glob("zeus-untold-*.json"))) == 1
