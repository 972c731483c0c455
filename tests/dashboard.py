"""``docs/grafana.json`` on metrics that a real Prometheus holds, and a picture of its panels.

A collector is stood in for: :func:`openmetrics` adds up counters, keeps gauges and names both as
the OpenTelemetry collector's Prometheus exporter does. Storing,
PromQL and the answers are Prometheus's own.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.receivers import Point

ROOT = Path(__file__).parents[1]
DASHBOARD = ROOT / "docs" / "grafana.json"
PROMETHEUS = shutil.which("prometheus")
PROMTOOL = shutil.which("promtool")
DAY_S = 86_400
STEP_S = 3600
UNITS = {"joule": "J", "s": "s", "watt": "W", "percentunit": "1 = 100 %"}
WHY_NOT = "no prometheus and promtool on PATH (Debian: apt-get install prometheus)"

Runs = Sequence[Sequence[Point]]  # what came of each run, in order


def panels() -> list[dict[str, Any]]:
    """The panels of the dashboard."""
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def expression(panel: Mapping[str, Any], range_s: int) -> str:
    """The PromQL of a panel, with all jobs and sources chosen."""
    text = str(panel["targets"][0]["expr"])
    for variable, value in (("$__range", f"{range_s}s"), ("$zeus_job", ".*"), ("$source", ".*")):
        text = text.replace(variable, value)
    assert "$" not in text, text
    return text


def prometheus_name(point: Point) -> str:
    """The name that the collector's Prometheus exporter gives: dots become ``_``,
    a counter ends in ``_total``.
    """
    return point.name.replace(".", "_") + ("_total" if point.kind == "counter" else "")


def openmetrics(runs: Runs, end_s: int, gap_s: int = DAY_S) -> str:
    """A run each ``gap_s``, the last one ``gap_s`` before the end;
    between two the collector shows what it holds.
    """
    samples: dict[tuple[str, str], list[str]] = {}
    held: dict[tuple[str, str], float] = {}
    kinds: dict[str, str] = {}
    for n, points in enumerate(runs):
        for p in points:
            name = prometheus_name(p)
            labels = ",".join(f"{tag}={json.dumps(value)}" for tag, value in sorted(p.tags.items()))
            assert p.kind == "gauge" or p.delta
            kinds[name] = p.kind
            key = name, f"{name}{{{labels}}}"
            held[key] = p.value + (held.get(key, 0.0) if p.kind == "counter" else 0.0)
        begin_s = end_s - (len(runs) - n) * gap_s
        for at_s in range(begin_s, begin_s + gap_s, STEP_S):
            for key, value in held.items():
                samples.setdefault(key, []).append(f"{key[1]} {value!r} {at_s}")
    lines: list[str] = []
    for name, kind in sorted(kinds.items()):
        lines.append(f"# TYPE {name.removesuffix('_total') if kind == 'counter' else name} {kind}")
        lines += [line for key in sorted(samples) if key[0] == name for line in samples[key]]
    return "\n".join([*lines, "# EOF", ""])


@contextmanager
def prometheus(folder: Path, text: str) -> Iterator[str]:
    """A Prometheus that holds these samples; its URL."""
    assert PROMETHEUS
    assert PROMTOOL
    (folder / "samples.txt").write_text(text)
    (folder / "prometheus.yml").write_text("scrape_configs: []\n")
    data = folder / "data"
    subprocess.run(
        [PROMTOOL, "tsdb", "create-blocks-from", "openmetrics", folder / "samples.txt", data],
        check=True,
        capture_output=True,
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    options = [
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={data}",
        "--query.lookback-delta=2h",
    ]
    options += [
        f"--web.listen-address={address}",
        "--storage.tsdb.retention.time=1y",
        "--log.level=error",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        server = subprocess.Popen([PROMETHEUS, *options], stdout=log, stderr=log)
        try:
            _wait_for(f"http://{address}/-/ready", server)
            yield f"http://{address}"
        finally:
            server.terminate()
            server.wait(30)


def _wait_for(url: str, server: subprocess.Popen[bytes], most_s: float = 60.0) -> None:
    until_s = time.monotonic() + most_s
    while True:
        assert server.poll() is None, "prometheus has ended"
        try:
            urllib.request.urlopen(url, timeout=10).close()
            return
        except urllib.error.URLError:
            assert time.monotonic() < until_s, "prometheus is not ready"
            time.sleep(0.1)


def asked(url: str, panel: Mapping[str, Any], end_s: int, range_s: int) -> list[dict[str, Any]]:
    """What Prometheus answers to a panel: series with their points, or with one value.

    Raises HTTPError: bad PromQL.
    """
    query: dict[str, Any] = {"query": expression(panel, range_s)}
    instant = bool(panel["targets"][0].get("instant"))
    if instant:
        query |= {"time": end_s - STEP_S}
    else:
        query |= {"start": end_s - range_s, "end": end_s - STEP_S, "step": STEP_S}
    address = (
        f"{url}/api/v1/{'query' if instant else 'query_range'}?{urllib.parse.urlencode(query)}"
    )
    with urllib.request.urlopen(address, timeout=60) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return found


def legend(panel: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """The name of a series as the panel writes it."""
    text = str(panel["targets"][0]["legendFormat"])
    for label in set(labels) | {"device", "source"}:
        text = text.replace(f"{{{{{label}}}}}", labels.get(label, ""))
    return text


def chart(panel: Mapping[str, Any], series: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """An ECharts option that shows a panel's series as Grafana's panel of that type does."""
    unit = UNITS.get(panel["fieldConfig"]["defaults"]["unit"], "")
    common = {"title": {"text": panel["title"], "textStyle": {"fontSize": 13}}, "animation": False}
    if panel["type"] == "bargauge":
        names = [legend(panel, s["metric"]) for s in series]
        bars = {
            "type": "bar",
            "data": [float(s["value"][1]) for s in series],
            "label": {"show": True},
        }
        axes = {"xAxis": {"name": unit}, "yAxis": {"type": "category", "data": names}}
        return {**common, **axes, "grid": {"left": 190, "right": 60}, "series": [bars]}
    lines = [
        {
            "type": "line",
            "step": "end",
            "showSymbol": False,
            "name": legend(panel, s["metric"]),
            "data": [[t * 1000, float(v)] for t, v in s["values"]],
        }
        for s in series
    ]
    axes = {"xAxis": {"type": "time"}, "yAxis": {"type": "value", "name": unit, "scale": True}}
    return {
        **common,
        **axes,
        "grid": {"left": 80},
        "legend": {"bottom": 0, "type": "scroll"},
        "series": lines,
    }


PAGE = """<!doctype html><meta charset="utf-8"><style>body{margin:8px;display:grid;gap:8px;
grid-template-columns:repeat(24,1fr);font-family:sans-serif}div{height:300px;border:1px solid #ccc}</style>
<script>%s</script><body><script>for (const [width, option] of %s) { const box = document.createElement("div");
box.style.gridColumn = `span ${width}`; document.body.append(box); echarts.init(box).setOption(option); }</script>"""


def draw(charts: Sequence[tuple[int, dict[str, Any]]], path: Path) -> None:
    """One picture of all panels, by the project's chart library in a real browser."""
    from playwright.sync_api import sync_playwright

    from tests.ui.browser import FLAGS, find_browser

    library = (ROOT / "airflow_provider_zeus/plugin/static/echarts.common.min.js").read_text()
    page_file = path.with_suffix(".html")
    page_file.write_text(PAGE % (library, json.dumps(charts).replace("<", "\\u003c")))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser().path, args=FLAGS)
        page = browser.new_page(viewport={"width": 1600, "height": 1300})
        page.goto(page_file.as_uri())
        page.locator("canvas").nth(len(charts) - 1).wait_for()
        page.screenshot(path=str(path), full_page=True)
        browser.close()
