"""The attempts of one run: which one is under way, and the result lines of each."""

from __future__ import annotations

import logging
import mmap
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.learning_rate import EarlierRate
from airflow_provider_zeus.model.trial import NO_STRIKE, Observation, State
from airflow_provider_zeus.patience import outlived
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.training.attempt import LiveAttempt
from airflow_provider_zeus.training.attempt_dir import AttemptDir
from airflow_provider_zeus.training.distributed_attempt import DistributedAttempt
from airflow_provider_zeus.training.interrupts import TrainingKilled, raise_again
from airflow_provider_zeus.training.protocol.events import (
    AUTHORS,
    TOO_FEW,
    Kind,
    ResultSender,
    Sink,
)
from airflow_provider_zeus.training.protocol.plan import Ended, Plan
from airflow_provider_zeus.training.ranks import Ranks
from airflow_provider_zeus.training.trackers import Trackers

log = guarded_log(__name__)


_NOT_TRIED = (
    "epochs() outside of run.train(fn) keeps what it trains, so it runs the best known batch size"
)
IN_CHILD = (
    "a process that was forked from the training's trains with its run handle, and nothing of it "
    "counts. Train in the process that got the run, or start several by torchrun "
    "(docs/how-to/several-gpus.md)."
)


class PlanProgress:
    """Begins and ends the attempts of a plan, and writes both into the result.

    The user's handle (:mod:`.run`) and the loop over attempts (:mod:`.attempt_loop`) work on this
    object.

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
        self.plan = plan
        self.job = plan.job
        self.ranks = ranks
        self.device = device
        self.limits = limits or LimitControl(device, "")  # never entered, so it sets none
        # Also takes those of attempts that ended: the next one must not measure them again.
        self.profile = list(plan.profile)
        self.left = plan  # ``plan`` stays: attempts are counted from its first one
        self.began_s = time.monotonic()
        self.live: LiveAttempt | None = None
        # Never None: authors read run.batch_size before an attempt begins.
        self.planned = plan.attempts[plan.index_alone]
        # Kept, since the author's code may swallow it: each later call raises it again.
        self.killed: TrainingKilled | None = None
        self.loop_only = False  # without train() nothing but the end of the loop ends the run
        self.finished = False
        # As run.scale_lr() returned it: outside of torch no optimizer shows its rate.
        self.learning_rate: float | None = None
        self.keeps_rate = False  # its author has said that it fits each size: no remark is due
        self._earlier_rate = plan.earlier_rate
        self.driven = False  # a framework's callback counts: with its loader, steps count twice
        self.warned: set[str] = set()  # each epoch would repeat them
        # Of passes side by side (zip) one alone may count: a step has a batch of each.
        self.newest_pass: Callable[[], Any] = lambda: None
        # An iterator gives its batches once: a second pass over one is an error of its author's.
        self.drawn_from: WeakSet[Any] = WeakSet()
        self._kept = False
        self._folder: AttemptDir | None = None  # most trainings write no file
        self._pid = os.getpid()
        # Shared memory: a forked child could not tell its parent by a variable that it trained.
        self._of_children = mmap.mmap(-1, 1)
        self._child_told = False  # each call of a child would say the same again
        # A simulated device has a clock of its own, and deadlines are in the world's time.
        self._clock_offset_s = time.time() - device.now_s()
        self.trackers = Trackers(() if ranks.rank else self.job.log_to)
        self.sender = ResultSender(sink)
        self._send("start", try_number=try_number)

    @property
    def forked(self) -> bool:
        """Whether this process is a forked child of the one that trains.

        Such a child writes nothing.
        """
        return os.getpid() != self._pid

    @property
    def child_trained(self) -> bool:
        """Whether a forked child trained with this run's handle."""
        return bool(self._of_children[0])

    def note_child(self) -> None:
        """In a forked child that trains: say once that nothing of it counts."""
        if self.forked and not self._child_told:
            self._child_told = True
            self._of_children[0] = 1
            log.error("Zeus: %s", IN_CHILD)

    @property
    def present(self) -> LiveAttempt:
        """The present attempt; begins one if none has begun. Raises TrainingKilled once the run is
        killed.

        Outside of ``train()`` it is the plan's usual attempt, since no other can follow it; the
        first one, if another process runs the next attempt.
        """
        raise_again(self.killed)
        if self.live is not None:
            return self.live
        skipped = 0 if self.plan.restarts else self.plan.index_alone
        for earlier in range(skipped):
            log.warning(
                "Zeus: batch size %d is not tried: %s.",
                self.plan.attempts[earlier].batch_size,
                _NOT_TRIED,
            )
            self.never_ran(earlier, f"not run: {_NOT_TRIED}")
            self.go_past()
        return self.begin(loop_only=True)

    @property
    def number(self) -> int:
        """Number of the present attempt, from 1; before one begins, of the plan's usual attempt."""
        if self.live:
            return self.live.number
        return self.plan.first_attempt + self.plan.index_alone

    def begin(self, *, loop_only: bool = False) -> LiveAttempt:
        """Begin the first attempt of the plan that is left.

        :param loop_only: there is no ``train()`` around the loop: no other attempt runs in this
            process.

        Raises TrainingKilled, and JobSpecError if one of the job's power limits is out of range.
        """
        raise_again(self.killed)
        self.drop_folder()
        plan = self.left
        is_alone = loop_only and not plan.restarts
        kind: Callable[..., LiveAttempt] = LiveAttempt
        if self.ranks.several:
            kind = partial(DistributedAttempt, ranks=self.ranks)
        live = kind(
            plan.attempts[0],
            plan.first_attempt,
            self.job,
            self.device,
            self.limits,
            self.profile,
            last=is_alone or not plan.exploratory(0),
            followed=plan.signal,
            clock=lambda: self._clock_offset_s + self.device.now_s(),
        )
        if self.live is not None:
            live.epochs_before = self.live.epochs_done
        self.loop_only = loop_only
        self.live = live
        self.planned = live.planned
        if not loop_only:  # else its author may have called scale_lr() before the attempt begins
            self.learning_rate = None
            self.keeps_rate = False
        self._send("attempt", live)
        return live

    def start_pass(self, expected_samples: float | None) -> Callable[[int], None]:
        """Begin a pass of a loader, or of a framework's loop, in the present attempt:
        :meth:`.AttemptSteps.start_pass`.

        Returns a function to call when the loop is left early, with the samples of the last batch
        (it raises nothing).
        """
        self.note_child()
        return self.present.start_pass(expected_samples)

    def step(self, samples: int | None = None) -> None:
        """Count an optimizer step over ``samples``; default: the batch size."""
        if self.killed is not None:  # each training step comes here: a call would slow it
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

        :param out_of_memory: of a later attempt it is not noted: an earlier one may have left the
            memory in use.
        :param returned: JSON of its function's value.
        :param no_strike: why this end says nothing against its batch size.
        :param authors: whether it is an error that no other batch size would mend.
        """
        live = self.live
        assert live is not None
        # The device may fail: the sums so far are kept.
        with outlived("measure the end of this attempt"):
            live.stop()
        if self.child_trained and not self.forked:
            log.error("Zeus: %s", IN_CHILD)
        self.profile += live.measured
        self.check_rate()
        rate = self._rate_of(live)
        # The next attempt in this process is compared with this one: an older rate belongs to
        # another size.
        self._earlier_rate = None
        if rate is not None and live.planned.batch_size is not None:
            self._earlier_rate = EarlierRate(live.planned.batch_size, rate)
        reasons = dict(live.snapshot.reasons)
        if self.killed is not None:
            no_strike = "the task was stopped"
        if no_strike is not None:
            reasons[NO_STRIKE] = no_strike
        observation = replace(
            live.snapshot,
            learning_rate=rate,
            out_of_memory=out_of_memory and live.number == self.plan.first_attempt,
            returned=returned,
            reasons=reasons,
        )
        notes: dict[str, float] = {}
        if authors:
            notes[AUTHORS] = 1.0
        if live.too_few:
            notes[TOO_FEW] = float(live.slice_samples or 0)
        self._send("end", live, state=state, reason=reason, observation=observation, notes=notes)
        # Not when the task is stopped: a tracker may hang, and the cost has to be stored first.
        if state.conclusive and self.killed is None:
            self.trackers.write(live, state, observation, self.job.parsed_target.metric)

    def go_past(self) -> None:
        """Leave out the first attempt of the plan that is left, if another one follows it."""
        self.left = self.left.after(Ended.MISSED) or self.left

    def end_killed(self) -> None:
        """Write the end of the present attempt of a run that is killed."""
        self.end(State.FAILED, f"killed: {self.killed}")

    def _rate_of(self, live: LiveAttempt) -> float | None:
        """The learning rate that an attempt began with; None if it is not known, or meant for every
        batch size.
        """
        if self.keeps_rate:
            return None
        if live.learning_rate is None:
            return self.learning_rate
        return live.learning_rate

    def check_rate(self) -> None:
        """Log once that the present attempt has the learning rate of another batch size."""
        live = self.live
        if live is None or self._earlier_rate is None or self.ranks.rank:
            return
        text = self._earlier_rate.remark(live.planned.batch_size, self._rate_of(live))
        if text is not None:
            self.say_once(text, logging.INFO)

    def say_once(self, text: str, level: int = logging.WARNING) -> None:
        """Log a text if it is new in this run."""
        if text not in self.warned:
            self.warned.add(text)
            log.log(level, "Zeus: %s", text)

    def end_roughly(self, state: State, *, kept: bool) -> None:
        """Write the end of the present attempt once more, after that has failed: with its sums so
        far and no more.
        """
        live = self.live
        self.finished = kept
        self._kept = kept
        assert live is not None
        with suppress(Exception):  # logged already, and the model of a training is worth more
            if not live.ended:
                # Not of ``live``: its samples and points may be what failed.
                self.sender.send(
                    "end",
                    state=state,
                    reason="its end could not be measured: see the task's log",
                    attempt=live.number,
                    batch_size=live.planned.batch_size,
                    observation=live.snapshot,
                )
                live.ended = True
            if kept:
                self._keep_folder()
                self.sender.send("final", attempt=live.number)
                self._release_folder()

    def never_ran(self, index: int, reason: str) -> None:
        """Write that attempt ``index`` (from 0) of the plan does not run."""
        self._send(
            "end",
            attempt=self.plan.first_attempt + index,
            batch_size=self.plan.in_order[index].batch_size,
            state=State.FAILED,
            reason=reason,
            observation=Observation(),
        )

    def finish(self, *, kept: bool) -> None:
        """Write that the process is done with this plan.

        ``kept``: the present attempt's model is kept.
        """
        self.finished = True
        self._kept = kept
        self._keep_folder()  # first: a process that is killed in between leaves its model
        self._send("final", attempt=self.number if kept else None)
        self._release_folder()

    def beat(self) -> None:
        """Send the newest partial sums. The heartbeat's thread calls it; it never touches the
        device.

        Also restarts the guardian of a changed power limit if it has died.
        """
        self.limits.keep_guarded()
        live = self.live
        if live is not None:
            self._send(
                "beat", live, observation=replace(live.snapshot, learning_rate=self._rate_of(live))
            )

    def folder(self) -> Path:
        """The folder for the files of the present attempt; made at the first call.

        Raises JobSpecError.
        """
        if self._folder is None:
            self._folder = AttemptDir(os.environ.get("ZEUS_ATTEMPT_ROOT") or self.plan.attempt_root)
            if self.finished:  # the model is kept already, and finish() comes no more
                self._keep_folder()
                self._release_folder()
        return self._folder.path

    def drop_folder(self) -> None:
        """Remove the folder of an attempt whose model is not kept."""
        if self._folder is None or self.forked:
            return
        if not self._folder.kept:
            self._folder.remove()
            self._folder = None

    @property
    def _kept_folder(self) -> AttemptDir | None:
        """The folder of a kept model, in the process that may keep it."""
        if not self._kept or self.ranks.rank or self.forked:
            return None
        return self._folder

    def _keep_folder(self) -> None:
        if self._kept_folder is not None:
            self._kept_folder.keep()

    def _release_folder(self) -> None:
        if self._kept_folder is not None:
            self._kept_folder.release()

    def _send(self, kind: Kind, live: LiveAttempt | None = None, **fields: Any) -> None:
        if not self.forked:
            self.sender.send(kind, live, **fields)
