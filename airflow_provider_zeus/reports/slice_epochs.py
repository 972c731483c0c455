"""Epochs that a batch size took, or would have taken, on the slice of each run. Pure; needs numpy, lazily.

The model is the policy's (``slice_filter.py``): log Epochs(slice, b) = curve(b) + difficulty(slice) + noise. What a
slice did to the batch size that ran on it, it would have done to another one. Where that one itself ran to its end, its
epochs are exact. All runs are drawn together, so that sums have an interval, too.

A slice may lie out of reach of one batch size where another one reached its target. How often is learned from the
complete runs on the slices that some size reached. On a slice that every run missed another size is likely to have
missed, too; of the other slices it says nothing. A miss costs what runs that missed take in this log: ``max_epochs``,
where no loop is left before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.optimizer.slices import Slice, SliceRun, hopeless, most_epochs
from airflow_provider_zeus.optimizer.starts import is_cold
from airflow_provider_zeus.reports.dataset import Dataset, RunId

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from airflow_provider_zeus.optimizer.knowledge_gradient.gp import Vector
    from airflow_provider_zeus.optimizer.knowledge_gradient.slice_paths import Paths

DRAWS = 1000


class SliceEpochs(NamedTuple):
    """Draws of the model for each run of a log, oldest first."""

    column: Mapping[RunId, int]
    slices: Sequence[Slice]
    paths: Paths
    sizes: Mapping[int, int]  # batch size -> index in the curve
    noise: Vector  # (draw, run) of log Epochs
    missed: NDArray[np.bool_]  # (draw, run) whether a batch size that did not run misses its target
    miss_epochs: float  # that it then takes
    luck: Vector  # (draw, run + 1) standard normal: of EpochCost in each run, and of its mean
    max_epochs: float

    def of(self, b: int) -> Vector:
        """Draws (draw, run) of the epochs of a batch size; one value in all draws where it ran to an end."""
        import numpy as np

        log_epochs = self.paths.curve[:, self.paths.stretch, self.sizes[b]] + self.paths.difficulty + self.noise
        found: Vector = np.where(self.missed, self.miss_epochs, np.exp(log_epochs).clip(1.0, self.max_epochs))
        own = {i: [r.epochs for r in item.runs if r.batch_size == b] for i, item in enumerate(self.slices)}
        least = {i: max(epochs) for i, epochs in own.items() if epochs}
        found[:, list(least)] = np.maximum(found[:, list(least)], list(least.values()))
        ended = {self.column[run]: epochs for run, epochs in self.ended(b).items()}
        found[:, list(ended)] = list(ended.values())
        return found

    def hardness(self) -> dict[RunId, float]:
        """How many times the epochs of a typical slice of today each run's slice took, by the mean of its logarithm.

        Where the data changed, it includes what that changed for the batch sizes of the run.
        """
        import numpy as np

        curve, found = self.paths.curve.mean(0), self.paths.difficulty.mean(0)
        for i, item in enumerate(self.slices):
            ran = [self.sizes[r.batch_size] for r in item.runs]
            if ran:
                found[i] += (curve[self.paths.stretch[i], ran] - curve[-1, ran]).mean()
        return dict(zip(self.column, np.exp(found).tolist(), strict=True))

    def ended(self, b: int) -> dict[RunId, float]:
        """Epochs of a batch size in the runs in which it trained to an end."""
        found = {}
        for run, i in self.column.items():
            own = (r for r in self.slices[i].runs if r.batch_size == b)
            if (end := next((r.epochs for r in own if r.ended(self.max_epochs)), None)) is not None:
                found[run] = end
        return found

    def on_newest_slice(self, b: int) -> Vector:
        """Draws of the median epochs of a batch size on the newest slice."""
        import numpy as np

        found: Vector = np.exp(self.paths.curve[:, -1, self.sizes[b]] + self.paths.difficulty[:, -1])
        return found


def estimates(draws: Vector) -> list[Estimate]:
    """Mean with 90 % interval of each column of draws. Means, since they add up and medians do not."""
    import numpy as np

    ordered, last = np.sort(draws, axis=0), len(draws) - 1
    low, high = ordered[round(0.05 * last)], ordered[round(0.95 * last)]
    value = np.where(low == high, low, draws.mean(0))
    return [Estimate(*found) for found in np.stack((value, low, high), 1).tolist()]


def estimate(draws: Vector) -> Estimate:
    """The same of the draws of one figure."""
    return estimates(draws[:, None])[0]


def slice_epochs(log: Dataset, rng: np.random.Generator) -> SliceEpochs | None:
    """Fit the model to the runs of a log, on any device; None where it holds none.

    :param log: its trials are to the job's target.
    """
    from airflow_provider_zeus.optimizer.knowledge_gradient.slice_paths import sample_paths

    runs, most = _runs(log.trials), float(log.job.max_epochs or 1)
    if not runs:
        return None
    slices, default = [Slice.of("", tuple(found), most) for found in runs.values()], log.job.default_batch_size
    sizes = tuple(sorted({*log.job.batch_sizes, default, *(r.batch_size for item in slices for r in item.runs)}))
    of_slices_with_runs = iter(hopeless([item for item in slices if item.runs]))  # as the policy sees them
    skipped = [bool(item.runs) and next(of_slices_with_runs) for item in slices]
    missed = [min(r.epochs, most) for item in slices for r in item.runs if r.missed(most)]
    jumps = {change.since: change.jump for change in log.belief().changes}
    paths = sample_paths(sizes, default, most, slices, skipped, jumps, rng, DRAWS)
    return SliceEpochs(
        column={run: i for i, run in enumerate(runs)},
        slices=slices,
        paths=paths,
        sizes={b: i for i, b in enumerate(sizes)},
        noise=paths.noise_sd[:, None] * rng.standard_normal(paths.difficulty.shape),
        missed=_misses(slices, skipped, most, rng),
        miss_epochs=sum(missed) / len(missed) if missed else most,
        luck=rng.standard_normal((DRAWS, len(slices) + 1)),
        max_epochs=most,
    )


def _runs(trials: Sequence[Trial]) -> dict[RunId, list[SliceRun]]:
    """The cold trials that show Epochs, by scheduled run; a run without one has an empty list."""
    runs: dict[RunId, list[SliceRun]] = {}
    for trial in trials:
        found, reached = runs.setdefault(trial.recurrence, []), trial.state is State.CONVERGED
        epochs = trial.observation.epochs
        if trial.state.conclusive and (epochs or not reached) and is_cold(trial):
            found.append(SliceRun(trial.number, trial.batch_size, epochs or 0.0, reached, most_epochs(trial)))
    return runs


def _misses(
    slices: Sequence[Slice], skipped: Sequence[bool], most: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draws (draw, run) of whether a batch size that did not run misses its target."""
    import numpy as np

    able = {r.batch_size for item in slices for r in item.runs if r.reached}  # what others miss is no slice's doing
    runs = (r for item in slices if not item.missed for r in item.runs if r.batch_size in able)
    complete = [r.reached for r in runs if r.reached or r.missed(most)]
    misses = len(complete) - sum(complete)
    miss, reach = 0.1, 1.9  # prior counts of complete runs that missed their target, and that reached it
    anywhere = rng.beta(miss + misses, reach + sum(complete), DRAWS) if misses else np.zeros(DRAWS)
    both_miss, one_misses = 3.0, 1.0  # prior counts of slices that every size misses, of those that another one missed
    there = np.maximum(anywhere, rng.beta(both_miss, one_misses, DRAWS))
    missed: NDArray[np.bool_] = rng.random((DRAWS, len(slices))) < np.where(skipped, there[:, None], anywhere[:, None])
    return missed
