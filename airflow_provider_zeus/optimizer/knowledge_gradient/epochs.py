"""Epochs(b) as the runs of a job teach it, and the epochs that the default would have needed.

Needs numpy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from airflow_provider_zeus.optimizer.knowledge_gradient.gp import (
    LEVEL_SD,
    P_FAIL,
    GaussianProcess,
    Vector,
    by_size,
    prior,
)
from airflow_provider_zeus.optimizer.knowledge_gradient.slice_filter import (
    HAZARD,
    UNCHANGED,
    State,
    initial,
    last_change,
    mixed,
    observe_slice,
    still_open,
    those,
    with_change,
)
from airflow_provider_zeus.optimizer.slices import Change, Slice

WANDER_SD = 0.1  # slices of data differ in how hard they are
# x the variance of a cold run: a warm start ends at one epoch, or once in a while after thirty
START_NOISE = 6.0
START_WALK_SD = 0.2  # an earlier model helps more or less as the data move


class Account(NamedTuple):
    """Epochs that were trained, and those that the default would have needed on the same slices.

    ``others``: of kept runs of other sizes, on slices on which the default did not run.
    """

    trained: Mapping[int, float] = {}
    # Known, or settled by a change of the data: no later belief moves them (KG-15).
    default_epochs: float = 0.0
    # Kept apart, since what the default would have needed there moves with the belief.
    others: Mapping[int, float] = {}

    def after(self, item: Slice, default: int, max_epochs: float) -> Account:
        """The account with one more slice.

        Each kept run there counts: the default would have run as often.

        If no size reached its target, the default would have taken as long to miss it. If it did
        miss it, the slice counts for nothing.
        """
        of_default = [run for run in item.runs if run.batch_size == default]
        if item.missed and any(run.missed(max_epochs) for run in of_default):
            return self
        trained = dict(self.trained)
        default_epochs = self.default_epochs
        others = dict(self.others)
        for run in item.runs:
            trained[run.batch_size] = trained.get(run.batch_size, 0.0) + run.epochs
        own = [run.epochs for run in of_default if run.ended(max_epochs)]
        kept = [run for run in item.runs if run.reached]
        if not kept:
            # A slice of the list, since no run is left if all were given up.
            kept = [run for run in item.runs if run.ended(max_epochs)][-1:]
        for run in kept:
            if own and run.batch_size != default:
                default_epochs += own[0]
            elif run.reached and not own:
                others[run.batch_size] = others.get(run.batch_size, 0.0) + run.epochs
            else:
                default_epochs += run.epochs
        return Account(trained, default_epochs, others)

    def default_total(self, sizes: Sequence[int], mean: Vector, default: int) -> float:
        """Epochs of the default on all slices. Eq. KG-15 of docs/knowledge-gradient.md.

        :param mean: believed c(b). What a slice did to the size that ran,
            it would have done to the default.
        """
        log_epochs = by_size(sizes, mean)
        ratios = (
            epochs * math.exp(log_epochs[default] - log_epochs[b])
            for b, epochs in self.others.items()
        )
        return self.default_epochs + math.fsum(ratios)


class Stretch(NamedTuple):
    """The slices since a possible change of the data, and the belief before it."""

    since: int = UNCHANGED
    curve: Vector = np.zeros(0)
    account: Account = Account()
    earlier: tuple[Change, ...] = ()
    change: Change | None = None

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes up to its first slice."""
        return self.earlier if self.change is None else (*self.earlier, self.change)


class Folded(NamedTuple):
    """State of the filter and account after so many slices, with the changes that they show."""

    slices: int
    state: State
    account: Account
    # a change shows only runs later: until then both may hold
    stretches: tuple[Stretch, ...] = (Stretch(),)
    believed: int = UNCHANGED
    reached: frozenset[int] = frozenset()
    missed: int = 0  # a slice that no size can do says nothing against any

    @property
    def stretch(self) -> Stretch:
        """The stretch that counts."""
        return next(stretch for stretch in self.stretches if stretch.since == self.believed)

    @property
    def believed_state(self) -> State:
        """The state by its hypothesis."""
        return those(self.state, self.state.since == self.believed)

    @property
    def out_of_reach(self) -> float:
        """Prior probability that the next slice is out of reach of all sizes."""
        return (2.0 * P_FAIL + self.missed) / (2.0 + self.slices)


class EpochsModel:
    """Posterior of log Epochs after the runs of a job.

    :param slices: runs by slice.
    :param before: the model before the newest runs; its result over older slices is used again.
    :param level: of a start that is not cold: mean and sd of its level in advance. Its sizes then
        have no slope in advance, a run of one epoch is an upper bound, runs vary more, and the
        level walks in place of changes.
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
        self.sizes = sizes
        self._default = default
        self._max_epochs = max_epochs
        self._index = {b: i for i, b in enumerate(sizes)}
        mean, self._shape = prior(sizes, default)
        level_sd = LEVEL_SD
        if level is not None:
            mean = np.full(len(sizes), level[0])
            level_sd = level[1]
        first = initial(mean, level_sd**2 + self._shape)
        self._wander = WANDER_SD**2
        if self._of_start:
            self._wander = START_WALK_SD**2
            noise = first.noise * START_NOISE
            first = first._replace(noise=noise, shared=np.zeros_like(noise))
        start = Folded(0, first, Account())
        end = max(len(slices) - 1, 0)  # a further run may join the newest slice
        self._slices = slices
        self._last = slices[-1] if slices else None
        if before is not None and before.sizes == sizes:
            nothing_joined = before.newest.slices == end > 0 and slices[end - 1] == before._last
            start = before.settled
            if nothing_joined:
                start = before.newest
        self.settled: Folded = self._fold(start, end)
        self.newest: Folded = self._fold(self.settled, len(slices))
        self._mixed = mixed(self.newest.believed_state)

    def _fold(self, folded: Folded, end: int) -> Folded:
        """The result after the slices up to ``end``."""
        for i in range(folded.slices, end):
            folded = self._with_slice(folded, i)
        return folded

    def _with_slice(self, folded: Folded, i: int) -> Folded:
        """The result after one more slice. Eq. KG-5 of docs/knowledge-gradient.md."""
        item = self._slices[i]
        state = folded.state._replace(cov=folded.state.cov + self._wander)
        stretches = folded.stretches
        # a size that runs for the first time may be better or worse by itself
        ran_before = any(run.batch_size in folded.reached for run in item.runs)
        # what the first slice alone has shown may be an accident
        is_second = folded.slices - folded.missed == 1
        if (ran_before or is_second) and not self._of_start:
            curve = folded.believed_state.curve
            begun = Stretch(i, curve, self._account(folded), earlier=folded.stretch.changes)
            stretches = (*stretches, begun)
            hazard = P_FAIL if is_second else HAZARD
            state = with_change(state, self._shape, folded.believed, i, hazard)
        out_of_reach = folded.out_of_reach
        reached = folded.reached
        if self._of_start:
            # a miss is the start's own doing, and a size that fails is known from cold runs
            out_of_reach = 0.0
            reached = frozenset(self.sizes)
        state = observe_slice(
            state,
            self._index,
            item,
            max_epochs=self._max_epochs,
            out_of_reach=out_of_reach,
            reached=reached,
            one_is_most=self._of_start,
        )
        folded = folded._replace(
            slices=i + 1,
            state=state,
            account=folded.account.after(item, self._default, self._max_epochs),
            stretches=stretches,
            reached=folded.reached | {run.batch_size for run in item.runs if run.reached},
            missed=folded.missed + item.missed,
        )
        if self._of_start:
            return folded
        return self._judged(folded)

    def _judged(self, folded: Folded) -> Folded:
        """The result with the stretch that counts now, without those that cannot win any more."""
        newest = folded.slices - 1
        folded = folded._replace(believed=last_change(folded.state, newest))
        if folded.stretch.change is None and folded.believed != UNCHANGED:
            folded = self._with_named_change(folded)
        state = still_open(folded.state, folded.believed, newest)
        # The oldest stretch goes, so the account has to hold what was settled before the next one.
        if state.first != folded.stretches[0].since:
            account = self._account(folded._replace(believed=state.first))
            folded = folded._replace(account=account)
        alive = {int(since) for since in state.since}
        stretches = tuple(stretch for stretch in folded.stretches if stretch.since in alive)
        return folded._replace(state=state, stretches=stretches)

    def _with_named_change(self, folded: Folded) -> Folded:
        """The result with the change that counts: how much more the sizes that ran since need."""
        stretch = folded.stretch
        curve = folded.believed_state.curve
        runs = [run for item in self._slices[stretch.since : folded.slices] for run in item.runs]
        at = [self._index[run.batch_size] for run in runs]
        jump = float((curve[at] - stretch.curve[at]).mean())
        change = Change(runs[0].number, jump, tuple(run.number for run in runs))
        stretches = [
            other._replace(change=change) if other is stretch else other
            for other in folded.stretches
        ]
        return folded._replace(stretches=tuple(stretches))

    def _account(self, folded: Folded) -> Account:
        """The account by the stretch that counts.

        Over the slices before it, the default's epochs stay as they were believed then.
        """
        stretch = folded.stretch
        if stretch is folded.stretches[0]:
            return folded.account
        before = stretch.account
        total = before.default_total(self.sizes, stretch.curve, self._default)
        account = before._replace(default_epochs=total, others={})
        for item in self._slices[stretch.since : folded.slices]:
            account = account.after(item, self._default, self._max_epochs)
        return account

    @cached_property
    def account(self) -> Account:
        """Epochs that were trained, and those that the default would have needed."""
        return self._account(self.newest)

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes of the data that count now."""
        return self.newest.stretch.changes

    def default_total(self) -> float:
        """Epochs that the default would have needed on all slices."""
        return self.account.default_total(self.sizes, self._mixed[0], self._default)

    @cached_property
    def gp(self) -> GaussianProcess:
        """Posterior of a run on the next slice."""
        mean, cov, noise = self._mixed
        return GaussianProcess(
            sizes=self.sizes,
            mean=mean,
            cov=cov,
            run_variance=cov.diagonal() + noise,
            noise=noise,
        )
