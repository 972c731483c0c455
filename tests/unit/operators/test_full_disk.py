"""A full disk where Airflow cannot be reached either: figures in the log, no half file, and a way to enter them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import airflow_provider_zeus
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store.pending import PREFIX, drain
from airflow_provider_zeus.store.sql.store import SqlStore
from airflow_provider_zeus.training.protocol.events import ResultLine, ResultWriter
from tests.full_disk import KINDS, FullDisk, full_disk
from tests.result_files import read_result
from tests.unit.store.store_kit import DictPort

ROOT = Path(airflow_provider_zeus.__file__).parents[1]
TRAINING = """
import logging, sys
from pathlib import Path
from airflow_provider_zeus.operators.result_reporter import ResultReporter
from airflow_provider_zeus.training.protocol.environment import Results
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.store.store_kit import DictPort, began_alone

logging.basicConfig(format="%(message)s")
folder, where = Path(sys.argv[1]), sys.argv[2]
port = DictPort()
port.down = True  # Airflow is away, too
first = began_alone(1, opened_at=1000.0)
if where == "task":
    sink = ResultReporter(None, port, first, lease_s=90, state_dir=folder / "state")
else:
    sink = Results({"ZEUS_RESULT": str(folder / "result.jsonl"), "ZEUS_XCOM": str(folder / "return.json")})
spec = {**first.spec, "device": "simulated:v100/shufflenet"}
plan = Plan(job_id="d.train", ti_id="ti-1", number=0, first_attempt=1, spec=spec, attempts=(first.planned,),
            heartbeat_s=60.0, state_dir=str(folder))

def train(run):
    for epoch in run.epochs():
        for _ in range(200):
            run.step(32)
        run.report(accuracy=0.9)
    print(run.progress.live.snapshot.energy_j)
    return {"model": "kept"}

assert ZeusRun.from_plan(plan, sink=sink).train(train) == {"model": "kept"}
if where != "task":
    sink.hand_over({"model": "kept"})
"""


@pytest.fixture(params=KINDS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FullDisk]:
    with full_disk(request.param, tmp_path / "disk") as disk:
        yield disk


def train(disk: FullDisk, where: str) -> tuple[float, list[dict[str, Any]], list[str]]:
    """What a training drew [J], the JSON documents in its log, and the lines that they stand in."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", TRAINING, str(disk.folder), where]
    done = subprocess.run(
        command, env=environment, preexec_fn=disk.preexec, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    left = [p for p in disk.folder.rglob("*") if p.is_file() and p.name != "filler"]
    assert left == [], "no empty file, no half one"
    lines = [line for line in done.stderr.splitlines() if '"energy_j"' in line]
    return float(done.stdout), [json.loads(line[line.index("{") :]) for line in lines], lines


def test_the_cost_of_a_task_stands_in_the_log_and_can_be_entered_by_hand(
    disk: FullDisk, tmp_path: Path
) -> None:
    energy_j, documents, lines = train(disk, "task")
    assert len(documents) == 1
    assert all(
        said in lines[0] for said in ("d.train", "batch size 32", "converged", f"{energy_j} J")
    )
    assert documents[0]["report"]["observation"]["energy_j"] == energy_j
    state_dir = tmp_path / "state"
    state_dir.mkdir()
    (state_dir / f"{PREFIX}-ti-1-1.json").write_text(lines[0][lines[0].index("{") :])
    store = SqlStore(f"sqlite:///{tmp_path / 'zeus.db'}", create=True)
    assert drain(store, DictPort(), None, state_dir=state_dir) == 1
    (trial,) = store.trials("d.train")
    assert (trial.state, trial.observation.energy_j) == (State.CONVERGED, energy_j)


def test_the_cost_of_a_script_stands_in_the_log(disk: FullDisk) -> None:
    energy_j, documents, _ = train(disk, "script")
    assert [d["kind"] for d in documents] == ["end"]
    assert (documents[0]["state"], documents[0]["observation"]["energy_j"]) == (
        "converged",
        energy_j,
    )


def test_a_result_file_takes_all_lines_once_there_is_room(tmp_path: Path) -> None:
    with full_disk("tmpfs", tmp_path / "disk") as disk:
        path = disk.folder / "result.jsonl"
        write = ResultWriter(path)
        with pytest.raises(OSError, match="No space left"):
            write(ResultLine(kind="start", start_id="a"))
        assert not path.exists()
        disk.make_room()
        write(ResultLine(kind="start", start_id="a"))
        write(ResultLine(kind="final", start_id="a"))
        write.close()
        assert [line.kind for line in read_result(path)] == ["start", "final"]
