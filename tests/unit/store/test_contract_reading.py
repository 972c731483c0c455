"""What every store does (docs/architecture.md), on each store there is: what readers see."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import Observation, State, TrialKey
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.store.conftest import Opens
from tests.unit.store.store_kit import Clock, only, report, request, run, seen


def test_readers_see_the_log_in_order(store: Store) -> None:
    for n in range(1, 6):
        run(store, n)
    assert [t.number for t in store.trials("d.train")] == [1, 2, 3, 4, 5]
    assert [t.number for t in store.trials("d.train", last=2)] == [4, 5]
    assert store.trials("d.train", last=0) == []
    assert [t.number for t in store.trials("d.train", last=99)] == [1, 2, 3, 4, 5]
    assert store.trials("nobody") == []
    assert store.recurrence("d", "run3") == [store.trials("d.train")[2]]
    assert store.recurrence("d", "nowhere") == []


def test_the_latest_trials_of_every_job_in_every_dag(store: Store) -> None:
    elsewhere = replace(request(4).origin, dag_id="other")
    asked = [request(n) for n in range(1, 8)]
    asked[3] = request(4, origin=elsewhere)
    for one in (*asked, request(8, job_id="b")):
        store.tell(store.ask(one).trial.key, State.CONVERGED, report())

    def seen(last: int) -> list[tuple[str, str, int]]:
        return [(t.origin.dag_id, t.job_id, t.number) for t in store.latest(last=last)]

    assert seen(1) == [("d", "b", 1), ("d", "d.train", 7), ("other", "d.train", 4)]
    assert seen(3) == [
        ("d", "b", 1),
        *(("d", "d.train", n) for n in (5, 6, 7)),
        ("other", "d.train", 4),
    ]
    assert len(seen(99)) == 8


def test_the_newest_runs_of_a_dag_come_with_all_their_trials(store: Store) -> None:
    for n in (1, 2, 3):
        run(store, n)
    elsewhere = replace(request(4).origin, dag_id="other")
    store.tell(store.ask(request(4, origin=elsewhere)).trial.key, State.CONVERGED, report())
    # cleared: run1 has the newest trial now
    again = store.ask(request(1, ti_id="ti-1b", try_number=2)).trial
    assert again.number == 5
    assert [(t.number, t.origin.run_id) for t in store.runs("d", "d.train", last=2)] == [
        (1, "run1"),
        (3, "run3"),
        (5, "run1"),
    ]
    assert [t.number for t in store.runs("d", "d.train", last=10)] == [1, 2, 3, 5]
    assert [t.number for t in store.runs("other", "d.train", last=10)] == [4]
    assert store.runs("d", "d.train", last=10)[-1] == again
    assert [t.number for t in store.runs("d", "d.train", last=1, skip=1)] == [3]
    assert [t.number for t in store.runs("d", "d.train", last=10, skip=1)] == [2, 3]
    assert store.runs("d", "d.train", last=10, skip=3) == []
    assert store.runs("d", "nothing", last=10) == store.runs("nowhere", "d.train", last=10) == []


def test_the_newest_runs_read_an_expired_lease_as_abandoned(store: Store, clock: Clock) -> None:
    store.ask(request(1))
    clock.t += 91
    assert [t.state for t in store.runs("d", "d.train", last=1)] == [State.ABANDONED]


def test_jobs_of_one_dag(store: Store) -> None:
    run(store, 1)
    store.ask(request(2, job_id="a.shared", origin=replace(request(2).origin, dag_id="other")))
    store.ask(request(3, job_id="z.mine"))
    assert store.jobs() == ["a.shared", "d.train", "z.mine"]
    assert store.jobs("d") == ["d.train", "z.mine"]
    assert store.jobs("other") == ["a.shared"]
    assert store.jobs("nowhere") == []
    assert [store.dags(job) for job in ("a.shared", "z.mine", "none")] == [{"other"}, {"d"}, set()]


def test_a_reader_opens_no_job(store: Store) -> None:
    store.trials("nobody")
    store.settings("nobody")
    assert store.reap("nobody") == []
    assert store.jobs() == []


@pytest.mark.parametrize("ti_id", ["a b/c?d#e%f", "ü" * 40, "x" * 400, "train_token", ""])
def test_task_instance_ids_of_any_characters(store: Store, ti_id: str) -> None:
    key = store.ask(replace(request(1), ti_id=ti_id)).trial.key
    store.heartbeat(key, report(epochs=1.0))
    assert only(store).observation.epochs == 1.0
    assert store.tell(key, State.CONVERGED, report()).key == TrialKey(ti_id)


@pytest.mark.parametrize("job_id", ["dag with blank/täsk", "tokenizer.train", "j" * 500])
def test_job_ids_of_any_characters(opens: Opens, job_id: str) -> None:
    key = opens().ask(request(1, job_id=job_id)).trial.key
    opens().tell(key, State.CONVERGED, report())
    assert opens().jobs() == [job_id]
    assert [t.job_id for t in opens().trials(job_id)] == [job_id]


def test_power_points_are_kept_in_order_and_bounded(store: Store) -> None:
    key = store.ask(request(1)).trial.key
    for part in range(12):
        new = [replace(p, t_s=part * 100 + p.t_s) for p in report(points=100).points]
        store.heartbeat(key, Report(observation=seen(), points=new))
    store.tell(key, State.CONVERGED, report())
    points = store.points(key)
    assert 50 <= len(points) <= 500
    assert points[-1].t_s == 1200.0
    assert [p.t_s for p in points] == sorted(p.t_s for p in points)
    assert store.points(TrialKey("ti-1", 1)) == points


def test_sums_of_energy_whose_hours_were_priced(store: Store) -> None:
    priced = {"price_per_kwh": 0.2, "price_currency": "EUR", "g_co2e_per_kwh": 100.0}
    for n, more in enumerate(
        ({}, priced, {**priced, "price_per_kwh": 0.5}, {"price_per_kwh": 1.0}), start=1
    ):
        told = report(32, energy_j=3.6e6 * n, **more)
        store.tell(store.ask(request(n)).trial.key, State.CONVERGED, told)
    (found,) = store.sums([0.0, 1e12])
    assert found.paid == pytest.approx(2 * 0.2 + 3 * 0.5 + 4 * 1.0)
    assert (found.paid_j, found.g_co2e_j) == (pytest.approx(9 * 3.6e6), pytest.approx(5 * 3.6e6))
    assert (found.currencies, found.g_co2e) == (("EUR",), pytest.approx(500.0))
    drawn = found.drawn()
    assert sum(o.energy_j or 0.0 for o in drawn) == pytest.approx(10 * 3.6e6)
    assert sum(
        (o.energy_j or 0.0) * (o.price_per_kwh or 0.0) for o in drawn
    ) / 3.6e6 == pytest.approx(found.paid)
    assert (found.start_saved, found.start_saved_g) == (None, None), "no run waited"
    assert Prices().start_saved(drawn) == (0.0, 0.0)


def test_sums_of_what_waiting_for_a_cheaper_start_saved(store: Store) -> None:
    night = {"price_per_kwh": 0.1, "price_currency": "EUR", "price_at_once": 0.3}
    clean = {"g_co2e_per_kwh": 100.0, "g_co2e_at_once": 90.0}
    for n, more in enumerate(
        ({"price_per_kwh": 0.4, "price_currency": "EUR"}, {**night, **clean}, night), start=1
    ):
        told = report(32, energy_j=3.6e6 * n, **more)
        store.tell(store.ask(request(n)).trial.key, State.CONVERGED, told)
    (found,) = store.sums([0.0, 1e12])
    assert (found.start_saved, found.start_saved_g) == (
        pytest.approx(5 * 0.2),
        pytest.approx(-20.0),
    )
    drawn = found.drawn()
    assert Prices().start_saved(drawn) == (pytest.approx(1.0), pytest.approx(-20.0))
    assert Prices().at_once(drawn).price_per_kwh == pytest.approx((0.4 + 5 * 0.3) / 6)


def test_attempts_of_a_source_without_energy_are_counted(store: Store) -> None:
    for n, energy_j in enumerate((None, 10.0, 0.0), start=1):
        told = report(32, energy_j=energy_j, time_s=7.0)
        store.tell(store.ask(request(n)).trial.key, State.CONVERGED, told)
    (found,) = store.sums([0.0, 1e12])
    assert (found.runs, found.energy_j, found.unknown, found.without_energy) == (3, 10.0, 0, 1)


def test_a_run_counts_once_and_in_the_period_in_which_it_began(store: Store, clock: Clock) -> None:
    """With attempts of two sources of one kind, one without a result,
    and a retry after the period's end.
    """
    clock.t = 1999.0
    tries = (("ti-1", None, None), ("ti-1b", "nvml_counter", 10.0), ("ti-1c", "nvml_poll", 20.0))
    for n, (ti, source, time_s) in enumerate(tries, 1):
        trial = store.ask(request(1, ti_id=ti, try_number=n)).trial
        told = report(32, energy_j=time_s, energy_source=source, time_s=time_s)
        store.tell(trial.key, State.FAILED, told)
        clock.t += 10.0
    for run_s in (2500.0, 2600.0):
        clock.t = run_s
        told = report(32, energy_j=None, energy_source="nvml_poll", time_s=7.0)
        store.tell(store.ask(request(int(run_s))).trial.key, State.CONVERGED, told)
    found = [
        (s.period, s.source, s.runs, s.energy_j, s.time_s, s.unknown)
        for s in store.sums([1000.0, 2000.0, 3000.0])
    ]
    assert sorted(found, key=str) == [
        (0, "nvml_counter", 1, 10.0, 10.0, 0),
        (0, "nvml_poll", 0, 20.0, 20.0, 0),
        (0, None, 1, None, None, 1),
        (1, "nvml_poll", 2, None, 14.0, 0),
    ]
    assert [s.without_energy for s in store.sums([2000.0, 3000.0])] == [2]
    assert store.sums([2005.0, 2400.0]) == [], (
        "a run that began before counts there, with its retries"
    )


def test_a_first_try_that_is_stored_late_and_its_second_are_one_run(store: Store) -> None:
    """Its host kept its cost; the second try asked on another host, and has the lower number."""
    for ti, n in (("ti-1b", 2), ("ti-1", 1)):
        store.tell(
            store.ask(request(1, ti_id=ti, try_number=n)).trial.key, State.FAILED, report(32)
        )
    assert [s.runs for s in store.sums([0.0, 1e10])] == [1]


def test_sums_by_period_job_and_source(store: Store, clock: Clock) -> None:
    elsewhere = replace(request(3).origin, dag_id="other")
    for n, at_s in ((1, 1000.0), (2, 1999.0), (3, 2000.0)):
        clock.t = at_s
        asked = request(n, origin=elsewhere) if n == 3 else request(n)
        told = report(32, energy_j=100.0 * n, time_s=10.0, device_count=2)
        store.tell(store.ask(asked).trial.key, State.CONVERGED, told)
    clock.t = 2500.0
    died = store.ask(request(4)).trial  # the same task tries again: one run
    store.tell(died.key, State.FAILED, Report(observation=Observation()))
    again = store.ask(request(4, ti_id="ti-4b", try_number=2)).trial
    store.tell(
        again.key, State.CONVERGED, report(32, energy_j=None, energy_source=None, time_s=7.0)
    )
    found = {(s.period, s.dag_id, s.source): s for s in store.sums([1000.0, 2000.0, 3000.0])}
    assert found.keys() == {(0, "d", "simulated"), (1, "d", None), (1, "other", "simulated")}
    first, nothing, other = (
        found[key] for key in ((0, "d", "simulated"), (1, "d", None), (1, "other", "simulated"))
    )
    assert (first.runs, first.energy_j, first.time_s, first.gpu_s, first.unknown) == (
        2,
        300.0,
        20.0,
        40.0,
        0,
    )
    assert (other.runs, other.energy_j) == (1, 300.0)
    assert (nothing.runs, nothing.energy_j, nothing.time_s, nothing.unknown) == (1, None, 7.0, 1)
    assert store.sums([0.0, 1000.0]) == []
