"""What the runs of a job teach about Epochs(b), and what its default batch size would have needed. Needs numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from airflow_provider_zeus.optimizer.knowledge_gradient.gp import LEVEL_SD, GaussianProcess, Vector, prior
from airflow_provider_zeus.optimizer.knowledge_gradient.slice_filter import (
    KEPT,
    State,
    after_change,
    found_change,
    initial,
    mixed,
    mixed_on_next_slice,
    next_slice,
    observe_run,
    unchanged,
    with_change,
)
from airflow_provider_zeus.optimizer.slices import OUT_OF_REACH, Change, Slice, hopeless, settled

START_NOISE = 6.0  # x the variance of a cold run: a warm start ends at one epoch, or once in a while after thirty
START_WALK_SD = 0.2  # by how much the level of a start changes from one of its runs to the next


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

    def default_total(self, sizes: Sequence[int], mean: Vector, default: int) -> float:
        """Epochs of the default on all slices. Eq. KG-12 of docs/knowledge-gradient.md.

        :param mean: believed c(b), and the difficulty. What a slice did to the size that ran, it would have done to
            the default.
        """
        log_epochs = dict(zip(sizes, mean.tolist(), strict=False))  # the last entry is the difficulty
        ratios = (epochs * math.exp(log_epochs[default] - log_epochs[b]) for b, epochs in self.others.items())
        return self.default_epochs + math.fsum(ratios)


class Before(NamedTuple):
    """State of the filter and account before a slice before which the data may have changed."""

    slice: int
    state: State
    account: Account


class Folded(NamedTuple):
    """State of the filter and account after so many slices, with the changes that they show."""

    slices: int
    state: State
    account: Account
    changes: tuple[Change, ...] = ()
    before: tuple[Before, ...] = ()  # the newest slices since the last change
    reached: frozenset[int] = frozenset()  # batch sizes that reached the target


class EpochsModel:
    """Posterior of log Epochs after the runs of a job.

    :param slices: runs by slice.
    :param before: the model before the newest runs; its result over older slices is used again.
    :param level: of a start that is not cold: mean and sd of its level in advance. Its sizes then have no slope in
        advance, a run of one epoch is an upper bound, runs vary more, and the level walks in place of changes.
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        default: int,
        max_epochs: float,
        slices: Sequence[Slice],
        before: EpochsModel | None = None,
        level: tuple[float, float] | None = None,
    ) -> None:
        self._of_start = level is not None
        self.sizes, self._default, self._max_epochs = sizes, default, max_epochs
        self._index = {b: i for i, b in enumerate(sizes)}
        mean, self._shape = prior(sizes, default)
        level_sd = LEVEL_SD
        if level is not None:
            mean, level_sd = np.full(len(sizes), level[0]), level[1]
        first = initial(mean, level_sd**2 + self._shape)
        if self._of_start:
            first = first._replace(noise=first.noise * START_NOISE)
        start, end = Folded(0, first, Account()), settled(slices)
        older = before if before is not None and before.sizes == sizes else None
        start = older.settled if older else start
        since = max(start.slices - OUT_OF_REACH, 0)
        self._skipped = skipped = dict(enumerate(hopeless(slices[since:]), since))
        self._last = slices[-1] if slices else None
        if older is not None and older._holds(slices, skipped, end):
            start = older.newest
        self.settled: Folded = self._fold(start, slices, skipped, end)
        self.newest: Folded = self._fold(self.settled, slices, skipped, len(slices))
        self._state = unchanged(self.newest.state)  # a change counts once it is likelier than not
        self._mixed = mixed(self._state)

    def _holds(self, slices: Sequence[Slice], skipped: Mapping[int, bool], end: int) -> bool:
        """Whether what was folded of all slices then is what these show up to ``end``: nothing came to them since."""
        n = self.newest.slices
        open_then = range(self.settled.slices, n)
        return n == end > 0 and slices[n - 1] == self._last and all(skipped[i] == self._skipped[i] for i in open_then)

    def _fold(self, start: Folded, slices: Sequence[Slice], skipped: Mapping[int, bool], end: int) -> Folded:
        begin, state, account, changes, before, known = start
        for i in range(begin, end):
            state = next_slice(state) if i else state
            if self._of_start:
                state = after_change(state, np.array(START_WALK_SD**2))
            elif not skipped[i] and any(run.batch_size in known for run in slices[i].runs):
                # a size that runs for the first time may be better or worse by itself
                before = (*before, Before(i, state, account))[-KEPT:]
                state = with_change(state, self._shape, i)
            for run in () if skipped[i] else slices[i].runs:
                at = self._index[run.batch_size]
                state = observe_run(state, at, run, self._max_epochs, one_is_most=self._of_start)
            known |= {run.batch_size for run in slices[i].runs if run.reached}
            account = account.after(slices[i], self._default, self._max_epochs)
            found = None if skipped[i] or self._of_start else found_change(state, i)
            if found is not None:
                since, state = found
                was = next(known for known in before if known.slice == since)
                account = self._account_since(was, slices[since : i + 1])
                changes, before = (*changes, self._change(unchanged(was.state), state, slices[since : i + 1])), ()
        return Folded(max(begin, end), state, account, changes, before, known)

    def _account_since(self, was: Before, after: Sequence[Slice]) -> Account:
        """The account in which what the default would have needed before a change is fixed as it was believed then."""
        total = was.account.default_total(self.sizes, mixed(unchanged(was.state))[0], self._default)
        account = was.account._replace(default_epochs=total, others={})
        for item in after:
            account = account.after(item, self._default, self._max_epochs)
        return account

    def _change(self, was: State, now: State, after: Sequence[Slice]) -> Change:
        """The change between two states: by how much the sizes that ran after it need more epochs."""
        runs = [run for item in after for run in item.runs]
        at = [self._index[run.batch_size] for run in runs]
        jump = float((mixed(now)[0][at] - mixed(was)[0][at]).mean())
        return Change(runs[0].number, jump, tuple(run.number for run in runs))

    def default_total(self) -> float:
        """Epochs that the default would have needed on all slices."""
        return self.newest.account.default_total(self.sizes, self._mixed[0], self._default)

    @cached_property
    def gp(self) -> GaussianProcess:
        """Posterior of a run on the next slice."""
        mean, cov, noise = mixed_on_next_slice(self._state, self._mixed) if self.newest.slices else self._mixed
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
