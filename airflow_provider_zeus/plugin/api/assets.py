"""The page's files, read once per process. Requests can name only files of the folder ``static``."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

STATIC = Path(__file__).parents[1] / "static"
PAGE = "page.html"
CHARTS = "echarts.common.min.js"  # added by the build, not in the repository
TYPES = {".js": "text/javascript", ".css": "text/css"}
_TAG = "VERSION"  # in page.html: replaced by tag()


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, plain and compressed."""

    plain: bytes
    gzip: bytes
    media_type: str


@cache
def names() -> tuple[str, ...]:
    """Names of the page's scripts and style sheets, sorted."""
    return tuple(sorted(p.name for p in STATIC.iterdir() if p.suffix in TYPES and p.is_file()))


@cache
def asset(name: str) -> Asset | None:
    """A file of the page; None where there is no such file. The chart library may be missing."""
    if name not in names():
        return None
    path = STATIC / name
    plain, compressed = path.read_bytes(), None
    with suppress(OSError, EOFError, zlib.error):  # the build may have left no compressed copy, or a broken one
        built = path.with_name(f"{name}.gz").read_bytes()
        compressed = built if gzip.decompress(built) == plain else None  # it may be of another version
    return Asset(plain, compressed or gzip.compress(plain, 9, mtime=0), TYPES[path.suffix])


@cache
def tag() -> str:
    """A hash of all files. It is part of their addresses, so that browsers may cache them permanently."""
    digest = hashlib.sha256()
    for name in names():
        digest.update(name.encode())
        digest.update((STATIC / name).read_bytes())
    return digest.hexdigest()[:12]


@cache
def page() -> bytes:
    """The HTML page, with :func:`tag` in the addresses of its files."""
    return (STATIC / PAGE).read_bytes().replace(_TAG.encode(), tag().encode())
