"""What a command tells of its steps, and what it is handed where it is to tell nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import (
    LIMIT,
    Observation,
    Phase,
    PlannedAttempt,
    ProfileSample,
)
from airflow_provider_zeus.operators import measured
from airflow_provider_zeus.operators.collect import MOST_STARTS
from airflow_provider_zeus.operators.measured import StepsOfCommand
from airflow_provider_zeus.training.protocol.environment import PLAN, RESULT
from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun

TUNED = Plan(
    job_id="d.t",
    ti_id="ti",
    number=1,
    first_attempt=1,
    spec=ZeusJob(eta=0.5).to_dict(),
    attempts=(PlannedAttempt(batch_size=None, phase=Phase.MEASURED, why=""),),
)


def told(steps: StepsOfCommand, *starts: tuple[str, int | None], **reasons: str) -> Observation:
    with open(steps.environ[RESULT], "a") as file:
        for start_id, samples in starts:
            seen = Observation(samples=samples, step_kind=samples and 1, reasons=reasons)
            print(
                ResultLine(kind="beat", start_id=start_id, attempt=1, observation=seen).to_json(),
                file=file,
            )
    steps.look()
    return steps.observed(Observation())


def test_what_a_start_takes_back_counts_no_longer_and_starts_have_a_bound(tmp_path: Path) -> None:
    steps = StepsOfCommand(replace(TUNED, state_dir=str(tmp_path)))
    assert told(steps, ("a", 10), ("b", 5)).samples == 15
    assert told(steps, ("a", None)).samples == 5
    assert (
        told(steps, *((f"c{i}", 1) for i in range(2 * MOST_STARTS))).samples == 5 + MOST_STARTS - 2
    )
    steps.close()


def test_of_steps_that_are_no_longer_counted_the_reason_is_left(tmp_path: Path) -> None:
    steps = StepsOfCommand(replace(TUNED, state_dir=str(tmp_path)))
    told(steps, ("a", 10))
    why = dict.fromkeys((LIMIT, "samples"), "its steps could not be counted")
    seen = told(steps, ("a", None), **why)
    assert (seen.samples, seen.reasons) == (None, why)
    steps.close()


def test_without_a_folder_a_command_is_handed_a_short_plan_that_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(measured, "TemporaryDirectory", full)
    sample = ProfileSample(batch_size=1, limit_w=100.0, samples=10, energy_j=1.0, time_s=1.0)
    environ = StepsOfCommand(
        replace(TUNED, profile=(sample,) * 5000, state_dir=str(tmp_path))
    ).environ
    assert len(environ[PLAN]) < 2**17, "Linux hands over no longer variable"
    monkeypatch.setenv(PLAN, environ[PLAN])
    with ZeusRun.from_env() as run:
        run.step()
