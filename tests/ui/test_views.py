"""Every view inside Airflow's own UI, in both themes, wide and narrow: below a path prefix with
SQLite, and with PostgreSQL for Airflow and the run log alike;
there a morning's way through all of them too.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.model.trial_fields import flat
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.postgres import empty_database
from tests.ui import tasks
from tests.ui.look import DAG_TAB, TOO_WIDE, Visit, drawn, run_tab, unfolded
from tests.ui.site import ADMIN, PREFIX, RUNS, ZEUS_DAG, Site, api_server

VIEWS = {"overview": "plugin/zeus", "dag": DAG_TAB, "run": ""}
TASKS = {
    "overview": "zeus/page",
    "dag": f"zeus/page?dag_id={tasks.DAG_ID}",
    "run": f"zeus/page?dag_id={tasks.DAG_ID}&run_id={tasks.RUN}",
}
CHARTS = {
    "overview": (),
    "dag": (".cost", ".saved", ".belief", ".front"),
    "run": (".power", ".curves"),
}


@pytest.fixture(scope="session")
def postgres_site(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The same site, its history made by a process whose Airflow and whose run log have
    PostgreSQL.
    """
    home = tmp_path_factory.mktemp("airflow-on-postgres")
    with empty_database(postgres) as metadata, empty_database(postgres) as log:
        on = {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": metadata.replace(
                "postgresql://", "postgresql+psycopg2://"
            ),
            "AIRFLOW_CONN_ZEUS_DEFAULT": json.dumps({"conn_type": "postgres", "host": log}),
        }
        SqlStore(log, create=True).close()
        made = subprocess.run(
            [sys.executable, "-m", "tests.ui.site"],
            env=os.environ | on,
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr[-3000:]
        with api_server(home, **on) as server:
            yield Site(server.ready(), json.loads(made.stdout.splitlines()[-1]), log)


@pytest.fixture
def everywhere(request: pytest.FixtureRequest) -> Site:
    """The site on either database."""
    found: Site = request.getfixturevalue("site" if request.param == "sqlite" else "postgres_site")
    assert found.url.endswith(PREFIX)
    return found


IN_A_CHECK = {
    ("sqlite", "overview", "light"),
    ("sqlite", "dag", "dark"),
    ("sqlite", "run", "light"),
}


@pytest.mark.parametrize(
    ("everywhere", "view", "theme"),
    [
        pytest.param(*shown, marks=pytest.mark.slow if shown in IN_A_CHECK else pytest.mark.nightly)
        for shown in itertools.product(["sqlite", "postgres"], VIEWS, ["light", "dark"])
    ],
    indirect=["everywhere"],
)
def test_every_view_in_both_themes_wide_and_narrow(
    visit_of: Visit, everywhere: Site, view: str, theme: str
) -> None:
    at = visit_of(everywhere, VIEWS[view] or run_tab(everywhere.runs[1]), theme=theme)
    tab = at.zeus  # Airflow may build its iframe anew while the page loads
    tab.locator("#store").wait_for(state="attached")
    if view == "overview":  # it is asked for when it is in sight; other tests leave jobs above it
        row = tab.locator("#jobs tr", has_text=ZEUS_DAG).first
        row.scroll_into_view_if_needed()
        row.locator(".saved .amount, .saved .why").first.wait_for()
    assert tab.locator("html").get_attribute("data-theme") == theme
    if view == "dag":
        unfolded(tab)
    for width in (1400, 800):
        at.page.set_viewport_size({"width": width, "height": 900})
        at.fit()
        for chart in CHARTS[view]:
            assert drawn(tab, f"{chart} .chart") >= 3, chart
        assert tab.locator("html").evaluate(TOO_WIDE) <= 0, "only tables scroll sideways"
        at.shoot_whole(tab, f"{view}-{theme}-{width}{'-postgres' if everywhere.log else ''}")
    assert at.fine()


@pytest.fixture(scope="module")
def shop(site: Site) -> None:
    """A DAG of plain tasks that were measured from outside."""
    tasks.history()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("view", "theme"), [("overview", "light"), ("dag", "dark"), ("run", "light")]
)
def test_tasks_measured_from_outside_in_every_view(
    visit: Visit, shop: None, view: str, theme: str
) -> None:
    """All tasks first, one line for fifty mapped ones, those below 1 % folded;
    no source is added to another.
    """
    at = visit(TASKS[view], theme=theme)
    tab = at.tab()
    tab.locator("#store").wait_for(state="attached")
    if view == "overview":
        tab.locator("tbody", has_text=tasks.DAG_ID).locator("tr.folded summary").click()
    tab.locator("details.small summary").first.click()
    sums = tab.locator("tr.sum th").all_inner_texts()
    assert sums == ["5 tasks", "1 task", "1 task"]
    shares = tab.locator("thead th", has_text="Share").all_inner_texts()
    assert shares == ["Share of its source"] * 2, "those of several sources are no parts of one sum"
    first = "details.small" if view == "overview" else "#tasks"
    assert tab.locator(first).count() == 1
    within = "tr.folded " if view == "overview" else ""
    names = tab.locator(f"{within}tbody tr:not(.sum) > th[scope=row]").all_inner_texts()
    if view == "run":
        shown = ["extract", "transform, 50 mapped", "embed", "load", "notify", "wait", "report"]
        assert names == shown, "the order of the graph, then what is folded"
        assert tab.locator("details[data-task] > details.part:visible").count() == 0
    else:
        assert names == ["embed", "transform", "extract", "load", "notify", "wait", "report"]
    for width in (1280, 740):
        at.page.set_viewport_size({"width": width, "height": 900})
        at.fit()
        assert tab.locator("html").evaluate(TOO_WIDE) <= 0, "only tables scroll sideways"
        at.shoot_whole(tab, f"tasks-{view}-{theme}-{width}")
    assert at.fine()


@pytest.mark.nightly
def test_a_morning_on_postgres(visit_of: Visit, postgres_site: Site) -> None:
    """From all jobs to one, a run clicked through, and what is exported is what the log holds."""
    at = visit_of(postgres_site, "plugin/zeus", user=ADMIN)
    at.zeus.locator("#jobs tr", has_text=ZEUS_DAG).first.locator("th a").click()
    at.page.wait_for_url(f"**/{DAG_TAB}")
    tab = unfolded(at.tab())
    assert tab.locator("#store").inner_text().startswith("Run log: postgresql")
    with at.page.expect_download() as waiting:
        tab.get_by_role("link", name="CSV").click()
    lines = list(csv.DictReader(io.StringIO(Path(waiting.value.path()).read_text())))
    store = SqlStore(postgres_site.log)
    rows = [flat(t) for t in store.trials(f"{ZEUS_DAG}.train")]
    store.close()
    assert len(rows) > RUNS
    assert [(x["run_id"], x["batch_size"], x["energy_j"], x["state"]) for x in lines] == [
        (r["run_id"], str(r["batch_size"]), str(r["energy_j"]), State(r["state"]).text)
        for r in rows
    ]
    tab.locator("#rows tr th a").first.click()
    attempts: Any = at.zeus.locator(".attempts > li")
    attempts.first.wait_for()
    assert at.zeus.locator("h1").inner_text() == f"Zeus cost of run {postgres_site.runs[-1]}"
    assert at.fine()
