"""Joint draws of log Epochs of every batch size on every slice. Needs numpy, lazily.

The need of a size is a walk: from one slice to the next all sizes move together (the data got
harder), and each size moves a little by itself (old runs tell less and less of it)::

    x(0) ~ N(0, curve)
    x(t + 1) = x(t) + N(0, step^2 + own^2 shape)
    log Epochs(t, b) = x(t, b) + noise

A Kalman filter goes through the slices, and draws are taken backwards, each slice given the next
(forward filtering, backward sampling: Carter & Kohn, *Biometrika* 81(3), 1994). The size of the
noise and of the two steps, and whether one of the default's first runs was wild, are not known: the
filter goes once for each of a grid, and they are weighed by how well they predicted the runs.

The prior is not the policy's: how a policy explores may change without a word about savings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from airflow_provider_zeus.optimizer.knowledge_gradient.gp import mills_ratio
from airflow_provider_zeus.optimizer.slices import Slice, SliceRun

Vector = NDArray[np.float64]

LEVEL_SD = 3.0  # what a job needs is not known before it ran
SLOPE = 0.3  # larger batches make fewer, better steps: more epochs
TREND_SD = 0.18
# No trend fits all sizes: the rest bends away from it (sd), alike within so many octaves.
SMOOTH_SD = 0.25
LENGTH_OCTAVES = 1.85
OWN_SD = 0.05  # neighbouring sizes train alike
# How far these scatter differs from job to job, so each sd is as likely before the first run:
# that of one run, of a step of all sizes, of a step of one size.
NOISE_SDS = (0.08, 0.15, 0.3)
STEP_SDS = (0.0, 0.05, 0.2)
OWN_SDS = (0.03, 0.1)
# The first runs of the default carry all that is compared, so one of them that is unlike the others
# must not decide it. Of the first WILD_RUNS one may be wild, each with the probability WILD_SHARE:
# its noise is WILD times that of another run.
WILD_RUNS = 2
WILD_SHARE = 0.1
WILD = 5.0
UNLIKELY = -4.0  # such a member of the grid would add time and no draw
WIDEST = 3.0  # a tail that is wider would promise savings that no run can show
_JITTER = 1e-10  # rounding may leave a covariance without a root


class Paths(NamedTuple):
    """Draws of log Epochs on each slice, as walks, and the noise of one run.

    ``walks``: (slice, draw, size). ``stretch``: (draw,), by which a walk above the centre is drawn
    away from it. ``noise_sd``: (draw,).
    """

    walks: NDArray[np.float32]  # half the memory of float64: it grows with slices, draws and sizes
    stretch: Vector  # needs have a long tail upwards, which a walk alone lacks
    noise_sd: Vector

    def centre(self) -> Vector:
        """Mean log Epochs (slice, size)."""
        mean: Vector = self.walks.mean(1, dtype=float)
        return mean

    def of(self, i: int) -> Vector:
        """Draws (draw, slice) of size i, stretched above the centre alone.

        Few runs show the usual need of a size, seldom its long runs and its misses. So above the
        centre the tail is that of a t distribution, with a degree of freedom for each run of the
        default that reached its target.
        """
        walks = self.walks[:, :, i].T.astype(float)
        centre = walks.mean(0)
        off = walks - centre
        above = off.mean(1) > 0.0
        off[above] *= self.stretch[above, None]
        draws: Vector = centre + off
        return draws


class _Filter(NamedTuple):
    """The walk after a slice, for each member of the grid.

    ``mean``: (member, size); ``cov``: (member, size, size).
    """

    mean: Vector
    cov: Vector
    log_weight: Vector  # the likelihood of many runs is too small for a float


class _Grid(NamedTuple):
    """Its members.

    :param noise: (member,) variance of a run.
    :param wild: (member,) the run of the default that is wild, from 1; 0: none.
    :param step: (member, size, size) covariance of a step.
    """

    noise: Vector
    wild: NDArray[np.int_]  # one odd run of the default must not move all others
    log_prior: Vector
    step: Vector


def prior(sizes: tuple[int, ...], default: int) -> tuple[Vector, Vector]:
    """Mean (size,) and covariance (size, size) of the curve, without its level.

    :param sizes: ascending.
    """
    octaves = np.log2(np.asarray(sizes, float) / default)
    distance = (octaves[:, None] - octaves) / LENGTH_OCTAVES
    smooth = SMOOTH_SD**2 * np.exp(-0.5 * distance**2)
    own = OWN_SD**2 * np.eye(len(sizes))
    shape: Vector = TREND_SD**2 * np.outer(octaves, octaves) + smooth + own
    return SLOPE * math.log(2.0) * np.maximum(octaves, 0.0), shape


def sample_paths(
    sizes: tuple[int, ...],
    default: int,
    max_epochs: float,
    slices: Sequence[Slice],
    rng: np.random.Generator,
    draws: int,
) -> Paths:
    """Draw from the posterior after all slices (at least one).

    :param sizes: ascending, the default among them.
    """
    mean, shape = prior(sizes, default)
    members = np.array(list(product(NOISE_SDS, STEP_SDS, OWN_SDS, range(WILD_RUNS + 1))))
    wild = members[:, 3].astype(int)
    variances = members[:, :3] ** 2
    own_step = shape / SMOOTH_SD**2
    grid = _Grid(
        noise=variances[:, 0],
        step=variances[:, 1, None, None] + variances[:, 2, None, None] * own_step,
        wild=wild,
        log_prior=np.log(np.where(wild > 0, WILD_SHARE, 1.0 - WILD_RUNS * WILD_SHARE)),
    )
    start = _Filter(
        mean=np.tile(mean, (len(members), 1)),
        cov=np.tile(LEVEL_SD**2 + shape, (len(members), 1, 1)),
        log_weight=grid.log_prior,
    )
    states = _filtered(sizes, default, max_epochs, slices, grid, state=start)
    log_weight = states[-1].log_weight - states[-1].log_weight.max()
    weight = np.exp(log_weight) * (log_weight > UNLIKELY)
    counts = rng.multinomial(draws, weight / weight.sum())
    runs = [run for item in slices for run in item.runs]
    of_default = [run.reached for run in runs if run.batch_size == default]
    degrees_of_freedom = max(sum(of_default), 1)
    return Paths(
        walks=_backward(states, grid.step, counts, rng),
        stretch=np.sqrt(degrees_of_freedom / rng.chisquare(degrees_of_freedom, draws)).clip(
            None, WIDEST
        ),
        noise_sd=np.repeat(np.sqrt(grid.noise), counts),
    )


def _filtered(
    sizes: tuple[int, ...],
    default: int,
    max_epochs: float,
    slices: Sequence[Slice],
    grid: _Grid,
    state: _Filter,
) -> list[_Filter]:
    """The walk after each slice."""
    index = {b: i for i, b in enumerate(sizes)}
    of_default = 0
    states = []
    for t, item in enumerate(slices):
        if t:
            state = state._replace(cov=state.cov + grid.step)
        for run in item.runs:
            if run.missed(max_epochs) or run.epochs <= 0:
                # of a run that missed, what it needs is not known
                continue
            noise = grid.noise
            if run.batch_size == default:
                of_default += 1
                noise = np.where(grid.wild == of_default, WILD**2 * noise, noise)
            state = _after_run(state, index[run.batch_size], run, noise)
        states.append(state)
    return states


def _after_run(state: _Filter, i: int, run: SliceRun, noise: Vector) -> _Filter:
    """The walk given a run of size i that did not miss. One that was given up needs more epochs."""
    log_epochs = math.log(max(run.epochs, 0.5))
    column = state.cov[:, :, i]
    off = log_epochs - state.mean[:, i]
    if run.reached:
        rounding = math.exp(-2.0 * log_epochs) / 12.0  # epochs are counted whole
        variance = column[:, i] + noise + rounding
        share = np.ones(len(noise))
        log_likelihood = -0.5 * (off * off / variance + np.log(variance))
    else:
        # It only lies above: mean and variance are those of a normal cut off at z (Eq. KG-9).
        variance = column[:, i] + noise
        z = off / np.sqrt(variance)
        ratio = np.array([mills_ratio(v) for v in z.tolist()])
        off = np.sqrt(variance) * ratio
        share = ratio * (ratio - z)
        log_likelihood = np.log([max(0.5 * math.erfc(v / 2**0.5), 1e-300) for v in z.tolist()])
    gain = column / variance[:, None]
    return _Filter(
        state.mean + gain * off[:, None],
        state.cov - share[:, None, None] * gain[:, :, None] * column[:, None, :],
        state.log_weight + log_likelihood,
    )


def _backward(
    states: Sequence[_Filter], step: Vector, counts: NDArray[np.intp], rng: np.random.Generator
) -> NDArray[np.float32]:
    """Draws (slice, draw, size). ``counts``: how many each member of the grid has."""
    shape = (len(states), int(counts.sum()), states[0].mean.shape[1])
    walks = rng.standard_normal(shape, dtype=np.float32)
    first = 0
    for member in np.flatnonzero(counts):
        own = walks[:, first : first + counts[member]]
        first += counts[member]
        mean = np.stack([state.mean[member] for state in states])
        cov = np.stack([state.cov[member] for state in states])
        # Given the next slice, the mean of x(t) is mean + gain (x(t + 1) - mean), and its variance
        # cov - gain cov = gain step: as a product it loses no digits to a difference.
        gain = np.swapaxes(np.linalg.solve(cov + step[member], cov), -1, -2)
        variance = gain @ step[member]
        # No slice follows the newest one, so nothing more is given of it.
        variance[-1] = cov[-1]
        offset = mean - (gain @ mean[:, :, None])[..., 0]
        offset[-1] = mean[-1]
        own[:] = own @ np.swapaxes(_root(variance), -1, -2).astype(np.float32)
        own += offset[:, None].astype(np.float32)
        forward = np.swapaxes(gain, -1, -2).astype(np.float32)
        for t in range(len(states) - 2, -1, -1):
            own[t] += own[t + 1] @ forward[t]
    return walks


def _root(cov: Vector) -> Vector:
    # rounding leaves it a little uneven, and a covariance of 0 has no root
    even = (cov + np.swapaxes(cov, -1, -2)) / 2
    root: Vector = np.linalg.cholesky(even + _JITTER * np.eye(cov.shape[-1])).astype(float)
    return root
