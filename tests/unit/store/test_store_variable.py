"""What only the Variable store does: refusals, whole-text writes, forgetting."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zeus.errors import DamagedLogError, StoreError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import State, TrialKey
from airflow_provider_zeus.model.wire import encode
from airflow_provider_zeus.optimizer import policy
from airflow_provider_zeus.optimizer.situation import Situation
from airflow_provider_zeus.store import service
from airflow_provider_zeus.store.base import JobHead, JobProfile
from airflow_provider_zeus.store.variables import tables
from airflow_provider_zeus.store.variables.airflow import variable_key
from airflow_provider_zeus.store.variables.document import KEPT_POINTS
from airflow_provider_zeus.store.variables.store import VariableStore
from tests.unit.store.store_kit import DEVICE, JOB, Clock, DictPort, parts_of, report, request, seen
from tests.unit.store.test_stored_texts import FULL

LOG = "zeus-log:d.train"


@pytest.fixture
def port() -> DictPort:
    return DictPort()


@pytest.fixture
def store(port: DictPort, clock: Clock) -> VariableStore:
    return VariableStore(port, overlap_possible=False, now=clock)


@pytest.mark.parametrize("overlap", [True, None])
def test_a_question_is_refused_where_recurrences_could_overlap(
    port: DictPort, overlap: bool | None
) -> None:
    with pytest.raises(
        StoreError, match=r"max_active_tis_per_dag=1.* or let Connection 'mine' name a PostgreSQL"
    ):
        VariableStore(port, conn_id="mine", overlap_possible=overlap).ask(request(1))
    assert port.data == {}


def test_measured_tasks_may_overlap_and_no_row_is_lost(
    port: DictPort, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run writes what it had read before the end was written, as Variables have no lock."""
    store = VariableStore(port, overlap_possible=True, now=clock)
    asked = [store.ask(request(n, job=ZeusJob(mode="measure"), device=None)).trial for n in (1, 2)]
    assert [trial.number for trial in asked] == [1, 2]
    before = port.data[LOG]
    monkeypatch.setattr(time, "sleep", lambda _: port.data.update({LOG: before}))
    store.tell(asked[0].key, State.DONE, report())
    monkeypatch.setattr(time, "sleep", lambda _: None)
    store.tell(asked[1].key, State.DONE, report())
    assert [t.state for t in store.trials("d.train")] == [State.DONE, State.DONE]


def test_a_question_is_refused_while_another_task_instance_runs(
    store: VariableStore, port: DictPort
) -> None:
    store.ask(request(1))
    before = dict(port.data)
    with pytest.raises(StoreError, match=r"'run1'.*max_active_tis_per_dag=1"):
        store.ask(request(2))
    assert port.data == before


def test_nothing_is_reaped_while_a_trial_runs_whose_words_could_be_lost(
    store: VariableStore, port: DictPort, clock: Clock
) -> None:
    first = store.ask(request(1)).trial
    alive = store.adopt(replace(first, key=TrialKey("adopted")), lease_s=1000.0)
    clock.t += 91
    before = dict(port.data)
    assert store.reap("d.train") == []
    assert port.data == before
    store.tell(alive.key, State.CONVERGED, report())
    assert [t.key for t in store.reap("d.train")] == [first.key]


def test_a_heartbeat_keeps_others_refused(store: VariableStore, clock: Clock) -> None:
    key = store.ask(request(1)).trial.key
    clock.t += 80
    store.heartbeat(key, report(), lease_s=90)
    clock.t += 80
    with pytest.raises(StoreError, match="still running"):
        store.ask(request(2))
    clock.t += 20
    assert store.ask(request(2)).trial.number == 2


def test_a_late_question_of_an_earlier_try_is_refused(store: VariableStore) -> None:
    store.ask(request(1, ti_id="new", try_number=2))
    with pytest.raises(StoreError, match="still running"):
        store.ask(request(1, ti_id="old", try_number=1))


@pytest.mark.parametrize("lost", [LOG, "zeus-beat:ti-1", "zeus-jobs"])
def test_a_write_that_did_not_survive_is_an_error(
    store: VariableStore, port: DictPort, lost: str
) -> None:
    port.lose.add(lost)
    with pytest.raises(StoreError, match=f"{lost}.*another text"):
        store.ask(request(1))


def test_a_heartbeat_writes_its_own_key_only(store: VariableStore, port: DictPort) -> None:
    key = store.ask(request(1)).trial.key
    port.written.clear()
    store.heartbeat(key, report(epochs=1.0))
    assert port.written == ["zeus-beat:ti-1"]
    store.tell(key, State.CONVERGED, report())
    assert sorted(port.data) == ["zeus-jobs", LOG]


def test_reading_writes_nothing(store: VariableStore, port: DictPort, clock: Clock) -> None:
    key = store.ask(request(1)).trial.key
    store.heartbeat(key, report(epochs=1.0))
    clock.t += 1000
    port.written.clear()
    store.trials("d.train")
    store.recurrence("d", "run1")
    store.points(key)
    store.jobs()
    store.settings("d.train")
    assert port.written == []


def test_the_newest_500_trials_are_kept_and_forgetting_is_said_once(
    store: VariableStore,
    port: DictPort,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tables, "KEPT_TRIALS", 5)
    with caplog.at_level(logging.WARNING, "airflow_provider_zeus"):
        for n in range(1, 9):
            key = store.ask(request(n)).trial.key
            store.tell(key, State.CONVERGED, report())
    assert [t.number for t in store.trials("d.train")] == [4, 5, 6, 7, 8]
    assert json.loads(port.data[LOG])["forgotten"] == 3
    assert [r.args for r in caplog.records if "PostgreSQL" in r.getMessage()] == [("d.train", 5)]
    asked = store.ask(request(9))
    assert (asked.trial.number, asked.trial.asked_after_seq) == (9, 8)


@pytest.mark.slow
def test_a_full_log_stays_below_a_megabyte(store: VariableStore, port: DictPort) -> None:
    assert tables.KEPT_TRIALS == 500
    first = replace(
        FULL, told_seq=1, observation=replace(FULL.observation, epoch_metrics=(0.001,) * 100)
    )
    trials = [
        replace(first, number=n, key=TrialKey(f"{n:036d}"), origin=request(n).origin, told_seq=n)
        for n in range(1, 502)
    ]
    samples = report(profile=64).profile
    profile = JobProfile(
        job_id="d.train",
        device_model=DEVICE.model,
        device_count=DEVICE.count,
        energy_source=DEVICE.energy_source,
        job_version=JOB.job_version,
        samples=samples,
    )
    store.take_in([*parts_of("d.train", trials, report(points=100).points), profile])
    key = store.ask(request(502)).trial.key
    store.tell(key, State.CONVERGED, report(profile=64, points=100))
    assert len(port.data[LOG]) < 1_000_000
    kept = store.trials("d.train")
    assert [t.number for t in kept] == list(range(3, 503))
    assert [t.number for t in kept if t.observation.epoch_metrics] == list(range(483, 502))
    assert [number for number, _ in json.loads(port.data[LOG])["points"]] == list(range(483, 503))


def test_what_is_taken_in_changes_no_other_job_and_none_that_runs(
    store: VariableStore, port: DictPort, clock: Clock
) -> None:
    running = store.ask(request(1)).trial.key
    store.heartbeat(running, report(epochs=1.0, profile=1, points=1))
    before = dict(port.data)
    closed = replace(FULL, job_id="e.train", number=1, told_seq=1)
    with pytest.raises(StoreError, match=r"'d\.train' is running"):
        store.take_in(
            [*parts_of("e.train", [closed]), JobHead(job_id="d.train", told_seq=0, last_number=0)]
        )
    assert port.data == before
    assert store.take_in(parts_of("e.train", [closed])) == {"e.train": (1, 0)}
    assert store.trials("e.train") == [closed]
    assert {key: port.data[key] for key in before if key != "zeus-jobs"} == {
        key: text for key, text in before.items() if key != "zeus-jobs"
    }
    with pytest.raises(StoreError, match=r"is in this log already, as row 1 of 'e\.train'"):
        store.take_in(parts_of("f.train", [replace(closed, job_id="f.train")]))


def test_a_checkpoint_saves_time_and_counts_only_beside_its_log(
    store: VariableStore, port: DictPort
) -> None:
    for n in range(1, 20):
        store.tell(store.ask(request(n)).trial.key, State.CONVERGED, report(energy_j=1000.0 + n))
    document = json.loads(port.data[LOG])
    assert document["checkpoint"][2] == 16, "trials that it holds"
    after = {}
    for name, log in {
        "kept": port.data[LOG],
        "deleted": json.dumps(
            {name: part for name, part in document.items() if name != "checkpoint"}
        ),
        "of another log": port.data[LOG].replace('"energy_j":1003.0', '"energy_j":9.0'),
    }.items():
        port.data[LOG] = log
        before = json.dumps(port.data)
        after[name] = store.ask(request(20)).trial.decision
        port.data = json.loads(before)
    assert after["kept"] == after["deleted"]
    assert after["of another log"] != after["kept"]


def test_a_trial_of_a_newer_version_is_read_teaches_nothing_and_keeps_its_names(
    store: VariableStore, port: DictPort
) -> None:
    for n in (1, 2):
        store.tell(store.ask(request(n)).trial.key, State.CONVERGED, report())
    log = json.loads(port.data[LOG])
    log["trials"][1]["state"] = "archived"
    log["trials"][1]["decision"]["attempts"][0] |= {"phase": "double", "doublings": 3}
    port.data[LOG] = json.dumps(log)
    assert [t.state.value for t in store.trials("d.train")] == ["converged", "archived"]
    third = store.ask(request(3)).trial
    assert third.number == 3
    assert "archived" in port.data[LOG]
    assert "double" in port.data[LOG]
    belief = policy.learn(policy.prior(JOB), store.trials("d.train")[0])
    seed = policy.decision_seed("d.train", 3)
    assert third.decision == policy.choose(
        Situation(JOB, belief, device=DEVICE, seed=seed, run_type="scheduled")
    )


def test_points_of_one_trial_are_capped(store: VariableStore) -> None:
    key = store.ask(request(1)).trial.key
    for part in range(4):
        new = [replace(p, t_s=part * 80 + p.t_s) for p in report(points=80).points]
        store.heartbeat(key, Report(observation=seen(), points=new))
        assert len(store.points(key)) <= KEPT_POINTS
    store.tell(key, State.CONVERGED, report())
    points = store.points(key)
    assert 10 < len(points) <= KEPT_POINTS
    assert points[-1].t_s == 320.0


def test_a_question_does_not_write_over_an_end_that_came_meanwhile(
    store: VariableStore, port: DictPort, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier try tells its end while the next one is decided, on another host."""
    first = store.ask(request(1, ti_id="first")).trial
    decide = service.ask

    def decided_late(*args: Any, **options: Any) -> Any:
        answer = decide(*args, **options)
        VariableStore(port, overlap_possible=False, now=clock).tell(
            first.key, State.CONVERGED, report()
        )
        return answer

    again = request(1, ti_id="second", try_number=2)
    monkeypatch.setattr(service, "ask", decided_late)
    with pytest.raises(StoreError, match="at the same time") as refused:
        store.ask(again)
    assert refused.value.passing
    monkeypatch.setattr(service, "ask", decide)
    assert store.ask(again).trial.number == 2
    assert [t.state for t in store.trials("d.train")] == [State.CONVERGED, State.RUNNING]


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"v": 2}', '{"v": 99}', '{"v": 2, "job_id": "d.train", "trials": [3]}']
)
def test_a_log_that_is_none_is_named_and_left_alone(
    store: VariableStore, port: DictPort, text: str
) -> None:
    port.data[LOG] = text
    with pytest.raises(StoreError, match=r"zeus-log:d\.train.*repair"):
        store.ask(request(1))
    assert port.data[LOG] == text


def test_a_log_of_another_version_is_refused_with_the_remedy_and_left_alone(
    store: VariableStore, port: DictPort
) -> None:
    store.tell(store.ask(request(1)).trial.key, State.CONVERGED, report())
    port.data[LOG] = text = json.dumps(json.loads(port.data[LOG]) | {"v": 1})
    for call in (lambda: store.ask(request(2)), lambda: store.trials("d.train")):
        with pytest.raises(
            StoreError, match=r"zeus-log:d\.train.*another version wrote it.*export the log"
        ):
            call()
    assert port.data[LOG] == text


def test_an_api_that_is_gone_is_an_error_of_the_store(store: VariableStore, port: DictPort) -> None:
    key = store.ask(request(1)).trial.key
    port.down = True
    for call in (
        lambda: store.ask(request(1)),
        lambda: store.heartbeat(key, report()),
        lambda: store.tell(key, State.CONVERGED, report()),
        lambda: store.trials("d.train"),
    ):
        with pytest.raises(StoreError):
            call()


def test_a_beat_lost_between_two_writes_is_made_up_for(
    store: VariableStore, port: DictPort
) -> None:
    key = store.ask(request(1)).trial.key
    del port.data["zeus-beat:ti-1"]  # died after the log was written
    store.heartbeat(key, report(epochs=2.0))
    (trial,) = store.trials("d.train")
    assert trial.observation.epochs == 2.0


def test_a_list_of_jobs_that_lost_one_is_mended_by_its_next_question(
    store: VariableStore, port: DictPort
) -> None:
    key = store.ask(request(1)).trial.key
    store.tell(key, State.CONVERGED, report())
    port.data["zeus-jobs"] = '["other"]'
    store.ask(request(2))
    assert store.jobs() == ["d.train", "other"]


def test_keys_are_ones_that_airflow_takes() -> None:
    assert variable_key("zeus-log", "dag.task-1_x") == "zeus-log:dag.task-1_x"
    hashed = {
        variable_key("zeus-log", name)
        for name in ("a b", "a/b", "ä", "x" * 200, "tokenizer", "my_secret", "")
    }
    assert len(hashed) == 7
    for key in hashed:
        prefix, _, name = key.partition(":~")
        assert prefix == "zeus-log"
        assert len(name) == 40
    assert variable_key("zeus-settings", "tokenizer.train") == "zeus-settings:tokenizer.train"


# --- damage


def spoil(port: DictPort, number: int, **changes: object) -> None:
    """Change one trial of the log by hand."""
    log = json.loads(port.data[LOG])
    log["trials"][number - 1].update(changes)
    port.data[LOG] = json.dumps(log)


def test_one_damaged_trial_does_not_lose_the_others_and_can_be_repaired(
    store: VariableStore, port: DictPort
) -> None:
    for n in (1, 2, 3):
        store.tell(store.ask(request(n)).trial.key, State.CONVERGED, report())
    before = store.trials("d.train")
    spoil(port, 2, attempt="first", decision=7)
    assert [t.number for t in store.trials("d.train")] == [1, 3]
    assert [(d.job_id, d.number, d.dag_id) for d in store.unreadable] == [("d.train", 2, "d")]
    fourth = store.ask(request(4, job=replace(JOB, job_version="2"))).trial
    store.tell(fourth.key, State.CONVERGED, report())
    log = json.loads(port.data[LOG])
    (kept,) = [t for t in log["trials"] if t["number"] == 2]
    kept |= {"attempt": 1, "decision": encode(before[1].decision)}
    port.data[LOG] = json.dumps(log)
    assert [t.number for t in store.trials("d.train")] == [1, 2, 3, 4]
    assert store.trials("d.train")[:3] == before


def test_one_damaged_variable_hides_no_other_job(store: VariableStore, port: DictPort) -> None:
    damaged = store.ask(request(1, job_id="a")).trial
    for job_id, dag_id in (("b", "d"), ("c", "e")):
        asked = store.ask(
            request(
                2, ti_id=job_id, job_id=job_id, origin=replace(request(2).origin, dag_id=dag_id)
            )
        )
        store.tell(asked.trial.key, State.CONVERGED, report())
    port.data["zeus-log:a"] = port.data["zeus-log:a"][:50]
    del port.data["zeus-beat:ti-1"]
    assert [t.job_id for t in store.latest(last=5)] == ["b", "c"]
    assert (store.jobs("d"), store.jobs("e"), store.jobs()) == (["b"], ["c"], ["a", "b", "c"])
    assert [t.job_id for t in store.recurrence("d", "run2")] == ["b"]
    assert store.tell(asked.trial.key, State.CONVERGED, report()).job_id == "c"
    with pytest.raises(DamagedLogError, match="zeus-log:a"):
        store.trials("a")
    for may_be_there in (lambda: store.jobs("f"), lambda: store.recurrence("d", "run1")):
        with pytest.raises(DamagedLogError, match="zeus-log:a"):
            may_be_there()
    with pytest.raises(DamagedLogError, match="zeus-log:a"):
        store.tell(damaged.key, State.CONVERGED, report())


@pytest.mark.parametrize(
    "changes", [{"opened_at": 1e15}, {"epochs": 1e-308}, {"lease_s": -1e15}, {"time_s": 1e300}]
)
def test_a_number_that_cannot_be_is_damage(
    store: VariableStore, port: DictPort, changes: dict[str, float]
) -> None:
    for n in (1, 2, 3):
        store.tell(store.ask(request(n)).trial.key, State.CONVERGED, report())
    spoil(port, 2, **changes)
    assert [t.number for t in store.trials("d.train")] == [1, 3]
    (damage,) = store.unreadable
    assert damage.problem.startswith(next(iter(changes)))
    assert store.ask(request(4)).trial.number == 4


def test_a_damaged_trial_keeps_its_attempt_to_itself(store: VariableStore, port: DictPort) -> None:
    store.tell(store.ask(request(1)).trial.key, State.CONVERGED, report())
    spoil(port, 1, decision=7)
    assert store.ask(request(1)).trial.key == TrialKey("ti-1", 2)


@pytest.mark.parametrize(
    "changes", [{"decision": 7}, {"epochs": "x", "dag_id": None}, {"number": "x", "state": 1}]
)
def test_a_damaged_trial_moves_with_its_job_and_keeps_the_rest(
    store: VariableStore, port: DictPort, changes: dict[str, object]
) -> None:
    for n in (1, 2):
        store.tell(store.ask(request(n)).trial.key, State.CONVERGED, report())
    document = json.loads(port.data[LOG])
    document["trials"][1] |= changes
    port.data[LOG] = json.dumps(document)
    store.rename("d.train", "e.train")
    assert [t.number for t in store.trials("e.train")] == [1]
    kept = next(
        t for t in json.loads(port.data["zeus-log:e.train"])["trials"] if t["ti_id"] == "ti-2"
    )
    assert {name: kept[name] for name in changes} == changes
    assert kept["number"] == changes.get("number", 2)


@pytest.mark.parametrize("part", ["samples", "points"])
def test_damaged_samples_or_points_do_not_lose_the_log(
    store: VariableStore, port: DictPort, part: str
) -> None:
    store.tell(store.ask(request(1)).trial.key, State.CONVERGED, report(profile=1, points=2))
    log = json.loads(port.data[LOG])
    log[part] = [["V100", 1, "simulated", [{"batch_size": "x"}], "1"], 7, *log[part]]
    port.data[LOG] = json.dumps(log)
    assert len(store.trials("d.train")) == 1
    assert len(store.points(TrialKey("ti-1"))) == 2
    assert [s.samples for s in store.ask(request(2)).profile] == [10]


@pytest.mark.parametrize("text", ["{", "[]", '{"v": 2}', "null"])
def test_a_damaged_heartbeat_is_written_again_by_the_next_one(
    store: VariableStore, port: DictPort, text: str
) -> None:
    key = store.ask(request(1)).trial.key
    port.data["zeus-beat:ti-1"] = text
    assert [t.number for t in store.trials("d.train")] == [1]
    store.heartbeat(key, report(epochs=2.0))
    assert store.trials("d.train")[0].observation.epochs == 2.0
    port.written.clear()
    store.heartbeat(key, report(epochs=3.0))
    assert port.written == ["zeus-beat:ti-1"]


def test_a_heartbeat_after_the_lease_has_a_key_of_its_own_again(
    store: VariableStore, port: DictPort, clock: Clock
) -> None:
    key = store.ask(request(1)).trial.key
    clock.t += 91
    store.reap("d.train")
    assert "zeus-beat:ti-1" not in port.data
    store.heartbeat(key, report(epochs=1.0))
    port.written.clear()
    store.heartbeat(key, report(epochs=2.0))
    assert port.written == ["zeus-beat:ti-1"]
    assert store.trials("d.train")[0].observation.epochs == 2.0
