"""A ``libnvidia-ml.so.1`` without a GPU (fake_nvml.c), built by the system's compiler,
for the unmodified pynvml.

In a test's own process it is loaded before pynvml looks for the name that it bears (:func:`load`);
child processes find it by ``LD_LIBRARY_PATH`` (:attr:`FakeNvml.environment`).
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import mmap
import os
import shutil
import subprocess
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

SONAME = "libnvidia-ml.so.1"
SOURCE = Path(__file__).with_name("fake_nvml.c")


class Gpu(ctypes.Structure):
    """One GPU's state; every field may be read and set while it is in use.

    Names and UUIDs are bytes.
    """

    _fields_ = (
        *[(name, ctypes.c_char * 64) for name in ("name", "uuid", "mig_uuid")],
        *[
            (name, ctypes.c_double)
            for name in (
                *(
                    "min_w",
                    "max_w",
                    "default_w",
                    "limit_w",
                    "cap_w",
                    "floor_w",
                    "idle_w",
                    "demand_w",
                ),
                *(
                    "in_force_w",
                    "energy_mj",
                    "counter_mj",
                    "at_s",
                    "tick_s",
                    "settle_s",
                    "slow_s",
                    "busy_percent",
                ),
                *("clock_mhz", "max_clock_mhz", "capped_ns"),
            )
        ],
        ("enforced_profiles", ctypes.c_uint32 * 8),
        *[
            (name, ctypes.c_int32)
            for name in (
                "may_set",
                "has_counter",
                "has_power",
                "mig_enabled",
                "processes",
                "lost",
                "deaf",
                "has_mig_mode",
                "own_pid",
                "has_violations",
                "reasons",
                "resting",
                "has_samples",
                "has_power_profiles",
            )
        ],
    )


class _Fault(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_char * 64),
        *[(n, ctypes.c_int32) for n in ("code", "after", "times", "seen", "pid")],
    )


class _Count(ctypes.Structure):
    _fields_ = (("function", ctypes.c_char * 64), ("calls", ctypes.c_int32))


class _Set(ctypes.Structure):
    _fields_ = (
        *[(n, ctypes.c_int32) for n in ("gpu", "pid", "code")],
        ("limit_w", ctypes.c_double),
    )


class _State(ctypes.Structure):
    _fields_ = (
        ("magic_and_lock", ctypes.c_char * 136),
        ("clock_s", ctypes.c_double),
        *[(n, ctypes.c_int32) for n in ("gpus", "driver_missing", "sets_done", "abused")],
        ("gpu", Gpu * 8),
        ("fault", _Fault * 16),
        ("count", _Count * 32),
        ("set", _Set * 64),
    )


class FakeNvml:
    """A host with GPUs and a driver: what tests arrange, and what reached the library."""

    def __init__(self, path: Path) -> None:
        library = load()
        assert library.fake_nvml_size() == ctypes.sizeof(_State), (
            "fake_nvml.c and this file disagree"
        )
        assert library.fake_nvml_create(os.fsencode(path)) == 0, f"{path} cannot be created"
        self.path = path
        with path.open("r+b") as file:
            self._state = _State.from_buffer(mmap.mmap(file.fileno(), 0))

    def add(self, name: str = "Tesla V100-SXM2-16GB", **changes: Any) -> Gpu:
        """One more GPU, next in the order of the bus: 100 to 250 W, at its highest limit,
        under load.
        """
        index = self._state.gpus
        gpu = self._state.gpu[index]
        fields: dict[str, Any] = {
            "name": name.encode(),
            "uuid": b"GPU-%08d-1111-2222-3333-444455556666" % (index + 1),
            "mig_uuid": b"MIG-%08d-1111-2222-3333-444455556666" % (index + 1),
            "at_s": time.monotonic(),
        }
        fields |= {
            "min_w": 100.0,
            "max_w": 250.0,
            "idle_w": 40.0,
            "demand_w": 240.0,
            "tick_s": 0.02,
            "settle_s": 0.05,
        }
        fields |= {
            "busy_percent": 90.0,
            "may_set": 1,
            "has_counter": 1,
            "has_power": 1,
            "has_mig_mode": 1,
        } | changes
        fields = {
            "clock_mhz": 1380.0,
            "max_clock_mhz": 1530.0,
            "has_violations": 1,
            "has_samples": 1,
            **fields,
        }
        fields = {"limit_w": fields["max_w"], **fields}
        fields = {"default_w": fields["max_w"], "in_force_w": fields["limit_w"], **fields}
        for field, value in fields.items():
            setattr(gpu, field, value)
        self._state.gpus = index + 1
        return gpu

    def tell_time(self, now_s: float) -> None:
        """From now on time is what is told here [s],
        beginning after the host's ``time.monotonic()``.
        """
        self._state.clock_s = now_s

    def gpu(self, index: int) -> Gpu:
        """A GPU by its place on the bus."""
        return self._state.gpu[index]

    def fail(
        self, function: str, code: int, *, after: int = 0, times: int = -1, pid: int = 0
    ) -> None:
        """Let a function answer ``code`` after so many good calls, so many times (-1: for good)."""
        fault = next(f for f in self._state.fault if f.function in (b"", function.encode()))
        fault.code = code
        fault.after = after
        fault.times = times
        fault.seen = 0
        fault.pid = pid
        fault.function = function.encode()

    def hang(self, function: str = "*", *, after: int = 0, pid: int = 0) -> None:
        """Let a function, or any, never return after so many good calls,
        in all processes or in one alone.
        """
        never = -1
        self.fail(function, never, after=after, pid=pid)

    def heal(self) -> None:
        """Nothing fails any more."""
        for fault in self._state.fault:
            fault.function = b""

    def calls(self) -> dict[str, int]:
        """Function -> how often it was called, by all processes."""
        return {c.function.decode(): c.calls for c in self._state.count if c.function}

    @property
    def sets(self) -> list[float]:
        """Every limit [W] with which the setter was called, refused or not, in order."""
        assert self._state.sets_done <= len(self._state.set)
        return [s.limit_w for s in self._state.set[: self._state.sets_done]]

    @property
    def setters(self) -> list[int]:
        """The process that made each of these calls."""
        return [s.pid for s in self._state.set[: self._state.sets_done]]

    @property
    def abused(self) -> int:
        """Calls of forked processes that did not initialise the library themselves."""
        return int(self._state.abused)

    def lose_driver(self) -> None:
        """From now on initialising fails: driver not loaded."""
        self._state.driver_missing = 1

    @property
    def environment(self) -> dict[str, str]:
        """With which a process finds this host's library and driver."""
        folders = [str(compiled().parent), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            "FAKE_NVML_STATE": str(self.path),
            "LD_LIBRARY_PATH": ":".join(filter(None, folders)),
        }


def compiler() -> str | None:
    """The system's C compiler, None where there is none."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@lru_cache(maxsize=1)
def compiled() -> Path:
    """The built library: built once for each state of its source,
    and kept in the folder for temporary files.
    """
    source = SOURCE.read_bytes()
    folder = (
        Path(tempfile.gettempdir())
        / f"zeus-fake-nvml-{os.getuid()}-{hashlib.sha256(source).hexdigest()[:16]}"
    )
    folder.mkdir(mode=0o700, exist_ok=True)
    assert folder.stat().st_uid == os.getuid(), f"{folder} is another user's"
    built = folder / SONAME
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the first of the test processes builds it for all
        if not built.exists():
            _build(built)
    return built


def _build(built: Path) -> None:
    cc = compiler()
    assert cc is not None
    fresh = built.with_name(f"{SONAME}.{os.getpid()}")
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"]
    subprocess.run(
        [cc, *flags, f"-Wl,-soname,{SONAME}", "-o", str(fresh), str(SOURCE), "-lm", "-lpthread"],
        check=True,
    )
    fresh.replace(built)


@lru_cache(maxsize=1)
def load() -> ctypes.CDLL:
    """Load it into this process, so that pynvml's search for the name finds it;
    fails where another was there first.
    """
    loaded = ctypes.CDLL(str(compiled()), mode=ctypes.RTLD_GLOBAL)
    by_name = ctypes.CDLL(SONAME)
    assert hasattr(by_name, "fake_nvml_create"), "a real NVML is loaded in this process"
    return loaded
