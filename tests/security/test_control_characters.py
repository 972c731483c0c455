"""Texts of a training with control characters: no command, table,
file or log line prints one of them.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
import unicodedata
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.errors import JobSpecError, StoreError
from airflow_provider_zeus.model.trial import Origin, State
from airflow_provider_zeus.operators.result_reporter import ResultReporter
from airflow_provider_zeus.printable import cell, visible
from airflow_provider_zeus.reports.export_rows import csv_of, file_name
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.store.pending import remember
from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from airflow_provider_zeus.training.protocol.events import ResultLine
from tests.unit.cli.conftest import Zeus, home, recur, store, zeus  # noqa: F401  fixtures
from tests.unit.store.store_kit import DEVICE, began_alone, report, request, seen

CLEAR = "\x1b[2J\x1b[31m"
BEL = "\x07"
CSI = "\x9b31m"
BIDI = "\u202e"
ISOLATE = "\u2066"
LINE = "\u2028"
SHOWN = ("\\x1b[2J", "\\x07", "\\x9b31m", "\\u202e", "\\u2066", "\\u2028", "\\n")
HOSTILE = f"{CLEAR}{BEL}{CSI}{BIDI}{ISOLATE}{LINE}\nOK  all is well\r\x08\x7f"
JOB_ID = f"job{HOSTILE}"
RUN_ID = f"run{HOSTILE}"


def controls(text: str, *, lines: bool = True) -> set[str]:
    """Characters that a terminal or an editor obeys; the ends of our own lines are none."""
    odd = {each for each in text if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    return odd - {"\n"} if lines else odd


@pytest.fixture
def log(store: Store) -> Store:  # noqa: F811
    """Trials with hostile texts in all places where a text may come from."""
    origin = Origin(
        dag_id="d", run_id=RUN_ID, task_id="t", run_type="scheduled", data_slice=f"slice{HOSTILE}"
    )
    device = replace(DEVICE, model=f"V100{HOSTILE}")
    for n, state in enumerate((State.FAILED, State.CONVERGED)):
        ask = request(n, job_id=JOB_ID, ti_id=f"ti-{n}{HOSTILE}", origin=origin, device=device)
        key = store.ask(ask).trial.key
        seen = report(
            device_model=device.model, reasons={"energy_j": f"no source{HOSTILE}"}, energy_j=None
        )
        store.tell(key, state, seen, reason=f"ended{HOSTILE}")
    store.ask(request(9, job_id=JOB_ID, origin=origin, device=device))  # open
    return store


READING = [
    ("jobs", "list"),
    ("jobs", "list", "-o", "json"),
    ("runs", JOB_ID, "--why"),
    ("runs", JOB_ID, "-o", "json"),
    ("runs", JOB_ID, "--run", f"other{HOSTILE}"),
    ("runs", f"unknown{HOSTILE}"),
    ("export",),
    ("export", "--format", "json"),
    ("doctor",),
    ("doctor", "--json"),
    ("jobs", "pin", JOB_ID, "7"),
    ("jobs", "reset", JOB_ID),
    ("prune", "--older-than", "1h", "--dry-run", "--job", JOB_ID),
    ("repair", "--close", JOB_ID, "3"),
    ("repair", "--close", JOB_ID, "77", "--yes"),
    ("db", "upgrade"),
]
CHANGING = [  # one after the other
    ("jobs", "pause", JOB_ID),
    ("jobs", "resume", JOB_ID),
    ("jobs", "pin", JOB_ID, "32"),
    ("repair", "--close", JOB_ID, "1", "--yes"),
    ("repair", "--close", JOB_ID, "3", "--yes"),
    ("prune", "--older-than", "1h"),
    ("jobs", "reset", JOB_ID, "--yes"),
    ("repair",),
]


@pytest.mark.parametrize("commands", [READING, CHANGING], ids=["reading", "changing"])
def test_no_command_prints_one(
    commands: list[tuple[str, ...]],
    log: Store,
    zeus: Zeus,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = log.trials(JOB_ID)[0].key
    remember(AirflowVariables(), key, State.CONVERGED, report(), JOB_ID)
    for arguments in commands:
        monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
        done = zeus(*arguments)
        said = done.out + done.err
        assert said.strip(), arguments
        assert controls(said.replace("\r\n", "\n")) == set(), arguments
        assert "\nOK  all is well" not in said, "a training wrote a line of its own"


def test_the_table_shows_them_as_escapes(log: Store, zeus: Zeus) -> None:  # noqa: F811
    lines = zeus("runs", JOB_ID, "--why").out.splitlines()[2:]
    # a long cell goes over several lines
    runs = "".join(line.split("|")[1] for line in lines if "|" in line)
    assert "".join(runs.split()) == 3 * "".join(visible(RUN_ID).split())
    assert all(escape in visible(RUN_ID) for escape in SHOWN)


def test_the_csv_shows_them_as_escapes_in_one_line_per_trial(log: Store, zeus: Zeus) -> None:  # noqa: F811
    plugin = "".join(csv_of([log.trials(JOB_ID)], Prices()))
    for text in (zeus("export").out, plugin):
        assert len(text.splitlines()) == 4
        first = next(csv.DictReader(io.StringIO(text)))
        assert first["job_id"] == visible(JOB_ID)
        assert first["reason"].startswith("ended\\x1b[2J")
        assert controls(text.replace("\r\n", "\n")) == set()


def test_no_cell_is_a_formula(store: Store, zeus: Zeus) -> None:  # noqa: F811
    jobs = [
        f"{start}1+1" for start in ("=", "+", "-", "@", "\t=", "\r=", "\n=", "\x1b=", "\u202e=")
    ]
    for job in jobs:
        recur(store, 1, job_id=job)
    for text in (
        zeus("export").out,
        "".join(csv_of([store.trials(job) for job in jobs], Prices())),
    ):
        rows = list(csv.DictReader(io.StringIO(text)))
        assert len(rows) == len(jobs)
        assert {row["job_id"][0] for row in rows} <= {"'", "\\"}


FORMULAS = [
    "=1+1",
    "+1",
    "-1",
    "@sum",
    "\uff1d1",
    "\uff20a",
    " =1",
    "x;=cmd|A0",
    "x; \uff0b1",
    "a|=b",
    "'=1",
    "x;'=1",
]
FORMULAS += ['x;"=cmd', 'x; ""=cmd', 'x|" =cmd']


@pytest.mark.parametrize("text", FORMULAS)
def test_no_way_to_split_a_line_leaves_a_formula(text: str) -> None:
    line = io.StringIO()
    csv.writer(line).writerow(["job", cell(text)])
    for part in [
        each for mark in ";|" for each in next(csv.reader([line.getvalue()], delimiter=mark))
    ]:
        assert not re.match(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]", part)


def test_json_keeps_the_text_as_it_is(log: Store, zeus: Zeus) -> None:  # noqa: F811
    for arguments in (("export", "--format", "json"), ("runs", JOB_ID, "-o", "json")):
        answer = zeus(*arguments).out
        if arguments[0] == "export":
            first = next(
                json.loads(line)["run"]["trials"][0]
                for line in answer.splitlines()
                if '"run"' in line
            )
        else:
            first = json.loads(answer)[0]
        assert first["reason"] == f"ended{HOSTILE}"


def test_a_readable_text_is_left_alone() -> None:
    for text in ("", "größer als 3\u00a0%", "数据 🚀", "a\\nb", "[red]"):
        assert visible(text) == text
    assert visible("\ud800") == "\\ud800", "what cannot be encoded can be printed"


@pytest.mark.parametrize(
    "error", [StoreError(f"a{HOSTILE}"), JobSpecError.of(JOB_ID, RUN_ID, HOSTILE, HOSTILE)]
)
def test_an_error_is_one_line(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("airflow_provider_zeus").warning("%s", error)
    assert controls(caplog.messages[0], lines=False) == set()
    assert controls(str(error), lines=False) == set()


def test_a_training_writes_no_log_line_of_its_own(
    log: Store,
    zeus: Zeus,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = AirflowVariables()
    remember(port, log.trials(JOB_ID)[0].key, State.CONVERGED, report(), JOB_ID)
    (name,) = port.keys("zeus-untold:")
    port.set(name, "{")  # cannot be told: a warning names it
    with caplog.at_level(logging.DEBUG, "airflow_provider_zeus"):
        zeus("repair")
    ours = [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("airflow_provider_zeus")
    ]
    assert [line for line in ours if controls(line, lines=False)] == []


def test_a_cost_that_nothing_keeps_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    first = replace(began_alone(1, opened_at=0.0), job_id=f"d{HOSTILE}")
    reporter = ResultReporter(None, None, first, lease_s=90, state_dir=tmp_path / "file" / "state")
    reporter(
        ResultLine(kind="end", start_id="s", attempt=1, state=State.CONVERGED, observation=seen())
    )
    (line,) = [
        record.getMessage() for record in caplog.records if "lost the cost" in record.getMessage()
    ]
    assert controls(line, lines=False) == set()


# --- the file that export writes


def test_an_exported_file_is_for_its_user_alone(log: Store, zeus: Zeus, home: Path) -> None:  # noqa: F811
    umask = os.umask(0)
    try:
        assert zeus("export", "--output", str(home / "log.csv")).status == 0
    finally:
        os.umask(umask)
    assert (home / "log.csv").stat().st_mode & 0o777 == 0o600


def test_an_export_follows_no_link(log: Store, zeus: Zeus, home: Path) -> None:  # noqa: F811
    victim = home / "victim"
    link = home / "log.csv"
    victim.write_text("kept")
    link.symlink_to(victim)
    done = zeus("export", "--output", str(link))
    assert done.status == 1
    assert "symbolic link" in done.err
    assert victim.read_text() == "kept"


def test_a_download_has_a_plain_name() -> None:
    name = file_name(f"../{JOB_ID}\r\nX: y", date(2026, 1, 1))
    assert controls(name, lines=False) == set()
    assert "/" not in name


def test_a_hostile_identity_is_not_obeyed(
    zeus: Zeus,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    home: Any,  # noqa: F811
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_ZEUS_DEFAULT",
        json.dumps({"conn_type": "sqlite", "host": f"/{HOSTILE}/zeus.db"}),
    )
    for arguments in (("doctor",), ("repair",), ("jobs", "list")):
        done = zeus(*arguments)
        assert controls(done.out + done.err) == set()
