"""The routes of a run's tab inside Airflow's own app, with logins on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.model.trial_fields import flat
from airflow_provider_zeus.operators.mixins import figures_of
from airflow_provider_zeus.plugin.api.run_routes import saving_of
from airflow_provider_zeus.plugin.views import run_view
from airflow_provider_zeus.store import pending
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.sql import schema
from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from tests.unit.plugin.auth_manager import SECRET
from tests.unit.plugin.kit import JOB, ran, trial
from tests.unit.store.store_kit import DictPort, report, request

RUN = "/zeus/api/dags/{}/runs/{}"


def costs(browser: Any, run_id: str = "run1", dag_id: str = "d", **asked: Any) -> Any:
    return browser.get(f"{RUN.format(dag_id, quote(run_id, safe=''))}/costs", params=asked)


def charts(browser: Any, run_id: str = "run1", dag_id: str = "d", **asked: Any) -> Any:
    asked = {"job_id": "d.train", "task_id": "train", **asked}
    return browser.get(f"{RUN.format(dag_id, quote(run_id, safe=''))}/charts", params=asked)


def asked(store: Store, run_id: str, n: int, **changes: Any) -> Any:
    origin = replace(request(n).origin, run_id=run_id, **changes)
    job_id = f"d.{origin.task_id}"
    return store.ask(request(n, ti_id=f"ti-{n}", origin=origin, job=JOB, job_id=job_id)).trial


# --- who may see it


def test_charts_need_login_and_permission_as_costs_do(
    viewer: Any, anonymous: Any, store: Store
) -> None:
    ran(store, 1, profile=2, points=3)
    ran(store, 1, dag_id=SECRET, job_id="theirs")
    assert charts(anonymous).status_code == 401
    assert charts(viewer, dag_id=SECRET, job_id="theirs").status_code == 403
    through = charts(viewer, job_id="theirs").json()
    assert through == {"note": run_view.NO_TRIAL}
    assert charts(viewer, dag_id="~").status_code == 404


@pytest.mark.parametrize(
    "bad", ["a\0b", "<script>alert(1)</script>", "' OR 1=1 --", "../d", "x" * 5000]
)
def test_forged_names_give_nothing(viewer: Any, store: Store, bad: str) -> None:
    ran(store, 1)
    for asked_ in ({"job_id": bad}, {"task_id": bad}):
        answer = charts(viewer, **asked_)
        if "\0" in bad:  # PostgreSQL refuses it
            assert answer.status_code == 404
        else:
            assert (answer.status_code, answer.json()["note"]) == (200, run_view.NO_TRIAL)
    assert charts(viewer, run_id=bad).status_code in (200, 404)


@pytest.mark.parametrize("bad", ["x", "1.5", "99999999999999999999999"])
def test_a_map_index_is_a_number(viewer: Any, store: Store, bad: str) -> None:
    ran(store, 1)
    assert charts(viewer, map_index=bad).status_code in (200, 422)


# --- what it answers


def test_each_map_index_of_a_shared_job_says_how_to_part(viewer: Any, store: Store) -> None:
    for n, index in enumerate((0, 1, -1, -1), start=1):
        key = asked(
            store, "run1", n, map_index=index, task_id="train" if index >= 0 else f"other{n}"
        ).key
        store.tell(key, State.CONVERGED, report(32))
    parts = costs(viewer).json()["parts"]
    assert [
        (part["map_index"], any("job_id_by=" in note for note in part["notes"])) for part in parts
    ] == [
        (None, False),
        (None, False),
        (0, True),
        (1, True),
    ]


def test_a_run_that_does_not_teach_says_so_beside_its_cost(viewer: Any, store: Store) -> None:
    key = asked(store, "run1", 1, run_type="backfill").key
    store.tell(key, State.CONVERGED, report(32))
    (part,) = costs(viewer).json()["parts"]
    assert any("learn_from" in note for note in part["notes"])
    assert part["verdict"]["kind"] == "unknown"
    assert (
        next(t for t in part["headline"][0]["figures"] if t["name"] == "Energy")["figure"]["value"]
        > 0
    )


def test_a_run_and_its_charts(viewer: Any, store: Store) -> None:
    ran(store, 1, profile=2, points=3)
    ran(store, 2, profile=1, points=5)
    answer = costs(viewer, "run2").json()
    (part,) = answer["parts"]
    assert [t["name"] for t in part["headline"][0]["figures"]] == ["Energy", "Time"]
    assert part["verdict"]["text"].endswith("what 32 takes is known from one run of it.")
    assert (answer["refresh_s"], part["live"]) == (None, False)
    found = charts(viewer, "run2").json()
    assert found["power"]["option"]["series"][0]["data"]
    assert found["gpus"] is None, "there is one"
    assert part["source"]["kind"] == "simulated"
    (curve,) = found["curves"]
    assert f"batch size {part['attempts'][-1]['batch_size']}," in curve["title"]


def test_all_runs_share_a_fit_until_the_log_the_job_or_the_device_is_another(
    viewer: Any, store: Store
) -> None:
    def saved(run_id: str) -> float:
        (part,) = costs(viewer, run_id).json()["parts"]
        tiles = [
            t
            for a in part["headline"]
            if a["about"].startswith("against ")
            for t in a["figures"]
            if t["name"] == "Together"
        ]
        return float(tiles[0]["figure"]["value"]) if tiles else 0.0

    full = {"power_limit_w": 300.0}
    variables = AirflowVariables()
    name = "zeus-settings:d.train"
    ran(store, 1, **full)
    assert saved("run1") == 0.0, "the default itself"
    variables.set(name, '{"pin_batch_size": 32}')
    ran(store, 4, **full)
    variables.set(name, '{"pin_batch_size": 64}')
    try:
        ran(store, 2, **full)
        before = saved("run2")
        assert before == saved("run2") != 0
        variables.set(name, '{"pin_batch_size": 64, "eta": 1.0}')
        assert saved("run2") != before, "weighed by another eta"
    finally:
        variables.delete(name)
    variables.set(name, '{"pin_batch_size": 32}')
    try:
        ran(store, 3, device_model="A40", **full)
    finally:
        variables.delete(name)
    before = saved("run2")
    assert saved("run3") == 0.0, "compared with what the default drew on its own device"
    assert saved("run2") == before


def test_what_each_of_several_gpus_drew(viewer: Any, store: Store) -> None:
    ran(store, 1, device_count=2, gpu_uuid="GPU-a,GPU-b", energy_j=108e3, gpu_energy_j=(36e3, 72e3))
    found = charts(viewer).json()["gpus"]
    assert [row[:3] for row in found["table"]["rows"]] == [
        ["GPU 1", "GPU-a", "10 Wh"],
        ["GPU 2", "GPU-b", "20 Wh"],
    ]


def test_every_task_and_map_index_is_a_part(viewer: Any, store: Store) -> None:
    for n, (task, index) in enumerate([("train", 0), ("train", 1), ("other", -1)], 1):
        trial = asked(store, "run1", n, task_id=task, map_index=index)
        store.tell(trial.key, State.CONVERGED, report(trial.batch_size, points=2))
    answer = costs(viewer).json()
    assert [(p["job_id"], p["title"]) for p in answer["parts"]] == [
        ("d.other", "other"),
        ("d.train", "train [0]"),
        ("d.train", "train [1]"),
    ]
    assert answer["jobs"] == ["d.other", "d.train"]
    assert [p["title"] for p in costs(viewer, job_id="d.other").json()["parts"]] == ["other"]
    assert charts(viewer, map_index=1).json()["power"]["option"]
    assert charts(viewer, map_index=7).json()["note"] == run_view.NO_TRIAL


def test_only_the_newest_run_of_a_job_says_what_comes_next(viewer: Any, store: Store) -> None:
    for n in (1, 2):
        ran(store, n)
    assert [costs(viewer, f"run{n}").json()["parts"][0]["newest"] for n in (1, 2)] == [False, True]


def test_a_running_trial_is_asked_for_again(viewer: Any, store: Store) -> None:
    trial = asked(store, "run1", 1)
    store.heartbeat(trial.key, report(trial.batch_size, epochs=2.5, profile=1, points=2))
    answer = costs(viewer).json()
    assert (answer["refresh_s"], answer["parts"][0]["progress"]["epochs"]) == (15.0, 2.5)
    found = charts(viewer).json()
    assert found["power"]["option"]
    assert found["curves"], "what still runs has profiled already"


def test_looking_writes_nothing(viewer: Any, store: Store, home: Path) -> None:
    # its lease is over: a question would close it
    trial = store.ask(request(1, lease_s=-1, job=JOB)).trial
    before = (home / "zeus.db").read_bytes()
    assert costs(viewer).json()["parts"][0]["state"] == "abandoned"
    charts(viewer)
    assert (home / "zeus.db").read_bytes() == before
    assert store.trials("d.train")[0].key == trial.key


def test_prices_are_read_for_each_answer(
    viewer: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(store, 1, energy_j=3.6e6)
    monkeypatch.setenv("AIRFLOW__ZEUS__PRICE_PER_KWH", "0.30")
    monkeypatch.setenv("AIRFLOW__ZEUS__CURRENCY", "EUR")
    (cost, *_) = costs(viewer).json()["parts"][0]["headline"]
    tiles = {t["name"]: t["figure"]["text"] for t in cost["figures"]}
    assert tiles["Money"] == "0.30 EUR"
    assert "Carbon" not in tiles


# --- costs that are not yet told


def test_a_run_whose_connection_is_not_defined_is_named_by_each_page(
    viewer: Any, home: Path, monkeypatch: pytest.MonkeyPatch, airflow_app: Any
) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    from airflow_provider_zeus.errors import UndefinedConnectionError
    from airflow_provider_zeus.operators.asking import default_trial

    monkeypatch.setattr(get_auth_manager(), "get_authorized_dag_ids", lambda **_: {"d"})
    alone = default_trial(
        request(1), UndefinedConnectionError("There is no Connection 'zeus_prud': define it.")
    )
    variables = AirflowVariables()
    where = pending.remember(
        variables, alone.key, State.CONVERGED, report(), "d.train", trial=alone
    )
    run = f"/zeus/api/dags/d/runs/{alone.origin.run_id}/costs"

    def said(field: str) -> list[str]:
        return [
            viewer.get(path).json()[field] for path in ("/zeus/api/dags/d/costs", "/zeus/api/jobs")
        ]

    try:
        without_log = said("note")
        (attempt,) = viewer.get(run).json()["parts"][0]["attempts"]
        ran(open_store(), 2)
        beside_others = said("left_out")
    finally:
        variables.delete(pending.pending_key(alone.key))
    for text in (*without_log, *beside_others, attempt["why"]):
        assert "'zeus_prud'" in text
    assert all(where in text for text in (*without_log, *beside_others))
    assert said("left_out") == ["", ""]


def test_where_a_cost_waits_is_shown(viewer: Any, store: Store) -> None:
    variables = AirflowVariables()
    trial = asked(store, "run1", 1)
    where = pending.remember(variables, trial.key, State.CONVERGED, report(), "d.train")
    try:
        (part,) = costs(viewer).json()["parts"]
    finally:
        variables.delete(pending.pending_key(trial.key))
    assert (part["live"], part["state_text"]) == (False, "not yet stored")
    assert where in part["attempts"][0]["ended"]


def test_a_cost_in_a_file_is_shown_too(viewer: Any, store: Store, home: Path) -> None:
    class Down(DictPort):
        def set(self, key: str, text: str) -> None:
            raise StoreError("no API")

    trial = asked(store, "run1", 1)
    where = pending.remember(
        Down(), trial.key, State.CONVERGED, report(), "d.train", state_dir=home / "zeus"
    )
    assert where.startswith("file ")
    (part,) = costs(viewer).json()["parts"]
    waits = part["attempts"][0]["waits"]
    assert (part["state_text"], waits) == (
        "not yet stored",
        "file zeus-untold-ti-1-1.json in [zeus] state_dir",
    )


def test_a_run_that_the_log_does_not_hold_is_shown_from_its_pending_result(
    viewer: Any, store: Store
) -> None:
    from airflow_provider_zeus.store.sql.store import SqlStore

    elsewhere = SqlStore(
        f"sqlite:///{Path(str(store.identity.removeprefix('sqlite:'))).parent / 'other.db'}",
        create=True,
    )
    trial = asked(elsewhere, "run9", 9)  # stands for the trial that a task without a store begins
    elsewhere.close()
    variables = AirflowVariables()
    news = report(32, energy_j=1234.0)
    pending.remember(variables, trial.key, State.CONVERGED, news, "d.train", trial=trial)
    variables.set("zeus-untold:broken:1", "no JSON")
    try:
        (part,) = costs(viewer, "run9").json()["parts"]
        other = costs(viewer, "run9", dag_id="another").json()
    finally:
        variables.delete(pending.pending_key(trial.key))
        variables.delete("zeus-untold:broken:1")
    assert part["headline"][0]["figures"][0]["figure"]["value"] == 1234.0
    assert part["attempts"][0]["state_text"] == "not yet stored"
    assert "not yet stored" in part["verdict"]["text"]
    assert other["note"] == run_view.NO_TRIAL, "a run of another DAG's"


# --- how much it asks


def test_as_many_questions_for_a_long_history_as_for_a_short_one(viewer: Any, store: Store) -> None:
    import sqlalchemy as sa

    counted: list[str] = []

    def count(*executed: Any) -> None:
        if "zeus_" in executed[2]:  # Airflow keeps some of its own answers for a while
            counted.append(executed[2])

    ran(store, 1)
    sa.event.listen(sa.Engine, "before_cursor_execute", count)
    try:
        costs(viewer)
        few = len(counted)
        for n in range(2, 40):
            ran(store, n)
        counted.clear()
        costs(viewer, "run20")
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", count)
    assert 0 < len(counted) <= few


def test_a_run_with_many_before_it_saved_the_same_on_its_page_and_in_its_log(
    store: Store, home: Path
) -> None:
    """The default ran twice, long ago: the newest 100 trials do not hold it."""
    trials = [
        replace(trial(n, f"run{n}", 32 if n <= 2 else 64, power_limit_w=300.0), told_seq=n)
        for n in range(1, 151)
    ]
    engine = sa.create_engine(f"sqlite:///{home / 'zeus.db'}")
    with engine.begin() as connection:
        job = {"job_id": "d.train", "told_seq": 150, "last_number": 150}
        connection.execute(sa.insert(schema.job), [job])
        connection.execute(sa.insert(schema.trial), [flat(each) for each in trials])
    engine.dispose()
    reporter: Any = SimpleNamespace(ended=trials[-1:], stopped=False)
    found = figures_of({}, reporter, lambda: store, most_s=60.0).saving
    page = saving_of(store, trials[-1:], {})
    assert found is not None
    assert page is not None
    assert found.cost.saved.value is not None
    for name in ("cost", "energy", "time"):
        assert getattr(found, name) == getattr(page, name)
