"""What only the SQL store has: a database that fails, addresses that are none."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.store.sql import engine
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.unit.store.store_kit import Clock, request


def test_an_unreachable_database_is_one_sentence_without_the_password() -> None:
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1/|driver") as caught:
        SqlStore("postgresql+psycopg://zeus:s3cr3t%21@127.0.0.1:1/zeus")
    text = f"{caught.value!r} {caught.value.__cause__!r}"
    assert "s3cr3t" not in text


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cr3t@h:port/db",
        "postgresql://u:s3cr3t@s3cr3t@h/db",
        "postgresql+asyncpg://u:s3cr3t@h/db",
        "//u:s3cr3t@h",
        "oracle://u:s3cr3t@h/db?password=s3cr3t",
        "",
    ],
)
def test_a_url_that_cannot_be_used_is_not_repeated(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        SqlStore(url)
    error: BaseException | None = caught.value
    assert "s3cr3t" not in str(error)
    assert error is not None
    assert error.__suppress_context__ or error.__context__ is None


def test_no_password_in_what_people_see(monkeypatch: pytest.MonkeyPatch) -> None:
    url = engine.read_url("postgresql+psycopg2://zeus:s3cr3t@db.example:5432/costs?sslmode=require")
    assert engine.shown(url) == "postgresql://db.example:5432/costs"
    refused = 'connection to server at "db.example" (10.0.0.7), port 5432 failed: password=s3cr3t'
    said = str(engine.explained(RuntimeError(refused), url))
    assert "s3cr3t" not in said
    assert "postgresql://db.example:5432/***" in said, (
        "a host that was found is a host, no password"
    )


def test_a_directory_that_is_not_there_names_the_file(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    with pytest.raises(StoreError, match="writable"):
        SqlStore(f"sqlite:///{place}/zeus.db", create=True)


def test_a_file_that_is_no_database_is_an_error_of_the_store(tmp_path: Path) -> None:
    path = tmp_path / "zeus.db"
    path.write_text("not a database, but long enough to be looked at " * 100)
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    with pytest.raises(StoreError, match="not a database"):
        SqlStore(f"sqlite:///{path}", create=True)


def test_a_failed_question_leaves_nothing_behind(
    store: SqlStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.ask(request(1))
    clock.t += 1000

    def boom(*args: object, **kwargs: object) -> None:
        raise RuntimeError("in the policy")

    with monkeypatch.context() as patch:
        patch.setattr("airflow_provider_zeus.store.service.choose", boom)
        with pytest.raises(RuntimeError):
            store.ask(request(2))
    (trial,) = store.trials("d.train")
    assert trial.told_seq is None  # its closing was rolled back with the rest
    assert store.ask(request(2)).trial.number == 2
