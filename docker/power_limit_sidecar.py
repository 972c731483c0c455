#!/usr/bin/env python3
"""Sets GPU power limits as root for workers that are not, and gives back the limits it found.

One file, Python 3.9 or newer, standard library and NVIDIA's driver library only; the provider need not be installed.
Whoever may write to the socket (its group, see --group) may, for the GPUs named by --gpus and nothing else, lower the
limit within the driver's range and have it given back. A limit above the one found is refused, so that a cap of the
host's administrator holds.

One JSON object per line, one answer per line, ``{"ok": true, ...}`` or ``{"ok": false, "error": "..."}``::

    {"do": "limits"}                                         every GPU served: min_w, max_w, limit_w, held_by
    {"do": "set", "gpus": ["GPU-..."], "limit_w": 150.0}     from here on these GPUs are held by this connection
    {"do": "restore", "gpus": ["GPU-..."]}                   by the holder, or by anybody once the holder is gone

The limit found comes back when the holder says so, when its connection ends, when its process ends (a pidfd of the
process that connected, so children that inherited the connection hide nothing), and when this process is told to end
(SIGTERM, SIGINT). Killed, it restores at its next start, from one record per GPU in the folder --state. A limit that
somebody else has set meanwhile is left alone.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import grp
import json
import os
import select
import signal
import socket
import struct
import sys
from typing import Any

MOST_BYTES = 16 * 1024  # of a request
MOST_CLIENTS = 64
AGAIN_S = 1.0  # between attempts to give a limit back that the driver refused
SAME_W = 0.5  # drivers round
SO_PEERPIDFD = 77  # Linux 6.5


class RefusedError(Exception):
    """A request that is not granted, in words for the client."""


class Nvml:
    """What is needed of the driver, by UUID. Raises OSError where it does not answer."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._call("nvmlInit_v2")

    def uuids(self) -> list[str]:
        count, found = ctypes.c_uint(), []
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        for index in range(count.value):
            handle, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(96)
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            self._call("nvmlDeviceGetUUID", handle, uuid, ctypes.c_uint(96))
            found.append(uuid.value.decode())
        return found

    def limit_w(self, uuid: str) -> float:
        limit_mw = ctypes.c_uint()
        self._call("nvmlDeviceGetPowerManagementLimit", self._handle(uuid), ctypes.byref(limit_mw))
        return limit_mw.value / 1000

    def range_w(self, uuid: str) -> tuple[float, float]:
        low, high = ctypes.c_uint(), ctypes.c_uint()
        handle = self._handle(uuid)
        self._call("nvmlDeviceGetPowerManagementLimitConstraints", handle, ctypes.byref(low), ctypes.byref(high))
        return low.value / 1000, high.value / 1000

    def set_limit_w(self, uuid: str, limit_w: float) -> None:
        self._call("nvmlDeviceSetPowerManagementLimit", self._handle(uuid), ctypes.c_uint(round(limit_w * 1000)))

    def _handle(self, uuid: str) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(handle))
        return handle

    def _call(self, function: str, *arguments: Any) -> None:
        try:
            code = getattr(self._library, function)(*arguments)
        except AttributeError as error:
            raise OSError(f"the driver is too old: it has no {function}") from error
        if code != 0:
            words = {4: "no permission: this sidecar must run as root or with CAP_SYS_ADMIN", 15: "the GPU is lost"}
            raise OSError(f"{function}: {words.get(code, f'NVML error {code}')}")


class Gpus:
    """Limits found and set, each with a record on disk that is written before the limit is changed."""

    def __init__(self, nvml: Nvml, uuids: list[str], folder: str) -> None:
        self._nvml, self.uuids, self._folder = nvml, uuids, folder
        records = {uuid: self._read(uuid) for uuid in uuids}  # uuid -> {boot_id, found_w, set_w}
        self.changed = {uuid: record for uuid, record in records.items() if record is not None}

    def limits(self) -> dict[str, dict[str, float]]:
        said = {}
        for uuid in self.uuids:
            low, high = self._nvml.range_w(uuid)
            said[uuid] = {"min_w": low, "max_w": high, "limit_w": self._nvml.limit_w(uuid)}
        return said

    def change(self, uuid: str, limit_w: float) -> None:
        low, high = self._nvml.range_w(uuid)
        present_w = self._nvml.limit_w(uuid)
        record = self.changed.get(uuid)
        if record is not None and not is_one_of(present_w, record["set_w"]):
            record = None  # somebody else's limit: it is the one found from now on
        found_w = record["found_w"] if record else present_w
        if not low - SAME_W < limit_w < min(high, found_w) + SAME_W:
            raise RefusedError(
                f"power limit = {limit_w:g} W of {uuid}: out of range. Use {low:g} to {min(high, found_w):g} W, "
                "the limit found"
            )
        record = {"boot_id": boot_id(), "found_w": found_w, "set_w": [present_w, limit_w]}
        self._write(uuid, record)
        self.changed[uuid] = record
        self._nvml.set_limit_w(uuid, limit_w)

    def restore(self, uuid: str) -> str:
        """What was done, in words. Raises OSError where the driver refuses; the record stays then."""
        record = self.changed.get(uuid)
        if record is None:
            return "nothing to restore"
        present_w, found_w = self._nvml.limit_w(uuid), record["found_w"]
        done = f"{found_w:g} W, as it was found"
        if record["boot_id"] != boot_id():
            done = "the host was booted since: left alone"
        elif not is_one_of(present_w, [*record["set_w"], found_w]):
            done = f"{present_w:g} W, which was not set here: left alone"
        elif abs(present_w - found_w) >= SAME_W:
            self._nvml.set_limit_w(uuid, found_w)
            done = f"restored {found_w:g} W from {present_w:g} W"
        self.changed.pop(uuid, None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(uuid))
        say(f"{uuid}: {done}")
        return done

    def _path(self, uuid: str) -> str:
        return os.path.join(self._folder, f"{uuid}.json")

    def _read(self, uuid: str) -> dict[str, Any] | None:
        try:
            with open(self._path(uuid), encoding="utf-8") as file:
                record = json.load(file)
            return {"boot_id": record["boot_id"], "found_w": float(record["found_w"]), "set_w": list(record["set_w"])}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            say(f"{self._path(uuid)} is no record of a limit and is ignored: {error!r}")
            return None

    def _write(self, uuid: str, record: dict[str, Any]) -> None:
        half = f"{self._path(uuid)}.new"
        with open(half, "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.replace(half, self._path(uuid))


class Client:
    """One connection and the process at its other end, as far as the kernel tells it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.text = connection, b""
        self.holds: set[str] = set()  # UUIDs
        self.pid: int = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        self.pidfd = self._pidfd()

    @property
    def is_gone(self) -> bool:
        poll = select.poll()
        if self.pidfd is None:
            poll.register(self.connection, select.POLLHUP | select.POLLERR)
        else:
            poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        self.connection.close()
        if self.pidfd is not None:
            os.close(self.pidfd)

    def _pidfd(self) -> int | None:
        with contextlib.suppress(OSError):  # of the very process that connected, whatever became of its number
            return int(struct.unpack("i", self.connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4))[0])
        with contextlib.suppress(OSError, AttributeError):  # pid 0: in a PID namespace that is not seen from here
            return os.pidfd_open(self.pid) if self.pid > 0 else None
        return None


class Sidecar:
    """Serves one socket until it is told to stop."""

    def __init__(self, gpus: Gpus, listener: socket.socket, wake: int) -> None:
        self._gpus, self._listener, self._wake = gpus, listener, wake
        self._clients: dict[int, Client] = {}  # descriptor of the connection or of the pidfd -> client
        self._owed = set(gpus.changed)  # GPUs whose limit is to be given back
        self._poll = select.poll()
        for descriptor in (listener.fileno(), wake):
            self._poll.register(descriptor, select.POLLIN)

    def run(self) -> int:
        while True:
            self._pay()
            ready = [d for d, _ in self._poll.poll(AGAIN_S * 1000 if self._owed else None)]
            for client in {self._clients[d] for d in ready if d in self._clients}:
                self._look_at(client)
            if self._listener.fileno() in ready:
                self._accept()
            if self._wake in ready:
                break
        self._owed.update(self._gpus.changed)
        self._pay()
        return 1 if self._owed else 0

    def _pay(self) -> None:
        for uuid in sorted(self._owed):
            try:
                self._gpus.restore(uuid)
                self._owed.discard(uuid)
            except OSError as error:
                say(f"{uuid}: the limit found could not be given back and is tried again: {error}")

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has left again
            return
        if len(set(self._clients.values())) >= MOST_CLIENTS:
            connection.close()
            return
        connection.setblocking(False)
        client = Client(connection)
        for descriptor in (connection.fileno(), *([] if client.pidfd is None else [client.pidfd])):
            self._clients[descriptor] = client
            self._poll.register(descriptor, select.POLLIN)

    def _look_at(self, client: Client) -> None:
        """Take what it says; a client that ended, or talks nonsense without end, is dropped."""
        alive = True
        try:
            while alive and (part := client.connection.recv(65536)):
                client.text += part
                alive = len(client.text) <= MOST_BYTES
            alive = False  # end of file
        except BlockingIOError:
            pass
        except OSError:
            alive = False
        *lines, client.text = client.text.split(b"\n")
        for line in lines:
            self._answer(client, line)
        if not alive or client.is_gone:
            self._drop(client)

    def _answer(self, client: Client, line: bytes) -> None:
        try:
            answer = {"ok": True, **self._do(client, line)}
        except Exception as error:  # whatever a client may say, the limits of the others are still to be given back
            answer = {"ok": False, "error": str(error) or repr(error)}
        with contextlib.suppress(OSError):  # it left without waiting
            client.connection.send(json.dumps(answer).encode() + b"\n")

    def _do(self, client: Client, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            what, uuids = request["do"], request.get("gpus", [])
            limit_w = float(request["limit_w"]) if what == "set" else 0.0
            is_list = isinstance(uuids, list) and all(isinstance(uuid, str) for uuid in uuids)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise RefusedError(f"not a request: {error!r}") from None
        if what == "limits":
            pids = {uuid: c.pid for c in set(self._clients.values()) if not c.is_gone for uuid in c.holds}
            return {"gpus": {u: {**gpu, "held_by": pids.get(u)} for u, gpu in self._gpus.limits().items()}}
        if what not in ("set", "restore") or not is_list or not uuids:
            raise RefusedError("not a request: do is limits, set or restore, and gpus a list of UUIDs")
        for uuid in uuids:
            if uuid not in self._gpus.uuids:
                raise RefusedError(f"{uuid} is not served here (--gpus {','.join(self._gpus.uuids)})")
            holder = self._holder(uuid)
            if holder not in (None, client):
                raise RefusedError(f"{uuid} is held by process {holder.pid}")
        return self._set(client, uuids, limit_w) if what == "set" else self._restore(uuids)

    def _set(self, client: Client, uuids: list[str], limit_w: float) -> dict[str, Any]:
        for uuid in uuids:
            self._owed.discard(uuid)
            client.holds.add(uuid)
            self._gpus.change(uuid, limit_w)
        return {}

    def _restore(self, uuids: list[str]) -> dict[str, Any]:
        for uuid in uuids:
            for other in set(self._clients.values()):
                other.holds.discard(uuid)
            self._owed.add(uuid)
        done = {uuid: self._gpus.restore(uuid) for uuid in uuids}
        self._owed.difference_update(uuids)
        return {"gpus": done}

    def _holder(self, uuid: str) -> Client | None:
        """The living client that holds a GPU."""
        return next((c for c in set(self._clients.values()) if uuid in c.holds and not c.is_gone), None)

    def _drop(self, client: Client) -> None:
        for descriptor in [d for d, c in self._clients.items() if c is client]:
            self._poll.unregister(descriptor)
            del self._clients[descriptor]
        client.close()
        self._owed.update(client.holds)


def is_one_of(limit_w: float, limits_w: list[float]) -> bool:
    return any(abs(limit_w - other_w) < SAME_W for other_w in limits_w)


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def listen(path: str, group: str | None) -> socket.socket:
    """A socket that root and the group may connect to."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # of an earlier process: this one alone holds the lock of the state folder
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    if group is not None:
        os.chown(path, -1, int(group) if group.isdigit() else grp.getgrnam(group).gr_gid)
        os.chmod(path, 0o660)
    listener.listen(socket.SOMAXCONN)
    return listener


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gpus", required=True, help="UUIDs of the GPUs to serve, with commas between; or all")
    parser.add_argument("--group", help="group (name or number) that may connect (default: root alone)")
    parser.add_argument("--socket", default="/run/zeus/power.sock", help="default: %(default)s")
    parser.add_argument("--state", default="/run/zeus/limits", help="folder of records (default: %(default)s)")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    for folder in (os.path.dirname(options.socket) or ".", options.state):
        os.makedirs(folder, mode=0o755, exist_ok=True)
    lock = os.open(os.path.join(options.state, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"another sidecar serves with the records in {options.state}")
        return 1
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    try:
        nvml = Nvml()
        here = nvml.uuids()
        uuids = here if options.gpus == "all" else [uuid.strip() for uuid in options.gpus.split(",")]
        if missing := [uuid for uuid in uuids if uuid not in here]:
            raise OSError(f"no such GPU here: {', '.join(missing)} (there are: {', '.join(here) or 'none'})")
        gpus = Gpus(nvml, uuids, options.state)
        sidecar = Sidecar(gpus, listen(options.socket, options.group), wake)
    except (OSError, KeyError) as error:
        say(f"cannot start: {error}")
        return 1
    say(f"serving {', '.join(uuids)} on {options.socket}")
    status = sidecar.run()
    os.unlink(options.socket)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
