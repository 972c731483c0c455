"""``ZeusRun``: the handle of a training function, in Airflow, from a plan file, in any framework."""

from __future__ import annotations

import atexit
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
from airflow_provider_zeus.training import attempts, ending, environment, peek
from airflow_provider_zeus.training.attempt import LiveAttempt
from airflow_provider_zeus.training.ending import Epochs
from airflow_provider_zeus.training.heartbeat import Heartbeat
from airflow_provider_zeus.training.learning_rate import scaled
from airflow_provider_zeus.training.loader import ZeusDataLoader, run_loader
from airflow_provider_zeus.training.outbox import Outbox, Sink
from airflow_provider_zeus.training.plan import Plan
from airflow_provider_zeus.training.ranks import ALONE, Ranks
from airflow_provider_zeus.training.runtime_target import completed
from airflow_provider_zeus.training.shared import SharedAttempt
from airflow_provider_zeus.training.signals import TrainingKilled, raise_again

T = TypeVar("T")


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
        self._alone = False  # no train() around: the loop's own end is the end
        self._finished = False
        self._pid = os.getpid()
        self._error_before = getattr(sys, "last_value", None)  # the interpreter sets it where an error ends a script
        self._resources = ExitStack()
        self._hand_over: Callable[[Any], None] = lambda value: None  # takes what the kept attempt returned
        self._outbox = Outbox(sink)
        self._outbox.send("start", try_number=try_number)

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
        ranks, plan = Ranks.of(os.environ), environment.plan_of(os.environ)
        if ranks.rank:
            return cls.from_plan(plan, sink=environment.OtherRank(os.environ, plan.ti_id, ranks.rank), ranks=ranks)
        results = environment.Results(os.environ, plan.ti_id if ranks.several else "")
        run = cls.from_plan(plan, sink=results, try_number=environment.try_of(os.environ), ranks=ranks)
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
        live.step(live.local_batch_size if samples is None else samples)

    def report(self, **metrics: float) -> None:
        """End an epoch with what it reached; gives the attempt up when its bound or ``max_epochs`` is passed.

        Raises ReportError: the target's metric is missing or not a finite number, no target value was set, or no epoch
        has begun since the last report.
        """
        raise_again(self._killed)
        live = self._present
        raise_again(live.signal)
        live.report(self._target, self._target.pick(metrics))

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
        self._learning_rate = scaled(lr, rule, ratio)
        return self._learning_rate

    def train(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call ``fn(run, *args, **kwargs)`` once per attempt; the kept attempt's value. See :mod:`.attempts`.

        Once that value is in safety the plan's peeks may call it again, for some seconds each; see :mod:`.peek`.
        """
        if self._live is not None or self._finished:
            raise RuntimeError("run.train() must come first, and once: this run has begun already.")
        try:
            call = partial(fn, self, *args, **kwargs)
            value = attempts.train(self, call)
            self._hand_over(value)
            peek.look(self, self._live, call)
            return value
        finally:
            self.close()

    def kill(self, reason: str) -> None:
        """Stop the training: raises TrainingKilled here and at every later call of this handle."""
        self._killed = self._killed or TrainingKilled(reason)
        raise_again(self._killed)

    def close(self) -> None:
        """Give the limit back and stop the heartbeat; an attempt that was never ended is written down now."""
        if os.getpid() != self._pid:  # a forked child ends: none of its business
            return
        atexit.unregister(self.close)
        if not self._finished:
            ending.write_down(self, self._live, alone=self._alone, error_before=self._error_before)
        resources, self._resources = self._resources, ExitStack()
        resources.close()
        self._outbox.close()

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
    def killed(self) -> TrainingKilled | None:
        """The signal of :meth:`kill`, if it came."""
        return self._killed

    def begin(self, index: int, *, alone: bool = False) -> LiveAttempt:
        """Begin attempt ``index`` (from 0) of the plan; ``alone``: nobody but the loop itself will end it."""
        raise_again(self._killed)
        if alone:
            ending.skip(self, index)
        planned, number = self.plan.in_order[index], self.plan.first_attempt + index
        last = (alone and not self.plan.restarts) or not self.plan.followed(index)
        kind = partial(SharedAttempt, ranks=self.ranks) if self.ranks.several else LiveAttempt
        live = kind(planned, number, self.job, self.device, self.limits, self.profile, last=last)
        self._alone = alone
        self.enter(live)
        return live

    def enter(self, live: LiveAttempt) -> None:
        """Make ``live`` the present attempt and write its begin down, unless it has ended already."""
        if not live.ended:
            self._learning_rate = self._learning_rate if self._alone else None
            self._outbox.send("attempt", live)
        self._live = live

    def end(self, state: State, reason: str | None = None, *, out_of_memory: bool = False) -> None:
        """Write the end of the present attempt down."""
        live = self._present
        live.stop()
        self.profile += live.measured
        observation = replace(live.snapshot, out_of_memory=out_of_memory, learning_rate=self._learning_rate)
        self._outbox.send("end", live, state=state, reason=reason, observation=observation)

    def never_ran(self, index: int, reason: str) -> None:
        """Write down that attempt ``index`` (from 0) of the plan does not run."""
        number, size = self.plan.first_attempt + index, self.plan.in_order[index].batch_size
        end: dict[str, Any] = {"state": State.FAILED, "reason": reason, "observation": Observation()}
        self._outbox.send("end", attempt=number, batch_size=size, **end)

    def finish(self, *, kept: bool) -> None:
        """Write down that the process is done with this plan."""
        self._finished = True
        self._outbox.send("final", attempt=self.attempt if kept else None)

    def beat(self) -> None:
        """Send the newest partial sums; called from the heartbeat's thread, never touches the device.

        Sees to it, too, that a guardian watches over a power limit that was changed.
        """
        if self.limits is not None:
            self.limits.keep_guarded()
        live = self._live
        if live is not None:
            self._outbox.send("beat", live, observation=replace(live.snapshot, learning_rate=self._learning_rate))

    # ------------------------------------------------------------------ inside
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
