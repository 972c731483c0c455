"""All that can be checked of a release without a network: ``make release-check`` runs this.

    python -m tests.release_check [--tag v1.2.3] [--out dist]

Builds sdist and wheel twice, the wheel from the sdist as an installer does, and leaves them in
``--out``. With ``--tag`` the release itself is checked: the tag is the version's, and the changelog
has its date. Each fault is a line; with any, the exit status is 1.
"""

from __future__ import annotations

import argparse
import base64
import csv
import email
import email.message
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
PACKAGE = "airflow_provider_zeus/"
EXAMPLES = "airflow_provider_zeus/example_dags/"
STAMP = PACKAGE + "plugin/static/echarts.json"
URLS = {"Homepage", "Source", "Documentation", "Changelog", "Issues"}
HEADING = re.compile(r"^## (?P<version>\S+) \((?P<date>[^)]+)\)$", re.M)
UNWANTED = re.compile(r"__pycache__|\.py[co]$|node_modules|\.part$|(^|/)\.env|\.cdx\.json\.")


class Built(NamedTuple):
    """What was built: files by name, without the sdist's folder."""

    sdist_path: Path
    wheel_path: Path
    sdist: dict[str, bytes]
    wheel: dict[str, bytes]

    @property
    def info(self) -> str:
        """The wheel's ``dist-info`` folder, with a slash."""
        return next(
            name for name in self.wheel if name.endswith(".dist-info/METADATA")
        ).removesuffix("METADATA")

    @property
    def metadata(self) -> email.message.Message:
        """The wheel's core metadata."""
        return email.message_from_bytes(self.wheel[self.info + "METADATA"])

    @property
    def version(self) -> str:
        """As the wheel says it."""
        return str(self.metadata["Version"])


def build(out: Path, source: Path = ROOT) -> Built:
    """An sdist of ``source``, and the wheel of that sdist, by the hatchling installed here.

    Raises RuntimeError.
    """
    sdist = _hatchling("sdist", source, out)
    with (
        tempfile.TemporaryDirectory(prefix="zeus-release-") as folder,
        tarfile.open(sdist) as archive,
    ):
        archive.extractall(folder, filter="data")
        (unpacked,) = Path(folder).iterdir()
        wheel = _hatchling("wheel", unpacked, out)
    return read(sdist, wheel)


def _hatchling(kind: str, source: Path, out: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        kind,
        "--directory",
        str(out),
    ]
    kept = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    done = subprocess.run(
        command, cwd=source, env=kept, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"no {kind} of {source}: {done.stdout}{done.stderr}")
    return next(out.glob("*.whl" if kind == "wheel" else "*.tar.gz"))


def read(sdist: Path, wheel: Path) -> Built:
    """Both archives, as files by name."""
    with tarfile.open(sdist) as archive:
        files = ((member.name, archive.extractfile(member)) for member in archive.getmembers())
        packed = {name.partition("/")[2]: file.read() for name, file in files if file}
    with ZipFile(wheel) as zipped:
        return Built(sdist, wheel, packed, {name: zipped.read(name) for name in zipped.namelist()})


# --- checks: each gives its faults, a line for each


def same_twice(built: Built, again: Built) -> list[str]:
    """Two builds of one checkout are equal, byte for byte."""
    pairs = [(built.sdist_path, again.sdist_path), (built.wheel_path, again.wheel_path)]
    return [
        f"{one.name}: two builds differ"
        for one, two in pairs
        if one.read_bytes() != two.read_bytes()
    ]


def contents(built: Built) -> list[str]:
    """The wheel holds the package and the examples of the sdist, its own metadata,
    and no more; RECORD agrees.
    """
    package = {name for name in built.sdist if name.startswith(PACKAGE)}
    dags = {
        EXAMPLES + name.removeprefix("dags/") for name in built.sdist if name.startswith("dags/")
    }
    licences = built.metadata.get_all("License-File") or []
    info = {
        "METADATA",
        "WHEEL",
        "RECORD",
        "entry_points.txt",
        "sboms/airflow-provider-zeus.cdx.json",
    }
    info |= {f"licenses/{name}" for name in licences}
    wanted = package | dags | {built.info + name for name in info}
    found = set(built.wheel)
    faults = [f"wheel: {name} is missing" for name in sorted(wanted - found)]
    faults += [f"wheel: {name} does not belong there" for name in sorted(found - wanted)]
    faults += [
        f"packed, and should not be: {name}"
        for name in {*built.sdist, *built.wheel}
        if UNWANTED.search(name)
    ]
    rows = {
        name: digest
        for name, digest, _ in csv.reader(built.wheel[built.info + "RECORD"].decode().splitlines())
    }
    digests = {name: _digest(data) for name, data in built.wheel.items()} | {
        built.info + "RECORD": ""
    }
    return faults + [
        f"RECORD: {name} is not as packed" for name in digests if rows.get(name) != digests[name]
    ]


def _digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def metadata(built: Built) -> list[str]:
    """Version, URLs and licences are those of the files;
    no relative link is in the long description.
    """
    found = built.metadata
    faults = []
    said = re.search(rb'^__version__ = "(.+)"$', built.wheel[PACKAGE + "__init__.py"], re.M)
    if said is None or said[1].decode() != built.version:
        faults.append(
            f"METADATA says version {built.version}, the package {said and said[1].decode()}"
        )
    urls = dict(line.split(", ", 1) for line in found.get_all("Project-URL") or [])
    faults += [f"Project-URL: no {label}" for label in sorted(URLS - set(urls))]
    source = urls.get("Source", "https://")
    owner, _, name = source.removeprefix("https://github.com/").partition("/")
    site = f"https://{owner}.github.io/{name}/"
    own = [urls[label] for label in URLS & set(urls)]
    faults += [
        f"Project-URL: {url} is elsewhere" for url in own if not url.startswith((source, site))
    ]
    for name in found.get_all("License-File") or []:
        if built.wheel.get(f"{built.info}licenses/{name}") != built.sdist.get(name):
            faults.append(f"License-File: {name} is not the file of the sdist")
    bundled = {
        "LICENSE.txt": "licenses/echarts/LICENSE.txt",
        "NOTICE.txt": "licenses/echarts/NOTICE.txt",
    }
    for end, name in bundled.items():
        if name not in (found.get_all("License-File") or []):
            faults.append(f"License-File: no {name}")
        elif built.wheel.get(f"{PACKAGE}plugin/static/echarts.{end}") != built.sdist.get(name):
            faults.append(f"{name} is not the one of the chart library")
    return faults + [
        f"long description: {link} leads nowhere"
        for link in relative_links(str(found.get_payload()))
    ]


def relative_links(markdown: str) -> list[str]:
    """Links and pictures of a text, shown as a package index shows it,
    that need a file beside them.
    """
    from readme_renderer.markdown import render

    shown = render(markdown)
    if shown is None:
        return ["(the text cannot be shown)"]
    return [
        link
        for link in re.findall(r'(?:href|src)="([^"]*)"', shown)
        if not link.startswith(("https://", "#"))
    ]


def bill_of_materials(built: Built) -> list[str]:
    """The SBOM is valid CycloneDX, names this wheel and the library in it,
    and its licences are those of the wheel.
    """
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = built.wheel.get(built.info + "sboms/airflow-provider-zeus.cdx.json", b"{}").decode()
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        return [f"SBOM: {error}"[:500]]
    document = json.loads(text)
    faults = []
    own = document.get("metadata", {}).get("component", {})
    components = {each["name"]: each for each in document.get("components", [])}
    if own.get("version") != built.version:
        faults.append(f"SBOM: of version {own.get('version')}, not {built.version}")
    stamped = json.loads(built.wheel[STAMP])["version"]
    if (listed := components.get("echarts", {}).get("version")) != stamped:
        faults.append(f"SBOM: echarts {listed}, but the wheel has {stamped}")
    said = _licences([built.metadata["License-Expression"] or ""])
    listed_ids = _licences(_expressions(document))
    if said != listed_ids:
        faults.append(f"License-Expression says {sorted(said)}, the SBOM {sorted(listed_ids)}")
    return faults


def _expressions(document: dict[str, Any]) -> Iterable[str]:
    for each in [document["metadata"]["component"], *document["components"]]:
        yield from (licence["expression"] for licence in each["licenses"])


def _licences(expressions: Iterable[str]) -> set[str]:
    return {part for expression in expressions for part in expression.split(" AND ") if part}


def entry_points(built: Built) -> list[str]:
    """Every entry point loads from the wheel's own files."""
    with tempfile.TemporaryDirectory(prefix="zeus-wheel-") as folder:
        with ZipFile(built.wheel_path) as archive:
            archive.extractall(folder)
        code = (
            "import sys; from importlib.metadata import distributions\n(found,) ="
            f" distributions(name='airflow-provider-zeus', path=[{folder!r}])\nassert"
            " len(found.entry_points) == 3, list(found.entry_points)\nfor each in"
            " found.entry_points:\n    each.load()\n    assert"
            f" sys.modules[each.module].__file__.startswith({folder!r}), sys.modules[each.module]\n"
        )
        kept = {**os.environ, "PYTHONPATH": folder, "AIRFLOW_HOME": f"{folder}/home"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            env=kept,
            capture_output=True,
            text=True,
            check=False,
        )
    return [f"entry points: {done.stderr.strip()[-500:]}"] if done.returncode else []


def changelog(built: Built, tag: str | None = None) -> list[str]:
    """The newest section is this version's; of a release it has the day,
    and the tag is the version's.
    """
    newest = HEADING.search(built.sdist["CHANGELOG.md"].decode())
    if newest is None or newest["version"] != built.version:
        return [
            f"CHANGELOG.md begins with {newest and newest['version']}, the version is"
            f" {built.version}"
        ]
    if tag is None:
        return []
    faults = (
        [] if tag == f"v{built.version}" else [f"the tag is {tag}, the version {built.version}"]
    )
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", newest["date"]):
        faults.append(
            f"CHANGELOG.md: ({newest['date']}) is no day; a release says it as (YYYY-MM-DD)"
        )
    return faults


def twine(built: Built) -> list[str]:
    """What the package index checks of both files."""
    command = [
        sys.executable,
        "-m",
        "twine",
        "check",
        "--strict",
        str(built.sdist_path),
        str(built.wheel_path),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"}
    )
    return [f"twine check: {done.stdout}{done.stderr}"] if done.returncode else []


def main(arguments: list[str] | None = None) -> int:
    """Build, check, report."""
    parser = argparse.ArgumentParser(prog="python -m tests.release_check")
    parser.add_argument(
        "--tag", help="of the release; without it a version that is not yet released is right, too"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    options = parser.parse_args(arguments)
    options.out.mkdir(exist_ok=True)
    for old in (*options.out.glob("*.whl"), *options.out.glob("*.tar.gz")):
        old.unlink()
    built = build(options.out)
    with tempfile.TemporaryDirectory(prefix="zeus-again-") as folder:
        same = same_twice(built, build(Path(folder)))
    checks: list[Callable[[Built], list[str]]] = [
        contents,
        metadata,
        bill_of_materials,
        entry_points,
        twine,
    ]
    faults = same + changelog(built, options.tag or None)
    for check in checks:
        faults += check(built)
    print(
        *faults
        or [
            f"{built.sdist_path.name} and {built.wheel_path.name} ({len(built.wheel)} files): no"
            " fault."
        ],
        sep="\n",
    )
    return int(bool(faults))


if __name__ == "__main__":
    raise SystemExit(main())
