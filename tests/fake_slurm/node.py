"""The daemon of the fake cluster: runs one job after the other on a node with its own ``/tmp``.

Standard library only.

``node.py SPOOL SHARED [--own-tmp]``; with ``--own-tmp`` in a mount namespace of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from client import write

MS_BIND = 4096
ROOT = Path(__file__).parents[2]
KILL_WAIT_S = 2.0  # between SIGTERM and SIGKILL of a cancelled job; of Slurm 30


def own_tmp(folders: list[Path]) -> None:
    """Mount an empty ``/tmp`` for this process and its jobs,
    with the folders that lie on shared storage.
    """
    kept = {folder: os.open(folder, os.O_DIRECTORY) for folder in folders}
    mount("none", "/tmp", "tmpfs", 0)
    for folder, descriptor in kept.items():
        folder.mkdir(parents=True, exist_ok=True)
        # its path is hidden by now
        mount(f"/proc/self/fd/{descriptor}", str(folder), None, MS_BIND)


def mount(source: str, target: str, kind: str | None, flags: int) -> None:
    """mount(2); the command of that name would resolve the descriptor to its hidden path."""
    library = ctypes.CDLL(None, use_errno=True)
    words = [text if text is None else text.encode() for text in (source, target, kind)]
    if library.mount(*words, ctypes.c_ulong(flags), None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def run(spool: Path, job: dict[str, object]) -> None:
    """Run a job to its end, or until it is cancelled."""
    number = job["number"]
    folder = Path(str(job["folder"]))
    script = Path(f"/tmp/slurmd-script-{number}")
    script.write_text(str(job["script"]))
    script.chmod(0o700)
    if not folder.is_dir():
        print(
            f"slurmstepd: error: couldn't chdir to `{folder}': going to /tmp instead",
            file=sys.stderr,
        )
        folder = Path("/tmp")
    output = folder / str(job["output"]).replace("%j", str(number))
    output.parent.mkdir(parents=True, exist_ok=True)
    own = {
        "SLURM_JOB_ID": str(number),
        "SLURM_JOB_NAME": str(job["name"]),
        "SLURM_NNODES": str(job["nodes"]),
    }
    own["SLURM_JOB_NODELIST"] = ",".join(["localhost"] * int(str(job["nodes"])))
    environment = {**job["environment"], **own}  # type: ignore[dict-item]
    write(spool, {**job, "state": "RUNNING"})
    with open(output, "wb") as file:
        process = subprocess.Popen(
            [str(script), *map(str, job["arguments"])],  # type: ignore[call-overload]
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        cancelled = wait(spool, number, process)
        end(process.pid, signal.SIGKILL)  # what the script left behind
        status = process.wait()
    shutil.copyfile(output, spool / f"output-{number}")
    state = "CANCELLED" if cancelled else "FAILED" if status else "COMPLETED"
    code = f"0:{-status}" if status < 0 else f"{status}:0"
    status = 1 if status < 0 or cancelled else status
    write(spool, {**job, "state": state, "status": status, "code": code})


def wait(spool: Path, number: object, process: subprocess.Popen[bytes]) -> bool:
    """Wait for a job; returns whether it was cancelled."""
    cancelled_s: float | None = None
    while process.poll() is None:
        time.sleep(0.05)
        if cancelled_s is None and (
            (spool / f"cancel-{number}").exists() or (spool / "stop").exists()
        ):
            cancelled_s = time.monotonic()
            end(process.pid, signal.SIGTERM)
        elif cancelled_s is not None and time.monotonic() - cancelled_s > KILL_WAIT_S:
            end(process.pid, signal.SIGKILL)
    return cancelled_s is not None


def end(session: int, number: signal.Signals) -> None:
    """Signal all processes of a session: what a cgroup is to Slurm."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.getsid(int(name)) == session:
                os.kill(int(name), number)


def main() -> None:
    """Run jobs until the file ``stop`` appears."""
    spool = Path(sys.argv[1])
    shared = Path(sys.argv[2])
    if sys.argv[3:] == ["--own-tmp"]:
        # on each node: srun, this package, its Python
        installed = (spool.parent / "bin", ROOT, Path(sys.prefix))
        own_tmp([spool, shared, *(p for p in installed if p.is_relative_to("/tmp") and p.is_dir())])
    while not (spool / "stop").exists():
        for path in sorted(spool.glob("job-*.json")):
            job = json.loads(path.read_text())
            if job["state"] == "PENDING" and (spool / f"cancel-{job['number']}").exists():
                write(spool, {**job, "state": "CANCELLED", "status": 1})
            elif job["state"] == "PENDING" and not (spool / "drained").exists():
                run(spool, job)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
