"""``airflow zeus db backup`` and ``restore``."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_zeus.store.sql.store import Store
from tests.unit.cli.conftest import Zeus, recur


def test_a_log_is_backed_up_and_put_back(zeus: Zeus, store: Store, home: Path) -> None:
    recur(store, 1)
    file = home / "log.backup"
    done = zeus("db", "backup", str(file))
    assert (done.status, done.err) == (0, "")
    assert done.out == f"{file} holds the run log at {home}/zeus.db: 1 attempt.\n"
    recur(store, 2)
    done = zeus("db", "restore", str(file), "--yes")
    assert (done.status, done.err) == (0, "")
    assert done.out == f"The run log at {home}/zeus.db holds 1 attempt now, as {file} does.\n"
    assert [trial.number for trial in store.trials("d.train")] == [1]


def test_it_asks_before_it_replaces_a_log(
    zeus: Zeus, store: Store, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recur(store, 1)
    file = str(home / "log.backup")
    asked = []
    zeus("db", "backup", file)
    recur(store, 2)
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "n")
    done = zeus("db", "restore", file)
    assert (done.status, done.out) == (1, "Nothing was changed.\n")
    assert asked == [f"Replace the run log at {home}/zeus.db by {file} with 1 attempt? (y/N) "]
    assert len(store.trials("d.train")) == 2


def test_a_backup_that_is_none_is_named(zeus: Zeus, store: Store, home: Path) -> None:
    done = zeus("db", "restore", str(home / "missing"), "--yes")
    assert done.status == 1
    assert f"There is no file {home}/missing to restore from" in done.err


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_postgres_has_commands_of_its_own(
    command: str, zeus: Zeus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ZEUS_DEFAULT", "postgresql://ann:secret@db.example.com/zeus")
    done = zeus("db", command, "log.backup")
    assert (done.status, done.out) == (1, "")
    assert {"backup": "pg_dump --table='zeus_*'", "restore": "pg_restore --clean"}[
        command
    ] in done.err
    assert "secret" not in done.err


def test_variables_are_backed_up_with_airflow(zeus: Zeus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_ZEUS_DEFAULT", '{"conn_type": "zeus", "extra": {"store": "variable"}}'
    )
    done = zeus("db", "backup", "log.backup")
    assert done.status == 1
    assert "a backup of Airflow's own database holds it" in done.err
