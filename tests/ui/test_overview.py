"""The page "Zeus" inside Airflow's own UI: jobs, savings as they come into sight,
pausing and pinning, odd text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_zeus.plugin.api.action_routes import EVENT
from airflow_provider_zeus.reports.months import month_of
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from tests.ui.accessible import focused
from tests.ui.conftest import Watched
from tests.ui.look import DAG_PAGE, Visit
from tests.ui.site import ADMIN, ZEUS_DAG, Site
from tests.unit.plugin.kit import ran


@pytest.mark.slow
def test_the_page_of_all_jobs(visit: Visit) -> None:
    at = visit("zeus/page", width=800)
    row = at.tab().locator("#jobs tr", has_text=ZEUS_DAG).first
    # a saving is asked for when its row is in sight; other tests leave jobs above it
    row.scroll_into_view_if_needed()
    saved = row.locator(".saved .amount, .saved .why").first
    saved.wait_for()
    box = saved.bounding_box()
    assert box["x"] + box["width"] <= 800, "what was saved is in sight on a narrow screen too"
    assert row.locator(".badge.simulated").count() >= 1
    assert re.fullmatch(
        "exploring|learning|settled|not exploring yet", row.locator(".state .badge").inner_text()
    )
    assert row.locator(".state .why").inner_text()
    assert re.match(r"Next run: (tries )?batch size \d+", row.locator(".next").inner_text())
    assert at.fine()


@pytest.fixture
def month_shown(site: Site) -> Iterator[str]:
    """The month of the runs of ``ZEUS_DAG``, which may have ended since;
    in it, too, jobs whose energy a GPU's counter measured, and nothing.
    """
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    known: Any = DagModel
    dags = {
        "month_gpu": {"energy_source": "nvml_counter"},
        "month_none": {"energy_source": None, "energy_j": None},
    }
    with create_session() as session:
        for dag in dags:
            session.merge(known(dag_id=dag, bundle_name="tests", fileloc="month.py"))
    (newest,) = open_store().trials(f"{ZEUS_DAG}.train", last=1)
    then = open_store(now=lambda: newest.opened_at)
    for dag, seen in dags.items():
        ran(then, 1, dag_id=dag, job_id=f"{dag}.train", **seen)
    yield month_of(newest.opened_at)
    with create_session() as session:
        session.execute(sa.delete(DagModel).where(DagModel.dag_id.in_(dags)))


@pytest.mark.slow
def test_the_month_of_all_jobs_and_a_filter(visit: Visit, month_shown: str) -> None:
    at = visit("zeus/page", width=800)
    month = at.tab().locator("#month")
    choice = month.locator("#month-choice")
    choice.locator("option").first.wait_for(state="attached")
    if choice.input_value() != month_shown:
        choice.select_option(month_shown)
    # its heading is the verdict, and other tests leave jobs in this month
    month.locator(
        ".answer:is([aria-label^='Saved'], [aria-label='Lost']) .figures"
    ).first.wait_for()
    # tasks that other tests measured from outside have a line of their own, above or beside it
    questions = month.locator(".answer .question").all_inner_texts()
    assert any(re.match(r"Spent \d+ runs? of \d+ jobs?", text) for text in questions)
    assert month.locator(".tile-name").all_inner_texts()[:2] == ["Energy", "Time"]
    kinds = month.locator("[data-kind]").count()
    assert kinds >= 3
    at.page.set_viewport_size({"width": 1280, "height": 720})
    first = at.tab().locator("#jobs tr:visible").first
    most_of_a_kind = 140  # other tests may leave further kinds above the jobs
    end = 720 + most_of_a_kind * (kinds - 3)
    assert first.evaluate("row => row.getBoundingClientRect().bottom") < end, (
        "a job is in sight below three kinds"
    )
    lefts = month.locator(".answer[aria-label='Spent']").evaluate_all(
        "all => all.map((answer) => answer.getBoundingClientRect().x)"  # at one moment
    )
    assert len(set(lefts)) == 1, "rows of one table: what nothing measured is one of them"
    at.page.set_viewport_size({"width": 800, "height": 900})
    month.locator("summary", has_text="By month, owner and tag").click()
    month.locator(".months .chart canvas").wait_for()
    owners = month.locator("#month-groups table").first
    assert owners.locator("th").all_inner_texts()[:3] == ["Owner", "Jobs", "Runs"]
    assert owners.locator("tbody tr").count() >= 1
    before = at.tab().locator("#jobs tr:visible").count()
    at.tab().locator("#filter-text").fill(f"{ZEUS_DAG} nowhere")
    assert at.tab().locator("#jobs tr:visible").count() == 0
    at.tab().locator("#filter-text").fill(ZEUS_DAG)
    assert 1 <= at.tab().locator("#jobs tr:visible").count() <= before
    at.tab().locator("#job-table").get_by_role("columnheader", name="Last run").get_by_role(
        "button"
    ).click()
    assert at.tab().locator("#job-table [aria-sort=descending]").count() == 1
    assert at.tab().evaluate("document.documentElement.scrollWidth <= innerWidth"), (
        "nothing is cut off"
    )
    at.tab().locator("#filter-text").fill("")
    at.shoot("overview-filtered")
    assert at.fine()


@pytest.mark.slow
def test_from_a_job_to_its_dag(visit: Visit, site: Site) -> None:
    at = visit("plugin/zeus")
    at.zeus.locator("#jobs tr", has_text=ZEUS_DAG).first.locator("th a").click()
    at.page.wait_for_url(f"**/dags/{ZEUS_DAG}/plugin/zeus-cost")
    assert at.fine()


KEY = f"zeus-settings:{ZEUS_DAG}.train"


@pytest.fixture
def settings(site: Site) -> Iterator[AirflowVariables]:
    """Live settings of the job, gone afterwards."""
    variables = AirflowVariables()
    yield variables
    variables.delete(KEY)


def opened(at: Watched) -> Any:
    """The dialogue with the job's settings."""
    at.tab().locator("#jobs tr", has_text=ZEUS_DAG).first.get_by_role("button").press("Enter")
    box = at.tab().locator("#settings-of")
    box.locator(".held").wait_for()
    return box


@pytest.mark.slow
def test_pausing_and_pinning_by_keyboard(visit: Visit, settings: AirflowVariables) -> None:
    before = len(audited())
    at = visit("zeus/page", user=ADMIN)
    box = opened(at)
    status = box.locator(".held")
    unchanged = status.inner_text()
    assert "Exploration is on." in unchanged
    box.get_by_role("button", name="Pause exploration").press("Enter")
    assert "until you let Zeus choose again" in box.locator(".question").inner_text()
    at.shoot("overview-question")
    at.page.keyboard.press("Escape")
    assert status.inner_text() == unchanged
    assert focused(at.tab())["name"] == "Pause exploration", (
        "Escape closes the question, not the dialogue"
    )
    assert settings.get(KEY) is None, "nothing is sent before it is confirmed"

    def confirmed(name: str, said: str) -> dict[str, Any]:
        began = datetime.now(UTC).replace(microsecond=0)
        box.get_by_role("button", name=name, exact=True).press("Enter")
        assert focused(at.tab())["name"] == "Do it"
        at.page.keyboard.press("Enter")
        status.filter(has_text=said).wait_for()
        assert focused(at.tab())["tag"] == "button"
        saved: dict[str, Any] = json.loads(settings.get(KEY) or "{}")
        if saved:
            change = saved.pop("changed")
            assert change["by"] == ADMIN
            changed = datetime.fromisoformat(change["at"])
            assert began <= changed <= datetime.now(UTC)
            assert (
                box.locator(".note")
                .first.inner_text()
                .startswith(f"Last change: {ADMIN}, {changed:%Y-%m-%d}")
            )
        return saved

    assert confirmed("Pause exploration", "Exploration is paused.") == {"pause_exploration": True}
    box.get_by_label("Batch size to pin").select_option("64")
    pinned = {"pause_exploration": True, "pin_batch_size": 64}
    assert confirmed("Pin this batch size", "Batch size 64 is pinned.") == pinned
    assert open_store().settings(f"{ZEUS_DAG}.train") == pinned, "as the next run will read it"
    at.shoot("overview-pinned")
    at.page.keyboard.press("Escape")
    row = at.tab().locator("#jobs tr", has_text=ZEUS_DAG).first
    row.locator(".set").filter(has_text="exploration paused").wait_for()
    assert focused(at.tab())["name"] == f"Pause or pin {ZEUS_DAG}.train", (
        "where the dialogue was opened"
    )
    assert row.locator(".live-settings .why").inner_text().startswith(f"{ADMIN}, ")
    box = opened(at)
    status = box.locator(".held")
    confirmed("Let Zeus choose again", "Exploration is on. No batch size is pinned.")
    assert open_store().settings(f"{ZEUS_DAG}.train") == {}
    done = [
        "exploration paused",
        "batch size pinned to 64",
        "exploration resumed, batch size unpinned",
    ]
    assert audited()[before:] == done
    assert at.fine()


def audited() -> list[str]:
    """What Airflow's audit log says that the admin did to the job, oldest first."""
    from airflow.models.log import Log
    from airflow.utils.session import create_session

    with create_session() as session:
        lines = session.scalars(
            sa.select(Log).where(Log.event == EVENT, Log.owner == ADMIN).order_by(Log.id)
        ).all()
        assert {line.dag_id for line in lines} <= {ZEUS_DAG}
        return [json.loads(line.extra or "{}")["what"] for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("address", ["zeus/page", DAG_PAGE])
def test_who_may_only_look_sees_the_settings_and_no_button(
    visit: Visit, settings: AirflowVariables, address: str
) -> None:
    settings.set(KEY, '{"pause_exploration": true}')
    at = visit(address)
    tab = at.tab()
    if address == DAG_PAGE:
        tab.get_by_text("How do I pause exploration").click()
        box = tab.locator(".controls")
        box.locator(".held").wait_for()
    else:
        assert (
            tab.locator("#jobs tr", has_text=ZEUS_DAG).first.locator(".set").inner_text()
            == "exploration paused"
        )
        box = opened(at)
        at.shoot("overview-settings")
    assert box.locator(".held").inner_text().startswith("Exploration is paused.")
    assert "Users who may edit this" in box.inner_text()
    assert box.get_by_role("button").count() == box.get_by_role("combobox").count() == 0
    assert at.fine()


@pytest.mark.nightly
def test_the_detail_of_a_refusal_is_shown(visit: Visit) -> None:
    def refused(page: Any) -> None:
        answer = {"detail": "Another DAG shares it."}
        page.route("**/settings", lambda route: route.fulfill(status=403, json=answer))

    at = visit("zeus/page", user=ADMIN, before=refused)
    box = opened(at)
    box.get_by_role("button", name="Pause exploration").press("Enter")
    box.get_by_role("button", name="Do it").press("Enter")
    assert box.locator(".problem-text").inner_text() == "Another DAG shares it."
    at.shoot("overview-refused")
    assert focused(at.tab())["name"] == "Back"
    at.page.keyboard.press("Enter")
    assert focused(at.tab())["name"] == "Pause exploration"


@pytest.mark.slow
def test_scripts_in_dag_and_job_ids_are_shown_as_text(visit: Visit, site: Site) -> None:
    """Airflow itself takes no such id; what stands in its tables all the same is shown."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    odd = "<img src=x onerror=alert(1)>{b|x}"
    job = "<script>alert(2)</script>"
    known: Any = DagModel
    with create_session() as session:
        session.merge(
            known(dag_id=odd, bundle_name="tests", fileloc="odd.py", timetable_summary="<b>x</b>")
        )
    ran(open_store(), 1, dag_id=odd, job_id=job, run_id="<svg onload=alert(3)>")
    try:
        at = visit("zeus/page")
        tab = at.tab()
        row = tab.locator("#jobs tr", has_text=job)
        row.scroll_into_view_if_needed()
        row.locator(".saved .amount, .saved .why").first.wait_for()
        assert row.locator("th").inner_text().split("\n") == [job, odd]
        assert tab.locator("main :is(img, script, b, svg)").count() == 0
        row.get_by_role("button").click()
        tab.locator("#settings-of .held").wait_for()
        assert tab.locator("#settings-job").inner_text() == job
        at.shoot("overview-odd")
        assert at.fine()
    finally:
        with create_session() as session:
            session.execute(sa.delete(DagModel).where(DagModel.dag_id == odd))
