"""``zeus_capriccio`` in real runs of Airflow: parameters, the Variable with the folder, and one trial per slice."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.jobs import log_of
from tests.unit.dags.capriccio import write_model, write_slices

DAGS = Path(__file__).parents[2] / "dags"


@pytest.mark.slow
def test_slices_train_in_order_with_the_runs_parameters(
    run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("transformers", "accelerate"):
        pytest.importorskip(
            name, reason=f"{name} is not installed: airflow-provider-zeus[huggingface]"
        )
    monkeypatch.syspath_prepend(str(DAGS))
    monkeypatch.setenv("ZEUS_ATTEMPT_ROOT", str(tmp_path / "attempts"))
    (tmp_path / "model").mkdir()
    monkeypatch.setenv("AIRFLOW_VAR_ZEUS_CAPRICCIO_FOLDER", str(write_slices(tmp_path, 2)))
    sys.modules.pop("zeus_capriccio", None)
    import zeus_capriccio

    sizes = {"batch_sizes": [16, 32], "default_batch_size": 32}
    job = replace(zeus_capriccio.JOB, device="simulated:v100/bert_sa", mode="measure", **sizes)
    monkeypatch.setattr(zeus_capriccio, "JOB", job)
    dag = zeus_capriccio.zeus_capriccio()
    given = {
        "model": str(write_model(tmp_path / "model", 2)),
        "accuracy": 0.75,
        "learning_rate": 1e-2,
    }
    runs = [run_dag(dag, run_conf={**given, "slice": number}) for number in (1, 2)]
    assert [run.state for run in runs] == ["success"] * 2
    trials = log_of("zeus_capriccio.train")
    assert [(t.batch_size, t.state.value) for t in trials] == [(32, "converged")] * 2
    assert {t.spec["target"] for t in trials} == {"accuracy >= 0.75"}, "from the run's parameters"
    for seen in (trial.observation for trial in trials):
        assert seen is not None
        assert seen.metric is not None
        assert seen.metric >= 0.75
        assert seen.energy_j is not None
    kept = Path(runs[1].get_task_instance("train").xcom_pull(task_ids="train"))
    assert (kept / "model.safetensors").is_file()
