"""Sets GPU power limits as root for workers that are not root, and gives back the limits it found.

This file, driver.py and limit_format.py need Python 3.9 or newer, its standard library and NVIDIA's
driver library. Installed with the provider they are the command ``zeus-power-sidecar``. Copied to a
folder of a host they run without the provider: ``python3 -m FOLDER.sidecar_server``.

A process that may write to the socket (see --group) may lower the limit of the GPUs named by --gpus
within the driver's range and have it given back; nothing else. A limit above the one found is
refused, as is one above the limit found at the first start since the host was booted: a cap set by
the host's administrator stays in force.

One JSON object per line, one answer per line, ``{"ok": true, ...}`` or ``{"ok": false, "error":
"..."}``::

    {"do": "limits"}
        every GPU served: min_w, max_w, limit_w, held_by
    {"do": "set", "gpus": ["GPU-..."], "limit_w": 150.0}
        when granted, this connection holds these GPUs
    {"do": "restore", "gpus": ["GPU-..."]}
        by the holder, or by any client after the holder is gone

``limit_w`` is the limit as last read or set here; it is null, as the range is, until the driver has
answered.

The limit found is restored when the holder asks for it, when its connection ends, when its process
ends (a pidfd of the process that connected, so children that inherited the connection do not
matter), and on SIGTERM, SIGINT and SIGHUP. After SIGKILL it is restored at the next start, from one
record per GPU in the folder --state. A limit that another process has set meanwhile is left alone.

Neither a flood of requests, a slow GPU nor a log that is not read delays other clients. Each turn
of the loop handles dead clients first, then limits to give back, then one request of each client. A
user whose processes ask faster than they may waits, and the process that was served longest ago is
next. The driver is called in one thread per GPU, and a line of the log that would have to wait for
its reader is dropped and counted. When there are too many clients, the user with most connections
loses one that holds no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import grp
import json
import math
import os
import select
import signal
import socket
import stat
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import PurePath
from typing import Any, NoReturn

from .driver import NO_PERMISSION, Nvml, NvmlError
from .limit_format import (
    SAME_W,
    UNREADABLE,
    boot_id,
    is_ours,
    is_rounded,
    new_record,
    read_record,
    same_w,
    to_give_back,
)

MOST_BYTES = 16 * 1024  # a client must not fill the memory
RETRY_S = 1.0  # a driver that refuses may be busy for a moment
# A training asks every few seconds: a user who asks more often must not slow the others.
PER_S = 50.0
AT_ONCE = 100


class RefusedError(Exception):
    """A request that is not granted; the message is for the client."""


class Log:
    """Lines on stderr.

    One that would have to wait for its reader is dropped and counted: it holds nothing else up.
    """

    one_at_a_time = threading.Lock()
    dropped = 0

    @classmethod
    def say(cls, text: str) -> None:
        """Write a line, after the number of those that were dropped before it."""
        poll = select.poll()
        # A pipe is ready only with room for PIPE_BUF, so that a line is never cut.
        poll.register(2, select.POLLOUT)
        # If the log is closed limits must be given back all the same.
        with cls.one_at_a_time, contextlib.suppress(OSError):
            if not poll.poll(0):
                cls.dropped += 1
                return
            lost = ""
            if cls.dropped:
                lost = (
                    f"lines of this log that were dropped, since it was not read: {cls.dropped}\n"
                )
            cls.dropped = 0
            os.write(2, f"{lost}{text}\n".encode(errors="backslashreplace")[: select.PIPE_BUF])


class Records:
    """JSON files in a folder that only this user may enter.

    Raises OSError if the folder is not safe.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._descriptor = own_folder(folder, 0o700)

    def lock(self) -> bool:
        """Lock the folder until this process ends; False if another sidecar uses it.

        Two sidecars would each take the other's limit for the one found.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open("lock", flags, 0o600, dir_fd=self._descriptor)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def read(self, name: str) -> dict[str, Any] | None:
        """The record; None if there is none, or none that is valid."""
        try:
            # O_NONBLOCK: a pipe of that name would hold up the start for ever.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(name, flags, dir_fd=self._descriptor), "rb") as file:
                status = os.fstat(file.fileno())
                is_plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
                is_own = status.st_uid == os.geteuid() and not status.st_mode & 0o022
                if not is_plain or not is_own:
                    raise ValueError("it is no plain file, or other users may write it")
                text = file.read(MOST_BYTES + 1)
            if len(text) > MOST_BYTES:
                raise ValueError("it is too long")
            return read_record(text)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            say(f"{self.folder}/{name} is no record of a limit and is ignored: {error}")
            return None

    def write(self, name: str, record: dict[str, Any]) -> None:
        """Write a record; it appears complete under its name."""
        half = f"{name}.new"
        self.remove(half)  # left by a process that was killed: O_EXCL would refuse the name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(
            os.open(half, flags, 0o600, dir_fd=self._descriptor), "w", encoding="utf-8"
        ) as file:
            json.dump(record, file)
        # A process that is killed leaves the old record or the new one, never a half.
        os.replace(half, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def remove(self, name: str) -> None:
        """Remove a record, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)


class Limit:
    """The limit of one GPU, with a record on disk that is written before the limit is changed.

    Its methods call the driver and raise OSError if it refuses. They run in this GPU's thread, one
    at a time.
    """

    def __init__(self, nvml: Nvml, uuid: str, records: Records, lowest_share: float) -> None:
        self._nvml = nvml
        self.uuid = uuid
        self._records = records
        self._lowest_share = lowest_share
        self._name = f"{uuid}.json"
        self._first = f"first-{uuid}.json"
        # A GPU may be too slow to tell its range at the start: then it is None.
        self.range_w: tuple[float, float] | None = None
        self.limit_w: float | None = None
        self.record: dict[str, Any] | None = None

    def check(self, limit_w: float, found_w: float = math.inf) -> None:
        """Raise RefusedError if a limit [W] is out of range; the range may not be known yet."""
        if self.range_w is None:
            return
        low_w = self.range_w[0]
        high_w = min(self.range_w[1], found_w)
        if not low_w - SAME_W < limit_w < high_w + SAME_W:
            raise RefusedError(
                f"power limit = {limit_w:g} W of {self.uuid}: out of range. Use {low_w:g} to "
                f"{high_w:g} W, the limit found"
            )

    def change(self, limit_w: float) -> None:
        """Set the limit [W].

        Raises RefusedError: out of range, or an administrator raised the limit.
        """
        range_w = self._read_once()
        present_w = self._read_limit_w()
        found_w = present_w
        record = self.record
        # One that another process has set was set on purpose: from now on it is the limit found.
        if record is not None and is_ours(present_w, record["found_w"], record["set_w"]):
            found_w = record["found_w"]
        if found_w >= range_w[1] + SAME_W:
            raise RefusedError(
                f"{self.uuid} has a limit of {found_w:g} W, above the {range_w[1]:g} W found at "
                "the first start since the host was booted. Where an administrator raised it: stop "
                f"the sidecar, remove {self._records.folder}/{self._first} and start it again"
            )
        self.check(limit_w, found_w)
        limit_w = max(limit_w, range_w[0])  # check() allowed for the driver's rounding
        if same_w(limit_w, found_w):
            limit_w = found_w
        # Both limits before the change: whichever is in force after a crash is then known as ours.
        record = new_record(found_w, present_w, limit_w)
        self._records.write(self._name, record)
        self.record = record
        try:
            self._nvml.set_limit_w(self.uuid, limit_w)
        except NvmlError as error:
            if error.code != NO_PERMISSION:
                raise OSError(str(error)) from error
            hint = "this sidecar must run as root or with CAP_SYS_ADMIN"
            raise OSError(f"{error}: {hint}") from error
        self.limit_w = self._nvml.limit_w(self.uuid)
        # Else the rounded limit would seem to be another process's, and never be given back.
        if is_rounded(self.limit_w, limit_w):
            self.record = new_record(found_w, limit_w, self.limit_w)
            self._records.write(self._name, self.record)

    def restore(self) -> str:
        """Restore the limit found; returns a text for the log.

        The record stays if the driver refuses.
        """
        self._read_once()
        if self.record is None:
            return "nothing to restore"
        present_w = self._read_limit_w()
        limit_w, done = to_give_back(self.record, present_w)
        if limit_w is not None:
            self._nvml.set_limit_w(self.uuid, limit_w)
            self.limit_w = limit_w
        # After the limit: a process that is killed in between gives it back once more.
        self._records.remove(self._name)
        self.record = None
        say(f"{self.uuid}: {done}")
        return done

    def _read_limit_w(self) -> float:
        self.limit_w = self._nvml.limit_w(self.uuid)
        return self.limit_w

    def _read_once(self) -> tuple[float, float]:
        """The range that may be set [W]; read once, together with the record of an earlier process
        of this boot.
        """
        if self.range_w is None:
            low_w, high_w = self._nvml.range_w(self.uuid)
            self.limit_w = self._nvml.limit_w(self.uuid)
            first = self._records.read(self._first)
            if first is None or first["boot_id"] != boot_id():
                first = new_record(self.limit_w)
                self._records.write(self._first, first)
            high_w = min(high_w, first["found_w"])  # an administrator's cap stays in force
            self.record = self._earlier_record(high_w)
            self.range_w = max(low_w, self._lowest_share * high_w), high_w
        return self.range_w

    def _earlier_record(self, high_w: float) -> dict[str, Any] | None:
        """The record of an earlier process of this boot; one that is no use is removed."""
        record = self._records.read(self._name)
        if record is None:
            return None
        # A boot resets all limits, so the record is void.
        if record["boot_id"] != boot_id():
            why_dropped = "the host was booted since"
        elif record["found_w"] >= high_w + SAME_W:
            why_dropped = f"it asks for more than the {high_w:g} W found at the first start"
        else:
            return record
        say(f"{self.uuid}: an earlier record is dropped: {why_dropped}")
        self._records.remove(self._name)
        return None


class Request:
    """A client's request. Raises RefusedError: not a request."""

    def __init__(self, line: bytes) -> None:
        try:
            request = json.loads(line)
            self.do = request["do"]
            uuids = request.get("gpus", [])
            self.limit_w = float(request["limit_w"]) if self.do == "set" else 0.0
            is_list = isinstance(uuids, list) and all(isinstance(uuid, str) for uuid in uuids)
        except UNREADABLE as error:
            raise RefusedError(f"not a request: {error!r}") from None
        # A request for no GPU would be granted without any effect.
        names_enough = self.do == "limits" or bool(uuids)
        is_request = self.do in ("limits", "set", "restore") and names_enough
        if not is_list or not is_request:
            raise RefusedError(
                "not a request: do is limits, set or restore, and gpus a list of UUIDs"
            )
        self.uuids: list[str] = [] if self.do == "limits" else list(dict.fromkeys(uuids))
        self.since_s = time.monotonic()
        self.taken: list[str] = []  # a request that fails must give back what it took
        # One GPU may be slow and must not hold up the others, so each has work of its own.
        self.works: dict[str, Future[Any]] = {}


class Client:
    """One connection and the process at its other end, as far as the kernel reports it."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.text = b""
        self.request: Request | None = None
        self.used_s = time.monotonic()
        self.pid, self.uid, _ = struct.unpack(
            "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        # pid 0: a PID namespace hides it, so each of its connections counts as a process.
        self.process = (self.uid, self.pid or id(self))
        self.pidfd: int | None = None
        so_peerpidfd = 77  # Linux 6.5; Python has no name for it yet
        try:  # of the process that connected, even if its pid is used again
            pidfd = connection.getsockopt(socket.SOL_SOCKET, so_peerpidfd, 4)
            (self.pidfd,) = struct.unpack("i", pidfd)
        except OSError:
            with contextlib.suppress(OSError, AttributeError):
                self.pidfd = os.pidfd_open(self.pid) if self.pid > 0 else None

    @property
    def since_s(self) -> float:
        """Since when its request waits; 0: it has none."""
        return 0.0 if self.request is None else self.request.since_s

    @property
    def has_line(self) -> bool:
        """Whether a line waits to become its request."""
        return self.request is None and b"\n" in self.text

    @property
    def is_gone(self) -> bool:
        """Whether the connection or the process ended."""
        poll = select.poll()
        poll.register(self.connection, 0)  # a hang-up is reported in any case
        if self.pidfd is not None:
            poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def read(self) -> bool:
        """Receive once; False if the connection ended, or a line is too long."""
        try:
            part = self.connection.recv(MOST_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.text += part
        # A line without an end must not fill the memory.
        return bool(part) and (b"\n" in self.text or len(self.text) <= MOST_BYTES)

    def answer(self, said: dict[str, Any]) -> bool:
        """Send an answer; False if the client left, or does not read its answers."""
        text = json.dumps(said).encode() + b"\n"
        self.request = None
        try:
            # Without waiting: a client that does not read must not hold up the others.
            return self.connection.send(text) == len(text)
        except OSError:
            return False

    def close(self) -> None:
        """Close the connection and the pidfd."""
        self.connection.close()
        if self.pidfd is not None:
            os.close(self.pidfd)


class Gpu:
    """The holder of a GPU, whether its limit must be given back, and the thread that calls its
    driver.
    """

    def __init__(self, limit: Limit, wake: Callable[[], object]) -> None:
        self.limit = limit
        self._wake = wake
        self._thread = ThreadPoolExecutor(1)
        self.holder: Client | None = None
        # True at the start: an earlier process may have left a limit.
        self.must_restore = True
        self.retry_s = 0.0
        # A driver call may hang, so each GPU has a thread of its own.
        self.work: Future[Any] | None = None
        self.is_restoring = False

    def submit(self, task: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Start to do something in this GPU's thread."""
        self.work = self._thread.submit(task, *arguments)
        self.work.add_done_callback(lambda _: self._wake())
        return self.work

    def release(self) -> None:
        """Remove the holder: the limit found must be given back."""
        self.holder = None
        self.must_restore = True
        self.retry_s = 0.0

    def restore_if_due(self) -> None:
        """Start to give the limit back if that is to be done, and handle the result of the last
        attempt.
        """
        # The result of the last attempt comes first: a new one must not hide it.
        if self.work is not None and self.work.done():
            error = self.work.exception()
            if self.is_restoring:
                self.must_restore = error is not None
                if error is not None:
                    say(
                        f"{self.limit.uuid}: the limit found could not be given back and is tried "
                        f"again: {error}"
                    )
                    self.retry_s = time.monotonic() + RETRY_S
            self.work = None
            self.is_restoring = False
        is_due = self.must_restore and time.monotonic() >= self.retry_s
        if is_due and self.work is None:
            self.is_restoring = True
            self.submit(self.limit.restore)


class Sidecar:
    """Serves one socket until a signal stops it."""

    def __init__(self, limits: list[Limit], listener: socket.socket, wake: int, woken: int) -> None:
        wakes = partial(os.write, woken, b"\0")  # a signal writes its number, which is never 0
        self._gpus = {limit.uuid: Gpu(limit, wakes) for limit in limits}
        self._listener = listener
        self._wake = wake
        self._clients: list[Client] = []
        # By user: else one with many processes could ask faster than one with a single training.
        self._rested_s: dict[int, float] = {}
        self._served_s: dict[Any, float] = {}  # a process that floods must not keep others waiting
        self._is_stopping = False

    def start(self) -> None:
        """Read every GPU and give back the limits that an earlier process left; a slow GPU is
        served once it has answered.
        """
        for gpu in self._gpus.values():
            gpu.restore_if_due()
        # One GPU that hangs must not hold up the others: it is served later.
        first_look_s = 5.0
        wait([gpu.work for gpu in self._gpus.values() if gpu.work is not None], first_look_s)

    def run(self) -> int:
        """Serve, then give all limits back.

        Returns the exit status: 1 if a limit could not be given back.
        """
        status = 0
        try:
            while not self._is_stopping:
                self._turn()
        except Exception as error:
            # Of any kind: limits must not wait for the next start of this process.
            say(f"stopped by an error: {error!r}")
            status = 1
            self._is_stopping = True
        for client in list(self._clients):
            self._drop(client)
        end_s = time.monotonic() + 5.0
        while self._must_restore() and time.monotonic() < end_s:
            self._turn()
        return 1 if self._must_restore() else status

    def _must_restore(self) -> bool:
        return any(gpu.must_restore for gpu in self._gpus.values())

    def _turn(self) -> None:
        """Handle dead clients, then limits to give back, then one request of each client, the
        oldest first: nothing that a client sends delays a limit that is to be given back.
        """
        ready = self._wait()
        if self._wake in ready:
            self._is_stopping |= bool(os.read(self._wake, 4096).strip(b"\0"))
        self._read_clients(ready)
        for gpu in self._gpus.values():
            gpu.restore_if_due()
        self._take_lines()
        for client in sorted(self._clients, key=lambda client: client.since_s):
            # One of them may have dropped another that held its GPU.
            if client in self._clients and client.request is not None:
                self._serve(client, client.request)
        if self._listener.fileno() in ready:
            self._accept()
        self._forget_old()

    def _read_clients(self, ready: dict[int, int]) -> None:
        """Receive from each client once; drop those that are gone."""
        for client in list(self._clients):
            events = ready.get(client.connection.fileno(), 0)
            is_gone = client.pidfd in ready or bool(events & ~select.POLLIN)
            if events and not is_gone:
                is_gone = not client.read()
            if is_gone:
                self._drop(client)

    def _take_lines(self) -> None:
        """Make a line of each client that may ask its request, the one served longest ago first."""
        for client in sorted(
            self._clients, key=lambda client: (self._last_served_s(client), client.used_s)
        ):
            if client.has_line and self._may_ask_s(client) <= time.monotonic():
                self._take_line(client)

    def _forget_old(self) -> None:
        """Bound what is noted of users and processes: a flood of them must not fill the memory."""
        # A user who has rested may ask as one that never asked, so forgetting it changes nothing.
        if len(self._rested_s) > 1000:
            now_s = time.monotonic()
            self._rested_s = {uid: at_s for uid, at_s in self._rested_s.items() if at_s > now_s}
        if len(self._served_s) > 1000:
            connected = {client.process for client in self._clients}
            for process in self._served_s.keys() - connected:
                del self._served_s[process]

    def _take_line(self, client: Client) -> None:
        """Make a client's next line its request, or refuse it."""
        line, _, client.text = client.text.partition(b"\n")
        client.used_s = time.monotonic()
        self._served_s[client.process] = client.used_s
        # A request moves the time on by its share of a second, so no timer has to count users down.
        rested_s = max(self._rested_s.get(client.uid, 0.0), client.used_s)
        self._rested_s[client.uid] = rested_s + 1 / PER_S
        try:
            client.request = Request(line)
        except RefusedError as error:
            if not client.answer({"ok": False, "error": str(error)}):
                self._drop(client)

    def _last_served_s(self, client: Client) -> float:
        """When a line of a client's process was taken last; 0: never.

        The process that waits longest is next.
        """
        return self._served_s.get(client.process, 0.0)

    def _may_ask_s(self, client: Client) -> float:
        """When the next line of a client is read, so that its user asks no faster than it may."""
        return self._rested_s.get(client.uid, 0.0) - AT_ONCE / PER_S

    def _wait(self) -> dict[int, int]:
        """Wait for events: descriptor -> events. A client with a request is not read."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if not self._is_stopping:
            poll.register(self._listener, select.POLLIN)
        for client in self._clients:
            # One with a line is not read: its text must not grow while it waits.
            is_read = client.request is None and not client.has_line
            poll.register(client.connection, select.POLLIN if is_read else 0)
            if client.pidfd is not None:
                poll.register(client.pidfd, select.POLLIN)
        # A GPU at work wakes the loop itself when it is done.
        idle = [gpu for gpu in self._gpus.values() if gpu.work is None]
        due_s = [gpu.retry_s for gpu in idle if gpu.must_restore]
        due_s += [self._may_ask_s(client) for client in self._clients if client.has_line]
        if self._is_stopping:
            due_s.append(time.monotonic() + RETRY_S)
        wait_ms = None
        if due_s:
            wait_ms = max(0.0, min(due_s) - time.monotonic()) * 1000
        return dict(poll.poll(wait_ms))

    def _accept(self) -> None:
        """Accept new clients; if there are too many, drop the greediest one without a GPU."""
        for _ in range(16):  # no more in one turn: a flood must not delay limits to give back
            try:
                connection, _address = self._listener.accept()
            except OSError:  # no more of them, or one that has left: neither stops the loop
                return
            self._clients.append(Client(connection))
            if len(self._clients) <= 64:  # descriptors are limited, and each client has two
                continue
            self._drop_greediest()

    def _drop_greediest(self) -> None:
        """Drop a client whose user and process have most connections: an idle one, or one served a
        moment ago.
        """
        # A holder is never dropped for room: its limit would be given back amid its training.
        holders = [gpu.holder for gpu in self._gpus.values()]
        of_user = Counter(client.uid for client in self._clients)
        of_process = Counter(client.process for client in self._clients)

        def greed(client: Client) -> tuple[float, ...]:
            connections = (of_user[client.uid], of_process[client.process])
            served_s = self._last_served_s(client)
            is_idle = served_s > 0 and not client.has_line and client.request is None
            return (*connections, is_idle, served_s, -client.used_s)

        self._drop(max((client for client in self._clients if client not in holders), key=greed))

    def _serve(self, client: Client, request: Request) -> None:
        """Start the request and, when its GPUs are done, answer."""
        try:
            if not request.works and not self._begin(client, request):
                return  # a GPU is at work: a later turn tries again, and nobody waits for it here
            if not all(work.done() for work in request.works.values()):
                return
            answer = {"ok": True, **self._result(request)}
        except Exception as error:
            # Of any kind: the limits of other clients must still be given back.
            for uuid in request.taken:
                self._gpus[uuid].release()
            answer = {"ok": False, "error": str(error) or repr(error)}
        if not client.answer(answer):
            self._drop(client)

    def _begin(self, client: Client, request: Request) -> bool:
        """Start the request; False if it has to wait. Raises RefusedError."""
        for uuid in request.uuids:
            # The client learns at once that it asks the wrong sidecar.
            if uuid not in self._gpus:
                raise RefusedError(f"{uuid} is not served here (--gpus {','.join(self._gpus)})")
            if not self._is_free(uuid, client):
                return False
        gpus = [self._gpus[uuid] for uuid in request.uuids]
        if request.do == "set":
            return self._begin_set(client, request, gpus)
        # For "limits" there are none: it is answered at once, even if each GPU hangs.
        for gpu in gpus:
            if gpu.holder is client:
                gpu.release()
            gpu.restore_if_due()
        waiting = [gpu for gpu in gpus if gpu.must_restore]
        if not all(gpu.is_restoring for gpu in waiting):
            return False
        request.works = {gpu.limit.uuid: gpu.work for gpu in gpus if gpu.work is not None}
        return True

    def _is_free(self, uuid: str, client: Client) -> bool:
        """Whether a GPU is free for a client; False until it is clear. Raises RefusedError."""
        holder = self._gpus[uuid].holder
        if holder is None or holder is client:
            return True
        # The end of a holder may be unread yet: its successor must not be refused for it.
        if holder.is_gone:
            self._drop(holder)
            return True
        # That request may still be refused, and only a granted one holds a GPU.
        if holder.request is not None and uuid in holder.request.taken:
            return False
        raise RefusedError(f"{uuid} is held by process {holder.pid}")

    def _begin_set(self, client: Client, request: Request, gpus: list[Gpu]) -> bool:
        for gpu in gpus:
            gpu.limit.check(request.limit_w)
        # All or none: a request that waits for one GPU must not hold the others.
        if any(gpu.work is not None for gpu in gpus):
            return False
        request.taken = [gpu.limit.uuid for gpu in gpus if gpu.holder is not client]
        for gpu in gpus:
            gpu.holder = client
            gpu.must_restore = False
            request.works[gpu.limit.uuid] = gpu.submit(gpu.limit.change, request.limit_w)
        return True

    def _result(self, request: Request) -> dict[str, Any]:
        """The answer to a request whose GPUs are done. Raises what they raised."""
        # A group with two limits is no success: the error of one GPU is the whole answer.
        done = {uuid: work.result() for uuid, work in request.works.items()}
        if request.do == "limits":
            gpus: dict[str, dict[str, float | None]] = {}
            for uuid, gpu in self._gpus.items():
                low_w, high_w = gpu.limit.range_w or (None, None)
                gpus[uuid] = {
                    "min_w": low_w,
                    "max_w": high_w,
                    "limit_w": gpu.limit.limit_w,
                    "held_by": None,
                }
                if gpu.holder is not None and not gpu.holder.is_gone:
                    gpus[uuid]["held_by"] = gpu.holder.pid
            return {"gpus": gpus}
        if request.do == "restore":
            return {"gpus": {uuid: done.get(uuid, "nothing to restore") for uuid in request.uuids}}
        for uuid in request.taken:
            holder = self._gpus[uuid].holder
            if holder is not None:
                say(f"{uuid}: held by process {holder.pid} of user {holder.uid}")
        return {}

    def _drop(self, client: Client) -> None:
        if client in self._clients:
            self._clients.remove(client)
            client.close()
        for gpu in self._gpus.values():
            if gpu.holder is client:
                gpu.release()


say = Log.say


def own_folder(path: str, mode: int) -> int:
    """Open a folder in which only this user can create files; it is created if it is missing.

    Raises OSError if it, or a parent folder, belongs to another user or is writable for others.
    """
    above, name = os.path.split(os.path.abspath(path))
    os.makedirs(above, 0o755, exist_ok=True)
    # A link could lead the check to another folder than the files.
    above = os.path.realpath(above)
    for folder in (above, *map(str, PurePath(above).parents)):
        status = os.stat(folder)
        # All may write to /tmp, but its sticky bit lets nobody replace another's folder.
        check_safe(
            folder,
            status,
            status.st_uid in (0, os.geteuid()),
            is_sticky=bool(status.st_mode & stat.S_ISVTX),
        )
    path = os.path.join(above, name)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    check_safe(path, status, status.st_uid == os.geteuid(), is_sticky=False)
    # mkdir() is subject to the umask, and an older folder to its maker.
    present = stat.S_IMODE(status.st_mode)
    if not present & 0o777 & ~mode:
        return descriptor
    if os.listdir(descriptor):  # it may have another use
        raise OSError(f"{path} has mode {present:o}: chmod it to {mode:o}, or name another folder")
    # A container engine creates the folders that it mounts with mode 755.
    os.fchmod(descriptor, mode)
    return descriptor


def check_safe(folder: str, status: os.stat_result, is_owner_right: bool, is_sticky: bool) -> None:
    """Raise OSError if others could put files into a folder."""
    is_open = bool(status.st_mode & 0o022) and not is_sticky
    if is_open or not is_owner_right:
        mode = stat.S_IMODE(status.st_mode)
        raise OSError(
            f"{folder} is not safe: it belongs to user {status.st_uid} and has mode {mode:o}, so "
            "others could put files there. Look at what it holds, then remove it or let its owner, "
            "this sidecar's user, alone write it (chown, chmod go-w); or name another folder by "
            "--socket or --state"
        )


def listen(path: str, group: str | None) -> socket.socket:
    """Create a socket that root and the group may connect to."""
    folder = own_folder(os.path.dirname(path) or ".", 0o755)
    name = os.path.basename(path)
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(
                f"{path} is no socket and is left alone: look at it and remove it, or name another "
                "by --socket"
            )
        # Left by an earlier process: only this one holds the lock of the records.
        os.unlink(name, dir_fd=folder)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Before the socket is there: no user may connect in between.
    before = os.umask(0o177 if group is None else 0o117)
    try:
        # In the open folder, which was checked: its path may name another one by now.
        listener.bind(f"/proc/self/fd/{folder}/{name}")
    finally:
        os.umask(before)
    if group is not None:
        gid = int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
        os.chown(name, -1, gid, dir_fd=folder, follow_symlinks=False)
    os.close(folder)
    listener.setblocking(False)
    listener.listen(socket.SOMAXCONN)
    return listener


def share(text: str) -> float:
    """Parse a number from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError
    return value


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--gpus", required=True, help="UUIDs of the GPUs to serve, with commas between; or all"
    )
    parser.add_argument(
        "--group", help="group (name or number) that may connect (default: root alone)"
    )
    parser.add_argument("--socket", default="/run/zeus/power.sock", help="default: %(default)s")
    parser.add_argument(
        "--state", default="/run/zeus-limits", help="folder of records (default: %(default)s)"
    )
    parser.add_argument(
        "--lowest-share",
        type=share,
        default=0.0,
        help="no limit below this share (0 to 1) of the limit found first is set (default: the "
        "driver's lowest)",
    )
    return parser.parse_args()


def served_gpus(nvml: Nvml, names: str) -> list[str]:
    """UUIDs of the GPUs to serve; ``names``: --gpus. Raises OSError: one of them is not here."""
    here = []
    (count,) = nvml.call("nvmlDeviceGetCount_v2", writes=(ctypes.c_uint,))
    for index in range(count.value):
        try:
            here.append(nvml.text("nvmlDeviceGetUUID", nvml.handle(index)))
        except OSError as error:  # limits of the other GPUs must still be given back
            say(f"GPU {index} is not served: {error}")
    if names == "all":
        return here
    uuids = [uuid.strip() for uuid in names.split(",")]
    # A typing error would leave a GPU without its helper.
    missing = ", ".join(uuid for uuid in uuids if uuid not in here)
    if missing:
        listed = ", ".join(here) or "none"
        raise OSError(f"no such GPU here: {missing} (there are: {listed})")
    return uuids


def main() -> int:
    """Serve until a signal; returns the exit status."""
    options = arguments()
    wake, woken = os.pipe()
    for descriptor in (wake, woken):
        os.set_blocking(descriptor, False)  # set_wakeup_fd() takes none that could block
    # A signal only wakes the loop: its handler would interrupt a change of limit.
    signal.set_wakeup_fd(woken)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    try:
        records = Records(options.state)
        if not records.lock():
            raise OSError(f"another sidecar serves with the records in {options.state}")
        nvml = Nvml()
        uuids = served_gpus(nvml, options.gpus)
        limits = [Limit(nvml, uuid, records, options.lowest_share) for uuid in uuids]
        sidecar = Sidecar(limits, listen(options.socket, options.group), wake, woken)
    except (OSError, KeyError) as error:
        say(f"cannot start: {error}")
        return 1
    # Before anybody is served: a limit that an earlier process left comes back first.
    sidecar.start()
    say(f"serving {', '.join(uuids)} on {options.socket}")
    status = sidecar.run()
    with contextlib.suppress(OSError):
        os.unlink(options.socket)
    return status


def command() -> NoReturn:
    """Serve, then exit: the console script ``zeus-power-sidecar``."""
    try:
        status = main()
    except Exception as error:  # of any kind; the interpreter would wait until its text is read
        say(f"ended by an error: {error!r}")
        status = 1
    # A driver call that never returns, or a log that is not read, must not keep the process alive.
    os._exit(status)


if __name__ == "__main__":
    command()
