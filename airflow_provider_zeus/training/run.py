"""``ZeusRun``: the handle of a training function, in Airflow, from a plan file, in any framework."""

from __future__ import annotations

import atexit
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.trial import Observation, State
from airflow_provider_zeus.power.device import Device, default_state_dir
from airflow_provider_zeus.power.limit import LimitControl
from airflow_provider_zeus.training import attempts, ending, environment
from airflow_provider_zeus.training.attempt import LiveAttempt
from airflow_provider_zeus.training.attempt_dir import AttemptDir
from airflow_provider_zeus.training.ending import Epochs
from airflow_provider_zeus.training.heartbeat import Heartbeat
from airflow_provider_zeus.training.learning_rate import scaled
from airflow_provider_zeus.training.loader import ZeusDataLoader, run_loader
from airflow_provider_zeus.training.outbox import Outbox, Sink
from airflow_provider_zeus.training.plan import Kind, Plan
from airflow_provider_zeus.training.ranks import ALONE, Ranks
from airflow_provider_zeus.training.runtime_target import completed
from airflow_provider_zeus.training.shared import SharedAttempt
from airflow_provider_zeus.training.signals import TrainingKilled, raise_again

T = TypeVar("T")

log = logging.getLogger(__name__)


class ZeusRun:
    """One recurrence's training: which batch size, when to stop, what it cost.

    Pass it your function as ``run.train(fn)`` (``@task.zeus`` does that for you); ``fn(run)`` is called once per
    attempt of the plan, and its value is returned from the attempt whose model is kept. Build model and optimizer
    inside ``fn``: an attempt that is given up is left by an exception, and the next one starts afresh.
    """

    def __init__(
        self,
        plan: Plan,
        device: Device,
        sink: Sink,
        limits: LimitControl | None = None,
        *,
        try_number: int | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.plan, self.ranks = plan, ranks
        self.job = ZeusJob.from_dict(plan.spec)
        self.device = device
        self.limits = limits
        self.profile = list(plan.profile)  # known of this device, grows attempt by attempt
        self._target = self.job.parsed_target
        self._killed: TrainingKilled | None = None
        self._live: LiveAttempt | None = None
        self._learning_rate: float | None = None
        self._folder: AttemptDir | None = None  # of the present attempt, once it was asked for
        self._alone = False  # no train() around: the loop's own end is the end
        self._finished = self._kept = False
        self._pid = os.getpid()
        self._error_before = getattr(sys, "last_value", None)  # the interpreter sets it where an error ends a script
        self._resources = ExitStack()
        self._hand_over: Callable[[Any], None] = lambda value: None  # takes what the kept attempt returned
        self._outbox = Outbox(sink)
        self._send("start", try_number=try_number)

    @classmethod
    def from_plan(
        cls,
        plan: Plan | str | os.PathLike[str],
        *,
        sink: Sink | None = None,
        device: Device | None = None,
        try_number: int | None = None,
        ranks: Ranks = ALONE,
    ) -> Self:
        """A run of a plan (or of the file it lies in), without Airflow or a store.

        :param sink: takes each line of the result, for instance a ``ResultWriter``; default: nobody.
        :param device: default: the one that the job names.
        :param try_number: of the task that runs it, written into the result.
        :param ranks: this process among those that train together.

        The device's limit is given back when ``train()`` or the loop over ``epochs()`` ends, at the latest at exit.
        """
        if not isinstance(plan, Plan):
            plan = Plan.read(Path(plan))
        job = ZeusJob.from_dict(plan.spec)
        ranks.check(job.batch_sizes)
        state_dir = plan.state_dir or default_state_dir()
        device = device or environment.device_of_plan(plan, job, state_dir, ranks)
        stack = ExitStack()
        stack.callback(device.close)
        if limits := environment.limits_of_plan(plan, job, state_dir, device, ranks):
            stack.enter_context(limits)
        run = cls(plan, device, sink or (lambda line: None), limits, try_number=try_number, ranks=ranks)
        stack.callback(Heartbeat(run.beat, plan.heartbeat_s).stop)
        run._resources = stack
        atexit.register(run.close)
        return run

    @classmethod
    def from_env(cls) -> Self:
        """A run of the plan that this process was started with; see :mod:`.environment`. Raises JobSpecError."""
        ranks, plan, try_number = Ranks.of(os.environ), environment.plan_of(os.environ), environment.try_of(os.environ)
        if (try_number or 1) > 1:
            plan = plan.last_alone()
        if ranks.rank:
            return cls.from_plan(plan, sink=environment.OtherRank(os.environ, plan.ti_id, ranks.rank), ranks=ranks)
        results = environment.Results(os.environ, plan.ti_id if ranks.several else "")
        run = cls.from_plan(plan, sink=results, try_number=try_number, ranks=ranks)
        run._hand_over = results.hand_over
        return run

    # ------------------------------------------------------------------ what a training loop uses
    @property
    def batch_size(self) -> int:
        """Batch size of the present attempt [samples], of all processes together; before it begins, the plan's last."""
        return (self._live.planned if self._live else self.plan.attempts[-1]).batch_size

    @property
    def local_batch_size(self) -> int:
        """This process's share of ``batch_size`` [samples]: all of it, unless several train together."""
        return self.ranks.share(self.batch_size)

    @property
    def attempt(self) -> int:
        """Number of the present attempt, from 1; before one begins, of the plan's last."""
        return self._live.number if self._live else self.plan.first_attempt + len(self.plan.attempts) - 1

    @property
    def attempt_dir(self) -> Path:
        """A fresh, empty folder for the files of the present attempt.

        It is removed when the attempt is given up. The kept attempt's stays as it is, so its path may be returned. It
        lies under ``[zeus] attempt_root``, by default in the folder for temporary files. Of several processes only
        rank 0's is kept. Raises JobSpecError where no folder can be made.
        """
        raise_again(self._killed)
        raise_again(self._present.signal)  # outside of train() the attempt begins here
        if self._folder is None:
            self._folder = AttemptDir(os.environ.get(environment.ATTEMPT_ROOT) or self.plan.attempt_root)
            self._keep_folder()  # behind the loop its model is kept already
        return self._folder.path

    def resumed(self, *, epochs: int) -> None:
        """Say that this attempt goes on from a checkpoint, so that it does not count as trained in a few epochs.

        ``epochs()`` then numbers from here, and ``max_epochs`` includes what the checkpoint had. Such a run teaches the
        cost of an epoch, but not how many epochs the batch size needs.

        :param epochs: that the checkpoint had trained. Call it before the first epoch of each attempt that resumes.

        Raises ReportError: an epoch has begun already, or a number below 0.
        """
        raise_again(self._killed)
        self._present.resume(epochs)

    def epochs(self) -> Iterator[int]:
        """Epoch numbers from 0, until the target is reached or ``max_epochs`` are done.

        Ends normally only in the attempt whose model is kept; leaves the function by ``AttemptOver`` in one that is
        given up. Raises ReportError at an epoch's begin when the one before reported nothing. Outside of ``train()``
        the plan's last attempt runs.
        """
        raise_again(self._killed)
        raise_again(self._present.signal)
        return Epochs(self._next_epoch)

    def data_loader(self, data: Any, **options: Any) -> ZeusDataLoader:
        """A torch loader of the chosen batch size over a data set; ``options`` go to ``torch.utils.data.DataLoader``.

        ``data`` may be a DataLoader that was built with ``run.batch_size``. Wrap the training data only, not the
        validation data. Raises JobSpecError when another batch size is given.
        """
        seed = self.plan.seed + (self._live.passes if self._live else 0)  # alike on all ranks
        return run_loader(data, self.local_batch_size, options, self, self.ranks, seed=seed)

    def step(self, samples: int | None = None) -> None:
        """Tell of one optimizer step over ``samples`` (default: the batch size); for loops without ``data_loader``."""
        if self._killed is not None:
            raise_again(self._killed)
        live = self._live or self._present
        live.step(live.local_batch_size if samples is None else int(samples))

    def report(self, **metrics: float) -> None:
        """End an epoch with what it reached; gives the attempt up when its bound or ``max_epochs`` is passed.

        Raises ReportError: the target's metric is missing or not a finite number, no target value was set, or no epoch
        has begun since the last report.
        """
        raise_again(self._killed)
        live = self._present
        raise_again(live.signal)
        live.report(self._target, math.nan if live.untrained else self._target.pick(metrics))

    def set_target(self, value: float) -> None:
        """Give the target ``"<metric> <= runtime"`` its value, before the first report of each attempt.

        Raises ReportError: the job states a value itself, an epoch was reported already, not a finite number.
        """
        raise_again(self._killed)
        done = self._live.epochs_done if self._live is not None else 0
        self._target = completed(self.job.parsed_target, value, epochs_reported=done)

    def scale_lr(self, lr: float, rule: str = "sqrt", *, reference_batch_size: int | None = None) -> float:
        """Learning rate for the present batch size: ``sqrt`` (adaptive optimizers), ``linear`` (SGD) or ``none``.

        :param lr: the rate that suits ``reference_batch_size`` (default: the job's default batch size).
        """
        ratio = self.batch_size / (reference_batch_size or self.job.default_batch_size)
        rate = scaled(lr, rule, ratio)
        self._learning_rate = float(rate) if math.isfinite(rate) else None
        return rate

    def train(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call ``fn(run, *args, **kwargs)`` once per attempt; the kept attempt's value. See :mod:`.attempts`.

        Attempts that are given up come first. Once the kept attempt has returned, ``fn`` is not called again.
        """
        if self._live is not None or self._finished:
            raise RuntimeError("run.train() must come first, and once: this run has begun already.")
        try:
            value = attempts.train(self, partial(fn, self, *args, **kwargs))
            try:
                if not self.forked:
                    self._hand_over(value)
            except Exception:  # the model is trained; what it cost and its value may be lost, the model is not
                log.exception("Zeus could not hand over what the training function returned.")
            return value
        finally:
            self.close()

    def kill(self, reason: str) -> None:
        """Stop the training: raises TrainingKilled here and at every later call of this handle."""
        self._killed = self._killed or TrainingKilled(reason)
        raise_again(self._killed)

    def close(self) -> None:
        """Give the limit back and stop the heartbeat; an attempt that was never ended is written down now."""
        if self.forked:
            return
        atexit.unregister(self.close)
        if not self._finished:
            ending.write_down(self, self._live, alone=self._alone, error_before=self._error_before)
        self._drop_folder()
        resources, self._resources = self._resources, ExitStack()
        try:
            resources.close()
            self._outbox.close()
        except Exception:  # the training is over, and what it returned counts
            log.exception("Zeus could not put everything back at the end of this run.")

    # ------------------------------------------------------------------ what a loader calls (Listener)
    def start_pass(self, expected_samples: float | None) -> Callable[[int], None]:
        """A pass of a loader begins."""
        raise_again(self._killed)
        return self._present.start_pass(expected_samples)

    def end_pass(self, waited_s: float, looped_s: float) -> None:
        """A pass of a loader is at its end."""
        raise_again(self._killed)
        self._present.end_pass(waited_s, looped_s)

    # ------------------------------------------------------------------ what attempts.py and the heartbeat call
    @property
    def forked(self) -> bool:
        """Whether this process is a forked child of the one that trains: it writes nothing of its parent's trial."""
        return os.getpid() != self._pid

    @property
    def killed(self) -> TrainingKilled | None:
        """The signal of :meth:`kill`, if it came."""
        return self._killed

    def begin(self, index: int, *, alone: bool = False) -> LiveAttempt:
        """Begin attempt ``index`` (from 0) of the plan; ``alone``: nobody but the loop itself will end it."""
        raise_again(self._killed)
        self._drop_folder()
        if alone:
            ending.skip(self, index)
        planned, number = self.plan.in_order[index], self.plan.first_attempt + index
        last = (alone and not self.plan.restarts) or not self.plan.followed(index)
        kind = partial(SharedAttempt, ranks=self.ranks) if self.ranks.several else LiveAttempt
        live = kind(planned, number, self.job, self.device, self.limits, self.profile, last=last)
        if self._live is not None:
            live.follows(self._live)
        self._alone, self._live = alone, live
        self._learning_rate = self._learning_rate if alone else None
        self._send("attempt", live)
        return live

    def end(self, state: State, reason: str | None = None, *, out_of_memory: bool = False) -> None:
        """Write the end of the present attempt down."""
        live = self._present
        try:
            live.stop()
        except Exception:  # of the device: what is known of the attempt is known
            log.exception("Zeus could not measure the end of attempt %d.", live.number)
        self.profile += live.measured
        observation = replace(live.snapshot, out_of_memory=out_of_memory, learning_rate=self._learning_rate)
        self._send("end", live, state=state, reason=reason, observation=observation)

    def never_ran(self, index: int, reason: str) -> None:
        """Write down that attempt ``index`` (from 0) of the plan does not run."""
        number, size = self.plan.first_attempt + index, self.plan.in_order[index].batch_size
        end: dict[str, Any] = {"state": State.FAILED, "reason": reason, "observation": Observation()}
        self._send("end", attempt=number, batch_size=size, **end)

    def finish(self, *, kept: bool) -> None:
        """Write down that the process is done with this plan."""
        self._finished = True
        self._send("final", attempt=self.attempt if kept else None)
        self._kept = kept
        self._keep_folder()

    def beat(self) -> None:
        """Send the newest partial sums; called from the heartbeat's thread, never touches the device.

        Sees to it, too, that a guardian watches over a power limit that was changed.
        """
        if self.limits is not None:
            self.limits.keep_guarded()
        live = self._live
        if live is not None:
            self._send("beat", live, observation=replace(live.snapshot, learning_rate=self._learning_rate))

    # ------------------------------------------------------------------ inside
    def _send(self, kind: Kind, live: LiveAttempt | None = None, **fields: Any) -> None:
        if not self.forked:
            self._outbox.send(kind, live, **fields)

    def _keep_folder(self) -> None:
        if self._kept and self._folder is not None and not self.ranks.rank and not self.forked:
            self._folder.keep()

    def _drop_folder(self) -> None:
        if self._folder is not None and not self._folder.kept and not self.forked:
            self._folder.remove()
            self._folder = None

    @property
    def _present(self) -> LiveAttempt:
        """The present attempt. Outside of ``train()`` the last of the plan, so that nothing after it can be lost; the
        first where another process follows.
        """
        return self._live or self.begin(0 if self.plan.restarts else len(self.plan.attempts) - 1, alone=True)

    def _next_epoch(self) -> int:
        raise_again(self._killed)
        live = self._present
        epoch = live.next_epoch(self._target)
        if epoch is None:
            if self._alone and not live.ended:
                self.end(*live.outcome)
                self.finish(kept=True)
                self.close()
            raise StopIteration
        return epoch
