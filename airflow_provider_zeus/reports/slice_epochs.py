"""Epochs that a batch size took, or would have taken, on the slice of each run. Pure; needs numpy.

A slice is as hard for a batch size as for the one that ran on it (``slice_paths.py``). If that size
itself ran to its end, its epochs are exact. All runs are drawn together, so that sums have an
interval, too.

Whether a size misses its target on a slice on which it did not run: a slice is out of reach of
every size with some probability, else of each size with one of its own. All of them are learned
from the complete runs; if none has ever missed, they are 0. A miss costs as much as the runs of
this log that missed: ``max_epochs``, if no loop is left before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.optimizer.slices import Slice, SliceRun, most_epochs
from airflow_provider_zeus.optimizer.starts import is_cold
from airflow_provider_zeus.reports.dataset import Dataset, RunId

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from airflow_provider_zeus.reports.slice_paths import Paths, Vector

DRAWS = 1000
# Prior counts, of slices out of reach of every size and of runs of each size that missed. The first
# is rarer: sizes that are tried may be too large for their target, whatever the data.
HARD = 0.03
MISSED = 0.1
PRIOR_RUNS = 2.0  # a prior of so few runs gives way to the first ones
SWEEPS = 30  # the chain has settled by then; more take time alone


class Misses(NamedTuple):
    """Draws of what misses its target, of the slices on which a size did not run to an end.

    ``hard_share``: (draw,); ``own_shares``: (draw, size).
    """

    # (draw, run): on some slices no size reaches the target, which says nothing against any
    hard: NDArray[np.bool_]
    # (draw, run): one number for all sizes, so that a difference of two is not chance
    uniform: Vector
    hard_share: Vector
    own_shares: Vector

    def of(self, i: int) -> NDArray[np.bool_]:
        """Whether size i misses its target (draw, run)."""
        return self.hard | (self.uniform < self.own_shares[:, i, None])

    def share(self, i: int) -> Vector:
        """The probability (draw,) that size i misses its target on the next slice."""
        share: Vector = self.hard_share + (1.0 - self.hard_share) * self.own_shares[:, i]
        return share


class SliceEpochs(NamedTuple):
    """Draws of the model for each run of a log, oldest first.

    ``sizes``: batch size -> index.
    """

    column: Mapping[RunId, int]
    slices: Sequence[Slice]
    sizes: Mapping[int, int]
    paths: Paths  # of logarithms, as the epochs of slices and sizes differ by factors
    noise: Vector  # (draw, run): the same size needs other epochs on the same slice
    misses: Misses
    miss_epochs: float  # as the runs that missed: a loop may be left before max_epochs
    # (draw, run + 1): EpochCost varies from run to run, and its mean is not known exactly
    cost_noise: Vector
    max_epochs: float

    def of(self, b: int) -> Vector:
        """Draws (draw, run) of the epochs of a batch size; all alike if it ran to an end."""
        import numpy as np

        i = self.sizes[b]
        reached = np.exp(self.paths.of(i) + self.noise).clip(1.0, self.max_epochs)
        epochs: Vector = np.where(self.misses.of(i), self.miss_epochs, reached)
        # A run that was given up is a lower bound, which no draw may be below.
        for column, run in self._runs_of(b):
            epochs[:, column] = np.maximum(epochs[:, column], run.epochs)
        for run_id, own_epochs in self.ended(b).items():
            epochs[:, self.column[run_id]] = own_epochs
        return epochs

    def _runs_of(self, b: int) -> Iterator[tuple[int, SliceRun]]:
        """The runs of a batch size, each with the column of its slice."""
        for column, item in enumerate(self.slices):
            for run in item.runs:
                if run.batch_size == b:
                    yield column, run

    def hardness(self) -> dict[RunId, float]:
        """How many times the epochs of a slice like the newest each run's slice took.

        For the batch sizes of the run, by the mean of the logarithm.
        """
        mean = self.paths.centre()
        factors = {}
        for (run_id, column), item in zip(self.column.items(), self.slices, strict=True):
            sizes = [self.sizes[run.batch_size] for run in item.runs]
            if not sizes:
                sizes = list(self.sizes.values())
            factor = math.exp((mean[column, sizes] - mean[-1, sizes]).mean())
            # A cost divided by less would be that of more epochs than a run may take.
            longest = max((run.epochs for run in item.runs), default=0.0)
            factors[run_id] = max(factor, longest / self.max_epochs)
        return factors

    def ended(self, b: int) -> dict[RunId, float]:
        """Epochs of a batch size in the runs in which it trained to an end."""
        run_ids = list(self.column)
        epochs: dict[RunId, float] = {}
        for column, run in self._runs_of(b):
            if run.ended(self.max_epochs):
                # a retry on the same slice was not needed: the first end stands
                epochs.setdefault(run_ids[column], run.epochs)
        return epochs

    def given_up(self, b: int) -> bool:
        """Whether a run of a batch size was given up, so that its epochs are a lower bound."""
        return any(not run.ended(self.max_epochs) for _, run in self._runs_of(b))

    def on_newest_slice(self, b: int) -> Vector:
        """Draws (draw,) of the expected epochs of a batch size on a slice like the newest one."""
        import numpy as np

        i = self.sizes[b]
        reached = np.exp(self.paths.of(i)[:, -1]).clip(1.0, self.max_epochs)
        miss = self.misses.share(i)
        epochs: Vector = (1.0 - miss) * reached + miss * self.miss_epochs
        return epochs


def estimates(draws: Vector) -> list[Estimate]:
    """Mean with 90 % interval of each column of draws: means add up, medians do not."""
    import numpy as np

    ordered = np.sort(draws, axis=0)
    last = len(draws) - 1
    low = ordered[round(0.05 * last)]
    high = ordered[round(0.95 * last)]
    value = np.where(low == high, low, draws.mean(0))
    # Rare misses that are dear put the mean beyond both quantiles: its sign alone is not sure.
    ends = np.minimum(low, value), np.maximum(high, value)
    return [Estimate(*figures) for figures in np.stack((value, *ends), 1).tolist()]


def estimate(draws: Vector) -> Estimate:
    """The same of the draws of one figure."""
    return estimates(draws[:, None])[0]


def slice_epochs(log: Dataset, rng: np.random.Generator) -> SliceEpochs | None:
    """Fit the model to the runs of a log, on any device; None if it holds none.

    :param log: its trials are to the job's target.
    """
    from airflow_provider_zeus.reports.slice_paths import sample_paths

    of_runs = _runs(log.trials)
    if not of_runs:
        return None
    most = float(log.job.max_epochs or 1)
    default = log.job.default_batch_size
    slices = [Slice.of("", tuple(runs), most) for runs in of_runs.values()]
    ran = [run for item in slices for run in item.runs]
    # A size whose runs all went on from an earlier model is there too: it may be the one that runs.
    reached = {trial.batch_size for trial in log.trials if trial.state is State.CONVERGED}
    sizes = tuple(sorted({default} | {run.batch_size for run in ran} | reached))
    index = {b: i for i, b in enumerate(sizes)}
    missed = [min(run.epochs, most) for run in ran if run.missed(most)]
    miss_epochs = most
    if missed:
        miss_epochs = sum(missed) / len(missed)
    paths = sample_paths(sizes, default, most, slices, rng, draws=DRAWS)
    return SliceEpochs(
        column={run_id: i for i, run_id in enumerate(of_runs)},
        slices=slices,
        sizes=index,
        paths=paths,
        noise=paths.noise_sd[:, None] * rng.standard_normal((DRAWS, len(slices))),
        misses=_misses(slices, index, most, rng),
        miss_epochs=miss_epochs,
        cost_noise=rng.standard_normal((DRAWS, len(slices) + 1)),
        max_epochs=most,
    )


def _runs(trials: Sequence[Trial]) -> dict[RunId, list[SliceRun]]:
    """The cold trials that show Epochs, by scheduled run; a run without one has an empty list."""
    of_runs: dict[RunId, list[SliceRun]] = {}
    for trial in trials:
        runs = of_runs.setdefault(trial.recurrence, [])
        if not trial.state.conclusive or not is_cold(trial):
            continue
        reached = trial.state is State.CONVERGED
        epochs = trial.observation.epochs
        if reached and not epochs:
            # Nothing counted its epochs, and 0 of them would teach that it needs none.
            continue
        runs.append(
            SliceRun(
                trial.number, trial.batch_size, epochs or 0.0, reached, most=most_epochs(trial)
            )
        )
    return of_runs


def _misses(
    slices: Sequence[Slice], index: Mapping[int, int], most: float, rng: np.random.Generator
) -> Misses:
    """Draws of what missed and misses its target, given the complete runs: Gibbs sampling."""
    import numpy as np

    reached = np.zeros((len(slices), len(index)))
    missed = np.zeros_like(reached)
    for column, item in enumerate(slices):
        for run in item.runs:
            reached[column, index[run.batch_size]] += run.reached
            missed[column, index[run.batch_size]] += run.missed(most)
    hard = np.zeros((DRAWS, len(slices)), dtype=bool)
    hard_share = np.zeros(DRAWS)
    own_shares = np.zeros((DRAWS, len(index)))
    if not missed.any():
        # a prior alone would have every default miss now and then, at max_epochs each time
        return Misses(hard, np.ones(hard.shape), hard_share, own_shares)
    complete = (reached + missed).any(1)
    doubtful = missed.any(1) & ~reached.any(1)  # no size reached it: it may be out of reach of all
    on_doubtful = missed[doubtful]
    surely_own = missed[~doubtful].sum(0)
    is_hard = np.zeros((DRAWS, len(on_doubtful)), dtype=bool)
    for _ in range(SWEEPS):
        hards = is_hard.sum(1)
        hard_share = rng.beta(HARD + hards, PRIOR_RUNS - HARD + complete.sum() - hards)
        own = surely_own + ~is_hard @ on_doubtful
        own_shares = rng.beta(MISSED + own, PRIOR_RUNS - MISSED + reached.sum(0))
        # A draw of so few counts may be 0, and 0 misses times its logarithm would be NaN.
        by_themselves = np.exp(np.log(np.maximum(own_shares, 1e-300)) @ on_doubtful.T)
        by_slice = hard_share[:, None]
        is_hard = rng.random(is_hard.shape) < by_slice / (by_slice + (1 - by_slice) * by_themselves)
    hard[:, doubtful] = is_hard
    # Without a complete run a slice is like any other: only the share of hard ones is known.
    unknown = hard[:, ~complete]
    hard[:, ~complete] = rng.random(unknown.shape) < hard_share[:, None]
    return Misses(hard, rng.random(hard.shape), hard_share, own_shares)
