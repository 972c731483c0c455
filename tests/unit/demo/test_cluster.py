"""The cluster's account of its trials finds what is wrong,
and its environment keeps to this machine.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.model.trial import State, Trial, TrialKey
from demo.cluster.account import problems, row, table
from demo.cluster.memory import Peaks
from demo.cluster.scenario import Played
from demo.cluster.settings import DAGS, JOBS, SLICES, Options, Site, free_ports
from demo.settings import DemoError
from tests.unit.demo.rows import trial

PLAYED = Played({"paper": ["r1"]}, states={("paper", "r1"): "success"}, cut_short=[trial(9)])
SAVED = {("paper", "r1", index) for index in range(SLICES)}


def of(number: int, index: int, state: State = State.CONVERGED, **changes: Any) -> Trial:
    """A trial of one mapped task of the one run."""
    found = trial(number, state=state, start_id=f"start-{number}", **changes)
    return replace(
        found, key=TrialKey(f"ti-{number}"), origin=replace(found.origin, map_index=index)
    )


def good() -> list[Trial]:
    """Three recurrences, the second one trained twice since its worker died."""
    return [of(1, 0), of(2, 1, State.ABANDONED), of(3, 2), of(4, 1)]


def test_a_complete_log_has_no_problem() -> None:
    assert problems({"paper": good()}, PLAYED, 4000.0, SAVED) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda log: log[:3], "('paper', 'r1', 1) kept 0 models"),
        (lambda log: [*log, of(5, 0)], "('paper', 'r1', 0) kept 2 models"),
        (lambda log: [*log[:3], replace(log[3], number=3)], "numbers of attempts are not 1 to 4"),
        (lambda log: [*log[:3], replace(log[3], number=5)], "numbers of attempts are not 1 to 4"),
        (lambda log: [*log[:3], replace(log[3], key=log[2].key)], "1 attempt twice in the log"),
        (lambda log: [replace(log[0], state=State.RUNNING), *log[1:]], "attempt 1 is still open"),
        (lambda log: [*log, of(5, 7, State.FAILED)], "attempt 5 belongs to no run"),
    ],
)
def test_what_is_wrong_with_a_log_is_said(
    spoil: Callable[[list[Trial]], list[Trial]], said: str
) -> None:
    assert any(said in line for line in problems({"paper": spoil(good())}, PLAYED, 1e6, SAVED))


def test_energy_that_no_gpu_drew_is_counted_twice() -> None:
    (said,) = problems({"paper": good()}, PLAYED, 3900.0, SAVED)
    assert re.findall(r"\d+ J", said) == ["4000 J", "3900 J"]


def test_a_lost_model_a_failed_run_and_a_worker_that_lived_are_problems() -> None:
    played = Played(PLAYED.runs, states={("paper", "r1"): "failed"})
    failed, lost, alive = problems({"paper": good()}, played, 1e6, SAVED - {("paper", "r1", 2)})
    assert failed == "paper r1 ended as failed"
    assert "('paper', 'r1', 2)" in lost
    assert "no worker was killed" in alive


def test_the_table_counts_attempts_by_state() -> None:
    found = row("paper", good(), SLICES)
    assert (found.recurrences, found.models, sum(found.states.values())) == (3, 3, 4)
    assert (found.states[State.ABANDONED], found.energy_j) == (1, 4000.0)
    head, line = table([found])
    assert head.split()[:4] == ["job", "runs", "models", "attempts"]
    assert line.split() == [
        "paper",
        "3",
        "3",
        "4",
        "3",
        "0",
        "0",
        "0",
        "1",
        "1.11",
        "Wh",
        "32",
        "s",
    ]


def test_all_of_it_stays_on_this_machine(tmp_path: Path) -> None:
    site = Site.fresh(tmp_path)
    env = site.env("worker-1")
    assert env["AIRFLOW__API__HOST"] == "127.0.0.1"
    urls = [value for name, value in env.items() if name.startswith("AIRFLOW_") and "://" in value]
    assert len(urls) >= 5
    assert all("127.0.0.1" in url for url in urls)
    assert env["CLUSTER_STATE_DIR"] != site.env("worker-2")["CLUSTER_STATE_DIR"]
    assert site.password not in repr(site)
    assert len(set(free_ports(5))) == 5


@pytest.mark.parametrize("value", ["0", "13", "many"])
def test_a_wrong_number_of_runs_is_named(value: str) -> None:
    with pytest.raises(DemoError, match=f"CLUSTER_RUNS={value}: "):
        Options.read({"CLUSTER_RUNS": value})


def test_each_training_of_a_worker_has_a_gpu_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(DAGS))
    sys.modules.pop("gpus", None)
    import gpus

    from demo.cluster.settings import GPUS

    monkeypatch.setattr(gpus, "_held", [])
    assert gpus.GPUS == GPUS
    assert [gpus.take(tmp_path).name for _ in range(GPUS)] == ["gpu-1", "gpu-2"]
    with pytest.raises(TimeoutError, match="came free"):
        gpus.take(tmp_path, wait_s=0.3)
    gpus._held.pop(0).close()  # that training ends
    assert gpus.take(tmp_path).name == "gpu-1"


def test_the_dags_are_the_jobs() -> None:
    text = (DAGS / "cluster_weather.py").read_text(encoding="utf-8")
    assert all(f'    "{job}": ZeusJob(' in text for job in JOBS)
    assert f"offset={list(range(SLICES))}" in text


def test_memory_is_of_living_processes() -> None:
    peaks = Peaks()
    peaks.note({os.getpid(): "tests", 2**22 + 1: "gone"})
    assert peaks.by_kind_mib["tests"] > 5
    assert peaks.by_kind_mib.get("gone", 0.0) == 0.0
    assert peaks.total_mib >= peaks.by_kind_mib["tests"]
