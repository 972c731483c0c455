"""One api-server and one Chromium for all browser tests;
each test gets a page that is logged in and watched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.ui.accessible import usable
from tests.ui.browser import FLAGS, find_browser
from tests.ui.site import PASSWORD, VIEWER, Site, api_server, history

SHOTS = Path(__file__).parents[2] / "test-results"  # to look at; not a part of the repository
AROUND = 260  # pixels of Airflow's own page above and below a tab
NOT_OURS = (
    # Airflow's own iframe, of every plugin
    "An iframe which has both allow-scripts and allow-same-origin",
    "Canvas2D: Multiple readback operations",  # the tests look at the chart's pixels
    "Failed to load resource: the server responded with a status of 429",  # see BUSY
)
# What a closed page has asked may still keep the server busy: the next one asks again by itself
# (test_busy.py).
BUSY = 429
# Whether each chart is drawn in the size of its box; a closed part has none.
_FITS = """() => [...document.querySelectorAll(".chart")].every((box) => {
  const chart = window.echarts?.getInstanceByDom(box);
  if (!chart || !box.clientWidth) return true;
  chart.getZr().flush();
  return chart.getWidth() === box.clientWidth && chart.getHeight() === box.clientHeight;
})"""


def is_ours(page: Any) -> bool:
    """Whether a page or frame is ours, and not Airflow's around it,
    whose address may end like ours.
    """
    path = urlsplit(page.url).path
    return path.endswith("/zeus/page") and "/plugin/" not in path


def came(page: Any, is_so: Callable[[], object], most_s: float = 60.0) -> bool:
    """Whether it came true in time; the page goes on meanwhile."""
    until_s = time.monotonic() + most_s
    while not is_so():
        if time.monotonic() > until_s:
            return False
        page.wait_for_timeout(50)
    return True


@dataclass
class Watched:
    """A page, and what went wrong on it."""

    page: Any
    said: list[str] = field(default_factory=list)  # warnings, errors and refusals of the console
    answers: list[str] = field(default_factory=list)  # requests that failed by their status
    hosts: set[str | None] = field(default_factory=set)
    dialogs: list[str] = field(default_factory=list)

    @property
    def zeus(self) -> Any:
        """Our page inside Airflow's."""
        return self.page.frame_locator("iframe[title^='Zeus']")

    def tab(self) -> Any:
        """The frame itself, or our page where it stands alone, once its data are there."""
        alone = is_ours(self.page)
        if not alone:  # Airflow may build its iframe anew while its own page loads
            self.page.wait_for_load_state("networkidle")
        shown = self.page if alone else self.zeus
        shown.locator("#message").wait_for(state="attached")
        shown.locator("#content:not([hidden]), #message:not(:text('Loading'))").first.wait_for()
        return next(filter(is_ours, self.page.frames))

    def shoot(self, name: str) -> None:
        """A picture for people, of a page that all can use."""
        for frame in filter(is_ours, self.page.frames):
            usable(frame)
        SHOTS.mkdir(exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png")

    def shoot_whole(self, tab: Any, name: str) -> None:
        """The same of all that the tab holds, not only of what a screen shows at once."""
        before = self.page.viewport_size
        height = tab.locator("main").evaluate("main => main.scrollHeight") + AROUND
        self.page.set_viewport_size({"width": before["width"], "height": height})
        self.fit()
        self.shoot(name)
        self.page.set_viewport_size(before)

    def fit(self) -> None:
        """Wait until the charts have taken the size that the page has now."""
        for frame in filter(is_ours, self.page.frames):
            assert came(self.page, lambda frame=frame: frame.evaluate(_FITS)), (
                "a chart keeps its size"
            )

    def fine(self) -> bool:
        """Nothing went wrong up to here. Raises AssertionError naming what did."""
        assert self.said == []
        assert self.answers == []
        assert self.dialogs == []
        assert self.hosts <= {"127.0.0.1", None}, "something was fetched from outside"
        return True


@pytest.fixture(scope="session")
def site(airflow_home: Path) -> Iterator[Site]:
    """Runs of a Zeus DAG and of another one, behind a real api-server."""
    found = find_browser()
    if found.path is None:
        pytest.skip(found.reason)
    with api_server(airflow_home) as server:
        runs = history()  # while it starts
        yield Site(server.ready(), runs)


@contextmanager
def running_chromium() -> Iterator[Any]:
    """A real browser.

    While it runs, no test of the process may run an asyncio loop, nor a second browser.
    """
    from playwright.sync_api import sync_playwright

    if find_browser().path is None:
        pytest.skip(find_browser().reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser().path, args=FLAGS)
        yield browser
        browser.close()


# it ends before another folder's tests, which may run a loop or a browser
@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    """The browser of these tests."""
    with running_chromium() as browser:
        yield browser


Login = Callable[[str, str], Any]
MOST_MS = 120_000  # until something is there: on a busy host, too


@pytest.fixture(scope="package")
def login(chromium: Any) -> Login:
    """What Airflow's own login page leaves in the browser, of a user at a site's address."""

    @cache
    def state(url: str, user: str) -> Any:
        context = chromium.new_context()
        context.set_default_timeout(MOST_MS)
        page = context.new_page()
        page.goto(url)
        page.fill("input[name=username]", user)
        page.fill("input[name=password]", PASSWORD)
        page.click("button[type=submit]")
        page.get_by_role("link", name="Dags").first.wait_for()
        found = context.storage_state()
        context.close()
        return found

    return state


@pytest.fixture
def visit_of(chromium: Any, login: Login) -> Iterator[Callable[..., Watched]]:
    """Opens a logged-in page of a width and theme at an address below a site's."""
    contexts = []

    def open_page(
        site: Site,
        address: str,
        *,
        user: str = VIEWER,
        width: int = 1400,
        theme: str = "light",
        before: Any = None,
    ) -> Watched:
        context = chromium.new_context(
            storage_state=login(site.url, user),
            viewport={"width": width, "height": 900},
            color_scheme=theme,
        )
        contexts.append(context)
        context.set_default_timeout(MOST_MS)
        context.add_init_script(f"localStorage.setItem('theme', '{theme}')")
        watched = Watched(context.new_page())
        _watch(watched)
        if before:
            before(watched.page)
        watched.page.goto(f"{site.url}/{address}")
        return watched

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture
def visit(site: Site, visit_of: Callable[..., Watched]) -> Callable[..., Watched]:
    """The same of this site."""
    return partial(visit_of, site)


def _watch(watched: Watched) -> None:
    page = watched.page

    def heard(message: Any) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(NOT_OURS):
            watched.said.append(message.text)

    def answered(response: Any) -> None:
        if response.status >= 400 and response.status != BUSY:
            watched.answers.append(f"{response.status} {response.url}")

    def warned(dialog: Any) -> None:
        watched.dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("console", heard)
    page.on("pageerror", lambda error: watched.said.append(str(error)))
    page.on("response", answered)
    page.on("request", lambda request: watched.hosts.add(urlsplit(request.url).hostname))
    page.on("dialog", warned)
