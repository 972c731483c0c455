"""A run's looks at its job: what it sends, when, and that nothing of it can harm the run."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.deadline import InTime
from airflow_provider_zeus.model.event import DEADLINE, FAILING, STORE
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.operators import alerts
from airflow_provider_zeus.operators.alerts import RunAlerts, is_first_today
from airflow_provider_zeus.store.sql.store import SqlStore, Store
from tests.unit.plugin.kit import ran, trial

NOON_S = 1_800_000_000.0


@pytest.fixture(autouse=True)
def no_notifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__NOTIFIERS", "")


@pytest.fixture
def opens(tmp_path: Path) -> Callable[[], Store]:
    url = f"sqlite:///{tmp_path / 'zeus.db'}"
    SqlStore(url, create=True).close()
    return lambda: SqlStore(url)


def away() -> Store:
    raise StoreError("no route to host")


class Run:
    """A run of a task with one notifier, which keeps what it hears."""

    def __init__(self, of: Trial, reopen: Callable[[], Store], state_dir: Path) -> None:
        self.heard: list[dict[str, Any]] = []
        self.task = SimpleNamespace(
            notify=(self.notifier,), on_success_callback=None, on_failure_callback=None
        )
        self.alerts = RunAlerts(
            context={"task": self.task},
            trial=of,
            reopen=reopen,
            state_dir=state_dir,
        )

    def notifier(self, context: Any) -> None:
        self.heard.append(context["zeus"])

    @property
    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.heard]


def test_a_run_sends_what_began_and_no_other_run_sends_it_again(
    opens: Callable[[], Store], tmp_path: Path
) -> None:
    failed = Run(ran(opens(), 1, state=State.FAILED, reason="disk full"), opens, tmp_path)
    failed.alerts.look(decision=False)
    (event,) = failed.heard
    assert event["sentence"] == (
        "The newest run left no model (run 1): disk full. "
        "1 failed attempt took 0.311 Wh and 9 s: compared with nothing."
    )
    assert (event["kind"], event["job"], event["dag"], event["run"], event["trial"]) == (
        *(FAILING, "d.train", "d", "run1", 1),
    )
    again = Run(ran(opens(), 2, state=State.FAILED), opens, tmp_path)
    again.alerts.look(decision=False)
    assert again.heard == []


def test_two_dags_of_one_job_send_an_event_once(opens: Callable[[], Store], tmp_path: Path) -> None:
    """Each sends what its own runs show, to its own notifiers."""
    runs = [
        Run(ran(opens(), n, dag_id=dag_id, state=state), opens, tmp_path)
        for n, dag_id, state in (
            (1, "d", State.FAILED),
            (2, "e", State.FAILED),
            (3, "d", State.FAILED),
        )
    ]
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(run.alerts.look, decision=False) for run in runs]:
            done.result()
    sent = [(event["dag"], event["kind"]) for run in runs for event in run.heard]
    assert sorted(sent) == [("d", FAILING), ("e", FAILING)]
    assert {event["dag"] for event in runs[1].heard} == {"e"}, "nothing of another DAG"


def test_what_was_not_sent_since_its_sender_died_is_not_sent_again(
    opens: Callable[[], Store], tmp_path: Path
) -> None:
    failed = ran(opens(), 1, state=State.FAILED)
    if (pid := os.fork()) == 0:
        dying = Run(failed, opens, tmp_path)
        dying.task.notify = (lambda context: os.kill(os.getpid(), signal.SIGKILL),)
        dying.alerts.look(decision=False)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    later = Run(ran(opens(), 2, state=State.FAILED), opens, tmp_path)
    later.alerts.look(decision=False)
    assert later.heard == []
    assert [event.kind for event in opens().events("d.train")["d"].events] == [FAILING], (
        "its page shows it"
    )


def test_what_a_run_could_not_look_for_since_it_died_is_sent_by_the_next(
    opens: Callable[[], Store], tmp_path: Path
) -> None:
    ran(opens(), 1, state=State.FAILED)
    later = Run(ran(opens(), 2), opens, tmp_path)
    later.alerts.look(decision=False)
    assert later.kinds == [FAILING]


def test_a_deadline_at_risk_is_sent_while_the_run_trains(
    opens: Callable[[], Store], tmp_path: Path
) -> None:
    from airflow_provider_zeus.store.sql import trials

    tight = trial(1, "run1", state=State.RUNNING, job_id="d.train")
    tight = replace(
        tight, planned=replace(tight.planned, in_time=InTime(finish_by_s=3600.0, hurry=True))
    )
    with opens()._open_log("d.train") as log:
        trials.insert(log.connection, replace(tight, lease_until=log.now + 90.0, lease_s=90.0))
    run = Run(tight, opens, tmp_path)
    run.alerts.watch(after_killed=False)
    for thread in [t for t in threading.enumerate() if t.name == "zeus-events"]:
        thread.join(30)
    assert run.kinds == [DEADLINE]
    again = Run(tight, opens, tmp_path)
    again.alerts.look(decision=True)
    assert again.heard == [], "also not by a task that asked twice"


def test_a_decision_that_shows_nothing_starts_no_thread(
    opens: Callable[[], Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(trial(1, "run1", state=State.RUNNING), opens, tmp_path)
    monkeypatch.setattr(alerts.threading, "Thread", None)
    run.alerts.watch(after_killed=False)
    assert len(run.task.on_success_callback) == len(run.task.on_failure_callback) == 1


def test_a_run_that_does_not_teach_looks_at_nothing(
    opens: Callable[[], Store], tmp_path: Path
) -> None:
    run = Run(trial(1, "run1", run_type="backfill"), opens, tmp_path)
    run.alerts.watch(after_killed=True)
    assert (run.task.on_success_callback, run.task.on_failure_callback) == (None, None)


def test_an_outage_of_twelve_runs_is_told_once_a_day_and_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = NOON_S
    monkeypatch.setattr(alerts, "time", SimpleNamespace(time=lambda: now_s))
    runs = []
    for hour in range(12):
        now_s = NOON_S + 3600.0 * hour
        for host in ("a", "b"):
            run = Run(trial(0, f"run{hour}"), away, tmp_path / host)
            run.alerts.look(decision=True)
            run.alerts.look(decision=False)
            runs.append(run)
    assert [run.kinds for run in runs] == [[STORE], [STORE], *[[]] * 22]
    assert "trains at the default batch size 32" in runs[0].heard[0]["sentence"]
    assert runs[0].heard[0]["run"] == "run0"
    now_s = NOON_S + alerts.DAY_S
    next_day = Run(trial(0, "run24"), away, tmp_path / "a")
    next_day.alerts.look(decision=True)
    assert next_day.kinds == [STORE]


def test_of_runs_that_begin_at_once_one_is_the_first_of_a_day(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        first = list(pool.map(lambda _: is_first_today(tmp_path / "state", NOON_S), range(8)))
    assert sum(first) == 1


@pytest.mark.parametrize(
    "text", ["", "x", "nan", "inf", "-inf", "1e999", "9" * 90, str(NOON_S + 9e9)]
)
def test_a_file_that_holds_something_else_hides_no_outage(tmp_path: Path, text: str) -> None:
    (tmp_path / "store-away").write_text(text)
    assert is_first_today(tmp_path, NOON_S)
    assert not is_first_today(tmp_path, NOON_S + 1.0)


def test_a_host_that_can_note_nothing_does_not_send_at_every_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("no folder")
    run = Run(trial(0, "run1"), away, tmp_path / "state")
    run.alerts.look(decision=True)
    assert run.heard == []
    assert "does not send that its store is away" in caplog.text


def test_a_log_that_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def hangs() -> Store:
        answers.wait(60)
        raise AssertionError

    monkeypatch.setattr(alerts, "READ_S", 0.2)
    run = Run(trial(1, "run1"), hangs, tmp_path)
    run.alerts.look(decision=False)
    answers.set()
    assert run.kinds == [STORE]


def test_what_fails_unforeseen_is_logged_and_raises_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks() -> Store:
        raise ZeroDivisionError

    run = Run(trial(1, "run1"), breaks, tmp_path)
    run.alerts.look(decision=False)
    assert run.heard == []
    assert "could not look for events of d.train" in caplog.text
