"""What ``make release-check`` finds: nothing in this checkout,
and each fault that is put into what was built.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

import airflow_provider_zeus
import hatch_build
from tests import release_check
from tests.release_check import ROOT, Built

pytestmark = pytest.mark.slow  # sdist and wheel are built

ADDRESS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
SBOM = "sboms/airflow-provider-zeus.cdx.json"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Sdist and wheel of this checkout."""
    if not hatch_build.is_current(ROOT):
        pytest.skip(
            "this checkout has no chart library: it is fetched by an installation with a network"
        )
    return release_check.build(tmp_path_factory.mktemp("dist"))


def changed(built: Built, name: str, old: str, new: str) -> Built:
    """With one text of the wheel replaced: ``name`` below its ``dist-info``."""
    path = built.info + name
    text = built.wheel[path].decode()
    assert old in text
    return built._replace(wheel={**built.wheel, path: text.replace(old, new).encode()})


@pytest.mark.parametrize(
    "check",
    [
        release_check.contents,
        release_check.metadata,
        release_check.bill_of_materials,
        release_check.entry_points,
        release_check.changelog,
        release_check.twine,
    ],
)
def test_this_checkout_has_no_fault(built: Built, check: Callable[[Built], list[str]]) -> None:
    assert check(built) == []


def test_two_builds_are_equal(built: Built, tmp_path: Path) -> None:
    again = release_check.build(tmp_path)
    assert release_check.same_twice(built, again) == []
    again.wheel_path.write_bytes(again.wheel_path.read_bytes() + b"\0")
    assert release_check.same_twice(built, again) == [f"{again.wheel_path.name}: two builds differ"]


def test_the_metadata_is_what_an_index_shows(built: Built) -> None:
    found = built.metadata
    assert found["Version"] == airflow_provider_zeus.__version__
    assert found["License-Expression"] == "Apache-2.0 AND BSD-3-Clause AND 0BSD"
    assert found.get_all("License-File") == [
        "LICENSE",
        "licenses/echarts/LICENSE.txt",
        "licenses/echarts/NOTICE.txt",
    ]
    text = str(found.get_payload())
    linked = set(hatch_build.RELATIVE_LINK.findall((ROOT / "README.md").read_text()))
    assert len(linked) > 20, "the README links to its own files"
    for _, _, path, part in linked:
        assert re.search(
            rf"\]\({ADDRESS}/(blob|raw|tree)/v{built.version}/{re.escape(path + part)}\)", text
        ), path
        assert (ROOT / path).exists(), path
    assert release_check.relative_links(text) == []


def test_a_relative_link_is_found() -> None:
    text = "[a](docs/a.md) ![b](b.png) [c](https://h/c) [d](#d)\n\n[e]: e.md\n\nand [e]"
    assert release_check.relative_links(text) == ["docs/a.md", "b.png", "e.md"]


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("METADATA", "\nVersion: ", "\nVersion: 9", "METADATA says version 9"),
        ("METADATA", "Project-URL: Issues,", "Project-URL: Other,", "no Issues"),
        (
            "METADATA",
            f"Changelog, {ADDRESS}",
            "Changelog, https://elsewhere.example",
            "elsewhere.example",
        ),
        (
            "METADATA",
            "License-File: licenses/echarts/NOTICE.txt\n",
            "",
            "no licenses/echarts/NOTICE.txt",
        ),
        (
            "METADATA",
            f"]({ADDRESS}/blob/v{airflow_provider_zeus.__version__}/",
            "](",
            "leads nowhere",
        ),
        ("licenses/LICENSE", "Apache", "Apocalypse", "License-File: LICENSE"),
    ],
)
def test_a_fault_of_the_metadata_is_found(
    built: Built, name: str, old: str, new: str, said: str
) -> None:
    assert said in "\n".join(release_check.metadata(changed(built, name, old, new)))


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        (SBOM, '"CycloneDX"', '"Another"', "SBOM: "),
        (
            SBOM,
            '"version": "6.1.0"',
            '"version": "5.0.0"',
            "echarts 5.0.0, but the wheel has 6.1.0",
        ),
        (SBOM, '"0BSD"', '"MIT"', "MIT"),
        ("METADATA", " AND 0BSD", "", "0BSD"),
        ("METADATA", "\nVersion: ", "\nVersion: 9", "SBOM: of version"),
    ],
)
def test_a_fault_of_the_bill_of_materials_is_found(
    built: Built, name: str, old: str, new: str, said: str
) -> None:
    assert said in "\n".join(release_check.bill_of_materials(changed(built, name, old, new)))


def test_a_file_too_many_or_too_few_is_found(built: Built) -> None:
    package = next(name for name in built.wheel if name.endswith("/py.typed"))
    fewer = {name: data for name, data in built.wheel.items() if name != package}
    assert f"wheel: {package} is missing" in release_check.contents(built._replace(wheel=fewer))
    for name in ("tests/test_a.py", "airflow_provider_zeus/.env", "airflow_provider_zeus/a.pyc"):
        more = built._replace(wheel={**built.wheel, name: b""})
        assert f"wheel: {name} does not belong there" in release_check.contents(more)
    other = built._replace(wheel={**built.wheel, package: b"other"})
    assert release_check.contents(other) == [f"RECORD: {package} is not as packed"]
    hidden = built._replace(sdist={**built.sdist, "docs/.env": b""})
    assert release_check.contents(hidden) == ["packed, and should not be: docs/.env"]


@pytest.mark.parametrize(
    ("heading", "tag", "said"),
    [
        ("## {version} (not yet released)", None, None),
        ("## {version} (2026-12-01)", "v{version}", None),
        ("## {version} (not yet released)", "v{version}", "is no day"),
        ("## {version} (2026-12-01)", "v9.9.9", "the tag is v9.9.9"),
        ("## 9.9.9 (2026-12-01)", None, "begins with 9.9.9"),
        ("no heading", None, "begins with None"),
    ],
)
def test_changelog_version_and_tag_agree(
    built: Built, heading: str, tag: str | None, said: str | None
) -> None:
    text = heading.format(version=built.version) + "\n\n## 0.0.1 (2020-01-01)\n"
    if heading == "no heading":
        text = heading
    with_it = built._replace(sdist={**built.sdist, "CHANGELOG.md": text.encode()})
    found = "\n".join(release_check.changelog(with_it, tag and tag.format(version=built.version)))
    assert (said in found) if said else not found


def test_a_hidden_entry_point_is_found(built: Built, tmp_path: Path) -> None:
    broken = tmp_path / built.wheel_path.name
    with ZipFile(broken, "w") as archive:
        for name, data in built.wheel.items():
            archive.writestr(
                name,
                data.replace(b"class ZeusPlugin", b"class Renamed")
                if name.endswith(".py")
                else data,
            )
    (fault,) = release_check.entry_points(built._replace(wheel_path=broken))
    assert "ZeusPlugin" in fault


def test_the_addresses_of_the_repository_agree() -> None:
    """It stands in pyproject.toml; what GitHub shows of the forms cannot read it there."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    for label in release_check.URLS - {"Documentation"}:
        assert urls[label].startswith(ADDRESS)
    owner, _, name = ADDRESS.removeprefix("https://github.com/").partition("/")
    assert urls["Documentation"] == f"https://{owner}.github.io/{name}/"
    named = {
        str(path.relative_to(ROOT))
        for folder in ("airflow_provider_zeus", "docs", ".github", "demo", "dags", "docker")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".yml", ".yaml", ".json", ".html", ".js"}
        and ADDRESS in path.read_text()
    }
    assert named == {".github/ISSUE_TEMPLATE/config.yml"}


def test_the_sbom_is_the_same_each_time() -> None:
    one, two = (json.dumps(hatch_build.bill_of_materials(ROOT, "1.0")) for _ in range(2))
    assert one == two
    assert not re.search("timestamp|serialNumber", one)
