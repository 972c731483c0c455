"""Help texts and what commands print speak of runs and attempts (tests/words.py)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_zeus.get_provider_info import get_provider_info
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.reports.job_remarks import NEWEST
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.cli.conftest import Zeus, recur
from tests.unit.cli.test_definition import COMMANDS
from tests.unit.store.store_kit import JOB, report, request
from tests.words import found, texts

ENDS = (
    *(State.CONVERGED, State.GIVEN_UP, State.EXHAUSTED, State.FAILED, State.NO_METRIC),
    *(State.NO_DATA, State.NOT_NEEDED, State.ABANDONED),
)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help(zeus: Zeus, path: tuple[str, ...]) -> None:
    assert found(zeus(*path[1:], "--help").out) == []


def test_the_settings_that_airflow_lists() -> None:
    options = get_provider_info()["config"]["zeus"]["options"]
    assert found(texts([option["description"] for option in options.values()])) == []


def varied(store: Store) -> None:
    """Runs with every end, a retried one, other targets and devices, and one that is open."""
    for n, state in enumerate(ENDS, start=1):
        recur(store, n, state)
    retried = store.ask(request(2, ti_id="again", try_number=2)).trial
    store.tell(retried.key, State.CONVERGED, report(32))
    harder = replace(JOB, target="accuracy >= 0.9")
    for n in range(len(ENDS) + 1, NEWEST):
        asked = store.ask(request(n, ti_id=f"h-{n}", job=harder)).trial
        store.tell(asked.key, State.CONVERGED, report(asked.batch_size, device_model="A40"))
    store.ask(request(NEWEST, ti_id="open", job=harder))


def test_what_commands_print(zeus: Zeus, store: Store, home: Path) -> None:
    varied(store)
    for command in (
        ("runs", "d", "--why", "--last", "99"),
        ("jobs", "list"),
        ("jobs", "exclude", "d", "2"),
        ("jobs", "exclude", "d", "99"),
        ("jobs", "reset", "d", "-y"),
        ("jobs", "rename", "d.train", "e.train"),  # an attempt is open
        ("doctor",),
        ("export", "--output", str(home / "log.jsonl")),
        ("export", "d", "--output", str(home / "log.csv")),
        ("report",),
        ("prune", "--older-than", "1h", "--dry-run"),
        ("repair", "--close", "d", "1.1", "-y"),
        ("repair",),
        ("import", str(home / "log.jsonl")),
        ("db", "upgrade"),
        ("db", "backup", str(home / "copy")),
        ("runs", "nobody"),
    ):
        done = zeus(*command)
        said = f"{done.out}{done.err}".replace(str(home), "")
        assert found(said) == [], (command, said)
        if command[0] == "jobs" and command[1] == "list":
            assert "at run 10 from V100" in done.out, "9.1 is the retry of run 2"
