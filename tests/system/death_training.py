"""One recurrence in a process of its own, held at one of seven points:
the side of death_cells.py that dies.

It is ``ZeusTrainOperator.execute`` with a store and a fake GPU. In Airflow's place stand a context,
a folder for its Variables and the signal handler of its task runner.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa

from airflow_provider_zeus import ZeusJob
from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import State, Trial, TrialKey
from airflow_provider_zeus.operators import asking, recurrence, result_reporter
from airflow_provider_zeus.operators.result_reporter import ResultReporter
from airflow_provider_zeus.operators.train import ZeusTrainOperator
from airflow_provider_zeus.power import meter
from airflow_provider_zeus.store.base import AskAnswer, AskRequest
from airflow_provider_zeus.store.sql.store import SqlStore
from airflow_provider_zeus.training import metering
from airflow_provider_zeus.training.profiling import measurement_windows
from airflow_provider_zeus.training.protocol.events import ResultLine
from tests.system.killing import PATIENT_S

POINTS = (
    "before ask commits",
    "after ask",
    "during profiling",
    "between epochs",
    "after the last epoch",
    "before tell commits",
    "after tell",
)
BEFORE_ASK, AFTER_ASK, PROFILING, BETWEEN, LAST, BEFORE_TELL, AFTER_TELL = POINTS
EPOCHS = 3
STEPS = 10
JOB = ZeusJob(
    batch_sizes=[32],
    default_batch_size=32,
    target="acc >= 0.9",
    max_epochs=10,
    eta=1.0,
    device="nvml",
    job_id="death",
    power_limits_w=[225.0, 175.0, 150.0],
    profile_s=0.1,
)


class Point:
    """The point at which this process stops, once.

    ``early``: before the transaction, not before its commit.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self.folder, self.name = Path(request["cell"]), request["stage"]
        self.early, self.linger_s = request["early"], request["linger_s"]
        self._reached = self._released = False

    def release(self) -> None:
        """A signal has come: an end that is under way in another thread goes on.

        A question does not: nobody waits.
        """
        self._released = self.name == BEFORE_TELL

    def beaten(self) -> None:
        """Wait for a heartbeat that tells of some energy."""
        until_s = time.monotonic() + PATIENT_S
        while not self._energy_taken_j():
            assert time.monotonic() < until_s, self._lines()
            time.sleep(0.01)

    def _energy_taken_j(self) -> float:
        """What the newest heartbeat that was taken tells; 0 before that."""
        lines = [json.loads(line) for line in self._lines().splitlines()]
        beats = [line for line in lines if (line["what"], line["kind"]) == ("taken", "beat")]
        return (beats[-1]["energy_j"] or 0.0) if beats else 0.0

    def _lines(self) -> str:
        return path.read_text() if (path := self.folder / "lines.jsonl").exists() else ""

    def here(self, name: str) -> None:
        """Stop here, if it is the point, until ``<cell>/go`` is there or a signal ends it."""
        if self._reached or name != self.name:
            return
        self._reached = True
        (self.folder / "there.new").write_text(str(os.getpid()))
        (self.folder / "there.new").rename(self.folder / "there")
        while not self._released and not (self.folder / "go").exists():
            time.sleep(0.01)

    @contextmanager
    def around(self, engine: sa.Engine, before: str) -> Iterator[None]:
        """A transaction before whose commit the point may lie."""
        if self.early:
            self.here(before)

        def at_commit(connection: sa.Connection) -> None:
            # a question reads in a transaction of its own
            if connection.get_execution_options().get("zeus_write"):
                self.here(before)
            reach(connection)

        sa.event.listen(engine, "commit", at_commit)
        try:
            yield
        finally:
            sa.event.remove(engine, "commit", at_commit)


def reach(connection: sa.Connection) -> None:
    """A file's folder that was taken away is gone for connections too that are open.

    Raises what SQLite says.
    """
    path = connection.engine.url.database or ""
    if connection.dialect.name == "sqlite" and not Path(path).exists():
        connection.exec_driver_sql(f"ATTACH '{path}' AS gone")


class Held(SqlStore):
    """The store, with the points of a question and of an end in it; its disk may be full,
    its clock go back.
    """

    point: Point

    def __init__(self, url: str, point: Point, create: bool = True, **more: Any) -> None:
        self.point = point
        sqlite = url.startswith("sqlite")
        now = clock(point.folder) if sqlite else None
        super().__init__(url, create=sqlite and create, now=now, **more)
        if sqlite:
            sa.event.listen(self._engine, "begin", self._at_begin)

    def _at_begin(self, connection: sa.Connection) -> None:
        reach(connection)
        if (self.point.folder / "full").exists():
            # no less than there are: none more
            connection.exec_driver_sql("PRAGMA max_page_count = 1")

    def ask(self, request: AskRequest) -> AskAnswer:
        """A question."""
        with self.point.around(self._engine, BEFORE_ASK):
            asked = super().ask(request)
        self.point.here(AFTER_ASK)
        return asked

    def tell(
        self, key: TrialKey, state: State, report: Report, *, reason: str | None = None
    ) -> Trial:
        """An end."""
        with self.point.around(self._engine, BEFORE_TELL):
            return super().tell(key, state, report, reason=reason)


def clock(folder: Path) -> Any:
    """The host's clock, an hour back where ``<cell>/back`` is."""
    return lambda: time.time() - 3600 * (folder / "back").exists()


class Folder:
    """Airflow's Variables, as files; out of reach while a file ``away`` lies there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(exist_ok=True)

    def _reach(self) -> None:
        if (self._path / "away").exists():
            raise StoreError("Variables cannot be reached; check that Airflow's API can.")

    def get(self, key: str) -> str | None:
        """Text of one."""
        self._reach()
        return path.read_text() if (path := self._path / key).exists() else None

    def set(self, key: str, text: str) -> None:
        """Write one."""
        self._reach()
        (self._path / f".{os.getpid()}").write_text(text)
        (self._path / f".{os.getpid()}").replace(self._path / key)

    def delete(self, key: str) -> None:
        """Delete one."""
        self._reach()
        (self._path / key).unlink(missing_ok=True)

    def keys(self, prefix: str) -> list[str]:
        """Those there are."""
        self._reach()
        return sorted(path.name for path in self._path.glob(f"{prefix}*"))


class Watched(ResultReporter):
    """The reporter; ``<cell>/lines.jsonl`` gets each line that it was given,
    and whether it was stored or kept.
    """

    def __call__(self, line: ResultLine) -> None:
        """Take one line."""
        self._note(line, "given")
        super().__call__(line)
        if line.kind == "end":
            self._note(line, "taken")

    def _take(self, line: ResultLine) -> None:
        super()._take(line)
        if line.kind != "end":
            self._note(line, "taken")

    def _note(self, line: ResultLine, what: str) -> None:
        o = line.observation
        said = {"what": what, "kind": line.kind, "start_id": line.start_id}
        if o is not None:
            said |= {"energy_j": o.energy_j, "time_s": o.time_s, "epochs": o.epochs}
        with Path(os.environ["ZEUS_CELL"], "lines.jsonl").open("a") as file:
            file.write(json.dumps(said) + "\n")


def train(run: Any, point: Point) -> int:
    """Three epochs, which stop at the point;
    after it the second one goes on for some time where it is asked to.
    """
    found_w = run.device.limit_w()
    for epoch in run.epochs():
        for _ in range(2000):
            run.step()
            time.sleep(0.001)
            live = run.progress.live
            if live._sweep.active and run.device.seen_limit_w < found_w and live.snapshot.energy_j:
                if point.name == PROFILING:
                    point.beaten()
                point.here(PROFILING)
            elif not live._sweep.active and live._meter.samples >= 32 * STEPS * (epoch + 1):
                break
        if epoch == 1:
            until_s = time.monotonic() + point.linger_s
            while time.monotonic() < until_s:
                run.step()
                time.sleep(0.005)
        run.report(acc=0.9 * (epoch + 1) / EPOCHS)
        if point.name not in POINTS[:3]:
            point.beaten()
        point.here(BETWEEN)
    point.here(LAST)
    return int(run.batch_size)


def shorten() -> None:
    """Let profiling and sums of this process fit into epochs of a few milliseconds.

    A reading takes as long as in epochs of minutes, and must not be left out for that.
    """
    measurement_windows.SETTLE_S = 0.02
    metering.TICK_S = 0.02
    meter.MOST_SHARE = measurement_windows.MOST_SHARE = math.inf


def recur(request: dict[str, Any]) -> None:
    """The whole recurrence; ``<cell>/value`` gets what the function returned."""
    from tests.system.kill_host import feed_on_demand

    feed_on_demand("task")
    shorten()
    point = Point(request)
    folder = Path(request["cell"])
    if point.name == BEFORE_TELL:
        result_reporter.STOPPED_S = 5.0  # a busy host commits what is at its commit
    variables = Folder(Path(request["variables"]))
    asking.open_store = lambda conn_id, create=True, **_: Held(
        request["url"], point, create, read_setting=variables.get
    )
    asking.AirflowVariables = recurrence.AirflowVariables = lambda: variables  # type: ignore[assignment,misc]
    recurrence.ResultReporter = Watched  # type: ignore[misc]
    job = replace(JOB, **request.get("job", {}))
    operator = ZeusTrainOperator(
        task_id="train", job=job, python_callable=train, op_kwargs={"point": point}
    )
    signal.signal(signal.SIGTERM, lambda *_: (point.release(), operator.on_kill()))
    value = operator.execute(context(request, operator))
    point.here(AFTER_TELL)
    (folder / "value").write_text(str(value))


def context(request: dict[str, Any], operator: Any) -> Any:
    """What Airflow gives a task to know of itself."""
    ti = SimpleNamespace(
        id=request["ti_id"],
        dag_id="death",
        run_id=request["run_id"],
        task_id="train",
        map_index=-1,
        try_number=request.get("try_number", 1),
        xcom_push=lambda key, value: (Path(request["cell"]) / key).write_text(json.dumps(value)),
    )
    return {"ti": ti, "task": operator, "dag_run": SimpleNamespace(run_type="scheduled")}
