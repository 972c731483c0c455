"""Every command knows a job for which no batch size is chosen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.cli.conftest import Zeus
from tests.unit.store.store_kit import report, request, seen


@pytest.fixture
def log(store: Store) -> Store:
    for n, mode in ((1, "measure"), (2, "optimize")):
        asked = store.ask(request(n, ti_id=f"d.train-{n}", job=ZeusJob(mode=mode), device=None))
        told = replace(report(points=3), observation=seen(epochs=None, samples=None, metric=None))
        store.tell(asked.trial.key, State.DONE, told)
    return store


def test_trials_and_jobs_show_a_dash(zeus: Zeus, log: Store) -> None:
    (first, *_) = json.loads(zeus("runs", "d.train", "-o", "json").out)
    assert (first["batch_size"], first["phase"], first["state"]) == (None, "measured", "done")
    (job,) = json.loads(zeus("jobs", "list", "-o", "json").out)
    assert job["last_batch_size"] is None
    for command in (("runs", "d.train"), ("runs", "d.train", "--why"), ("jobs", "list")):
        done = zeus(*command)
        assert done.status == 0
        assert "None" not in done.out


def test_what_was_exported_is_imported(
    zeus: Zeus, log: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "log.jsonl"
    assert zeus("export", "d.train", "--output", str(file)).status == 0
    home = tmp_path / "another"
    home.mkdir()
    with monkeypatch.context() as patch:
        patch.setenv("AIRFLOW_HOME", str(home))
        assert zeus("db", "upgrade").status == 0
        done = zeus("import", str(file))
        assert done.status == 0, done.err
        found: Any = json.loads(zeus("runs", "d.train", "-o", "json").out)
    assert [t["batch_size"] for t in found] == [None, None]


def test_prune_and_the_months_report(zeus: Zeus, log: Store) -> None:
    assert zeus("prune", "--older-than", "0d", "--dry-run").status in (0, 1)
    done = zeus("report", "-o", "csv")
    assert (done.status, done.err) == (0, "")
    assert "d.train" in done.out
    assert "None" not in done.out


def test_pinning_is_refused_by_name(zeus: Zeus, log: Store) -> None:
    done = zeus("jobs", "pin", "d.train", "32")
    assert done.status != 0
    assert "not in batch_sizes" in done.err + done.out
