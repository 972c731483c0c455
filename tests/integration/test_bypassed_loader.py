"""Batches of 32 cut by hand, with ``run.report()`` and no step told: nothing is learned and nothing saved."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from airflow_provider_zeus.model.trial import TELL_STEPS, State
from airflow_provider_zeus.operators.recurrence import Recurrence
from airflow_provider_zeus.plugin.text import headline, run_notes
from airflow_provider_zeus.plugin.views.job_analysis import JobAnalysis
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.job_remarks import bypassed
from airflow_provider_zeus.reports.run_figures import Yardstick
from airflow_provider_zeus.store.open import open_store
from tests.handles import handle_of
from tests.integration.jobs import FOUR_SIZES as JOB
from tests.unit.plugin.kit import charts

RUNS = 14


def scheduled(run: int) -> dict[str, Any]:
    known = {
        "dag_id": "d",
        "task_id": "train",
        "run_id": f"r{run}",
        "map_index": -1,
        "try_number": 1,
    }
    ti = SimpleNamespace(id=f"ti-{run}", xcom_push=lambda **_: None, **known)
    return {
        "ti": ti,
        "dag_run": SimpleNamespace(run_type="scheduled"),
        "task": SimpleNamespace(max_active_tis_per_dag=1),
    }


def own_batches(run: Any) -> int:
    model = torch.nn.Linear(2, 1)
    data = (torch.randn(320, 2), torch.randn(320, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in run.epochs():
        for x, y in zip(*(tensor.split(32) for tensor in data), strict=True):
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        run.report(accuracy=min(1.0, 0.3 * (epoch + 1)))
    return int(run.batch_size)


def test_fourteen_runs_teach_nothing_save_nothing_and_say_so(
    airflow_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))  # the store's file
    for n in range(1, RUNS + 1):
        recurrence = Recurrence.open(JOB, scheduled(n), conn_id="zeus_default")
        kept = handle_of(recurrence).train(own_batches)
        assert kept == 32, "the default: nothing else is tried"
    assert caplog.text.count(TELL_STEPS) == RUNS
    store = open_store()
    try:
        log = store.trials("d.train")
    finally:
        store.close()
    assert [(t.batch_size, t.state) for t in log] == [(32, State.CONVERGED)] * RUNS
    data = as_dataset(log, JOB)
    assert (data.trials, data.left_out) == ((), {"not seen to use the chosen batch size": RUNS})
    known = JobAnalysis.of(log, data, [])
    page = charts(log, known)
    assert (page.headline, page.sentence.text) == ([], headline.NO_RUN)
    assert page.gaps[0] == bypassed(log)
    assert page.gaps[0].startswith(f"{RUNS} runs teach nothing")
    assert TELL_STEPS in page.gaps[0]
    where = log[-1].observation.where
    assert where is not None
    saving = Yardstick.of(as_dataset(log, JOB, where), where).saving([log[-1]])
    assert run_notes.run_verdict(saving).kind == "unknown"


def own_loader(run: Any) -> int:
    model = torch.nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.randn(320, 2), torch.randn(320, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in run.epochs():
        for x, y in torch.utils.data.DataLoader(data, batch_size=run.batch_size):
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        run.report(accuracy=min(1.0, 0.3 * (epoch + 1)))
    return int(run.batch_size)


def test_an_own_loader_of_the_chosen_size_teaches_without_being_told(
    airflow_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    for n in range(1, 6):
        recurrence = Recurrence.open(JOB, scheduled(n), conn_id="zeus_default")
        handle_of(recurrence).train(own_loader)
    assert TELL_STEPS not in caplog.text
    store = open_store()
    try:
        data = as_dataset(store.trials("d.train"), JOB)
    finally:
        store.close()
    assert data.left_out == {}
    assert len({trial.batch_size for trial in data.trials}) > 1, "other sizes are tried"
    assert {trial.observation.samples_per_epoch for trial in data.trials} == {320.0}
