"""``make demo`` itself, with a real Airflow, in a copy of the checkout."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import airflow.sdk
import psutil
import pytest

from demo.servers import free_port

ROOT = Path(__file__).parents[2]
if not hasattr(airflow.sdk, "PartitionedAtRuntime"):
    pytest.skip("the demo needs Airflow 3.3", allow_module_level=True)
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(2400)]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The demo and its DAGs in a folder of their own, so that the developer's own demo stays as it is."""
    for name in ("demo", "dags"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def start(copy: Path, slices: int, module: str = "demo") -> subprocess.Popen[str]:
    env = os.environ | {
        "DEMO_SLICES": str(slices),
        "DEMO_EXIT": "1",
        "DEMO_PORT": str(free_port(18080)),
        "PYTHONPATH": f"{copy}{os.pathsep}{ROOT}",
    }
    return subprocess.Popen(
        [sys.executable, "-m", module],
        cwd=copy,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def demo(copy: Path, slices: int, module: str = "demo") -> str:
    """The output of a demo that must succeed."""
    process = start(copy, slices, module)
    output, _ = process.communicate(timeout=1100)
    assert process.returncode == 0, output
    return output


def query(copy: Path, sql: str) -> list[tuple[str, ...]]:
    with sqlite3.connect(copy / ".demo" / "airflow" / "airflow.db") as connection:
        return connection.execute(sql).fetchall()


def started_in(copy: Path) -> list[psutil.Process]:
    """Living processes whose working directory is the copy."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(copy) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    return found


def test_it_learns_shows_the_costs_goes_on_and_leaves_nothing_running(copy: Path) -> None:
    output = demo(copy, 2)
    assert [
        line.split()[1] for line in output.splitlines() if line.startswith(("  1/2", "  2/2"))
    ] == [
        "2013-W13",
        "2013-W14",
    ]
    assert "2 runs against" in output
    first, second = (
        line for line in output.splitlines() if line.startswith(("1. One line", "2. A second word"))
    )
    assert "Wh" in first
    assert "% energy" in second
    assert "SIMULATED V100" in output
    assert "Break-even" in output or "Not even" in output
    assert started_in(copy) == []
    cached = {
        path.name: path.stat().st_mtime_ns for path in (copy / ".demo" / "baseline").glob("*.json")
    }
    assert set(cached) == {"2013-W13.json", "2013-W14.json"}

    again = demo(copy, 1)
    assert "  1/1  2013-W15" in again
    assert "3 runs against" in again, "the table shows all runs"
    assert "making Airflow's database" not in again
    after = {
        path.name: path.stat().st_mtime_ns for path in (copy / ".demo" / "baseline").glob("*.json")
    }
    assert {name: after[name] for name in cached} == cached, "the baseline is not trained twice"
    partitions_came_one_per_run_and_were_trained_in_order_one_at_a_time(copy)


def partitions_came_one_per_run_and_were_trained_in_order_one_at_a_time(copy: Path) -> None:
    emitted = query(copy, "SELECT source_run_id, partition_key FROM asset_event ORDER BY id")
    assert len({run for run, _ in emitted}) == len(emitted) == 3
    trained = query(
        copy,
        "SELECT partition_key, start_date, end_date, state FROM dag_run "
        "WHERE dag_id = 'zeus_weather_retrain' ORDER BY start_date",
    )
    assert (
        [key for key, *_ in trained]
        == [key for _, key in emitted]
        == ["2013-W13", "2013-W14", "2013-W15"]
    )
    assert {state for *_, state in trained} == {"success"}
    assert all(before[2] <= after[1] for before, after in pairwise(trained)), "no two at once"


def test_a_killed_demo_stops_all_that_it_started_and_a_reset_forgets_everything(copy: Path) -> None:
    process = start(copy, 3)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Airflow is up"):
            break
    recorded = json.loads((copy / ".demo" / "processes.json").read_text(encoding="utf-8"))
    assert len(recorded) >= 3
    process.send_signal(signal.SIGTERM)
    rest = process.stdout.read()
    assert process.wait(180) == 130
    assert "Stopped." in rest
    until_s = time.monotonic() + 30
    while started_in(copy) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert started_in(copy) == []
    done = subprocess.run(
        [sys.executable, "-m", "demo.reset"], cwd=copy, capture_output=True, text=True, check=False
    )
    assert (done.returncode, (copy / ".demo").exists()) == (0, False), done.stderr


def test_the_demo_of_levers_shows_one_of_each(copy: Path) -> None:
    output = demo(copy, 1, "demo.levers")
    runs = {
        line.split()[1]: line
        for line in output.splitlines()
        if line.startswith("  ") and "/3  2013-W" in line
    }
    assert list(runs) == ["2013-W14", "2013-W15", "2013-W16"]
    assert "not needed" in runs["2013-W15"]
    assert "at 120 g CO2e/kWh instead of " in runs["2013-W16"]
    assert all("Deadline: " in runs[week] for week in ("2013-W14", "2013-W16"))
    levers = output.split("What saved it:")[1].split("What comes next")[0]
    assert [line.split("  ")[1] for line in levers.splitlines()[2:] if line.strip()] == [
        "Batch size",
        "Power limit",
        "Runs not needed",
        "Start",
        "Together",
    ]
    assert "batch size" in output.split("What comes next")[1]
    assert started_in(copy) == []
