"""A training elsewhere attacks the worker by the folder of its result:
no file of the worker is read or waited for.

Each attack runs inside the real operators: the pod writes what it likes,
the teardown task collects it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.operators.collect import starts_in_folder
from airflow_provider_zeus.operators.trial import ZeusTrial
from airflow_provider_zeus.training.protocol.events import ResultLine
from tests.integration.conftest import run_dag  # noqa: F401
from tests.integration.jobs import job, log_of

ROOT = Path(__file__).parents[2]
PLANTED = "-".join(("planted", "zx81"))  # so that this file, which Airflow stores, does not hold it
SECRET = f"fernet_key = {PLANTED}"
DIED = "the process died: no result after its last heartbeat"
# no account of this host has them
ALICE = 61001
BOB = 61002

POD = """
import json, os
from pathlib import Path
from uuid import NAMESPACE_OID, uuid5
plan = json.loads(os.environ["ZEUS_PLAN"])
folder, secret = Path(os.environ["ZEUS_RESULT"]), Path(os.environ["SECRET"])
first = plan["first_attempt"]
memory = folder / f"memory-{uuid5(NAMESPACE_OID, plan['ti_id']).hex}-{first}"
def line(kind, **fields):
    return json.dumps({"v": 1, "kind": kind, "start_id": "a", **fields}) + chr(10)
begun = line("start") + line("attempt", attempt=first) + line("beat", attempt=first, observation={"energy_j": 5.0})
folder.mkdir(parents=True)
"""
DIES = "(folder / 'a.jsonl').write_text(begun)\n"  # so that the reader asks for a want of memory
ATTACKS = {
    "memory file is a link": (DIES + "memory.symlink_to(secret)", DIED),
    "memory file is a link to the worker's environment": (
        DIES + "memory.symlink_to('/proc/self/environ')",
        DIED,
    ),
    "memory file is a hard link": (DIES + "os.link(secret, memory)", DIED),
    "memory file is a pipe": (DIES + "os.mkfifo(memory)", DIED),
    "memory file is a copy": (DIES + "memory.write_text(secret.read_text())", DIED),
    "memory file is huge": (DIES + "memory.touch(); os.truncate(memory, 20 * 2**30)", DIED),
    "result is a link": ("(folder / 'a.jsonl').symlink_to(secret)", "no result"),
    "result is a hard link": ("os.link(secret, folder / 'a.jsonl')", "no result"),
    "result is a copy": ("(folder / 'a.jsonl').write_text(secret.read_text())", "no result"),
    "result is a pipe": ("os.mkfifo(folder / 'a.jsonl')", "no result"),
    "result is huge": (
        "(folder / 'a.jsonl').touch(); os.truncate(folder / 'a.jsonl', 20 * 2**30)",
        "no result",
    ),
    "folder is a link": (
        DIES + "folder.rename(secret.parent / 'own'); folder.symlink_to(secret.parent / 'own')",
        "no result",
    ),
    "folder above is a link": (
        DIES + "above = folder.parent; above.rename(secret.parent / 'own');"
        " above.symlink_to(secret.parent / 'own')",
        "no result",
    ),
}

ALWAYS = {
    "memory file is a link",
    "memory file is a pipe",
    "result is a link",
    "result is huge",
    "folder is a link",
}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the worker that no training may learn of."""
    path = tmp_path / "airflow.cfg"
    path.write_text(f"{SECRET}\n")
    return path


def attacked(
    run: Callable[..., Any], tmp_path: Path, secret: Path, dag_id: str, code: str
) -> tuple[Trial, str]:
    """(the trial, everything that the teardown task left in databases and XComs) after a run
    with such a pod.
    """
    (tmp_path / "pod.py").write_text(POD + code)
    with (
        DAG(dag_id, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag,
        ZeusTrial(job(), result_path=str(tmp_path / "shared" / "results")) as trial,
    ):
        command = f"{sys.executable} {tmp_path}/pod.py"
        env = trial.env | {"SECRET": str(secret), "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
        BashOperator(task_id="train", bash_command=command, env=env, append_env=False)
    dag_run = run(dag)
    assert dag_run.get_task_instance("zeus_tell").state == "success"
    ti = dag_run.get_task_instance("zeus_tell")
    cost = ti.xcom_pull(task_ids="zeus_tell", key="zeus_cost")
    (told,) = log_of(f"{dag_id}.train")
    home = Path(os.environ["AIRFLOW_HOME"])
    # In a process of its own: a file that is closed here drops this process's locks of it, SQLite's
    # included.
    stored = subprocess.run(["cat", *home.glob("*.db*")], check=False, capture_output=True).stdout
    return told, f"{cost} {told} {stored.decode('latin-1')}"


@pytest.mark.parametrize(
    "attack", [a if a in ALWAYS else pytest.param(a, marks=pytest.mark.slow) for a in ATTACKS]
)
def test_a_pod_reads_no_file_of_the_worker(
    run_dag: Any,  # noqa: F811
    tmp_path: Path,
    secret: Path,
    attack: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    code, reason = ATTACKS[attack]
    trial, left = attacked(
        run_dag, tmp_path, secret, f"zeus_attack_{list(ATTACKS).index(attack)}", code
    )
    assert (trial.state.value, trial.reason) == ("failed", reason)
    said = capfd.readouterr()
    for everywhere in (left, caplog.text, said.out, said.err):
        assert PLANTED not in everywhere


def test_what_a_spoilt_result_holds_is_in_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither its text, nor a field's name or value, nor the control characters of its name."""
    for number, text in enumerate(
        [
            "planted",
            '{"v": 1, "kind": "end", "start_id": "a", "planted": 1}',
            '{"v": 1, "kind": "planted", "start_id": "a"}',
            '{"v": 1, "kind": "end", "start_id": "a", "state": "planted"}',
            '{"v": 1, "kind": "end", "start_id": "a", "attempt": "planted"}',
            '{"v": "planted"}',
        ]
    ):
        (tmp_path / f"{number}.jsonl").write_text(text + "\n")
    (tmp_path / "5\r\x1b[31m\n2026 ERROR forged.jsonl").write_text("x\n")
    assert starts_in_folder(tmp_path) == []
    assert len(caplog.records) == 7, "each is named"
    assert "planted" not in caplog.text
    assert not any(c in r.getMessage() for r in caplog.records for c in "\r\x1b\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")
@pytest.mark.parametrize(
    ("folders", "files", "read"), [(ALICE, ALICE, 1), (ALICE, BOB, 0), (ALICE, 0, 0), (0, BOB, 0)]
)
def test_a_result_belongs_to_the_owner_of_its_folder(
    tmp_path: Path, folders: int, files: int, read: int
) -> None:
    """The user of the pod, who made the folder, is another than the worker's;
    files of a third user are not its own.
    """
    folder = tmp_path / "ti-1"
    folder.mkdir()
    (folder / "a.jsonl").write_text(ResultLine(kind="start", start_id="a").to_json() + "\n")
    os.chown(folder, folders, folders)
    os.chown(folder / "a.jsonl", files, files)
    assert len(starts_in_folder(folder)) == read


PIPES = """
import os, sys
from pathlib import Path
from airflow_provider_zeus.operators.collect import starts_in_folder
from airflow_provider_zeus.training.process.child import Follower
from airflow_provider_zeus.training.protocol.environment import Results
from airflow_provider_zeus.training.protocol.plan import Plan
folder = Path(sys.argv[1])
pipe = folder / "a.jsonl"
os.mkfifo(pipe)
def refused(read):
    try:
        return read() in ([], None)
    except Exception:
        return True
print(refused(lambda: starts_in_folder(folder)), refused(Follower(pipe).news))
print(refused(lambda: Plan.read(pipe)), refused(lambda: Results({"ZEUS_RESULT": str(pipe)}) and None))
"""


def test_no_reader_and_no_writer_waits_for_the_other_end_of_a_pipe(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PIPES, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == ["True"] * 4
