"""How long a run of each batch size takes, and how much a power limit may slow it.

Pure; needs numpy.

The time of a run is Epochs(b) times the time of an epoch at the highest power limit: both are
believed to be lognormal. A run ends in time if the 95 % quantile of this product does
(``finish_by``). A try either ends in time itself, or leaves time enough for the incumbent behind
it. If no known size ends in time, time alone decides, so that a faster size is found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.deadline import Z_SURE, InTime
from airflow_provider_zeus.model.trial import Decision, DeviceInfo, PlannedAttempt, ProfileSample
from airflow_provider_zeus.optimizer.arms import epoch_costs, pace, profiled_epoch_costs
from airflow_provider_zeus.optimizer.belief import Belief
from airflow_provider_zeus.optimizer.knowledge_gradient.epoch_cost import of_next_run
from airflow_provider_zeus.optimizer.knowledge_gradient.gp import by_size
from airflow_provider_zeus.optimizer.reasons import Why
from airflow_provider_zeus.units import time_text

_TIME = Weights(0.0, 1.0, time_alone=True)


class RunTimes(NamedTuple):
    """Predicted times of one run at the highest power limit, by batch size."""

    log_epochs: Mapping[int, tuple[float, float]]  # epochs spread by factors
    median_s: Mapping[int, float]
    most_s: Mapping[int, float]  # a mean would miss half of the deadlines
    first_epoch_s: Mapping[int, float]  # an attempt is given up between epochs alone
    room_s: float
    pace: float  # a shared host is slower than its profile

    @classmethod
    def of(
        cls,
        belief: Belief,
        device: DeviceInfo | None,
        profiles: Sequence[ProfileSample],
        room_s: float,
    ) -> RunTimes | None:
        """The times by the belief; None if no device has shown the time of an epoch."""
        sizes = belief.gp.sizes
        slower = pace(belief, device, profiles)
        profiles = [replace(s, time_s=slower * s.time_s) for s in profiles]
        here = epoch_costs(belief, device, profiles, weights=_TIME) | profiled_epoch_costs(
            belief, device, profiles, weights=_TIME, slowdowns={}
        )
        epoch_times = of_next_run(belief, device, _TIME, own=here)
        if epoch_times is None:
            return None
        log_epoch_s, variance = epoch_times
        log_s = log_epoch_s + belief.gp.mean
        first_epoch_s = np.exp(log_epoch_s + Z_SURE * np.sqrt(variance))
        most_s = np.exp(log_s + Z_SURE * np.sqrt(belief.gp.run_variance + variance))
        # The belief's tail goes on for ever, and a run ends after ``max_epochs``.
        most_s = np.minimum(most_s, first_epoch_s * belief.max_epochs)
        sds = np.sqrt(belief.gp.run_variance).tolist()
        return cls(
            log_epochs=dict(
                zip(sizes, zip(belief.gp.mean.tolist(), sds, strict=True), strict=True)
            ),
            median_s=by_size(sizes, np.exp(log_s)),
            most_s=by_size(sizes, most_s),
            first_epoch_s=by_size(sizes, first_epoch_s),
            room_s=room_s,
            pace=slower,
        )

    def slowdown(self, b: int, reserve_s: float = 0.0) -> float:
        """How many times its time at the highest limit a run of b may take.

        Below 1: it does not end in time.

        :param reserve_s: that has to be left when it ends.
        """
        return (self.room_s - reserve_s) / self.most_s[b]

    def fitting(self, sizes: Iterable[int]) -> frozenset[int]:
        """The sizes that end in time."""
        # Rounding must not bar a size that takes just the time that is left.
        return frozenset(b for b in sizes if self.slowdown(b) >= 1 - 1e-9)

    def may_try(self, b: int, incumbent: int) -> bool:
        """Whether an epoch of b may be tried before the incumbent."""
        if not self.fitting([incumbent]):
            return True
        return self.first_epoch_s[b] + self.reserve_s(b, incumbent) <= self.room_s

    def reserve_s(self, b: int, incumbent: int) -> float:
        """Time that a try of b leaves for the incumbent [s]: none if it or nothing ends in time."""
        if self.fitting([b]) or not self.fitting([incumbent]):
            return 0.0
        return self.most_s[incumbent]

    def epochs_before(self, b: int, incumbent: int) -> float:
        """Epochs of b, at the highest limit, that leave :meth:`reserve_s`; infinite if it is 0."""
        reserve_s = self.reserve_s(b, incumbent)
        if not reserve_s:
            return math.inf
        epoch_s = self.median_s[b] / math.exp(self.log_epochs[b][0])
        return max(self.room_s - reserve_s, 0.0) / epoch_s


def in_time(decision: Decision, times: RunTimes | None, finish_by_s: float) -> Decision:
    """The decision with the times of its attempts, and a sentence about them.

    :param times: None if the time of a run is unknown.
    """
    last = decision.attempts[-1].batch_size
    decision = decision.each(lambda attempt: _timed(attempt, last, times, finish_by_s))
    *tries, model = decision.attempts
    timing = model.in_time
    sentence = Why.TIME_UNKNOWN.of()
    if times is not None and timing and timing.time_95_s is not None:
        most = time_text(timing.time_95_s)
        remaining = time_text(max(times.room_s, 0.0))
        sentence = (Why.LATE if timing.hurry else Why.IN_TIME).of(most=most, left=remaining)
    return replace(decision, attempts=(*tries, model.saying(sentence)))


def _timed(
    attempt: PlannedAttempt, last: int, times: RunTimes | None, finish_by_s: float
) -> PlannedAttempt:
    """The attempt with its times.

    ``last``: the batch size that ends with a model.
    """
    b = attempt.batch_size
    if times is None or not {b, last} <= times.most_s.keys():
        return replace(attempt, in_time=InTime(finish_by_s=finish_by_s))
    hurry = not times.fitting([last])
    reserve_s = 0.0
    if attempt.bounded:
        reserve_s = times.reserve_s(b, last)
    return replace(
        attempt,
        in_time=InTime(
            finish_by_s=finish_by_s,
            reserve_s=reserve_s,
            slowdown=max(times.slowdown(b, reserve_s), 1.0),
            hurry=hurry,
            pace=times.pace,
            log_epochs=times.log_epochs[b],
            time_95_s=times.most_s[b],
        ),
    )
