"""The row of a task that does not know Zeus: from its first heartbeat on, or at its end, or in a file."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import Observation, State, Trial
from airflow_provider_zeus.operators import outside
from airflow_provider_zeus.operators.config import ZeusConfig
from airflow_provider_zeus.operators.outside import OutsideRow
from airflow_provider_zeus.store.pending import kept_files
from airflow_provider_zeus.store.sql.store import SqlStore
from airflow_provider_zeus.training.protocol.events import ResultLine

JOB_ID = "sales.load"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    found = SqlStore(f"sqlite:///{tmp_path}/zeus.db", create=True)
    yield found
    found.close()


@pytest.fixture
def row(store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OutsideRow:
    monkeypatch.setattr(outside, "open_log", lambda: store)
    config = ZeusConfig(state_dir=tmp_path / "state", heartbeat_s=15.0, lease_s=90.0)
    found = OutsideRow(new_row(), config)
    found.until_s = time.monotonic() + 60.0
    return found


def new_row() -> Trial:
    ti = SimpleNamespace(
        id="ti-1", dag_id="sales", task_id="load", run_id="r1", map_index=-1, try_number=1
    )
    run = SimpleNamespace(run_type="scheduled")
    ti.get_template_context = lambda: {"ti": ti, "dag_run": run}
    return outside.new_trial(ti)


def line(kind: Any, time_s: float, **fields: Any) -> ResultLine:
    seen = Observation(energy_j=7.0 * time_s, time_s=time_s, energy_source="estimate")
    return ResultLine(kind=kind, start_id="start", attempt=1, observation=seen, **fields)


END = line("end", 2.0, state=State.DONE)


def test_nothing_is_written_before_a_heartbeat_or_the_end(row: OutsideRow, store: SqlStore) -> None:
    row(ResultLine(kind="attempt", start_id="start", attempt=1))
    assert store.trials(JOB_ID) == []
    row(line("beat", 60.0))
    (found,) = store.trials(JOB_ID)
    assert (found.state, found.observation.energy_j) == (State.RUNNING, 420.0)
    assert found.lease_s == 360.0, "heartbeats are four times as far apart as those of trainings"
    row(line("end", 61.0, state=State.FAILED, reason="ValueError: no"))
    (found,) = store.trials(JOB_ID)
    assert (found.state, found.reason) == (State.FAILED, "ValueError: no")
    assert found.observation.time_s == 61.0


@pytest.mark.parametrize(("time_s", "count"), [(0.9, 0), (1.1, 1), (None, 1)])
def test_a_task_under_a_second_leaves_no_row(
    row: OutsideRow, store: SqlStore, time_s: float | None, count: int
) -> None:
    row(replace(END, observation=Observation(time_s=time_s)))
    assert len(store.trials(JOB_ID)) == count
    assert kept_files(row._state_dir) == []


def test_a_store_that_fails_for_a_heartbeat_gets_all_of_it_later(
    row: OutsideRow,
    store: SqlStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def away() -> SqlStore:
        raise StoreError("away")

    monkeypatch.setattr(outside, "open_log", away)
    broken = OutsideRow(
        new_row(), ZeusConfig(state_dir=row._state_dir, heartbeat_s=15.0, lease_s=90.0)
    )
    broken.until_s = time.monotonic() + 60.0
    broken(line("beat", 60.0))
    assert "could not write a heartbeat (away). It is tried again." in caplog.text
    broken(line("end", 61.0, state=State.DONE))
    (file,) = kept_files(row._state_dir)
    # the next measured task of this host stores it
    monkeypatch.setattr(outside, "open_log", lambda: store)
    row.trial = replace(row.trial, key=replace(row.trial.key, ti_id="ti-2"), job_id="sales.next")
    row._writer = outside.ResultWriter(None, row.trial, lease_s=360.0, reopen=lambda: store)
    row(END)
    assert not file.exists()
    (found,) = store.trials(JOB_ID)
    assert (found.state, found.observation.time_s) == (State.DONE, 61.0)
    assert len(store.trials("sales.next")) == 1


def test_a_heartbeat_that_hangs_in_the_store_holds_the_end_no_longer_than_it_may(
    row: OutsideRow, store: SqlStore
) -> None:
    released = threading.Event()
    entered = threading.Event()
    heartbeat = store.heartbeat

    def hangs(*args: Any, **kwargs: Any) -> str | None:
        entered.set()
        released.wait(60)
        return heartbeat(*args, **kwargs)

    store.heartbeat = hangs  # type: ignore[method-assign]
    beat = threading.Thread(target=row, args=(line("beat", 60.0),), daemon=True)
    beat.start()
    entered.wait(60)
    row.until_s = time.monotonic() + 0.2
    row(line("end", 61.0, state=State.DONE))
    assert len(kept_files(row._state_dir)) == 1
    released.set()
    beat.join(60)
    store.heartbeat = heartbeat  # type: ignore[method-assign]
    outside.drain(store, None, JOB_ID, state_dir=row._state_dir, with_outside=True)
    (found,) = store.trials(JOB_ID)
    assert (found.state, found.observation.time_s) == (State.DONE, 61.0)


def test_what_others_kept_is_stored_once_by_whoever_comes_first(
    row: OutsideRow, store: SqlStore
) -> None:
    row.until_s = 0.0  # the store has no time
    row(END)
    (file,) = kept_files(row._state_dir)
    text = file.read_text()
    for _ in range(2):
        file.write_text(text)
        outside.drain(store, None, "other.job", state_dir=row._state_dir, with_outside=True)
    assert len(store.trials(JOB_ID)) == 1
    file.write_text(text)
    outside.drain(store, None, "other.job", state_dir=row._state_dir)
    assert file.exists(), "a job's own run leaves what it does not know"
