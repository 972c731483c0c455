"""``zeus_minimal`` in real runs, on a machine without any source of energy."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.jobs import log_of

DAGS = Path(__file__).parents[2] / "dags"


@pytest.mark.slow
def test_the_smallest_example_runs_anywhere_and_says_what_it_lacks(
    run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(str(DAGS))
    monkeypatch.setenv("ZEUS_ATTEMPT_ROOT", str(tmp_path))
    sys.modules.pop("zeus_minimal", None)
    import zeus_minimal

    # whatever this machine has
    monkeypatch.setattr(zeus_minimal, "JOB", replace(zeus_minimal.JOB, device="none"))
    dag = zeus_minimal.zeus_minimal()
    with caplog.at_level(logging.WARNING):
        runs = [run_dag(dag) for _ in range(2)]
    assert [run.state for run in runs] == ["success"] * 2
    trials = log_of("zeus_minimal.train")
    assert [(t.batch_size, t.state.value) for t in trials] == [(32, "converged")] * 2, (
        "a test run explores nothing"
    )
    for seen in (trial.observation for trial in trials):
        assert (seen.energy_j, seen.energy_source) == (None, None)
        assert seen.metric is not None
        assert seen.metric <= 0.01
        assert seen.time_s is not None
        assert seen.time_s > 0
        assert "energy_j" in seen.reasons, "why there is no figure"
    path = Path(runs[0].get_task_instance("train").xcom_pull(task_ids="train"))
    assert len(torch.load(path, weights_only=True)["0.weight"]) == 32
    assert caplog.text.count("on time alone") == 1, "at length in the first run"
