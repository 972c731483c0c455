"""A store that does not answer: no beat waits for it, ends wait within one budget, and none is lost."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import (
    Observation,
    PowerPoint,
    ProfileSample,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.operators.result_reporter import (
    RUN_S,
    STOPPED_S,
    ResultReporter,
    stops_the_task,
)
from airflow_provider_zeus.operators.result_writer import QueuedLine, StoreThread
from airflow_provider_zeus.store import pending
from airflow_provider_zeus.store.pending import drain
from airflow_provider_zeus.store.sql.store import SqlStore, Store
from airflow_provider_zeus.training.interrupts import AttemptOver, TrainingKilled
from airflow_provider_zeus.training.protocol.events import ResultLine
from tests.unit.operators.test_result_reporter import JOB_ID, settled, two_attempts
from tests.unit.store.store_kit import JOB, DictPort, began_alone, request, run, seen

MEASURED = ZeusJob(mode="measure")
ROOM_S = 60.0  # for a busy host, where a promise is a time


class Hangs:
    """A store that does not answer while ``over`` is not set; ``lost``: it is done all the same, the answer is not."""

    def __init__(self, store: Store) -> None:
        self.store, self.over = store, threading.Event()
        self.asked = threading.Event()
        self.lost = False

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.asked.set()
            self.over.wait()
            value = getattr(self.store, name)(*args, **options)
            if self.lost:
                raise StoreError("no answer", passing=True, unsure=True)
            return value

        return call


class HangingPort(DictPort):
    """Variables whose API does not answer."""

    def __init__(self, over: threading.Event) -> None:
        super().__init__()
        self.over = over

    def set(self, key: str, text: str) -> None:
        self.over.wait()


@pytest.fixture
def store(tmp_path: Path, empty_log: Path) -> SqlStore:
    shutil.copy(empty_log, tmp_path / "zeus.db")
    return SqlStore(f"sqlite:///{tmp_path / 'zeus.db'}", create=True)


@pytest.fixture
def hangs(store: SqlStore) -> Iterator[Hangs]:
    hanging = Hangs(store)
    yield hanging
    hanging.over.set()
    for thread in threading.enumerate():
        if thread.name == "zeus-store":
            thread.join(60)  # what it logs is of this test


@pytest.fixture
def first(store: SqlStore) -> Trial:
    return two_attempts(store)


def reporter_of(
    store: Hangs | None, first: Trial, folder: Path, port: DictPort | None = None, **options: Any
) -> ResultReporter:
    return ResultReporter(
        cast(Any, store),
        port or DictPort(),
        first,
        lease_s=90,
        state_dir=folder / "state",
        **options,
    )


def beat(first: Trial, n: int, **fields: Any) -> ResultLine:
    """The n-th beat of the first attempt, with a profile sample and a power point."""
    size = first.decision.attempts[0].batch_size or 32
    sample = ProfileSample(batch_size=size, limit_w=200.0, samples=10, energy_j=1.0, time_s=1.0)
    point = PowerPoint(t_s=float(n), power_w=100.0, limit_w=200.0, phase="profile")
    observation = seen(size, energy_j=100.0 * n, epochs=float(n))
    news: dict[str, Any] = {"observation": observation, "profile": (sample,), "points": (point,)}
    return ResultLine(
        **{"kind": "beat", "start_id": "s", "attempt": first.key.attempt, **news, **fields}
    )


def end(first: Trial, n: int = 9, **fields: Any) -> ResultLine:
    return beat(
        first, n, **{"kind": "end", "state": State.CONVERGED, "profile": (), "points": (), **fields}
    )


def profiled(store: Store, first: Trial) -> tuple[int, list[float]]:
    """(samples in the profile, times of the power points of the first attempt)."""
    device = seen().where
    assert device is not None
    found = store.profile(JOB_ID, device, JOB.job_version)
    return sum(s.samples for s in found), [p.t_s for p in store.points(first.key)]


def taking_s(call: Callable[[], object]) -> float:
    begun_s = time.monotonic()
    call()
    return time.monotonic() - begun_s


# --- waiting


def test_no_beat_waits_and_none_is_lost(
    store: SqlStore, hangs: Hangs, first: Trial, tmp_path: Path
) -> None:
    reporter = reporter_of(hangs, first, tmp_path)
    for n in range(1, 6):
        reporter(beat(first, n))
    assert reporter._left_s == RUN_S
    hangs.over.set()
    settled(reporter)
    assert profiled(store, first) == (50, [1.0, 2.0, 3.0, 4.0, 5.0])
    assert store.trials(JOB_ID)[-1].observation.energy_j == 500.0


@pytest.fixture
def api_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's API, however little of the run's time is left."""
    monkeypatch.setattr(pending, "bounded", lambda call, _: call())


@pytest.mark.usefixtures("api_answers")
def test_an_end_waits_for_half_of_what_is_left_then_it_is_remembered(
    store: SqlStore,
    hangs: Hangs,
    first: Trial,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = DictPort()
    reporter = reporter_of(hangs, first, tmp_path, port, left_s=0.8)
    reporter(beat(first, 1))
    reporter(beat(first, 2))
    reporter(end(first))
    assert reporter._left_s < 0.5
    errors = [
        arg for record in caplog.records for arg in record.args if isinstance(arg, StoreError)
    ]
    assert [error.unsure for error in errors] == [True], "its answer may only be late"
    assert (
        reporter.cost_xcom()["attempts"][0]["untold"] == f"Variable zeus-untold:{first.key.ti_id}:1"
    )
    hangs.over.set()
    settled(reporter)  # now the store has it too
    assert drain(store, port, JOB_ID) == 1
    assert (store.trials(JOB_ID)[-1].state, profiled(store, first)) == (
        State.CONVERGED,
        (20, [1.0, 2.0]),
    )


class Away:
    """A store that cannot be reached until a moment of a clock that the test drives; pauses advance it."""

    def __init__(self, store: Store, until_s: float) -> None:
        self.store = store
        self.until_s = until_s
        self.now_s = 0.0
        self.asked = 0

    def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s

    def tell(self, *args: Any, **options: Any) -> Trial:
        self.asked += 1
        if self.now_s < self.until_s:
            raise StoreError("It cannot be reached.", passing=True)
        return self.store.tell(*args, **options)


def reporter_by_clock(
    away: Away, first: Trial, folder: Path, port: DictPort, **options: Any
) -> ResultReporter:
    """One whose thread has done its work when the clock of ``away`` goes on."""
    reporter = reporter_of(
        cast(Any, away),
        first,
        folder,
        port,
        clock=lambda: away.now_s,
        sleep=away.sleep,
        **options,
    )
    put = reporter._thread.put

    def done(line: ResultLine) -> QueuedLine:
        queued = put(line)
        assert queued.done.wait(60)
        return queued

    reporter._thread.put = done  # type: ignore[method-assign]
    return reporter


@pytest.mark.parametrize(
    ("job", "away_s", "left_s"),
    [(MEASURED, 22.0, RUN_S), (MEASURED, 6.0, 14.0), (JOB, 12.0, RUN_S)],
)
def test_an_end_is_tried_again_while_the_store_is_away(
    store: SqlStore, tmp_path: Path, job: ZeusJob, away_s: float, left_s: float
) -> None:
    first = store.ask(request(1, job=job)).trial
    port = DictPort()
    away = Away(store, away_s)
    reporter = reporter_by_clock(away, first, tmp_path, port, left_s=left_s)
    reporter(end(first))
    assert (store.trials(JOB_ID)[-1].state, port.data) == (State.CONVERGED, {})
    assert away_s <= away.now_s <= left_s - reporter._left_s + 1e-6


def test_a_store_that_stays_away_costs_a_measured_task_its_budget_and_the_end_is_kept(
    store: SqlStore, tmp_path: Path
) -> None:
    first = store.ask(request(1, job=MEASURED)).trial
    port = DictPort()
    away = Away(store, 1e9)
    reporter_by_clock(away, first, tmp_path, port)(end(first))
    assert away.now_s <= RUN_S
    assert away.asked > 10
    assert list(port.data) == [f"zeus-untold:{first.key.ti_id}:1"]


def test_an_error_that_does_not_pass_is_not_tried_again(store: SqlStore, tmp_path: Path) -> None:
    class Refuses(Away):
        def tell(self, *args: Any, **options: Any) -> Trial:
            self.asked += 1
            raise StoreError("Another schema.")

    first = store.ask(request(1, job=MEASURED)).trial
    port = DictPort()
    away = Refuses(store, 0.0)
    reporter_by_clock(away, first, tmp_path, port)(end(first))
    assert (away.asked, away.now_s, len(port.data)) == (1, 0.0, 1)


def test_all_ends_of_a_run_wait_no_longer_than_its_budget(
    hangs: Hangs, first: Trial, tmp_path: Path
) -> None:
    over = hangs.over
    reporter = reporter_of(hangs, first, tmp_path, HangingPort(over), left_s=1.0)

    def whole_run() -> None:
        for number in (1, 2, 3, 4):
            reporter(ResultLine(kind="attempt", start_id="s", attempt=number, batch_size=32))
            reporter(end(first, attempt=number))

    assert taking_s(whole_run) < 1.0 + ROOM_S
    assert reporter._left_s >= 0.0
    assert len(list((tmp_path / "state").glob("zeus-untold-*.json"))) == 4, "no API either: files"


def test_the_whole_budget_is_thirty_seconds_and_a_stopped_task_has_one() -> None:
    assert (RUN_S, STOPPED_S) == (30.0, 1.0)


# --- a task that is being stopped


def test_a_stopped_task_keeps_its_end_in_a_file_at_once(
    store: SqlStore, hangs: Hangs, first: Trial, tmp_path: Path
) -> None:
    port = DictPort()
    reporter = reporter_of(hangs, first, tmp_path, port)
    reporter(beat(first, 1))
    reporter.hurry()
    reporter.hurry()
    assert taking_s(lambda: reporter(end(first))) < STOPPED_S + ROOM_S
    assert reporter._left_s == pytest.approx(0.0, abs=0.5)
    assert port.data == {}, "no API is asked"
    (file,) = (tmp_path / "state").iterdir()
    hangs.over.set()
    settled(reporter)
    assert drain(store, port, JOB_ID, state_dir=tmp_path / "state") == 1
    assert not file.exists()
    assert profiled(store, first) == (10, [1.0])


def test_all_ends_of_a_stopped_task_wait_for_its_second_together(
    first: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0

    class Silent(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            nonlocal now_s
            assert timeout is not None
            now_s += timeout
            return False

    reporter = reporter_of(None, first, tmp_path, clock=lambda: now_s)
    monkeypatch.setattr(reporter._thread, "put", lambda line: QueuedLine(line, Silent()))
    reporter.hurry()
    for number in (1, 2):
        reporter(end(first, attempt=number))
    assert now_s == STOPPED_S
    assert len(list((tmp_path / "state").iterdir())) == 2


@pytest.mark.parametrize(
    ("error", "stops"),
    [
        (TrainingKilled("Airflow stopped the task"), True),
        (KeyboardInterrupt(), True),
        (AttemptOver("too dear"), False),
        (ValueError("of the training"), False),
        (None, False),
    ],
)
def test_what_is_on_its_way_out_says_whether_the_task_is_stopped(
    error: BaseException | None, stops: bool
) -> None:
    assert stops_the_task(error) is stops


def test_an_end_on_the_way_out_of_a_time_limit_is_not_waited_for(
    hangs: Hangs, first: Trial, tmp_path: Path
) -> None:
    class TimeLimit(BaseException):
        pass

    reporter = reporter_of(hangs, first, tmp_path)
    try:
        raise TimeLimit
    except TimeLimit:
        assert taking_s(lambda: reporter(end(first, state=State.FAILED))) < STOPPED_S + ROOM_S
    assert reporter.stopped
    assert len(list((tmp_path / "state").iterdir())) == 1


def test_a_signal_ends_a_wait_at_once(
    hangs: Hangs, first: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Signalled(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise TrainingKilled("Airflow stopped the task")

    reporter = reporter_of(hangs, first, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(reporter._thread, "put", lambda line: QueuedLine(line, Signalled()))
        with pytest.raises(TrainingKilled):
            reporter(end(first))
    assert reporter.stopped
    reporter(end(first))  # as the sender sends it again
    assert len(list((tmp_path / "state").iterdir())) == 1
    assert len(reporter.cost_xcom()["attempts"]) == 1


def test_without_a_thread_the_store_is_asked_here(
    store: SqlStore, first: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    reporter = reporter_of(cast(Any, store), first, tmp_path)
    reporter(beat(first, 1))
    reporter(end(first))
    assert (store.trials(JOB_ID)[-1].state, profiled(store, first)) == (
        State.CONVERGED,
        (10, [1.0]),
    )


# --- answers that are lost


@pytest.mark.parametrize("lost", [(2,), (2, 3), (1, 2, 4)])
def test_what_a_beat_brought_counts_once_though_its_answer_was_lost(
    store: SqlStore, hangs: Hangs, first: Trial, tmp_path: Path, lost: tuple[int, ...]
) -> None:
    reporter = reporter_of(hangs, first, tmp_path)
    hangs.over.set()
    for n in range(1, 5):
        hangs.lost = n in lost
        reporter(beat(first, n))
        settled(reporter)
    hangs.lost = False
    reporter(end(first))
    assert profiled(store, first) == (40, [1.0, 2.0, 3.0, 4.0])


@pytest.mark.usefixtures("api_answers")
def test_it_counts_once_where_the_end_is_told_by_the_next_run(
    store: SqlStore, hangs: Hangs, first: Trial, tmp_path: Path
) -> None:
    port = DictPort()
    reporter = reporter_of(hangs, first, tmp_path, port, left_s=0.4)
    reporter(beat(first, 1))
    assert hangs.asked.wait(60), "it is under way when the end is remembered"
    reporter(end(first))
    assert len(port.data) == 1
    # the beat is stored, the end is not
    hangs.store = cast(Any, Only(store, "heartbeat"))
    kept = port
    hangs.over.set()
    settled(reporter)
    assert profiled(store, first) == (10, [1.0])
    assert drain(store, kept, JOB_ID) == 1
    assert (store.trials(JOB_ID)[-1].state, profiled(store, first)) == (
        State.CONVERGED,
        (10, [1.0]),
    )


class Only:
    """A store that takes one kind of call."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name != self._name:
            raise StoreError("no database")
        return getattr(self._store, name)


def test_news_with_the_sums_of_the_beat_before_wait_for_others(
    store: SqlStore, first: Trial, tmp_path: Path
) -> None:
    """Else it is unknown whether they are stored."""
    reporter = reporter_of(cast(Any, store), first, tmp_path)
    for n in (1, 2):
        reporter(replace(beat(first, n), observation=seen(first.batch_size)))
        settled(reporter)
    assert profiled(store, first) == (10, [1.0])
    reporter(beat(first, 3))
    settled(reporter)
    assert profiled(store, first) == (30, [1.0, 2.0, 3.0])


# --- a run that began without its store


def test_a_run_that_began_alone_is_adopted_at_the_first_beat_that_gets_through(
    store: SqlStore, tmp_path: Path
) -> None:
    run(store, 0)
    alone = began_alone(1, opened_at=500.0)
    tries = []

    def reopen() -> Store:
        tries.append(1)
        if len(tries) < 2:
            raise StoreError("no database")
        return store

    reporter = reporter_of(None, alone, tmp_path, reopen=reopen)
    reporter(ResultLine(kind="attempt", start_id="s", attempt=1, batch_size=32))
    for n in range(1, 4):
        reporter._rows._reopen_at_s = 0.0  # its pause is over
        reporter(beat(alone, n))
        settled(reporter)
    mine = store.trials(JOB_ID)[-1]
    assert (mine.key, mine.number, mine.state) == (TrialKey("ti-1"), 2, State.RUNNING)
    assert (mine.observation.energy_j, profiled(store, alone)) == (300.0, (30, [1.0, 2.0, 3.0]))
    assert len(tries) == 2
    reporter(end(alone))
    assert [t.state for t in store.trials(JOB_ID)] == [State.CONVERGED] * 2
    assert reporter.cost_xcom()["attempts"][0]["untold"] is None


def test_the_store_is_opened_again_after_pauses_that_grow_but_at_an_end_at_once(
    tmp_path: Path,
) -> None:
    from airflow_provider_zeus.operators.result_writer import ResultWriter

    now_s = 0.0
    tries = []

    def reopen() -> Store:
        tries.append(now_s)
        raise StoreError("no database")

    alone = began_alone(1, opened_at=500.0)
    rows = ResultWriter(None, alone, lease_s=90, reopen=reopen, clock=lambda: now_s)
    for second in range(200):
        now_s = float(second)
        with pytest.raises(StoreError):
            rows.take(beat(alone, second))
    assert tries == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 123.0, 183.0]
    with pytest.raises(StoreError):
        rows.take(end(alone))
    assert tries[-1] == 199.0


def test_a_run_whose_answer_was_lost_leaves_one_open_trial(store: SqlStore, tmp_path: Path) -> None:
    run(store, 0)
    store.ask(request(1))  # committed, and the answer was lost
    alone = began_alone(1, opened_at=500.0)
    reporter = reporter_of(None, alone, tmp_path, reopen=lambda: store)
    reporter(beat(alone, 1))
    settled(reporter)
    assert [t.state for t in store.trials(JOB_ID)[1:]] == [State.ABANDONED, State.RUNNING]
    assert store.trials(JOB_ID)[-1].planned == alone.planned
    store.tell(store.trials(JOB_ID)[-1].key, State.FAILED, Report(observation=Observation()))


def test_a_line_joins_and_leaves_the_queue_while_no_other_thread_does() -> None:
    free: list[bool] = []

    def look() -> None:
        free.append(store_thread._lock.acquire(blocking=False))
        if free[-1]:
            store_thread._lock.release()

    class Watched(list[QueuedLine]):
        def append(self, line: QueuedLine) -> None:
            look()
            super().append(line)

        def pop(self, *at: Any) -> QueuedLine:
            look()
            return super().pop(*at)

    taken: list[ResultLine] = []
    store_thread = StoreThread(taken.append)
    store_thread._queue = Watched()
    line = ResultLine(kind="final", start_id="s")
    assert store_thread.put(line).done.wait(60.0)
    assert (free, taken) == ([False, False], [line])
