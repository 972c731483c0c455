"""Takes the pictures of the manual, ``docs/images/zeus-*.png``: ``python -m tests.ui.picture``.

Half a year of weekly retrainings up to this week: the real loop in Airflow, on the simulated GPU.
What a batch size needs is made up: too small or too large a batch never reaches the target in time,
those between differ, as weeks do. All runs train now,
and the log is told that each began in its own week.
"""

from __future__ import annotations

import random
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import tests.conftest  # an Airflow home of its own, before Airflow is imported
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store.open import embedded_path
from tests.integration.jobs import job, log_of, loop
from tests.ui.browser import FLAGS, find_browser
from tests.ui.site import PASSWORD, VIEWER, api_server, run_dag

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
CHARTS = ROOT / "airflow_provider_zeus" / "plugin" / "static" / "echarts.common.min.js"
DAG_ID = "churn_model_weekly"
WEEKS = 30
NOW = datetime.now(UTC)
MONDAY = datetime(NOW.year, NOW.month, NOW.day, tzinfo=UTC) - timedelta(
    weeks=WEEKS - 1, days=NOW.weekday()
)
EPOCHS = {16: 45, 32: 14, 64: 11, 128: 9, 256: 11, 512: 21, 1024: 70}
WIDTH = 1400
SCALE = 1200 / 1400


def history() -> str:
    """A run per week; the id of the first one that tried another batch size than the default and
    kept it.
    """
    from airflow.sdk import DAG, task

    spec = job(
        batch_sizes=list(EPOCHS),
        max_epochs=60,
        target="accuracy >= 0.84",
        profile_s=1.0,
        policy="knowledge_gradient",
        data_slice="{{ dag_run.conf['week'] }}",
    )
    weeks = random.Random(7)
    with DAG(DAG_ID, schedule="@weekly", start_date=MONDAY, catchup=False) as dag:

        @task.zeus(spec)
        def train(run: Any = None) -> int:
            hard = weeks.gauss(1.0, 0.06)  # this week's data
            loop(run, max(1, round(EPOCHS[run.batch_size] * hard)))
            return run.batch_size

        train()
    for n in range(WEEKS):
        end = MONDAY + timedelta(weeks=n)
        run = run_dag(dag, logical_date=end, run_after=end, run_conf={"week": f"{end:%G-W%V}"})
        _began(run.run_id, end)
    tried = (t for t in log_of(f"{DAG_ID}.train") if t.batch_size != spec.default_batch_size)
    return next(t.origin.run_id for t in tried if t.state is State.CONVERGED)


def _began(run_id: str, at: datetime) -> None:
    """Move a run to when its week ended: its attempts in the log, and what Airflow says of it."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:
        for of in (DagRun, TaskInstance):
            session.execute(
                update(of)
                .where(of.run_id == run_id)
                .values(start_date=at, end_date=at + timedelta(minutes=1))
            )
    with sqlite3.connect(embedded_path()) as log:
        (first_s,) = log.execute(
            "SELECT MIN(opened_at) FROM zeus_trial WHERE run_id = ?", (run_id,)
        ).fetchone()
        later = (
            "UPDATE zeus_trial SET opened_at = opened_at + ?1, closed_at = closed_at + ?1 WHERE"
            " run_id = ?2"
        )
        log.execute(later, (at.timestamp() - first_s, run_id))
    log.close()


def take(url: str, run_id: str) -> None:
    """The tabs of the DAG and of a run in Airflow's UI."""
    from playwright.sync_api import sync_playwright

    IMAGES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser().path, args=FLAGS)
        page = browser.new_page(viewport={"width": WIDTH, "height": 950}, device_scale_factor=SCALE)
        page.goto(url)
        page.fill("input[name=username]", VIEWER)
        page.fill("input[name=password]", PASSWORD)
        page.click("button[type=submit]")
        page.get_by_role("link", name="Dags").first.wait_for()
        page.evaluate("localStorage.setItem('theme', 'light')")
        for name, address, height in (
            ("zeus-overview", "plugin/zeus", 520),
            ("zeus-cost-dag", f"dags/{DAG_ID}/plugin/zeus-cost", 1130),
            (
                "zeus-cost-run",
                f"dags/{DAG_ID}/runs/{quote(run_id, safe='')}/plugin/zeus-cost-run",
                1420,
            ),
        ):
            page.set_viewport_size({"width": WIDTH, "height": height})
            page.goto(f"{url}/{address}")
            page.frame_locator("iframe[title^='Zeus']").locator(
                "canvas, .saved .amount"
            ).first.wait_for()
            page.wait_for_timeout(2000)
            page.screenshot(path=IMAGES / f"{name}.png")
        browser.close()


def main() -> None:
    """Run the year, take the pictures. Raises SystemExit if there is no chart library."""
    from airflow.utils import db

    # without it the page has no canvas to wait for
    if not CHARTS.exists():
        raise SystemExit(f"{CHARTS} is missing: run `python -m pip install -e .` with a network.")

    db.initdb()
    run_id = history()
    with api_server(Path(tests.conftest._HOME)) as server:
        take(server.ready(), run_id)
    for image in sorted(IMAGES.glob("zeus-*.png")):
        print(f"{image}: {image.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
