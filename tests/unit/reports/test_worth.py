"""What the last retrainings bought: the earlier and the new model on the same data,
beside what the runs cost.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.optimizer.slices import Change
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.worth import Worth, worth
from tests.strategies import make_trial
from tests.unit.optimizer.world import World, job_of

JOB = job_of(32, default=32, policy="knowledge_gradient", target="rmse <= 1")


def ran(
    n: int, before: float | None, after: float | None, state: State = State.CONVERGED, **more: Any
) -> Trial:
    figures = {"served": before, "metric": after, **more} | World(JOB, {}).figures(32, 4.0)
    return replace(make_trial(n, 32, state, job=JOB, **figures), opened_at=86400.0 * (130 + n))


def found(trials: list[Trial], *changes: Change, last: int = 20) -> Worth:
    known = worth(as_dataset(trials, JOB), changes, last)
    assert isinstance(known, Worth)
    return known


def test_before_and_after_on_the_same_data_beside_what_it_cost() -> None:
    known = found([ran(1, 0.31, 0.29), ran(2, 0.33, 0.29), ran(3, 0.32, 0.29), ran(4, None, 0.2)])
    assert (known.metric, known.runs, known.before, known.after) == (
        "rmse",
        3,
        pytest.approx(0.32),
        pytest.approx(0.29),
    )
    assert known.gain.value == pytest.approx(0.03)
    assert known.gain.low is not None
    assert known.gain.low < 0.03 < (known.gain.high or 0.0)
    assert known.energy_j == pytest.approx(3 * 4 * 10 * 200.0), "of the runs that told it"
    assert known.said().startswith(
        "The last 3 retrainings brought rmse from 0.32 to 0.29 on average for"
    )


def test_a_rising_metric_gains_by_rising() -> None:
    job = replace(JOB, target="acc >= 0.5")
    trials = [replace(ran(n, 0.6, 0.7), spec=job.to_dict()) for n in (1, 2, 3)]
    known = worth(as_dataset(trials, job))
    assert isinstance(known, Worth)
    assert known.gain.value == pytest.approx(0.1)


def test_runs_at_a_change_are_told_apart() -> None:
    trials = [ran(1, 0.30, 0.29), ran(2, 0.38, 0.30), ran(3, 0.30, 0.30)]
    known = found(trials, Change(2, 0.5, (2,)))
    assert known.after_changes == (("13 May", 1, pytest.approx(0.08)),)
    assert known.others == pytest.approx(0.005)
    assert (
        "The 1 run at the change of 13 May brought 0.08 each. The others brought 0.005."
        in known.said()
    )


def test_fewer_retrainings_are_told_only_as_skipped_runs_show_them() -> None:
    trials = [ran(1, 0.31, 0.29), ran(2, 0.3, 0.3, State.NOT_NEEDED), ran(3, 0.32, 0.29)]
    assert "1 run that trained nothing served with 0.3;" in found(trials).said()
    assert "trained nothing" not in found([trials[0]]).said()
    assert found([trials[0]]).gain.low is None, "one run has no interval"


def test_only_the_last_ones_count_and_what_is_not_told_is_said() -> None:
    trials = [ran(n, 0.5, 0.3) for n in range(1, 6)]
    assert found(trials, last=2).runs == 2
    assert worth(as_dataset([ran(1, None, 0.3), ran(2, 0.4, None)], JOB)).startswith(
        "no run reported how good"
    )
    given_up = [ran(1, 0.5, 0.4, State.GIVEN_UP)]
    assert worth(as_dataset(given_up, JOB)).startswith("no run reported how good")


@pytest.mark.parametrize(("n", "quantile"), [(11, 1.812), (12, 1.796), (31, 1.697), (121, 1.658)])
def test_the_interval_is_that_of_students_t(n: int, quantile: float) -> None:
    gains = [0.1 * (k % 2) for k in range(n)]
    gain = found([ran(k + 1, 0.3 + g, 0.3) for k, g in enumerate(gains)], last=n).gain
    assert gain.low is not None
    assert gain.high is not None
    half = quantile * statistics.stdev(gains) / math.sqrt(n)
    assert gain.high - gain.low == pytest.approx(2 * half, rel=0.01)
