"""Walks a training through its power limits, a window at each, settles on the best, and sees whether that holds."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from typing import TypeVar

from airflow_provider_zeus.optimizer.trial import ProfileSample, summed_with_marks
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.limit import LimitControl
from airflow_provider_zeus.power.meter import Mark, Span
from airflow_provider_zeus.power.record import same_w
from airflow_provider_zeus.training.pieces import Pieces
from airflow_provider_zeus.training.profiler import Profiler
from airflow_provider_zeus.training.watch import OFF, Watch

log = logging.getLogger(__name__)
T = TypeVar("T")

_MOST_FAILURES = 3  # pieces without energy after which the limit found is put back


class Sweep:
    """Profiling of one attempt.

    :param limits: None where limits are not to be set; nothing is profiled then.
    :param observe: put the limit found back when the profile is complete, instead of the best one.
    """

    def __init__(self, device: Device, limits: LimitControl | None, profiler: Profiler, *, observe: bool) -> None:
        self.active = False  # profiling now
        self.measured: list[ProfileSample] = []
        self.news: deque[ProfileSample] = deque()  # measured and not yet sent
        self._device, self._limits, self._profiler, self._observe = device, limits, profiler, observe
        self._pieces = Pieces(profiler.batch_size, profiler.min_s, profiler.min_steps)
        self._spent, self._spent_samples = Span(), 0  # all of profiling, settling included
        self._since_samples = 0  # samples trained when the open part of it began
        self._watch = Watch(profiler.min_s, profiler.min_steps * profiler.batch_size)
        self._watching = bool(profiler.limits_w) and not profiler.weights.fastest

    # ------------------------------------------------------------------ the walk
    def start(self, mark: Mark, samples: int) -> None:
        """Training steps begin, ``samples`` were trained before."""
        self._watching = self._watching and self._may_set()
        if self._may_set() and self._profiler.next_limit is not None:
            self._begin(mark, samples)
        else:
            self._settle_on_chosen()

    def stop(self, mark: Mark, samples: int, *, bare: bool = False) -> None:
        """Training steps pause: an epoch ends. What its piece and its settling have had is kept.

        ``bare``: they may have paused before, for a validation: training is not looked at up to here.
        """
        if self.active:
            self._pieces.pause(mark, samples)
            self._leave(mark, samples)
        elif bare:
            self._watch.pause()
        else:
            self._look(mark, samples, pauses=True)

    @property
    def eager(self) -> bool:
        """Whether it wants to hear of the next step, and not only of one in each second."""
        return self.active or self.watches_next

    @property
    def watches_next(self) -> bool:
        """Whether training under the limit chosen is to be looked at from the next step on."""
        return self._watching and not self.active and self._watch.closed

    def due(self, now_s: float) -> bool:
        """A step was made while profiling; whether an edge of a piece is due now."""
        return self._pieces.due(now_s)

    def pass_edge(self, mark: Mark, samples: int) -> bool:
        """Open a piece, or close it and go on; True when the profile has become complete."""
        pieces = self._pieces
        if pieces.is_open:
            pieces.close(mark, samples)
            if pieces.ticked:
                return self._go_on(mark, samples)
        pieces.open(mark, samples)
        return False

    def watch(self, mark: Mark, samples: int) -> None:
        """Look at training under the limit chosen; where it left its profile, measure that anew."""
        if not self.active:
            self._look(mark, samples)

    def keep(self, *, at_end: bool = True) -> None:
        """Keep what was measured; ``at_end`` of the attempt it may be a part, for a later run to finish."""
        if not self._in_force(self._pieces.limit_w):
            self._pieces.drop()
            return
        for piece in self._pieces.take(at_end=at_end):
            self._profiler.add(piece)
            self._note(piece)

    def settle(self) -> None:
        """Leave the device at the best of what is measured, complete or not; to observe, at the limit found."""
        chosen_w = self._chosen_w()
        if self._limits is not None and self._may_set() and chosen_w is not None:
            self._limits.set_w(chosen_w)

    # ------------------------------------------------------------------ what it says
    def advance(self, mark: Mark) -> None:
        """Count what profiling spends up to now."""
        self._spent.advance(mark)

    def take_news(self) -> tuple[ProfileSample, ...]:
        """What was measured since the last call, added up, behind a mark where it begins anew; any thread may ask."""
        return summed_with_marks(taken(self.news))

    def excess(self, samples: int) -> tuple[float | None, float | None]:
        """(J, s) that profiling spent beyond the same samples at the chosen limit; 0 where nothing was profiled."""
        profiled = self._spent_samples + (samples - self._since_samples if self.active else 0)
        if profiled == 0:
            return 0.0, 0.0
        rates = self._profiler.rates_at(self._chosen_w())
        if rates is None:
            return None, None
        spent_j = self._spent.energy_j
        return None if spent_j is None else spent_j - profiled * rates[0], self._spent.time_s - profiled * rates[1]

    def cost_per_sample(self) -> float | None:
        """Cost [J] of a sample at the chosen limit; None while the walk is not over, or where there is none."""
        return self._profiler.cost_at(self._chosen_w()) if self._profiler.walked and self._may_set() else None

    def missed(self, samples: int) -> dict[str, float]:
        """To observe: what these samples would have saved at the best limit; nothing where that is not known."""
        best_w = self._profiler.best_w
        best, found = self._profiler.rates_at(best_w), self._profiler.rates_at(self._chosen_w())
        if not self._observe or best_w is None or best is None or not found or not all(found) or samples <= 0:
            return {}
        return {
            "optimum_w": best_w,
            "optimum_saves_j": samples * (found[0] - best[0]),
            "optimum_saves_s": samples * (found[1] - best[1]),
            "optimum_saves_energy": 1 - best[0] / found[0],
            "optimum_saves_time": 1 - best[1] / found[1],
        }

    def say_what_was_missed(self, samples: int) -> None:
        """The same as a line of the log."""
        missed = self.missed(samples)
        if not missed:
            return
        log.info(
            "Zeus observed: at %g W instead of %g W these %d samples would have saved %+.4g J (%+.1f %%) and %+.4g s "
            "(%+.1f %%).%s",
            missed["optimum_w"],
            self._chosen_w(),
            samples,
            missed["optimum_saves_j"],
            100 * missed["optimum_saves_energy"],
            missed["optimum_saves_s"],
            100 * missed["optimum_saves_time"],
            "" if self._profiler.walked else " The profile is not complete yet.",
        )

    # ------------------------------------------------------------------ inside
    def _may_set(self) -> bool:
        return self._limits is not None and self._limits.can_set and self._pieces.failures < _MOST_FAILURES

    def _in_force(self, limit_w: float | None) -> bool:
        present_w = self._device.limit_w()
        return limit_w is not None and present_w is not None and same_w(limit_w, present_w)

    def _begin(self, mark: Mark, samples: int) -> None:
        """Profile from here on."""
        self.active = True
        self._spent.open(mark)
        self._since_samples = samples
        self._move(mark, samples)

    def _go_on(self, mark: Mark, samples: int) -> bool:
        """A piece is over: the next one, the next limit, or the best one; True when the profile is complete."""
        before_w = self._pieces.limit_w
        self.keep(at_end=False)
        next_w = self._profiler.next_limit
        if self._may_set() and next_w is not None:
            if next_w == before_w and self._in_force(next_w):
                self._pieces.open(mark, samples)
            else:
                self._move(mark, samples)
            return False
        self._leave(mark, samples)
        self._settle_on_chosen()
        self._say_what_was_found()
        return next_w is None

    def _move(self, mark: Mark, samples: int) -> None:
        """Train at the limit that is to be measured now."""
        limit_w = self._profiler.next_limit
        if limit_w is None or self._limits is None:
            return
        if not self._in_force(limit_w):
            if not self._limits.set_w(limit_w):
                self._leave(mark, samples)
                return
            self._pieces.unsettle()
        self._pieces.begin(mark, limit_w)

    def _note(self, sample: ProfileSample) -> None:
        self.measured.append(sample)
        self.news.append(sample)

    def _leave(self, mark: Mark, samples: int) -> None:
        self._spent.close(mark)
        self._spent_samples += samples - self._since_samples
        self.active = False

    def _look(self, mark: Mark, samples: int, *, pauses: bool = False) -> None:
        """Where training left its profile, begin that anew, once in an attempt."""
        chosen_w = self._chosen_w()
        rates = self._profiler.rates_at(chosen_w)
        if not self._watching or rates is None or not self._in_force(chosen_w):
            return
        if not self._watch.left(mark, samples, rates[0], pauses=pauses):
            return
        log.warning(
            "Zeus: a sample at batch size %d no longer draws the %.3g J of its power profile, by over %.0f %%: the "
            "profile is measured anew.",
            self._profiler.batch_size,
            rates[0],
            100 * OFF,
        )
        self._watching = False
        self._note(self._profiler.forget())
        self._pieces.unsettle()
        if not pauses:
            self._begin(mark, samples)

    def _chosen_w(self) -> float | None:
        return self._limits.found_w if self._observe and self._limits else self._profiler.best_w

    def _settle_on_chosen(self) -> None:
        """Train at the best limit, or at the one found: to observe, or where energy cannot be measured."""
        if self._limits is None:
            return
        if self._pieces.failures >= _MOST_FAILURES:
            if self._limits.can_set and self._limits.found_w is not None:
                self._limits.set_w(self._limits.found_w)
        elif self._profiler.next_limit is None:
            self.settle()

    def _say_what_was_found(self) -> None:
        profiler = self._profiler
        if self._pieces.failures >= _MOST_FAILURES:
            log.warning("Zeus gives up profiling: the energy counter of this device does not move or cannot be read.")
            return
        best_w, first_w = profiler.best_w, profiler.limits_w[0]
        best, first = profiler.rates_at(best_w), profiler.rates_at(first_w)
        if best is None or first is None:
            return
        log.info(
            "Zeus power profile at batch size %d: %g W is best by %s; per sample %+.1f %% energy, %+.1f %% time "
            "against %g W.%s",
            profiler.batch_size,
            best_w,
            profiler.weights.objective,
            100 * (best[0] / first[0] - 1),
            100 * (best[1] / first[1] - 1),
            first_w,
            " The limit found is put back: mode is 'observe'." if self._observe else "",
        )


def taken(news: deque[T]) -> tuple[T, ...]:
    """Everything in a queue to which another thread may be appending."""
    items: list[T] = []
    with contextlib.suppress(IndexError):
        while True:
            items.append(news.popleft())
    return tuple(items)
