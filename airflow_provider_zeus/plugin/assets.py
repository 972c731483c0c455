"""The page's files, read once per process: a fixed list, so no request can name another file."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

STATIC = Path(__file__).parent / "static"
PAGE = "page.html"
CHARTS = "echarts.common.min.js"  # brought by the build, not a part of the repository
TYPES = {"page.js": "text/javascript", "page.css": "text/css", CHARTS: "text/javascript"}
_TAG = "VERSION"  # in page.html: stands for tag()


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, as it is and compressed."""

    plain: bytes
    zipped: bytes
    media_type: str


@cache
def asset(name: str) -> Asset | None:
    """A file of the page; None where there is none of this name. The chart library may be missing."""
    path = STATIC / name
    if name not in TYPES or not path.is_file():
        return None
    plain, ready = path.read_bytes(), path.with_name(f"{name}.gz")
    return Asset(plain, _built(ready, plain) or gzip.compress(plain, 9, mtime=0), TYPES[name])


def _built(ready: Path, plain: bytes) -> bytes | None:
    """The compressed copy that the build left; None where there is none, or one of another version."""
    try:
        zipped = ready.read_bytes()
        return zipped if gzip.decompress(zipped) == plain else None
    except (OSError, EOFError, zlib.error):
        return None


@cache
def tag() -> str:
    """Changes with any of the files: a part of their addresses, so that browsers may keep them for ever."""
    digest = hashlib.sha256()
    for name in TYPES:
        found = asset(name)
        digest.update(found.plain if found else b"-")
    return digest.hexdigest()[:12]


@cache
def page() -> bytes:
    """The page, its files' addresses filled in."""
    return (STATIC / PAGE).read_bytes().replace(_TAG.encode(), tag().encode())
