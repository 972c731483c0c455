"""A cell under a real scheduler: one DAG run, one fault at one point,
and what Airflow and the log say afterwards.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from airflow_provider_zeus.model.trial import State, Trial
from demo.settings import DemoError
from tests.fake_nvml import FakeNvml
from tests.system.death_checks import the_log_is_whole, the_page_shows
from tests.system.death_stores import SqliteLog
from tests.system.death_training import BETWEEN, POINTS
from tests.system.killing import MemoryLimit, is_alive
from tests.system.servers import Site

FOUND_W = 225.0
HEARTBEAT_S = 1.0
LEASE_S = 5.0
GONE_S = 10.0
BACK_S = 2.0
LOCAL = "LocalExecutor"
CELERY = "CeleryExecutor"
KILLED = "killed: Airflow stopped the task"
DEAD = ("failed", "failed")  # task and run, as Airflow has them
DONE = ("success", "success")


@dataclass(frozen=True)
class AirflowCell:
    """What happens where, what Airflow must say of task and run,
    and the log of the run's trials.
    """

    fault: str
    point: str = BETWEEN
    executor: str = LOCAL
    airflow: tuple[str, str] = DEAD
    states: tuple[str, ...] = ("abandoned",)

    @property
    def dag_id(self) -> str:
        """Its DAG and its job."""
        return (
            f"{self.fault} {self.point} {self.executor}".replace(" ", "_").replace("-", "_").lower()
        )


@dataclass
class AirflowOutcome:
    """A line of the table."""

    fault: str
    point: str
    executor: str
    airflow: str = ""
    state: str = ""
    gone_s: float = 0.0
    limit_s: float | None = None  # None: it was not changed
    told_j: float | None = None
    store: str = "airflow"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


_NONE_OF_POINT = {POINTS[0]: (), POINTS[6]: ("converged",)}
CELLS = (
    *(
        AirflowCell(
            "SIGKILL",
            p,
            CELERY if p == BETWEEN else LOCAL,
            states=_NONE_OF_POINT.get(p, ("abandoned",)),
        )
        for p in POINTS
    ),
    AirflowCell("SIGTERM", states=("failed",)),
    AirflowCell("memory limit"),
    AirflowCell("store gone for 2 s", airflow=DONE, states=("converged",)),
    AirflowCell("store gone permanently", airflow=DONE, states=("abandoned",)),
    AirflowCell("disk full", airflow=DONE, states=("abandoned",)),
    AirflowCell("clock back 1 h", airflow=DONE, states=("converged",)),
    AirflowCell("redelivered", executor=CELERY, airflow=DONE, states=("converged",)),
    AirflowCell("supervisor killed", executor=CELERY),
    AirflowCell("marked failed", states=("failed",)),
    AirflowCell("cleared", airflow=DONE, states=("failed", "converged")),
    AirflowCell("DAG run timeout", airflow=("skipped", "failed"), states=("failed",)),
    AirflowCell("api-server gone for 30 s", airflow=DONE, states=("converged",)),
)
TIMEOUT_S = {"DAG run timeout": 45.0}  # of the run [s]; its training is there long before


def until(is_so: Callable[[], Any], within_s: float, what: str, every_s: float = 0.05) -> float:
    """Seconds until it is so."""
    begun_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - begun_s < within_s, f"waited {within_s:g} s in vain for {what}"
        time.sleep(every_s)
    return time.monotonic() - begun_s


class AirflowPlayed:
    """A cell, played by a site's servers.

    :param deliver: hands the message of a DAG's running task out once more.
    """

    def __init__(
        self,
        site: Site,
        work: Path,
        past: Path,
        cell: AirflowCell,
        number: int,
        deliver: Callable[[str], None],
    ) -> None:
        self.site, self.cell, self.folder, self.deliver = site, cell, work / cell.dag_id, deliver
        self.seen = AirflowOutcome(cell.fault, cell.point, cell.executor)
        self.folder.mkdir()
        self.nvml = FakeNvml(self.folder / "nvml.state")
        uuid = b"GPU-%08d-1111-2222-3333-444455556666" % number
        self.card = self.nvml.add(limit_w=FOUND_W, tick_s=0.002, settle_s=0.002, uuid=uuid)
        self.log = SqliteLog(self.folder, past)

    def play(self) -> AirflowOutcome:
        """All of it. Raises AssertionError where something does not hold."""
        early = self.cell.fault in ("disk full", "clock back 1 h")
        linger_s = 2.5 if self.cell.fault == "store gone for 2 s" else 0.0
        held = {"stage": self.cell.point, "early": early, "linger_s": linger_s}
        (self.folder / "hold.json").write_text(json.dumps(held))
        self.run_id = self.trigger()
        until((self.folder / "there").exists, 120, f"the point of {self.cell.dag_id}")
        self.pid = int((self.folder / "there").read_text())
        self.supervisor = psutil.Process(self.pid).ppid()
        (self.folder / "hold.json").unlink()
        changed = self.card.limit_w < FOUND_W
        self.seen.gone_s = self.happen() or 0.0
        back_s = until(lambda: self.card.limit_w == FOUND_W, BACK_S, "the limit found")
        self.seen.limit_s = back_s if changed else None
        assert max([FOUND_W, *self.nvml.sets]) == FOUND_W, "never above the limit found"
        self.look()
        self.next_run()
        return self.seen

    def trigger(self) -> str:
        """A run; asked again while the api-server or its database is busy."""
        for _ in range(5):
            with suppress(DemoError):
                return self.site.trigger(self.cell.dag_id)
            time.sleep(1)
        return self.site.trigger(self.cell.dag_id)

    # ------------------------------------------------------------------ faults
    def happen(self) -> float | None:
        """The fault; seconds until the training is gone."""
        return {
            "SIGTERM": lambda: self.kill(self.pid, signal.SIGTERM),
            "SIGKILL": lambda: self.kill(self.pid, signal.SIGKILL),
            "supervisor killed": lambda: self.kill(self.supervisor, signal.SIGKILL),
            "memory limit": self.eat,
            "store gone for 2 s": lambda: self.gone(2.0),
            "store gone permanently": lambda: self.gone(None),
            "disk full": self.full,
            "clock back 1 h": self.back,
            "redelivered": self.redeliver,
            "marked failed": self.mark,
            "cleared": self.clear,
            "DAG run timeout": self.time_out,
            "api-server gone for 30 s": self.no_api,
        }[self.cell.fault]()

    def ended(self, within_s: float = GONE_S) -> float:
        """Seconds until the training's process is gone."""
        return until(lambda: not is_alive(self.pid), within_s, "the end of the training")

    def go(self) -> float:
        """Let the training go on, to its end."""
        (self.folder / "go").touch()
        return self.ended()

    def kill(self, pid: int, number: signal.Signals) -> float:
        """A signal to one process."""
        os.kill(pid, number)
        return self.ended()

    def eat(self) -> float:
        """The kernel kills for want of memory."""
        limit = MemoryLimit()
        try:
            limit.hold(self.pid)
            (self.folder / "eat-task").touch()
            seconds = self.ended()
            assert limit.kills == 1, "it was the kernel that killed"
            return seconds
        finally:
            (self.folder / "eat-task").unlink()
            limit.remove()

    def gone(self, for_s: float | None) -> float:
        """The store is away."""
        self.log.take_away()
        begun_s = time.monotonic()
        (self.folder / "go").touch()
        if for_s is None:
            self.ended()
        else:
            time.sleep(for_s)
        self.log.give_back()
        self.ended()
        return time.monotonic() - begun_s

    def full(self) -> float:
        """The disk is full until the training has ended."""
        self.log.fill()
        seconds = self.go()
        self.log.make_room()
        return seconds

    def back(self) -> float:
        """The clock of the log steps back."""
        (self.folder / "back").touch()
        return self.go()

    def redeliver(self) -> float:
        """The broker hands the message out again while the training lives:
        Airflow refuses the second start.
        """
        self.deliver(self.cell.dag_id)
        time.sleep(3)  # for whatever that start may do
        assert len(self.own()) == 1
        assert is_alive(self.pid)
        return self.go()

    def mark(self) -> float:
        """Somebody marks the task failed."""
        self.site.mark_failed(self.cell.dag_id, self.run_id, "train")
        return self.ended()

    def clear(self) -> float:
        """Somebody clears the running task, which starts it anew."""
        assert self.site.clear(self.cell.dag_id, self.run_id, ["train"]) == ["train"]
        return self.ended()

    def time_out(self) -> float:
        """The DAG run takes too long."""
        timed_out = lambda: self.site.run_state(self.cell.dag_id, self.run_id) == "failed"  # noqa: E731
        until(timed_out, 90, "the run's timeout", every_s=0.5)
        return self.ended()

    def no_api(self) -> float:
        """The api-server is away for 30 s; the training goes on, its heartbeats reach the log.

        The task's end waits for Airflow's supervisor,
        which by then asks the api-server more and more rarely.
        """
        before = self.own()[0].lease_until
        self.site.stop("api-server")
        time.sleep(30)
        (trial,) = self.own()
        assert trial.state is State.RUNNING
        assert trial.lease_until > before + 20
        self.site.start("api-server")
        until(self.site.ready, 60, "the api-server", every_s=0.5)
        (self.folder / "go").touch()
        return self.ended(90)

    # ------------------------------------------------------------------ what must hold
    def own(self) -> list[Trial]:
        """What the run has in the log, as a reader gets it."""
        store = self.log.readers()
        try:
            return store.recurrence(self.cell.dag_id, self.run_id)
        finally:
            store.close()

    def look(self) -> None:
        """At Airflow's states and the log's, before the next run."""
        run = self.site.wait_for_run(self.cell.dag_id, self.run_id, 240)
        task = self.site.task(self.cell.dag_id, self.run_id, "train")["state"]
        assert (task, run) == self.cell.airflow
        self.seen.airflow = f"{task}, {run}"
        with suppress(AssertionError):
            over = lambda: State.RUNNING not in [t.state for t in self.own()]  # noqa: E731
            until(over, LEASE_S + 3, "the lease", every_s=0.5)
        own = self.own()
        assert tuple(t.state.value for t in own) == self.cell.states
        assert [t.reason for t in own if t.state is State.FAILED] == [
            KILLED
        ] * self.cell.states.count("failed")
        self.seen.state = " + ".join(self.cell.states) or "none"
        if self.cell.fault in ("store gone permanently", "disk full"):
            self.seen.state += ", not yet stored"
        elif own:
            self.told(own)
        the_page_shows(own)

    def told(self, own: list[Trial]) -> None:
        """Each start is in the ledger once, with all that it had said when it died."""
        newest: dict[str, float] = {}
        lines = self.folder / "lines.jsonl"
        for line in lines.read_text().splitlines() if lines.exists() else ():
            said = json.loads(line)
            if said["what"] == "taken" and said.get("energy_j") is not None:
                newest[said["start_id"]] = said["energy_j"]
        told = {
            t.observation.start_id: t.observation.energy_j or 0.0
            for t in own
            if t.observation.start_id
        }
        assert len(told) == len([t for t in own if t.observation.start_id]), "no start counts twice"
        assert all(joules >= newest.get(str(start), 0.0) - 1e-6 for start, joules in told.items())
        assert sum(told.values()) <= self.card.energy_mj / 1000
        self.seen.told_j = (
            sum(told.values()) if told and self.cell.point not in POINTS[:2] else None
        )
        assert self.cell.point in POINTS[:2] or self.seen.told_j, "what trained has a cost"

    def next_run(self) -> None:
        """It succeeds, tells what was kept, and knows what the log says."""
        run_id = self.trigger()
        assert self.site.wait_for_run(self.cell.dag_id, run_id, 240) == "success"
        own = self.own()
        expected = list(self.cell.states)
        if self.cell.fault in ("store gone permanently", "disk full"):
            expected = ["converged"]
        assert [t.state.value for t in own] == expected
        self.told(own)
        store = self.log.readers()
        try:
            (kept,) = store.recurrence(self.cell.dag_id, run_id)
            the_log_is_whole(store, self.cell.dag_id, len(own) + 1)
        finally:
            store.close()
        assert kept.state is State.CONVERGED
        assert self.card.limit_w == FOUND_W
