"""The commands ``sbatch``, ``scancel``, ``squeue`` and ``sacct`` of the fake cluster.

Standard library only.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shlex
import sys
import time
from pathlib import Path

ENDED = ("COMPLETED", "FAILED", "CANCELLED")


def options_of(words: list[str]) -> argparse.Namespace:
    """Options of a command line, or of the lines ``#SBATCH`` of a script; ``rest``:
    the script and its arguments.
    """
    parser = argparse.ArgumentParser(prog="sbatch", allow_abbrev=False)
    for flags in (
        ("-W", "--wait"),
        ("--parsable",),
        ("-Q", "--quiet"),
        ("--no-requeue",),
        ("--requeue",),
    ):
        parser.add_argument(*flags, action="store_true")
    for flags in (
        ("--export",),
        ("-D", "--chdir"),
        ("-o", "--output"),
        ("-J", "--job-name"),
        ("--wrap",),
    ):
        parser.add_argument(*flags)
    for flags in (
        ("-t", "--time"),
        ("-p", "--partition"),
        ("--gres",),
        ("-G", "--gpus"),
        ("-N", "--nodes"),
    ):
        parser.add_argument(*flags)
    parser.add_argument("--ntasks-per-node")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    return parser.parse_args(words)


def environment_of(export: str, submit: dict[str, str]) -> dict[str, str]:
    """The environment that a job gets of its submitter's, by ``--export``."""
    slurms = {name: value for name, value in submit.items() if name.startswith("SLURM_")}
    login = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": os.path.expanduser("~"),
        "SHELL": "/bin/sh",
    }
    if export.upper() == "ALL":
        return submit
    if export.upper() in ("NONE", "NIL"):
        return slurms | (login if export.upper() == "NONE" else {})
    found = login | slurms
    for word in export.split(","):
        name, given, value = word.partition("=")
        if word.upper() == "ALL":
            found = found | submit
        elif given:
            found[name] = value
        elif name in submit:
            found[name] = submit[name]
    return found


def sbatch(spool: str) -> int:
    """Submit a job; with ``--wait`` wait for its end and return its status."""
    line = options_of(sys.argv[1:])
    if line.wrap is None and not line.rest:
        print("sbatch: error: no script is given", file=sys.stderr)
        return 1
    if line.wrap is not None and line.rest:
        print(
            "sbatch: error: Script arguments are not permitted with --wrap option", file=sys.stderr
        )
        return 1
    if line.wrap is not None:
        script = f"#!/bin/sh\n{line.wrap}\n"
        name = "wrap"
        arguments = []
    else:
        try:
            script = Path(line.rest[0]).read_text()
            name = Path(line.rest[0]).name
            arguments = line.rest[1:]
        except OSError:
            print(f"sbatch: error: Unable to open file {line.rest[0]}", file=sys.stderr)
            return 1
    if not script.startswith("#!"):
        print("sbatch: error: This does not look like a batch script.", file=sys.stderr)
        return 1
    header = [
        text.removeprefix("#SBATCH") for text in script.splitlines() if text.startswith("#SBATCH")
    ]
    inside = options_of([word for text in header for word in shlex.split(text)])
    submit = {**os.environ, "SLURM_SUBMIT_DIR": os.getcwd()}
    export = line.export or os.environ.get("SBATCH_EXPORT") or inside.export or "ALL"
    number = _store(
        spool,
        {
            "state": "PENDING",
            "status": None,
            "name": line.job_name or inside.job_name or name,
            "script": script,
            "arguments": arguments,
            "environment": environment_of(export, submit),
            "folder": line.chdir or inside.chdir or os.getcwd(),
            "output": line.output or inside.output or "slurm-%j.out",
            "nodes": int(line.nodes or inside.nodes or 1),
        },
    )
    if not (line.quiet or inside.quiet):
        print(
            number if line.parsable or inside.parsable else f"Submitted batch job {number}",
            flush=True,
        )
    if not (line.wait or inside.wait or "SBATCH_WAIT" in os.environ):
        return 0
    while (job := _read(spool, number))["state"] not in ENDED:
        time.sleep(0.1)
    return int(job["status"])


def scancel(spool: str) -> int:
    """Ask for the end of a job."""
    parser = argparse.ArgumentParser(prog="scancel")
    parser.add_argument("-M", "--clusters")
    parser.add_argument("number", type=int)
    options = parser.parse_args()
    try:
        _read(spool, options.number)
    except FileNotFoundError:
        print(
            f"scancel: error: Kill job error on job id {options.number}: Invalid job id specified",
            file=sys.stderr,
        )
        return 1
    (Path(spool) / f"cancel-{options.number}").touch()
    return 0


def squeue(spool: str) -> int:
    """Print the state of a job, also of one that ended not long ago."""
    parser = argparse.ArgumentParser(prog="squeue")
    parser.add_argument("-M", "--clusters")
    parser.add_argument("--noheader", action="store_true", required=True)
    parser.add_argument("--states", choices=["all"], required=True)
    parser.add_argument("--format", choices=["%T"], required=True)
    parser.add_argument("--jobs", type=int, required=True)
    options = parser.parse_args()
    with open(Path(spool) / "looks", "a") as looks:
        looks.write(f"{options.jobs}\n")
    if (Path(spool) / "down").exists():
        print("slurm_load_jobs error: Unable to contact slurm controller", file=sys.stderr)
        return 1
    try:
        job = _read(spool, options.jobs)
    except FileNotFoundError:
        job = None
    if job is None or (Path(spool) / f"purged-{options.jobs}").exists():
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1
    print(job["state"])
    return 0


def sacct(spool: str) -> int:
    """Print state and exit code of a job by the accounts."""
    parser = argparse.ArgumentParser(prog="sacct")
    parser.add_argument("-M", "--clusters")
    parser.add_argument("--noheader", action="store_true", required=True)
    parser.add_argument("--parsable2", action="store_true", required=True)
    parser.add_argument("--allocations", action="store_true", required=True)
    parser.add_argument("--format", choices=["State,ExitCode"], required=True)
    parser.add_argument("--jobs", type=int, required=True)
    options = parser.parse_args()
    if (Path(spool) / "no-accounts").exists():
        print("Slurm accounting storage is disabled", file=sys.stderr)
        return 1
    try:
        job = _read(spool, options.jobs)
    except FileNotFoundError:
        return 0
    state = job["state"]
    ended_by = " by 1000" if state == "CANCELLED" else ""
    code = job["code"] if state == "FAILED" else "0:0"
    print(f"{state}{ended_by}|{code}")
    return 0


def _store(spool: str, job: dict[str, object]) -> int:
    with open(Path(spool) / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        number = 1 + len(list(Path(spool).glob("job-*.json")))
        write(Path(spool), {"number": number, **job})
    return number


def _read(spool: str, number: int) -> dict[str, object]:
    found: dict[str, object] = json.loads((Path(spool) / f"job-{number:04d}.json").read_text())
    return found


def write(spool: Path, job: dict[str, object]) -> None:
    """Write a job's record whole."""
    half = spool / f".job-{job['number']}"
    half.write_text(json.dumps(job))
    half.replace(spool / f"job-{job['number']:04d}.json")
