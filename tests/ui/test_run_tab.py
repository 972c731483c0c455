"""The tab of a run inside Airflow's own UI, in a real browser, behind a real login,
below a path prefix.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from airflow.sdk import DAG, task

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.operators.mixins import WAIT
from airflow_provider_zeus.operators.schedule import PlannedWait
from airflow_provider_zeus.store.open import open_store
from tests.ui import runs
from tests.ui.conftest import Watched
from tests.ui.look import TOO_WIDE, Visit, came, drawn, run_tab
from tests.ui.site import ZEUS_DAG, Site, run_dag

SEEN = """(seen) => {
  Object.defineProperty(document, "hidden", { value: !seen, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.fixture(scope="module")
def kinds(site: Site) -> None:
    """Runs that no healthy training makes."""
    runs.every_kind()


def page(run: str) -> str:
    return f"zeus/page?dag_id={runs.DAG}&run_id={quote(run, safe='')}"


def whole(at: Watched, name: str, charts: str = ".part .power") -> Any:
    """The page, its charts there; a picture of all of it."""
    at.page.locator(charts).first.wait_for()
    at.page.wait_for_load_state("networkidle")
    height = at.page.evaluate("document.documentElement.scrollHeight")
    at.page.set_viewport_size(
        {"width": at.page.viewport_size["width"], "height": max(height + 20, 600)}
    )
    at.fit()
    at.shoot(name)
    return at.page


@pytest.mark.slow
def test_the_tab_of_a_run_says_why(visit: Visit, site: Site) -> None:
    at = visit(f"zeus/page?dag_id={ZEUS_DAG}&run_id={quote(site.runs[1], safe='')}")
    tab = at.tab()
    assert tab.locator("h1").inner_text() == f"Zeus cost of run {site.runs[1]}"
    assert tab.locator(".part h2").inner_text().startswith(f"Job {ZEUS_DAG}.train ")
    tab.locator(".next a", has_text="What comes next").wait_for()  # there are newer runs
    given_up, kept = tab.locator(".attempts > li").all()
    assert "Pruning" in given_up.inner_text()
    assert "Why it ended: It was" in given_up.inner_text()
    assert "its target after 8 epochs" in kept.inner_text()
    assert tab.locator(".verdict").inner_text().startswith("It cost "), (
        "exploring cost more than it saved"
    )
    assert "exploration and profiling." in tab.locator(".verdict").inner_text()
    assert drawn(tab, ".power .chart") >= 4
    assert drawn(tab, ".curves .chart") >= 4
    assert tab.locator(".curves").count() == 2, "a curve for each batch size"
    assert at.fine()
    newest = visit(f"zeus/page?dag_id={ZEUS_DAG}&run_id={quote(site.runs[-1], safe='')}")
    newest.tab().locator(
        ".next", has_text=re.compile(r"^Next run: .*batch size \d+.*, about .*\.$")
    ).wait_for()
    assert newest.fine()


@pytest.mark.slow
def test_a_run_that_saved_and_its_tables(visit: Visit, kinds: None) -> None:
    at = visit(page("saved"))
    tab = whole(at, "run-saved")
    assert tab.locator(".verdict").inner_text().startswith("It cost 0.444\u00a0Wh and ")
    cost, won = tab.locator(".answer").all()
    assert cost.locator(".tile-name").all_inner_texts() == ["Energy", "Time"]
    assert won.locator(".tile-name").all_inner_texts() == ["Energy", "Time", "Together"]
    energy = cost.locator(".tile-figure").first
    assert (energy.inner_text(), energy.get_attribute("title").startswith("1,600.000 J = ")) == (
        "0.444 Wh",
        True,
    )
    assert won.locator(".good").count() == 3
    assert tab.locator(".part h2").inner_text().endswith("GPU counter"), "once, for all figures"
    assert "90 % sure" in won.locator(".tile-figure").first.get_attribute("title")
    size = open_store().recurrence(runs.DAG, "saved")[0].batch_size
    curve = tab.get_by_role("region", name=f"Energy and time per sample at batch size {size}")
    curve.get_by_role("row").first.wait_for()
    assert curve.get_by_role("row").count() == 5
    assert "optimum" in curve.get_by_role("row", name="250 W").inner_text()
    tab.locator(".power summary").focus()
    tab.keyboard.press("Enter")
    power = tab.get_by_role("region", name="Mean power by attempt, phase and power limit")
    assert "profiling" in power.get_by_role("row").nth(1).inner_text()
    label = tab.locator(".power .chart").get_attribute("aria-label")
    assert label.startswith("Power over 22 s of training in 1 attempt: mean ")
    assert at.fine()


@pytest.mark.nightly
def test_what_each_of_several_gpus_drew(visit: Visit, kinds: None) -> None:
    at = visit(page("several"), theme="dark", width=800)
    tab = whole(at, "run-several-gpus", ".gpus canvas")
    assert drawn(tab, ".gpus .chart") >= 3
    table = tab.get_by_role("region", name="Energy per GPU")
    assert [r.inner_text().split()[:2] for r in table.get_by_role("row").all()[1:]] == [
        ["GPU", str(i)] for i in range(1, 5)
    ]
    assert table.get_by_role("row", name="GPU 4").inner_text().split()[-4:] == [
        "0.36",
        "Wh",
        "40",
        "%",
    ]
    assert (
        tab.locator(".chart-block.gpus .chart")
        .get_attribute("aria-label")
        .startswith("Energy of 4 GPUs, 0.169 Wh to ")
    )
    assert "of all 4 GPUs" in tab.locator(".remark").inner_text()
    assert tab.evaluate(TOO_WIDE) <= 0
    assert at.fine()


@pytest.mark.nightly
def test_a_loss_is_said_as_plainly(visit: Visit, kinds: None) -> None:
    at = visit(page("lost"), theme="dark")
    tab = whole(at, "run-lost")
    assert tab.locator(".verdict").inner_text().startswith("It cost ")
    assert tab.locator(".tile.bad .tile-name").last.inner_text() == "Together"
    assert at.fine()


@pytest.mark.slow
def test_what_is_wrong_with_a_run_is_seen(visit: Visit, kinds: None) -> None:
    below = whole(visit(page("below")), "run-below")
    assert below.locator(".part h2 .badge").first.inner_text() == "below target"
    assert below.locator(".verdict").inner_text().endswith("Its model is below the target.")
    dead = whole(visit(page("dead")), "run-dead")
    assert "left no model" in dead.locator(".verdict").inner_text()
    assert "was killed (signal 9)." in dead.locator(".attempts").inner_text()
    none = whole(visit(page("nosource")), "run-nosource", ".attempts")
    assert none.locator(".badge.no-source").all_inner_texts() == ["energy not measured"]
    assert "[zeus] cpu_watts" in none.locator(".remark").first.inner_text(), "the remedy"
    assert none.locator(".power").count() == 0
    assert set(none.locator(".tile-name").all_inner_texts()) == {"Time"}


@pytest.mark.slow
def test_text_from_outside_stays_text(visit: Visit, kinds: None) -> None:
    odd = "<img src=x onerror=alert(1)>{b|x}"
    task = "<script>alert(2)</script>"
    trial = runs.asked(odd, task=task)
    runs.told(
        trial,
        State.FAILED,
        why="<b onclick=alert(3)>{c|y}</b>",
        device_model="<svg onload=alert(4)>",
    )
    at = visit(page(odd))
    tab = whole(at, "run-odd")
    assert tab.locator("h1").inner_text() == f"Zeus cost of run {odd}"
    assert tab.locator("main :is(img, script, b, svg)").count() == 0
    shown = tab.locator("main").inner_text()
    assert all(
        text in shown for text in (task, "<b onclick=alert(3)>{c|y}</b>", "<svg onload=alert(4)>")
    )
    assert at.fine()


@pytest.mark.slow
def test_every_mapped_task_is_shown_and_unfolds(visit: Visit, kinds: None) -> None:
    at = visit(page("mapped"), theme="dark")
    tab = whole(at, "run-mapped")
    tasks = tab.get_by_role("region", name="Tasks of this run")
    tasks.get_by_role("row").first.wait_for()
    _, together, mapped = tasks.get_by_role("row").all()
    assert mapped.get_by_role("rowheader").inner_text() == "train, 3 mapped", "one row, their sum"
    energy = "6 Wh"
    assert energy in mapped.inner_text()
    assert energy in together.inner_text()
    assert [d.get_attribute("aria-label") for d in tab.locator("details.part").all()] == [
        f"train [{i}]" for i in range(3)
    ]
    last = tab.locator("details.part").nth(2)
    assert last.locator("figure").count() == 0, "charts are fetched when somebody looks"
    last.locator("> summary").focus()
    tab.keyboard.press("Enter")
    last.locator(".power canvas").first.wait_for()
    tab.set_viewport_size({"width": 800, "height": 1500})
    at.fit()
    assert tab.evaluate(TOO_WIDE) <= 0, "only tables scroll sideways"
    at.shoot("run-mapped-800")
    assert at.fine()


@pytest.mark.slow
def test_a_running_trial_is_followed_until_it_ends(visit: Visit, kinds: None) -> None:
    asked: list[str] = []
    at = visit(page("running"), before=lambda p: p.on("request", lambda r: asked.append(r.url)))
    tab = whole(at, "run-running")
    assert "epoch 2.3 of at most" in tab.locator(".progress").inner_text()
    tab.locator(".power summary").click()
    trial = next(t for t in open_store().recurrence(runs.DAG, "running"))
    open_store().heartbeat(trial.key, runs.so_far(trial, 31_000, metric=0.7))
    tab.get_by_text("epoch 3.1 of at most 10").wait_for()
    assert tab.locator(".power details").get_attribute("open") is not None, (
        "what is unfolded stays so"
    )

    def is_still() -> bool:
        """Whether nothing is asked for longer than from one look of the page to its next."""
        asked.clear()
        tab.wait_for_timeout(2500)
        return not asked

    tab.evaluate(SEEN, False)
    assert came(tab, is_still), "nobody looks"
    runs.told(trial, State.CONVERGED, samples=40_000)
    tab.evaluate(SEEN, True)
    tab.get_by_text("reached target").first.wait_for()
    assert not tab.locator("#updated").is_visible()
    assert came(tab, is_still), "it is over"
    assert at.fine()


@pytest.mark.nightly
def test_a_run_that_has_not_begun_is_waited_for(visit: Visit, kinds: None) -> None:
    at = visit(page("later"))
    at.page.get_by_text("Nothing of Zeus is in this run").wait_for()
    trial = runs.asked("later")
    at.page.get_by_text("Running: batch size").wait_for()
    runs.told(trial, State.CONVERGED)
    assert at.fine()


@pytest.mark.nightly
def test_a_run_that_waits_for_a_cheaper_start_says_until_when(visit: Visit, site: Site) -> None:
    why = (
        "It waits until 2027-01-15 08:00 UTC: over the 2.1 h of a run the mean of carbon is"
        " expected to be 143 instead of 291 gCO2e/kWh, 51 % less than at once."
    )
    wait = PlannedWait(
        signal="carbon",
        why=why,
        until_s=datetime(2027, 1, 15, 8, tzinfo=UTC).timestamp(),
        saves=0.51,
    )
    with DAG("zeus_ui_waits", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
        task(lambda ti: ti.xcom_push(key=WAIT, value=wait.xcom()), task_id="train")()
    run_id = quote(run_dag(dag).run_id, safe="")
    for width, theme in ((1400, "light"), (800, "dark")):
        at = visit(f"zeus/page?dag_id=zeus_ui_waits&run_id={run_id}", width=width, theme=theme)
        at.page.get_by_text(f"train: {why}").wait_for()
        at.shoot(f"run-waits-{width}")
        assert at.page.evaluate(TOO_WIDE) <= 0
        assert at.fine()


@pytest.mark.nightly
def test_a_page_that_cannot_be_renewed_says_so_and_stays(visit: Visit, kinds: None) -> None:
    trial = runs.asked("stalls")
    open_store().heartbeat(trial.key, runs.so_far(trial, 11_000))
    at = visit(page("stalls"))
    at.page.locator(".progress").wait_for()
    at.page.route(
        "**/zeus/api/**", lambda route: route.fulfill(status=401, json={"detail": "Token Expired"})
    )
    at.page.get_by_text("Not up to date: Your session has expired.").wait_for()
    assert at.page.locator(".tile").count() == 2
    runs.told(trial, State.FAILED, samples=11_000)


@pytest.mark.nightly
def test_the_button_of_a_task_instance_leads_to_its_runs_tab(visit: Visit, site: Site) -> None:
    at = visit(f"dags/{ZEUS_DAG}/runs/{quote(site.runs[2], safe='')}/tasks/train/details")
    at.page.get_by_role("link", name="Zeus cost").click()
    assert at.tab().locator("h1").inner_text() == f"Zeus cost of run {site.runs[2]}"
    assert urlsplit(at.page.url).path.endswith("/plugin/zeus-cost-run")
    assert at.fine()


@pytest.mark.nightly
def test_the_charts_follow_the_theme_while_open(visit: Visit, site: Site) -> None:
    at = visit(run_tab(site.runs[1]))
    tab = at.tab()
    drawn(tab, ".power .chart")
    text = "() => getComputedStyle(document.body).color"
    light = tab.evaluate(text)
    at.page.evaluate("document.documentElement.classList.replace('light', 'dark')")
    tab.locator("html[data-theme=dark]").wait_for()
    assert tab.evaluate(text) != light
    assert drawn(tab, ".power .chart") >= 4
    assert at.fine()
