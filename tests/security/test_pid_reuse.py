"""A pid that passes to a stranger between the look and the signal:
in a pid namespace whose next pid the test picks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.security.users import ROOT

HELPERS = """
import os, signal, subprocess, sys, time
from pathlib import Path

def sleeper():
    return subprocess.Popen(["sleep", "300"])

def reuse(pid):
    '''Another process with this pid.'''
    time.sleep(0.1)  # the kernel counts starts in hundredths of a second
    while True:
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        stranger = sleeper()
        if stranger.pid == pid:
            return stranger
        stranger.kill()
        stranger.wait()

def fate(process, most_s=0.5):
    until_s = time.monotonic() + most_s
    while not (dead := process.poll() is not None) and time.monotonic() < until_s:
        time.sleep(0.01)
    print("killed" if dead else "lives")
    process.kill()
    process.wait()

def guard(state_dir):
    from airflow_provider_zeus.power.limits.guardian_client import GuardianClient
    from airflow_provider_zeus.power.simulated.gpu import open_simulated
    gpu = open_simulated("simulated:v100/shufflenet", state_dir)
    return GuardianClient(state_dir, gpu.restore_record(), 250.0)
"""
Run = Callable[[str], list[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs code in a pid namespace of its own, not as its first process;
    the lines that it printed.
    """
    namespace = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    why = "not root" if os.geteuid() else ""
    if (
        not why
        and subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode
    ):
        why = "no new pid namespace is allowed here"
    if why:
        pytest.skip(f"the next pid cannot be picked: {why}")

    def run(code: str) -> list[str]:
        script = [
            sys.executable,
            "-c",
            f"{HELPERS}\nstate_dir = sys.argv[1]\n{code}",
            str(tmp_path),
        ]
        done = subprocess.run(
            [*namespace, "sh", "-c", '"$0" "$@"; exit $?', *script],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return run


@pytest.mark.parametrize("number", ["SIGTERM", "SIGKILL"])
def test_the_supervisor_spares_a_stranger_with_the_pid_of_one_it_saw(run: Run, number: str) -> None:
    code = f"""
from airflow_provider_zeus.training.process import supervisor
ended, stays = sleeper(), sleeper()
seen = supervisor._descendants()
ended.kill()
ended.wait()
stranger = reuse(ended.pid)
for process in seen:
    supervisor._signal(process, signal.{number})
fate(stays, 60)
fate(stranger)
"""
    assert run(code) == ["killed", "lives"], "what it saw and is still there gets the signal"


def test_the_trainer_spares_a_stranger_with_the_pid_of_its_guardian(run: Run) -> None:
    """The training collected the dead guardian, as one does that waits for any child."""
    code = """
watched = guard(state_dir)
pid = watched._process.pid
os.kill(pid, signal.SIGKILL)
assert os.waitpid(-1, 0)[0] == pid
stranger = reuse(pid)
print(watched.alive)
watched.finish()
fate(stranger)
print(len(list(Path(state_dir).glob("limit-*"))))
"""
    assert run(code) == ["False", "lives", "0"]


@pytest.mark.slow
def test_a_guardian_that_survives_sigkill_is_not_waited_for_without_end(run: Run) -> None:
    """As one does that hangs in the driver.

    The first process of a namespace stands for it: SIGKILL does not end it.
    """
    code = """
from airflow_provider_zeus.power.limits import guardian_client
guardian_client._FINISH_S = 0.2
watched = guard(state_dir)
real, watched._pidfd = watched._pidfd, os.pidfd_open(1)
watched.finish()
print("went on")
signal.pidfd_send_signal(real, signal.SIGKILL)
"""
    assert run(code) == ["went", "on"]
