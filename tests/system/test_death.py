"""Every fault at every point of a recurrence, on SQLite and PostgreSQL:
the training dies or goes on, nothing is lost.

The cells of a run are played side by side; each test looks at one. What was seen is written down as
JSON lines in ``$ZEUS_DEATH_TABLE`` where that is set:
``python -m tests.system.death_table`` makes the table of it.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from airflow_provider_zeus import ZeusJob
from airflow_provider_zeus.model.trial import State, Trial
from tests import fake_nvml
from tests.system.death_cells import CUT, SERVER_KILLED, Cell, Outcome, Played, cells
from tests.system.death_start import LEASE_S, Start
from tests.system.death_stores import PAST, Log, OwnLog, PostgresLog, SqliteLog, live, pasts
from tests.system.death_table import NOT_HERE, note
from tests.system.death_training import BEFORE_ASK, BETWEEN, JOB
from tests.system.killing import Host, MemoryLimit, within_s

AT_ONCE = 4  # they mostly wait

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]


class Matrix:
    """Plays the cells that this test run has selected, a few at a time."""

    def __init__(self, folder: Path, admin_url: str | None, selected: list[Cell]) -> None:
        self._folder = folder
        self._admin_url = admin_url
        self._host = Host(folder / "airflow")
        self._pasts = pasts(folder, admin_url)
        self._file, self._name = self._pasts.__enter__()
        self._copying = Lock()
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._played: dict[Cell, Future[Outcome]] = {
            cell: self._pool.submit(self._play, cell) for cell in selected
        }

    def outcome(self, cell: Cell) -> Outcome:
        """Of one cell. Raises AssertionError where something did not hold."""
        if cell not in self._played:
            self._played[cell] = self._pool.submit(self._play, cell)
        return self._played[cell].result()

    def close(self) -> None:
        """End it."""
        self._pool.shutdown(cancel_futures=True)
        self._host.end()
        self._pasts.__exit__(None, None, None)

    def _play(self, cell: Cell) -> Outcome:
        folder = self._folder / uuid.uuid4().hex[:8]
        folder.mkdir()
        played = None
        try:
            played = Played(self._host, folder, self._log(cell, folder), cell)
            played.play()
            return played.seen
        finally:
            if played is not None:
                played.clean()

    def _log(self, cell: Cell, folder: Path) -> Log:
        if cell.store == "sqlite":
            return SqliteLog(folder, self._file)
        assert self._admin_url
        # PostgreSQL copies a database for one at a time, and alembic migrates one
        with self._copying:
            if cell.store == "silent":
                return OwnLog()
            return PostgresLog(self._admin_url, f"zeus_{folder.name}", self._name)


@pytest.fixture(scope="module")
def matrix(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Matrix]:
    if fake_nvml.compiler() is None:
        pytest.skip("no C compiler (cc, gcc, clang): the fake libnvidia-ml.so.1 cannot be built")
    items = [item for item in request.session.items if item.path == request.path]
    params = [item.callspec.params for item in items if hasattr(item, "callspec")]
    selected = [given["cell"] for given in params if "cell" in given]
    postgres = (
        request.getfixturevalue("postgres") if any(c.store != "sqlite" for c in selected) else None
    )
    shared = "PYTEST_XDIST_WORKER" in os.environ  # nobody knows which of them are this worker's
    matrix = Matrix(tmp_path_factory.mktemp("death"), postgres, [] if shared else selected)
    yield matrix
    matrix.close()


@pytest.fixture(scope="module")
def no_memory_limit() -> str | None:
    """Why the kernel cannot be made to kill here."""
    try:
        MemoryLimit().remove()
    except OSError as error:
        return (
            f"no memory cgroup may be made here ({error}), so the kernel cannot kill for want of"
            " memory"
        )
    return None


IN_A_CHECK = {  # each fault and each store; all of them nightly, with their seconds
    Cell("sqlite", "SIGTERM", "during profiling"),
    Cell("sqlite", "SIGKILL", "before tell commits"),
    Cell("sqlite", "memory limit", "between epochs"),
    Cell("sqlite", "store gone permanently", "after the last epoch"),
    Cell("sqlite", "disk full", "before tell commits"),
    Cell("sqlite", "clock back 1 h", "after ask"),
    Cell("sqlite", "redelivered", "after ask"),
    Cell("postgres", "SIGKILL", "between epochs"),
    Cell("postgres", "disk full", "between epochs"),
    Cell("postgres", "store gone for 2 s", "between epochs"),
    Cell("silent", CUT, BEFORE_ASK),
    Cell("silent", SERVER_KILLED, BETWEEN),
}


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(
            c,
            id=f"{c.store}-{c.fault}-{c.point}",
            marks=pytest.mark.slow if c in IN_A_CHECK else (),
        )
        for c in cells()
    ],
)
def test_nothing_is_lost_or_counted_twice(
    matrix: Matrix, no_memory_limit: str | None, cell: Cell
) -> None:
    if cell.fault == "memory limit" and no_memory_limit:
        note(
            Outcome(cell.store, cell.fault, cell.point, state=NOT_HERE + no_memory_limit).to_dict()
        )
        pytest.skip(no_memory_limit)
    seen = matrix.outcome(cell)
    note(seen.to_dict())


def test_a_death_under_a_clock_that_went_back_is_closed_by_the_next_try(tmp_path: Path) -> None:
    """Its lease lies an hour ahead, which no living run's does."""
    if fake_nvml.compiler() is None:
        pytest.skip("no C compiler (cc, gcc, clang): the fake libnvidia-ml.so.1 cannot be built")
    host = Host(tmp_path / "airflow")
    past = pasts(tmp_path, None)
    log = SqliteLog(made(tmp_path / "cell"), past.__enter__()[0])
    try:
        first = Start(host, tmp_path / "cell", log, tmp_path / "variables", stage="between epochs")
        first.there()
        (tmp_path / "cell" / "back").touch()
        os.kill(first.pid, signal.SIGKILL)
        first.ended()
        time.sleep(LEASE_S + 0.5)
        assert [t.state for t in own(log)] == [State.ABANDONED]
        again = {"ti_id": "ti-1b", "run_id": "run-1", "try_number": 2}
        (made(tmp_path / "again") / "back").touch()
        second = Start(host, tmp_path / "again", log, tmp_path / "variables", **again)
        second.ended(20)
        assert second.value() == "32", second.said()
        dead, kept = own(log)
        assert (dead.state, dead.reason) == (State.ABANDONED, "superseded by try 2")
        assert (dead.observation.energy_j or 0) > 0
        assert (dead.closed_at or 0) >= dead.opened_at
        assert (kept.state, kept.origin.try_number) == (State.CONVERGED, 2)
    finally:
        host.end()
        past.__exit__(None, None, None)


def own(log: Log) -> list[Trial]:
    """What the run has in the log."""
    store = log.readers()
    try:
        return store.recurrence("death", "run-1")
    finally:
        store.close()


def made(folder: Path) -> Path:
    """A folder that is there."""
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.slow
def test_what_neither_the_store_nor_airflow_takes_waits_in_a_file(tmp_path: Path) -> None:
    """Both are gone when the training ends; the next run tells it."""
    if fake_nvml.compiler() is None:
        pytest.skip("no C compiler (cc, gcc, clang): the fake libnvidia-ml.so.1 cannot be built")
    host = Host(tmp_path / "airflow")
    past = pasts(tmp_path, None)
    log = SqliteLog(made(tmp_path / "cell"), past.__enter__()[0])
    variables = tmp_path / "variables"
    state_dir = tmp_path / "cell" / "state"
    try:
        first = Start(host, tmp_path / "cell", log, variables, stage="between epochs")
        first.there()
        log.take_away()
        (variables / "away").touch()
        first.go()
        first.ended()
        assert first.value() == "32", "the training keeps its model"
        (kept,) = state_dir.glob("zeus-untold-*.json")
        log.give_back()
        (variables / "away").unlink()
        later = {"ti_id": "ti-2", "run_id": "run-2", "state_dir": str(state_dir)}
        second = Start(host, tmp_path / "next", log, variables, **later)
        second.ended(20)
        assert second.value() == "32", second.said()
        assert not kept.exists()
        (told,) = own(log)
        assert told.state is State.CONVERGED
        assert told.observation.energy_j == first.lines("given")[-1]["energy_j"]
    finally:
        host.end()
        past.__exit__(None, None, None)


def test_a_task_that_is_stopped_while_its_store_does_not_answer_ends_at_once(
    tmp_path: Path,
) -> None:
    """Its cost waits in a file, for no API is asked on the way out; the next run tells it."""
    if fake_nvml.compiler() is None:
        pytest.skip("no C compiler (cc, gcc, clang): the fake libnvidia-ml.so.1 cannot be built")
    host = Host(tmp_path / "airflow")
    log = OwnLog()
    variables = tmp_path / "variables"
    state_dir = tmp_path / "cell" / "state"
    try:
        first = Start(host, tmp_path / "cell", log, variables, stage="between epochs")
        first.there()
        with log.standing():
            os.kill(first.pid, signal.SIGTERM)
            first.ended()
        assert first.value() is None, "Airflow gets no value of a task that was stopped"
        assert list(variables.iterdir()) == []
        (kept,) = state_dir.glob("zeus-untold-*.json")
        later = {"ti_id": "ti-2", "run_id": "run-2", "state_dir": str(state_dir)}
        second = Start(host, tmp_path / "next", log, variables, **later)
        second.ended(20)
        assert second.value() == "32", second.said()
        assert not kept.exists()
        (told,) = own(log)
        assert told.state is State.FAILED
        assert (told.reason or "").startswith("killed: ")
        assert told.observation.energy_j == first.lines("given")[-1]["energy_j"]
    finally:
        host.end()
        log.end()


class Nights:
    """Runs of a job of its own, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.variables = made(folder / "variables")
        self._host = Host(folder / "airflow")
        self._past = pasts(folder, None)
        self._log = SqliteLog(made(folder / "cell"), self._past.__enter__()[0])

    def remember(self, job: ZeusJob, about_j: float) -> None:
        """Let the log have what the job did before."""
        live(self._log.url, job, about_j)

    def kill(self, run_id: str, **job: Any) -> None:
        """Start a run, and kill it between its epochs."""
        start = self._start(run_id, 1, job, stage=BETWEEN)
        start.there()
        os.kill(start.pid, signal.SIGKILL)
        start.ended()
        start.limit_back()

    def train(self, run_id: str, try_number: int = 1, **job: Any) -> None:
        """Start a run, or the next try of one, which keeps a model."""
        start = self._start(run_id, try_number, job)
        start.ended(20)
        assert start.value() is not None, start.said()

    def wait_for_lease(self) -> None:
        """Until each run that was killed reads as abandoned."""
        until_s = time.monotonic() + within_s(LEASE_S + 0.5)
        while "running" in [state for _, state in self.found()]:
            assert time.monotonic() < until_s
            time.sleep(0.05)

    def found(self) -> list[tuple[int | None, str]]:
        """Batch size and state of each attempt in the log."""
        store = self._log.readers()
        try:
            return [(t.batch_size, t.state.value) for t in store.trials("nights")]
        finally:
            store.close()

    def end(self) -> None:
        """End the host."""
        self._host.end()
        self._past.__exit__(None, None, None)

    def _start(self, run_id: str, try_number: int, job: dict[str, Any], stage: str = "") -> Start:
        name = f"{run_id}-{try_number}"
        return Start(
            self._host,
            self._folder / name,
            self._log,
            self.variables,
            stage=stage,
            ti_id=name,
            run_id=run_id,
            try_number=try_number,
            job={"job_id": "nights", **job},
        )


@pytest.fixture
def nights(tmp_path: Path) -> Iterator[Nights]:
    if fake_nvml.compiler() is None:
        pytest.skip("no C compiler (cc, gcc, clang): the fake libnvidia-ml.so.1 cannot be built")
    nights = Nights(tmp_path)
    yield nights
    nights.end()


@pytest.mark.parametrize("sizes", [[32], [32, 64]], ids=["the only size", "of two sizes"])
def test_a_default_at_which_two_runs_in_a_row_were_killed_trains_the_next_one(
    nights: Nights, sizes: list[int]
) -> None:
    """Nothing of these runs shows that another size would have lived."""
    for run_id in ("first", "second"):
        nights.kill(run_id, batch_sizes=sizes)
        nights.wait_for_lease()
    nights.train("third", batch_sizes=sizes)
    assert nights.found() == [(32, "abandoned"), (32, "abandoned"), (32, "converged")]


def test_a_size_at_which_two_runs_were_killed_is_left_after_their_retries_kept_a_model(
    nights: Nights,
) -> None:
    """As if it does not fit into the host's memory: the kernel's kill has no words."""
    before = replace(JOB, job_id="nights", batch_sizes=[64], default_batch_size=64)
    nights.remember(before, about_j=1.0)  # a training here takes over 10 J
    (nights.variables / "zeus-settings:nights").write_text('{"pause_exploration": true}')
    for run_id in ("first", "second"):
        nights.kill(run_id, batch_sizes=[32, 64])
        nights.train(run_id, try_number=2, batch_sizes=[32, 64])
    nights.train("third", batch_sizes=[32, 64])
    killed = [(64, "abandoned"), (32, "converged")]
    assert nights.found()[PAST:] == [*killed, *killed, (32, "converged")]
