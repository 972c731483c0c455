"""What jobs saved in a month: sums of independent draws, by kind of source."""

from __future__ import annotations

from dataclasses import astuple, replace
from datetime import UTC, datetime

import numpy as np
import pytest

from airflow_provider_zeus.model.energy_source import (
    MEASURED,
    SIMULATED,
    TIME_ALONE,
)
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Phase, ProfileSample, State
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.limit_profiles import limit_saving
from airflow_provider_zeus.reports.months import (
    SavedDraws,
    SpentBy,
    added,
    month_bounds,
    month_of,
    saved_between,
)
from airflow_provider_zeus.reports.savings import saving
from airflow_provider_zeus.reports.slice_epochs import estimates
from tests.strategies import make_trial
from tests.unit.optimizer.world import World
from tests.unit.reports.test_savings import JOB, NEEDS, PROFILE, add

BEGIN_S = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
END_S = datetime(2026, 12, 1, tzinfo=UTC).timestamp()


def test_months_begin_at_midnight_utc_also_over_a_new_year() -> None:
    bounds = month_bounds("2027-01", 3)
    assert [month_of(b) for b in bounds] == ["2026-11", "2026-12", "2027-01", "2027-02"]
    assert bounds[:2] == [BEGIN_S, END_S]
    assert month_of(BEGIN_S - 1) == "2026-10"
    with pytest.raises(ValueError, match="month"):
        month_bounds("2026-13", 1)
    assert [month_of(b) for b in month_bounds("0999-05", 1)] == ["0999-05", "0999-06"], (
        "a name that can be read again"
    )


def log() -> World:
    world = World(JOB, NEEDS)
    for _ in range(2):
        add(world, 32, 10.0)
        add(world, 64, 4.0)
    return world


def test_the_savings_of_a_month_are_those_of_its_runs() -> None:
    world = log()
    opened = [BEGIN_S - 5, BEGIN_S + 5, END_S - 5, END_S + 5]
    trials = [replace(t, opened_at=at_s) for t, at_s in zip(world.log, opened, strict=True)]
    data = as_dataset(trials, world.job)
    found = saved_between(data, PROFILE, BEGIN_S, END_S)
    assert isinstance(found, SavedDraws)
    assert found.runs == 2
    whole = saved_between(data, PROFILE, 0.0, END_S + 10)
    assert isinstance(whole, SavedDraws)
    savings = saving(data, profiles=PROFILE)
    (total,) = added([whole])
    assert total.energy_j.value == pytest.approx(savings.energy.saved.value)
    assert total.time_s.value == pytest.approx(savings.time.saved.value)
    assert saved_between(data, PROFILE, 0.0, 1.0) == "no run that counts has ended"
    assert not whole.old


def test_a_month_after_the_default_last_ran_is_old() -> None:
    world = World(replace(JOB, window=6), NEEDS)
    for size in (32, 32, *[64] * 8):
        add(world, size, 10.0 if size == 32 else 4.0)
    trials = [replace(t, opened_at=BEGIN_S + t.number) for t in world.log]
    data = as_dataset(trials, world.job)
    last, first = (saved_between(data, PROFILE, BEGIN_S + n, BEGIN_S + n + 2.5) for n in (8, 1))
    assert isinstance(last, SavedDraws)
    assert isinstance(first, SavedDraws)
    assert (last.old, first.old, added([last, first])[0].old) == (True, False, 1)


def test_why_a_job_is_not_in_the_sum() -> None:
    world = World(JOB, NEEDS)
    world.log = [
        replace(t, opened_at=BEGIN_S) for t in [add(world, 64, 4.0, state=State.CONVERGED)]
    ]
    why = saved_between(as_dataset(world.log, world.job), PROFILE, BEGIN_S, END_S)
    assert why == "no run of the default batch size 32 has reached the target"


def draws(kind: str, energy: float | None, time: float, seed: int, devices: int = 1) -> SavedDraws:
    rng = np.random.default_rng(seed)
    noise = 1 + 0.1 * rng.standard_normal(1000)
    saved = None if energy is None else energy * noise, time * noise, devices * time * noise
    return SavedDraws(
        kind, *saved, runs=3, spent=SpentBy(None if energy is None else 4 * energy, 4 * time, 0.0)
    )


def test_jobs_are_added_by_kind_and_their_errors_as_independent() -> None:
    found = {
        s.kind: s
        for s in added(
            [draws(MEASURED, 1000.0, 50.0, i) for i in range(9)]
            + [draws(SIMULATED, 7.0, 1.0, 20), draws(TIME_ALONE, None, 5.0, 21)]
        )
    }
    assert found.keys() == {MEASURED, SIMULATED, TIME_ALONE}
    nine = found[MEASURED]
    assert (nine.jobs, nine.runs) == (9, 27)
    assert nine.energy_j.value == pytest.approx(9000.0, rel=0.01)
    assert nine.energy_j.low is not None
    assert nine.energy_j.high is not None
    assert nine.energy_j.high - nine.energy_j.low == pytest.approx(
        2 * 1.645 * 100 * 9**0.5, rel=0.1
    )
    assert nine.spent == (36_000.0, 1800.0, 0.0)
    assert found[TIME_ALONE].energy_j.value is None
    assert found[TIME_ALONE].spent == (None, 20.0, 0.0)


def test_money_is_of_energy_and_of_the_time_of_all_devices() -> None:
    (two,) = added([draws(MEASURED, 1000.0, 50.0, 1, devices=2)])
    assert two.priced(0.5, 3.0).value == pytest.approx(
        two.energy_j.value * 0.5 + 2 * two.time_s.value * 3.0
    )  # type: ignore[operator]
    (alone,) = added([draws(TIME_ALONE, None, 50.0, 1)])
    assert alone.priced(0.5, 3.0) == Estimate.missing("nothing measures energy there")
    assert alone.priced(0.0, 3.0).value == pytest.approx(150.0, rel=0.02)


def test_a_job_without_batch_sizes_saved_by_its_power_limit_or_says_what_would_save() -> None:
    known = [
        ProfileSample(batch_size=7, limit_w=w, samples=100, energy_j=j, time_s=s)
        for w, j, s in ((250, 1e3, 10), (150, 700, 11))
    ]
    figures = {
        "samples": 1000,
        "step_kind": 7,
        "power_limit_w": 150.0,
        "excess_j": 0.0,
        "excess_s": 0.0,
    }
    figures |= {
        "energy_j": 7000.0,
        "time_s": 110.0,
        "device_model": "V100",
        "device_count": 2,
        "energy_source": "nvml_counter",
    }
    for job, tells in (
        (ZeusJob(eta=0.5), None),
        (ZeusJob(mode="measure"), 'mode="optimize" tunes the power limit'),
    ):
        trial = make_trial(1, None, State.DONE, job=job, phase=Phase.MEASURED, **figures)  # type: ignore[arg-type]
        log = as_dataset([replace(trial, opened_at=BEGIN_S)], job)
        found = saved_between(log, [] if tells else known, BEGIN_S, END_S)
        if tells:
            assert tells in str(found)
            continue
        assert isinstance(found, SavedDraws)
        assert (found.kind, found.runs, found.spent) == (MEASURED, 1, (7000.0, 110.0, 220.0))
        assert found.energy is not None
        limit = limit_saving([trial.observation], known)
        assert limit is not None
        for draws, shown in ((found.energy, limit.energy_j), (found.time, limit.time_s)):
            (estimate,) = estimates(draws[:, None])
            assert astuple(estimate)[:3] == pytest.approx(astuple(shown)[:3]), (
                "as on the job's own page"
            )
        assert "no profile shows" in str(saved_between(log, [], BEGIN_S, END_S))
