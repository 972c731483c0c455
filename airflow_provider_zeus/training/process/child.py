"""A training in a separate process under a supervisor: its output and its result while it runs."""

from __future__ import annotations

import codecs
import io
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.training.process import supervisor
from airflow_provider_zeus.training.protocol.events import MOST_LINE_BYTES, SCHEMA, ResultLine
from airflow_provider_zeus.untrusted_files import open_plain

log = guarded_log(__name__)


class Child:
    """A command, started with ``environ`` in ``cwd``. It ends with this process, even by SIGKILL.

    :param on_line: gets each line of output, stdout and stderr together.
    :param grace_s: between SIGTERM and SIGKILL when the command is stopped [s]. Airflow kills the
        task after 5 s, which has to store the cost before.

    Raises OSError if no process can be started. A command that does not exist ends with status 127,
    as in a shell.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        on_line: Callable[[str], None],
        *,
        cwd: str | None = None,
        grace_s: float = 3.0,
    ) -> None:
        self.last_line = ""  # the last line of an output mostly says why it failed
        self._on_line = on_line
        self._rest = ""  # an output comes in pieces that end within a line
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        supervise = [sys.executable, "-I", "-S", supervisor.__file__]
        self._process = subprocess.Popen(  # noqa: S603  this package's own file, no shell
            [*supervise, str(os.getpid()), str(grace_s), *command],
            env=dict(environ),
            cwd=cwd,
            # Its end tells the supervisor that this process died.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # So that a signal to this process's group leaves the end to the supervisor.
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin
        self._output = self._process.stdout
        self._poll = select.poll()
        self._poll.register(self._output, select.POLLIN)

    def follow(self, for_s: float) -> int | None:
        """Pass output on for at most ``for_s`` seconds.

        Returns the exit status if the command has ended, else None.
        """
        if not self._poll.poll(for_s * 1000):
            # A supervisor that was killed may leave a daemon that holds the output.
            return self._process.poll()
        data = self._output.read(65536)
        text = self._decoder.decode(data, final=not data)
        # A progress bar ends its states by a lone \r, and would be one line for hours.
        text = (self._rest + text).replace("\r\n", "\n").replace("\r", "\n")
        *lines, self._rest = text.split("\n")
        # Shown in parts if it is longer: an output without line feeds must not fill the memory.
        if not data or len(self._rest) > 64 * 1024:
            lines.append(self._rest)
            self._rest = ""
        for text in lines:
            line = text.replace("\0", "\ufffd")  # PostgreSQL, which keeps XComs, takes no NUL
            if line.strip():
                self.last_line = line
                self._on_line(line)
        if data:
            return None
        return self._process.wait()

    def stop(self) -> int:
        """End the command and all processes that it started; return its exit status."""
        self._stdin.close()
        status = None
        while status is None:
            status = self.follow(0.1)
        return status

    def close(self) -> None:
        """Close the pipes of a command that has ended."""
        self._stdin.close()
        self._output.close()


class Follower:
    """Reads the lines that were appended to a result file since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0  # a file is read again and again while it grows
        self._invalid = False  # said once: a file of another program stays invalid
        self._warned = False

    def news(self) -> list[ResultLine]:
        """New whole lines; none while the file does not exist. A line of no result is left out.

        Raises ValueError, once, if the file is no result: it is a pipe, or a line has no end.
        """
        if self._invalid:
            return []
        # At once: a file that another process grows must not fill this one's memory.
        max_bytes = 2**24
        try:
            with open(open_plain(self._path), "rb") as file:
                file.seek(self._offset)
                data = file.read(max_bytes)
        except FileNotFoundError:
            return []
        except ValueError:  # a pipe, for example, which no later look turns into a result
            self._invalid = True
            raise
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and len(data) > MOST_LINE_BYTES:
            self._invalid = True
            raise ValueError(f"a line is longer than {MOST_LINE_BYTES} bytes")
        lines = []
        for text in io.BytesIO(whole):
            try:
                lines.append(ResultLine.from_json(text.decode()))
            except ValueError:  # its text is not repeated: it may come from any file
                if not self._warned:
                    self._warned = True
                    log.warning(
                        "Zeus: a line that is no result line of version %d is left out.", SCHEMA
                    )
        # Only now: if a signal raises before, the lines are read again.
        self._offset += len(whole)
        return lines
