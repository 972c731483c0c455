"""``ZeusRun``: the handle of a training function, in Airflow, from a plan file, in any framework."""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

from airflow_provider_zeus.errors import JobSpecError, ReportError
from airflow_provider_zeus.patience import outlived
from airflow_provider_zeus.power.device import Device, default_state_dir
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.training import attempt_loop
from airflow_provider_zeus.training.data_loader import ZeusDataLoader, run_loader
from airflow_provider_zeus.training.interrupts import TrainingKilled, raise_again
from airflow_provider_zeus.training.plan_progress import Heartbeat, PlanProgress
from airflow_provider_zeus.training.protocol import environment
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.protocol.sender import Sink
from airflow_provider_zeus.training.ranks import ALONE, Ranks

T = TypeVar("T")

log = logging.getLogger(__name__)

_LR_RULES: dict[str, Callable[[float], float]] = {"sqrt": math.sqrt, "linear": float, "none": lambda _: 1.0}


class ZeusRun:
    """One recurrence's training: which batch size to train with, when to stop, what it cost.

    Pass your function to ``run.train(fn)`` (``@task.zeus`` does that for you). ``fn(run)`` is called once per attempt
    of the plan; ``train`` returns the value of the attempt whose model is kept. Build model and optimizer inside
    ``fn``: an attempt that is given up leaves it by an exception, and the next attempt starts from scratch.
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
        self.plan, self.device, self.limits, self.ranks = plan, device, limits, ranks
        self.driven = False  # a framework's callback counts the steps
        self._in_train = False
        self.warned: set[str] = set()  # warnings that were given once
        self.newest_pass: Callable[[], Any] = lambda: None  # of a loader, while it is not over
        self.job = plan.job
        self._target = self.job.parsed_target
        self._error_before = getattr(sys, "last_value", None)  # the interpreter sets it when an error ends a script
        self._resources = ExitStack()
        self._hand_over: Callable[[Any], None] = lambda value: None  # takes the value of the kept attempt
        self._progress = PlanProgress(plan, self.job, device, limits, sink, ranks, try_number=try_number)

    def __reduce__(self) -> NoReturn:
        """Refuse to be handed to another process, as by ``spawn``: nothing that it does there would count."""
        raise TypeError(
            "a ZeusRun cannot be handed to another process. Open it and train in one process, or start several by "
            "torchrun (docs/several-gpus.md)."
        )

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
        """A run of a plan, or of a plan file, without Airflow or a store.

        :param sink: gets each line of the result, for instance a ``ResultWriter``; default: lines are dropped.
        :param device: default: the one that the job names.
        :param try_number: of the task that runs it, written into the result.
        :param ranks: this process among those that train together.

        The device's power limit is restored when ``train()`` or the loop over ``epochs()`` ends, at the latest at exit.
        Raises JobSpecError: the plan, the job or the device cannot be used.
        """
        if not isinstance(plan, Plan):
            plan = Plan.read(Path(plan))
        ranks.check(plan.job.batch_sizes)
        state_dir = plan.state_dir or default_state_dir()
        device = device or environment.device_of_plan(plan, state_dir, ranks)
        stack = ExitStack()
        stack.callback(device.close)
        if limits := environment.limits_of_plan(plan, state_dir, device, ranks):
            stack.enter_context(limits)
        run = cls(plan, device, sink or (lambda line: None), limits, try_number=try_number, ranks=ranks)
        stack.callback(Heartbeat(run.beat, plan.heartbeat_s).stop)
        run._resources = stack
        atexit.register(run._close)
        return run

    @classmethod
    def from_env(cls) -> Self:
        """A run of the plan in this process's environment; see :mod:`.environment`. Raises JobSpecError."""
        ranks, plan, try_number = Ranks.of(os.environ), environment.plan_of(os.environ), environment.try_of(os.environ)
        if (try_number or 1) > 1:
            plan = plan.last_alone()
        if ranks.rank:
            return cls.from_plan(plan, sink=environment.OtherRank(os.environ, plan.ti_id, ranks.rank), ranks=ranks)
        results = environment.Results(os.environ, plan.ti_id if ranks.several else "")
        run = cls.from_plan(plan, sink=results, try_number=try_number, ranks=ranks)
        run._hand_over = results.hand_over
        return run

    # ------------------------------------------------------------------ for the training loop
    @property
    def batch_size(self) -> int:
        """Batch size of the present attempt [samples], of all processes together; before it begins, the plan's last."""
        live = self._progress.live
        return (live.planned if live else self.plan.attempts[-1]).batch_size

    @property
    def local_batch_size(self) -> int:
        """This process's share of ``batch_size`` [samples]: all of it, unless several processes train together."""
        return self.ranks.share(self.batch_size)

    @property
    def attempt(self) -> int:
        """Number of the present attempt, from 1; before one begins, of the plan's last attempt."""
        return self._progress.number

    @property
    def attempt_dir(self) -> Path:
        """An empty folder for the files of the present attempt.

        It is removed when the attempt is given up. The folder of the kept attempt stays, so its path may be returned.
        It lies under ``[zeus] attempt_root``, by default in the folder for temporary files. Of several processes only
        rank 0's is kept. Raises JobSpecError where no folder can be made.
        """
        raise_again(self._progress.present.interrupt)  # outside of train() the attempt begins here
        return self._progress.folder()

    def resumed(self, *, epochs: int) -> None:
        """Say that this attempt continues from a checkpoint, so that its few epochs do not count as all it needed.

        ``epochs()`` then numbers from here, and ``max_epochs`` includes the epochs of the checkpoint. The run teaches
        the cost of an epoch, but not how many epochs the batch size needs.

        :param epochs: that the checkpoint had trained. Call it before the first epoch of each attempt that resumes.

        Raises ReportError: an epoch has begun already, or a number below 0.
        """
        self._progress.present.resume(epochs)

    @property
    def previous(self) -> Any:
        """What the newest successful run of this job (of this map index) returned; None where there is none.

        The trial log keeps it where it is JSON of at most 4 kB, such as a path or a URI; paths are kept as text. A new
        ``job_version`` has none, nor have runs that do not teach (``learn_from``): backfills and tests. A script hands
        it over by ``run.train(fn)``.
        """
        held = self.plan.previous
        try:
            return None if held is None or held.returned is None else json.loads(held.returned)
        except ValueError:
            log.warning("Zeus: what the newest run returned cannot be read; run.previous is None.")
            return None

    def still_good(self, **metrics: float) -> bool:
        """Whether the model of ``run.previous`` reaches the target on the new data, so that nothing has to be trained.

        Where it does, return from the training function, with what later runs shall get as ``run.previous``::

            if run.previous and run.still_good(accuracy=evaluate(run.previous, new_data)):
                return run.previous

        The run then counts as *not needed*. False also where ``ZeusJob(retrain_every=...)`` asks for a training now.
        Evaluate on data that the earlier model has not seen (docs/whether.md).

        Raises ReportError: there is no ``run.previous``, this attempt trains already, the target's metric is missing or
        not a finite number, several processes train together.
        """
        held, most = self.plan.previous, self.job.retrain_every
        if self.previous is None or held is None:
            raise ReportError(
                "run.still_good(): run.previous is None: no earlier run of this job returned a value that was kept. "
                "Check `if run.previous is not None` first, and return JSON of at most 4 kB, such as a path."
            )
        if self.ranks.several:
            raise ReportError(
                "run.still_good() is for one process. Decide in a task before, and let this one not start at all."
            )
        metric = self._target.pick(metrics, "run.still_good")
        reached = self._target.reached(metric)
        if reached and most is not None and held.not_needed + 1 >= most:
            log.info("Zeus: the earlier model is still good, but retrain_every=%d asks for a training now.", most)
            return False
        if reached:
            self._progress.present.keep_previous(self._target, metric)
        return reached

    def epochs(self) -> Iterator[int]:
        """Epoch numbers from 0, until the target is reached or ``max_epochs`` are done.

        The loop ends normally only in the attempt whose model is kept; one that is given up is left by ``AttemptOver``.
        Outside of ``train()`` the plan's last attempt runs. Raises ReportError at the begin of an epoch when the one
        before reported nothing, and at the begin of a loop after one that ended normally: one run trains one model.
        """
        self._progress.note_child()
        live = self._progress.present
        raise_again(live.interrupt)
        if live.over:
            raise ReportError(
                "run.epochs(): this attempt's training is over: one run trains one model. Leave the first loop by "
                "`break` where another follows, or use one task for each model."
            )
        return iter(self._next_epoch, None)  # no generator: a swallowed interrupt is raised again at the next epoch

    def data_loader(self, data: Any, **options: Any) -> ZeusDataLoader:
        """A torch loader of the chosen batch size over a data set; ``options`` go to ``torch.utils.data.DataLoader``.

        ``data`` may be a loader that was built with ``run.batch_size``, of torch or of another library, or a generator
        of such batches: its batches count as they are. Wrap the training data only, not the validation data. Raises
        JobSpecError when another batch size is given, and at a first batch that does not tell its size.
        """
        live = self._progress.live
        seed = self.plan.seed + (live.passes if live else 0)  # the same on all ranks
        return run_loader(data, self.local_batch_size, options, self, self.ranks, seed=seed)

    def step(self, samples: int | None = None) -> None:
        """Count an optimizer step over ``samples`` (default: the batch size); for loops without ``data_loader``."""
        progress = self._progress  # on the training's path: no call more than needed
        if progress.killed is not None:
            raise_again(progress.killed)
        live = progress.live or progress.present
        if not live.told:
            progress.note_child()
        live.step(live.local_batch_size if samples is None else int(samples))

    def report(self, **metrics: float) -> None:
        """End an epoch with its metrics; gives the attempt up when its bound or ``max_epochs`` is passed.

        Other metrics than the target's may come in reports of their own. Raises ReportError: a metric comes twice in an
        epoch; the target's metric is no number, or in another unit than the target; no target value was set; no epoch
        has begun.
        """
        self._progress.note_child()
        live = self._progress.present
        raise_again(live.interrupt)
        self._progress.trackers.look()
        if (newest := self.newest_pass()) is not None:
            newest.flush()
        live.report(self._target, metrics)

    def set_target(self, value: float) -> None:
        """Give the target ``"<metric> <= runtime"`` its value, before the first report of each attempt.

        Raises ReportError: the job states a value itself, an epoch was reported already, not a finite number.
        """
        raise_again(self._progress.killed)
        done = self._progress.live.epochs_done if self._progress.live else 0
        self._target = self.job.parsed_target.with_value(value, epochs_reported=done)

    def scale_lr(self, lr: float, rule: str = "sqrt", *, reference_batch_size: int | None = None) -> float:
        """Learning rate for the present batch size: ``sqrt`` (adaptive optimizers), ``linear`` (SGD) or ``none``.

        :param lr: the rate that suits ``reference_batch_size`` (default: the job's default batch size).

        Raises JobSpecError for an unknown rule.
        """
        if rule not in _LR_RULES:
            raise JobSpecError.of("run.scale_lr(): rule", rule, "not known", f"use one of {', '.join(_LR_RULES)}")
        rate = lr * _LR_RULES[rule](self.batch_size / (reference_batch_size or self.job.default_batch_size))
        self._progress.learning_rate = float(rate) if math.isfinite(rate) else None
        return rate

    def train(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call ``fn(run, *args, **kwargs)`` once per attempt, by :mod:`.attempt_loop`; return the kept attempt's value.

        Exploratory attempts come first. Once the kept attempt has returned, ``fn`` is not called again.
        """
        if self._progress.live is not None or self._progress.finished:
            raise RuntimeError("run.train() must come first, and once: this run has begun already.")
        self._in_train = True
        try:
            value = attempt_loop.train(self._progress, partial(fn, self, *args, **kwargs))
            with outlived("hand on what the training function returned"):
                if not self.forked:
                    self._hand_over(value)
            return value
        finally:
            self._in_train = False
            self._close()

    def kill(self, reason: str) -> None:
        """Stop the training: raises TrainingKilled here and at every later call of this handle."""
        self._progress.killed = self._progress.killed or TrainingKilled(reason)
        raise_again(self._progress.killed)

    def close(self) -> None:
        """Restore the power limit and stop the heartbeat; write the end of an attempt that has not ended yet.

        Inside of ``train()``, which does so itself, it does nothing.
        """
        if self._in_train:
            log.warning("Zeus: run.close() does nothing inside of the training function: the run goes on.")
        else:
            self._close()

    @outlived("release everything at the end of this run")
    def _close(self) -> None:
        if self.forked:
            return
        atexit.unregister(self._close)
        with ExitStack() as each:  # the last one first, whatever one of them raises
            each.callback(self._progress.close)
            each.callback(self._resources.close)
            self._resources = ExitStack()
            each.callback(self._progress.drop_folder)
            if not self._progress.finished:
                attempt_loop.end_unfinished(self._progress, error_before=self._error_before)

    # ------------------------------------------------------------------ for loaders and callbacks (Listener)
    def start_pass(self, expected_samples: float | None) -> Callable[[int], None]:
        """Begin a pass of a loader; see :meth:`.Listener.start_pass`."""
        self._progress.note_child()
        return self._progress.present.start_pass(expected_samples)

    def no_batch(self, error: JobSpecError) -> None:
        """Note that a pass had samples and no batch; see :meth:`.Listener.no_batch`."""
        self._progress.present.no_batch(error)

    def end_pass(self, waited_s: float, looped_s: float) -> None:
        """End a pass of a loader; see :meth:`.Listener.end_pass`."""
        self._progress.present.end_pass(waited_s, looped_s)

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps that torch made in the present attempt; 0 where that is not known."""
        return self._progress.live.optimizer_steps if self._progress.live else 0

    def beat(self) -> None:
        """Send the newest partial sums now; the heartbeat does so every few seconds."""
        self._progress.beat()

    @property
    def forked(self) -> bool:
        """Whether this process is a forked child of the one that trains. Nothing it does is part of this run."""
        return self._progress.forked

    def _next_epoch(self) -> int | None:
        live = self._progress.present
        epoch = live.next_epoch(self._target)
        if epoch is None and self._progress.loop_only and not live.ended:
            with outlived("write the end of this run"):
                self._progress.end(*live.outcome)
                self._progress.finish(kept=True)
            self.close()
        return epoch
