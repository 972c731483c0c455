"""The page's files, read once per process: those of our own folder, so no request can name another file."""

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
TYPES = {".js": "text/javascript", ".css": "text/css"}
_TAG = "VERSION"  # in page.html: stands for tag()


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, as it is and compressed."""

    plain: bytes
    zipped: bytes
    media_type: str


@cache
def names() -> tuple[str, ...]:
    """Scripts and style sheets of the page, sorted."""
    return tuple(sorted(p.name for p in STATIC.iterdir() if p.suffix in TYPES and p.is_file()))


@cache
def asset(name: str) -> Asset | None:
    """A file of the page; None where there is none of this name. The chart library may be missing."""
    if name not in names():
        return None
    path = STATIC / name
    plain, ready = path.read_bytes(), path.with_name(f"{name}.gz")
    return Asset(plain, _built(ready, plain) or gzip.compress(plain, 9, mtime=0), TYPES[path.suffix])


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
    for name in names():
        digest.update(name.encode())
        digest.update((STATIC / name).read_bytes())
    return digest.hexdigest()[:12]


@cache
def page() -> bytes:
    """The page, its files' addresses filled in."""
    return (STATIC / PAGE).read_bytes().replace(_TAG.encode(), tag().encode())
