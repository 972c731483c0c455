"""The page "Zeus" inside Airflow's own UI: jobs, savings as they come into sight, pausing and pinning, odd text."""

from __future__ import annotations

import re

import pytest

from airflow_provider_zeus.store.airflow_variables import AirflowVariables
from tests.ui.look import TOO_WIDE, Visit
from tests.ui.site import ZEUS_DAG, Site


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_of_all_jobs(visit: Visit, theme: str) -> None:
    at = visit("plugin/zeus", theme=theme)
    tab = at.zeus  # Airflow may build its iframe anew while the page loads
    row = tab.locator("#jobs tr", has_text=ZEUS_DAG).first
    row.scroll_into_view_if_needed()  # a saving is asked for when its row is in sight; other tests leave jobs above it
    row.locator(".saved .amount, .saved .why").first.wait_for()
    assert row.locator(".badge.simulated").count() >= 1
    assert re.fullmatch("exploring|settled", row.locator(".state .badge").inner_text())
    assert row.locator(".state .why").inner_text()
    for width in (1400, 800):
        at.page.set_viewport_size({"width": width, "height": 900})
        at.page.wait_for_timeout(300)
        assert tab.locator("html").evaluate(TOO_WIDE) <= 0, "only the table scrolls sideways"
        at.shoot(f"overview-{theme}-{width}")
    assert at.fine()


def test_from_a_job_to_its_dag(visit: Visit, site: Site) -> None:
    at = visit("plugin/zeus")
    at.zeus.locator("#jobs tr", has_text=ZEUS_DAG).first.locator("th a").click()
    at.page.wait_for_url(f"**/dags/{ZEUS_DAG}/plugin/zeus-cost")
    assert at.fine()


def test_who_may_only_look_sees_the_settings_and_no_button(visit: Visit) -> None:
    key = f"zeus-settings:{ZEUS_DAG}.train"
    AirflowVariables().set(key, '{"pause_exploration": true}')
    try:
        at = visit("plugin/zeus")
        tab = at.zeus  # Airflow may build its iframe anew while the page loads
        row = tab.locator("#jobs tr", has_text=ZEUS_DAG).first
        assert row.locator(".set").inner_text() == "exploration paused"
        row.locator("button").click()
        held = tab.locator("#settings-of .held")
        held.wait_for()
        assert held.inner_text().startswith("Exploration is paused.")
        assert tab.locator("#settings-of button").count() == 0
        at.shoot("overview-settings")
        assert at.fine()
    finally:
        AirflowVariables().delete(key)
