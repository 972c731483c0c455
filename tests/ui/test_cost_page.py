"""The tab of a DAG inside Airflow's own UI, in a real browser, behind a real login,
below a path prefix.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import sqlalchemy as sa

from airflow_provider_zeus.model.cost import Weights
from airflow_provider_zeus.plugin.charts.dag_front import front_chart
from airflow_provider_zeus.reports.eta_choices import EtaChoice
from airflow_provider_zeus.reports.export_rows import row
from airflow_provider_zeus.reports.pareto import OperatingPoint, marked
from airflow_provider_zeus.signals.prices import in_force
from airflow_provider_zeus.store.open import embedded_path, open_store
from airflow_provider_zeus.store.sql import schema
from airflow_provider_zeus.store.sql.engine import engine_of, read_url, transaction
from tests.ui.accessible import tab_to, usable
from tests.ui.look import DAG_PAGE, DAG_TAB, Visit, came, drawn, unfolded
from tests.ui.site import PLAIN_DAG, RUNS, ZEUS_DAG, Site
from tests.unit.plugin.kit import ran

COST = ".cost .chart"


@pytest.mark.slow
def test_the_tab_of_a_dag(visit: Visit) -> None:
    at = visit(f"dags/{ZEUS_DAG}")
    at.page.set_viewport_size({"width": 1280, "height": 720})
    at.page.get_by_role("link", name="Zeus cost").click()
    tab = at.tab()
    drawn(tab, COST)
    bottom = "element => element.getBoundingClientRect().bottom - innerHeight"
    for seen in (".sentence", "#headline", "#facts", COST):
        assert tab.locator(seen).evaluate(bottom) <= 0, f"{seen} is seen without scrolling"
    assert tab.locator(".badge:visible").all_inner_texts() == ["simulated"], "once, for all figures"
    assert tab.locator(".sentence").inner_text().startswith(f"{RUNS} runs cost ")
    assert tab.locator(".sentence abbr").inner_text() == "90\u00a0%\u00a0sure", "at once"
    assert "90 % sure" in tab.locator(".sentence abbr").get_attribute("title")
    at.shoot("dag")
    assert tab.locator("#rows tr").count() == RUNS
    unfolded(tab)
    assert tab.locator("#rows s").count() >= 2, "given-up attempts are struck through"
    assert tab.locator("#totals").inner_text().startswith(f"Sum of {RUNS} runs, simulated")
    assert tab.locator("#store").inner_text().startswith("Run log: log ")
    tab.locator(".front").wait_for()
    titles = ["Cost of each run", "Sum saved", "Belief per batch size", "Energy against time"]
    assert [b.get_attribute("data-title") for b in tab.locator(".chart-block").all()] == titles
    answers = tab.locator("#headline .answer")
    assert [a.get_attribute("aria-label") for a in answers.all()] == ["Cost", "Saved", "Next run"]
    names = answers.first.locator(".tile-name").all_inner_texts()
    assert names == answers.last.locator(".tile-name").all_inner_texts() == ["Energy", "Time"]
    assert answers.first.locator(".tile-figure").first.inner_text().endswith("Wh")
    assert answers.nth(1).locator(".tile-name").last.inner_text() == "Together"
    assert answers.nth(1).locator(".tile-figure").last.inner_text().endswith(" %"), (
        "no amount that looks like energy"
    )
    assert "batch size" in answers.last.inner_text()
    assert at.fine()


POINT = """() => {
  const chart = window.echarts.getInstanceByDom(document.querySelector(".cost .chart"));
  const series = chart.getOption().series.findIndex((s) => s.type === "scatter");
  return chart.convertToPixel({ seriesIndex: series }, chart.getOption().series[series].data[0].value);
}"""
TEXTS = """() => window.echarts.getInstanceByDom(document.querySelector(".cost .chart")).getZr()
  .storage.getDisplayList().map((shape) => shape.style.text).filter(Boolean).join(" ")"""


@pytest.mark.slow
def test_a_point_tells_its_run_under_the_strict_policy(visit: Visit) -> None:
    at = visit(DAG_PAGE)
    tab = at.tab()
    drawn(tab, COST)
    assert "power limit" not in tab.evaluate(TEXTS)

    def told() -> bool:
        box = tab.locator(COST).bounding_box()  # what comes above it moves it
        x, y = tab.evaluate(POINT)
        at.page.mouse.move(box["x"] + x + 30, box["y"] + y + 30)
        at.page.mouse.move(box["x"] + x, box["y"] + y)
        return "batch size 32 (reached target)" in tab.evaluate(TEXTS)

    assert came(tab, told)
    at.shoot("tooltip")
    assert at.fine()


@pytest.mark.nightly
def test_a_barrier_or_a_breach_of_the_policy_would_be_noticed(visit: Visit) -> None:
    at = visit(DAG_PAGE)
    tab = at.tab()
    drawn(tab, COST)
    usable(tab)
    tab.evaluate("document.querySelector('.sentence').style.color = '#888888'")
    with pytest.raises(AssertionError, match="serious color-contrast"):
        usable(tab)
    tab.evaluate("document.querySelector('.cost details').remove()")
    with pytest.raises(AssertionError, match="a chart has no table"):
        usable(tab)
    tab.evaluate(
        "document.head.append(Object.assign(document.createElement('style'), {textContent: '*{}'}))"
    )
    assert came(at.page, lambda: at.said)
    with pytest.raises(AssertionError, match="Content Security Policy"):
        at.fine()


@pytest.mark.nightly
def test_the_theme_follows_airflow_at_once(visit: Visit) -> None:
    at = visit(DAG_TAB)
    tab = at.tab()
    drawn(tab, COST)
    text = "() => getComputedStyle(document.body).color"
    light = tab.evaluate(text)
    at.page.evaluate("document.documentElement.classList.replace('light', 'dark')")
    tab.locator("html[data-theme=dark]").wait_for()
    assert tab.evaluate(text) != light
    assert drawn(tab, COST) >= 4
    assert at.fine()


@pytest.mark.slow
def test_from_the_table_to_a_run_and_back_by_keyboard(visit: Visit, site: Site) -> None:
    at = visit(DAG_PAGE)
    tab = unfolded(at.tab())
    tab.locator("#table-box").focus()
    tab_to(at.page, tab, site.runs[-1], most=12)
    at.page.keyboard.press("Enter")
    at.page.locator(".attempts > li").first.wait_for()
    assert at.page.locator("h1").inner_text() == f"Zeus cost of run {site.runs[-1]}"
    at.page.locator("#back").focus()
    at.page.keyboard.press("Enter")
    at.page.locator(f"#rows tr:nth-child({RUNS})").wait_for(state="attached")
    assert at.fine()


@pytest.mark.slow
def test_what_a_screen_reader_hears(visit: Visit) -> None:
    tab = unfolded(visit(DAG_PAGE).tab())
    drawn(tab, COST)
    assert re.match(
        rf"Cost of {RUNS} runs, oldest slice first", tab.locator(COST).get_attribute("aria-label")
    )
    assert (
        tab.get_by_role("region", name="Table of the runs").get_by_role("rowheader").count()
        == RUNS + 1
    )
    assert (
        tab.get_by_role("region", name="Table of the runs").get_by_role("columnheader").count() == 9
    )


@pytest.mark.slow
def test_a_dag_without_a_job_says_so_in_one_line(visit: Visit) -> None:
    at = visit(f"zeus/page?dag_id={PLAIN_DAG}")
    tab = at.tab()
    assert tab.locator("#message").inner_text().startswith("This DAG has no Zeus job")
    assert not tab.locator("#content").is_visible()
    at.shoot("empty")
    assert at.fine()


@pytest.mark.slow
def test_text_from_outside_is_shown_as_text(visit: Visit, site: Site) -> None:
    """Run ids, job ids, slices of the data, explanations."""
    odd = "<img src=x onerror=alert(1)>{b|x}"
    cut = "<svg onload=alert(3)>{c|y}"
    why = "<b onclick=alert(4)>because</b>"
    dag = "zeus_ui_odd"
    ran(open_store(), 1, dag_id=dag, job_id="odd<script>alert(2)</script>", run_id=odd)
    with transaction(engine_of(read_url(f"sqlite:///{embedded_path()}")), write=True) as connection:
        own = schema.trial.c.dag_id == dag
        planned = connection.scalar(sa.select(schema.trial.c.planned).where(own))
        changed = {"data_slice": cut, "planned": {**planned, "why": why}}
        connection.execute(sa.update(schema.trial).where(own).values(changed))
    for address in (
        f"zeus/page?dag_id={dag}",
        f"zeus/page?dag_id={dag}&run_id={quote(odd, safe='')}",
    ):
        at = visit(address)
        tab = at.tab()
        tab.get_by_text(odd).first.wait_for(state="attached")
        at.page.wait_for_load_state("networkidle")
        for summary in tab.locator("summary:visible").all():
            summary.click()
        assert tab.locator("main :is(img, script, svg, b)").count() == 0
        shown = tab.locator("main").inner_text()
        assert (why if "run_id" in address else cut) in shown
        at.shoot(f"odd-{'run' if 'run_id' in address else 'dag'}")
        assert at.fine()


@pytest.mark.slow
def test_without_the_chart_library_the_page_says_how_to_bring_it(visit: Visit) -> None:
    def missing(page: Any) -> None:
        page.route("**/echarts.common.min.js", lambda route: route.fulfill(status=404, body="{}"))

    at = visit(DAG_PAGE, before=missing)
    tab = at.tab()
    tab.locator(".cost figcaption").filter(has_text="pip install -e .").wait_for()
    assert not tab.locator(COST).is_visible()
    assert tab.locator("#rows tr").count() == RUNS


@pytest.mark.slow
def test_a_broken_store_is_shown_with_its_remedy(visit: Visit) -> None:
    def broken(page: Any) -> None:
        answer = {"problem": "The run log has no tables of ours yet; run 'upgrade' once."}
        page.route("**/zeus/api/**", lambda route: route.fulfill(status=503, json=answer))

    tab = visit(DAG_PAGE, before=broken).tab()
    assert tab.locator("#message.problem").inner_text().endswith("run 'upgrade' once.")


@pytest.mark.slow
def test_an_ended_login_is_named(visit: Visit) -> None:
    def ended(page: Any) -> None:
        page.route(
            "**/zeus/api/**",
            lambda route: route.fulfill(status=401, json={"detail": "Token Expired"}),
        )

    tab = visit(DAG_PAGE, before=ended).tab()
    assert tab.locator("#message.problem").inner_text().startswith("Your session has expired.")


# --- the choice at each eta, sorting, links, export

# The texts of the chart of energy against time: [text, left, top, right, bottom], and its width
# last [px].
FRONT_TEXTS = """() => {
  const chart = window.echarts.getInstanceByDom(document.querySelector(".front .chart"));
  const texts = chart.getZr().storage.getDisplayList().filter((shape) => shape.style.text);
  return [...texts.map((shape) => {
    const box = shape.getBoundingRect().clone();
    const moved = shape.getComputedTransform();
    if (moved) box.applyTransform(moved);
    return [shape.style.text, box.x, box.y, box.x + box.width, box.y + box.height];
  }), chart.getWidth()];
}"""


CROWDED = [  # batch size, limit [W], time [s], energy [J]
    (64, 250.0, 3000.0, 900e3),
    (64, 200.0, 3100.0, 800e3),
    (64, 150.0, 3500.0, 700e3),
    (64, 100.0, 4800.0, 660e3),
    (32, 250.0, 3150.0, 760e3),
    (32, 100.0, 5200.0, 560e3),
    (16, 100.0, 5300.0, 550e3),
]
CHOICES = [
    (0.0, 64, 250.0),
    (0.25, 64, 200.0),
    (0.4, 32, 250.0),
    (0.5, 32, 250.0),
    (0.75, 32, 100.0),
    (1.0, 16, 100.0),
]


def crowded_front() -> Any:
    """A chart whose points lie close together, and whose job has another eta than the five."""
    points = marked(
        OperatingPoint(batch_size=b, limit_w=w, tta_s=s, eta_j=j, runs=1, observed=w == 250.0)
        for b, w, s, j in CROWDED
    )
    choices = [EtaChoice(eta=eta, batch_size=b, limit_w=w, start=None) for eta, b, w in CHOICES]
    return front_chart(points, Weights(0.4, 300.0), choices).model_dump(mode="json")


def with_crowded_front(page: Any) -> None:
    def answer(route: Any) -> None:
        got = route.fetch()
        route.fulfill(response=got, json=got.json() | {"front": crowded_front()})

    page.route("**/api/dags/*/charts*", answer)


@pytest.mark.parametrize(
    ("theme", "before"),
    [
        pytest.param("light", None, marks=pytest.mark.slow, id="light"),
        pytest.param("dark", with_crowded_front, marks=pytest.mark.slow, id="dark-crowded"),
        pytest.param("light", with_crowded_front, marks=pytest.mark.nightly, id="light-crowded"),
        pytest.param("dark", None, marks=pytest.mark.nightly, id="dark"),
    ],
)
def test_each_eta_is_named_once_and_no_name_covers_another(
    visit: Visit, theme: str, before: Callable[[Any], None] | None
) -> None:
    at = visit(DAG_PAGE, theme=theme, before=before)
    tab = unfolded(at.tab())
    for width, height in ((1280, 720), (740, 720)):
        at.page.set_viewport_size({"width": width, "height": height})
        drawn(tab, ".front .chart")
        at.fit()
        *texts, wide = tab.evaluate(FRONT_TEXTS)
        marks = [text for text in texts if text[0].startswith("eta ")]
        etas = (
            ", ".join(mark[0].removeprefix("eta ") for mark in marks)
            .replace(" (today)", "")
            .split(", ")
        )
        assert sorted(map(float, etas)) == [0, 0.25, *([0.4] if before else []), 0.5, 0.75, 1]
        for mark in marks:
            assert 0 <= mark[1] < mark[3] <= wide, f"{mark[0]} is cut off"
            assert mark[2] >= 0, f"{mark[0]} is cut off"
            for other in texts:
                beside = (
                    other[3] <= mark[1]
                    or mark[3] <= other[1]
                    or other[4] <= mark[2]
                    or mark[4] <= other[2]
                )
                assert other is mark or beside, f"{mark[0]} and {other[0]} overlap"
        tab.locator(".front").scroll_into_view_if_needed()
        at.shoot(f"front-{theme}-{width}{'-crowded' if before else ''}")
    assert at.fine()


@pytest.mark.nightly
def test_the_table_sorts_by_any_column_and_says_so(visit: Visit) -> None:
    at = visit(DAG_PAGE)
    tab = unfolded(at.tab())
    head = tab.locator("#runs").get_by_role("columnheader", name="Energy")

    def costs() -> list[float]:
        cells = tab.locator("#rows td:nth-child(4)").evaluate_all(
            "all => all.map(cell => cell.dataset.sort)"
        )
        return [float(cell) for cell in cells]

    before = costs()
    head.get_by_role("button").focus()
    at.page.keyboard.press("Enter")
    assert (costs(), head.get_attribute("aria-sort")) == (
        sorted(before, reverse=True),
        "descending",
    )
    assert costs() != before
    at.page.keyboard.press("Enter")
    assert (costs(), head.get_attribute("aria-sort")) == (sorted(before), "ascending")
    tab.get_by_role("columnheader", name="Run", exact=True).get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "none"
    assert costs() == before, "newest first"
    assert at.fine()


@pytest.mark.parametrize(
    "name",
    [pytest.param("Log", marks=pytest.mark.nightly), pytest.param("XCom", marks=pytest.mark.slow)],
)
def test_a_row_leads_to_the_log_and_the_xcoms_of_its_task(
    visit: Visit, site: Site, name: str
) -> None:
    at = visit(DAG_TAB)
    unfolded(at.tab()).locator("#rows tr").first.get_by_role("link", name=f"{name} of run").click()
    run = f"dags/{ZEUS_DAG}/runs/{quote(site.runs[-1], safe='')}/tasks/train"
    address, shown = (run, "Logs") if name == "Log" else (f"{run}/xcom", "zeus_cost")
    at.page.wait_for_url(f"**/{address}")
    at.page.get_by_text(shown, exact=True).first.wait_for()
    at.shoot(f"dag-{name.lower()}")
    assert not at.dialogs


@pytest.mark.slow
def test_the_export_holds_the_stores_rows(visit: Visit) -> None:
    at = visit(DAG_TAB)
    tab = unfolded(at.tab())
    with at.page.expect_download() as waiting:
        tab.get_by_role("link", name="CSV").click()
    file = waiting.value
    job = f"{ZEUS_DAG}.train"
    assert re.fullmatch(rf"zeus-{job}-\d{{4}}-\d\d-\d\d\.csv", file.suggested_filename)
    with closing(open_store(create=False)) as store:
        rows = [row(trial, in_force()) for trial in store.trials(job)]
    names = ("run_id", "batch_size", "energy_j", "opened_at_utc")
    held = list(csv.DictReader(io.StringIO(Path(file.path()).read_text())))
    assert [[line[n] for n in names] for line in held] == [
        [str(each[n]) for n in names] for each in rows
    ]
    assert at.fine()


@pytest.mark.nightly
def test_with_everything_outside_blocked_nothing_is_missed(visit: Visit) -> None:
    def alone(page: Any) -> None:
        page.route(lambda url: urlsplit(url).hostname != "127.0.0.1", lambda route: route.abort())

    at = visit(DAG_TAB, before=alone)
    tab = unfolded(at.tab())
    for chart in (".cost", ".saved", ".belief", ".front"):
        assert drawn(tab, f"{chart} .chart") >= 3
    assert at.fine()
