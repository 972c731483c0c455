"""The one way to add a later report of an attempt to its sums."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.partial_sums import Report, finite, joined, merged
from airflow_provider_zeus.model.trial import Observation, PowerPoint, ProfileSample
from tests.strategies import REPRODUCIBLE, observations
from tests.unit.store.store_kit import seen


def test_later_sums_replace_earlier_ones_and_gaps_keep_them() -> None:
    old = Observation(epochs=1.0, energy_j=5.0, time_s=2.0, reasons={"metric": "none yet"})
    new = Observation(epochs=2.0, time_s=None, metric=0.5, reasons={"energy_j": "lost"})
    sums = merged(old, new)
    assert (sums.epochs, sums.energy_j, sums.time_s, sums.metric) == (2.0, None, 2.0, 0.5)
    assert sums.reasons == {"energy_j": "lost"}


def test_a_figure_below_0_is_missing_and_says_so() -> None:
    """A foreign result line may report it; a metric or the excess of profiling may be below 0."""
    reported = Observation(
        epochs=-3.0, samples=-9000, energy_j=-1.0, time_s=2.0, metric=-0.5, excess_j=-0.1
    )
    sums = merged(Observation(), reported)
    assert (sums.epochs, sums.samples, sums.energy_j) == (None, None, None)
    assert (sums.time_s, sums.metric, sums.excess_j) == (2.0, -0.5, -0.1)
    assert sums.reasons["epochs"].startswith("-3 ")


def test_out_of_memory_is_not_forgotten_by_a_later_report() -> None:
    assert merged(Observation(out_of_memory=True), Observation()).out_of_memory
    assert not merged(Observation(), Observation()).out_of_memory


def test_a_zero_is_a_figure() -> None:
    sums = merged(Observation(energy_j=5.0, epochs=1.0), Observation(energy_j=0.0, epochs=0.0))
    assert (sums.energy_j, sums.epochs) == (0.0, 0.0)


def test_merging_a_report_twice_is_merging_it_once() -> None:
    once = merged(seen(16), seen(32, metric=None, reasons={"metric": "never reported"}))
    assert merged(once, seen(32, metric=None, reasons={"metric": "never reported"})) == once


def with_reason(observation: Observation) -> Observation:
    """The observation, with a reason for its missing energy."""
    if observation.energy_j is not None:
        return observation
    return replace(observation, reasons={"energy_j": "no counter"})


@given(st.lists(observations().map(with_reason), min_size=3, max_size=3))
@REPRODUCIBLE
def test_reports_that_were_joined_give_the_sums_of_reports_one_by_one(
    reported: list[Observation],
) -> None:
    """So it does not matter which heartbeats waited for the log, and which it got."""
    held, beat, end = (merged(Observation(), each) for each in reported)
    one_by_one = merged(merged(held, beat), end)
    waited = joined([Report(observation=beat), Report(observation=end)])
    assert merged(held, waited.observation) == one_by_one


def sample(limit_w: float, energy_j: float) -> ProfileSample:
    return ProfileSample(batch_size=16, limit_w=limit_w, samples=10, energy_j=energy_j, time_s=1.0)


def point(t_s: float) -> PowerPoint:
    return PowerPoint(t_s=t_s, power_w=100.0, limit_w=200.0, phase="train")


def test_a_single_report_stays_as_it_is() -> None:
    alone = Report(observation=Observation(), profile=(sample(200.0, 1.0), sample(200.0, 2.0)))
    assert joined([alone]) is alone


def test_samples_of_one_limit_are_added_and_a_mark_voids_those_before_it() -> None:
    first = Report(observation=Observation(), profile=(sample(100.0, 1.0), sample(200.0, 2.0)))
    later = Report(observation=Observation(), profile=(sample(200.0, 3.0),))
    assert [s.energy_j for s in joined([first, later]).profile] == [1.0, 5.0]
    again = replace(later, profile=(ProfileSample.mark(16), sample(200.0, 3.0)))
    assert [s.energy_j for s in joined([first, again]).profile] == [0.0, 3.0]


@pytest.mark.parametrize("capped", [-0.1, 1.1, math.nan])
def test_a_sample_with_a_share_that_cannot_be_is_left_out(capped: float) -> None:
    fits = ProfileSample(
        batch_size=32, limit_w=200.0, samples=10, energy_j=1.0, time_s=1.0, capped=1.0
    )
    report = Report(observation=Observation(), profile=(fits, replace(fits, capped=capped)))
    assert finite(report).profile == (fits,)


def test_points_are_thinned() -> None:
    reports = [Report(observation=Observation(), points=[point(float(t))]) for t in range(1, 21)]
    assert len(joined(reports).points) == 20
    assert len(joined(reports, most_points=5).points) <= 5
