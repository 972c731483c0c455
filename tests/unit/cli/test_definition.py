"""The commands as Airflow loads them: through its parser,
and as processes of its own executable.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.cli.cli_config import ActionCommand, GroupCommand

from airflow_provider_zeus.cli.definition import get_zeus_cli_commands
from airflow_provider_zeus.store.base import UPGRADE
from airflow_provider_zeus.store.sql.schema import HEAD
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.cli.conftest import Done, Zeus, recur


def commands(
    found: object, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], ActionCommand]]:
    for command in found:  # type: ignore[attr-defined]
        if isinstance(command, GroupCommand):
            yield from commands(command.subcommands, (*path, command.name))
        else:
            yield (*path, command.name), command


COMMANDS = dict(commands(get_zeus_cli_commands()))


def test_what_there_is() -> None:
    jobs = [
        ("zeus", "jobs", name)
        for name in ("list", "pin", "pause", "exclude", "resume", "reset", "rename")
    ]
    assert list(COMMANDS) == [
        ("zeus", "demo"),
        ("zeus", "doctor"), ("zeus", "check"), *jobs, ("zeus", "runs"), ("zeus", "export"),
        ("zeus", "import"), ("zeus", "report"), ("zeus", "repair"),
        ("zeus", "prune"), *(("zeus", "db", name) for name in ("upgrade", "backup", "restore")),
    ]  # fmt: skip


def test_each_command_has_one_section_in_its_page() -> None:
    page = Path(__file__).parents[3] / "docs" / "cli.md"
    sections = [
        line.removeprefix("## ") for line in page.read_text().splitlines() if line.startswith("## ")
    ]
    named = [" ".join(path[1:]) if path[1] == "db" else path[1] for path in COMMANDS]
    assert sorted(sections) == sorted(dict.fromkeys(named))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_is_implemented_and_explains_itself(
    path: tuple[str, ...], zeus: Zeus
) -> None:
    done = zeus(*path[1:], "--help")
    assert done.status == 0
    if path[-1] in ("check", "demo"):  # they name no run log; each has a test file of its own
        assert "--conn-id" not in done.out
        return
    assert "--conn-id" in done.out
    needed = {
        "JOB": "nobody",
        "BATCH_SIZE": "16",
        "NUMBER": "1",
        "FILE": __file__,
        "OLD": "a",
        "NEW": "b",
    }
    usage = done.out.split("\n\n")[0]
    usage = usage.replace("[--close JOB ATTEMPT]", "").replace("[--job JOB]", "")
    arguments = [
        value for name, value in needed.items() if f" {name}" in usage and f"[{name}]" not in usage
    ]
    arguments += {"reset": ["-y"], "prune": ["--older-than", "90d"]}.get(path[-1], [])
    done = zeus(*path[1:], *arguments, "--conn-id", "nowhere")
    assert done.status == 1
    assert "no Connection 'nowhere'" in done.err + done.out
    assert "Traceback" not in done.err


def test_commands_run_in_server_context(zeus: Zeus) -> None:
    """Else Airflow would not look for Connections, nor for what they name,
    in its metadata database.
    """
    zeus("jobs", "list")
    assert os.environ["_AIRFLOW_PROCESS_CONTEXT"] == "server"


def test_the_upgrade_makes_the_tables_and_says_so(
    zeus: Zeus, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert UPGRADE == "airflow zeus db upgrade"
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    done = zeus("db", "upgrade")
    assert (done.status, done.out) == (1, "")
    assert "no Connection 'zeus_default'" in done.err
    monkeypatch.setenv(
        "AIRFLOW_CONN_LOGS", json.dumps({"conn_type": "sqlite", "host": str(home / "costs.db")})
    )
    made = f"The run log at sqlite:{home}/costs.db now has schema {HEAD} (new).\n"
    assert zeus("db", "upgrade", "--conn-id", "logs").out == made
    assert "is up to date" in zeus("db", "upgrade", "--conn-id", "logs").out


# --- as users call them: a process of its own, 2 to 4 s, where nothing else shows it


def airflow(home: Path, *arguments: str) -> Done:
    """The ``airflow`` executable beside this Python."""
    executable = Path(sys.executable).parent / "airflow"
    environment = {k: v for k, v in os.environ.items() if k != "_AIRFLOW_PROCESS_CONTEXT"}
    done = subprocess.run(
        [executable, *arguments],
        env={**environment, "AIRFLOW_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
def test_a_connection_in_airflows_database_and_log_lines_beside_json(home: Path) -> None:
    """The process finds it, though Airflow's look-up does so in server context only;
    JSON stays alone on stdout.
    """
    from airflow.models import Connection
    from airflow.utils.session import create_session

    from airflow_provider_zeus.store.sql.store import SqlStore
    from airflow_provider_zeus.store.variables.airflow import AirflowVariables

    recur(SqlStore(f"sqlite:///{home}/elsewhere.db", create=True), 1)
    AirflowVariables().set("zeus-settings:d.train", '{"eta": 7}')  # a warning in the log
    with create_session() as session:
        session.add(
            Connection(conn_id="cli_test", conn_type="sqlite", host=str(home / "elsewhere.db"))
        )
    try:
        done = airflow(home, "zeus", "jobs", "list", "--conn-id", "cli_test", "-o", "json")
    finally:
        with create_session() as session:
            session.query(Connection).filter(Connection.conn_id == "cli_test").delete()
    assert done.status == 0, done.err
    assert [job["job"] for job in json.loads(done.out)] == ["d.train"]
    assert "eta = 7" in done.err


# --- in this process


def test_an_error_is_one_message_and_a_status(zeus: Zeus) -> None:
    done = zeus("runs", "nobody")
    assert (done.status, done.out) == (1, "")
    assert "no run log yet" in done.err
    assert "Traceback" not in done.err


def test_a_closed_pipe_is_no_traceback(
    zeus: Zeus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``| head`` leaves it: neither while the command writes nor when Python closes its
    output at the end.
    """
    for n in range(1, 40):
        recur(store, n)
    read, write = os.pipe()
    os.close(read)
    with monkeypatch.context() as piped, open(write, "w") as stdout:
        piped.setattr(sys, "stdout", stdout)
        done = zeus("export", "--format", "json")
    assert done.status == 1
    assert done.err == ""
