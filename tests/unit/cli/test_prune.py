"""``airflow zeus prune``: what it takes, what it says,
and that what the pages and the export say stays.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.cli.upkeep import seconds_of, size_text
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.sql import prune as sql_prune
from airflow_provider_zeus.store.sql.store import SqlStore, Store
from tests.unit.cli.conftest import Zeus, recur
from tests.unit.store.store_kit import JOB, Clock, report, request

SMALL = replace(JOB, window=6)
DAY_S = 86_400.0


@pytest.fixture(scope="module")
def made_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 runs of two jobs, one every 20 days, the newest today."""
    path = tmp_path_factory.mktemp("long") / "zeus.db"
    clock = Clock()
    now_s = time.time()
    store = SqlStore(f"sqlite:///{path}", create=True, now=clock)
    for job_id in ("d.train", "d.other"):
        for n in range(30):
            clock.t = now_s - 20 * DAY_S * (29 - n)
            key = store.ask(request(n, job=SMALL, job_id=job_id, ti_id=f"{job_id}-{n}")).trial.key
            store.tell(key, State.CONVERGED, report(points=200))
    store.close()
    return path


@pytest.fixture
def log(home: Path, made_log: Path) -> Iterator[Store]:
    """A copy of that log, as a task would open it."""
    shutil.copy(made_log, home / "zeus.db")
    store = open_store()
    yield store
    store.close()


def with_points(store: Store, job_id: str = "d.train") -> int:
    return sum(bool(store.points(t.key)) for t in store.trials(job_id))


def said(zeus: Zeus) -> list[str]:
    """What other commands say of the log."""
    return [
        zeus(*each).out for each in (["runs", "d.train", "--last", "99", "--why"], ["jobs", "list"])
    ]


def test_old_points_go_and_every_other_command_says_the_same(
    zeus: Zeus, log: Store, home: Path
) -> None:
    before = said(zeus)
    size = (home / "zeus.db").stat().st_size
    done = zeus("prune", "--older-than", "210d")
    assert (done.status, done.err) == (0, "")
    assert re.findall(r"^(d\.\w+): power over time of (\d+)", done.out, re.M) == [
        ("d.other", "19"),
        ("d.train", "19"),
    ]
    assert f"deleted from sqlite:{home}/zeus.db" in done.out
    assert (with_points(log), with_points(log, "d.other")) == (11, 11)
    assert said(zeus) == before
    assert (home / "zeus.db").stat().st_size < size
    again = zeus("prune", "--older-than", "210d")
    assert "0 bytes deleted" in again.out


def test_a_dry_run_says_what_would_go_of_one_job(zeus: Zeus, log: Store) -> None:
    would = zeus("prune", "--older-than", "28w", "--job", "d.train", "--dry-run")
    assert would.status == 0
    assert "d.other" not in would.out
    assert "would be deleted" in would.out
    assert with_points(log) == 30
    done = zeus("prune", "--older-than", "28w", "--job", "d.train")
    assert done.out.splitlines()[0] == would.out.splitlines()[0]
    assert with_points(log, "d.other") == 30


def test_keep_trials_leaves_the_decisions(zeus: Zeus, log: Store) -> None:
    done = zeus("prune", "--older-than", "210d", "--keep-decisions")
    assert "decisions" not in done.out
    assert with_points(log) == 11
    assert all(t.decision.attempts for t in log.trials("d.train"))


def test_what_is_too_young_or_used_stays_and_is_counted(zeus: Zeus, log: Store) -> None:
    assert "power over time of 24 attempts" in (out := zeus("prune", "--older-than", "12h").out)
    assert "of that age 5 more kept" in out


@pytest.mark.parametrize("options", [(), ("--keep-decisions",)])
def test_long_work_tells_how_far_it_is(
    zeus: Zeus, log: Store, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setattr("airflow_provider_zeus.cli.upkeep._SAY_EVERY", 1)
    assert "d.train: 19 attempts so far" in zeus("prune", "--older-than", "210d", *options).err
    assert sql_prune.TRIALS_A_STEP > 1


def test_variables_keep_little_anyway(
    zeus: Zeus, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_ZEUS_DEFAULT", '{"conn_type": "zeus", "extra": {"store": "variable"}}'
    )
    recur(open_store(overlap_possible=False), 1)
    done = zeus("prune", "--older-than", "1h")
    assert done.status == 0
    assert "newest 500 attempts" in done.out
    assert len(open_store(overlap_possible=False).trials("d.train")) == 1


def test_a_file_that_keeps_its_size_says_how_to_make_it_smaller(
    zeus: Zeus, log: Store, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3
    from contextlib import closing

    log.close()
    with closing(sqlite3.connect(home / "zeus.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA auto_vacuum = NONE")
        connection.execute("VACUUM")
    done = zeus("prune", "--older-than", "210d")
    assert done.status == 0
    assert "auto_vacuum = INCREMENTAL" in done.out
    assert with_points(log) == 11


@pytest.mark.parametrize(
    ("text", "seconds"), [("12h", 43_200.0), ("90d", 90 * DAY_S), ("2w", 14 * DAY_S)]
)
def test_ages(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


def test_what_is_no_age_is_refused(zeus: Zeus, log: Store) -> None:
    for text in ("", "90", "d", "-1d", "0d", "1.5d", "1y", "9999999d", "1d 2h", "１d"):
        with pytest.raises(JobSpecError, match="12h, 90d, 2w"):
            seconds_of(text)
    assert zeus("prune", "--older-than=1.5d").status == 1
    assert with_points(log) == 30


def test_an_unknown_job_is_an_error_with_near_names(zeus: Zeus, log: Store) -> None:
    done = zeus("prune", "--older-than", "1d", "--job", "d.trian")
    assert done.status == 1
    assert "d.train, d.other." in done.err


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (19e6, "19 MB"), (2.5e9, "2.5 GB")],
)
def test_sizes_for_people(size: Any, text: str) -> None:
    assert size_text(int(size)) == text
