"""The site in Chromium: each page in both themes and widths, from a server and from files;
the search finds a page.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.docs.conftest import Built
from tests.ui.look import TOO_WIDE

WIDTHS = (400, 1400)
MOST_MS = 120_000  # on a busy host, too
# Elements whose text leaves their box by more than the padding of a word of code, where nothing can
# be scrolled.
_CUT = """() => [...document.querySelectorAll("main h1, main h2, main h3, main p, main li, main td, main th, nav a")]
  .filter((e) => e.clientWidth && e.scrollWidth > e.clientWidth + 8 && getComputedStyle(e).overflowX !== "auto")
  .filter((e) => !e.closest(".md-typeset__table") && !e.closest("[hidden]"))
  .map((e) => `${e.tagName}: ${e.innerText.slice(0, 60)}`)"""
_BROKEN_PICTURES = (
    "() => [...document.images].filter((i) => i.complete && !i.naturalWidth).map((i) => i.src)"
)
# A sidebar slides where the width changes; what is still on its way is not where it will be.
_AT_REST = (
    "async () => { await Promise.allSettled(document.getAnimations().map((each) =>"
    " each.finished)) }"
)
_SCHEME = "() => document.body.getAttribute('data-md-color-scheme')"


class Reader:
    """A page of the browser, and what it asked for and said."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.said: list[str] = []
        self.hosts: set[str] = set()
        page.on(
            "console",
            lambda m: self.said.append(m.text) if m.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on(
            "response",
            lambda r: self.said.append(f"{r.status} {r.url}") if r.status >= 400 else None,
        )
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).hostname or ""))


@pytest.fixture
def open_reader(chromium: Any) -> Iterator[Callable[[str], Reader]]:
    """Opens a browser of a theme."""
    contexts = []

    def of(theme: str) -> Reader:
        contexts.append(
            chromium.new_context(viewport={"width": 1400, "height": 900}, color_scheme=theme)
        )
        contexts[-1].set_default_timeout(MOST_MS)
        return Reader(contexts[-1].new_page())

    yield of
    for context in contexts:
        context.close()


@pytest.fixture
def reader(open_reader: Callable[[str], Reader]) -> Reader:
    return open_reader("light")


@pytest.mark.parametrize(
    ("theme", "scheme", "share"),
    [
        pytest.param("light", "default", 4, marks=pytest.mark.slow),
        pytest.param("light", "default", 1, marks=pytest.mark.nightly),
        pytest.param("dark", "slate", 1, marks=pytest.mark.nightly),
    ],
)
def test_each_page_in_both_themes_and_widths(
    theme: str,
    scheme: str,
    share: int,
    built: Built,
    served: str,
    open_reader: Callable[[str], Reader],
) -> None:
    """Each night all pages; before a merge a quarter of them, others each time:
    the run's seed draws them.
    """
    reader = open_reader(theme)
    wrong = []
    for name in random.sample(sorted(built.pages), len(built.pages) // share):
        reader.page.goto(f"{served}/{name}")
        if reader.page.evaluate(_SCHEME) != scheme:
            wrong.append(f"{name}: not {theme}")
        for width in WIDTHS:
            reader.page.set_viewport_size({"width": width, "height": 900})
            reader.page.evaluate(_AT_REST)
            if (more := reader.page.evaluate(TOO_WIDE)) > 0:
                wrong.append(f"{name} {width}: {more} pixels too wide")
            wrong += [f"{name} {width}: {each}" for each in reader.page.evaluate(_CUT)]
        wrong += [f"{name}: no picture {src}" for src in reader.page.evaluate(_BROKEN_PICTURES)]
    assert wrong == []
    assert reader.said == []
    assert reader.hosts == {"127.0.0.1"}
    assert len(built.pages) > 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by", "word", "page"),
    [
        ("server", "gpu_lock_wait_s", "reference/options.html"),
        ("file", "torchrun", "how-to/several-gpus.html"),
    ],
)
def test_the_search_finds_a_page(
    by: str, word: str, page: str, built: Built, served: str, reader: Reader
) -> None:
    home = f"{served}/index.html" if by == "server" else (built.folder / "index.html").as_uri()
    reader.page.goto(home)
    reader.page.locator(".md-search__input").click()
    reader.page.locator(".md-search-result__meta", has_not_text="Initializing").wait_for()
    reader.page.keyboard.type(word)
    found = reader.page.locator(f".md-search-result__link[href*='{page}']").first
    found.wait_for()
    found.click()
    reader.page.wait_for_url(f"**/{page}**")
    assert word in reader.page.locator("main").inner_text()
    assert reader.said == []
    assert reader.hosts <= {"127.0.0.1", ""}


@pytest.mark.slow
def test_a_site_from_files_asks_for_nothing_else(built: Built, reader: Reader) -> None:
    for name in ("index.html", "reference/job.html", "how-to/permissions.html"):
        reader.page.goto((built.folder / name).as_uri())
        reader.page.locator("main h1").wait_for()
        assert reader.page.evaluate(TOO_WIDE) <= 0
    reader.page.locator("nav.md-tabs a", has_text="How it works").click()
    reader.page.locator("main h1", has_text="How it works").wait_for()
    assert reader.said == []
    assert reader.hosts == {""}
