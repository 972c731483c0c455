"""The page beside an Airflow that is busy (429): it waits and asks again by itself,
and gives up in words.
"""

from __future__ import annotations

from collections import Counter
from threading import Event
from typing import Any

import pytest

from tests.ui.look import DAG_PAGE, Visit, came
from tests.ui.site import RUNS

BUSY = {"detail": "Airflow is busy with other Zeus pages. Try again in a minute."}


def refused(route: Any, wait_s: int) -> None:
    route.fulfill(status=429, json=BUSY, headers={"Retry-After": str(wait_s)})


@pytest.mark.slow
def test_a_page_that_was_refused_asks_again_by_itself(visit: Visit) -> None:
    asked = Counter[str]()
    held: list[Any] = []  # answered once the message was looked at
    looked = Event()

    def twice(page: Any) -> None:
        def answer(route: Any) -> None:
            address = route.request.url
            asked[address] += 1
            if asked[address] <= 2:
                refused(route, wait_s=1)
            elif looked.is_set():
                route.continue_()
            else:
                held.append(route)

        page.route("**/zeus/api/**", answer)

    at = visit(DAG_PAGE, before=twice)
    assert came(at.page, lambda: len(held) == 2)
    assert at.page.locator("#message").inner_text() == "Loading …", "a refusal is no problem yet"
    looked.set()
    for route in held:
        route.continue_()
    at.page.locator("#rows tr").nth(RUNS - 1).wait_for(state="attached")
    at.page.locator(".charts figure").nth(3).wait_for(state="attached")
    table_and_charts = [
        count
        for address, count in asked.items()
        if address.rpartition("/")[2] in ("costs", "charts")
    ]
    assert table_and_charts == [3, 3]
    assert at.page.get_by_role("button", name="Try again").count() == 0


@pytest.mark.nightly
def test_a_page_that_is_refused_for_too_long_says_so_and_can_be_tried_again(visit: Visit) -> None:
    at = visit(
        DAG_PAGE,
        before=lambda page: page.route("**/zeus/api/**", lambda route: refused(route, wait_s=3600)),
    )
    problem = at.page.locator("#message.problem")
    problem.wait_for()
    assert problem.inner_text().startswith(BUSY["detail"])
    at.shoot("busy")
    at.page.unroute("**/zeus/api/**")
    at.page.get_by_role("button", name="Try again").click()
    at.page.locator("#rows tr").nth(RUNS - 1).wait_for(state="attached")


@pytest.mark.nightly
def test_charts_alone_may_be_tried_again(visit: Visit) -> None:
    at = visit(
        DAG_PAGE,
        before=lambda page: page.route(
            "**/zeus/api/**/charts*", lambda route: refused(route, wait_s=3600)
        ),
    )
    at.page.locator(".charts .note:visible", has_text="busy").first.get_by_role(
        "button", name="Try again"
    ).wait_for()
    assert at.page.locator("#rows tr").count() == RUNS, "the table stands"
