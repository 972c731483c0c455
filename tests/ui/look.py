"""What the browser tests look at: pixels of charts, widths, addresses of tabs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from tests.ui.conftest import Watched, came
from tests.ui.site import ZEUS_DAG

Visit = Callable[..., Watched]
DAG_TAB = f"dags/{ZEUS_DAG}/plugin/zeus-cost"
DAG_PAGE = f"zeus/page?dag_id={ZEUS_DAG}"  # the same without Airflow's own page around it

# Distinct colours of a chart's pixels with at least 20 of each: grid, text, lines and points when
# it is drawn.
_COLOURS = """(chart) => {
  const canvas = chart.querySelector("canvas");
  if (!canvas) return 0;
  const data = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  const counts = new Map();
  for (const pixel of data) if (pixel >>> 24 === 255) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
  return [...counts.values()].filter((count) => count >= 20).length;
}"""
TOO_WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


def run_tab(run_id: str, dag_id: str = ZEUS_DAG) -> str:
    return f"dags/{dag_id}/runs/{quote(run_id, safe='')}/plugin/zeus-cost-run"


def unfolded(tab: Any) -> Any:
    """The tab of a DAG with all its questions open."""
    tab.locator("#content > details.part").last.wait_for()
    every = (
        "content => content.querySelectorAll(':scope > details.part').forEach((part) => { part.open"
        " = true; })"
    )
    tab.locator("#content").evaluate(every)
    return tab


def drawn(tab: Any, chart: str = "#chart") -> int:
    """Colours of a chart, once it is drawn: at least three, unless it takes a minute."""
    tab.locator(f"{chart} canvas").first.wait_for()
    came(tab.locator(chart).page, lambda: tab.locator(chart).first.evaluate(_COLOURS) >= 3)
    return int(tab.locator(chart).first.evaluate(_COLOURS))
