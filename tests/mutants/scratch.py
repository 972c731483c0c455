"""A copy of the repository in a folder of its own, in which pytest runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess

ROOT = Path(__file__).parents[2]
_FETCHED = "airflow_provider_zeus/plugin/static"  # the chart library there is in no commit


def copy_to(folder: Path) -> None:
    """Copy what git does not ignore, as it is now, and the chart library where it was fetched."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    names = {*filter(None, listed.stdout.split("\0"))}
    names.update(path.relative_to(ROOT).as_posix() for path in (ROOT / _FETCHED).glob("echarts*"))
    for name in sorted(names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)


def pytest(
    folder: Path,
    arguments: Sequence[str],
    more: Mapping[str, str] | None = None,
    most_s: float | None = None,
) -> CompletedProcess[str]:
    """Run pytest in a copy; its child processes import the copy, too.

    Raises subprocess.TimeoutExpired.
    """
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    environment |= {"PYTHONPATH": str(folder)} | dict(more or {})
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=most_s)
        except BaseException:  # what the tests started ends, too
            os.killpg(process.pid, 9)
            raise
    return CompletedProcess(command, process.returncode, said)
