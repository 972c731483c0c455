"""Python code in processes of other users of this host; only root can start them."""

from __future__ import annotations

import atexit
import os
import shlex
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

from airflow_provider_zeus.private_files import SHARED_GROUP

ROOT = Path(__file__).parents[2]
# no account of this host has them
ALICE = 61001
BOB = 61002
GROUP = 61099

_BECOME = """
import os, sys
uid, gid, groups, code, *arguments = sys.argv[1:]
os.setgroups([int(group) for group in groups.split()])
os.setresgid(int(gid), int(gid), int(gid))
os.setresuid(int(uid), int(uid), int(uid))
os.execv(sys.executable, [sys.executable, "-c", code, *arguments])
"""


def as_user(
    uid: int,
    code: str,
    *arguments: object,
    gid: int | None = None,
    groups: tuple[int, ...] = (),
    **environ: str,
) -> subprocess.CompletedProcess[str]:
    """Run Python code as a user, who shares with the first of the groups;
    one that hangs fails the test.
    """
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "HOME": "/",
    }
    variables |= {SHARED_GROUP: str(groups[0])} if groups else {}
    become = [str(uid), str(uid if gid is None else gid), " ".join(map(str, groups))]
    return subprocess.run(
        [*_way_to_python(), sys.executable, "-c", _BECOME, *become, code, *map(str, arguments)],
        env={**variables, **environ},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def said(done: subprocess.CompletedProcess[str]) -> str:
    """What a process printed that ended well."""
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@cache
def _way_to_python() -> list[str]:
    """What lets other users run this Python.

    Where it lies in a closed home, as pyenv's does, they see it in a mount namespace of their own.
    Skips the test where that is not possible.
    """
    needed = {Path(sys.base_prefix), Path(sys.prefix), ROOT}
    above = {
        closed
        for each in needed
        for closed in (each, *each.parents)
        if not closed.stat().st_mode & 0o001
    }
    if not above:
        return []
    closed = min(above, key=lambda each: len(each.parts))
    inside = [each for each in needed if closed in (each, *each.parents)]
    keep = []
    back = []
    for each in inside:
        aside = tempfile.mkdtemp(prefix="zeus-python-")
        atexit.register(os.rmdir, aside)  # outside of the namespace it is empty
        spare = shlex.quote(aside)
        keep.append(f"mount --bind {shlex.quote(str(each))} {spare}")
        back.append(
            f"mkdir -p {shlex.quote(str(each))} && mount --bind {spare} {shlex.quote(str(each))}"
        )
    hide = f"mount -t tmpfs -o mode=755 none {shlex.quote(str(closed))}"
    way = ["unshare", "--mount", "sh", "-c", " && ".join([*keep, hide, *back, 'exec "$0" "$@"'])]
    try:
        subprocess.run(
            [*way, sys.executable, "-c", ""], check=True, capture_output=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(
            f"other users cannot run {sys.executable}: {closed} is closed to them ({error})"
        )
    return way
