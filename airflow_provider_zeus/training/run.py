"""``ZeusRun``: the handle of a training function, in Airflow, from a plan file, in any framework."""

from __future__ import annotations

import atexit
import logging
import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, Self, TypeVar
from uuid import uuid4

from airflow_provider_zeus.errors import JobSpecError, ReportError
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.trial import State
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.limit import LimitControl
from airflow_provider_zeus.power.open import open_device
from airflow_provider_zeus.training import attempts
from airflow_provider_zeus.training.attempt import LiveAttempt
from airflow_provider_zeus.training.heartbeat import Heartbeat
from airflow_provider_zeus.training.loader import ZeusDataLoader, make_loader
from airflow_provider_zeus.training.plan import Kind, Line, Plan, ResultWriter, default_state_dir
from airflow_provider_zeus.training.signals import TrainingKilled

log = logging.getLogger(__name__)
T = TypeVar("T")
Sink = Callable[[Line], None]
_LR_RULES: dict[str, Callable[[float], float]] = {"sqrt": math.sqrt, "linear": float, "none": lambda _: 1.0}


class ZeusRun:
    """One recurrence's training: which batch size, when to stop, what it cost.

    Pass it your function as ``run.train(fn)`` (``@task.zeus`` does that for you); ``fn(run)`` is called once per
    attempt of the plan, and its value is returned from the attempt whose model is kept. Build model and optimizer
    inside ``fn``: an attempt that is given up is left by an exception, and the next one starts afresh.
    """

    def __init__(self, plan: Plan, device: Device, sink: Sink, limits: LimitControl | None = None) -> None:
        self.plan = plan
        self.job = ZeusJob.from_dict(plan.spec)
        self.device = device
        self._sink, self._limits = sink, limits
        self._start_id = uuid4().hex
        self._lock = Lock()
        self._profile = list(plan.profile)
        self._target = self.job.parsed_target
        self._killed: TrainingKilled | None = None
        self._live: LiveAttempt | None = None
        self._alone = False  # no train() around: the loop's own end is the end
        self._resources = ExitStack()
        self._emit("start")

    @classmethod
    def from_plan(
        cls, plan: Plan | str | os.PathLike[str], *, sink: Sink | None = None, device: Device | None = None
    ) -> Self:
        """A run of a plan (or of the file it lies in), without Airflow or a store.

        :param sink: takes each line of the result, for instance a ``ResultWriter``; default: nobody.
        :param device: default: the one that the job names.

        The device's limit is given back when ``train()`` or the loop over ``epochs()`` ends, at the latest at exit.
        """
        if not isinstance(plan, Plan):
            plan = Plan.from_json(Path(plan).read_text(encoding="utf-8"))
        job = ZeusJob.from_dict(plan.spec)
        state_dir = plan.state_dir or default_state_dir()
        if device is None:
            name = "none" if job.mode == "off" else job.device
            device = open_device(name, state_dir=state_dir, max_power_w=job.max_power_w)
        stack = ExitStack()
        limits = None
        if job.mode in ("optimize", "observe") and device.limit_range() is not None:
            found_w = plan.limits_found_w.get(device.uuid or "")
            limits = stack.enter_context(LimitControl(device, state_dir, found_earlier_w=found_w))
        run = cls(plan, device, sink or (lambda line: None), limits)
        stack.callback(Heartbeat(run.beat, plan.heartbeat_s).stop)
        run._resources = stack
        atexit.register(run.close)
        return run

    @classmethod
    def from_env(cls) -> Self:
        """A run of the plan in ``ZEUS_PLAN`` (a path, or the JSON itself), its result appended to ``ZEUS_RESULT``."""
        plan, result = os.environ.get("ZEUS_PLAN", ""), os.environ.get("ZEUS_RESULT")
        if not plan:
            raise JobSpecError.of(
                "ZEUS_PLAN",
                None,
                "is not set: this process was not started with a plan",
                "start it by an operator of this package, or use ZeusRun.from_plan(path)",
            )
        return cls.from_plan(
            Plan.from_json(plan) if plan.lstrip().startswith("{") else plan,
            sink=ResultWriter(Path(result)) if result else None,
        )

    # ------------------------------------------------------------------ what a training loop uses
    @property
    def batch_size(self) -> int:
        """Batch size of the present attempt [samples]."""
        return self._attempt.planned.batch_size

    @property
    def attempt(self) -> int:
        """Number of the present attempt, from 1."""
        return self._attempt.number

    def epochs(self) -> Iterator[int]:
        """Epoch numbers from 0, until the target is reached or ``max_epochs`` are done.

        Ends normally only in the attempt whose model is kept; leaves the function by ``AttemptOver`` in one that is
        given up. Raises ReportError at an epoch's begin when the one before reported nothing.
        """
        self._check_killed()
        self._attempt.check_signal()
        return _Epochs(self._next_epoch)

    def data_loader(self, data: Any, **options: Any) -> ZeusDataLoader:
        """A torch loader of the chosen batch size over a data set; ``options`` go to ``torch.utils.data.DataLoader``.

        ``data`` may be a DataLoader that was built with ``run.batch_size``. Wrap the training data only, not the
        validation data. Raises JobSpecError when another batch size is given.
        """
        live = self._attempt
        loader = make_loader(data, self.batch_size, options)
        wrapped = ZeusDataLoader(loader, start=self._start_training, step=self.step, end=live.tally.end_training)
        live.tally.samples_per_epoch = wrapped.samples_per_epoch
        return wrapped

    def step(self, samples: int | None = None) -> None:
        """Tell of one optimizer step over ``samples`` (default: the batch size); for loops without ``data_loader``."""
        if self._killed is not None:
            raise self._killed
        live = self._live or self._attempt
        live.step(live.planned.batch_size if samples is None else samples)

    def report(self, **metrics: float) -> None:
        """End an epoch with what it reached; gives the attempt up when its bound or ``max_epochs`` is passed.

        Raises ReportError: the target's metric is missing or not a finite number, or no target value was set.
        """
        self._check_killed()
        live = self._attempt
        live.check_signal()
        live.report(self._target, self._target.pick(metrics))

    def set_target(self, value: float) -> None:
        """Give the target ``"<metric> <= runtime"`` its value, before the first report."""
        self._check_killed()
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ReportError(f"run.set_target({value!r}): not a finite number. Compute it from this run's own data.")
        self._target = replace(self._target, value=float(value))

    def scale_lr(self, lr: float, rule: str = "sqrt", *, reference_batch_size: int | None = None) -> float:
        """Learning rate for the present batch size: ``sqrt`` (adaptive optimizers), ``linear`` (SGD) or ``none``.

        :param lr: the rate that suits ``reference_batch_size`` (default: the job's default batch size).
        """
        if rule not in _LR_RULES:
            raise JobSpecError.of("run.scale_lr(): rule", rule, "not known", f"use one of {', '.join(_LR_RULES)}")
        ratio = self.batch_size / (reference_batch_size or self.job.default_batch_size)
        self._attempt.learning_rate = lr * _LR_RULES[rule](ratio)
        return self._attempt.learning_rate

    def train(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call ``fn(run, *args, **kwargs)`` once per attempt; the kept attempt's value. See :mod:`.attempts`."""
        try:
            return attempts.train(self, lambda: fn(self, *args, **kwargs))
        finally:
            self.close()

    def kill(self, reason: str) -> None:
        """Stop the training: raises TrainingKilled here and at every later call of this handle."""
        self._killed = TrainingKilled(reason)
        raise self._killed

    def close(self) -> None:
        """Give the limit back and stop the heartbeat; an attempt that was never ended is written down as failed."""
        atexit.unregister(self.close)
        if self._live is not None and not self._live.ended:
            self.end(State.FAILED, "the process left the training loop before its end")
            self.finish(kept=False)
        resources, self._resources = self._resources, ExitStack()
        resources.close()

    # ------------------------------------------------------------------ what attempts.py and the heartbeat use
    @property
    def killed(self) -> TrainingKilled | None:
        """The signal of :meth:`kill`, if it came."""
        return self._killed

    def begin(self, index: int, *, alone: bool = False) -> LiveAttempt:
        """Begin attempt ``index`` (from 0) of the plan; ``alone``: nobody but the loop itself will end it."""
        planned, number = self.plan.attempts[index], self.plan.first_attempt + index
        last = index == len(self.plan.attempts) - 1
        self._alone = alone
        self._live = LiveAttempt(planned, number, self.job, self.device, self._limits, self._profile, last=last)
        self._emit("attempt", attempt=number, batch_size=planned.batch_size)
        return self._live

    def end(self, state: State, reason: str | None = None, *, out_of_memory: bool = False) -> None:
        """Write the end of the present attempt down."""
        live = self._attempt
        live.ended = True
        live.refresh()
        observation = replace(live.snapshot, out_of_memory=out_of_memory)
        self._emit_news("end", live, state=state, reason=reason, observation=observation)

    def finish(self, *, kept: bool) -> None:
        """Write down that the process is done with this plan."""
        self._emit("final", attempt=self.attempt if kept else None)

    def beat(self) -> None:
        """Send the newest partial sums; called from the heartbeat's thread, never touches the device."""
        live = self._live
        if live is not None and not live.ended:
            self._emit_news("beat", live, observation=live.snapshot)

    # ------------------------------------------------------------------ inside
    @property
    def _attempt(self) -> LiveAttempt:
        """The present attempt; outside of ``train()`` the last of the plan, so that nothing after it can be lost."""
        return self._live or self.begin(len(self.plan.attempts) - 1, alone=True)

    def _next_epoch(self) -> int:
        self._check_killed()
        epoch = self._attempt.next_epoch(self._target)
        if epoch is None:
            if self._alone and not self._attempt.ended:
                self.end(*self._attempt.outcome)
                self.finish(kept=True)
                self.close()
            raise StopIteration
        return epoch

    def _start_training(self) -> None:
        self._check_killed()
        self._attempt.start_training()

    def _check_killed(self) -> None:
        if self._killed is not None:
            raise self._killed

    def _emit_news(self, kind: Kind, live: LiveAttempt, **fields: Any) -> None:
        profile, points = live.take_news()
        self._profile += profile
        about = {"attempt": live.number, "batch_size": live.planned.batch_size}
        self._emit(kind, **about, **fields, profile=tuple(profile), points=tuple(points))

    def _emit(self, kind: Kind, **fields: Any) -> None:
        """Hand one line to the sink, whose failure is never the training's."""
        with self._lock:
            try:
                self._sink(Line(kind=kind, start_id=self._start_id, **fields))
            except Exception:
                log.warning("Zeus could not write a %r line of its result; the training goes on.", kind, exc_info=True)


class _Epochs:
    """Iterator over epochs; not a generator, so that a swallowed signal is raised again at the next epoch."""

    def __init__(self, following: Callable[[], int]) -> None:
        self._following = following

    def __iter__(self) -> _Epochs:
        return self

    def __next__(self) -> int:
        return self._following()
