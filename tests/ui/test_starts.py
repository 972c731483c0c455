"""What a DAG's and a run's tab show of a job that chooses where its trainings start:
real runs, in a real browser.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_zeus.plugin.charts.dag_charts import HALF_ROUND
from tests.integration.jobs import job, log_of, loop
from tests.ui.look import Visit, drawn, run_tab, unfolded
from tests.ui.site import Site, run_dag

DAG_ID = "zeus_ui_starts"
RUNS = 7
EPOCHS = {"cold": 9, "shrunk": 5, "warm": 2}
# accuracy of a model on the data after its own
SERVED = {"cold": 0.86, "shrunk": 0.84, "warm": 0.88}
SYMBOLS = """() => window.echarts.getInstanceByDom(document.querySelector(".cost .chart")).getOption().series
  .filter((s) => s.type === "scatter").flatMap((s) => s.data.map((point) => point.symbol))"""


@pytest.fixture(scope="module")
def started(site: Site) -> str:
    """The newest run that went on from the earlier model."""
    from airflow.sdk import DAG, task

    sizes = {"batch_sizes": [32, 64], "default_batch_size": 32, "max_epochs": 12}
    spec = job(starts=list(EPOCHS), policy="knowledge_gradient", **sizes)
    with DAG(DAG_ID, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:

        @task.zeus(spec)
        def train(run: Any = None) -> dict[str, str]:
            if run.previous is not None:
                run.served(accuracy=SERVED[run.previous["start"]])
            start = run.planned_start
            run.started(start)
            loop(run, EPOCHS[start])
            return {"start": start}

        train()
    for _ in range(RUNS):
        run_dag(dag)
    return next(
        t.origin.run_id
        for t in reversed(log_of(f"{DAG_ID}.train"))
        if t.observation.start == "warm"
    )


@pytest.mark.parametrize(
    "theme",
    [
        pytest.param("light", marks=pytest.mark.slow),
        pytest.param("dark", marks=pytest.mark.nightly),
    ],
)
def test_a_job_that_chooses_its_start_shows_it_in_chart_levers_table_and_run(
    visit: Visit, started: str, theme: str
) -> None:
    at = visit(f"zeus/page?dag_id={DAG_ID}", theme=theme)
    tab = unfolded(at.tab())
    for chart in (".cost", ".belief", ".front"):
        assert drawn(tab, f"{chart} .chart") >= 3, chart
    tab.locator(".service canvas").wait_for()
    assert re.search(
        r"cold 1.\d+ \(1 run\), shrunk", tab.locator(".service .chart").get_attribute("aria-label")
    )
    assert "runs batch size 64, warm," in tab.locator(".front .chart").get_attribute("aria-label")
    assert "64, warm" in tab.locator(".front table").text_content(), "no mean of several starts"
    assert {"circle", HALF_ROUND, "rect"} <= set(tab.evaluate(SYMBOLS)), "each start has its mark"
    levers = tab.locator("tr", has_text="Earlier model").first.inner_text()
    assert levers.count("saved ") == 2, levers
    assert {"cold", "shrunk", "warm"} == {
        state.rsplit(", ", 1)[1].removesuffix(" start")
        for state in tab.locator("#rows .state, #rows td", has_text=" start").all_inner_texts()
    }
    at.shoot_whole(tab, f"starts-dag-{theme}")
    at.page.goto(at.page.url.split("/zeus/page")[0] + f"/{run_tab(started, DAG_ID)}")
    at.zeus.locator(".attempts > li", has_text="from a warm start").wait_for()
    assert "warm start" in at.zeus.locator("main").inner_text()
    at.shoot_whole(at.tab(), f"starts-run-{theme}")
    assert at.fine()
