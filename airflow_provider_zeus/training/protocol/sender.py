"""Sends the lines of a result to their sink, from two threads: in order, each one until the sink has taken it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from threading import RLock
from typing import Any
from uuid import uuid4

from airflow_provider_zeus.model.size_bounds import thinned
from airflow_provider_zeus.model.trial import summed_with_marks
from airflow_provider_zeus.training.attempt import LiveAttempt
from airflow_provider_zeus.training.protocol.events import Kind, ResultLine

ENDED_AT_S = "ended_at_s"  # note of an end: when the attempt ended [s since the epoch], by this host's clock

log = logging.getLogger(__name__)
Sink = Callable[[ResultLine], None]


class ResultSender:
    """Lines that the sink did not take wait, and go before the next one. A failing sink never fails the training."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._start_id = uuid4().hex
        self._lock = RLock()  # a signal handler may send while its own thread does
        self._waiting: list[ResultLine] = []
        self._sending = False
        self._failing = False  # the warning is logged once, until the sink takes lines again

    def send(self, kind: Kind, live: LiveAttempt | None = None, **fields: Any) -> None:
        """Send a line; with ``live``, of that attempt, with its unsent samples and points. No beat follows its end."""
        with self._lock:
            if live is not None:
                if kind == "beat" and live.ended:
                    return
                profile, points = live.take_unsent()
                fields |= {"attempt": live.number, "batch_size": live.planned.batch_size}
                fields |= {"profile": profile, "points": points}
                if kind == "end":
                    fields["notes"] = {**live.notes, ENDED_AT_S: time.time()}
            line = ResultLine(kind=kind, start_id=self._start_id, **fields)
            if live is not None:
                live.ended = live.ended or kind == "end"
            self.put(line)

    def put(self, line: ResultLine) -> None:
        """Send a line that exists already, after those that wait. A failing sink keeps them waiting."""
        with self._lock:
            self._waiting.append(line)
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
                log.log(level, "Zeus could not write a %r line of its result; it tries again.", kind, exc_info=True)
                self._failing = True
            finally:
                self._sending = False

    def close(self) -> None:
        """Log the figures of each end that the sink did not take; nothing is sent after that."""
        with self._lock:
            log_costs(self._waiting)


def log_costs(lines: Iterable[ResultLine]) -> None:
    """Log the figures of each end among lines that nothing took."""
    for line in lines:
        if line.kind == "end":
            text = replace(line, profile=(), points=()).to_json()
            log.error("Zeus cannot write the cost of attempt %s anywhere: %s", line.attempt, text)


def folded(lines: Iterable[ResultLine]) -> list[ResultLine]:
    """Merge each beat into the next line of its attempt, beat or end: its sums are newer, samples and points are added.

    So no line waits behind a beat, and after a long failure one line of at most 500 power points is left.
    """
    groups: list[list[ResultLine]] = []
    for line in lines:
        before = groups[-1][-1] if groups else None
        same = before is not None and (before.start_id, before.attempt) == (line.start_id, line.attempt)
        if before and before.kind == "beat" and line.kind in ("beat", "end") and same:
            groups[-1].append(line)
        else:
            groups.append([line])
    return [group[0] if len(group) == 1 else _merged(group) for group in groups]


def _merged(lines: list[ResultLine]) -> ResultLine:
    observation = next((line.observation for line in reversed(lines) if line.observation is not None), None)
    profile = summed_with_marks(sample for line in lines for sample in line.profile)
    points = thinned([point for line in lines for point in line.points])
    return replace(lines[-1], observation=observation, profile=profile, points=tuple(points))
