"""Takes the lines of a result to their sink: in order, each until the sink has taken it, from two threads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from threading import RLock
from typing import Any
from uuid import uuid4

from airflow_provider_zeus.optimizer.points import thinned
from airflow_provider_zeus.optimizer.trial import summed_with_marks
from airflow_provider_zeus.training.attempt import LiveAttempt
from airflow_provider_zeus.training.plan import Kind, Line

log = logging.getLogger(__name__)
Sink = Callable[[Line], None]


class Outbox:
    """Lines that the sink did not take wait and go before the next one. A failing sink never fails the training."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._start_id = uuid4().hex
        self._lock = RLock()  # a signal handler may send while its own thread does
        self._waiting: list[Line] = []
        self._sending = False
        self._failing = False  # said once, until the sink takes lines again

    def send(self, kind: Kind, live: LiveAttempt | None = None, **fields: Any) -> None:
        """Send a line; with ``live``, of that attempt and with its news. A beat after the attempt's end is dropped."""
        with self._lock:
            if live is not None:
                if kind == "beat" and live.ended:
                    return
                live.ended = live.ended or kind == "end"
                profile, points = live.take_news()
                fields |= {"attempt": live.number, "batch_size": live.planned.batch_size}
                fields |= {"profile": profile, "points": points}
                if kind == "end":
                    fields["notes"] = live.notes
            self.put(Line(kind=kind, start_id=self._start_id, **fields))

    def put(self, line: Line) -> None:
        """Send a line that is written already."""
        with self._lock:
            self._waiting.append(line)
            self._send_waiting()

    def close(self) -> None:
        """Nothing is sent any more: the log gets the figures of each end that the sink did not take."""
        with self._lock:
            for line in self._waiting:
                if line.kind == "end":
                    text = replace(line, profile=(), points=()).to_json()
                    log.error("Zeus can write the cost of attempt %s nowhere: %s", line.attempt, text)

    def _send_waiting(self) -> None:
        if self._sending:
            return
        self._sending = True
        try:
            self._waiting[:] = folded(self._waiting)
            while self._waiting:
                self._sink(self._waiting[0])
                self._waiting.pop(0)
            self._failing = False
        except Exception:
            kind = self._waiting[0].kind
            level = logging.DEBUG if self._failing else logging.WARNING
            log.log(level, "Zeus could not write a %r line of its result; it is tried again.", kind, exc_info=True)
            self._failing = True
        finally:
            self._sending = False


def folded(lines: Iterable[Line]) -> list[Line]:
    """Each beat that waits goes with the next line of its attempt, beat or end: sums are newer there, news are added.

    So no line waits behind a beat, and what waits through a long failure stays one line of at most 500 power points.
    """
    runs: list[list[Line]] = []
    for line in lines:
        before = runs[-1][-1] if runs else None
        if before and before.kind == "beat" and line.kind in ("beat", "end") and _of_one_attempt(before, line):
            runs[-1].append(line)
        else:
            runs.append([line])
    return [run[0] if len(run) == 1 else _as_one(run) for run in runs]


def _as_one(run: list[Line]) -> Line:
    observation = next((line.observation for line in reversed(run) if line.observation is not None), None)
    profile = summed_with_marks(sample for line in run for sample in line.profile)
    points = thinned([point for line in run for point in line.points])
    return replace(run[-1], observation=observation, profile=profile, points=tuple(points))


def _of_one_attempt(one: Line, other: Line) -> bool:
    return (one.start_id, one.attempt) == (other.start_id, other.attempt)
