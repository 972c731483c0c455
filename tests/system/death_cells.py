"""A cell of the kill matrix: one recurrence, one fault at one point, and all that must hold afterwards."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.optimizer.fold import learn
from airflow_provider_zeus.optimizer.policy import prior
from airflow_provider_zeus.optimizer.trial import State, Trial
from airflow_provider_zeus.plugin.costs import rows_of
from airflow_provider_zeus.store.sql_belief import belief_of
from airflow_provider_zeus.store.sql_engine import transaction
from tests.fake_nvml import FakeNvml
from tests.system.death_stores import PAST, Log
from tests.system.death_training import (
    AFTER_ASK,
    AFTER_TELL,
    BEFORE_ASK,
    BEFORE_TELL,
    JOB,
    LAST,
    POINTS,
    Folder,
)
from tests.system.killing import Host, MemoryLimit, is_alive

FAULTS = (
    "SIGTERM",
    "SIGKILL",
    "memory limit",
    "store gone for 2 s",
    "store gone for good",
    "disk full",
    "clock back 1 h",
    "redelivered",
)
KILLS = ("SIGTERM", "SIGKILL", "memory limit")
FOUND_W = 225.0  # below the highest, as an administrator may have set it
HEARTBEAT_S, LEASE_S = 0.25, 2.0
GONE_S, BACK_S = 10.0, 2.0  # for the process, and from there for the limit


@dataclass(frozen=True)
class Cell:
    """What happens where."""

    store: str
    fault: str
    point: str


@dataclass
class Outcome:
    """A line of the table. ``gone_s``: from the fault (where the training lives on: from its end of waiting) to the
    end of the process; ``limit_s``: from there to the limit found. ``beat_j``: what the newest heartbeat or end said.
    """

    store: str
    fault: str
    point: str
    state: str = ""
    gone_s: float = 0.0
    limit_s: float = 0.0
    beat_j: float | None = None
    told_j: float | None = None
    next_run: str = ""
    cell_s: float = 0.0  # all of it, the next run too

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


class Start:
    """One process that runs the recurrence, on a host and a GPU of its own."""

    def __init__(self, host: Host, folder: Path, log: Log, variables: Path, **request: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.nvml = folder, FakeNvml(folder / "nvml.state")
        self.card = self.nvml.add(limit_w=FOUND_W, tick_s=0.002, settle_s=0.002)
        env = {
            "AIRFLOW__ZEUS__STATE_DIR": str(folder / "state"),
            "AIRFLOW__ZEUS__HEARTBEAT_S": str(HEARTBEAT_S),
            "AIRFLOW__ZEUS__LEASE_S": str(LEASE_S),
            "FAKE_NVML_STATE": str(folder / "nvml.state"),
        }
        defaults = {"stage": "", "early": False, "linger_s": 0.0, "ti_id": "ti-1", "run_id": "run-1"}
        fields = {"cell": str(folder), "who": "recurrence", "device": "nvml", "env": env, "url": log.url}
        self.pid = host.fork(**fields, variables=str(variables), **{**defaults, **request})

    def there(self) -> None:
        """Wait until it is at its point."""
        until(lambda: (self.folder / "there").exists() or not is_alive(self.pid), 30, "the point", self)
        assert (self.folder / "there").exists(), self.said()

    def go(self) -> None:
        """Let it go on."""
        (self.folder / "go").touch()

    def ended(self, within_s: float = GONE_S) -> float:
        """Seconds until the process is gone."""
        return until(lambda: not is_alive(self.pid), within_s, "the end of the training", self)

    def limit_back(self) -> float:
        """Seconds until the limit found is in force, and nothing is left of us that watches it."""
        seconds = until(lambda: self.card.limit_w == FOUND_W, BACK_S, "the limit found", self)
        until(lambda: not list((self.folder / "state").glob("limit-*")), 5, "the end of the guardian", self)
        assert max([FOUND_W, *self.nvml.sets]) == FOUND_W, "never above the limit found"
        return seconds

    def value(self) -> str | None:
        """What the training returned to Airflow, None where it did not."""
        return path.read_text() if (path := self.folder / "value").exists() else None

    def lines(self, what: str) -> list[dict[str, Any]]:
        """Lines that were ``given`` to the teller, or those of them that it has ``taken``, with an energy."""
        path = self.folder / "lines.jsonl"
        known = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in known if line["what"] == what and line.get("energy_j") is not None]

    def said(self) -> str:
        """The end of what it printed."""
        return (self.folder / "log").read_text()[-3000:] if (self.folder / "log").exists() else ""

    def drawn_j(self) -> float:
        """What the GPU's counter has counted in all [J]."""
        return float(self.card.energy_mj) / 1000


def until(is_so: Callable[[], Any], within_s: float, what: str, start: Start) -> float:
    """Seconds until it is so."""
    begun_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - begun_s < within_s, f"waited {within_s} s in vain for {what}\n{start.said()}"
        time.sleep(0.01)
    return time.monotonic() - begun_s


class Played:
    """A cell, played to its end."""

    def __init__(self, host: Host, folder: Path, log: Log, cell: Cell) -> None:
        self.host, self.folder, self.log, self.cell = host, folder, log, cell
        self.begun_s = time.monotonic()
        self.seen = Outcome(cell.store, cell.fault, cell.point)
        self.variables = folder / "variables"
        early = cell.fault in ("disk full", "clock back 1 h")
        linger_s = 2.5 if cell.fault == "store gone for 2 s" else 0.0
        self.first = self.start(folder, stage=cell.point, early=early, linger_s=linger_s)
        self.starts = [self.first]

    def start(self, folder: Path, **request: Any) -> Start:
        """Fork a recurrence."""
        return Start(self.host, folder, self.log, self.variables, **request)

    def play(self) -> None:
        """All of it. Raises AssertionError where something does not hold."""
        self.first.there()
        {
            **dict.fromkeys(KILLS, self.kill),
            "store gone for 2 s": self.gone_for_a_while,
            "store gone for good": self.gone,
            "disk full": self.full,
            "clock back 1 h": self.back,
            "redelivered": self.redeliver,
        }[self.cell.fault]()
        self.seen.limit_s = self.first.limit_back()
        for start in self.starts[1:]:
            start.limit_back()
        if self.cell.fault not in KILLS:
            assert all(start.value() == "32" for start in self.starts), "the training still runs, and keeps its model"
        self.read_and_check()
        self.next_run()

    # ------------------------------------------------------------------ faults
    def kill(self) -> None:
        """SIGTERM, SIGKILL, or the kernel for want of memory."""
        if self.cell.fault == "memory limit":
            limit = MemoryLimit()
            try:
                limit.hold(self.first.pid)
                (self.first.folder / "eat-task").touch()
                self.seen.gone_s = self.first.ended()
                assert limit.kills == 1, "it was the kernel that killed"
            finally:
                limit.remove()
            return
        os.kill(self.first.pid, getattr(signal, self.cell.fault))
        self.seen.gone_s = self.first.ended()
        assert self.first.value() is None, "Airflow gets no value of a task that was stopped"

    def gone_for_a_while(self) -> None:
        """The store is away for 2 s."""
        self.log.take_away()
        self.first.go()
        begun_s = time.monotonic()
        self.refused()
        time.sleep(max(0.0, begun_s + 2 - time.monotonic()))
        self.log.give_back()
        self.first.ended()
        self.seen.gone_s = time.monotonic() - begun_s

    def gone(self) -> None:
        """The store is away until the training has ended."""
        self.log.take_away()
        self.first.go()
        self.refused()
        self.seen.gone_s = self.first.ended()
        self.log.give_back()

    def refused(self) -> None:
        """A reader is told that it is gone, with a remedy."""
        with pytest.raises(StoreError, match=r"See that|the first run of a job makes it"):
            self.log.readers().trials("death")

    def full(self) -> None:
        """The disk is full until the training has ended."""
        self.log.fill()
        self.first.go()
        self.seen.gone_s = self.first.ended()
        self.log.make_room()

    def back(self) -> None:
        """The clock steps back by an hour."""
        before = self.own()
        (self.folder / "back").touch()
        self.first.go()
        self.seen.gone_s = self.first.ended()
        after = {t.key: t for t in self.own()}
        assert all(after[t.key].lease_until >= t.lease_until for t in before), "no lease shrinks"
        assert all((t.closed_at or 0) >= t.opened_at for t in after.values()), "none ends before it began"

    def redeliver(self) -> None:
        """The same message starts the same try on another host while the first one lives; both go to their end."""
        second = self.start(self.folder / "second")
        self.starts.append(second)
        if self.cell.point in (BEFORE_ASK, BEFORE_TELL):  # which hold the lock of the job
            time.sleep(0.5)
        else:
            second.ended()
        self.first.go()
        self.seen.gone_s = self.first.ended()
        second.ended()

    # ------------------------------------------------------------------ what must hold
    def own(self) -> list[Trial]:
        """What this run has in the log, as a reader gets it."""
        store = self.log.readers()
        try:
            return store.recurrence("death", "run-1")
        finally:
            store.close()

    def read_and_check(self) -> None:
        """States and costs, before the next run asks."""
        lease_s, own = time.monotonic() + LEASE_S + 1.5, self.own()
        while State.RUNNING in [t.state for t in own] and time.monotonic() < lease_s:
            time.sleep(0.05)
            own = self.own()
        states = [t.state.value for t in own]
        assert states == self.expected_now(), (states, self.first.said())
        self.seen.state = " + ".join(states) or "none"
        if kept := Folder(self.variables).keys("zeus-untold:"):
            self.seen.state += ", not yet told"
            assert len(kept) == 1
        self.every_reader_agrees(own)
        if not kept:
            self.costs(own)

    def expected_now(self) -> list[str]:
        """States of the run's trials once its processes have ended, before the next run asks."""
        fault, point = self.cell.fault, self.cell.point
        if fault == "redelivered":
            return ["converged"] * 2
        if fault == "clock back 1 h" or point == AFTER_TELL:
            return ["converged"]
        if point == BEFORE_ASK:
            return []
        if fault == "SIGTERM" and point != AFTER_ASK:
            return ["converged" if point == BEFORE_TELL else "failed"]
        if fault == "store gone for 2 s" and point not in (LAST, BEFORE_TELL):
            return ["converged"]
        return ["abandoned"]

    def every_reader_agrees(self, own: list[Trial]) -> None:
        """Log, run, newest runs, overview and the cost page show the same states and sums."""
        store = self.log.readers()
        try:
            for found in (store.trials("death"), store.runs("death", "death", last=5), store.latest(last=5)):
                assert [t for t in found if t.origin.run_id == "run-1"] == own
        finally:
            store.close()
        if not own:
            return
        (row,) = rows_of(own, JOB)
        assert row.state == own[-1].state.value
        known = [t.observation.energy_j for t in own if t.observation.energy_j is not None]
        if len(known) == len(own):
            assert row.energy.value == pytest.approx(sum(known))
        else:
            assert row.energy.value is None, "what is missing is not 0"

    def costs(self, own: list[Trial]) -> None:
        """Each start is in the ledger once, with all that it had said when it died."""
        told: dict[str, list[float]] = {}
        for trial in own:
            if trial.observation.energy_j is not None:
                told.setdefault(str(trial.observation.start_id), []).append(trial.observation.energy_j)
        beat_j = told_j = 0.0
        for start in self.starts:
            given, taken = start.lines("given"), start.lines("taken")
            if not taken:
                continue
            (mine_j,) = told[taken[-1]["start_id"]]  # once
            assert taken[-1]["energy_j"] <= mine_j + 1e-6 <= given[-1]["energy_j"] + 2e-6
            assert mine_j <= start.drawn_j()
            beat_j, told_j = beat_j + taken[-1]["energy_j"], told_j + mine_j
        if any(start.lines("taken") for start in self.starts):
            self.seen.beat_j, self.seen.told_j = beat_j, told_j
        began = self.cell.point not in (BEFORE_ASK, AFTER_ASK) or self.cell.fault not in KILLS
        assert not began or told_j > 0, "what trained has a cost"

    def next_run(self) -> None:
        """It trains, tells what was kept, and knows no more and no less than the log says."""
        later = self.start(self.folder / "next", ti_id="ti-2", run_id="run-2")
        later.ended(20)
        assert later.value() == "32", later.said()
        later.limit_back()
        assert Folder(self.variables).keys("zeus-untold:") == [], "what was kept has been told"
        own = self.own()
        self.costs(own)
        fault, point = self.cell.fault, self.cell.point
        expected = self.expected_now()
        if fault in ("store gone for 2 s", "store gone for good", "disk full"):
            lost_ask = [t.state.value for t in own if t.observation.start_id is None]
            assert lost_ask in ([], ["abandoned"] if point == BEFORE_ASK else []), "an ask whose answer was lost"
            expected = [*lost_ask, "converged"]
        assert sorted(t.state.value for t in own) == sorted(expected), later.said()
        self.log_is_whole(own)
        self.seen.next_run = "converged"
        self.seen.cell_s = time.monotonic() - self.begun_s

    def log_is_whole(self, own: list[Trial]) -> None:
        """Numbers and closings without a gap, and the belief that the whole log gives."""
        store = self.log.readers()
        try:
            trials = store.trials("death")
            with transaction(store._engine) as connection:
                belief = belief_of(connection, "death", JOB, oldest_open=None)
        finally:
            store.close()
        assert [t.number for t in trials] == list(range(1, PAST + len(own) + 2))
        told = [t.told_seq for t in trials]
        assert None not in told, "each is closed"
        assert len(set(told)) == len(told), "and no two at once"
        assert belief == reduce(learn, trials, prior(JOB))
        assert belief.too_large == frozenset() and belief.stopped == ()  # noqa: PT018
        reached = [(t.number, 32, t.observation.epochs) for t in trials if t.state is State.CONVERGED]
        assert list(belief.converged) == reached[-JOB.window :]
        assert {epochs for _, _, epochs in reached} == {3.0}

    def clean(self) -> None:
        """End what is left, where a check failed."""
        for start in self.starts:
            with suppress(ProcessLookupError, psutil.Error):
                os.kill(start.pid, signal.SIGKILL)


def cells(stores: tuple[str, ...] = ("sqlite", "postgres")) -> list[Cell]:
    """All that can be played; the clock of PostgreSQL is the database's."""
    every = [Cell(s, f, p) for s in stores for f in FAULTS for p in POINTS]
    return [c for c in every if (c.store, c.fault) != ("postgres", "clock back 1 h")]
