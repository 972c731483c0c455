"""Epochs that the default batch size took, or would have taken, on the slice of each run. Pure; needs numpy, lazily.

The model is the policy's (``slice_filter.py``): log Epochs(slice, b) = curve(b) + difficulty(slice) + noise. What a
slice did to the batch size that ran on it, it would have done to the default. Where the default itself ran to its end,
its epochs are exact. All runs are drawn together, so that sums have an interval, too.

A slice may lie out of reach of the default where another size reached its target. How often is learned from all
complete runs; on a slice that every run missed the default is likely to have missed, too. Then it costs ``max_epochs``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.optimizer.slices import Slice, SliceRun, hopeless
from airflow_provider_zeus.reports.dataset import Dataset

if TYPE_CHECKING:
    import numpy as np

    from airflow_provider_zeus.optimizer.knowledge_gradient.gp import Vector
    from airflow_provider_zeus.optimizer.knowledge_gradient.slice_paths import Paths

DRAWS = 1000
MISS, REACH = 0.1, 1.9  # prior counts of complete runs that missed their target, and that reached it
BOTH_MISS, ONE_MISSES = 3.0, 1.0  # prior counts of slices that every size misses, of those that another one missed

RunId = tuple[str, ...]  # of a scheduled run of one task and map index


class DefaultEpochs(NamedTuple):
    """Draws for each run of a log, oldest first."""

    column: Mapping[RunId, int]
    draws: Vector  # (draw, run)
    measured: Sequence[bool]  # whether the default itself trained to an end
    luck: Vector  # (draw, run + 1) standard normal: of EpochCost in each run, and of its mean
    sizes: Mapping[int, int]  # batch size -> index in the curve
    paths: Paths

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


def run_id(trial: Trial) -> RunId:
    """The scheduled run that a trial belongs to; without one, its task instance."""
    o = trial.origin
    return (o.dag_id, o.run_id, o.task_id, str(o.map_index)) if o.run_id else (trial.key.ti_id,)


def default_epochs(log: Dataset, rng: np.random.Generator) -> DefaultEpochs | None:
    """Estimate the default's epochs in every run of the log, on any device; None where the log holds no run.

    :param log: its trials are to the job's target.
    """
    from airflow_provider_zeus.optimizer.knowledge_gradient.slice_paths import sample_paths

    runs, most = _runs(log.trials), float(log.job.max_epochs or 1)
    if not runs:
        return None
    slices = [Slice.of("", tuple(found), most) for found in runs.values()]
    default = log.job.default_batch_size
    ran = {r.batch_size for item in slices for r in item.runs}
    sizes = tuple(sorted({*log.job.batch_sizes, default, *ran}))
    skipped = hopeless(slices)
    jumps = {change.since: change.jump for change in log.belief().changes}
    paths = sample_paths(sizes, default, most, slices, skipped, jumps, rng, DRAWS)
    index = {b: i for i, b in enumerate(sizes)}
    draws = _predicted(paths, index[default], most, rng)
    _with_misses(draws, slices, skipped, most, rng)
    measured = [_with_own_run(draws[:, i], item, default, most) for i, item in enumerate(slices)]
    luck = rng.standard_normal((DRAWS, len(slices) + 1))
    return DefaultEpochs({run: i for i, run in enumerate(runs)}, draws, measured, luck, index, paths)


def _runs(trials: Sequence[Trial]) -> dict[RunId, list[SliceRun]]:
    """The trials that show Epochs, by scheduled run; a run without one has an empty list."""
    runs: dict[RunId, list[SliceRun]] = {}
    for trial in trials:
        found, reached = runs.setdefault(run_id(trial), []), trial.state is State.CONVERGED
        epochs = trial.observation.epochs
        if trial.state.conclusive and (epochs or not reached):
            found.append(SliceRun(trial.number, trial.batch_size, epochs or 0.0, reached))
    return runs


def _predicted(paths: Paths, default: int, most: float, rng: np.random.Generator) -> Vector:
    """Epochs (draw, run) of a run of the default that reaches its target, noise included."""
    import numpy as np

    noise = paths.noise_sd[:, None] * rng.standard_normal(paths.difficulty.shape)
    epochs: Vector = np.clip(np.exp(paths.curve[:, :, default] + paths.difficulty + noise), 1.0, most)
    return epochs


def _with_misses(
    draws: Vector, slices: Sequence[Slice], skipped: Sequence[bool], most: float, rng: np.random.Generator
) -> None:
    """Let the default miss its target in some draws."""
    import numpy as np

    complete = [r.reached for item in slices for r in item.runs if r.reached or r.epochs >= most]
    missed = len(complete) - sum(complete)
    if not missed:
        return
    anywhere = rng.beta(MISS + missed, REACH + sum(complete), len(draws))
    there = np.maximum(anywhere, rng.beta(BOTH_MISS, ONE_MISSES, len(draws)))
    p_miss = np.where(np.array(skipped), there[:, None], anywhere[:, None])
    draws[rng.random(draws.shape) < p_miss] = most


def _with_own_run(draws: Vector, item: Slice, default: int, most: float) -> bool:
    """Take in what the default itself did on a slice; whether it trained to an end there."""
    own = [r for r in item.runs if r.batch_size == default]
    ended = next((r for r in own if r.reached or r.epochs >= most), None)
    if ended is not None:
        draws[:] = ended.epochs
    elif own:
        draws[:] = draws.clip(max(r.epochs for r in own))
    return ended is not None
