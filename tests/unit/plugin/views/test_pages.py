"""The declaration of the pages: each block has a name of its own,
and a function of the page's script draws it.
"""

from __future__ import annotations

import re

import pytest

from airflow_provider_zeus.plugin.api.app import STATIC
from airflow_provider_zeus.plugin.views.pages import PAGES


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_can_be_drawn(page: str) -> None:
    script = (STATIC / "blocks.js").read_text()
    drawn = set(
        re.findall(r"^  (\w+):", script.partition("const DRAW")[2].partition("\n};")[0], re.M)
    )
    assert {block.draw for block in PAGES[page]} <= drawn | {"chart", "openChart"}
    assert len({block.id for block in PAGES[page]}) == len(PAGES[page])
