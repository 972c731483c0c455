"""A first try of the default that dies, and a cleared task: told everywhere, and a loss of ours nowhere."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_provider_zeus.hooks.zeus import month_saved
from airflow_provider_zeus.model.event import LOST
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.operators import mixins
from airflow_provider_zeus.plugin.api.run_routes import saving_of
from airflow_provider_zeus.plugin.text.factors import Factors
from airflow_provider_zeus.plugin.views.run_view import RunPart
from airflow_provider_zeus.reports.months import month_bounds, month_of
from airflow_provider_zeus.store.open import open_store
from tests.integration.jobs import job, log_of

START = datetime(2026, 1, 1, tzinfo=UTC)
EPOCHS = 4  # that the default needs


def dying_dag(dag_id: str, fails: list[bool]) -> DAG:
    """A DAG whose task trains the default, and dies in its third epoch as long as ``fails`` says so."""
    with DAG(dag_id, schedule=None, start_date=START) as dag:

        @task.zeus(job(batch_sizes=[32]))
        def train(run):
            dies = fails.pop(0)
            for epoch in run.epochs():
                for _ in range(5000 // run.batch_size):
                    run.step()
                run.report(accuracy=0.9 * (epoch + 1) / EPOCHS)
                if dies and epoch == 1:
                    raise OSError("the disk is full")

        train()
    return dag


def page_of(trials: list[Trial]) -> RunPart:
    """The page of a run."""
    store = open_store()
    saving = saving_of(store, trials, {})
    return RunPart(trials, {}, {}, saving, Factors(), "", None, [])


def closing_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the task's log says of its runs at their ends."""
    return [r.getMessage() for r in caplog.records if "at batch size" in r.getMessage()]


def month_of_job(dag_id: str, trials: list[Trial]) -> Any:
    """What the job saved in the month of these trials, or in two where a month ended meanwhile."""
    begin_s, _ = month_bounds(month_of(trials[0].opened_at), 1)
    _, end_s = month_bounds(month_of(trials[-1].opened_at), 1)
    return month_saved(open_store(), dag_id, trials[0].job_id, begin_s, end_s)


def test_a_try_of_the_default_that_dies_of_the_disk_is_no_loss(
    run_dag: Any, rerun_task: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger=mixins.__name__)
    dag = dying_dag("zeus_disk_full", [True, False])
    dag_run = run_dag(dag)
    assert dag_run.state == "failed"
    rerun_task(dag, dag_run, "train")
    died, kept = log_of("zeus_disk_full.train")
    assert [died.state.value, kept.state.value] == ["failed", "converged"]
    lost_j = died.observation.energy_j or 0.0
    lost_s = died.observation.time_s or 0.0
    assert lost_j > 0
    told = f"1 failed attempt took {lost_j / 3600:.3g} Wh and {lost_s:.3g} s: compared with nothing"

    page = page_of([died, kept])
    assert page.verdict.word == "Nothing"
    assert page.verdict.text.endswith(f"there is nothing to compare. {told}.")
    assert page.ended is not None
    assert page.ended.cost.exploration == pytest.approx(0.0, abs=1e-6)

    first, second = closing_lines(caplog)
    assert ", compared with nothing, " in first
    assert "saved" not in first
    in_all_j = lost_j + (kept.observation.energy_j or 0.0)
    assert f", {in_all_j / 3600:.3g} Wh, " in second
    assert f"of which {told}" in second
    assert "lost" not in second

    month = month_of_job(dag.dag_id, [died, kept])
    assert month.energy.max() == pytest.approx(0.0, abs=1e-6)
    assert month.energy.min() == pytest.approx(0.0, abs=1e-6)
    assert month.aside.text == told


@pytest.mark.slow
def test_ten_runs_whose_first_try_died_raise_no_alert_of_a_loss(
    run_dag: Any, rerun_task: Any
) -> None:
    dag = dying_dag("zeus_disk_full_again", [True, False] * 10)
    for _ in range(10):
        rerun_task(dag, run_dag(dag), "train")
    trials = log_of("zeus_disk_full_again.train")
    assert [t.state.value for t in trials] == ["failed", "converged"] * 10
    died_j = sum(t.observation.energy_j or 0.0 for t in trials[::2])
    aside = month_of_job(dag.dag_id, trials).aside
    assert (aside.failed, aside.energy_j) == (10, pytest.approx(died_j))
    held = open_store().events("zeus_disk_full_again.train")[dag.dag_id].events
    assert LOST not in {event.kind for event in held}


def test_a_cleared_run_says_cleared_and_is_compared_once(
    run_dag: Any, rerun_task: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger=mixins.__name__)
    dag = dying_dag("zeus_cleared", [False, False])
    dag_run = run_dag(dag)
    rerun_task(dag, dag_run, "train")
    trials = log_of("zeus_cleared.train")
    page = page_of(trials)
    assert "1 cleared attempt took " in page.verdict.text
    assert page.ended is not None
    assert page.ended.cost.saved.value == pytest.approx(0.0, abs=1e-6)
    assert "of which 1 cleared attempt took " in closing_lines(caplog)[1]
    assert month_of_job(dag.dag_id, trials).aside.cleared == 1
