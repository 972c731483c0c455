"""A Slurm cluster of one node on this host, for tests: ``sbatch``, ``scancel``,
``squeue``, ``sacct`` and the daemon.

Behaviour as documented for Slurm, as far as a training sees it: jobs wait in a queue, one runs at a
time; a job gets the environment that ``--export`` names and its variables ``SLURM_*``; its output
goes to ``slurm-N.out`` on the node; ``sbatch --wait`` ends with the job's exit status, or 1 after a
signal, and leaves its job alone when it is killed itself; ``scancel`` sends SIGTERM to all
processes of the job, and SIGKILL later; all processes of a job end with its script; ``squeue``
knows a job until it is forgotten some time after its end, ``sacct`` also after that, if accounts
are kept. The node has its own ``/tmp`` where the kernel allows that; the folder ``shared`` is on
both. The fake looks at its jobs ten times a second, Slurm every few seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BIN = """#!{python} -IS
import sys
sys.path.insert(0, {here!r})
import client
sys.exit(client.{name}({spool!r}))
"""
SHELL_COMMANDS = {  # of a job with several nodes, which are all this host
    "srun": (
        'pids=()\nfor node in $(seq "$SLURM_NNODES"); do "$@" & pids+=($!); done\n'
        'status=0; for pid in "${pids[@]}"; do wait "$pid" || status=$?; done; exit $status\n'
    ),
    "scontrol": (
        'if [ "$1 $2" = "show hostnames" ]; then for node in ${3//,/ }; do echo "$node"; done; fi\n'
    ),
}
IN_NAMESPACE = ["unshare", "--map-root-user", "--mount", "--fork", "--kill-child"]


class FakeSlurm:
    """A running cluster.

    ``bin`` holds its commands, ``shared`` is the folder that worker and node share.
    """

    def __init__(self, folder: Path) -> None:
        self.spool = folder / "spool"
        self.bin = folder / "bin"
        self.shared = folder / "shared"
        for each in (self.spool, self.bin, self.shared):
            each.mkdir()
        for name in ("sbatch", "scancel", "squeue", "sacct"):
            text = BIN.format(
                python=sys.executable, here=str(HERE), name=name, spool=str(self.spool)
            )
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)
        for name, text in SHELL_COMMANDS.items():
            (self.bin / name).write_text(f"#!/bin/bash\n{text}")
            (self.bin / name).chmod(0o755)
        self.has_own_tmp = (
            subprocess.run([*IN_NAMESPACE, "true"], capture_output=True, check=False).returncode
            == 0
        )
        node = [sys.executable, "-IS", str(HERE / "node.py"), str(self.spool), str(self.shared)]
        if self.has_own_tmp:
            node = [*IN_NAMESPACE, *node, "--own-tmp"]
        self._node = subprocess.Popen(node, start_new_session=True)

    def jobs(self) -> list[dict[str, Any]]:
        """The jobs in the order of their submission."""
        return [json.loads(path.read_text()) for path in sorted(self.spool.glob("job-*.json"))]

    def wait_for(self, *states: str, timeout_s: float = 60.0) -> dict[str, Any]:
        """Wait until the newest job is in one of the states; return it."""
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            if (jobs := self.jobs()) and jobs[-1]["state"] in states:
                return jobs[-1]
            time.sleep(0.05)
        raise AssertionError(f"no job became {states}: {self.jobs()}")

    def drain(self) -> None:
        """Start no further job until :meth:`resume`."""
        (self.spool / "drained").touch()

    def resume(self) -> None:
        """Start jobs again."""
        (self.spool / "drained").unlink()

    def looks(self) -> int:
        """How often ``squeue`` was asked."""
        path = self.spool / "looks"
        return len(path.read_text().split()) if path.exists() else 0

    def forget(self, number: int, *, accounts: bool) -> None:
        """Have ``squeue`` no longer know a job that has ended; ``sacct`` neither,
        if no accounts are kept.
        """
        (self.spool / f"purged-{number}").touch()
        if not accounts:
            (self.spool / "no-accounts").touch()

    def output(self, number: int) -> str:
        """What a job wrote; kept from the node's file when the job ended."""
        return (self.spool / f"output-{number}").read_text()

    def stop(self) -> None:
        """End the node and its job."""
        (self.spool / "stop").touch()
        try:
            self._node.wait(20)
        except subprocess.TimeoutExpired:
            self._node.kill()
            self._node.wait()
