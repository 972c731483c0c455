"""Asking the store: retried while that may help, given up after a time limit, and never a second open trial."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import sqlalchemy as sa

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.learning_rate import EarlierRate
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import Observation, Phase, State
from airflow_provider_zeus.operators import asking
from airflow_provider_zeus.operators.asking import answered, log_remarks
from airflow_provider_zeus.operators.config import ZeusConfig
from airflow_provider_zeus.store.base import AskAnswer
from airflow_provider_zeus.store.sql.store import SqlStore, Store
from airflow_provider_zeus.switch import OFF
from tests.unit.plugin.kit import trial
from tests.unit.store.store_kit import JOB, DictPort, request

CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'airflow-provider-zeus'"


@pytest.fixture
def store(database: str) -> Iterator[SqlStore]:
    store = SqlStore(database, create=True)
    yield store
    store.close()


def cut_once(store: SqlStore, database: str, event: str) -> None:
    """The next ``event`` of a transaction that writes finds its connection cut."""
    admin = sa.create_engine(database, poolclass=sa.NullPool)
    left = [1]

    def cut(connection: sa.Connection, *_: Any) -> None:
        if left and connection.get_execution_options().get("zeus_write"):
            left.clear()
            with admin.connect() as other:
                other.exec_driver_sql(CUT)

    sa.event.listen(store._engine, event, cut)


@pytest.mark.parametrize("event", ["before_cursor_execute", "commit"])
def test_one_connection_that_is_cut_costs_no_decision(
    store: SqlStore, database: str, event: str
) -> None:
    cut_once(store, database, event)
    _, asked = answered(request(1), lambda: store, threading.Event())
    assert [t.decision for t in store.trials("d.train")] == [asked.trial.decision]


class LosesAnswers:
    """A store that does what it is asked, and whose first answers are lost."""

    def __init__(self, store: Store, times: int) -> None:
        self.store = store
        self.times = times

    def ask(self, question: Any) -> Any:
        asked = self.store.ask(question)
        self.times -= 1
        if self.times >= 0:
            raise StoreError("no answer", passing=True, unsure=True)
        return asked


def test_a_question_that_was_answered_in_vain_is_asked_again_for_the_same_trial(
    store: SqlStore,
) -> None:
    loses: Any = LosesAnswers(store, 2)
    _, asked = answered(request(1), lambda: loses, threading.Event())
    assert [t.key for t in store.trials("d.train")] == [asked.trial.key]


@pytest.mark.parametrize("strict", [False, True])
def test_what_does_not_pass_is_an_error_at_once(strict: bool) -> None:
    calls = []

    def opened() -> Store:
        calls.append(1)
        raise StoreError("has no tables of ours yet; run 'airflow zeus db upgrade' once")

    with pytest.raises(StoreError, match="no tables of ours"):
        answered(request(1, job=replace(JOB, strict=strict)), opened, threading.Event())
    assert calls == [1]


@pytest.mark.parametrize("again", [False, True])
def test_a_store_that_never_answers_is_given_up_and_a_late_answer_closed(
    store: SqlStore, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    opening = threading.Event()
    answers = threading.Event()
    if again:
        store.ask(request(1))  # as by a try of the question whose answer was lost

    def opened() -> Store:
        opening.set()
        answers.wait()
        return store

    def time_is_up(call: Callable[[], Any], most_s: float) -> Any:
        threading.Thread(target=call, daemon=True).start()
        assert opening.wait(60)
        raise TimeoutError

    monkeypatch.setattr(asking, "bounded", time_is_up)
    with pytest.raises(StoreError, match="has not answered for 20 s") as caught:
        answered(request(1), opened, over)
    assert caught.value.unsure, "it may have opened the trial"
    assert not over.is_set(), "so no row may be written in its place"
    answers.set()
    assert over.wait(60)
    assert [t.state for t in store.trials("d.train")] == [State.ABANDONED]


def test_an_answer_that_is_tried_for_too_long_is_given_up_with_its_error() -> None:
    def opened() -> Store:
        raise StoreError("connection refused", passing=True)

    with pytest.raises(StoreError, match=r"refused|not answered"):
        answered(request(1), opened, threading.Event(), 0.5)


def test_costs_that_cannot_be_looked_for_hold_no_question(store: SqlStore, tmp_path: Path) -> None:
    """As where Airflow's API does not answer."""
    over = threading.Event()

    class Hangs(DictPort):
        def keys(self, prefix: str) -> list[str]:
            over.wait()
            return []

    asking.drain_for_a_while(store, Hangs(), "d.train", tmp_path, most_s=0.1)
    over.set()


def test_a_folder_of_kept_costs_that_cannot_be_read_holds_no_question(store: SqlStore) -> None:
    """As one below another user's home; here its name is too long."""
    folder = Path("/tmp") / ("a" * 300) / "zeus"
    assert asking.drain(store, DictPort(), "d.train", state_dir=folder) == 0


@pytest.mark.parametrize("strict", [False, True])
def test_an_error_of_any_kind_fails_a_strict_job_alone(
    monkeypatch: pytest.MonkeyPatch, airflow_home: Path, strict: bool
) -> None:
    def fails(*_: Any, **__: Any) -> Store:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(asking, "open_store", fails)
    answers: list[AskAnswer] = []
    ask = partial(
        asking.ask,
        replace(request(1), job=replace(JOB, strict=strict)),
        "zeus_default",
        ZeusConfig.read(),
        overlap_possible=True,
        watch=lambda answer, reopen: answers.append(answer),
    )
    if strict:
        with pytest.raises(PermissionError):
            ask()
        assert answers == []
    else:
        asked = ask()
        assert asked.store is None
        assert asked.answer.trial.batch_size == JOB.default_batch_size
        assert answers == [asked.answer]


def test_the_users_of_a_strict_job_hear_that_it_has_no_store(
    monkeypatch: pytest.MonkeyPatch, airflow_home: Path
) -> None:
    def fails(*_: Any, **__: Any) -> Store:
        raise StoreError("It is away.")

    monkeypatch.setattr(asking, "open_store", fails)
    answers: list[AskAnswer] = []
    with pytest.raises(StoreError, match="It is away"):
        asking.ask(
            replace(request(1), job=replace(JOB, strict=True)),
            "zeus_default",
            ZeusConfig.read(),
            overlap_possible=True,
            watch=lambda answer, reopen: answers.append(answer),
        )
    assert [answer.trial.planned.phase for answer in answers] == [Phase.FALLBACK]


def test_no_one_is_told_of_a_run_that_is_switched_off(airflow_home: Path) -> None:
    def watch(*_: Any) -> None:
        raise AssertionError("it is switched off")

    config = replace(ZeusConfig.read(), enabled=OFF)
    asked = asking.ask(request(1), "zeus_default", config, overlap_possible=True, watch=watch)
    assert asked.store is not None


def test_the_answer_has_the_rate_of_the_run_before_and_logs_no_remark_of_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The run that kept the rate has told it in its own log."""
    caplog.set_level("INFO")
    store = SqlStore(f"sqlite:///{tmp_path}/zeus.db", create=True)
    monkeypatch.setattr(asking, "open_store", lambda *_, **__: store)
    rates = []
    for number in range(1, 5):
        question = request(number)
        asked = asking.ask(
            question,
            "zeus_default",
            ZeusConfig.read(),
            overlap_possible=True,
            watch=lambda answer, reopen: None,
        )
        answer = asked.answer
        rates.append(answer.earlier_rate)
        observation = Observation(epochs=5.0, metric=0.9, learning_rate=0.1)
        store.tell(answer.trial.key, State.CONVERGED, Report(observation=observation))
    trials = store.trials("d.train")
    store.close()
    assert len({t.batch_size for t in trials}) > 1
    assert rates == [None, *(EarlierRate(t.batch_size or 0, 0.1) for t in trials[:-1])]
    assert "same learning rate" not in caplog.text


def test_an_answer_stands_though_the_rate_of_the_run_before_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else the default would train, and the row would plan another size."""

    def fails(*_: Any) -> EarlierRate:
        raise ValueError("a row that cannot be read")

    store = SqlStore(f"sqlite:///{tmp_path}/zeus.db", create=True)
    monkeypatch.setattr(asking, "open_store", lambda *_, **__: store)
    monkeypatch.setattr(asking, "earlier_rate", fails)
    answers: list[AskAnswer] = []
    asked = asking.ask(
        request(1),
        "zeus_default",
        ZeusConfig.read(),
        overlap_possible=True,
        watch=lambda answer, reopen: answers.append(answer),
    )
    trials = store.trials("d.train")
    store.close()
    assert asked.store is store
    assert [t.decision for t in trials] == [asked.answer.trial.decision]
    assert [t.key for t in asked.newest] == [asked.answer.trial.key]
    assert answers == [asked.answer]


def test_the_log_of_a_task_tells_nothing_of_another_dags_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    theirs = trial(1, "r1", dag_id="b", device_model="A secret GPU", task_id="secret")
    newest = [replace(theirs, spec={**JOB.to_dict(), "target": "loss <= 7"}), trial(2, "r2")]
    caplog.set_level("INFO")
    store = cast(Store, SimpleNamespace(trials=lambda job_id, last: newest))
    log_remarks(asking.newest_trials(lambda: store, newest[-1]), newest[-1])
    assert "a task of another DAG has others" in caplog.text
    assert not any(text in caplog.text for text in ("secret", "loss"))


def test_a_control_character_of_the_run_log_does_not_reach_a_tasks_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    newest = [trial(1, "r1", device_model="V100\x1b[2J"), trial(2, "r2", device_model="A100")]
    caplog.set_level("INFO")
    store = cast(Store, SimpleNamespace(trials=lambda job_id, last: newest))
    log_remarks(asking.newest_trials(lambda: store, newest[-1]), newest[-1])
    assert "A100" in caplog.text
    assert "\x1b" not in caplog.text
