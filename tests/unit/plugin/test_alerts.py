"""Events on the tab of a DAG: who sees them, who silences them, and from where."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from airflow_provider_zeus.store.alerts import ALERTS, change_book, read_book

from airflow_provider_zeus.plugin.api.action_routes import EVENT
from airflow_provider_zeus.reports.alerts import FAILING, KINDS, Event
from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from tests.unit.plugin.auth_manager import SECRET
from tests.unit.plugin.kit import dag_row, ran

ADDRESS, KEY, JOB = "/zeus/api/dags/d/alerts", f"{ALERTS}:d.train", "d.train"
OURS = {"Origin": "http://testserver", "Sec-Fetch-Site": "same-origin"}
QUIET = {"job_id": JOB, "kind": FAILING, "silenced": True}


def happened(sentence: str, dag_id: str = "d") -> None:
    event = Event(kind=FAILING, name=f"{FAILING} {dag_id}", since=1, sentence=sentence, remedy="See the log.")
    options: dict[str, Any] = {"dag_id": dag_id, "run_id": "run1", "now_s": time.time(), "kinds": ()}
    change_book(AirflowVariables(), JOB, lambda book: book.updated([event], **options))


@pytest.fixture(autouse=True)
def job(store: Store) -> Iterator[Store]:
    ran(store, 1)
    happened("It left no model.")
    yield store
    AirflowVariables().delete(KEY)


def shown(client: Any) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/zeus/api/dags/d/costs", params={"job_id": JOB}).json()["alerts"]
    return found


def test_a_viewer_sees_and_an_editor_silences(admin: Any, viewer: Any) -> None:
    seen = shown(viewer)
    assert ([row["sentence"] for row in seen["open"]], seen["may_edit"]) == (["It left no model."], False)
    assert "names a notifier" in seen["open"][0]["sent"]
    answer = admin.post(ADDRESS, json=QUIET, headers=OURS)
    assert (answer.status_code, answer.json()["open"][0]["silenced"]) == (200, True)
    assert shown(viewer)["silenced"][0]["text"].startswith("Failing: silenced by admin on ")
    assert shown(admin)["may_edit"]
    assert admin.post(ADDRESS, json={**QUIET, "silenced": False}, headers=OURS).json()["silenced"] == []

    from airflow.models.log import Log
    from airflow.utils.session import create_session

    with create_session() as session:
        lines = session.scalars(sa.select(Log).where(Log.event == EVENT).order_by(Log.id.desc()).limit(2)).all()
        assert [(line.owner, json.loads(line.extra or "")["what"]) for line in lines] == [
            ("admin", "failing heard again"),
            ("admin", "failing silenced"),
        ]


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 403), ({"Origin": "https://evil.example"}, 403), ({**OURS, "Content-Type": "text/plain"}, 415)],
)
def test_another_sites_request_is_refused(admin: Any, headers: dict[str, str], status: int) -> None:
    headers = {"Content-Type": "application/json", **headers}
    assert admin.post(ADDRESS, content=json.dumps(QUIET), headers=headers).status_code == status
    assert read_book(AirflowVariables(), JOB).silenced == {}


@pytest.mark.parametrize(
    "body", [{**QUIET, "kind": "x"}, {**QUIET, "silenced": 1}, {**QUIET, "more": 1}, {"job_id": JOB}, {}, []]
)
def test_a_body_that_is_wrong_is_refused(admin: Any, body: Any) -> None:
    assert admin.post(ADDRESS, json=body, headers=OURS).status_code == 422
    assert admin.post(ADDRESS, content=b"x" * 20_000, headers={**OURS, "Content-Type": "application/json"}).is_error


def test_who_may_not_edit_every_dag_of_the_job_silences_nothing(viewer: Any, admin: Any, job: Store) -> None:
    assert viewer.post(ADDRESS, json=QUIET, headers=OURS).status_code == 403
    assert admin.post(ADDRESS, json={**QUIET, "job_id": "other"}, headers=OURS).status_code == 404
    ran(job, 2, dag_id=SECRET)
    with dag_row(SECRET):
        assert admin.post(ADDRESS, json=QUIET, headers=OURS).status_code == 403
        assert not shown(admin)["may_edit"]
        for n in range(3, 40):  # more than the page reads of the job
            ran(job, n)
        assert not shown(admin)["may_edit"], "the page offers what the request would refuse"
    assert read_book(AirflowVariables(), JOB).silenced == {}


def test_a_deleted_dag_keeps_nobody_from_silencing_and_still_hides_who_did(admin: Any, job: Store) -> None:
    ran(job, 2, dag_id="gone")
    assert shown(admin)["may_edit"]
    answer = admin.post(ADDRESS, json=QUIET, headers=OURS)
    assert (answer.status_code, "admin" in answer.text) == (200, False)


def test_a_dag_shows_its_own_events_alone(viewer: Any) -> None:
    happened("Hidden.", dag_id=SECRET)
    assert [row["sentence"] for row in shown(viewer)["open"]] == ["It left no model."]


def test_who_silenced_a_kind_of_a_shared_job_is_told_to_those_who_may_read_all_its_dags(
    admin: Any, viewer: Any, job: Store
) -> None:
    ran(job, 2, dag_id="e")
    assert admin.post(ADDRESS, json=QUIET, headers=OURS).status_code == 200
    assert "silenced by admin on" in shown(viewer)["silenced"][0]["text"], "both DAGs are readable"
    ran(job, 3, dag_id=SECRET)
    for n in range(4, 40):  # more than the page reads of the job
        ran(job, n)
    assert shown(viewer)["silenced"][0]["text"].startswith("Failing: silenced on ")


@pytest.mark.parametrize("text", ["[]", "x" * 100, '{"v": 1, "records": [[]]}'])
def test_a_variable_that_holds_something_else_shows_nothing(viewer: Any, text: str) -> None:
    AirflowVariables().set(KEY, text)
    assert shown(viewer)["open"] == []


def test_every_kind_can_be_silenced(admin: Any) -> None:
    for kind in KINDS:
        assert admin.post(ADDRESS, json={**QUIET, "kind": kind}, headers=OURS).status_code == 200
    assert set(read_book(AirflowVariables(), JOB).silenced) == set(KINDS)
