"""The attempts of one run: which one is under way, and what the result says of each."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.trial import NO_STRIKE, Observation, State
from airflow_provider_zeus.patience import outlived
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.training.attempt import LiveAttempt
from airflow_provider_zeus.training.attempt_dir import AttemptDir
from airflow_provider_zeus.training.distributed_attempt import DistributedAttempt
from airflow_provider_zeus.training.interrupts import TrainingKilled, raise_again
from airflow_provider_zeus.training.protocol.events import AUTHORS, TOO_FEW, Kind, ResultSender, Sink
from airflow_provider_zeus.training.protocol.plan import Ended, Plan
from airflow_provider_zeus.training.ranks import Ranks
from airflow_provider_zeus.training.trackers import Trackers


class Heartbeat:
    """Calls ``beat`` every ``every_s`` seconds until stopped; a daemon thread, so it never keeps a process alive.

    Where no thread can be started there are no heartbeats: the log says so, and the training goes on.
    """

    def __init__(self, beat: Callable[[], None], every_s: float) -> None:
        self._beat, self._every_s = beat, every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zeus-heartbeat", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            log.warning(
                "Zeus sends no heartbeats, since no thread can be started here (%s). The training goes on; once its "
                "lease is over it reads as abandoned until its end is written.",
                error,
            )

    def stop(self) -> None:
        """Stop. Waits for a beat that is under way, at most one period or one second."""
        self._stopped.set()
        end_s = 1.0  # how long a beat under way is waited for when the training ends
        if self._thread.is_alive():
            self._thread.join(min(self._every_s, end_s))

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                self._beat()
            except Exception:  # the next beat may succeed; without beats the lease expires
                log.exception("A heartbeat failed.")


log = guarded_log(__name__)


_NOT_TRIED = "epochs() outside of run.train(fn) keeps what it trains, so it runs the best known batch size"
IN_CHILD = (
    "a process that was forked from the training's trains with its run handle, and nothing of it counts. Train in the "
    "process that got the run, or start several by torchrun (docs/several-gpus.md)."
)


class PlanProgress:
    """Begins and ends the attempts of a plan, and writes both into the result.

    The user's handle (:mod:`.run`) and the loop over attempts (:mod:`.attempt_loop`) work on this object.

    :param try_number: of the task, written into the result's first line; None: not known.
    """

    def __init__(
        self,
        plan: Plan,
        device: Device,
        limits: LimitControl | None,
        sink: Sink,
        ranks: Ranks,
        *,
        try_number: int | None,
    ) -> None:
        self.plan, self.job, self.ranks = plan, plan.job, ranks
        self.device, self.limits = device, limits
        self.profile = list(plan.profile)  # profile samples of this device, with those of the attempts that ended
        self.left = plan  # its first attempt is the present one, or the next
        self.began_s = time.monotonic()
        self.live: LiveAttempt | None = None  # the present attempt, once one has begun
        self.killed: TrainingKilled | None = None  # stops the training, once it has come
        self.loop_only = False  # no train() around: the end of the loop is the end of the run
        self.finished = False  # the "final" line is written
        self.learning_rate: float | None = None  # of the present attempt, as run.scale_lr() returned it
        self.driven = False  # a framework's callback counts the steps, and not a loader
        self.warned: set[str] = set()  # warnings that were given once in this run
        self.newest_pass: Callable[[], Any] = lambda: None  # of a loader, while it is not over: its batches count
        self.drawn_from: WeakSet[Any] = WeakSet()  # iterators whose batches a loader gave: they give no others
        self._kept = False
        self._folder: AttemptDir | None = None  # of the present attempt, once it is used
        self._pid = os.getpid()
        self._of_children = mmap.mmap(-1, 1)  # shared with forked children: whether one of them trained
        self._child_told = False  # in a child: it was told so
        self._clock_offset_s = time.time() - device.now_s()  # a simulated device has a clock of its own
        self.trackers = Trackers(() if ranks.rank else self.job.log_to)
        self.sender = ResultSender(sink)
        self._send("start", try_number=try_number)

    @property
    def forked(self) -> bool:
        """Whether this process is a forked child of the one that trains. Such a child writes nothing."""
        return os.getpid() != self._pid

    @property
    def child_trained(self) -> bool:
        """Whether a forked child trained with this run's handle."""
        return bool(self._of_children[0])

    def note_child(self) -> None:
        """In a forked child that trains: say once that nothing of it counts."""
        if self.forked and not self._child_told:
            self._child_told, self._of_children[0] = True, 1
            log.error("Zeus: %s", IN_CHILD)

    @property
    def present(self) -> LiveAttempt:
        """The present attempt; begins one where none has begun. Raises TrainingKilled once the run is killed.

        Outside of ``train()`` it is the plan's usual attempt, since no other can follow it; the first one, where
        another process runs the next attempt.
        """
        raise_again(self.killed)
        if self.live is not None:
            return self.live
        for earlier in range(0 if self.plan.restarts else self.plan.index_alone):
            log.warning("Zeus: batch size %d is not tried: %s.", self.plan.attempts[earlier].batch_size, _NOT_TRIED)
            self.never_ran(earlier, f"not run: {_NOT_TRIED}")
            self.left = self.left.after(Ended.MISSED) or self.left
        return self.begin(loop_only=True)

    @property
    def number(self) -> int:
        """Number of the present attempt, from 1; before one begins, of the plan's usual attempt."""
        return self.live.number if self.live else self.plan.first_attempt + self.plan.index_alone

    def begin(self, *, loop_only: bool = False) -> LiveAttempt:
        """Begin the first attempt of the plan that is left.

        :param loop_only: there is no ``train()`` around the loop: no other attempt runs in this process.

        Raises TrainingKilled, and JobSpecError where one of the job's power limits is out of range.
        """
        raise_again(self.killed)
        self.drop_folder()
        plan = self.left
        last = (loop_only and not plan.restarts) or not plan.exploratory(0)
        kind: Callable[..., LiveAttempt] = LiveAttempt
        if self.ranks.several:
            kind = partial(DistributedAttempt, ranks=self.ranks)
        offset_s, now_s = self._clock_offset_s, self.device.now_s
        live = kind(
            plan.attempts[0],
            plan.first_attempt,
            self.job,
            self.device,
            self.limits,
            self.profile,
            last=last,
            followed=plan.signal,
            clock=lambda: offset_s + now_s(),
        )
        if self.live is not None:
            live.epochs_before = self.live.epochs_done
        self.loop_only, self.live = loop_only, live
        self.learning_rate = self.learning_rate if loop_only else None
        self._send("attempt", live)
        return live

    def start_pass(self, expected_samples: float | None) -> Callable[[int], None]:
        """Begin a pass of a loader, or of a framework's loop, in the present attempt: :meth:`.AttemptSteps.start_pass`.

        Returns a function to call when the loop is left early, with the samples of the last batch (it raises nothing).
        """
        self.note_child()
        return self.present.start_pass(expected_samples)

    def step(self, samples: int | None = None) -> None:
        """Count an optimizer step over ``samples``; default: the batch size."""
        if self.killed is not None:  # on the training's path: no call more than needed
            raise_again(self.killed)
        live = self.live or self.present
        if not live.told:
            self.note_child()
        live.step(live.local_batch_size if samples is None else int(samples))

    def end(
        self,
        state: State,
        reason: str | None = None,
        *,
        out_of_memory: bool = False,
        returned: str | None = None,
        no_strike: str | None = None,
        authors: bool = False,
    ) -> None:
        """Write the end of the present attempt, which must have begun.

        :param returned: JSON of its function's value.
        :param no_strike: why this end says nothing against its batch size.
        :param authors: whether it is an error that no other batch size would mend.
        """
        live = self.live
        assert live is not None
        with outlived(f"measure the end of attempt {live.number}"):  # the device may fail: the sums so far are kept
            live.stop()
        if self.child_trained and not self.forked:
            log.error("Zeus: %s", IN_CHILD)
        self.profile += live.measured
        observation = replace(live.snapshot, learning_rate=self.learning_rate)
        observation = replace(observation, out_of_memory=out_of_memory, returned=returned)
        if self.killed is not None:
            no_strike = "the task was stopped"
        if no_strike is not None:
            observation = replace(observation, reasons={**observation.reasons, NO_STRIKE: no_strike})
        notes = {AUTHORS: 1.0} if authors else {}
        if live.too_few:
            notes[TOO_FEW] = float(live.slice_samples or 0)
        self._send("end", live, state=state, reason=reason, observation=observation, notes=notes)
        if state.conclusive and self.killed is None:
            self.trackers.write(live, state, observation, self.job.parsed_target.metric)

    def end_roughly(self, state: State, *, kept: bool) -> None:
        """Write the end of the present attempt once more, after that has failed: with its sums so far and no more."""
        live, self.finished, self._kept = self.live, kept, kept
        assert live is not None
        with suppress(Exception):  # which is logged already
            if not live.ended:
                why = "its end could not be measured: see the task's log"
                size, seen = live.planned.batch_size, live.snapshot
                self.sender.send("end", state=state, reason=why, attempt=live.number, batch_size=size, observation=seen)
                live.ended = True
            if kept:
                self._keep_folder()
                self.sender.send("final", attempt=live.number)
                self._release_folder()

    def never_ran(self, index: int, reason: str) -> None:
        """Write that attempt ``index`` (from 0) of the plan does not run."""
        number, size = self.plan.first_attempt + index, self.plan.in_order[index].batch_size
        nothing = Observation()
        self._send("end", attempt=number, batch_size=size, state=State.FAILED, reason=reason, observation=nothing)

    def finish(self, *, kept: bool) -> None:
        """Write that the process is done with this plan. ``kept``: the present attempt's model is kept."""
        self.finished = True
        self._kept = kept
        self._keep_folder()  # first: a process that is killed in between leaves its model
        self._send("final", attempt=self.number if kept else None)
        self._release_folder()

    def beat(self) -> None:
        """Send the newest partial sums. The heartbeat's thread calls it; it never touches the device.

        Also restarts the guardian of a changed power limit where it has died.
        """
        if self.limits is not None:
            self.limits.keep_guarded()
        live = self.live
        if live is not None:
            self._send("beat", live, observation=replace(live.snapshot, learning_rate=self.learning_rate))

    def folder(self) -> Path:
        """The folder for the files of the present attempt; made at the first call. Raises JobSpecError."""
        if self._folder is None:
            self._folder = AttemptDir(os.environ.get("ZEUS_ATTEMPT_ROOT") or self.plan.attempt_root)
            if self.finished:  # after the loop the model is kept already
                self._keep_folder()
                self._release_folder()
        return self._folder.path

    def drop_folder(self) -> None:
        """Remove the folder of an attempt whose model is not kept."""
        if self._folder is not None and not self._folder.kept and not self.forked:
            self._folder.remove()
            self._folder = None

    @property
    def _kept_folder(self) -> AttemptDir | None:
        """The folder of a kept model, in the process that may keep it."""
        may_keep = self._kept and not self.ranks.rank and not self.forked
        return self._folder if may_keep else None

    def _keep_folder(self) -> None:
        if self._kept_folder is not None:
            self._kept_folder.keep()

    def _release_folder(self) -> None:
        if self._kept_folder is not None:
            self._kept_folder.release()

    def _send(self, kind: Kind, live: LiveAttempt | None = None, **fields: Any) -> None:
        if not self.forked:
            self.sender.send(kind, live, **fields)
