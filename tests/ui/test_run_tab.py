"""The tab of a run inside Airflow's own UI, in a real browser, behind a real login, below a path prefix."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.ui.look import TOO_WIDE, Visit, run_tab
from tests.ui.site import ZEUS_DAG, Site


@pytest.mark.parametrize(("theme", "width"), [("light", 1400), ("dark", 800)])
def test_the_tab_of_a_run_says_why(visit: Visit, site: Site, theme: str, width: int) -> None:
    at = visit(run_tab(site.runs[1]), theme=theme, width=width)
    tab = at.tab()
    assert tab.locator("h1").inner_text() == f"Zeus cost of run {site.runs[1]}"
    given_up, kept = tab.locator(".attempts > li").all()
    assert "Why it was chosen: Pruning exploration, round 1: 16 is the next batch size" in given_up.inner_text()
    assert "Why it ended: It was given up: " in given_up.inner_text()
    assert "Why it ended: It reached its target after 8 epochs" in kept.inner_text()
    assert tab.evaluate(TOO_WIDE) <= 0
    at.shoot(f"run-{theme}-{width}")
    assert at.fine()


def test_the_button_of_a_task_instance_leads_to_its_runs_tab(visit: Visit, site: Site) -> None:
    at = visit(f"dags/{ZEUS_DAG}/runs/{quote(site.runs[2], safe='')}/tasks/train/details")
    at.page.get_by_role("link", name="Zeus cost").click()
    assert at.tab().locator("h1").inner_text() == f"Zeus cost of run {site.runs[2]}"
    assert at.page.url.endswith("/plugin/zeus-cost-run")
    assert at.fine()
