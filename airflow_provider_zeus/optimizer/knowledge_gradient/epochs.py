"""What the runs of a job teach about Epochs(b), and what its default batch size would have needed. Needs numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from airflow_provider_zeus.optimizer.drift import Change
from airflow_provider_zeus.optimizer.knowledge_gradient.gp import LEVEL_SD, GaussianProcess, Vector, prior
from airflow_provider_zeus.optimizer.knowledge_gradient.slice_filter import (
    State,
    after_jump,
    initial,
    mixed,
    mixed_on_next_slice,
    next_slice,
    observe_run,
)
from airflow_provider_zeus.optimizer.slices import OUT_OF_REACH, Slice, hopeless, settled


class Account(NamedTuple):
    """Epochs that were trained, and those that the default would have needed on the same slices."""

    slices: int = 0  # one for each kept run
    trained: Mapping[int, float] = {}  # by batch size
    default_epochs: float = 0.0  # of the default: on slices where it ran, and before the last change of the data
    others: Mapping[int, float] = {}  # epochs of other sizes' kept runs, on slices where the default did not run

    def after(self, item: Slice, default: int, max_epochs: float) -> Account:
        """The account with one more slice. Each kept run there counts: the default would have run as often.

        Where no size reached its target, the default would have taken as long to miss it.
        """
        trained, known, others = dict(self.trained), self.default_epochs, dict(self.others)
        for run in item.runs:
            trained[run.batch_size] = trained.get(run.batch_size, 0.0) + run.epochs
        ended = [r for r in item.runs if r.ended(max_epochs)]
        own = [r.epochs for r in ended if r.batch_size == default]
        kept = [r for r in ended if r.reached] or ended[-1:]  # none where all were given up
        for run in kept:
            if run.reached and not own:
                others[run.batch_size] = others.get(run.batch_size, 0.0) + run.epochs
            else:
                known += own[0] if own and run.batch_size != default else run.epochs
        return Account(self.slices + len(kept), trained, known, others)

    def default_total(self, log_epochs: Mapping[int, float], default: int) -> float:
        """Epochs of the default on all slices. Eq. KG-12 of docs/knowledge-gradient.md.

        :param log_epochs: believed c(b). What a slice did to the size that ran, it would have done to the default.
        """
        ratios = (epochs * math.exp(log_epochs[default] - log_epochs[b]) for b, epochs in self.others.items())
        return self.default_epochs + math.fsum(ratios)


class Folded(NamedTuple):
    """State of the filter and account after so many slices."""

    slices: int
    state: State
    account: Account


class EpochsModel:
    """Posterior of log Epochs after the runs of a job.

    :param slices: runs by slice.
    :param changes: changes of the data.
    :param before: the model before the newest run, with the same changes; its result over older slices is used again.
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        default: int,
        max_epochs: float,
        slices: Sequence[Slice],
        changes: Sequence[Change],
        before: EpochsModel | None = None,
    ) -> None:
        self.sizes, self._default, self._max_epochs = sizes, default, max_epochs
        self._index = {b: i for i, b in enumerate(sizes)}
        mean, self._shape = prior(sizes, default)
        self._jumps = {change.since: change.jump for change in changes}
        start, end = Folded(0, initial(mean, LEVEL_SD**2 + self._shape), Account()), settled(slices)
        if before is not None and before.sizes == sizes:
            start = before.newest if before.newest.slices <= end else before.settled
        first = max(start.slices - OUT_OF_REACH, 0)
        skipped = dict(enumerate(hopeless(slices[first:]), first))
        self.settled: Folded = self._fold(start, slices, skipped, end)
        self.newest: Folded = self._fold(self.settled, slices, skipped, len(slices))
        self._mixed = mixed(self.newest.state)

    def _fold(self, start: Folded, slices: Sequence[Slice], skipped: Mapping[int, bool], end: int) -> Folded:
        begin, state, account = start
        for i in range(begin, end):
            state = next_slice(state) if i else state
            for run in slices[i].runs:
                if run.number in self._jumps:
                    total = account.default_total(self._log_epochs(mixed(state)[0]), self._default)
                    account = account._replace(default_epochs=total, others={})
                    state = after_jump(state, self._shape, self._jumps[run.number])
                if not skipped[i]:
                    state = observe_run(state, self._index[run.batch_size], run, self._max_epochs)
            account = account.after(slices[i], self._default, self._max_epochs)
        return Folded(max(begin, end), state, account)

    def _log_epochs(self, mean: Vector) -> dict[int, float]:
        return dict(zip(self.sizes, mean.tolist(), strict=False))  # the last entry is the difficulty

    def default_total(self) -> float:
        """Epochs that the default would have needed on all slices."""
        return self.newest.account.default_total(self._log_epochs(self._mixed[0]), self._default)

    def predicted(self, b: int, *, same_slice: bool) -> tuple[float, float]:
        """Mean and variance of log Epochs of a run of b on the newest slice, or on the next one."""
        i = self._index[b]
        if not same_slice:
            return float(self.gp.mean[i]), float(self.gp.run_variance[i])
        mean, cov, noise = self._mixed
        return float(mean[i] + mean[-1]), float(cov[i, i] + 2 * cov[i, -1] + cov[-1, -1]) + noise

    @cached_property
    def gp(self) -> GaussianProcess:
        """Posterior of a run on the next slice."""
        mean, cov, noise = mixed_on_next_slice(self.newest.state, self._mixed) if self.newest.slices else self._mixed
        curve, with_slice, default = cov[:-1, :-1], cov[:-1, -1], self._index[self._default]
        variance = curve.diagonal()
        return GaussianProcess(
            self.sizes,
            mean[:-1] + mean[-1],
            curve + with_slice[:, None],
            variance + 2 * with_slice + (cov[-1, -1] + noise),
            np.sqrt(np.maximum(variance + variance[default] - 2 * curve[default], 0.0)),
            noise,
        )
