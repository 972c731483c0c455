"""Peeks: a few seconds at batch sizes next in line, once the kept model is in safety, to know their EpochCost.

The kept attempt's end, the ``final`` line and the function's value are handed over before. Each peek is a fresh call of
the training function, as an attempt is, so it builds a model of its own and never sees the kept one; it is left by
``AttemptOver`` within one epoch, before its first ``report()`` returns. Whatever it raises is logged and forgotten.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.peeks import PEEK_S, worth_a_peek
from airflow_provider_zeus.optimizer.target import Target
from airflow_provider_zeus.optimizer.trial import Attempt, Observation, ProfileSample, State
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.limit import LimitControl
from airflow_provider_zeus.power.meter import Span, edge, read
from airflow_provider_zeus.power.record import same_w
from airflow_provider_zeus.training.attempt import TICK_S, LiveAttempt, limits_to_measure
from airflow_provider_zeus.training.attempts import clean_process, forget, out_of_memory, say_swallowed
from airflow_provider_zeus.training.pieces import SETTLE_S
from airflow_provider_zeus.training.signals import AttemptOver, raise_again

if TYPE_CHECKING:
    from airflow_provider_zeus.training.run import ZeusRun

_SETTLE_SHARE = 1 / 3  # of an epoch: in a short one, warming up ends here

_NO_REST = "a peek sees no validation"
_TOO_SHORT = "it trained too short to be measured"

log = logging.getLogger(__name__)


def look(run: ZeusRun, kept: LiveAttempt | None, fn: Callable[[], object]) -> None:
    """Do the plan's peeks where its first attempt reached the target and they are short beside it.

    Raises what stops the task, nothing else.
    """
    plan = run.plan
    if not plan.peeks or kept is None or kept.number != plan.first_attempt or not kept.reached:
        return
    if run.ranks.several:
        log.info("Zeus looks at no other batch size: several processes train, and no epoch may end early.")
        return
    size, run_s, epochs = kept.snapshot.samples_per_epoch, kept.snapshot.time_s, kept.snapshot.epochs
    if not size:
        log.info("Zeus cannot look at other batch sizes: this training tells of no steps, so nothing could end it.")
        return
    if not run_s or not epochs or not worth_a_peek(run_s, run_s / epochs):
        return
    first = plan.first_attempt + len(plan.attempts)
    try:
        kept.settle()
        for index, planned in enumerate(plan.peeks):
            clean_process(plan.seed + len(plan.attempts) + index)
            log.info("Zeus looks at batch size %d for some seconds: %s", planned.batch_size, planned.why)
            live = Look(planned, first + index, index, run.job, run.device, run.limits, size)
            run.enter(live)
            _one(run, live, fn)
    except Exception:
        log.exception("Zeus looks at no other batch size: the device or the result failed. The kept model is safe.")
    finally:
        run.enter(kept)  # so that the handle speaks of the kept attempt again


def _one(run: ZeusRun, live: Look, fn: Callable[[], object]) -> None:
    """One call of the function. Raises TrainingKilled and what else is no ``Exception``."""
    try:
        fn()
    except BaseException as error:
        _write_down(run, live, error)
        if run.killed is not None:
            raise run.killed from (None if error is run.killed else error)
        if not isinstance(error, Exception | AttemptOver | SystemExit):  # the kept model is yet to be saved
            raise
        forget(error)
        return
    if run.killed is not None:
        run.end(State.FAILED, f"killed: {run.killed}")
        raise_again(run.killed)
    if live.signal is not None:
        say_swallowed(live.signal)
        run.end(*live.outcome)
        forget(live.signal)
    else:
        run.end(State.FAILED, "the function returned before the peek was over")


def _write_down(run: ZeusRun, live: Look, error: BaseException) -> None:
    if run.killed is not None:
        run.end(State.FAILED, f"killed: {run.killed}")
    elif live.signal is not None:
        if error is not live.signal:
            log.warning("Zeus: a peek was over, and on its way out the function raised.", exc_info=error)
        run.end(*live.outcome)
    else:
        no_memory = out_of_memory(error)
        size, why = live.planned.batch_size, "does not fit into memory" if no_memory else "raised an error"
        log.warning("Zeus: batch size %d %s in a peek. The kept model is safe.", size, why, exc_info=error)
        run.end(State.FAILED, f"{type(error).__name__}: {error}"[:500], out_of_memory=no_memory)


class Look(LiveAttempt):
    """One peek: warms up, measures a window at the limit now in force, and is over.

    It is over once that window is as long as the profile of one limit must be, after ``PEEK_S`` seconds of training, or
    with its epoch, whichever comes first. Its observation charges all from the call of the function on; what is not
    steady training (set-up, warming up) is excess.

    :param index: which of the plan's peeks it is, from 0.
    :param limits: says which limit was found and which ones are profiled; none is set here.
    :param size: samples of one epoch, as the kept attempt counted them.
    """

    _whole: Span | None = None

    def __init__(
        self,
        planned: Attempt,
        number: int,
        index: int,
        job: ZeusJob,
        device: Device,
        limits: LimitControl | None,
        size: float,
    ) -> None:
        super().__init__(planned, number, job, device, None, (), last=False)
        self.peek = index
        self._size = size
        self._limits_w = limits_to_measure(job, limits, self._weights)
        self._found_w = limits.found_w if limits else None
        self._need_s, self._need_steps = job.profile_s, job.profile_steps
        self._window = Span()
        self._window_samples = self._steps = 0
        self._window_done = False
        self._settled_s = self._until_s = self._window_due_s = 0.0
        self._whole = Span(edge(device))

    # ------------------------------------------------------------------ how it goes
    def report(self, target: Target, metric: float) -> None:
        """An epoch ended, and so does the peek: raises AttemptOver."""
        raise_again(self.signal)
        self._over()

    def end_pass(self, waited_s: float, looped_s: float) -> None:
        """The data are at their end, and so is the peek: raises AttemptOver."""
        raise_again(self.signal)
        self._over()

    def stop(self) -> None:
        """The peek ends, by itself or by an error."""
        with contextlib.suppress(Exception):
            self._close_window()
        super().stop()

    def _start_training(self, *, first_step_done: bool) -> None:
        super()._start_training(first_step_done=first_step_done)
        self._due_s = 0.0
        if not self._until_s:
            now_s = self._device.now_s()
            self._settled_s, self._until_s = now_s + SETTLE_S, now_s + PEEK_S

    def _leave_pass(self, number: int, samples: int) -> None:
        super()._leave_pass(number, samples)
        if not self._tally.training:
            self._close_window()

    def _on_due(self, now_s: float) -> None:
        """A step was made."""
        samples = self._tally.samples
        if self._window.is_open:
            self._steps += 1
            complete = now_s >= self._window_due_s and self._steps >= self._need_steps
        else:
            complete = False
            if not self._window_done and (now_s >= self._settled_s or samples >= self._size * _SETTLE_SHARE):
                self._open_window()
        if complete or now_s >= self._until_s or samples >= self._size:
            self._over()
        if now_s >= self._tick_s:
            self._tick_s = now_s + TICK_S
            self._tally.touch(read(self._device))
            self._refresh()

    def _open_window(self) -> None:
        mark = edge(self._device)
        self._tally.touch(mark)
        self._window.open(mark)
        self._window_due_s = mark.time_s + self._need_s
        self._window_samples = -self._tally.samples  # so that adding the count at the end gives the difference

    def _close_window(self) -> None:
        """Close it, once; what it measured is a profile sample too, where the limit in force is one to be profiled."""
        if not self._window.is_open:
            return
        self._window.close(edge(self._device))
        self._window_samples += self._tally.samples
        self._window_done = True
        limit_w = self._device.limit_w()
        profiled = [w for w in self._limits_w if limit_w is not None and same_w(w, limit_w)]
        if profiled and self._window_samples > 0 and self._window.time_s > 0 and self._window.energy_j:
            sample = ProfileSample(
                batch_size=self.planned.batch_size,
                limit_w=profiled[0],
                samples=self._window_samples,
                energy_j=self._window.energy_j,
                time_s=self._window.time_s,
                steps=self._steps,
            )
            self._sweep.measured.append(sample)
            self._sweep.news.append(sample)

    def _over(self) -> NoReturn:
        self._close_window()
        self._tally.end_training()
        self._refresh()
        self._give_up(State.GIVEN_UP, f"looked at for {self.snapshot.time_s or 0.0:.1f} s")

    # ------------------------------------------------------------------ what it saw
    def _refresh(self) -> None:
        super()._refresh()
        if self._whole is None:
            return
        with contextlib.suppress(Exception):  # after an error on the GPU it may answer nothing but that error
            self._whole.advance(read(self._device))
        self.snapshot = self._charged(self.snapshot, self._whole)

    def _charged(self, seen: Observation, whole: Span) -> Observation:
        """What was seen, with all that this call has drawn; steady training apart from the rest of it."""
        samples, measures = self._tally.samples, self._device.info.energy_source is not None
        steady_j, steady_s = self._steady(seen, measures=measures)
        energy_j = whole.energy_j if measures else None
        figures: dict[str, Any] = {
            "epochs": samples / self._size if steady_s is not None else None,
            "energy_j": energy_j,
            "gpu_energy_j": whole.each_j if measures else None,
            "time_s": whole.time_s,
            "excess_j": None if energy_j is None or steady_j is None else energy_j - samples * steady_j,
            "excess_s": None if steady_s is None else whole.time_s - samples * steady_s,
            "rest_j": None,
            "rest_s": None,
        }
        unread = self._device.missing.get("energy_j") or whole.reason
        whys = {"rest_j": _NO_REST, "rest_s": _NO_REST, "energy_j": unread, "excess_j": unread}
        whys["gpu_energy_j"] = unread
        reasons = {name: why for name, why in seen.reasons.items() if name not in figures}
        reasons |= {name: whys.get(name) or _TOO_SHORT for name, value in figures.items() if value is None}
        if energy_j is not None or seen.device_count == 1:
            reasons.pop("gpu_energy_j", None)
        size, found_w = self._size, self._found_w
        return replace(seen, **figures, samples_per_epoch=size, limit_found_w=found_w, reasons=reasons)

    def _steady(self, seen: Observation, *, measures: bool) -> tuple[float | None, float | None]:
        """(J, s) per sample in the window; in all of the training steps where it saw nothing; (None, None) if those."""
        train_s, train_j = _without(seen.time_s, seen.rest_s), _without(seen.energy_j, seen.rest_j)
        window = (self._window.energy_j, self._window.time_s, self._window_samples)
        for energy_j, time_s, samples in (window, (train_j, train_s, self._tally.samples)):
            unread = not measures or energy_j is None
            if samples > 0 and time_s and (energy_j or unread):  # 0 J: too short for the counter's ticks
                return (None if unread or energy_j is None else energy_j / samples), time_s / samples
        return None, None


def _without(total: float | None, rest: float | None) -> float | None:
    return None if total is None or rest is None else total - rest
