"""A training in a process of its own: started on a leash, its output and its result followed while it runs."""

from __future__ import annotations

import codecs
import io
import os
import re
import select
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from airflow_provider_zeus.power.plain_file import open_plain
from airflow_provider_zeus.training import leash
from airflow_provider_zeus.training.plan import MOST_LINE_BYTES, Line, read_lines

GRACE_S = 3.0  # between SIGTERM and SIGKILL; Airflow kills the task, which has to tell the cost, after 5 s
_LINE_MOST = 64 * 1024  # characters of output shown as one line
_MOST_NEWS = 2**24  # bytes of a result read at once

_ENDS = re.compile("\r\n|\r|\n")  # a progress bar's carriage return ends a line too


class Child:
    """A command, started with ``environ`` in ``cwd``; it ends with this process, whatever ends that.

    :param say: gets each line of output, stdout and stderr together.

    Raises OSError where no process can be started; a command that is not there ends with status 127, as in a shell.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        say: Callable[[str], None],
        *,
        cwd: str | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        self.last_line = ""  # of the output, the last one that is not empty
        self._say = say
        self._rest = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._process = subprocess.Popen(  # noqa: S603  this package's own file, no shell
            [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), str(grace_s), *command],
            env=dict(environ),
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            bufsize=0,
        )
        self._poll = select.poll()
        self._poll.register(self._output, select.POLLIN)

    def follow(self, for_s: float) -> int | None:
        """Pass output on, for at most ``for_s`` seconds; the exit status once the command has ended, else None."""
        if self._poll.poll(for_s * 1000):
            data = self._output.read(65536)
            self._take(self._decoder.decode(data, final=not data), last=not data)
            if not data:
                return self._process.wait()
            return None
        return self._process.poll()  # a leash that was killed may leave a daemon that holds the output

    def stop(self) -> int:
        """End the command and all that it started, if it still runs; its exit status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        while (status := self.follow(0.1)) is None:
            pass
        return status

    def close(self) -> None:
        """Let go of a command that has ended."""
        for pipe in (self._process.stdin, self._output):
            if pipe is not None:
                pipe.close()

    @property
    def _output(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _take(self, text: str, *, last: bool) -> None:
        *lines, self._rest = _ENDS.split(self._rest + text)
        if last or len(self._rest) > _LINE_MOST:
            lines, self._rest = [*lines, self._rest], ""
        for line in (each.replace("\0", "\ufffd") for each in lines):  # PostgreSQL, which may hold XComs, takes no NUL
            if line.strip():
                self.last_line = line
                self._say(line)


class Follower:
    """Reads the lines that were appended to a result file since the last look."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0
        self._spoilt = False  # nothing more is read of it

    def news(self) -> list[Line]:
        """New whole lines; none while the file is not there. Raises ValueError, once, for what is not a result."""
        if self._spoilt:
            return []
        try:
            data = self._unread()
        except FileNotFoundError:
            return []
        except ValueError:  # a pipe, say
            self._spoilt = True
            raise
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and len(data) > MOST_LINE_BYTES:
            self._spoilt = True
            raise ValueError(f"a line is longer than {MOST_LINE_BYTES} bytes")
        self._read += len(whole)
        return list(read_lines(io.BytesIO(whole)))

    def _unread(self) -> bytes:
        with open(open_plain(self._path), "rb") as file:
            file.seek(self._read)
            return file.read(_MOST_NEWS)
