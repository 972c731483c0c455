"""``airflow zeus demo``: what it says where something is missing,
and what it triggers where nothing is.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from airflow_provider_zeus.airflow_compat import DagModel, DagRun, ParseImportError, create_session
from airflow_provider_zeus.cli import demo
from airflow_provider_zeus.cli.demo import DAG_ID, JOB_ID
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store.sql.store import Store
from tests.certificates import self_signed
from tests.receivers import serving
from tests.unit.cli.conftest import Zeus
from tests.unit.dags.conftest import DAGS
from tests.unit.store.store_kit import report, request

BUNDLE = "zeus-demo-test"


@pytest.fixture(autouse=True)
def _nobody_at_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """The api-server's port is one at which nothing answers, whatever runs on this host."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://127.0.0.1:9")


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> None:
    """All servers run, as far as their heartbeats tell."""
    monkeypatch.setattr(demo, "not_running", list)


@pytest.fixture
def parsed(home: Path) -> Iterator[None]:
    """The example is in Airflow's database, paused, as its dag-processor leaves it."""
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
    from airflow.models.dagbundle import DagBundleModel

    with create_session() as session:
        if session.get(DagBundleModel, BUNDLE) is None:
            session.add(DagBundleModel(name=BUNDLE))
    bag = BundleDagBag(DAGS / "zeus_demo.py", bundle_path=DAGS, bundle_name=BUNDLE)
    assert bag.import_errors == {}
    with create_session() as session:
        sync_bag_to_db(bag, BUNDLE, bundle_version=None, session=session)
    yield
    with create_session() as session:
        session.execute(sa.delete(DagRun).where(DagRun.dag_id == DAG_ID))
        dag = session.get(DagModel, DAG_ID)
        if dag is not None:
            dag.is_stale = dag.is_paused = True


def run_ids() -> list[str]:
    with create_session() as session:
        return sorted(session.scalars(sa.select(DagRun.run_id).where(DagRun.dag_id == DAG_ID)))


@contextmanager
def ending_soon(state: str = "success") -> Iterator[None]:
    """A scheduler's part: runs that are queued end, until the block is left."""
    left = threading.Event()

    def end() -> None:
        while not left.wait(0.3):
            with suppress(OperationalError), create_session() as session:
                session.execute(
                    sa.update(DagRun).where(DagRun.dag_id == DAG_ID).values(state=state)
                )

    ends = threading.Thread(target=end)
    ends.start()
    try:
        yield
    finally:
        left.set()
        ends.join()


def test_without_servers_it_names_them_and_the_remedy(zeus: Zeus) -> None:
    done = zeus("demo", "--wait", "0")
    assert done.status == 1
    assert "no scheduler, no dag-processor, no api-server at http://" in done.err
    assert "run 'airflow standalone' in another terminal" in done.err


class Answers(BaseHTTPRequestHandler):
    """A server that answers each request, and says nothing."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


# the base class supports no method, and answers by an error
@pytest.mark.parametrize("server", [Answers, BaseHTTPRequestHandler])
def test_an_api_server_that_answers_runs_whatever_it_says(
    home: Path, monkeypatch: pytest.MonkeyPatch, server: type[BaseHTTPRequestHandler]
) -> None:
    def is_missing() -> bool:
        return any("api-server" in part for part in demo.not_running())

    assert is_missing()
    with serving(server) as port:
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", f"http://127.0.0.1:{port}")
        assert not is_missing()


def test_an_api_server_runs_whoever_signed_its_certificate(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(self_signed(tmp_path / "both.pem", "airflow.example"))
    with serving(Answers, tls) as port:
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", f"https://127.0.0.1:{port}")
        assert not any("api-server" in part for part in demo.not_running())


def test_without_a_database_it_says_so(zeus: Zeus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        demo, "not_migrated", lambda: "Airflow's metadata database lacks the tables"
    )
    assert (
        "No Airflow runs here: Airflow's metadata database lacks the tables; run 'airflow"
        " standalone'" in (zeus("demo", "--wait", "0").err)
    )


def test_it_waits_and_says_for_what_once(zeus: Zeus, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def sleep(for_s: float) -> None:
        nonlocal now_s
        now_s += for_s

    monkeypatch.setattr(demo, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=sleep))
    done = zeus("demo", "--wait", "5")
    assert (done.status, now_s) == (1, 5.0)
    assert done.out.count("Waiting for it, ") == 1
    assert "Waiting for it, 5 s at most" in done.out


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize(
    ("load_examples", "said"),
    [
        (
            "False",
            ("[core] load_examples is off here", "AIRFLOW__CORE__LOAD_EXAMPLES=True", "or copy "),
        ),
        ("True", ("loads no examples of providers", "copy ")),
    ],
)
def test_where_the_examples_are_not_loaded_it_names_the_remedy(
    zeus: Zeus, monkeypatch: pytest.MonkeyPatch, load_examples: str, said: tuple[str, ...]
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", load_examples)
    done = zeus("demo", "--wait", "0")
    assert done.status == 1
    # an installation in place: the checkout's file
    for text in (*said, str(DAGS / "zeus_demo.py")):
        assert text in done.err


@pytest.mark.usefixtures("running")
def test_a_dag_that_is_not_parsed_yet_is_waited_for(
    zeus: Zeus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "True")
    monkeypatch.setattr(Path, "is_relative_to", lambda *_: True)
    assert "is not parsed yet" in zeus("demo", "--wait", "0").err


@pytest.mark.usefixtures("running", "home")
def test_an_import_error_is_shown(zeus: Zeus) -> None:
    with create_session() as session:
        session.add(
            ParseImportError(
                filename="zeus_demo.py", stacktrace="Traceback\n  x\nImportError: no numpy\n"
            )
        )
    try:
        assert "cannot be imported: ImportError: no numpy" in zeus("demo", "--wait", "0").err
    finally:
        with create_session() as session:
            session.execute(sa.delete(ParseImportError))


@pytest.mark.usefixtures("running", "parsed")
def test_runs_are_triggered_once_and_followed(
    zeus: Zeus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = replace(request(1).origin, dag_id=DAG_ID, run_id="zeus-demo-01")
    trial = store.ask(request(1, job_id=JOB_ID, origin=origin)).trial
    store.tell(trial.key, State.CONVERGED, report(trial.batch_size))
    monkeypatch.setattr(demo, "POLL_S", 0.2)
    with ending_soon():
        first = zeus("demo")
    assert (first.status, first.err) == (0, "")
    lines = first.out.splitlines()
    assert lines[0] == "10 runs of zeus_demo triggered, 0 were there already."
    assert lines[1].startswith("The page: http://127.0.0.1:")
    assert lines[1].endswith("/dags/zeus_demo/plugin/zeus-cost")
    ended = [line.split()[:3] for line in lines if "/10 " in line]
    assert ended[0] == ["1/10", "zeus-demo-01", "reached"]
    assert ended[1:] == [[f"{n}/10", f"zeus-demo-{n:02}", "success"] for n in range(2, 11)], (
        "they left no trial"
    )
    with create_session() as session:
        assert session.get(DagModel, DAG_ID).is_paused is False  # type: ignore[union-attr]
    assert run_ids() == [f"zeus-demo-{n:02}" for n in range(1, 11)]
    again = zeus("demo")
    assert (again.status, again.out.splitlines()[0]) == (
        0,
        "0 runs of zeus_demo triggered, 10 were there already.",
    )
    with ending_soon():
        more = zeus("demo", "--runs", "11")
    assert (more.status, more.out.splitlines()[0]) == (
        0,
        "1 run of zeus_demo triggered, 10 were there already.",
    )
    assert len(run_ids()) == 11


@pytest.mark.usefixtures("running", "parsed")
def test_a_run_that_failed_is_named(zeus: Zeus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "POLL_S", 0.2)
    with ending_soon("failed"):
        done = zeus("demo", "--runs", "2")
    assert done.status == 1
    assert "zeus-demo-01, zeus-demo-02 failed: see the task's log at http://" in done.err


@pytest.mark.usefixtures("running", "parsed")
def test_runs_that_do_not_end_are_not_awaited_for_ever(
    zeus: Zeus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "RUN_S", 0.0)
    done = zeus("demo", "--runs", "1")
    assert done.status == 1
    assert "No run has ended for 0 s (zeus-demo-01 is queued)" in done.err


def test_a_locked_database_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "POLL_S", 0.0)
    tries: list[int] = []

    def write() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise OperationalError("INSERT", {}, Exception("database is locked"))
        return "written"

    assert demo._patiently(write) == "written"

    def never() -> Any:
        raise OperationalError("INSERT", {}, Exception("database is locked"))

    with pytest.raises(demo.DemoError, match="database is locked"):
        demo._patiently(never)


def test_the_address_is_that_of_the_configuration(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__API__PORT", "8123")
    monkeypatch.delenv("AIRFLOW__API__BASE_URL", raising=False)
    assert demo.ui_url() == "http://127.0.0.1:8123"
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.org/a/")
    assert demo.ui_url() == "https://airflow.example.org/a"
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://127.0.0.1:9")
    assert "api-server at http://127.0.0.1:9" in demo.not_running()
