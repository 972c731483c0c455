"""What every store does (docs/architecture.md), on each store there is: what is decided by."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import pytest

from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import DeviceInfo, Phase, ProfileSample, State, TrialKey
from airflow_provider_zeus.optimizer import policy
from airflow_provider_zeus.optimizer.situation import Situation
from airflow_provider_zeus.store.base import AskAnswer
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.store.store_kit import JOB, Clock, only, report, request, run, seen

Set = Callable[[str, str], None]


# --- what an answer carries


def test_profile_samples_are_summed_per_size_and_limit_and_per_device(store: Store) -> None:
    key = store.ask(request(1)).trial.key
    store.tell(key, State.CONVERGED, report(32, profile=3))
    key = store.ask(request(2)).trial.key
    store.tell(key, State.CONVERGED, report(16, profile=1, device_model="A40"))
    here = store.ask(request(3))
    assert [
        (s.batch_size, s.limit_w, s.samples, s.energy_j, s.time_s, s.steps) for s in here.profile
    ] == [(32, 200.0, 30, 6.0, 3.0, 3)]
    assert {type(s.samples) for s in here.profile} == {type(s.steps) for s in here.profile} == {int}
    store.tell(here.trial.key, State.CONVERGED, report())
    a40 = DeviceInfo(model="A40", count=1, energy_source="simulated")
    there = store.ask(request(4, device=a40))
    assert [(s.batch_size, s.samples) for s in there.profile] == [(16, 10)]
    store.tell(there.trial.key, State.CONVERGED, report())
    other = store.ask(request(5, device=replace(a40, count=2)))
    assert other.profile == ()


def test_what_was_seen_of_the_cap_is_kept_as_a_mean_by_time(store: Store) -> None:
    first = ProfileSample(batch_size=32, limit_w=200.0, samples=10, energy_j=2.0, time_s=1.0)
    seen_now = replace(first, capped=0.4, sm_clock_mhz=1200.0)
    longer = replace(first, time_s=3.0, capped=0.8, sm_clock_mhz=1600.0)
    for n, samples in enumerate(([seen_now], [longer], [first]), 1):
        trial = store.ask(request(n)).trial
        store.tell(trial.key, State.CONVERGED, replace(report(32), profile=samples))
    (kept,) = store.ask(request(9)).profile
    assert (kept.time_s, kept.capped, kept.sm_clock_mhz) == (
        5.0,
        pytest.approx(0.7),
        pytest.approx(1500.0),
    )


def test_where_the_device_is_not_known_the_profile_is_that_of_the_newest(store: Store) -> None:
    run(store, 1, profile=1, max_power_w=None)
    asked = store.ask(request(2, device=None))
    assert len(asked.profile) == 1
    assert store.ask(request(2, device=None)).profile == asked.profile  # redelivered


def test_samples_of_a_limit_add_up_however_many_and_however_small(store: Store) -> None:
    """Runs that are shorter than a window finish it together."""
    run(store, 1, profile=7)
    for n in (2, 3):
        key = store.ask(request(n)).trial.key
        store.heartbeat(key, report(32, profile=3))
        store.tell(key, State.CONVERGED, report(64, profile=5))
    profile = store.ask(request(4)).profile
    assert {s.batch_size: s.samples for s in profile} == {32: 130, 64: 100}


def test_a_mark_makes_the_profile_of_its_batch_size_begin_anew(store: Store) -> None:
    (one,) = report(32, profile=1).profile
    fresh = replace(one, limit_w=150.0)
    other = replace(one, batch_size=64)
    key = store.ask(request(1)).trial.key
    store.heartbeat(
        key, Report(observation=seen(), profile=[one, replace(one, limit_w=100.0), other])
    )
    store.tell(
        key,
        State.CONVERGED,
        Report(observation=seen(), profile=[one, ProfileSample.mark(32), fresh]),
    )
    asked = store.ask(request(2))
    assert list(asked.profile) == [fresh, other]
    store.heartbeat(
        asked.trial.key, Report(observation=seen(), profile=[fresh, ProfileSample.mark(64)])
    )
    store.tell(asked.trial.key, State.CONVERGED, report())
    assert [(s.batch_size, s.limit_w, s.samples) for s in store.ask(request(3)).profile] == [
        (32, 150.0, 20)
    ]


def test_a_profile_of_many_limits_is_kept_whole(store: Store) -> None:
    """Else a training over more limits than are kept would measure them anew for ever."""
    (one,) = report(32, profile=1).profile
    many = [replace(one, limit_w=100.0 + n) for n in range(150)]
    key = store.ask(request(1)).trial.key
    for n in range(0, 150, 10):
        store.heartbeat(key, Report(observation=seen(), profile=many[n : n + 10]))
    store.tell(key, State.CONVERGED, report())
    assert list(store.ask(request(2)).profile) == many


def test_another_job_version_starts_the_power_profile_anew_and_loses_none(
    store: Store, set_setting: Set
) -> None:
    """A new version may train another model, which draws something else."""
    run(store, 1, profile=6)
    new = replace(JOB, job_version="2")
    first = store.ask(request(2, job=new))
    assert first.profile == ()
    store.heartbeat(first.trial.key, report(32, profile=3))
    assert samples(store.ask(request(2, job=new))) == [30], "of a start under way"
    store.tell(first.trial.key, State.CONVERGED, report(32, profile=2))
    for n, (job, kept) in enumerate([(new, 50), (JOB, 60), (new, 50)], start=3):
        asked = store.ask(request(n, job=job))
        assert samples(asked) == [kept], "of each version, as they were"
        store.tell(asked.trial.key, State.CONVERGED, report())
    again = store.ask(request(6))
    set_setting("zeus-settings:d.train", json.dumps({"job_version": "b"}))
    assert samples(store.ask(request(6))) == [60], "redelivered: decided for the version before"
    store.tell(again.trial.key, State.CONVERGED, report())
    assert samples(store.ask(request(7))) == []


def samples(asked: AskAnswer) -> list[int]:
    return [s.samples for s in asked.profile]


def test_a_limit_found_is_handed_on_only_where_its_trial_has_not_given_it_back(
    store: Store, clock: Clock
) -> None:
    run(store, 1, limit_found_w=225.0, power_limit_w=150.0)
    assert store.ask(request(2)).limits_found_w == {}, "a healthy run gave it back"
    store.heartbeat(TrialKey("ti-2"), report(limit_found_w=225.0, power_limit_w=125.0))
    assert store.ask(request(2)).limits_found_w == {"GPU-1": (225.0, 125.0)}, (
        "it runs, or died unseen"
    )
    clock.t += 1000
    third = store.ask(request(3))
    assert third.limits_found_w == {"GPU-1": (225.0, 125.0)}, "abandoned"
    store.tell(third.trial.key, State.FAILED, report(gpu_uuid="GPU-2", limit_found_w=225.0))
    assert run(store, 4, gpu_uuid=None, limit_found_w=None).limits_found_w == {
        "GPU-1": (225.0, 125.0)
    }
    run(store, 5, limit_found_w=225.0, power_limit_w=125.0)
    assert store.ask(request(6)).limits_found_w == {}, (
        "the next run there gave back what it had found"
    )


def test_a_trial_that_died_at_the_limit_found_left_nothing_behind(
    store: Store, clock: Clock
) -> None:
    store.heartbeat(
        store.ask(request(1)).trial.key, report(limit_found_w=225.0, power_limit_w=225.0)
    )
    clock.t += 1000
    assert store.ask(request(2)).limits_found_w == {}


# --- live settings


def test_live_settings_change_the_decision_and_the_stored_spec(
    store: Store, set_setting: Set
) -> None:
    set_setting("zeus-settings:d.train", json.dumps({"eta": 0.9, "pin_batch_size": 64}))
    assert store.settings("d.train") == {"eta": 0.9, "pin_batch_size": 64}
    trial = store.ask(request(1)).trial
    assert (trial.batch_size, trial.planned.phase) == (64, Phase.PINNED)
    assert trial.spec["eta"] == 0.9
    assert only(store).spec["eta"] == 0.9


def test_another_job_version_starts_the_job_anew_and_keeps_the_log(
    store: Store, set_setting: Set
) -> None:
    for n in range(1, 8):
        run(store, n)
    assert store.ask(request(8)).trial.planned.phase is Phase.SAMPLE
    store.tell(TrialKey("ti-8"), State.CONVERGED, report(64))
    set_setting("zeus-settings:d.train", json.dumps({"job_version": "2"}))
    assert store.settings("d.train") == {"job_version": "2"}
    anew = run(store, 9).trial
    assert (anew.planned.phase, anew.planned.round, anew.batch_size) == (
        Phase.EXPLORE,
        1,
        JOB.default_batch_size,
    )
    assert anew.planned.bound_epochs is None  # nothing is believed, so nothing is a yardstick
    assert anew.spec["job_version"] == "1+2"
    # and goes on from there, by what the first of the new version taught
    second = run(store, 10).trial
    assert (second.planned.phase, second.planned.round) == (Phase.EXPLORE, 1)
    assert second.planned.bound_cost is not None
    assert len(store.trials("d.train")) == 10
    author = store.ask(request(11, job=replace(JOB, job_version="1.1"))).trial
    assert author.spec["job_version"] == "1.1+2"
    assert author.batch_size == JOB.default_batch_size


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"job_version": 2}', "not a text"),
        ('{"job_version": ""}', "not a text"),
        ('{"eta": 1.5}', "from 0 to 1"),
        ('{"eta": true}', "from 0 to 1"),
        ('{"eta": NaN}', "from 0 to 1"),
        ('{"pin_batch_size": 48}', r"not in batch_sizes \[16, 32, 64\]"),
        ('{"pause_exploration": "yes"}', "neither True nor False"),
        ('{"etta": 0.5}', "no such setting"),
        ("[1]", "not a JSON object"),
        ("{", "are ignored"),
    ],
)
def test_bad_live_settings_are_named_and_ignored(
    store: Store, set_setting: Set, caplog: pytest.LogCaptureFixture, text: str, said: str
) -> None:
    logging.getLogger("airflow_provider_zeus").propagate = True
    set_setting("zeus-settings:d.train", text)
    with caplog.at_level(logging.WARNING, "airflow_provider_zeus"):
        trial = store.ask(request(1)).trial
    assert trial.spec["eta"] == JOB.eta
    assert trial.planned.phase is not Phase.PINNED
    message = " ".join(r.getMessage() for r in caplog.records)
    assert re.search(said, message)
    assert "zeus-settings:d.train" in message


def test_where_they_cannot_be_read_the_last_known_ones_hold_with_their_age(
    store: Store,
    set_setting: Set,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As on a busy host, or while the api-server restarts: a pin may stand in them."""

    def busy(_: str) -> str | None:
        raise TimeoutError("no answer for 3 s")

    set_setting("zeus-settings:d.train", json.dumps({"eta": 0.9, "pin_batch_size": 64}))
    known = run(store, 1).trial
    assert known.decision.settings == {"eta": 0.9, "pin_batch_size": 64}
    clock.t += 7200
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "airflow_provider_zeus"):
        patch.setattr(store, "_read_setting", busy)
        for n in (2, 3):  # what was not read is no news for the run after
            held = run(store, n).trial
            assert (held.batch_size, held.planned.phase, held.spec["eta"]) == (
                64,
                Phase.PINNED,
                0.9,
            )
            assert held.decision.settings is None
            assert "as read 2 h 00 min ago" in held.planned.why
    assert "no answer for 3 s" in caplog.text
    assert (
        "as the run before knew them, 2 h 00 min ago: eta = 0.9, pin_batch_size = 64" in caplog.text
    )
    set_setting("zeus-settings:d.train", "{}")
    assert store.ask(request(4)).trial.planned.phase is not Phase.PINNED


def test_a_job_of_which_no_setting_was_ever_read_goes_on_without(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_read_setting", lambda _: json.loads("{"))
    assert store.ask(request(1)).trial.planned.phase is not Phase.PINNED


# --- decisions can be replayed


def test_each_decision_follows_from_the_log_that_it_knew(store: Store, clock: Clock) -> None:
    states = [State.CONVERGED, State.CONVERGED, State.GIVEN_UP, State.FAILED, State.CONVERGED]
    for n in range(1, 23):  # a checkpoint is 16 trials apart
        asked = store.ask(request(n))
        if n % 7 == 0:
            clock.t += 1000  # nobody comes back
            continue
        state = states[n % len(states)]
        store.tell(asked.trial.key, state, report(asked.trial.batch_size, epochs=4.0 + n % 3))
        clock.t += 60
    log = store.trials("d.train")
    assert len({t.batch_size for t in log}) > 1
    assert sorted(t.told_seq for t in log if t.told_seq) == list(range(1, len(log) + 1))
    for trial in log:
        known = [t for t in log if t.told_seq and t.told_seq <= trial.asked_after_seq]
        belief = reduce(policy.learn, known, policy.prior(JOB))
        again = policy.choose(
            Situation(
                JOB,
                belief,
                profiles=(),
                device=request().device,
                running=(),
                seed=trial.decision.seed,
            )
        )
        assert again.attempts[0].batch_size == trial.batch_size


def test_the_identity_names_the_place(store: Store) -> None:
    assert store.identity
    assert "object at" not in store.identity
