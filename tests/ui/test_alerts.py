"""Events of a job on the tab of its DAG, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from airflow_provider_zeus.model.event import FAILING, LIMITS, Event, Held, Looked
from airflow_provider_zeus.store.open import open_store
from tests.ui.look import DAG_PAGE, TOO_WIDE, Visit
from tests.ui.site import ADMIN, ZEUS_DAG, Site

JOB = f"{ZEUS_DAG}.train"


def hold(*events: Event) -> None:
    """Let these events hold in the DAG."""

    def look(held: Mapping[str, Held], *_: object) -> Looked:
        return Looked(events={**held, ZEUS_DAG: Held(events=events)}, begun=())

    open_store().look(JOB, look, last=1)


@pytest.fixture
def told(site: Site) -> Iterator[None]:
    """A limit that is not set, and a failure whose text comes from a training."""
    unset = "A power limit could not be set in the newest run (run 9): no permission."
    failed = "The newest run left no model (run 9): <b>disk full</b>. " + "a long word" * 30
    hold(
        Event(kind=LIMITS, sentence=unset, remedy="airflow zeus doctor says what is missing."),
        Event(kind=FAILING, sentence=failed, remedy="See the log of the task."),
    )
    yield
    hold()


@pytest.mark.slow
def test_what_holds_is_a_list_of_sentences_and_remedies(visit: Visit, told: None) -> None:
    at = visit(DAG_PAGE)
    tab = at.tab()
    rows = tab.get_by_role("list", name="Alerts").locator("li")
    rows.first.wait_for()
    assert rows.count() == 2
    assert "no permission." in rows.first.inner_text()
    assert "airflow zeus doctor says what is missing." in rows.first.inner_text()
    assert "<b>disk full</b>" in rows.last.inner_text(), "a text of a training is text"
    assert tab.locator("#alerts button").count() == 0
    at.shoot("alerts")
    assert at.fine()


@pytest.mark.slow
def test_where_nothing_holds_there_is_no_list(visit: Visit) -> None:
    at = visit(DAG_PAGE)
    tab = at.tab()
    tab.locator("#headline:not([aria-busy])").wait_for()
    assert tab.get_by_role("heading", name="Alerts").count() == 0
    assert at.fine()


@pytest.mark.nightly
@pytest.mark.parametrize(("width", "theme"), [(800, "light"), (1032, "dark"), (1400, "dark")])
def test_they_fit(visit: Visit, told: None, width: int, theme: str) -> None:
    at = visit(f"dags/{ZEUS_DAG}/plugin/zeus-cost", user=ADMIN, width=width, theme=theme)
    tab = at.tab()
    tab.locator("#alerts li").first.wait_for()
    tab.locator("#headline:not([aria-busy])").wait_for()
    assert tab.evaluate(TOO_WIDE) <= 0
    at.shoot(f"alerts-{width}-{theme}")
    assert at.fine()
