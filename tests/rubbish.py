"""Odd things that may lie in a folder under the name of a file that we look for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

NESTED = b"[" * 4096
HUGE_BYTES = 2**25  # sparse


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HUGE_BYTES)


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path has to be short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


FILES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.touch(),
    "half": lambda path: path.write_bytes(b'{"restore": {"kind": "simu'),
    "nested": lambda path: path.write_bytes(NESTED),
    "nested objects": lambda path: path.write_bytes(b'{"a":' * 800),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 64),
    "huge": _huge,
    "a list": lambda path: path.write_bytes(b"[]"),
    "unknown device": lambda path: path.write_bytes(
        b'{"restore": [{"kind": "?"}], "found_w": 1, "set_w": []}'
    ),
    "no power": lambda path: path.write_bytes(
        b'{"restore": {"kind": "nvml", "uuid": 7}, "found_w": 1e999, "set_w": 3}'
    ),
}
NO_FILES: dict[str, Callable[[Path], object]] = {
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "socket": _socket,
}
EVERYTHING = FILES | NO_FILES
