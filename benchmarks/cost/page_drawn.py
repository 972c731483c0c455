"""How long the DAG's tab takes in a real Chromium, beside Airflow's own tab of the runs; see ``benchmarks.page``."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

BUDGET_MS = 1000.0  # from the charts' data to all of them drawn
LONGEST_MS = 300_000  # a busy machine is slow, no more
# Notes when all is there and painted, two frames after the last of it came. A page names its charts by their boxes, all
# at once, and draws none in a closed part: those are opened.
WATCH = """([selector, least]) => {
  const look = () => {
    for (const part of document.querySelectorAll("details[data-fold]")) part.open = true;
    const found = [...document.querySelectorAll(selector)];
    const waits = (each) => each.matches(".chart") && !each.querySelector("canvas");
    if (window.drawnAt || found.length < least || found.some(waits)) return;
    window.drawnAt = -1;
    requestAnimationFrame(() => requestAnimationFrame(() => { window.drawnAt = performance.now(); }));
  };
  new MutationObserver(look).observe(document, { childList: true, subtree: true });
  look();
}"""
DRAWN = "() => window.drawnAt > 0"
TIMES = """() => {
  const data = performance.getEntriesByType("resource").filter((e) => e.name.split("?")[0].endsWith("/charts")).at(-1);
  return [performance.timeOrigin + window.drawnAt, data ? performance.timeOrigin + data.responseEnd : null];
}"""


def measured(folder: Path, dag_id: str, loads: int) -> bool:
    """Print the times of so many loads; whether the charts keep their budget. True where no browser is found."""
    from tests.ui.browser import FLAGS, find_browser
    from tests.ui.site import PASSWORD, VIEWER, api_server

    found = find_browser()
    if found.path is None:
        print(f"nothing was drawn: {found.reason}")
        return True
    from playwright.sync_api import sync_playwright

    with api_server(folder) as server, sync_playwright() as playwright:
        url = server.ready()
        browser = playwright.chromium.launch(executable_path=found.path, args=FLAGS)
        context = browser.new_context()
        page = context.new_page()
        page.goto(url)
        page.fill("input[name=username]", VIEWER)
        page.fill("input[name=password]", PASSWORD)
        page.click("button[type=submit]")
        page.get_by_role("link", name="Dags").first.wait_for()
        login = context.storage_state()
        ours, drawing, theirs = [], [], []
        for _ in range(loads + 1):
            whole_ms, after_ms = _load(
                browser, login, f"{url}/dags/{dag_id}/plugin/zeus-cost", ".chart:not([hidden])", 1
            )
            ours.append(whole_ms)
            drawing.append(after_ms or 0.0)
            theirs.append(_load(browser, login, f"{url}/dags/{dag_id}/runs", "table tbody tr", 20)[0])
        browser.close()
    ours_ms, drawing_ms, theirs_ms = (statistics.median(times[1:]) for times in (ours, drawing, theirs))
    rows = [
        ("from the charts' data to all drawn", drawing, ""),
        ("the tab in Airflow, from the click on", ours, f"{ours_ms / theirs_ms:10.2f}"),
        ("Airflow's own tab of the runs", theirs, f"{1:10.2f}"),
    ]
    print(f"{'drawn, cold':<38} {'median ms':>10} {'slowest':>9} {'x Airflow':>10}")
    for name, times, ratio in rows:
        print(f"{name:<38} {statistics.median(times[1:]):10.0f} {max(times[1:]):9.0f} {ratio}")
    print(f"budget for drawing: {BUDGET_MS:g} ms")
    return drawing_ms <= BUDGET_MS


def _load(browser: Any, login: Any, address: str, selector: str, least: int) -> tuple[float, float | None]:
    """(from the beginning to all drawn, from the charts' data to all drawn) [ms] of one cold load."""
    context = browser.new_context(storage_state=login, viewport={"width": 1400, "height": 2400})
    context.add_init_script(f"({WATCH})({[selector, least]!r})".replace("'", '"'))
    page = context.new_page()
    page.goto(address, wait_until="commit")
    began = page.evaluate("performance.timeOrigin")
    frame = page
    if "/plugin/" in address:
        page.frame_locator("iframe[title^=Zeus]").locator(selector).nth(least - 1).wait_for(
            state="attached", timeout=LONGEST_MS
        )
        frame = next(f for f in page.frames if "/zeus/page" in f.url)
    frame.wait_for_function(DRAWN, timeout=LONGEST_MS)
    drawn_at, data_at = frame.evaluate(TIMES)
    context.close()
    return drawn_at - began, None if data_at is None else drawn_at - data_at
