"""Rows and checkpoints that somebody, or a disk, has damaged: left out, named,
and in nobody's way.
"""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest

from airflow_provider_zeus.model.trial import State, TrialKey
from airflow_provider_zeus.optimizer import policy
from airflow_provider_zeus.store.pending import PendingResult
from airflow_provider_zeus.store.sql import checkpoints as sql_belief
from airflow_provider_zeus.store.sql import engine
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.unit.store.sql.sqlite_kit import checkpoints, execute
from tests.unit.store.store_kit import JOB, Clock, report, request, run

BROKEN = [
    "decision = '{'",
    "decision = 'null'",
    "decision = json_set(decision, '$.attempts[0].batch_size', 'many')",
    "decision = json_set(decision, '$.attempts[0].batch_size', NULL)",
    "decision = CAST(x'ff' AS TEXT)",
    "spec = '[]'",
    "spec = '{}'",
    "spec = json_set(spec, '$.eta', 'half')",
    "spec = json_set(spec, '$.batch_sizes', json('[0]'))",
    "planned = '7'",
    "planned = json_set(planned, '$.batch_size', -32)",
    "planned = json_set(planned, '$.phase', 'measured')",
    'planned = replace(planned, \'"why": "\', \'"why": "\\ud800\')',
    'decision = replace(decision, \'"why": "\', \'"why": "\\udfff\')',
    'spec = replace(spec, \'"target": "\', \'"target": "\\ud800\')',
    "spec = replace(spec, '{', '{\"newer\": [1e999], ')",
    "reasons = 'none'",
    "gpu_energy_j = 'x'",
    "energy_j = 'much'",
    "energy_j = 9e999",
    "epochs = -3",
    "epochs = 1e-308",
    "time_s = 1e16",
    "samples = 9e18",
    "device_count = 0",
    "gpu_energy_j = '[1e300]'",
    *(
        f"{name} = {value}"
        for name in ("opened_at", "lease_until", "closed_at", "lease_s")
        for value in (1e15, -1e10)
    ),
    "asked_after_seq = 4e18",
    "told_seq = -1",
    "planned = json_set(planned, '$.bound_epochs', -1)",
    "planned = json_set(planned, '$.in_time', json('{\"finish_by_s\": 1e15}'))",
    "decision = json_set(decision, '$.attempts[0].bound_cost', 1e-300)",
    "spec = json_set(spec, '$.max_epochs', -1)",
    "number = 'five'",
    "opened_at = 'noon'",
    "lease_s = 'long'",
    "told_seq = 'last'",
    "ti_id = x'00ff'",
    f"spec = '{'[' * 100_000}'",
    "spec = json_set(spec, '$.eta', 0.5) || ' NaN'",
    'decision = replace(decision, \'"seed": \', \'"seed": NaN, "was": \')',
]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Logs of so many runs; made once, and copied for each test."""
    found = {}
    with pytest.MonkeyPatch.context() as patched:
        for runs in (7, 21):
            found[runs] = tmp_path_factory.mktemp("log") / "zeus.db"
            store = SqlStore(f"sqlite:///{found[runs]}", create=True, now=Clock())
            for n in range(1, runs + 1):
                run(store, n)
            store.close()
            patched.setattr(sql_belief, "EVERY", 4)  # of 21 runs there are checkpoints
    return found


@pytest.fixture
def seven(logs: dict[int, Path], sqlite_url: str, clock: Clock) -> SqlStore:
    """A log of seven runs."""
    shutil.copy(logs[7], sqlite_url.removeprefix("sqlite:///"))
    return SqlStore(sqlite_url, now=clock)


def damage(url: str, change: str, number: int = 5) -> None:
    execute(url, f"UPDATE zeus_trial SET {change} WHERE number = {number}")


@pytest.mark.parametrize("change", BROKEN, ids=[change[:60] for change in BROKEN])
def test_a_damaged_row_is_left_out_and_named(seven: SqlStore, sqlite_url: str, change: str) -> None:
    store = seven
    damage(sqlite_url, change)
    whole = [1, 2, 3, 4, 6, 7]
    assert [t.number for t in store.trials("d.train")] == whole
    assert [t.number for t in store.latest(last=99)] == whole
    assert [t.number for t in store.runs("d", "d.train", last=99)] == whole
    assert store.recurrence("d", "run5") == []
    (found,) = store.unreadable
    assert (found.job_id, found.dag_id) == ("d.train", "d")
    assert found.number == (None if change.startswith("number") else 5)
    assert found.problem
    assert store.ask(request(8)).trial.number == 8
    assert store.ask(request(5)).trial.number == 9, "its task asks again"


def test_a_damaged_row_teaches_nothing(seven: SqlStore, sqlite_url: str) -> None:
    store = seven
    damage(sqlite_url, "decision = '{'")
    with engine.transaction(store._engine, write=True) as connection:
        taught = sql_belief.belief_of(connection, "d.train", policy.prior(JOB), oldest_open=None)
    assert taught == reduce(policy.learn, store.trials("d.train"), policy.prior(JOB))
    assert 5 not in [n for n, _, _ in taught.converged]


def test_the_run_of_a_damaged_row_can_write_it_again(store: SqlStore, sqlite_url: str) -> None:
    open_ = store.ask(request(1)).trial
    damage(sqlite_url, "decision = '{'", 1)
    row = store.adopt(open_)
    assert store.heartbeat(row.key, report(start_id="a")) is None
    assert store.tell(row.key, State.CONVERGED, report(start_id="a")).state is State.CONVERGED
    assert [(t.key, t.state) for t in store.trials("d.train")] == [(open_.key, State.CONVERGED)]
    assert store.unreadable == []


def test_a_figure_that_cannot_be_is_in_no_sum(store: SqlStore, sqlite_url: str) -> None:
    """Sums are made by the database, which reads no row."""
    found = {
        "energy_j": 1000.0,
        "price_per_kwh": 0.3,
        "price_currency": "EUR",
        "g_co2e_per_kwh": 300.0,
    }
    for n in range(1, 5):
        run(store, n, **found)
    (whole,) = store.sums([0.0, 4e9])
    for number, change in enumerate(
        ["time_s = -9e999", "energy_j = 1e300", "price_per_kwh = -1e300"], 1
    ):
        damage(sqlite_url, change, number)
    (left,) = store.sums([0.0, 4e9])
    assert (left.energy_j, left.time_s, left.gpu_s) == tuple(
        s / 4 for s in (whole.energy_j, whole.time_s, whole.gpu_s)
    )
    assert (left.runs, left.paid) == (1, pytest.approx((whole.paid or 0.0) / 4))


def test_damaged_power_points_and_profiles_are_left_out(store: SqlStore, sqlite_url: str) -> None:
    key = store.ask(request(1)).trial.key
    store.heartbeat(key, report(profile=2, points=3, start_id="a"))
    execute(sqlite_url, "UPDATE zeus_profile_sample SET energy_j = 9e999")
    execute(
        sqlite_url,
        "UPDATE zeus_trial_power SET points = json_set(points, '$[1]', 'x', '$[2][0]', 'late')",
    )
    assert [p.t_s for p in store.points(key)] == [1.0]
    execute(sqlite_url, "UPDATE zeus_trial_power SET points = '[['")
    assert store.points(key) == []
    store.tell(key, State.CONVERGED, report(points=2, start_id="a"))
    assert len(store.points(key)) == 2
    assert store.ask(request(2)).profile == ()


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    "change",
    [
        "belief = 'broken'",
        "belief = '{}'",
        "belief = replace(belief, '32', '64')",
        "belief = substr(belief, 1, length(belief) / 2)",
        "told_seq = 10000",
        "number = number - 3",
    ],
)
def test_a_damaged_checkpoint_is_dropped_and_the_log_folded_again(
    logs: dict[int, Path],
    sqlite_url: str,
    clock: Clock,
    change: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shutil.copy(logs[21], sqlite_url.removeprefix("sqlite:///"))
    store = SqlStore(sqlite_url, now=clock)
    assert max(checkpoints(sqlite_url)) == 20
    execute(sqlite_url, f"UPDATE zeus_checkpoint SET {change} WHERE number = 20")
    with caplog.at_level(logging.WARNING, "airflow_provider_zeus"):
        for _ in range(2):
            with engine.transaction(store._engine, write=True) as connection:
                belief = sql_belief.belief_of(
                    connection, "d.train", policy.prior(JOB), oldest_open=None
                )
            assert belief == reduce(policy.learn, store.trials("d.train"), policy.prior(JOB))
    assert len(caplog.records) == 1
    assert store.ask(request(22)).trial.number == 22


def test_a_checkpoint_of_every_trial_damaged_leaves_the_log(
    store: SqlStore, sqlite_url: str
) -> None:
    for n in range(1, 40):
        run(store, n)
    execute(
        sqlite_url, f"UPDATE zeus_checkpoint SET belief = '{json.dumps({'newest': [1, False]})}'"
    )
    assert store.ask(request(40)).trial.asked_after_seq == 39


@pytest.mark.parametrize("value", ["'x'", "-5", "1e18", "9223372036854775807"])
@pytest.mark.parametrize("name", ["told_seq", "last_number"])
def test_damaged_counters_of_a_job_are_counted_again(
    store: SqlStore, sqlite_url: str, name: str, value: str
) -> None:
    for n in range(1, 4):
        run(store, n)
    execute(sqlite_url, f"UPDATE zeus_job SET {name} = {value}")
    asked = store.ask(request(4)).trial
    assert (asked.number, asked.asked_after_seq) == (4, 3)
    store.tell(asked.key, State.CONVERGED, report())
    assert execute(sqlite_url, "SELECT told_seq, last_number FROM zeus_job") == [(4, 4)]


def test_a_job_whose_row_was_deleted_by_hand_is_counted_again(
    store: SqlStore, sqlite_url: str
) -> None:
    """Its trials are still there: a run that is open ends,
    and the next one gets a number of its own.
    """
    run(store, 1)
    trial = store.ask(request(2)).trial
    execute(sqlite_url, "DELETE FROM zeus_job")
    assert store.heartbeat(trial.key, report(start_id="a")) is None
    assert store.tell(trial.key, State.CONVERGED, report(start_id="a")).state is State.CONVERGED
    execute(sqlite_url, "DELETE FROM zeus_job")
    waiting = PendingResult(
        job_id="d.train", key=TrialKey("ti-3", 1), state=State.CONVERGED, report=report()
    )
    replace(waiting, trial=replace(trial, number=0, key=waiting.key)).tell(store)
    assert run(store, 4).trial.number == 4
    assert [t.number for t in store.trials("d.train")] == [1, 2, 3, 4]
