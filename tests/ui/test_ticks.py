"""Texts of axes, and dates, as a browser draws them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.ui.look import DAG_PAGE, Visit, drawn, unfolded
from tests.ui.test_cost_page import with_crowded_front

# [chart, text, left, top, right, bottom] of each tick's text
TICKS = """() => [...document.querySelectorAll(".chart")].flatMap((element, at) => {
  const chart = window.echarts.getInstanceByDom(element);
  if (!chart) return [];
  const texts = chart.getZr().storage.getDisplayList().filter((shape) => shape.style.text && !shape.ignore);
  const ticks = texts.filter((shape) => (shape.anid ?? shape.parent?.anid ?? "").startsWith("label_"));
  return ticks.map((shape) => {
    const box = shape.getBoundingRect().clone();
    const moved = shape.getComputedTransform();
    if (moved) box.applyTransform(moved);
    return [at, shape.style.text, box.x, box.y, box.x + box.width, box.y + box.height];
  });
})"""


@pytest.mark.slow
@pytest.mark.parametrize("before", [None, with_crowded_front], ids=["as it ran", "crowded"])
def test_no_tick_covers_another(visit: Visit, before: Callable[[Any], None] | None) -> None:
    at = visit(DAG_PAGE, before=before)
    at.page.set_viewport_size({"width": 1280, "height": 720})
    tab = unfolded(at.tab())
    for chart in (".cost .chart", ".front .chart"):
        drawn(tab, chart)
    at.fit()
    ticks = tab.evaluate(TICKS)
    assert len({tick[0] for tick in ticks}) >= 3
    for number, (chart, text, left, top, right, bottom) in enumerate(ticks):
        for other in ticks[number + 1 :]:
            if other[0] != chart:
                continue
            beside = other[4] <= left or right <= other[2] or other[5] <= top or bottom <= other[3]
            assert beside, f"{text} and {other[1]} overlap"


# how far the charts themselves begin to the right of their boxes [px]
LEFT = """(boxes) => boxes.map((box) => {
  const [series] = window.echarts.getInstanceByDom(box).getModel().getSeries();
  return series.coordinateSystem.getArea().x;
})"""


@pytest.mark.slow
def test_the_long_name_of_an_axis_narrows_no_chart(visit: Visit) -> None:
    at = visit(DAG_PAGE)
    tab = unfolded(at.tab())
    for chart in (".cost .chart", ".saved .chart", ".belief .chart"):
        drawn(tab, chart)
        assert tab.locator(chart).evaluate_all(LEFT) == [64], chart
        at.shoot(f"axis{chart.partition(' ')[0]}")


@pytest.mark.slow
def test_a_run_began_at_a_date_that_all_read_alike(visit: Visit) -> None:
    """The page "Zeus" and the table of runs wrote 11/29/26, 4:38 PM."""
    tab = unfolded(visit(DAG_PAGE).tab())
    began = tab.locator("#rows time").first.inner_text()
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}", began)
