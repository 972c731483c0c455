"""Runs and jobs side by side: chosen in a table, compared on a page of their own."""

from __future__ import annotations

import pytest

from tests.ui.accessible import focused
from tests.ui.look import DAG_PAGE, TOO_WIDE, Visit, drawn, unfolded
from tests.ui.site import Site


@pytest.mark.slow
def test_two_runs_chosen_on_a_dags_page(visit: Visit, site: Site) -> None:
    at = visit(DAG_PAGE)
    tab = unfolded(at.tab())
    link = tab.locator("#compare")
    assert link.is_hidden()
    assert tab.locator("#rows .choose:visible").count() == 0, "no stops of the Tab key before they are asked for"
    tab.get_by_role("button", name="Compare runs").focus()
    at.page.keyboard.press("Enter")
    assert focused(tab)["name"] == f"Choose run {site.runs[-1]} to compare"
    at.page.keyboard.press("Space")
    assert (link.inner_text(), link.get_attribute("href")) == ("Choose 2 to 8 runs to compare", None)
    at.page.keyboard.press("Escape")
    assert focused(tab)["name"] == "Compare runs"
    assert (link.is_hidden(), tab.locator("#rows .choose:checked").count()) == (True, 0)
    at.page.keyboard.press("Enter")
    for key in ("Space", "ArrowDown", "Space", "ArrowDown", "ArrowUp"):
        at.page.keyboard.press(key)
    assert focused(tab)["name"] == f"Choose run {site.runs[-2]} to compare"
    assert link.inner_text() == "Compare 2 runs"
    at.shoot("compare-choose")
    at.page.keyboard.press("Enter")
    at.page.wait_for_url("**job_id=**job_id=**")
    tab = at.tab()
    heads = tab.locator("#costs thead th").all_inner_texts()
    assert heads == [site.runs[-1], site.runs[-2]]
    assert "Energy" in tab.locator("#costs tbody th").all_inner_texts()
    for chart in range(3):  # the metric by epoch, then the power of each
        assert drawn(tab, f".compared >> nth={chart} >> .chart") >= 3
    assert tab.locator(".compared h3").first.inner_text().startswith("accuracy by epoch")
    for theme, width in (("light", 1400), ("dark", 800)):
        at.page.emulate_media(color_scheme=theme)
        at.page.set_viewport_size({"width": width, "height": 900})
        at.page.wait_for_timeout(300)
        assert tab.locator("html").evaluate(TOO_WIDE) <= 0, "only tables scroll sideways"
        at.shoot_whole(tab, f"compare-{theme}-{width}")
    tab.locator("#costs thead a").first.click()
    at.page.wait_for_url("**run_id=**")
    assert at.tab().locator("h1").inner_text() == f"Zeus cost of run {site.runs[-1]}"
    assert at.fine()


@pytest.mark.nightly
def test_jobs_chosen_on_the_page_of_all_jobs(visit: Visit, site: Site) -> None:
    at = visit("zeus/page")
    tab = at.tab()
    tab.get_by_role("button", name="Compare jobs").click()
    boxes = tab.locator("#jobs .choose")
    for i in range(boxes.count()):
        boxes.nth(i).check()
    count = boxes.count()
    assert count >= 1
    expected = f"Compare {count} jobs" if 2 <= count <= 8 else "Choose 2 to 8 jobs to compare"
    assert tab.locator("#compare").inner_text() == expected
    assert at.fine()
