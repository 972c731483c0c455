"""Just-in-time profiling of the power limit (section 4.2): which limit to measure next, which one is best.

Decisions only; :class:`~airflow_provider_zeus.training.sweep.Sweep` measures and sets. Samples of one limit add up, so
what one run could not finish is finished by the next run of the same batch size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_zeus.optimizer.cost import Weights, best_limit
from airflow_provider_zeus.optimizer.trial import ProfileSample


class Profiler:
    """Asks for the limits from the highest down until each was measured for ``min_s`` and ``min_steps``.

    :param limits_w: limits to measure [W], highest first; empty: nothing to do.
    :param known: samples of earlier runs on this device; those of other batch sizes and limits are left out.
    """

    def __init__(
        self,
        limits_w: Sequence[float],
        known: Iterable[ProfileSample],
        *,
        batch_size: int,
        weights: Weights,
        min_s: float,
        min_steps: int,
    ) -> None:
        self.limits_w = tuple(limits_w)
        self.batch_size = batch_size
        self._weights, self._min_s, self._min_steps = weights, min_s, min_steps
        self._samples = [s for s in known if s.batch_size == batch_size and s.limit_w in self.limits_w]

    def add(self, sample: ProfileSample) -> None:
        """Take one measured window in."""
        self._samples.append(sample)

    def missing(self, limit_w: float) -> tuple[float, int]:
        """(seconds, steps) still to be measured at this limit."""
        at = [s for s in self._samples if s.limit_w == limit_w]
        return self._min_s - sum(s.time_s for s in at), self._min_steps - sum(s.steps for s in at)

    def next_limit(self) -> float | None:
        """The limit to measure now [W]; None once every limit is known."""
        return next((w for w in self.limits_w if max(self.missing(w)) > 1e-9), None)

    def best_w(self) -> float | None:
        """The limit [W] that minimises Eq. 7 over what is measured so far; None before the first sample."""
        best = best_limit(self._samples, self._weights)
        return best[0] if best else None

    def rates_at(self, limit_w: float) -> tuple[float, float] | None:
        """(J per sample, s per sample) at a limit; None where it was not measured."""
        at = [s for s in self._samples if s.limit_w == limit_w]
        n = sum(s.samples for s in at)
        return (sum(s.energy_j for s in at) / n, sum(s.time_s for s in at) / n) if n else None

    def cost_at(self, limit_w: float) -> float | None:
        """Cost per sample [J] of Eq. 7 at a limit; None where it was not measured."""
        rates = self.rates_at(limit_w)
        return self._weights.cost(*rates) if rates else None
