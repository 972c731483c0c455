"""Which events hold, by logs with and without each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from airflow_provider_zeus.model.deadline import InTime
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.event import (
    DEADLINE,
    DRIFTED,
    FAILING,
    KINDS,
    LIMITS,
    LOST,
    NO_DATA,
    NO_METRIC,
    NO_TARGET,
    Event,
    Held,
)
from airflow_provider_zeus.model.trial import LIMIT, ProfileSample, State, Trial
from airflow_provider_zeus.reports import alerts
from airflow_provider_zeus.reports.alerts import look
from airflow_provider_zeus.reports.dataset import RunTrials
from airflow_provider_zeus.signals.prices import Prices
from tests.golden import Table
from tests.strategies import REPRODUCIBLE, jobs_and_logs
from tests.unit.optimizer.world import World, job_of
from tests.unit.plugin.kit import trial

FREE = Prices()


def check(situation: str, event: Event) -> None:
    """The mail's sentence and its remedy are a row of the table."""
    Table("alerts").check(situation, f"{event.sentence}\nRemedy: {event.remedy}")


def held(
    trials: list[Trial], prices: Prices = FREE, profiles: Sequence[ProfileSample] = ()
) -> dict[str, Event]:
    """What holds in the DAG of the newest trial, whose run looks for the first time."""
    found = look({}, trials, profiles, run=trials[-1], prices=prices).events
    return {event.kind: event for event in found[trials[-1].origin.dag_id].events}


class Looks:
    """Runs that look at their job one after the other, and what each of them sends."""

    def __init__(self, prices: Prices = FREE) -> None:
        self.prices = prices
        self.held: Mapping[str, Held] = {}

    def sent(
        self, trials: Sequence[Trial], run: Trial, profiles: Sequence[ProfileSample] = ()
    ) -> list[str]:
        """The kinds of the events that a run sends."""
        found = look(self.held, trials, profiles, run=run, prices=self.prices)
        self.held = found.events
        return [event.kind for event in found.begun]


def test_an_uneventful_log_shows_nothing() -> None:
    assert look({}, [], (), run=trial(1, "r1"), prices=FREE).begun == ()
    assert held([trial(n, f"r{n}") for n in range(1, 5)]) == {}


def test_failing_counts_the_newest_runs_and_quotes_the_error() -> None:
    log = [
        trial(1, "r1"),
        trial(2, "r2", state=State.FAILED),
        trial(3, "r3", state=State.FAILED, reason="no\nspace."),
    ]
    event = held(log)[FAILING]
    check("two runs failed", event)
    assert event.since == 2
    assert event.figures == {"runs": 2, "aside_j": 2240.0, "aside_s": 18.0}
    looks = Looks()
    log = [*log, trial(4, "r4")]
    assert [looks.sent(log[:n], log[n - 1]) for n in (1, 2, 3, 4)] == [[], [FAILING], [], []]
    assert looks.held["d"].events == [], "it has ended"


def test_a_run_that_is_open_or_does_not_teach_is_no_failure() -> None:
    failed = trial(2, "r2", state=State.FAILED)
    assert held([trial(1, "r1"), failed, trial(3, "r2", state=State.RUNNING)]) == {}, (
        "it is tried again"
    )
    assert held([trial(1, "r1"), trial(2, "r2", state=State.FAILED, run_type="backfill")]) == {}


def test_runs_that_were_killed_are_told_by_the_next_one_though_it_ends_well() -> None:
    """Killed they could not tell it; and once the next run has ended well,
    they are no longer the newest.
    """
    killed = trial(2, "r2", state=State.ABANDONED, reason="its lease ended")
    event = held([trial(1, "r1"), killed, trial(3, "r3")])[FAILING]
    check("the run before the newest was killed", event)
    assert (event.since, event.run_id) == (2, "r2")
    assert event.figures == {"runs": 1, "aside_j": 1120.0, "aside_s": 9.0}
    event = held(
        [
            trial(1, "r1"),
            killed,
            trial(3, "r3", state=State.ABANDONED, reason="its lease ended"),
            trial(4, "r4"),
        ]
    )[FAILING]
    check("two runs before the newest were killed", event)
    looks = Looks()
    log = [trial(1, "r1"), killed, trial(3, "r3"), trial(4, "r4")]
    assert [looks.sent(log[:n], log[n - 1]) for n in (1, 3, 4)] == [[], [FAILING], []]
    assert looks.held["d"].events == [], "it has ended"


def test_the_run_that_closes_a_killed_one_tells_it_when_it_is_decided() -> None:
    """So a job whose every run is killed is heard of."""
    killed = [trial(n, f"r{n}", state=State.ABANDONED, reason="its lease ended") for n in (2, 3)]
    looks = Looks()
    assert looks.sent([trial(1, "r1")], trial(1, "r1")) == []
    third = trial(3, "r3", state=State.RUNNING)
    assert looks.sent([trial(1, "r1"), killed[0], third], third) == [FAILING]
    fourth = trial(4, "r4", state=State.RUNNING)
    assert looks.sent([trial(1, "r1"), *killed, fourth], fourth) == [], "it still holds"
    ended = trial(4, "r4")
    assert looks.sent([trial(1, "r1"), *killed, ended], ended) == []
    assert looks.sent([trial(1, "r1"), *killed, ended, trial(5, "r5")], trial(5, "r5")) == []
    assert looks.held["d"].events == []


def test_a_failure_that_was_stored_late_is_told_by_the_next_run() -> None:
    looks = Looks()
    late = trial(2, "r2", state=State.FAILED, reason="disk full")
    is_open = trial(2, "r2", state=State.RUNNING)
    assert looks.sent([trial(1, "r1")], trial(1, "r1")) == []
    assert looks.sent([trial(1, "r1"), is_open], is_open) == [], "its result waits in a file"
    assert looks.sent([trial(1, "r1"), late, trial(3, "r3")], trial(3, "r3")) == [FAILING]
    (event,) = looks.held["d"].events
    check("a failure was stored late", event)


def test_a_run_is_not_dead_while_it_looks() -> None:
    """Its lease expired while the store was away, and its result is stored later."""
    run = trial(2, "r2", state=State.ABANDONED, reason="lease expired")
    assert Looks().sent([trial(1, "r1"), run], run) == []


def test_an_overlapping_run_does_not_take_a_try_that_is_repeated_for_a_failure() -> None:
    looks = Looks()
    one = trial(1, "r1", state=State.FAILED)
    other = trial(2, "r2")
    assert looks.sent([replace(one, number=3), other], other) == [], (
        "Airflow will try the run of trial 3 again"
    )
    both = [replace(one, number=3), other, trial(4, "r1", try_number=2)]
    assert looks.sent(both, both[-1]) == []


def test_overlapping_runs_send_an_event_once_in_whatever_order_they_end() -> None:
    old = trial(1, "r1")
    new = trial(2, "r2", state=State.FAILED)
    still_open = replace(old, state=State.RUNNING)
    looks = Looks()
    assert looks.sent([still_open, new], new) == [FAILING]
    assert looks.sent([old, new], old) == [], "the newer run is still the newest"
    failed = [trial(1, "r1", state=State.FAILED), trial(2, "r2", state=State.FAILED)]
    looks = Looks()
    assert [looks.sent(failed, run) for run in failed] == [[FAILING], []], (
        "both have ended when the first looks"
    )


def test_the_events_of_two_dags_that_share_a_job_are_two() -> None:
    def said(*log: Trial) -> list[tuple[str, str]]:
        trials = [trial(1, "r1"), trial(2, "r1", dag_id="b"), *log]
        looks = Looks()
        for n in range(1, len(trials) + 1):
            looks.sent(trials[:n], trials[n - 1])
        return [
            (dag_id, event.sentence)
            for dag_id, of_dag in looks.held.items()
            for event in of_dag.events
        ]

    ours = trial(3, "r3", state=State.FAILED, reason="ours")
    theirs = trial(4, "r4", state=State.FAILED, reason="theirs", dag_id="b")
    killed = trial(4, "r4", state=State.ABANDONED, reason="its lease ended", dag_id="b")
    took = " 1 failed attempt took 0.311 Wh and 9 s: compared with nothing."
    own = ("d", f"The newest run left no model (run 3): ours.{took}")
    assert said(ours, theirs) == [
        own,
        ("b", f"The newest run left no model (run 4): theirs.{took}"),
    ]
    told = ("b", f"The run before the newest one left no model (run 4): its lease ended.{took}")
    assert said(ours, killed, trial(5, "r5"), trial(6, "r6", dag_id="b")) == [told]
    limits = [
        trial(3, "r3", reasons={LIMIT: "ours"}),
        trial(4, "r4", reasons={LIMIT: "theirs"}, dag_id="b"),
    ]
    assert [(dag_id, "ours" in text, "theirs" in text) for dag_id, text in said(*limits)] == [
        ("d", True, False),
        ("b", False, True),
    ]
    empty = [
        trial(n, f"r{n}", state=State.NO_DATA, dag_id=dag_id) for n, dag_id in ((3, "d"), (4, "b"))
    ]
    assert [dag_id for dag_id, _ in said(*empty)] == ["d", "b"]


def test_a_run_sends_and_ends_nothing_of_another_dag() -> None:
    looks = Looks()
    failed = trial(1, "r1", state=State.FAILED)
    log = [failed, trial(2, "r1", dag_id="b"), trial(3, "r3", state=State.FAILED)]
    assert looks.sent(log[:1], failed) == [FAILING]
    assert looks.sent(log[:2], log[1]) == []
    assert looks.sent(log, log[2]) == [], "it has held all the time"


def test_a_job_that_fails_for_longer_than_is_looked_at_is_still_the_same_event() -> None:
    log = [trial(n, f"r{n}", state=State.FAILED) for n in range(1, alerts.NEWEST + 3)]
    looks = Looks()
    sent = [looks.sent(log[:n][-alerts.NEWEST :], log[n - 1]) for n in (1, alerts.NEWEST, len(log))]
    assert [FAILING in kinds for kinds in sent] == [True, False, False]


def test_a_loss_is_that_of_a_dags_own_runs_and_is_sent_once() -> None:
    log = _losing(12, 600.0).log
    looks = Looks()
    theirs = [
        replace(t, origin=replace(t.origin, dag_id="b")) if t.batch_size == 64 else t for t in log
    ]
    assert [looks.sent(theirs, run, PROFILE) for run in (theirs[-1], theirs[0])] == [[LOST], []]
    looks = Looks()
    assert [looks.sent(log[:n], log[n - 1], PROFILE) for n in range(1, len(log) + 1)].count(
        [LOST]
    ) == 1
    (of_dag,) = looks.held.values()
    assert [event.kind for event in of_dag.events] == [LOST]


def test_a_loss_that_comes_and_goes_at_its_bound_is_sent_once_until_it_is_a_saving() -> None:
    runs = [RunTrials((trial(1, "r1"),)), RunTrials((trial(2, "r2"),))]

    def loss(saved: float, half: float | None, before: Event | None) -> Event | None:
        found = Estimate(saved) if half is None else Estimate(saved, saved - half, saved + half)
        return alerts._loss(runs, found, "J", lambda v: f"{v:.0f} J", before)

    assert loss(-5.0, 6.0, None) is None, "not the whole range is a loss"
    begun = loss(-5.0, 4.0, None)
    assert begun is not None
    assert (begun.since, begun.run_id) == (2, "r2"), "the run that showed it"
    runs.append(RunTrials((trial(3, "r3"),)))
    lasts = loss(-5.0, 6.0, begun)
    assert lasts is not None
    assert (lasts.since, lasts.run_id) == (2, "r2")
    check("a loss lasts, and its interval is open", lasts)
    runs.append(RunTrials((trial(4, "r4", state=State.FAILED), trial(5, "r4"))))
    told = loss(-5.0, 4.0, None)
    assert told is not None
    check("a loss, and a failed attempt beside it", told)
    assert (told.figures["aside_j"], told.figures["aside_s"]) == (1120.0, 9.0)
    assert loss(-5.0, None, begun) is begun, "what is not known changes nothing"
    assert loss(0.1, 6.0, begun) is None, "the middle is a saving"


def test_no_data() -> None:
    event = held([trial(1, "r1"), trial(2, "r2", state=State.NO_DATA)])[NO_DATA]
    check("no data", event)


def test_no_metric() -> None:
    silent = [trial(n, f"r{n}", state=State.NO_METRIC, reason="it printed none") for n in (2, 3)]
    found = held([trial(1, "r1"), *silent])
    assert FAILING not in found
    check("no metric", found[NO_METRIC])


def test_no_target() -> None:
    below = [trial(n, f"r{n}", state=State.EXHAUSTED, reason="accuracy 0.71") for n in (2, 3)]
    found = held([trial(1, "r1"), *below])
    assert list(found) == [NO_TARGET]
    check("below the target", found[NO_TARGET])


def test_a_limit_that_could_not_be_set() -> None:
    event = held([trial(1, "r1"), trial(2, "r2", reasons={LIMIT: "no permission."})])[LIMITS]
    check("a limit could not be set", event)
    assert event.figures == {"runs": 1, "limit_w": 200.0}


LATE = InTime(finish_by_s=3600.0, hurry=True)
DEADLINES: dict[str, InTime] = {
    "a deadline that 95 % of runs miss": InTime(finish_by_s=3600.0, time_95_s=3000.0),
    "a deadline that no size meets": LATE,
}


def deadline_of(state: State, closed_at: float | None, known: InTime | None) -> Event | None:
    run = trial(1, "r1", state=state)
    run = replace(run, planned=replace(run.planned, in_time=known), closed_at=closed_at)
    return alerts.deadline_at_risk([run])


@pytest.mark.parametrize("situation", DEADLINES)
def test_a_deadline_at_risk(situation: str) -> None:
    event = deadline_of(State.RUNNING, None, DEADLINES[situation])
    assert event is not None
    check(situation, event)


@pytest.mark.parametrize(
    ("state", "closed_at", "known"),
    [
        (State.RUNNING, None, InTime(finish_by_s=3600.0, time_95_s=2000.0)),
        (State.RUNNING, None, None),
        (State.CONVERGED, 3720.0, InTime(finish_by_s=3600.0, time_95_s=7000.0)),
        (State.ABANDONED, None, LATE),
    ],
)
def test_a_deadline_that_is_not_at_risk(
    state: State, closed_at: float | None, known: InTime | None
) -> None:
    assert deadline_of(state, closed_at, known) is None


def _due(number: int, state: State, closed_at: float | None, known: InTime) -> Trial:
    run = trial(number, f"r{number}", state=state, opened_at=0.0)
    return replace(run, planned=replace(run.planned, in_time=known), closed_at=closed_at)


def test_a_deadline_of_a_run_that_others_overlap() -> None:
    tight = InTime(finish_by_s=3600.0, time_95_s=7000.0)
    wide = InTime(finish_by_s=9e4, time_95_s=60.0)
    overlapped = [_due(1, State.RUNNING, None, tight), _due(2, State.CONVERGED, 100.0, wide)]
    assert held(overlapped)[DEADLINE].since == 1, "a newer run that has ended does not end it"
    late = [_due(1, State.CONVERGED, 4000.0, tight), _due(2, State.CONVERGED, 100.0, wide)]
    assert held(late) == {}, "one that did miss its deadline is no longer at risk"


def test_the_deadline_of_a_run_is_sent_once() -> None:
    tight = InTime(finish_by_s=3600.0, time_95_s=7000.0)
    is_open = _due(1, State.RUNNING, None, tight)
    looks = Looks()
    assert looks.sent([is_open], is_open) == [DEADLINE]
    late = _due(1, State.CONVERGED, 4000.0, tight)
    assert looks.sent([late], late) == [], "its risk was sent when it was decided"
    second = _due(2, State.RUNNING, None, tight)
    assert looks.sent([late, second], second) == [DEADLINE], "another run has another deadline"


def _losing(runs: int, power_w: float) -> World:
    """The default at 140 W in ten epochs, then 64 with as many at another power."""
    world = World(
        replace(job_of(16, 32, 64, default=32), policy="zeus"), {16: 20.0, 32: 10.0, 64: 10.0}
    )
    for b in (*(32,) * 6, *(64,) * runs):
        watts = 140.0 if b == 32 else power_w
        found = world.add(
            b, State.CONVERGED, 10.0, time_s=100.0, energy_j=100.0 * watts, power_limit_w=250.0
        )
        world.log[-1] = replace(found, origin=replace(found.origin, run_id=f"r{found.number}"))
    return world


PROFILE = [ProfileSample(batch_size=32, limit_w=250.0, samples=1000, energy_j=1400.0, time_s=10.0)]


def test_a_loss_has_its_interval_and_needs_ten_runs() -> None:
    event = held(_losing(10, 600.0).log, profiles=PROFILE)[LOST]
    lost, low, high = (float(event.figures[name]) for name in ("lost", "low", "high"))
    assert 0 < low < lost < high
    check("ten runs lost energy", event)
    assert LOST not in held(_losing(2, 600.0).log, profiles=PROFILE)
    assert LOST not in held(_losing(10, 100.0).log, profiles=PROFILE), "they saved"


def test_backfills_that_lose_are_no_loss_of_the_job() -> None:
    log = [
        replace(t, origin=replace(t.origin, run_type="backfill")) for t in _losing(10, 600.0).log
    ]
    assert LOST not in held(log, profiles=PROFILE)


def test_a_loss_is_in_money_where_prices_are_set() -> None:
    prices = Prices(price_per_kwh=0.3, currency="EUR")
    event = held(_losing(10, 600.0).log, prices, profiles=PROFILE)[LOST]
    assert event.figures["unit"] == "EUR"
    kwh = 10 * 100 * (600 - 140) / 3.6e6
    assert float(event.figures["lost"]) == pytest.approx(0.3 * kwh, rel=0.25)
    check("ten runs lost money", event)


def test_a_cheaper_start_counts_in_what_was_lost() -> None:
    """At once the default would have paid .3 EUR a kWh; the runs waited for .05 EUR,
    which makes up for their loss.
    """
    waited = {"price_per_kwh": 0.05, "price_at_once": 0.3, "price_currency": "EUR"}
    log = [replace(t, observation=replace(t.observation, **waited)) for t in _losing(10, 600.0).log]  # type: ignore[arg-type]
    assert LOST not in held(log, profiles=PROFILE)
    at_once = [replace(t, observation=replace(t.observation, price_at_once=0.05)) for t in log]
    assert LOST in held(at_once, profiles=PROFILE)


@pytest.mark.parametrize(
    "prices",
    [
        Prices(price_per_kwh=0.3),
        Prices(price_per_kwh=0.0, currency="EUR"),
        Prices(price_per_kwh=-0.1, currency="EUR"),
    ],
    ids=["no currency", "free", "negative"],
)
def test_a_loss_is_in_joules_where_no_money_was_lost(prices: Prices) -> None:
    event = held(_losing(10, 600.0).log, prices, profiles=PROFILE)[LOST]
    assert event.figures["unit"] == "J"


@pytest.mark.parametrize(
    ("situation", "epochs"),
    [
        ("the data changed, and runs need more epochs", 40.0),
        ("the data changed, and runs need some more epochs", 20.0),
        ("the data changed, and runs need fewer epochs", 2.5),
    ],
)
def test_a_change_of_the_data_is_told_while_it_is_new(situation: str, epochs: float) -> None:
    world = World(
        replace(job_of(16, 32, 64, default=32), policy="knowledge_gradient"),
        {16: 20.0, 32: 10.0, 64: 10.0},
    )

    def add(epochs: float, count: int) -> None:
        for _ in range(count):
            run = world.add(
                32, State.CONVERGED, epochs, time_s=10 * epochs, energy_j=1400.0 * epochs
            )
            world.log[-1] = replace(run, origin=replace(run.origin, run_id=f"r{run.number}"))

    add(10.0, 12)
    assert DRIFTED not in held(world.log)
    add(epochs, 3)
    check(situation, held(world.log)[DRIFTED])
    add(epochs, 8)
    assert DRIFTED not in held(world.log)


@settings(REPRODUCIBLE, max_examples=20)
@given(jobs_and_logs())
def test_any_log_gives_sentences(job_and_log: Any) -> None:
    job, log = job_and_log
    rows = [replace(t, spec=job.to_dict()) for t in sorted(log, key=lambda t: t.number)]
    looks = Looks(Prices(price_per_kwh=0.3, currency="EUR"))
    for run in rows:
        looks.sent(rows, run)
        assert looks.sent(rows, run) == [], "what was sent is not sent again"
    for event in [event for of_dag in looks.held.values() for event in of_dag.events]:
        assert event.kind in KINDS
        assert event.sentence.endswith(".")
        assert event.sentence.isprintable()
        assert event.remedy
