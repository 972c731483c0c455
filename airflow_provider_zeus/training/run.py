"""``ZeusRun``: the handle of a training function, in Airflow or from a plan file, of any kind."""

from __future__ import annotations

import atexit
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Never, NoReturn, Self

from airflow_provider_zeus.errors import JobSpecError, ReportError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import Observation, TrialKey
from airflow_provider_zeus.patience import T, outlived
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.training import attempt_loop, starts
from airflow_provider_zeus.training.data_loader import ZeusDataLoader, run_loader
from airflow_provider_zeus.training.heartbeat import Heartbeat
from airflow_provider_zeus.training.interrupts import TrainingKilled, raise_again
from airflow_provider_zeus.training.plan_progress import PlanProgress
from airflow_provider_zeus.training.protocol import environment
from airflow_provider_zeus.training.protocol.events import Sink
from airflow_provider_zeus.training.protocol.plan import Checkpoint, Checkpoints, Plan
from airflow_provider_zeus.training.ranks import ALONE, Ranks
from airflow_provider_zeus.training.step_handle import ScriptHandle, StepHandle

log = guarded_log(__name__)


class ZeusRun:
    """One recurrence's training: which batch size to train with, when to stop, what it cost.

    Pass your function to ``run.train(fn)`` (``@task.zeus`` does that for you). ``fn(run)`` is
    called once per attempt of the plan; ``train`` returns the value of the attempt whose model is
    kept. Build model and optimizer inside ``fn``: an attempt that is given up leaves it by an
    exception, and the next attempt starts from scratch.
    """

    def __init__(self, progress: PlanProgress, *, retried: bool) -> None:
        # Public: loaders and callbacks of frameworks look up the attempt under way at each call.
        self.progress = progress
        self.plan = progress.plan
        self.job = progress.job
        self.device = progress.device
        self.ranks = progress.ranks
        self._in_train = False
        self._retried = retried
        self._target = self.job.parsed_target
        # An error of an earlier cell of a notebook must not fail this run at its end.
        self._error_before = getattr(sys, "last_value", None)
        self.checkpoints = Checkpoints()
        self._resources = ExitStack()
        # Nothing to do in Airflow, where the task itself returns the value.
        self._hand_over: Callable[[Any], None] = lambda value: None

    def __reduce__(self) -> NoReturn:
        """Refuse to be handed to another process, as by ``spawn``: nothing that it does there would
        count.
        """
        raise TypeError(
            "a ZeusRun cannot be handed to another process. Open it and train in one process, or "
            "start several by torchrun (docs/how-to/several-gpus.md)."
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

        :param sink: gets each line of the result, for instance a ``ResultWriter``; default: lines
            are dropped.
        :param device: default: the one that the job names.
        :param try_number: of the task that runs it, written into the result.
        :param ranks: this process among those that train together.

        The device's power limit is restored when ``train()`` or the loop over ``epochs()`` ends, at
        the latest at exit. Raises JobSpecError: the plan, the job or the device cannot be used.
        """
        if not isinstance(plan, Plan):
            plan = Plan.read(Path(plan))
        ranks.check(plan.job.batch_sizes)
        device = device or environment.device_of_plan(plan, ranks)
        stack = ExitStack()
        stack.callback(device.close)
        limits = environment.limits_of_plan(plan, device, ranks)
        if limits is not None:
            stack.enter_context(limits)
        sink = sink or (lambda line: None)
        progress = PlanProgress(plan, device, limits, sink, ranks, try_number=try_number)
        run = cls(progress, retried=environment.is_retry(try_number))
        stack.callback(Heartbeat(run.beat, plan.heartbeat_s).stop)
        run._resources = stack
        atexit.register(run._close)  # a script may end without close(), with its limit still set
        return run

    @classmethod
    def from_env(cls) -> Self:
        """A run of the plan in this process's environment; see :mod:`.environment`. Raises
        JobSpecError.

        For a job that chooses no batch size it is the :class:`.StepHandle` around the loop whose
        steps tune the limit.
        """
        ranks = Ranks.of(os.environ)
        plan = environment.plan_of(os.environ)
        try_number = environment.try_of(os.environ)
        if not plan.job.chooses_size:
            if ranks.rank:  # rank 0 tunes the limit for all, and reports
                return StepHandle(None)  # type: ignore[return-value]
            results = environment.Results(os.environ)
            return ScriptHandle(plan, results, ranks)  # type: ignore[return-value]
        if environment.is_retry(try_number):
            plan = plan.for_retry()
        if ranks.rank:
            other = environment.OtherRank(os.environ, plan.ti_id, ranks.rank)
            return cls.from_plan(plan, sink=other, try_number=try_number, ranks=ranks)
        results = environment.Results(os.environ, plan.ti_id if ranks.several else "")
        run = cls.from_plan(plan, sink=results, try_number=try_number, ranks=ranks)
        run._hand_over = results.hand_over
        return run

    @property
    def batch_size(self) -> int:
        """Batch size of the present attempt [samples], of all processes together; before it begins,
        the usual one's.
        """
        return self.progress.planned.batch_size

    @property
    def local_batch_size(self) -> int:
        """This process's share of ``batch_size`` [samples]: all of it, unless several processes
        train together.
        """
        return self.ranks.share(self.batch_size)

    @property
    def attempt(self) -> int:
        """Number of the present attempt, from 1; before one begins, of the plan's usual attempt."""
        return self.progress.number

    @property
    def attempt_dir(self) -> Path:
        """An empty folder for the files of the present attempt.

        It is removed when the attempt is given up. The folder of the kept attempt stays, so its
        path may be returned. It lies under ``[zeus] attempt_root``, by default in the folder for
        temporary files. Of several processes only rank 0's is kept. Raises JobSpecError if no
        folder can be made.
        """
        # Outside of train() the attempt begins here, and would drop a folder made before it.
        raise_again(self.progress.present.interrupt)
        return self.progress.folder()

    def resumed(self, *, epochs: int) -> None:
        """Say that this attempt continues from a checkpoint, so that its few epochs do not count as
        all it needed.

        ``epochs()`` then numbers from here, and ``max_epochs`` includes the epochs of the
        checkpoint. The run teaches the cost of an epoch, but not how many epochs the batch size
        needs.

        In a retry whose checkpoint had trained all of ``max_epochs``, ``epochs()`` gives none, and
        the run ends as the earlier try reported it.

        :param epochs: that the checkpoint had trained. Call it before the first epoch of each
            attempt that resumes.

        Raises ReportError: an epoch has begun already, or a number below 0; no epoch is left, and
        this is no retry.
        """
        live = self.progress.present
        checkpoint = self.checkpoint
        observation = Observation()
        if checkpoint is not None and checkpoint.epochs == epochs:
            observation = checkpoint.observation
        is_retry = checkpoint is not None or self._retried
        live.resume(epochs, self._target, retried=is_retry, reported=observation)

    def checkpointed(self, path: str | os.PathLike[str], *, epochs: int) -> None:
        """Say where the newest checkpoint lies, after a report: a retry of this task then finds
        it::

            if run.checkpoint:
                model.load_state_dict(torch.load(run.checkpoint.path, weights_only=True))
                run.resumed(epochs=run.checkpoint.epochs)

        Airflow's task state keeps path and figures, since Airflow 3.3 and for a function that
        trains in its task; a clear begins again. Elsewhere this does nothing. Nothing that fails
        here fails the training.

        :param path: where the next try can read it: its worker may be another host.
        :param epochs: that it has trained, those of a checkpoint before it included.
        """
        self.progress.note_child()
        live = self.progress.present
        with outlived("keep where the checkpoint lies"):
            if not self.progress.forked:  # a child's epochs are none of this run
                newest = Checkpoint(
                    path=os.fspath(path),
                    epochs=epochs,
                    batch_size=self.batch_size,
                    key=TrialKey(self.plan.ti_id, live.number),
                    observation=live.snapshot,
                    start=Start(self.planned_start),
                )
                self.checkpoints.keep(newest)

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint that an earlier try of this run named; None: there is none.

        An attempt that tries another batch size trains from the beginning: it gets none; nor does
        one with another start (:attr:`planned_start`), whose model would be that of the start
        before it.
        """
        newest = self.checkpoints.newest
        live = self.progress.present
        if newest is None or newest.start != self.planned_start:
            return None
        if live.last or newest.batch_size == self.batch_size:
            return newest
        return None

    @property
    def previous(self) -> Any:
        """The value that the newest successful run of this job (of this DAG and map index)
        returned; None if there is none.

        The run log keeps it if it is JSON of at most 4 kB, such as a path or a URI; paths are kept
        as text. A new ``job_version`` has none, nor have runs that do not teach (``learn_from``):
        backfills and tests. A script hands it over by ``run.train(fn)``.

        Do not trust the value if the job trains elsewhere, in a pod or on a host of Slurm: that
        training may return any JSON. Load weights that it names with ``weights_only=True``.
        """
        earlier = self.plan.previous
        if earlier is None or earlier.returned is None:
            return None
        try:
            return json.loads(earlier.returned)
        except (ValueError, RecursionError):
            log.warning("Zeus: what the newest run returned cannot be read; run.previous is None.")
            return None

    @property
    def planned_start(self) -> str:
        """The planned start of the present attempt: ``"cold"``, ``"shrunk"`` or ``"warm"``
        (``ZeusJob.starts``).
        """
        return (self.progress.planned.start or Start.COLD).value

    def start(self, model: Any, state: Any = None) -> str:
        """Give the fresh model its planned start, and return the start that was taken::

            model = build()
            run.start(model, torch.load(run.previous, weights_only=True) if run.previous else None)

        ``"warm"`` takes the earlier model's weights; ``"shrunk"`` half of them and a tenth of the
        fresh ones, for the floating-point parameters that are trained; ``"cold"`` leaves the model
        as it is. If the earlier model does not fit, or there is none, this run starts cold, and the
        log says why. Call it after the model is built, before it is wrapped, compiled or sharded.
        The optimizer starts afresh.

        :param model: a torch module; or a dict of numpy or JAX arrays, whose entries are replaced.
        :param state: its earlier ``state_dict()``, or such a dict; a function that loads it; None:
            there is none.

        Raises ReportError: this attempt trains already.
        """
        self.progress.note_child()
        planned = Start(self.planned_start)
        why_cold = starts.start(model, state, planned)
        start = planned if why_cold is None else Start.COLD
        self.progress.present.take_start(start, why_cold)
        return start.value

    def started(self, start: str) -> None:
        """Say which start the model took, if the author starts it by ``run.planned_start``.

        Raises ReportError: this attempt trains already, or no such start.
        """
        if start not in tuple(Start):
            raise ReportError(
                f"run.started({start!r}): no such start. Use one of {', '.join(Start)}."
            )
        self.progress.note_child()
        self.progress.present.take_start(Start(start))

    def served(self, **metrics: float) -> None:
        """Say how good the model of ``run.previous`` is on the new data, if ``run.still_good()`` is
        not asked.

        It shows how well an earlier run's model served, by the start of that run.

        Raises ReportError: the target's metric is missing or no finite number.
        """
        self.progress.present.serve(self._target.pick(metrics, "run.served"))

    def still_good(self, **metrics: float) -> bool:
        """Whether the model of ``run.previous`` reaches the target on the new data, so that nothing
        has to be trained.

        If it does, return from the training function, with the value that later runs shall get as
        ``run.previous``::

            if run.previous and run.still_good(accuracy=evaluate(run.previous, new_data)):
                return run.previous

        The run then counts as *not needed*. False also if ``ZeusJob(retrain_every=...)`` asks for a
        training now. Evaluate on data that the earlier model has not seen (docs/levers/whether.md).

        Raises ReportError: there is no ``run.previous``, this attempt trains already, the target's
        metric is missing or not a finite number, several processes train together.
        """
        earlier = self.plan.previous
        most = self.job.retrain_every
        if self.previous is None or earlier is None:
            raise ReportError(
                "run.still_good(): run.previous is None: no earlier run of this job returned a "
                "value that was kept. Check `if run.previous is not None` first, and return JSON "
                "of at most 4 kB, such as a path."
            )
        if self.ranks.several:
            raise ReportError(
                "run.still_good() is for one process. Decide in a task before, and let this one "
                "not start at all."
            )
        metric = self._target.pick(metrics, "run.still_good")
        reached = self._target.reached(metric)
        self.progress.present.serve(metric)
        if not reached:
            return False
        if most is not None and earlier.not_needed + 1 >= most:
            log.info(
                "Zeus: the earlier model is still good, but retrain_every=%d asks for a training "
                "now.",
                most,
            )
            return False
        self.progress.present.keep_previous(self._target, metric)
        return True

    def epochs(self) -> Iterator[int]:
        """Epoch numbers from 0, until the target is reached or ``max_epochs`` are done.

        The loop ends normally only in the attempt whose model is kept; one that is given up is left
        by ``AttemptOver``. Outside of ``train()`` the plan's usual attempt runs. Raises ReportError
        at the start of an epoch when the one before reported nothing, and at the start of a loop
        after one that ended normally: one run trains one model.
        """
        self.progress.note_child()
        live = self.progress.present
        raise_again(live.interrupt)
        live.take_back()
        if live.over:
            raise ReportError(
                "run.epochs(): this attempt's training is over: one run trains one model. Leave "
                "the first loop by `break` where another follows, or use one task for each model."
            )
        # No generator: a swallowed interrupt is raised again at the next epoch.
        return iter(self._next_epoch, None)

    def data_loader(self, data: Any, **options: Any) -> ZeusDataLoader:
        """A torch loader of the chosen batch size over a data set; ``options`` go to
        ``torch.utils.data.DataLoader``.

        ``data`` may be a loader that was built with ``run.batch_size``, of torch or of another
        library, or a generator of such batches: its batches count as they are. Wrap the training
        data only, not the validation data. Raises JobSpecError when another batch size is given,
        and at a first batch that does not tell its size.
        """
        return run_loader(data, self.local_batch_size, options, self.progress)

    def step(self, samples: int | None = None) -> None:
        """Count an optimizer step over ``samples`` (default: the batch size); for loops without
        ``data_loader``.
        """
        self.progress.step(samples)

    def report(self, *unnamed: Never, **metrics: float) -> None:
        """End an epoch with its metrics; gives the attempt up when its bound or ``max_epochs`` is
        passed.

        Other metrics than the target's may come in reports of their own. Raises ReportError: a
        metric comes twice in an epoch; the target's metric is no number, or in another unit than
        the target; no target value was set; no epoch has begun; a value without a name.
        """
        if unnamed:
            name = self._target.metric
            raise ReportError(
                f"run.report() got a value without its name. Write run.report({name}=value)."
            )
        self.progress.note_child()
        live = self.progress.present
        raise_again(live.interrupt)
        self.progress.trackers.look()
        newest = self.progress.newest_pass()
        if newest is not None:
            newest.flush()
        self.progress.check_rate()
        live.report(self._target, metrics)

    def set_target(self, value: float) -> None:
        """Give the target ``"<metric> <= runtime"`` its value, before the first report of each
        attempt.

        Raises ReportError: the job states a value itself, an epoch was reported already, not a
        finite number.
        """
        raise_again(self.progress.killed)
        self._target = self.job.parsed_target.with_value(value, epochs_reported=self.epochs_done)

    def scale_lr(
        self, lr: float, rule: str = "sqrt", *, reference_batch_size: int | None = None
    ) -> float:
        """Learning rate for the present batch size: ``sqrt`` (adaptive optimizers), ``linear``
        (SGD) or ``none``.

        :param lr: the rate that suits ``reference_batch_size`` (default: the job's default batch
            size).

        Raises JobSpecError for an unknown rule.
        """
        powers = {"sqrt": 0.5, "linear": 1.0, "none": 0.0}
        if rule not in powers:
            raise JobSpecError.of(
                "run.scale_lr(): rule", rule, "not known", f"use one of {', '.join(powers)}"
            )
        ratio = self.batch_size / (reference_batch_size or self.job.default_batch_size)
        rate: float = lr * ratio ** powers[rule]
        self.progress.keeps_rate = rule == "none"
        self.progress.learning_rate = float(rate) if math.isfinite(rate) else None
        return rate

    def train(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call ``fn(run, *args, **kwargs)`` once per attempt, by :mod:`.attempt_loop`; return the
        kept attempt's value.

        Exploratory attempts come first. Once the kept attempt has returned, ``fn`` is not called
        again.
        """
        if self.progress.live is not None or self.progress.finished:
            raise RuntimeError("run.train() must come first, and once: this run has begun already.")
        self._in_train = True
        try:
            value = attempt_loop.train(self.progress, partial(fn, self, *args, **kwargs))
            with outlived("hand on what the training function returned"):
                if not self.progress.forked:
                    self._hand_over(value)
            return value
        finally:
            self._in_train = False
            self._close()

    def kill(self, reason: str) -> None:
        """Stop the training: raises TrainingKilled here and at every later call of this handle."""
        self.progress.killed = self.progress.killed or TrainingKilled(reason)
        raise_again(self.progress.killed)

    def close(self) -> None:
        """Restore the power limit and stop the heartbeat; write the end of an attempt that has not
        ended yet.

        Inside of ``train()``, which does so itself, it does nothing.
        """
        if self._in_train:
            log.warning(
                "Zeus: run.close() does nothing inside of the training function: the run goes on."
            )
        else:
            self._close()

    @outlived("release everything at the end of this run")
    def _close(self) -> None:
        if self.progress.forked:
            return
        # Else the interpreter would keep the run, and its model, until exit.
        atexit.unregister(self._close)
        with ExitStack() as stack:  # the last one first, also if one of them raises
            stack.callback(self.progress.sender.close)  # logs the ends that no sink took until then
            stack.callback(self._resources.close)
            self._resources = ExitStack()
            stack.callback(self.progress.drop_folder)
            if not self.progress.finished:
                attempt_loop.end_unfinished(self.progress, error_before=self._error_before)

    @property
    def epochs_done(self) -> int:
        """Epochs of the present attempt that ended with a report."""
        live = self.progress.live
        return 0 if live is None else live.epochs_done

    def beat(self) -> None:
        """Send the newest partial sums now; the heartbeat does so every few seconds."""
        self.progress.beat()

    def _next_epoch(self) -> int | None:
        live = self.progress.present
        epoch = live.next_epoch(self._target)
        is_over = epoch is None and self.progress.loop_only
        if is_over and not live.ended:
            with outlived("write the end of this run"):
                self.progress.end(*live.outcome)
                self.progress.finish(kept=True)
            self.close()
        return epoch
