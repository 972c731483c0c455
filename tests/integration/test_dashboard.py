"""``docs/grafana.json``: every panel shows what runs have sent, by a real Prometheus.

``ZEUS_DASHBOARD=FOLDER`` keeps a picture of the panels, drawn by the project's chart library in a browser.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_zeus.reports.run_figures import RunFigures, with_log
from airflow_provider_zeus.reports.run_metrics import Metric, job_metrics, trial_metrics
from tests.dashboard import (
    DAY_S,
    PROMETHEUS,
    PROMTOOL,
    WHY_NOT,
    asked,
    chart,
    draw,
    openmetrics,
    panels,
    prometheus,
)
from tests.integration.jobs import EPOCHS, job, log_of, zeus_dag
from tests.receivers import PREFIX, Point, airflow_sends, flush, otlp
from tests.ui.browser import find_browser
from tests.unit.reports.test_run_figures import DEFAULTS, PROFILE, trial

RUNS = 12
METRICS = Path(__file__).parents[2] / "docs" / "metrics.md"
NAME = re.compile(r"\bairflow_zeus_\w+")


def test_every_metric_and_tag_of_the_dashboard_is_one_that_is_sent() -> None:
    tags = _tags_by_name()
    for title, target in [
        (panel["title"], target) for panel in panels() for target in panel["targets"]
    ]:
        names = set(NAME.findall(target["expr"]))
        assert names <= set(tags), title
        used = set(re.findall(r"(\w+)=~", target["expr"])) | set(
            re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
        )
        assert all(used <= tags[name] for name in names), title


def test_the_alert_rule_of_the_docs_names_what_is_sent(tmp_path: Path) -> None:
    (text,) = re.findall(
        r"```yaml\n(groups:.*?)```", METRICS.read_text(encoding="utf-8"), re.DOTALL
    )
    ((rule,),) = (group["rules"] for group in yaml.safe_load(text)["groups"])
    (name,) = NAME.findall(rule["expr"])
    (by,) = re.findall(r"sum by \(([^)]*)\)", rule["expr"])
    used = {*by.split(", "), *re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])}
    assert used <= _tags_by_name()[name]
    if PROMTOOL:
        (tmp_path / "rules.yml").write_text(text, encoding="utf-8")
        subprocess.run([PROMTOOL, "check", "rules", tmp_path / "rules.yml"], check=True)


def _tags_by_name() -> dict[str, set[str]]:
    """The tags of each metric that runs send, by its name in Prometheus."""
    own = [trial(9, 16, 2.0)]
    sent: list[Metric] = trial_metrics(own, own) + job_metrics(
        with_log(RunFigures(cost={}, ended=own), [*DEFAULTS, *own], lambda *_: PROFILE)
    )
    tags: dict[str, set[str]] = {}
    for metric in sent:
        name = (PREFIX + metric.name).replace(".", "_") + ("_total" if metric.total else "")
        tags.setdefault(name, set()).update(metric.tags)
    return tags


@pytest.mark.nightly
@pytest.mark.skipif(not (PROMETHEUS and PROMTOOL), reason=WHY_NOT)
def test_every_panel_shows_what_real_runs_sent(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
    spec = job(eta=0.7, policy="zeus")
    dag = zeus_dag("energy", spec, {**EPOCHS, 16: 6}.__getitem__)
    runs: list[list[Point]] = []
    with otlp() as received, airflow_sends("otel", received.port, monkeypatch.setenv):
        for _ in range(RUNS):
            assert run_dag(dag).state == "success"
            flush()
            runs.append([p for p in received.points if p.name.startswith(f"{PREFIX}zeus.")])
            received.points.clear()
    log = log_of("energy.train")
    end_s = int(time.time()) // DAY_S * DAY_S
    range_s = RUNS * DAY_S
    found: dict[str, list[dict[str, Any]]] = {}
    with prometheus(tmp_path, openmetrics(runs, end_s)) as url:
        for panel in panels():
            found[panel["title"]] = asked(url, panel, end_s, range_s)
    assert [title for title, series in found.items() if not series] == []

    (energy,) = found["Energy of all trials"]
    assert float(energy["value"][1]) == pytest.approx(
        math.fsum(t.observation.energy_j or 0.0 for t in log)
    )
    assert sum(float(s["value"][1]) for s in found["Trials by phase and state"]) == pytest.approx(
        len(log)
    )
    (newest,) = found["Energy of the newest trial"]
    assert float(newest["values"][-1][1]) == pytest.approx(log[-1].observation.energy_j)
    believed = {s["metric"]["batch_size"] for s in found["Believed cost of each batch size"]}
    assert {"32"} < believed <= {"16", "32", "64"}, "one that was given up may have none"

    if folder := os.environ.get("ZEUS_DASHBOARD"):
        if find_browser().path is None:
            pytest.skip(find_browser().reason)
        draw(
            [(p["gridPos"]["w"], chart(p, found[p["title"]])) for p in panels()],
            Path(folder) / "dashboard.png",
        )
