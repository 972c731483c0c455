"""Pausing and pinning: who may, from where, what is written down."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Phase
from airflow_provider_zeus.plugin.api import auth, reading
from airflow_provider_zeus.plugin.api.action_routes import EVENT
from airflow_provider_zeus.plugin.views import overview_state, overview_view
from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from tests.unit.plugin.auth_manager import SECRET
from tests.unit.plugin.kit import JOB, dag_row, ran
from tests.unit.store.store_kit import request

ADDRESS = "/zeus/api/dags/d/settings"
KEY = "zeus-settings:d.train"
OURS = {"Origin": "http://testserver", "Sec-Fetch-Site": "same-origin"}
PAUSE = {"job_id": "d.train", "pause_exploration": True}


@pytest.fixture(autouse=True)
def job(store: Store) -> Iterator[Store]:
    """A job with a run; its Variable is gone afterwards."""
    ran(store, 1)
    yield store
    AirflowVariables().delete(KEY)


def test_pause_and_pin_and_back(admin: Any, job: Store) -> None:
    answer = admin.post(ADDRESS, json=PAUSE, headers=OURS)
    assert (answer.status_code, answer.json()["paused"], answer.json()["pinned"]) == (
        200,
        True,
        None,
    )
    assert (
        admin.post(ADDRESS, json={"job_id": "d.train", "pin_batch_size": 64}, headers=OURS).json()[
            "pinned"
        ]
        == 64
    )
    assert job.settings("d.train") == {"pause_exploration": True, "pin_batch_size": 64}
    assert job.ask(request(2, job=JOB)).trial.batch_size == 64, "the next run takes it"
    again = {"job_id": "d.train", "resume": True}
    assert admin.post(ADDRESS, json=again, headers=OURS).status_code == 200
    assert job.settings("d.train") == {}


def test_a_job_without_batch_sizes_has_nothing_to_pause(admin: Any, job: Store) -> None:
    asked = job.ask(request(1, job_id="d.alone", job=ZeusJob(eta=0.5), device=None))
    answer = admin.post(ADDRESS, json={**PAUSE, "job_id": asked.trial.job_id}, headers=OURS)
    assert (answer.status_code, job.settings("d.alone")) == (409, {})
    assert 'mode="measure" in its task' in answer.json()["detail"]


def test_who_and_when_is_written_down_and_shown(admin: Any, viewer: Any) -> None:
    admin.post(ADDRESS, json=PAUSE, headers=OURS)
    change = json.loads(AirflowVariables().get(KEY) or "")["changed"]
    assert (change["by"], change["what"], change["at"][-6:]) == (
        "admin",
        "exploration paused",
        "+00:00",
    )
    seen = viewer.get(ADDRESS, params={"job_id": "d.train"}).json()
    assert seen["changed"].startswith("admin, ")
    assert not seen["may_edit"]

    from airflow.models.log import Log
    from airflow.utils.session import create_session

    with create_session() as session:
        line = session.scalars(
            sa.select(Log).where(Log.event == EVENT).order_by(Log.id.desc())
        ).first()
        assert line is not None
        assert (line.owner, line.dag_id, "exploration paused" in (line.extra or "")) == (
            "admin",
            "d",
            True,
        )


def test_who_changed_a_shared_job_is_told_to_those_who_may_read_all_its_dags(
    admin: Any, viewer: Any, job: Store
) -> None:
    admin.post(ADDRESS, json=PAUSE, headers=OURS)
    ran(job, 2, dag_id="e")

    def told() -> list[str]:
        (row, *_) = viewer.get("/zeus/api/jobs").json()["jobs"]
        return [viewer.get(ADDRESS, params={"job_id": "d.train"}).json()["changed"], row["changed"]]

    assert all(text.startswith("admin, ") for text in told())
    ran(job, 3, dag_id=SECRET)
    assert all("admin" not in text and text.endswith(": exploration paused") for text in told())


def test_a_change_leaves_other_settings_alone(admin: Any, job: Store) -> None:
    AirflowVariables().set(KEY, '{"eta": 0.9}')
    admin.post(ADDRESS, json=PAUSE, headers=OURS)
    assert job.settings("d.train") == {"eta": 0.9, "pause_exploration": True}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://testserver.evil.example"}, 403),
        ({"Origin": "http://testserver", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({**OURS, "Content-Type": "text/plain"}, 415),
        ({**OURS, "Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({**OURS, "Content-Type": ""}, 415),
    ],
)
def test_another_sites_request_is_refused(
    admin: Any, job: Store, headers: dict[str, str], status: int
) -> None:
    headers = {"Content-Type": "application/json", **headers}
    assert admin.post(ADDRESS, content=json.dumps(PAUSE), headers=headers).status_code == status
    assert job.settings("d.train") == {}


def test_a_token_of_its_own_needs_no_browser(
    anonymous: Any, token_of: Callable[..., str], admin: Any
) -> None:
    headers = {"Authorization": f"Bearer {token_of('admin', 'admin')}"}
    assert anonymous.post(ADDRESS, json=PAUSE, headers=headers).status_code == 200


def test_who_may_only_look_may_not_change(
    viewer: Any, anonymous: Any, admin: Any, job: Store
) -> None:
    assert viewer.post(ADDRESS, json=PAUSE, headers=OURS).status_code == 403
    assert anonymous.post(ADDRESS, json=PAUSE, headers=OURS).status_code == 401
    ran(job, 2, dag_id=SECRET, job_id="theirs")
    theirs = {"job_id": "theirs", "resume": True}
    assert (
        admin.post(f"/zeus/api/dags/{SECRET}/settings", json=theirs, headers=OURS).status_code
        == 403
    )
    assert admin.post(ADDRESS, json=theirs, headers=OURS).status_code == 404, (
        "nor through another DAG"
    )
    assert job.settings("d.train") == {}


@pytest.mark.parametrize(
    "row",
    [{"is_paused": False}, {"is_paused": True}, {"is_stale": True}],
    ids=["present", "paused", "stale"],
)
def test_a_job_that_is_shared_takes_permission_on_every_dag_of_it(
    admin: Any, job: Store, row: dict[str, bool]
) -> None:
    ran(job, 2, dag_id=SECRET)
    with dag_row(SECRET, **row):
        assert admin.post(ADDRESS, json=PAUSE, headers=OURS).status_code == 403
        assert not admin.get(ADDRESS, params={"job_id": "d.train"}).json()["may_edit"]
    assert job.settings("d.train") == {}


def test_a_dag_that_was_deleted_in_airflow_keeps_nobody_from_changing_a_job_that_it_shared(
    admin: Any, viewer: Any, job: Store
) -> None:
    ran(job, 2, dag_id="gone")
    assert admin.get(ADDRESS, params={"job_id": "d.train"}).json()["may_edit"]
    for change in ({"pause_exploration": True}, {"pin_batch_size": 64}, {"audit": True}):
        assert (
            admin.post(ADDRESS, json={"job_id": "d.train", **change}, headers=OURS).status_code
            == 200
        )
    assert viewer.post(ADDRESS, json=PAUSE, headers=OURS).status_code == 403
    assert not viewer.get(ADDRESS, params={"job_id": "d.train"}).json()["may_edit"]


def test_every_dag_counts_as_present_where_airflow_does_not_say_which_are(
    admin: Any, job: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> Any:
        raise sa.exc.OperationalError("select", {}, Exception("away"))

    ran(job, 2, dag_id="gone")
    monkeypatch.setattr(reading, "create_session", away)
    assert admin.post(ADDRESS, json=PAUSE, headers=OURS).status_code == 403


@pytest.mark.parametrize(
    "body",
    [
        {"job_id": "d.train"},
        {"job_id": "d.train", "pin_batch_size": 17},
        {"job_id": "d.train", "pin_batch_size": "64"},
        {"job_id": "d.train", "pin_batch_size": 0},
        {"job_id": "d.train", "pin_batch_size": 10**30},
        {"job_id": "d.train", "pause_exploration": 1},
        {"job_id": "d.train", "eta": 1.0},
        {"pause_exploration": True},
        [],
        {},
    ],
)
def test_odd_bodies_are_refused(admin: Any, job: Store, body: Any) -> None:
    assert admin.post(ADDRESS, json=body, headers=OURS).status_code == 422
    assert job.settings("d.train") == {}


def test_a_setting_that_the_environment_holds_is_named(
    admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_ZEUS-SETTINGS:D.TRAIN", '{"eta": 0.2}')
    answer = admin.post(ADDRESS, json=PAUSE, headers=OURS)
    assert answer.status_code == 503
    assert f"Variable {KEY!r} does not keep" in answer.json()["problem"]


def test_a_change_that_fails_blames_no_run_log(
    admin: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither to a user who may not see the reason nor in the log."""
    monkeypatch.setenv("AIRFLOW_VAR_ZEUS-SETTINGS:D.TRAIN", '{"eta": 0.2}')
    monkeypatch.setattr(auth, "sees_addresses", lambda _: False)
    with caplog.at_level(logging.WARNING):
        answer = admin.post(ADDRESS, json=PAUSE, headers=OURS)
    assert answer.status_code == 503
    assert "run log" not in answer.json()["problem"]
    assert f"Variable {KEY!r} does not keep" in caplog.text
    assert "run log" not in caplog.text


def test_a_text_with_a_stray_comma_is_refused_shown_and_never_written_over(
    admin: Any, job: Store
) -> None:
    text = '{"eta": 0.9, "pin_batch_size": 64,}'
    AirflowVariables().set(KEY, text)
    seen = admin.get(ADDRESS, params={"job_id": "d.train"}).json()
    assert (seen["paused"], seen["pinned"], seen["changed"]) == (False, None, "")
    assert KEY in seen["problem"]
    for change in (
        PAUSE,
        {"job_id": "d.train", "pin_batch_size": 32},
        {"job_id": "d.train", "resume": True},
    ):
        answer = admin.post(ADDRESS, json=change, headers=OURS)
        assert answer.status_code == 503
        problem = answer.json()["problem"]
        assert ("line 1 column 35" in problem, "pin_batch_size" in problem) == (True, False), (
            "where, not the text"
        )
    assert AirflowVariables().get(KEY) == text
    assert job.settings("d.train") == {}
    (row,) = admin.get("/zeus/api/jobs").json()["jobs"]
    assert row["changed"] == seen["problem"]
    assert row["settings"] == []
    AirflowVariables().set(KEY, text.replace(",}", "}"))
    assert admin.get(ADDRESS, params={"job_id": "d.train"}).json()["problem"] == ""


def test_the_default_is_measured_when_asked_for(admin: Any, viewer: Any, job: Store) -> None:
    before = admin.get(ADDRESS, params={"job_id": "d.train"}).json()["audit_text"]
    assert f"batch size {JOB.default_batch_size}, the default, at a cost of about" in before
    answer = admin.post(ADDRESS, json={"job_id": "d.train", "audit": True}, headers=OURS)
    assert (answer.status_code, answer.json()["audit_text"]) == (200, "")
    assert job.settings("d.train") == {"audit_after": 1}
    trial = job.ask(request(2, job=JOB)).trial
    assert (trial.planned.phase, trial.batch_size) == (Phase.AUDIT, JOB.default_batch_size)


def test_after_many_runs_the_page_does_not_say_that_the_default_still_waits(
    admin: Any, job: Store
) -> None:
    """It knows the newest runs alone; the audit is among the older ones."""
    admin.post(ADDRESS, json={"job_id": "d.train", "audit": True}, headers=OURS)
    for n in range(2, 4 + overview_state.NEWEST):
        ran(job, n)
    newest = job.trials("d.train", last=overview_state.NEWEST)
    assert all(t.planned.phase is not Phase.AUDIT for t in newest)
    assert overview_view.controls(newest, job.settings("d.train"), {}, may_edit=True).audit_text


def test_a_run_that_was_decided_before_it_was_asked_for_is_not_taken_for_it(job: Store) -> None:
    """Its later attempts have numbers above that of the question."""
    ran(job, 2)
    ran(job, 3)
    newest = job.trials("d.train")
    assert all(t.planned.phase is not Phase.AUDIT for t in newest)
    assert overview_view.controls(newest, {"audit_after": 1}, {}, may_edit=True).audit_text == ""


def test_the_default_is_measured_after_an_audit_in_another_dag_that_shares_the_job(
    admin: Any, job: Store
) -> None:
    ask = {"job_id": "d.train", "audit": True}
    ran(job, 2, dag_id="e")
    admin.post(ADDRESS, json=ask, headers=OURS)
    ran(job, 3, dag_id="e")
    assert job.trials("d.train")[-1].planned.phase is Phase.AUDIT
    assert admin.get(ADDRESS, params={"job_id": "d.train"}).json()["audit_text"], "it waits no more"
    admin.post(ADDRESS, json=ask, headers=OURS)
    assert job.settings("d.train") == {"audit_after": 3}
    assert job.ask(request(4, job=JOB)).trial.planned.phase is Phase.AUDIT
