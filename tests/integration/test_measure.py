"""``[zeus] measure``: tasks whose DAGs do not know Zeus, each with one row, whatever way they end."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.sensors.time_delta import TimeDeltaSensor
from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, BaseOperator, task, task_group
from airflow.sdk.exceptions import AirflowSkipException
from airflow.sdk.log import mask_secret

from airflow_provider_zeus.model.trial import Phase, Trial
from airflow_provider_zeus.operators import outside
from airflow_provider_zeus.operators.trial import ZeusTrial
from airflow_provider_zeus.plugin import ZeusPlugin
from airflow_provider_zeus.power import cpu, task_meter
from airflow_provider_zeus.power.cpu import cpu_seconds
from airflow_provider_zeus.store.open import state_dir
from airflow_provider_zeus.store.pending import kept_files
from tests.integration.jobs import job, log_of

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def listens(airflow_home: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """The plugin's listeners alone, for the tasks that a text of ``[zeus] measure`` names: by default a tag.

    Each task has a row, the store as long as it takes, and its energy on a host that lets it wait.
    """
    from airflow.sdk.listener import get_listener_manager

    monkeypatch.setattr(outside, "LEAST_S", 0.0)
    monkeypatch.setattr(outside, "STORE_S", 60.0)
    monkeypatch.setattr(task_meter, "IDLE_SHARE", 0.0)
    manager = get_listener_manager()
    others = manager.pm.get_plugins()

    def listen(text: str) -> None:
        monkeypatch.setenv("AIRFLOW__ZEUS__MEASURE", text)
        manager.clear()
        for listener in ZeusPlugin().listeners:
            manager.add_listener(listener)

    listen("tag:zeus")
    yield listen
    manager.clear()
    for other in others:
        manager.add_listener(other)
    for file in files():
        file.unlink()


def busy(seconds: float) -> None:
    """Keep a processor's thread busy for so long."""
    until_s = time.process_time() + seconds
    while time.process_time() < until_s:
        pass


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Of each measurement the task, and the processor time from its beginning to its end [s].

    A process that another test left counts for nothing: with its end its time would be taken away.
    """
    monkeypatch.setattr(cpu, "_children", lambda _: [])
    begin, end = outside.OutsideMeasurement.__init__, outside.OutsideMeasurement.end
    begun: list[tuple[str, float]] = []
    taken: list[tuple[str, float]] = []

    def begins(self: Any, ti: Any) -> None:
        begun.append((ti.task_id, cpu_seconds()))
        begin(self, ti)

    def ends(self: Any, **how: Any) -> None:
        end(self, **how)
        task_id, begun_s = begun[-1]
        taken.append((task_id, cpu_seconds() - begun_s))

    monkeypatch.setattr(outside.OutsideMeasurement, "__init__", begins)
    monkeypatch.setattr(outside.OutsideMeasurement, "end", ends)
    return taken


def is_drawn(row: Trial, busy_s: float, taken_s: float) -> bool:
    """Whether a row has the energy of what kept the processor busy, and no more than was taken."""
    tick_s = 0.02  # the kernel counts in hundredths
    seen_s = (row.observation.energy_j or 0.0) / 7.0
    return busy_s - tick_s <= seen_s <= taken_s + tick_s


def only_row(job_id: str) -> Trial:
    (row,) = log_of(job_id)
    assert row.is_outside
    assert row.planned.phase is Phase.MEASURED
    assert row.batch_size is None
    return row


def ended(job_id: str) -> tuple[str, str | None]:
    row = only_row(job_id)
    return row.state.value, row.reason


def files() -> list[Path]:
    """What waits for the store in files of this host."""
    return kept_files(state_dir())


def test_success_skip_failure_and_exit_have_a_row_each(
    run_dag: Any, taken: list[tuple[str, float]]
) -> None:
    with DAG("ends", schedule=None, start_date=START, tags=["zeus"]) as dag:

        @task
        def works() -> int:
            busy(0.2)
            return 7

        @task
        def skips() -> None:
            raise AirflowSkipException("nothing to do")

        @task
        def fails() -> None:
            raise ValueError("disk full")

        @task
        def leaves() -> None:
            raise SystemExit(3)

        works()
        skips()
        fails()
        leaves()
    run = run_dag(dag)
    states = {ti.task_id: str(ti.state) for ti in run.get_task_instances()}
    assert states == {
        "works": "success",
        "skips": "skipped",
        "fails": "failed",
        "leaves": "failed",
    }
    assert ended("ends.works") == ("done", None)
    assert ended("ends.skips") == ("done", "the task skipped itself")
    assert ended("ends.fails") == ("failed", "ValueError: disk full")
    assert ended("ends.leaves") == ("failed", "SystemExit: 3")
    seen = only_row("ends.works").observation
    assert seen.energy_source == "estimate"
    assert is_drawn(only_row("ends.works"), 0.2, dict(taken)["works"])
    assert seen.time_s is not None
    assert seen.time_s >= 0.2


def test_each_try_and_each_map_index_has_a_row_and_a_time_limit_is_a_failure(run_dag: Any) -> None:
    tries: list[int] = []
    with DAG("more_ends", schedule=None, start_date=START, tags=["zeus"]) as dag:

        @task(retries=1, retry_delay=timedelta(0))
        def again() -> None:
            tries.append(1)
            if len(tries) == 1:
                raise RuntimeError("once")

        @task
        def each(n: int) -> int:
            return n

        @task(execution_timeout=timedelta(seconds=1))
        def endless() -> None:
            time.sleep(60)

        BashOperator(task_id="command", bash_command="exit 3")
        again()
        each.expand(n=[1, 2, 3])
        endless()
    run_dag(dag)
    rows = log_of("more_ends.again")
    assert [(row.state.value, row.reason) for row in rows] == [
        ("failed", "RuntimeError: once"),
        ("done", None),
    ]
    assert {row.origin.map_index for row in log_of("more_ends.each")} == {0, 1, 2}
    state, reason = ended("more_ends.endless")
    assert state == "failed"
    assert str(reason).startswith("AirflowTaskTimeout: ")
    assert ended("more_ends.command")[0] == "failed"


def test_the_parts_of_a_deferred_task_add_up(run_dag: Any, taken: list[tuple[str, float]]) -> None:
    with DAG("parts", schedule=None, start_date=START, tags=["zeus"]) as dag:
        Defers(task_id="waits")
    run_dag(dag)
    rows = log_of("parts.waits")
    assert [row.reason for row in rows] == [
        "the task was deferred: what it does later has a line of its own",
        None,
    ]
    assert len({row.key.ti_id for row in rows}) == 1
    assert len(taken) == 2
    assert all(map(is_drawn, rows, (0.2, 0.4), [seconds for _, seconds in taken]))


class Defers(BaseOperator):
    """Works, is deferred, and works again."""

    def execute(self, context: Any) -> None:
        busy(0.2)
        trigger = TimeDeltaTrigger(timedelta(0))
        self.defer(trigger=trigger, method_name="resumed")

    def resumed(self, context: Any, event: Any = None) -> None:
        busy(0.4)


def test_what_measures_itself_has_one_row_only(run_dag: Any, tmp_path: Path) -> None:
    with DAG("twice", schedule=None, start_date=START, tags=["zeus"]) as dag:

        @task.zeus
        def own() -> None:
            busy(0.1)

        own()
        with ZeusTrial(job()) as trial:
            BashOperator(task_id="train", bash_command="true", env=trial.env)
    run_dag(dag)
    (row,) = log_of("twice.own")
    assert not row.is_outside
    assert not any(row.is_outside for row in log_of("twice.train"))


def test_a_task_that_is_not_named_or_was_short_or_waits_by_rescheduling_has_no_row(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch, listens: Callable[[str], None]
) -> None:
    listens("named*, !named.left_*")
    with DAG("named", schedule=None, start_date=START) as dag:

        @task
        def long() -> None:
            monkeypatch.setattr(outside, "LEAST_S", 0.0)

        @task
        def left_out() -> None:
            monkeypatch.setattr(outside, "LEAST_S", 0.0)

        @task
        def short() -> None:
            monkeypatch.setattr(outside, "LEAST_S", 600.0)  # on a busy host, too

        TimeDeltaSensor(task_id="looks", delta=timedelta(0), mode="reschedule")
        long()
        left_out()
        short()
    run_dag(dag)
    assert ended("named.long") == ("done", None)
    assert [log_of(f"named.{name}") for name in ("left_out", "short", "looks")] == [[], [], []]
    assert files() == []


@pytest.mark.parametrize("switch", ["False", "measure"])
def test_switched_off_nothing_is_measured(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch, listens: Callable[[str], None], switch: str
) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__ENABLED", switch)
    listens("tag:zeus")
    run_dag(one_task_dag(f"switched_{switch}"))
    rows = log_of(f"switched_{switch}.only")
    assert len(rows) == (1 if switch == "measure" else 0)
    assert len(ZeusPlugin().listeners) == len(rows)


def one_task_dag(dag_id: str) -> DAG:
    with DAG(dag_id, schedule=None, start_date=START, tags=["zeus"]) as dag:

        @task
        def only() -> None:
            busy(0.1)

        only()
    return dag


@pytest.mark.parametrize("how", ["locked", "hangs"])
def test_a_store_that_is_away_costs_two_seconds_and_the_row_is_stored_later(
    run_dag: Any, airflow_home: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    first = one_task_dag(f"away_{how}_before")
    run_dag(first)  # makes the file of the log
    monkeypatch.setattr(outside, "STORE_S", 0.5)
    waited_s: list[float] = []
    end = outside.OutsideMeasurement.end

    def timed(self: Any, **how: Any) -> None:
        begun_s = time.monotonic()
        end(self, **how)
        waited_s.append(time.monotonic() - begun_s)

    monkeypatch.setattr(outside.OutsideMeasurement, "end", timed)
    with monkeypatch.context() as patch, ExitStack() as held:
        if how == "locked":
            other = sqlite3.connect(airflow_home / "zeus.db", isolation_level=None)
            held.callback(other.close)
            other.execute("BEGIN EXCLUSIVE")
        else:
            released = threading.Event()
            held.callback(released.set)
            patch.setattr(outside, "open_log", released.wait)
        run_dag(one_task_dag(f"away_{how}"))
        assert len(files()) == 1
    assert waited_s[0] >= 0.5, "it waited for the store"
    assert waited_s[0] < 20.0, "and not without a limit"
    monkeypatch.setattr(outside, "STORE_S", 60.0)
    run_dag(first)
    assert files() == []
    assert ended(f"away_{how}.only") == ("done", None)


def test_what_was_kept_is_stored_by_the_next_zeus_task_too(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(outside, "STORE_S", 0.0)
        patch.setattr(outside, "open_log", threading.Event().wait)
        run_dag(one_task_dag("kept"))
    assert len(files()) == 1
    with DAG("stores_kept", schedule=None, start_date=START) as dag:

        @task.zeus
        def own() -> None: ...

        own()
    run_dag(dag)
    assert files() == []
    assert ended("kept.only") == ("done", None)


def test_the_variable_store_takes_no_such_rows(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_ZEUS_DEFAULT", '{"conn_type": "zeus", "extra": {"store": "variable"}}'
    )
    run_dag(one_task_dag("in_variables"))
    assert log_of("in_variables.only") == []
    assert files() == []
    assert "[zeus] measure does nothing" in caplog.text


@pytest.mark.parametrize("broken", ["open_meter", "new_trial", "open_log"])
def test_whatever_fails_of_ours_the_task_runs_as_without_it(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(outside, broken, fail)
    run = run_dag(one_task_dag(f"broken_{broken}"))
    assert run.state == "success"


def test_the_texts_of_errors_are_masked_and_cut(run_dag: Any) -> None:
    with DAG("secrets", schedule=None, start_date=START, tags=["zeus"]) as dag:

        @task
        def fails() -> None:
            mask_secret("hunter2hunter2")
            raise ValueError("no login with hunter2hunter2 " + 10_000 * "x")

        fails()
    run_dag(dag)
    state, reason = ended("secrets.fails")
    assert state == "failed"
    assert "hunter2" not in str(reason)
    assert str(reason).startswith("ValueError: no login with ***")
    assert len(str(reason)) <= 501


def test_the_hooks_of_the_api_server_end_no_other_task(run_dag: Any) -> None:
    from airflow.sdk.listener import get_listener_manager

    (listener,) = get_listener_manager().pm.get_plugins()
    other = SimpleNamespace(id="another task instance")

    with DAG("in_server", schedule=None, start_date=START, tags=["zeus"]) as dag:

        @task
        def only() -> None:
            listener.on_task_instance_success(None, other)
            listener.on_task_instance_failed(None, other, "set by hand")
            busy(0.1)

        only()
    run_dag(dag)
    assert ended("in_server.only") == ("done", None)
    listener.on_task_instance_success(None, other)  # nothing is open


def test_tasks_that_leave_their_process_in_a_strange_state_have_their_row(
    run_dag: Any, listens: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listens("tag:[prod] größe?, !strange.not_*")

    class SilentError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    with DAG("strange", schedule=None, start_date=START, tags=["[prod] größe?"]) as dag:

        @task
        def goes_away() -> None:
            gone = tmp_path / "gone"
            gone.mkdir()
            monkeypatch.chdir(gone)
            gone.rmdir()

        @task
        def changes_zeus() -> None:
            monkeypatch.setenv("AIRFLOW__ZEUS__HEARTBEAT_S", "soon")
            monkeypatch.setenv("AIRFLOW__ZEUS__CPU_WATTS", "many")
            monkeypatch.setenv("AIRFLOW__ZEUS__MEASURE", "")

        @task
        def fails_without_a_text() -> None:
            raise SilentError

        @task
        def stops_the_clock() -> None:
            monkeypatch.setattr(time, "time", lambda: 0.0)

        @task
        def not_named() -> None: ...

        @task_group
        def group(n: int) -> None:
            @task
            def one(n: int) -> int:
                return n

            one(n)

        goes_away()
        fails_without_a_text()
        not_named()
        group.expand(n=[1, 2]) >> stops_the_clock() >> changes_zeus()
    run_dag(dag)
    assert ended("strange.goes_away") == ("done", None)
    assert ended("strange.changes_zeus") == ("done", None)
    assert ended("strange.fails_without_a_text")[0] == "failed"
    assert ended("strange.stops_the_clock") == ("done", None)
    assert log_of("strange.not_named") == []
    assert sorted(row.origin.map_index for row in log_of("strange.group..one")) == [0, 1]


def test_airflow_dags_test_measures_too(
    airflow_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a new user tries it: the DAG's file imports nothing of ours."""
    from airflow.cli.cli_parser import get_parser

    file = airflow_home / "dags" / "measured_by_hand.py"
    file.write_text(DAG_FILE)
    try:
        args = get_parser().parse_args(["dags", "test", "measured_by_hand"])
        args.func(args)
    finally:
        file.unlink()
    assert ended("measured_by_hand.command") == ("done", None)
    assert only_row("measured_by_hand.command").origin.run_type == "test"


DAG_FILE = """
from datetime import datetime

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG("measured_by_hand", schedule=None, start_date=datetime(2026, 1, 1), tags=["zeus"]):
    BashOperator(task_id="command", bash_command="true")
"""
