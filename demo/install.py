"""``python -m demo.install ARGUMENTS``: ``pip install``,
with a line of progress from the first second on.

pip's own output is either silent for minutes or hundreds of lines. It is shown whole where pip
fails. Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import deque
from typing import TextIO

EVERY_S = 10.0
EVERY_S_ON_A_TERMINAL = 0.5
KEPT = 500  # newest lines of pip's output
_STEPS = (
    "Collecting",
    "Downloading",
    "Installing build dependencies",
    "Preparing",
    "Building",
    "Installing collected",
)


class Progress:
    """What pip does now, after how many seconds;
    on a terminal in one line that is written again and again.
    """

    def __init__(self, out: TextIO) -> None:
        self._out, self._begun_s, self._terminal = out, time.monotonic(), out.isatty()
        self._over = threading.Event()
        self.step = "Starting pip"
        self.packages = 0
        self._write(self.step)
        self._thread = threading.Thread(target=self._repeat, daemon=True)
        self._thread.start()

    def take(self, line: str) -> None:
        """A line of pip's output."""
        if line.startswith("Collecting"):
            self.packages += 1
        if line.strip().startswith(_STEPS):
            self.step = line.strip().partition(":")[0].partition(" from ")[0][:70]

    def end(self) -> None:
        """Write the last line."""
        self._over.set()
        self._thread.join()
        self._write(
            f"done, packages looked at: {self.packages}" if self.step != "Starting pip" else "done"
        )
        if self._terminal:
            print(file=self._out, flush=True)

    def _repeat(self) -> None:
        while not self._over.wait(EVERY_S_ON_A_TERMINAL if self._terminal else EVERY_S):
            self._write(f"{self.step} (packages so far: {self.packages})")

    def _write(self, text: str) -> None:
        line = f"  {time.monotonic() - self._begun_s:4.0f} s  {text}"
        print(
            *(("\r" + line.ljust(110),) if self._terminal else (line,)),
            end="" if self._terminal else "\n",
            file=self._out,
            flush=True,
        )


def main(arguments: list[str], out: TextIO = sys.stdout) -> int:
    """Install; returns pip's exit status."""
    command = [sys.executable, "-m", "pip", "install", "--progress-bar", "off", *arguments]
    progress = Progress(out)
    kept = deque[str](maxlen=KEPT)
    pip = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    assert pip.stdout is not None
    for line in pip.stdout:
        kept.append(line)
        progress.take(line)
    status = pip.wait()
    progress.end()
    if status:
        print("".join(kept), file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
