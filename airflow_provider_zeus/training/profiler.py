"""What is known of one profile, piece by piece; :mod:`.search` decides what follows, :mod:`.sweep` does it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_zeus.optimizer.cost import Weights
from airflow_provider_zeus.optimizer.objective import Rate
from airflow_provider_zeus.optimizer.trial import ProfileSample, since_anew
from airflow_provider_zeus.training.search import Search, Seen, Step, seen_in


class Profiler:
    """The profile of one batch size on one device. Pieces of one limit add up, whichever run measured them.

    :param limits_w: limits that may be measured [W]; empty: nothing to do.
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
        self.batch_size, self.weights = batch_size, weights
        self.min_s, self.min_steps = min_s, min_steps
        self.limits_w = tuple(limits_w)
        self._search = Search(self.limits_w, weights, min_s, min_steps)
        self._seen = seen_in(s for s in since_anew(known) if s.batch_size == batch_size and s.limit_w in self.limits_w)
        self._step = self._next_step()

    def add(self, piece: ProfileSample) -> None:
        """Take one measured piece in."""
        self._seen.setdefault(piece.limit_w, Seen()).add(piece)
        self._step = self._next_step()

    def forget(self) -> ProfileSample:
        """Begin anew; what tells so to whoever reads the samples later."""
        self._seen = {}
        self._step = self._next_step()
        return ProfileSample.anew(self.batch_size)

    @property
    def next_limit(self) -> float | None:
        """The limit to measure now [W]; None once the profile is complete."""
        return self._step.limit_w if self._step else None

    @property
    def walked(self) -> bool:
        """Whether every limit that had to be is measured, and at most the winner is in doubt."""
        return self._step is None or self._step.confirming

    @property
    def best_w(self) -> float | None:
        """The best limit of what is measured so far [W]; None before the first piece."""
        return self._search.best_w(self._seen)

    def rates_at(self, limit_w: float | None) -> Rate | None:
        """(J per sample, s per sample) at a limit; None where it was not measured."""
        one = self._seen.get(limit_w) if limit_w is not None else None
        return one.rate if one and one.samples else None

    def cost_at(self, limit_w: float | None) -> float | None:
        """Cost per sample [J] of Eq. 2 at a limit; None where it was not measured."""
        rates = self.rates_at(limit_w)
        return self.weights.cost(*rates) if rates else None

    def _next_step(self) -> Step | None:
        return self._search.next_step(self._seen) if self.limits_w else None
