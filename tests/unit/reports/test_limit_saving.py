"""What the power limit saved of runs without a batch size, against full power on the same steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_zeus.model.estimate import Z
from airflow_provider_zeus.model.trial import UNCAPPED, Observation, ProfileSample
from airflow_provider_zeus.reports.limit_profiles import LimitProfiles, limit_saving, ratio_sd

KIND = 12345
PROFILE = [
    ProfileSample(
        batch_size=KIND, limit_w=w, samples=100, energy_j=100 * j, time_s=100 * s, steps=100
    )
    for w, j, s in ((250.0, 10.0, 0.1), (150.0, 7.0, 0.11))
]


def seen(
    limit_w: float | None = 150.0, kind: int | None = KIND, **changes: float | None
) -> Observation:
    values = {"samples": 1000, "excess_j": 0.0, "excess_s": 0.0, **changes}
    return Observation(power_limit_w=limit_w, step_kind=kind, **values)  # type: ignore[arg-type]


def test_a_run_below_full_power_saved_energy_and_lost_time_with_the_profiles_interval() -> None:
    found = limit_saving([seen()], PROFILE)
    assert found is not None
    assert (found.runs, found.full_w) == (1, 250.0)
    assert found.energy_j.value == pytest.approx(3000.0)
    assert found.energy_j.low == pytest.approx(3000 - 10_000 * Z * ratio_sd(*PROFILE))
    assert found.time_s.value == pytest.approx(-10.0)


def test_full_power_is_the_highest_limit_of_all_kinds_of_steps() -> None:
    other = [replace(sample, batch_size=KIND + 1) for sample in PROFILE[1:]]
    found = limit_saving([seen(), seen(kind=KIND + 1)], [*PROFILE, *other])
    assert found is not None
    assert (found.runs, found.full_w) == (2, 250.0)


def test_a_tick_of_the_counter_widens_the_ratio_of_short_samples() -> None:
    def sample(time_s: float) -> ProfileSample:
        return replace(PROFILE[0], time_s=time_s)

    long = ratio_sd(sample(1000.0), sample(1000.0))
    assert long == pytest.approx(2**0.5 * 0.02 / 1.96, rel=1e-4)
    short = ratio_sd(sample(1.0), sample(2.0))
    assert short**2 == pytest.approx(2 * (0.02 / 1.96) ** 2 + (0.1**2 + 0.05**2) / 6)


@pytest.mark.parametrize("short", [0, 1])
def test_a_window_that_is_too_short_for_the_counter_re_costs_the_time_alone(short: int) -> None:
    profile = list(PROFILE)
    profile[short] = replace(profile[short], energy_j=0.0)
    run = seen(time_s=110.0, energy_j=7000.0)
    found = LimitProfiles.of(profile).recosted(KIND, run, 250.0)
    assert found is not None
    assert (found.time_s, found.energy_j) == (pytest.approx(100.0), None)


def test_what_profiling_took_counts_and_a_run_at_full_power_saved_nothing_else() -> None:
    found = limit_saving([seen(250.0, excess_j=50.0)], PROFILE)
    assert found is not None
    assert (found.energy_j.low, found.energy_j.value, found.energy_j.high) == (-50.0, -50.0, -50.0)


def test_a_run_is_compared_with_the_nearest_of_limits_that_drivers_rounded() -> None:
    near = [replace(PROFILE[1], limit_w=w) for w in (149.6, 150.2)]
    for profile in (near, near[::-1]):
        found = LimitProfiles.of(profile).at(KIND, 150.0)
        assert found is not None
        assert found.limit_w == 150.2


def test_runs_add_up_and_those_of_another_step_say_nothing() -> None:
    found = limit_saving(
        [seen(), seen(), seen(kind=1), seen(kind=None), seen(limit_w=None), seen(199.0)], PROFILE
    )
    assert found is not None
    assert found.runs == 2
    assert found.energy_j.value == pytest.approx(6000.0)


def test_where_no_limit_could_save_anything_none_did() -> None:
    uncapped = replace(seen(250.0, excess_j=-50.0), reasons={UNCAPPED: "no limit holds it back"})
    assert limit_saving([uncapped], PROFILE) is None
    found = limit_saving([uncapped, seen()], PROFILE)
    assert found is not None
    assert (found.runs, found.energy_j.value) == (1, pytest.approx(3000.0))


def test_without_a_profile_nothing_is_said() -> None:
    assert limit_saving([seen()], []) is None
    assert limit_saving([], PROFILE) is None
