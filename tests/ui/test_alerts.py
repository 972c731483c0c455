"""Events of a job on the tab of its DAG, in a real browser: seen by all, silenced by an editor."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from airflow_provider_zeus.reports.alert_book import AlertBook
from airflow_provider_zeus.reports.alerts import FAILING, LIMITS, Event
from airflow_provider_zeus.store.alerts import ALERTS, change_book, read_book
from airflow_provider_zeus.store.live_settings import variable_key
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from tests.ui.accessible import focused, tab_to
from tests.ui.look import DAG_PAGE, TOO_WIDE, Visit
from tests.ui.site import ADMIN, ZEUS_DAG, Site

JOB = f"{ZEUS_DAG}.train"


def event(kind: str, sentence: str) -> Event:
    return Event(kind=kind, name=kind, since=3, sentence=sentence, remedy="See docs.")


@pytest.fixture
def told(site: Site) -> Iterator[None]:
    """A limit that is open and sent, a failure that is open and not sent, and one that ended."""
    run, now_s = site.runs[-1], time.time()

    def turned(book: AlertBook) -> AlertBook:
        limit = event(LIMITS, "A power limit could not be set in the newest run (trial 2).")
        failing = event(FAILING, "The newest run left no model (trial 9): <b>disk full</b>.")
        old = book.updated([failing], dag_id=ZEUS_DAG, run_id=run, now_s=now_s - 90_000, kinds=(FAILING, LIMITS))
        ended = old.updated([limit], dag_id=ZEUS_DAG, run_id=run, now_s=now_s - 3600, kinds=(FAILING, LIMITS))
        both = ended.updated([limit, failing], dag_id=ZEUS_DAG, run_id=run, now_s=now_s, kinds=(FAILING, LIMITS))
        opened = {record.kind: record for record in both.open}
        sent = both.noted(opened[LIMITS], ["SmtpNotifier"], "", now_s)
        return sent.noted(opened[FAILING], [], "SmtpNotifier: ConnectionRefusedError", now_s)

    change_book(AirflowVariables(), JOB, turned)
    yield
    AirflowVariables().delete(variable_key(ALERTS, JOB))


@pytest.mark.slow
def test_open_events_their_sending_and_the_history(visit: Visit, told: None) -> None:
    at = visit(DAG_PAGE)
    tab = at.tab()
    rows = tab.locator("#alerts li.open")
    assert [row.locator("strong").inner_text() for row in rows.all()] == ["Failing", "Limit not set"]
    assert "<b>disk full</b>" in rows.first.inner_text(), "a text of a training is text"
    assert "Not sent: SmtpNotifier: ConnectionRefusedError. The next run tries again." in rows.first.inner_text()
    assert "Sent to SmtpNotifier on " in rows.last.inner_text()
    assert tab.locator("#alerts button").count() == 0, "who may only look has no button"
    tab_to(at.page, tab, "History (1)")
    at.page.keyboard.press("Enter")
    ended = tab.get_by_role("list", name="Alerts that ended")
    assert ended.locator("li").count() == 1
    at.shoot("alerts-history")
    tab_to(at.page, tab, "from ")
    at.page.keyboard.press("Escape")
    assert (ended.is_hidden(), focused(tab)["name"]) == (True, "History (1)")
    assert at.fine()


@pytest.mark.nightly
@pytest.mark.parametrize(("width", "theme"), [(800, "light"), (1032, "dark"), (1400, "dark")])
def test_they_fit(visit: Visit, told: None, width: int, theme: str) -> None:
    at = visit(f"dags/{ZEUS_DAG}/plugin/zeus-cost", user=ADMIN, width=width, theme=theme)
    tab = at.tab()
    tab.locator("#alerts li.open").first.wait_for()
    tab.locator("#headline:not([aria-busy])").wait_for()
    assert tab.evaluate(TOO_WIDE) <= 0
    at.shoot(f"alerts-{width}-{theme}")
    assert at.fine()


@pytest.mark.slow
def test_an_editor_silences_a_kind_and_hears_it_again(visit: Visit, told: None) -> None:
    at = visit(DAG_PAGE, user=ADMIN)
    tab = at.tab()
    tab_to(at.page, tab, "Silence alerts of kind Failing")
    at.page.keyboard.press("Enter")
    tab.get_by_text(f"Failing: silenced by {ADMIN} on").wait_for()
    assert "Not sent: silenced." in tab.locator("#alerts li.open").first.inner_text()
    assert set(read_book(AirflowVariables(), JOB).silenced) == {FAILING}
    assert focused(tab)["name"] == "Hear it again", "what takes it back has the focus"
    at.shoot("alerts-silenced")
    at.page.keyboard.press("Enter")
    tab.get_by_role("button", name="Silence alerts of kind Failing").wait_for()
    assert focused(tab)["name"] == "Silence alerts of kind Failing"
    assert read_book(AirflowVariables(), JOB).silenced == {}
    assert at.fine()
