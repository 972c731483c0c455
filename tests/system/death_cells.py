"""A cell of the kill matrix: one recurrence, one fault at one point,
and all that must hold afterwards.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import State, Trial
from tests.system.death_checks import the_log_is_whole, the_page_shows
from tests.system.death_start import GONE_S, LEASE_S, Start
from tests.system.death_stores import PAST, Log, OwnLog
from tests.system.death_training import (
    AFTER_ASK,
    AFTER_TELL,
    BEFORE_ASK,
    BEFORE_TELL,
    BETWEEN,
    LAST,
    POINTS,
    Folder,
)
from tests.system.killing import Host, MemoryLimit

FAULTS = (
    "SIGTERM",
    "SIGKILL",
    "memory limit",
    "store gone for 2 s",
    "store gone permanently",
    "disk full",
    "clock back 1 h",
    "redelivered",
)
# of a database on a server of its own, store "silent"
STOPPED = "server stopped"
SERVER_KILLED = "server killed"
CUT = "connection cut"
STORE_S = 30.0  # that a training waits for its store, in all
KILLS = ("SIGTERM", "SIGKILL", "memory limit")


@dataclass(frozen=True)
class Cell:
    """What happens where."""

    store: str
    fault: str
    point: str


@dataclass
class Outcome:
    """A line of the table.

    ``gone_s``: from the fault (where the training lives on: from its end of waiting) to the end of
    the process; ``limit_s``: from there to the limit found. ``beat_j``:
    what the newest heartbeat or end said.
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


class Played:
    """A cell, played to its end."""

    def __init__(self, host: Host, folder: Path, log: Log, cell: Cell) -> None:
        self.host = host
        self.folder = folder
        self.log = log
        self.cell = cell
        self.begun_s = time.monotonic()
        self.seen = Outcome(cell.store, cell.fault, cell.point)
        self.variables = folder / "variables"
        early = cell.fault in ("disk full", "clock back 1 h")
        outlasts = cell.fault == "store gone for 2 s" and cell.point not in (
            LAST,
            BEFORE_TELL,
            AFTER_TELL,
        )
        linger_s = 2.2 if outlasts else 0.0
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
            "store gone permanently": self.gone,
            "disk full": self.full,
            "clock back 1 h": self.back,
            "redelivered": self.redeliver,
            STOPPED: self.stand_still,
            SERVER_KILLED: self.kill_server,
            CUT: self.cut,
        }[self.cell.fault]()
        self.seen.limit_s = self.first.limit_back()
        for start in self.starts[1:]:
            start.limit_back()
        if self.cell.fault not in KILLS:
            assert all(start.value() == "32" for start in self.starts), (
                "the training still runs, and keeps its model"
            )
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

    def stand_still(self) -> None:
        """The server is stopped by SIGSTOP until the training has ended;
        its host still acknowledges what is sent.
        """
        assert isinstance(self.log, OwnLog)
        with self.log.standing():
            self.first.go()
            self.seen.gone_s = self.first.ended(STORE_S + GONE_S)
        time.sleep(0.5)  # what was sent before is done now

    def kill_server(self) -> None:
        """The server is killed, and comes up again once the training has ended."""
        assert isinstance(self.log, OwnLog)
        with self.log.killed():
            self.first.go()
            self.seen.gone_s = self.first.ended(STORE_S + GONE_S)

    def cut(self) -> None:
        """Its connection is cut, once."""
        assert isinstance(self.log, OwnLog)
        self.log.cut()
        self.first.go()
        self.seen.gone_s = self.first.ended()

    def refused(self) -> None:
        """A reader is told that it is gone, with a remedy."""
        with pytest.raises(StoreError, match=r"Check that|first run of a job"):
            self.log.readers().trials("death")

    def full(self) -> None:
        """The disk is full until the training has ended."""
        self.log.fill()
        self.first.go()
        self.seen.gone_s = self.first.ended()
        self.log.make_room()

    def back(self) -> None:
        """The clock steps back by an hour."""
        (self.folder / "back").touch()
        self.first.go()
        self.seen.gone_s = self.first.ended()
        assert all((t.closed_at or 0) >= t.opened_at for t in self.own()), (
            "none ends before it began"
        )

    def redeliver(self) -> None:
        """The same message starts the same try on another host while the first one lives;
        both go to their end.
        """
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
        lease_s = time.monotonic() + LEASE_S + 1.5
        own = self.own()
        while State.RUNNING in [t.state for t in own] and time.monotonic() < lease_s:
            time.sleep(0.05)
            own = self.own()
        states = [t.state.value for t in own]
        assert states == self.expected_now(), (states, self.first.said())
        self.seen.state = " + ".join(states) or "none"
        if kept := Folder(self.variables).keys("zeus-untold:"):
            self.seen.state += ", not yet stored"
            assert len(kept) == 1
        self.every_reader_agrees(own)
        if not kept:
            self.costs(own)

    def expected_now(self) -> list[str]:
        """States of the run's trials once its processes have ended, before the next run asks."""
        fault = self.cell.fault
        point = self.cell.point
        if fault == "redelivered":
            return ["converged"] * 2
        if fault in ("clock back 1 h", CUT) or point == AFTER_TELL:
            return ["converged"]
        # a commit that was under way is made when the server goes on: of a question, of an end
        if fault == STOPPED:
            return ["converged" if point == BEFORE_TELL else "abandoned"]
        if point == BEFORE_ASK:
            return ["converged"] if fault == "store gone for 2 s" else []
        if fault == "SIGTERM" and point != AFTER_ASK:
            return ["converged" if point == BEFORE_TELL else "failed"]
        if fault == "store gone for 2 s" and point not in (LAST, BEFORE_TELL):
            return ["converged"]
        return ["abandoned"]

    def every_reader_agrees(self, own: list[Trial]) -> None:
        """Log, run, newest runs, overview and the cost page show the same states and sums."""
        store = self.log.readers()
        try:
            for found in (
                store.trials("death"),
                store.runs("death", "death", last=5),
                store.latest(last=5),
            ):
                assert [_shown(t) for t in found if t.origin.run_id == "run-1"] == [
                    _shown(t) for t in own
                ]
        finally:
            store.close()
        the_page_shows(own)

    def costs(self, own: list[Trial]) -> None:
        """Each start is in the ledger once, with all that it had said when it died."""
        told: dict[str, list[float]] = {}
        for trial in own:
            if trial.observation.energy_j is not None:
                told.setdefault(str(trial.observation.start_id), []).append(
                    trial.observation.energy_j
                )
        beat_j = told_j = 0.0
        for start in self.starts:
            given = start.lines("given")
            taken = start.lines("taken")
            if not taken:
                continue
            (mine_j,) = told[taken[-1]["start_id"]]  # once
            assert taken[-1]["energy_j"] <= mine_j + 1e-6 <= given[-1]["energy_j"] + 2e-6
            assert mine_j <= start.drawn_j()
            beat_j = beat_j + taken[-1]["energy_j"]
            told_j = told_j + mine_j
        if any(start.lines("taken") for start in self.starts):
            self.seen.beat_j = beat_j
            self.seen.told_j = told_j
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
        fault = self.cell.fault
        point = self.cell.point
        expected = self.expected_now()
        if fault in (
            "store gone for 2 s",
            "store gone permanently",
            "disk full",
            STOPPED,
            SERVER_KILLED,
        ):
            lost_ask = [t.state.value for t in own if t.observation.start_id is None]
            assert lost_ask in ([], ["abandoned"] if point == BEFORE_ASK else []), (
                "an ask whose answer was lost"
            )
            expected = [*lost_ask, "converged"]
        assert sorted(t.state.value for t in own) == sorted(expected), later.said()
        store = self.log.readers()
        try:
            the_log_is_whole(store, "death", PAST + len(own) + 1)
        finally:
            store.close()
        self.seen.next_run = "converged"
        self.seen.cell_s = time.monotonic() - self.begun_s

    def clean(self) -> None:
        """End what is left, where a check failed."""
        for start in self.starts:
            with suppress(ProcessLookupError, psutil.Error):
                os.kill(start.pid, signal.SIGKILL)
        if isinstance(self.log, OwnLog):
            self.log.end()


def cells(stores: tuple[str, ...] = ("sqlite", "postgres")) -> list[Cell]:
    """All that can be played; the clock of PostgreSQL is the database's."""
    every = [Cell(s, f, p) for s in stores for f in FAULTS for p in POINTS]
    silent = [*(Cell("silent", STOPPED, p) for p in POINTS), Cell("silent", CUT, BEFORE_ASK)]
    silent += [Cell("silent", SERVER_KILLED, p) for p in (AFTER_ASK, BETWEEN, BEFORE_TELL)]
    return [c for c in every if (c.store, c.fault) != ("postgres", "clock back 1 h")] + silent


def _shown(trial: Trial) -> Trial:
    """Without what lists do not read: the value that the training returned,
    the metric of each epoch.
    """
    return replace(trial, observation=replace(trial.observation, returned=None, epoch_metrics=None))
