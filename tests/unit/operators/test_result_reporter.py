"""A reported cost goes to the store, else into a Variable, else into a file; totals never hide a gap."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from airflow.sdk.log import mask_secret

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import (
    NO_STRIKE,
    Observation,
    PowerPoint,
    ProfileSample,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.operators.result_reporter import ResultReporter
from airflow_provider_zeus.reports.run_figures import RunFigures
from airflow_provider_zeus.signals.hours import HourPrices
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.store.pending import drain
from airflow_provider_zeus.store.sql.store import SqlStore, Store
from airflow_provider_zeus.training.protocol.events import Kind, ResultLine, ResultSender
from tests.unit.store.store_kit import DictPort, report, request, seen

JOB_ID = "d.train"


@pytest.fixture
def store(tmp_path: Path, empty_log: Path) -> SqlStore:
    shutil.copy(empty_log, tmp_path / "zeus.db")
    return SqlStore(f"sqlite:///{tmp_path / 'zeus.db'}", create=True)


def end(attempt: int, state: State, **changes: object) -> ResultLine:
    observation = seen(32, **changes)
    return ResultLine(
        kind="end",
        start_id="s",
        attempt=attempt,
        batch_size=32,
        state=state,
        reason=None,
        observation=observation,
    )


def reporter_of(
    store: SqlStore | None, port: DictPort, first: Trial, folder: Path
) -> ResultReporter:
    return ResultReporter(store, port, first, lease_s=90, state_dir=folder)


def settled(reporter: ResultReporter) -> None:
    """Wait until the thread of the store has taken what it was handed."""
    thread = reporter._thread._thread
    if thread is not None:
        thread.join(60)


def two_attempts(store: SqlStore) -> Trial:
    """An open trial whose decision has an exploratory attempt and the incumbent after it."""
    first = store.ask(request(1)).trial
    store.tell(first.key, State.CONVERGED, report(first.batch_size))
    return store.ask(request(2)).trial


def test_each_attempt_gets_its_row_and_its_result(store: SqlStore, tmp_path: Path) -> None:
    first = two_attempts(store)
    reporter = reporter_of(store, DictPort(), first, tmp_path)
    reporter(ResultLine(kind="start", start_id="s"))
    reporter(ResultLine(kind="attempt", start_id="s", attempt=1, batch_size=first.batch_size))
    settled(reporter)
    assert store.trials(JOB_ID)[-1].observation == Observation(start_id="s"), (
        "a death before the first beat counts"
    )
    reporter(
        ResultLine(
            kind="beat", start_id="s", attempt=1, observation=Observation(epochs=1.0, energy_j=5.0)
        )
    )
    settled(reporter)
    assert store.trials(JOB_ID)[-1].observation.energy_j == 5.0
    reporter(end(1, State.GIVEN_UP))
    reporter(ResultLine(kind="attempt", start_id="s", attempt=2, batch_size=32))
    settled(reporter)
    assert [t.state for t in store.trials(JOB_ID)[1:]] == [State.GIVEN_UP, State.RUNNING]
    reporter(end(2, State.CONVERGED))
    reporter(ResultLine(kind="final", start_id="s", attempt=2))
    assert [t.state for t in store.trials(JOB_ID)[1:]] == [State.GIVEN_UP, State.CONVERGED]
    cost = reporter.cost_xcom()
    assert cost["kept_attempt"] == 2
    assert cost["energy_j"] == 2 * seen(32).energy_j  # type: ignore[operator]
    assert [a["untold"] for a in cost["attempts"]] == [None, None]


def test_what_never_trained_says_nothing_against_its_size(store: SqlStore, tmp_path: Path) -> None:
    first = two_attempts(store)
    reporter = reporter_of(store, DictPort(), first, tmp_path)
    reporter.never_trained(OSError("no folder"))
    assert NO_STRIKE in store.trials(JOB_ID)[-1].observation.reasons


def test_why_an_hour_has_no_price_is_masked(store: SqlStore, tmp_path: Path) -> None:
    mask_secret(password := "a-Zone-that-is-a-key")

    def read(signal: str, *_: float) -> str:
        return f"no zone {password} of {signal}"

    first = two_attempts(store)
    reporter = reporter_of(store, DictPort(), first, tmp_path)
    reporter.prices = HourPrices(began_s=first.opened_at, reader=read)
    reporter(end(1, State.CONVERGED))
    (attempt,) = reporter.cost_xcom()["attempts"]
    assert attempt["reasons"]["price_per_kwh"] == "no zone *** of price"


def test_what_the_store_refuses_lies_in_a_variable_until_it_is_told(
    store: SqlStore, tmp_path: Path
) -> None:
    first = two_attempts(store)
    port = DictPort()
    alone = reporter_of(None, port, replace(first, number=0, key=TrialKey("ti-alone")), tmp_path)
    alone(end(1, State.CONVERGED, energy_j=77.0))
    assert alone.cost_xcom()["attempts"][0]["untold"] == "Variable zeus-untold:ti-alone:1"
    assert drain(store, port, JOB_ID) == 1
    assert [t.observation.energy_j for t in store.trials(JOB_ID) if t.key.ti_id == "ti-alone"] == [
        77.0
    ]
    assert drain(store, port, JOB_ID) == 0


@pytest.mark.parametrize("down", [False, True], ids=["in Variables", "in files"])
def test_each_start_of_a_plan_keeps_its_own_end_of_an_attempt(
    store: SqlStore, tmp_path: Path, down: bool
) -> None:
    first = two_attempts(store)
    port = DictPort()
    port.down = down
    state = tmp_path / "state"
    alone = reporter_of(None, port, replace(first, number=0, key=TrialKey("ti-alone")), state)
    for n in range(3):
        alone(replace(end(1, State.FAILED, energy_j=float(n)), start_id=f"s{n}"))
    port.down = False
    assert drain(store, port, JOB_ID, state_dir=state) == 3
    mine = [t for t in store.trials(JOB_ID) if t.key.ti_id == "ti-alone"]
    assert {(t.observation.start_id, t.observation.energy_j) for t in mine} == {
        ("s0", 0.0),
        ("s1", 1.0),
        ("s2", 2.0),
    }
    assert drain(store, port, JOB_ID, state_dir=state) == 0


def test_without_variables_it_lies_in_a_file(store: SqlStore, tmp_path: Path) -> None:
    first = two_attempts(store)
    port = DictPort()
    port.down = True
    alone = reporter_of(None, port, replace(first, key=TrialKey("ti-alone")), tmp_path / "state")
    alone(end(1, State.CONVERGED))
    (file,) = (tmp_path / "state").iterdir()
    assert str(file) in alone.cost_xcom()["attempts"][0]["untold"]
    port.down = False
    assert drain(store, port, JOB_ID, state_dir=tmp_path / "state") == 1
    assert not file.exists()


@pytest.mark.parametrize("measured", [False, True])
def test_with_nowhere_to_go_it_is_said_and_nothing_is_raised(
    store: SqlStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, measured: bool
) -> None:
    """A task that is measured as it is has no batch size."""
    first = two_attempts(store)
    line = end(1, State.CONVERGED)
    if measured:
        planned = replace(first.planned, batch_size=None)  # type: ignore[arg-type]
        decision = replace(first.decision, attempts=(planned,))
        first = replace(first, planned=planned, decision=decision)
        line = replace(line, batch_size=None)
    port = DictPort()
    port.down = True
    (tmp_path / "taken").write_text("a file where the folder should be")
    alone = reporter_of(None, port, first, tmp_path / "taken")
    alone(line)
    assert alone.cost_xcom()["attempts"][0]["untold"] == "lost"
    last = caplog.records[-1]
    assert last.levelname == "ERROR"
    assert f"batch size {line.batch_size}," in last.getMessage()


def test_a_total_with_a_gap_is_none(store: SqlStore, tmp_path: Path) -> None:
    first = two_attempts(store)
    reporter = reporter_of(store, DictPort(), first, tmp_path)
    reporter(end(1, State.GIVEN_UP, energy_j=None, reasons={"energy_j": "counter went back"}))
    reporter(ResultLine(kind="attempt", start_id="s", attempt=2, batch_size=32))
    reporter(end(2, State.CONVERGED))
    cost = reporter.cost_xcom()
    assert cost["energy_j"] is None
    assert cost["cost"] is None
    assert cost["time_s"] == 2 * seen(32).time_s  # type: ignore[operator]
    assert cost["attempts"][0]["reasons"] == {"energy_j": "counter went back"}


@pytest.mark.parametrize(
    ("first_seen", "cost"),
    [
        ({"energy_j": 5000.0, "energy_source": "estimate"}, None),
        (
            {
                "energy_j": None,
                "energy_source": None,
                "max_power_w": None,
                "reasons": {"energy_j": "no source"},
            },
            None,
        ),
    ],
    ids=["another source", "seconds beside joules"],
)
def test_a_total_of_unlike_attempts_is_none(
    store: SqlStore, tmp_path: Path, first_seen: dict[str, Any], cost: None
) -> None:
    """A try on another node may have another source of energy."""
    reporter = reporter_of(store, DictPort(), two_attempts(store), tmp_path)
    reporter(end(1, State.GIVEN_UP, **first_seen))
    reporter(end(2, State.CONVERGED))
    found = reporter.cost_xcom()
    assert [a["cost"] is None for a in found["attempts"]] == [False, False], "each has its own"
    assert (found["energy_j"], found["energy_source"], found["cost"]) == (None, None, cost)
    assert found["time_s"] == 2 * seen(32).time_s  # type: ignore[operator]


def test_the_kept_attempt_is_that_of_its_start(store: SqlStore, tmp_path: Path) -> None:
    """Two starts of one plan have the same attempts; the first one died."""
    reporter = reporter_of(store, DictPort(), two_attempts(store), tmp_path)
    for start_id, limit_w, state in (("a", 300.0, State.FAILED), ("b", 175.0, State.CONVERGED)):
        reporter(replace(end(1, state, power_limit_w=limit_w), start_id=start_id))
    reporter(ResultLine(kind="final", start_id="b", attempt=1))
    cost = reporter.cost_xcom()
    assert [a["kept"] for a in cost["attempts"]] == [False, True]
    assert RunFigures(cost=cost, ended=reporter.ended).as_event(Prices())["power_limit_w"] == 175.0


class Flaky:
    """A store that can be down."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.down = False

    def __getattr__(self, name: str) -> Any:
        if self.down:
            raise StoreError("no database")
        return getattr(self.store, name)


class Live:
    """What the sender needs of an attempt; its news are put into it."""

    def __init__(self, number: int, trial: Trial) -> None:
        self.number, self.planned, self.ended = number, trial.decision.attempts[number - 1], False
        self.news: Any = (), ()
        self.notes = {"data_wait": 0.1}

    def take_unsent(self) -> Any:
        news = self.news
        self.news = ((), ())
        return news


def flaky_kit(store: SqlStore, folder: Path) -> tuple[Flaky, DictPort, Trial, ResultSender]:
    first = two_attempts(store)
    flaky = Flaky(store)
    port = DictPort()
    return flaky, port, first, ResultSender(reporter_of(cast(SqlStore, flaky), port, first, folder))


def news_of(trial: Trial, number: int, t_s: float) -> Any:
    size = trial.decision.attempts[number - 1].batch_size
    sample = ProfileSample(batch_size=size, limit_w=200.0, samples=10, energy_j=1.0, time_s=1.0)
    return (sample,), (PowerPoint(t_s=t_s, power_w=100.0, limit_w=200.0, phase="profile"),)


def test_news_of_a_beat_while_the_store_is_down_come_with_a_later_one(
    store: SqlStore, tmp_path: Path
) -> None:
    flaky, _, first, sender = flaky_kit(store, tmp_path)
    live: Any = Live(1, first)
    sender.send("attempt", live)
    for t_s, down in ((1.0, True), (2.0, True), (3.0, False)):
        flaky.down, live.news = down, news_of(first, 1, t_s)
        sender.send("beat", live, observation=seen(first.batch_size))
        settled(sender._sink)  # type: ignore[arg-type]
    assert [p.t_s for p in store.points(first.key)] == [1.0, 2.0, 3.0]
    store.tell(first.key, State.FAILED, Report(observation=Observation()))
    assert [s.samples for s in store.ask(request(3)).profile] == [30]


def test_an_end_does_not_wait_behind_a_beat_and_is_remembered_with_its_news(
    store: SqlStore, tmp_path: Path
) -> None:
    flaky, port, first, sender = flaky_kit(store, tmp_path)
    one: Any = Live(1, first)
    two: Any = Live(2, first)
    sender.send("attempt", one)
    flaky.down, one.news = True, news_of(first, 1, 1.0)
    sender.send("beat", one, observation=seen(first.batch_size))
    sender.send("end", one, state=State.GIVEN_UP, observation=seen(first.batch_size))
    assert list(port.data) == [f"zeus-untold:{first.key.ti_id}:1"]
    sender.send("attempt", two)
    sender.send("beat", one, observation=seen(first.batch_size))
    assert sender._waiting == [], "nothing is sent again and again"
    flaky.down, two.news = False, news_of(first, 2, 2.0)
    sender.send("beat", two, observation=seen(32, epochs=1.0))
    settled(sender._sink)  # type: ignore[arg-type]
    second = store.trials(JOB_ID)[-1]
    assert (second.key.attempt, second.observation.epochs) == (2, 1.0), "its row was made good"
    sender.send("end", two, state=State.CONVERGED, observation=seen(32))
    sender.send("final", attempt=2)
    assert drain(store, port, JOB_ID) == 1
    assert [t.state for t in store.trials(JOB_ID)[1:]] == [State.GIVEN_UP, State.CONVERGED]
    assert {s.batch_size: s.samples for s in store.ask(request(3)).profile} == {
        first.batch_size: 10,
        32: 10,
    }


def test_a_training_without_a_store_keeps_no_beats(store: SqlStore, tmp_path: Path) -> None:
    first = two_attempts(store)
    port = DictPort()
    sender = ResultSender(reporter_of(None, port, first, tmp_path))
    live: Any = Live(1, first)
    sender.send("attempt", live)
    sender.send("beat", live, observation=seen(first.batch_size))
    assert sender._waiting == []


def test_a_second_attempt_that_the_store_never_saw_is_told_later(
    store: SqlStore, tmp_path: Path
) -> None:
    flaky, port, first, sender = flaky_kit(store, tmp_path)
    one: Any = Live(1, first)
    two: Any = Live(2, first)
    sender.send("attempt", one)
    sender.send("end", one, state=State.GIVEN_UP, observation=seen(first.batch_size))
    flaky.down = True
    sender.send("attempt", two)
    sender.send("beat", two, observation=seen(32))
    sender.send("end", two, state=State.CONVERGED, observation=seen(32, energy_j=44.0))
    assert drain(store, port, JOB_ID) == 1
    assert drain(store, port, JOB_ID) == 0
    second = store.trials(JOB_ID)[-1]
    assert (second.batch_size, second.state, second.observation.energy_j) == (
        32,
        State.CONVERGED,
        44.0,
    )


def a_start(
    store: SqlStore, port: DictPort, first: Trial, folder: Path, start_id: str
) -> Callable[..., None]:
    """Sends lines of one start of the plan that ``first`` opens."""
    reporter = reporter_of(store, port, first, folder)

    def send(kind: Kind, nth: int, state: State | None = None) -> None:
        observation = None if kind == "attempt" else seen(32, start_id=start_id)
        attempt = first.key.attempt + nth
        reporter(
            ResultLine(
                kind=kind, start_id=start_id, attempt=attempt, state=state, observation=observation
            )
        )
        settled(reporter)

    return send


@pytest.mark.parametrize("a_lives", [False, True])
def test_both_starts_of_a_redelivered_task_are_in_the_log(
    store: SqlStore, tmp_path: Path, a_lives: bool
) -> None:
    first = two_attempts(store)
    port = DictPort()
    a = a_start(store, port, first, tmp_path, "a")
    a("attempt", 0)
    a("beat", 0)
    b = a_start(store, port, store.ask(request(2)).trial, tmp_path, "b")
    for send in (a, b) if a_lives else (b,):
        send("attempt", 0)
        send("beat", 0)
        send("end", 0, State.GIVEN_UP)
        send("attempt", 1)
        send("beat", 1)
    for send in (b, a) if a_lives else (b,):
        send("end", 1, State.CONVERGED)
    mine = [t for t in store.trials(JOB_ID) if t.key.ti_id == first.key.ti_id]
    of_a = [State.GIVEN_UP, State.CONVERGED] if a_lives else [State.ABANDONED]
    assert [t.state for t in mine if t.observation.start_id == "a"] == of_a
    assert [t.state for t in mine if t.observation.start_id == "b"] == [
        State.GIVEN_UP,
        State.CONVERGED,
    ]
    assert port.data == {}


def test_the_untold_end_of_a_start_whose_key_was_taken_gets_a_row_of_its_own(
    store: SqlStore, tmp_path: Path
) -> None:
    first = two_attempts(store)
    port = DictPort()
    flaky = Flaky(store)
    a = a_start(cast(SqlStore, flaky), port, first, tmp_path, "a")
    a("beat", 0)
    b = a_start(store, port, store.ask(request(2)).trial, tmp_path, "b")
    b("beat", 0)
    a("end", 0, State.GIVEN_UP)
    flaky.down = True
    a("attempt", 1)
    a("end", 1, State.CONVERGED)
    flaky.down = False
    b("end", 0, State.GIVEN_UP)
    kept = dict(port.data)
    assert drain(store, port, JOB_ID) == 1
    port.data = kept
    assert drain(store, port, JOB_ID) == 1, "a crash between telling and deleting tells twice"
    mine = [t for t in store.trials(JOB_ID) if t.observation.start_id == "a"]
    assert [(t.planned, t.state) for t in mine] == [
        (first.decision.attempts[0], State.GIVEN_UP),
        (first.decision.attempts[1], State.CONVERGED),
    ]


# --- a log that was replaced, a trial that is no longer this run's


def beat(start_id: str, attempt: int, **changes: object) -> ResultLine:
    return ResultLine(
        kind="beat", start_id=start_id, attempt=attempt, observation=seen(32, **changes)
    )


def test_a_trial_that_a_new_log_does_not_hold_is_written_there(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'zeus.db'}"
    path = tmp_path / "zeus.db"
    store = SqlStore(url, create=True)
    first = two_attempts(store)
    reporter = reporter_of(store, DictPort(), first, tmp_path)
    reporter(beat("s", 1, energy_j=5.0))
    settled(reporter)
    path.unlink()
    reporter(beat("s", 1, energy_j=6.0))  # is stored nowhere
    settled(reporter)
    SqlStore(url, create=True)
    reporter(beat("s", 1, energy_j=7.0))
    reporter(end(1, State.GIVEN_UP, energy_j=8.0))
    path.unlink()
    SqlStore(url, create=True)
    reporter(ResultLine(kind="attempt", start_id="s", attempt=2, batch_size=32))
    reporter(end(2, State.CONVERGED, energy_j=9.0))
    log = store.trials(JOB_ID)
    assert [(t.key, t.state, t.observation.energy_j) for t in log] == [
        (replace(first.key, attempt=2), State.CONVERGED, 9.0)
    ]
    assert log[0].planned == first.decision.attempts[1]
    assert reporter.cost_xcom()["attempts"][1]["untold"] is None


def test_a_cost_whose_log_is_gone_waits_and_goes_into_the_new_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'zeus.db'}"
    port = DictPort()
    store = SqlStore(url, create=True)
    first = two_attempts(store)
    reporter = reporter_of(store, port, first, tmp_path)
    (tmp_path / "zeus.db").unlink()
    reporter(end(1, State.CONVERGED, energy_j=9.0))
    assert reporter.cost_xcom()["attempts"][0]["untold"] == "Variable zeus-untold:ti-2:1"
    new = SqlStore(url, create=True)
    assert drain(new, port, JOB_ID) == 1
    assert [(t.state, t.observation.energy_j) for t in new.trials(JOB_ID)] == [
        (State.CONVERGED, 9.0)
    ]


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_run_whose_trial_is_no_longer_its_own_says_so_once(
    store: SqlStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, by_hand: bool
) -> None:
    first = store.ask(request(1)).trial
    reporter = reporter_of(store, DictPort(), first, tmp_path)
    reporter(beat("s", 1))
    if by_hand:
        store.close_trial(JOB_ID, 1, by="ann")
    else:
        store.ask(request(1, ti_id="ti-1b", try_number=2))
    for n in range(3):
        reporter(beat("s", 1, energy_j=10.0 + n))
    reporter(end(1, State.CONVERGED, energy_j=20.0))
    said = "closed by hand by ann" if by_hand else "superseded by try 2"
    assert [said in r.getMessage() for r in caplog.records] == [True]
    trial = store.trials(JOB_ID)[0]
    assert trial.state is (State.ABANDONED if by_hand else State.CONVERGED)
    assert trial.observation.energy_j == 20.0


def test_a_run_that_its_own_log_holds_says_nothing(
    store: SqlStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = reporter_of(store, DictPort(), store.ask(request(1)).trial, tmp_path)
    reporter(beat("s", 1))
    reporter(end(1, State.CONVERGED))
    assert caplog.records == []
