"""The site builds without a network in half a minute; no broken link, no page forgotten,
nothing fetched.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from docs_site.build import address as address_of_site
from docs_site.pages import MOVED, OWN_HOME
from docs_site.prose import prepared
from tests.docs.blocks import PAGES, ROOT
from tests.docs.conftest import Built

ELSEWHERE = {  # addresses outside of the site; nothing here can reach them, so a person has looked
    "https://airflow.apache.org/docs/apache-airflow-providers-openlineage/stable/",
    # the project itself, as pyproject.toml has it
    "https://github.com/airflow-provider-zeus/airflow-provider-zeus",
    "https://github.com/ml-energy/zeus",
    "https://semver.org/",
    "https://www.usenix.org/conference/nsdi23/presentation/you",
    "https://www.usenix.org/conference/osdi21/presentation/qiao",
}


@pytest.mark.slow
def test_it_builds_in_half_a_minute(built: Built) -> None:
    assert 0 < built.cpu_s < 30, (
        "CPU seconds: how long it takes on a clock says how busy this host is"
    )


@pytest.mark.slow
def test_a_page_that_is_not_in_the_menu_ends_the_build(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "index.md").write_text("# Home\n")
    (pages / "other.md").write_text("# Other\n\n[nowhere](#nowhere)\n")
    code = (
        "import logging; logging.basicConfig(level=logging.ERROR)\nfrom pathlib import Path; from"
        " unittest import mock; import docs_site.build as b\nwith mock.patch.object(b, 'staged'):"
        f" b.build(Path({str(tmp_path / 'site')!r}), Path({str(pages)!r}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "not included in the" in done.stdout + done.stderr


@pytest.mark.slow
def test_every_page_is_built(built: Built) -> None:
    places = {MOVED.get(page, page.removeprefix("docs/")) for page in PAGES if page != OWN_HOME}
    assert {place.replace(".md", ".html") for place in places} <= set(built.pages)


@pytest.mark.slow
def test_the_facets_schema_is_at_its_address(built: Built) -> None:
    schema = ROOT / "airflow_provider_zeus" / "schemas" / "1-0-0" / "ZeusRunFacet.json"
    found = built.folder / "schemas" / "1-0-0" / "ZeusRunFacet.json"
    assert found.read_text() == schema.read_text()
    assert json.loads(schema.read_text())["$id"].startswith(address_of_site())


@pytest.mark.slow
def test_no_link_is_broken(built: Built) -> None:
    broken = []
    links = 0
    for name, page in built.pages.items():
        for address in [*page.links, *page.loads]:
            parts = urlsplit(address)
            if address.startswith(address_of_site()):  # the page's own, for search engines
                if not (built.folder / address.removeprefix(address_of_site())).exists():
                    broken.append(f"{name}: {address} is not in the site")
                continue
            if parts.scheme in ("http", "https"):
                if address not in ELSEWHERE:
                    broken.append(f"{name}: {address} is not among the known addresses")
                continue
            links += 1
            path = (
                posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path)))
                if parts.path
                else name
            )
            file = built.folder / path
            if not file.is_file():
                broken.append(f"{name}: {address}")
            elif (
                parts.fragment
                and path in built.pages
                and unquote(parts.fragment) not in built.pages[path].anchors
            ):
                broken.append(f"{name}: {address}: no such place on the page")
    assert broken == []
    assert links > 2000


def test_no_link_of_the_repository_is_broken() -> None:
    """As a code host shows the pages: each relative link leads to a file,
    and each anchor to a heading.
    """
    broken = []
    for page in PAGES:
        folder = posixpath.dirname(page)

        def look(target: str, page: str = page, folder: str = folder) -> str:
            path, _, anchor = target.partition("#")
            found = posixpath.normpath(posixpath.join(folder, path))
            if not (ROOT / found).exists() or (anchor and anchor not in headings(found)):
                broken.append(f"{page}: {target}")
            return target

        prepared((ROOT / page).read_text(encoding="utf-8"), look)
    assert broken == []


def headings(page: str) -> set[str]:
    """Anchors of a page's headings, as code hosts make them."""
    lines = re.sub(
        r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S
    ).splitlines()
    titles = [line.lstrip("#").strip() for line in lines if re.match("#+ ", line)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.slow
def test_pages_load_nothing_from_outside(built: Built) -> None:
    for name, page in built.pages.items():
        assert [address for address in page.loads if urlsplit(address).netloc] == [], name
    styles = list(built.folder.rglob("*.css"))
    assert styles
    for path in styles:
        assert not re.search(r"url\([\"']?https?:|@import", path.read_text(encoding="utf-8")), (
            path.name
        )


@pytest.mark.slow
def test_pages_show_nothing_of_this_machine(built: Built) -> None:
    for name, page in built.pages.items():
        assert str(ROOT) not in page.text, name
        assert str(built.folder.parent) not in page.text, name
        assert os.environ["AIRFLOW_HOME"] not in page.text, name


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("A list:\n- one\n- two", "A list:\n\n- one\n- two\n"),
        ("Text\n| a |\n|---|\n| b |", "Text\n\n| a |\n|---|\n| b |\n"),
        ("- one\n  goes on\n- two", "- one\n  goes on\n- two\n"),
        ("```\n- no list\n[no](link.md)\n```", "```\n- no list\n[no](link.md)\n```\n"),
        ("[`name`](a.md) and `[not](b.md)`", "[`name`](<a.md>) and `[not](b.md)`\n"),
        (
            "[there](https://example.com) [here](#part)",
            "[there](https://example.com) [here](#part)\n",
        ),
        ("<!-- not run: no cluster -->\n```bash\nx\n```", "```bash\nx\n```\n"),
    ],
)
def test_what_the_builder_gets(text: str, wanted: str) -> None:
    assert prepared(text, lambda target: f"<{target}>") == wanted
