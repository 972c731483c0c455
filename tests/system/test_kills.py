"""Every way for a training to die, at every stage: the limit found is back within 2 s,
and nothing stays behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
from tests import fake_nvml
from tests.fake_nvml import FakeNvml
from tests.system.killing import ROOT, Host, MemoryLimit, is_alive, within_s

BACK_S = 2.0
FOUND_W = 225.0  # below the highest, as an administrator may have set it
STAGES = ["before profiling", "during profiling", "between epochs", "after the last epoch"]
HOWS = ["SIGTERM", "SIGKILL", "memory limit", "container's memory limit"]
WHOS = ["trainer", "task", "supervisor"]
DEVICES = ["fake NVML", "simulated"]
CELLS = [
    (who, how, stage, device)
    for who in WHOS
    for how in HOWS
    for stage in STAGES
    for device in DEVICES
]
# each of whom, how, when and of which GPU once; all of them nightly, with their seconds
IN_A_CHECK = {
    ("task", "SIGTERM", "during profiling", "fake NVML"),
    ("trainer", "SIGKILL", "between epochs", "fake NVML"),
    ("supervisor", "SIGKILL", "between epochs", "fake NVML"),
    ("supervisor", "SIGTERM", "after the last epoch", "simulated"),
    ("task", "memory limit", "between epochs", "fake NVML"),
    ("task", "container's memory limit", "before profiling", "simulated"),
}

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(180)]
table: dict[tuple[str, str, str], dict[str, str]] = {}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    if fake_nvml.compiler() is None:
        pytest.skip("no C compiler (cc, gcc, clang): the fake libnvidia-ml.so.1 cannot be built")
    host = Host(tmp_path_factory.mktemp("airflow"))
    yield host
    host.end()
    print_table()


@pytest.fixture
def memory_limit() -> Iterator[Callable[[], MemoryLimit]]:
    made: list[MemoryLimit] = []

    def make() -> MemoryLimit:
        try:
            made.append(MemoryLimit())
        except OSError as error:
            pytest.skip(
                f"no memory cgroup may be made here ({error}), so the kernel cannot kill for want"
                " of memory"
            )
        return made[-1]

    yield make
    for limit in made:
        limit.remove()


class Cell:
    """One training that has come to its stage, its sibling and its workers."""

    def __init__(self, host: Host, folder: Path, who: str, device: str, stage: str) -> None:
        self.folder, self.mark, self.state_dir = folder, uuid.uuid4().hex, folder / "state"
        self.state_dir.mkdir()
        self._most_w = 0.0
        self.env = env = {"AIRFLOW__ZEUS__STATE_DIR": str(self.state_dir), "ZEUS_TEST": self.mark}
        if device == "simulated":
            name = "simulated:v100/bert_sa"
            self.gpu = SimulatedGpu(
                "v100", load="bert_sa", state_file=self.state_dir / "simulated-v100-bert_sa.gpu"
            )
            self.gpu.set_limit_w(FOUND_W)
            self.limit_w = self.gpu.limit_w
        else:
            name = "auto"
            self.nvml = FakeNvml(folder / "nvml.state")
            self.card = self.nvml.add(limit_w=FOUND_W, tick_s=0.002, settle_s=0.002)
            self.limit_w = lambda: self.card.limit_w
            env["FAKE_NVML_STATE"] = str(folder / "nvml.state")
        env["ZEUS_TEST_DEVICE"] = name
        kind = "trainer" if who == "trainer" else "task"
        self.forked = host.fork(cell=str(folder), who=kind, device=name, stage=stage, env=env)
        self.told = self._wait_until_there()
        self.victim = self.forked if who == "supervisor" else self.told["pid"]
        # what Airflow sends to a task's group
        command = ["sh", "-c", "trap '' TERM INT; exec sleep 600"]
        self.sibling = subprocess.Popen(command, process_group=self.told["pgid"])
        time.sleep(0.05)

    def _wait_until_there(self) -> Any:
        until_s = time.monotonic() + within_s(40)
        while not (self.folder / "there").exists():
            assert time.monotonic() < until_s, (self.folder / "log").read_text()[-4000:]
            assert is_alive(self.forked), (self.folder / "log").read_text()[-4000:]
            self.watch()
            time.sleep(0.002)
        return json.loads((self.folder / "there").read_text())

    def watch(self) -> None:
        self._most_w = max(self._most_w, self.limit_w())

    @property
    def most_w(self) -> float:
        """The highest limit that was ever set, or seen."""
        return max([self._most_w, *(self.nvml.sets if hasattr(self, "nvml") else [])])

    def guardians(self) -> list[int]:
        """Processes of ours that this training started, its workers apart."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if "guardian.py" in " ".join(
                    process.cmdline()
                ) and self.mark in process.environ().get("ZEUS_TEST", ""):
                    found.append(process.pid)
        return found

    def processes(self) -> list[int]:
        """All that a container would hold: the supervisor, the training, its workers,
        the guardian.
        """
        return [
            *dict.fromkeys(
                [self.forked, self.told["pid"], *self.told["workers"], *self.guardians()]
            )
        ]

    def clean(self) -> None:
        for pid in (*self.told["workers"], self.told["pid"], self.forked):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.sibling.kill()
        self.sibling.wait()


def wait(cell: Cell, is_so: Callable[[], bool], promise_s: float, what: str) -> float:
    """Seconds until it is so."""
    start_s = time.monotonic()
    bound_s = within_s(promise_s)
    while not is_so():
        log = (cell.folder / "log").read_text()[-3000:]
        assert time.monotonic() - start_s < bound_s, f"waited {bound_s} s in vain for {what}; {log}"
        cell.watch()
        time.sleep(0.002)
    return time.monotonic() - start_s


@pytest.mark.parametrize(
    ("who", "how", "stage", "device"),
    [
        pytest.param(*c, id="-".join(c), marks=pytest.mark.slow if c in IN_A_CHECK else ())
        for c in CELLS
    ],
)
def test_the_limit_found_comes_back(
    host: Host, tmp_path: Path, memory_limit, who: str, how: str, stage: str, device: str
) -> None:
    limit = memory_limit() if how.endswith("memory limit") else None
    cell = Cell(host, tmp_path, who, device, stage)
    try:
        changed = stage != "before profiling"
        assert (cell.limit_w() < FOUND_W) == (len(cell.guardians()) == 1) == changed
        if limit is not None:
            for pid in cell.processes() if how.startswith("container") else [cell.victim]:
                limit.hold(pid)
            (tmp_path / f"eat-{'supervisor' if who == 'supervisor' else 'task'}").touch()
        else:
            os.kill(cell.victim, getattr(signal, how))
        killed_s = time.monotonic()
        wait(
            cell,
            lambda: not is_alive(cell.victim) or not is_alive(cell.told["pid"]),
            20,
            "the death",
        )
        wait(cell, lambda: not is_alive(cell.told["pid"]), 20, "the end of the training")
        ended_s = time.monotonic()
        back_s = wait(cell, lambda: cell.limit_w() == FOUND_W, BACK_S, "the limit found")
        workers = [is_alive(pid) for pid in cell.told["workers"]]
        wait(cell, lambda: not cell.guardians(), BACK_S, "the guardian's end")
        assert list(cell.state_dir.glob("limit-*")) == []
        assert cell.most_w == FOUND_W, "never above the limit found"
        assert cell.sibling.poll() is None, "the sibling was killed"
        # whom the kernel kills for want of memory in a whole container, and how many, is its own
        # choice
        whole = how.startswith("container")
        assert all(workers) or whole, "the workers were alive when it came back"
        assert limit is None or limit.kills == 1 or (whole and limit.kills > 1), (
            "it was the kernel that killed"
        )
        seen = f"{ended_s - killed_s:.2f} + {back_s:.2f} s"
        table.setdefault((device, who, how), {})[stage] = seen if changed else "as found"
    finally:
        cell.clean()


@pytest.mark.parametrize("device", [pytest.param(DEVICES[0], marks=pytest.mark.slow), *DEVICES[1:]])
def test_a_container_that_dies_as_a_whole_is_made_good_by_the_next_training(
    host: Host, tmp_path: Path, device: str
) -> None:
    """As by ``memory.oom.group``, or where its first process ends: the guardian goes too,
    its record stays.
    """
    cell = Cell(host, tmp_path, "task", device, "during profiling")
    try:
        guardian = cell.guardians()
        assert len(guardian) == 1
        for pid in (*guardian, *cell.processes()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait(cell, lambda: not any(map(is_alive, cell.processes())), 20, "the end of all")
        assert cell.limit_w() < FOUND_W
        code = (
            "import sys; from airflow_provider_zeus.power.limits import record;"
            " record.restore_orphans(sys.argv[1])"
        )
        path = {
            "LD_LIBRARY_PATH": (
                f"{fake_nvml.compiled().parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"
            )
        }
        next_one = [sys.executable, "-c", code, str(cell.state_dir)]
        subprocess.run(next_one, env={**os.environ, **path, **cell.env}, cwd=ROOT, check=True)
        assert cell.limit_w() == FOUND_W
        assert list(cell.state_dir.glob("limit-*")) == []
    finally:
        cell.clean()


def print_table() -> None:
    """What was seen: from the kill to the training's end + from there to the limit found."""
    print("\n| device | killed | by | " + " | ".join(STAGES) + " |\n|" + "---|" * (3 + len(STAGES)))
    for key, row in sorted(table.items()):
        print(f"| {' | '.join(key)} | {' | '.join(row.get(stage, '-') for stage in STAGES)} |")
    if not (MemoryLimit.V2 / "cgroup.controllers").exists():
        print(
            "Killed by memory.oom.group: not here, cgroup version 1 has none; SIGKILL to all of a"
            " container instead."
        )
