"""A page of the site as a test reads it: its text, what it links to, what it loads, its anchors."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path


@dataclass
class Page:
    """What is in a page."""

    text: str = ""
    links: list[str] = field(default_factory=list)  # addresses that a reader may follow
    loads: list[str] = field(default_factory=list)  # addresses that the browser fetches by itself
    anchors: set[str] = field(default_factory=set)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()
        self.parts: list[str] = []
        self.silent = 0  # depth of elements whose text is none

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.silent += tag in ("script", "style")
        if anchor := found.get("id") or (found.get("name") if tag == "a" else None):
            self.page.anchors.add(anchor)
        if tag == "a" and (href := found.get("href")):
            self.page.links.append(href)
        if tag in ("script", "img", "iframe", "source") and (src := found.get("src")):
            self.page.loads.append(src)
        if tag == "link" and (href := found.get("href")):
            of_text = found.get("rel") in ("canonical", "next", "prev")
            (self.page.links if of_text else self.page.loads).append(href)

    def handle_endtag(self, tag: str) -> None:
        self.silent -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.parts.append(data)


def read(path: Path) -> Page:
    """Read a page."""
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.page.text = "".join(reader.parts)
    return reader.page
