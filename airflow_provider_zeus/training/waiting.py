"""How long a training waits for its data, as its loaders' passes tell."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)

_MUCH = 0.3  # share of training time above which a power limit hardly matters
_LONG_S = 1.0  # of training, for a share to tell something


class Waiting:
    """Adds up passes over the data."""

    def __init__(self) -> None:
        self._waited_s = self._looped_s = 0.0
        self._said = False

    @property
    def share(self) -> float | None:
        """Of the training time, spent waiting for data; None where no pass told of any length."""
        return self._waited_s / self._looped_s if self._looped_s >= _LONG_S else None

    def add(self, waited_s: float, looped_s: float) -> None:
        """A pass is over, of which so many seconds were spent waiting; a hint, once, where that is much."""
        self._waited_s, self._looped_s = self._waited_s + waited_s, self._looped_s + looped_s
        share = self.share
        if share is not None and share > _MUCH and not self._said:
            self._said = True
            log.warning(
                "Zeus: %.0f %% of the training time is spent waiting for data: it is input-bound, and the power limit "
                "hardly matters. More workers in run.data_loader(..., num_workers=n) may help.",
                100 * share,
            )

    def say(self) -> None:
        """The attempt is over."""
        if self.share is not None:
            log.info("Zeus: %.0f %% of this attempt's training time was spent waiting for data.", 100 * self.share)
