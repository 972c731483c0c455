"""Bounds of an exploratory attempt: when they stop it, and what is written down then."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.model.trial import Observation, PlannedAttempt, ProfileSample, State
from airflow_provider_zeus.training.attempt_checks import bound_passed
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.conftest import SAMPLES, Kit, explore, incumbent, loop, steps

WEIGHTS = Weights(0.5, 250.0)


def known_profile(kit: Kit, batch_size: int) -> tuple[ProfileSample, ...]:
    """What a complete earlier profile of the simulated load would hold, exactly."""
    gpu = kit.gpu
    samples = []
    for limit_w in gpu.limit_range().grid_w():
        step_s, power_w = gpu.load.step(gpu.chip, batch_size, limit_w)
        n = int(6.0 / step_s)
        samples.append(
            ProfileSample(
                batch_size=batch_size,
                limit_w=limit_w,
                samples=n * batch_size,
                energy_j=n * step_s * power_w,
                time_s=n * step_s,
                steps=n,
            )
        )
    return tuple(samples)


def cheapest_epoch(kit: Kit, batch_size: int, samples: int = SAMPLES) -> float:
    """EpochCost [J] of the load's own equations at its best limit."""
    gpu = kit.gpu
    costs = []
    for limit_w in gpu.limit_range().grid_w():
        step_s, power_w = gpu.load.step(gpu.chip, batch_size, limit_w)
        costs.append(WEIGHTS.cost(step_s * power_w, step_s) / batch_size * samples)
    return min(costs)


def give_up(
    kit: Kit, attempt: PlannedAttempt, samples: int = SAMPLES, **changes: Any
) -> tuple[str, Observation]:
    """(reason, observation) of the first attempt, which must be given up;
    the incumbent after it must converge.
    """
    run = kit.run(attempt, incumbent(256), **changes)
    run.train(lambda run: loop(run, epochs=99 if run.attempt == 1 else 1, samples=samples))
    first, second = kit.ends()
    assert (first.state, second.state) == (State.GIVEN_UP, State.CONVERGED)
    return first.reason, first.observation


@pytest.mark.parametrize(("bound", "epochs"), [(1.0, 1.0), (2.0, 2.0), (2.9, 2.0), (3.0, 3.0)])
def test_a_bound_in_epochs_is_never_passed_and_no_epoch_is_begun_in_vain(
    kit: Kit, bound: float, epochs: float
) -> None:
    reason, observed = give_up(kit, explore(1024, bound_epochs=bound))
    assert observed.epochs == epochs
    assert f"the bound is {bound:.3g}" in reason


def test_a_bound_in_cost_counts_the_next_epoch_too(kit: Kit) -> None:
    epoch = cheapest_epoch(kit, 1024)
    _, observed = give_up(
        kit, explore(1024, bound_cost=3.5 * epoch), profile=known_profile(kit, 1024)
    )
    assert observed.epochs == 3.0
    assert WEIGHTS.cost(observed.energy_j, observed.time_s) == pytest.approx(3 * epoch, rel=0.02)


def test_within_an_epoch_the_cost_is_checked_once_a_second_and_the_part_is_counted(
    kit: Kit,
) -> None:
    epoch = cheapest_epoch(kit, 1024, samples=10 * SAMPLES)

    def train(run: ZeusRun) -> int:
        if run.attempt == 2:
            return loop(run, epochs=1)
        for _ in run.epochs():
            for _ in run.data_loader(range(10 * SAMPLES)):
                pass
        kit.never.append("the bound must stop it within the epoch")
        return 0

    assert (
        kit.run(
            explore(1024, bound_cost=0.4 * epoch), incumbent(256), profile=known_profile(kit, 1024)
        ).train(train)
        == 256
    )
    observed = kit.ends()[0].observation
    one_second = 1.1 / (observed.time_s / observed.epochs)  # of an epoch
    assert 0.4 <= observed.epochs <= 0.4 + one_second
    assert observed.samples == round(observed.epochs * 10 * SAMPLES)
    assert observed.samples_per_epoch == 10 * SAMPLES


def test_an_epoch_that_costs_too_much_ends_the_attempt_right_after_profiling(kit: Kit) -> None:
    epoch = cheapest_epoch(kit, 1024, samples=100 * SAMPLES)
    attempt = explore(1024, bound_cost=1e12, max_epoch_cost=0.95 * epoch)
    run = kit.run(attempt, incumbent(256))

    def train(run: ZeusRun) -> int:
        if run.attempt == 2:
            return loop(run, epochs=1)
        for _ in run.epochs():
            for _ in run.data_loader(range(100 * SAMPLES), batch_sampler=_Indices(1024, 5000)):
                pass
        kit.never.append("it must be given up")
        return 0

    assert run.train(train) == 256
    first = kit.ends()[0]
    assert "an epoch costs" in first.reason
    assert 5 <= len({s.limit_w for s in kit.profile() if s.batch_size == 1024}) <= 6
    assert 5 * 6.1 < first.observation.time_s < 12 * 6.1  # 5 s and 1 s of settling a window

    kit.lines.clear()
    dearer = explore(1024, bound_cost=1e12, max_epoch_cost=1.05 * cheapest_epoch(kit, 1024))
    assert kit.run(dearer, incumbent(256)).train(loop) == 1024


class _Indices:
    """So many batches of one index each time, for data whose content does not matter."""

    def __init__(self, batch_size: int, batches: int) -> None:
        self.batch_size = batch_size
        self._batches = batches

    def __iter__(self) -> Any:
        return iter([range(self.batch_size)] * self._batches)

    def __len__(self) -> int:
        return self._batches


def test_without_a_profile_an_epoch_that_costs_too_much_is_seen_when_the_first_is_over(
    kit: Kit,
) -> None:
    attempt = explore(1024, bound_epochs=9.0, max_epoch_cost=0.5 * cheapest_epoch(kit, 1024))
    reason, observed = give_up(kit, attempt, mode="measure")
    assert "an epoch costs" in reason
    assert observed.epochs == 1.0


@pytest.mark.parametrize(
    ("samples", "epochs"), [(SAMPLES, 2.0), (2 * SAMPLES, 2.0), (SAMPLES // 2, 2.0)]
)
def test_cost_bounds_scale_with_the_size_of_the_slice(
    kit: Kit, samples: int, epochs: float
) -> None:
    bound = 2.5 * cheapest_epoch(kit, 1024)
    attempt = explore(1024, bound_cost=bound, bound_samples_per_epoch=float(SAMPLES))
    _, observed = give_up(kit, attempt, samples=samples, profile=known_profile(kit, 1024))
    assert observed.epochs == epochs


def test_the_excess_of_profiling_is_not_the_batch_sizes_fault(kit: Kit) -> None:
    attempt = explore(1024, bound_cost=30 * cheapest_epoch(kit, 1024), bound_epochs=40.0)
    _, observed = give_up(kit, attempt, max_epochs=60)
    assert observed.excess_s > 1.0
    assert observed.epochs in (29.0, 30.0)  # the profile is blurred by the counter's ticks
    assert WEIGHTS.cost(observed.energy_j, observed.time_s) > 30 * cheapest_epoch(kit, 1024)


def test_on_time_alone_bounds_are_seconds(kit: Kit) -> None:
    run = kit.run(explore(1024, bound_cost=1e-9), incumbent(256), device="none", mode="off")
    run.train(lambda run: loop(run, epochs=99 if run.attempt == 1 else 1))
    first, second = kit.ends()
    assert (first.state, second.state) == (State.GIVEN_UP, State.CONVERGED)
    assert first.observation.energy_j is None
    assert "mode is 'off'" in first.observation.reasons["energy_j"]
    assert 0 < first.observation.time_s < 60


def test_bounds_that_cannot_be_compared_stop_nothing() -> None:
    passed = partial(bound_passed, explore(1024, bound_cost=1.0, max_epoch_cost=1.0), WEIGHTS)
    assert (
        passed(Observation(epochs=3.0, time_s=9.0), epoch_cost=None, at_end_of_epoch=True) is None
    )
    assert passed(Observation(), epoch_cost=None, at_end_of_epoch=False) is None
    assert passed(Observation(), epoch_cost=2.0, at_end_of_epoch=False) is not None
    assert (
        passed(Observation(energy_j=2.0, time_s=2.0), epoch_cost=None, at_end_of_epoch=False)
        is not None
    )


@pytest.mark.parametrize(
    ("samples", "epoch_cost", "is_passed"),
    [(1000.0, 9.0, False), (1000.0, 11.0, True), (2000.0, 19.0, False), (500.0, 6.0, True)],
)
def test_an_epoch_of_a_larger_slice_may_cost_more(
    samples: float, epoch_cost: float, is_passed: bool
) -> None:
    planned = explore(1024, max_epoch_cost=10.0, bound_samples_per_epoch=1000.0)
    so_far = Observation(samples_per_epoch=samples)
    why = bound_passed(planned, WEIGHTS, so_far, epoch_cost=epoch_cost, at_end_of_epoch=False)
    assert (why is not None) == is_passed


def test_steps_alone_cannot_tell_a_part_of_the_first_epoch(kit: Kit) -> None:
    def train(run: ZeusRun) -> int:
        for _ in run.epochs():
            steps(run, 40 * SAMPLES)
            run.report(acc=1.0)
        return run.batch_size

    assert kit.run(explore(1024, bound_cost=500.0), incumbent(256)).train(train) == 256
    observed = kit.ends()[0].observation
    assert (observed.epochs, observed.samples_per_epoch) == (None, None)
    assert observed.samples > 0
    assert "none was completed" in observed.reasons["epochs"]
