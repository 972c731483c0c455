"""Whether all can use a page: axe's rules, a table beside each chart, focus that is seen."""

from __future__ import annotations

from functools import cache
from typing import Any

# axe sees no background in a frame, and takes it for white: ours shows what is behind it.
_BACKGROUND = """() => {
  const outer = parent === window ? "" : getComputedStyle(parent.document.body).backgroundColor;
  document.documentElement.style.background = /, 0\\)$|^$/.test(outer) ? "Canvas" : outer;
}"""
_OPTIONS = {
    "resultTypes": ["violations"],
    "preload": False,  # no rule about style sheets is needed
    # tables of several map indexes bear one name, each in its part
    "rules": {"landmark-unique": {"enabled": False}},
}
_NO_BACKGROUND = "() => document.documentElement.style.removeProperty('background')"
# Charts that are drawn, and have no table that the keyboard can unfold.
_WITHOUT_TABLE = """() => [...document.querySelectorAll("figure")]
  .filter((figure) => figure.querySelector("canvas") && figure.checkVisibility())
  .filter((figure) => !(figure.querySelector(".chart").ariaLabel && figure.querySelector("summary")?.checkVisibility()
    && figure.querySelectorAll("tbody tr").length))
  .map((figure) => figure.dataset.title)"""
_FOCUSED = """() => {
  const { activeElement: on } = document, { outlineStyle, outlineWidth } = getComputedStyle(on);
  const { width, height } = on.getBoundingClientRect();
  return { name: on.ariaLabel ?? on.innerText ?? "", tag: on.localName, id: on.id,
    seen: outlineStyle !== "none" && parseFloat(outlineWidth) >= 1 && width > 0 && height > 0 };
}"""


def usable(frame: Any) -> None:
    """Raises AssertionError naming what axe finds on a page, of whatever impact,
    and charts without a table.
    """
    without = frame.evaluate(_WITHOUT_TABLE)
    assert not without, f"a chart has no table: {without}"
    frame.evaluate(_BACKGROUND)
    try:
        found = _axe().run(frame, options=_OPTIONS).response["violations"]
    finally:
        frame.evaluate(_NO_BACKGROUND)
    told = [
        f"{v['impact']} {v['id']}: {n['target']} {n['failureSummary']}"
        for v in found
        for n in v["nodes"]
    ]
    assert not told, "\n".join(told)


@cache
def _axe() -> Any:
    from axe_playwright_python.sync_playwright import Axe

    return Axe()


def focused(frame: Any) -> dict[str, Any]:
    """``name``, ``tag`` and ``id`` of what has the focus.

    Raises AssertionError where that is not seen.
    """
    found: dict[str, Any] = frame.evaluate(_FOCUSED)
    assert found["tag"] != "body", "the focus is lost"
    assert found["seen"], f"no outline: {found}"
    return found


def tab_to(page: Any, frame: Any, name: str, *, back: bool = False, most: int = 60) -> None:
    """Press Tab until what bears this name has the focus, which is seen at each stop."""
    for _ in range(most):
        page.keyboard.press("Shift+Tab" if back else "Tab")
        if frame.evaluate("document.activeElement.localName") == "body":
            continue  # around the page's ends
        if name in focused(frame)["name"]:
            return
    raise AssertionError(f"Tab does not lead to {name!r}")
