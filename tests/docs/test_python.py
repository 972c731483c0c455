"""Each Python block of the pages runs, and each training function in it is trained."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_zeus import ZeusJob, ZeusRun
from airflow_provider_zeus.model.trial import Phase, PlannedAttempt, Previous
from airflow_provider_zeus.training.protocol.plan import Plan
from tests.docs.blocks import PAGES, Block, blocks
from tests.docs.preludes import BEFORE, EVERYWHERE, OF_PAGES

GIVEN = {
    "ds": "2026-01-01",
    "partition_key": "2026-W01",
    "region": "eu",
    "data": None,
    "triggering_asset_events": None,
}
WITH_CODE = [
    page
    for page in PAGES
    if any(b.kind == "python" and not b.reason and not b.title for b in blocks(page))
]


@pytest.fixture
def names(tmp_path: Path, airflow_home: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the blocks of a page share, and a plan in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))  # where the run log is
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "LocalExecutor")
    found: dict[str, Any] = {"monkeypatch": monkeypatch, "folder": tmp_path, "__name__": "a_page"}
    exec(EVERYWHERE, found)
    monkeypatch.setenv("ZEUS_PLAN", plan(found["JOB"], tmp_path).to_json())
    return found


def plan(job: ZeusJob, folder: Path) -> Plan:
    """One attempt at the job's default, after a run whose model is still good."""
    attempt = PlannedAttempt(
        batch_size=job.default_batch_size, phase=Phase.INCUMBENT, why="for the page"
    )
    spec = replace(job, device="none").to_dict()
    return Plan(
        job_id="page.train",
        ti_id="try-1",
        number=1,
        first_attempt=1,
        spec=spec,
        attempts=(attempt,),
        state_dir=str(folder),
        previous=Previous(returned='"models/0.pt"'),
    )


SLOW = {"docs/how-to/exporters.md", "docs/how-to/frameworks.md"}  # they import what takes seconds


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=pytest.mark.slow) if p in SLOW else p for p in WITH_CODE]
)
def test_the_code_of_a_page_runs(page: str, names: dict[str, Any], tmp_path: Path) -> None:
    exec(OF_PAGES.get(page, ""), names)
    for number, block in enumerate(blocks(page)):
        if block.kind != "python" or block.reason or block.title:
            continue  # whole files are run by test_tutorials.py
        exec(
            next((code for begin, code in BEFORE.items() if block.text.startswith(begin)), ""),
            names,
        )
        before = names.get("train")
        with DAG(f"page_{number}", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
            exec(compile("\n" * (block.line) + block.text, page, "exec"), names)
        trains_itself = "run.train(train)" in block.text
        if names.get("train") is not before and not trains_itself and not _is_sketch(block):
            value = _trained(names["train"], names["JOB"], tmp_path)
            assert value is not None or "return" not in block.text, (
                f"{block.name}: it returns its model"
            )


def _is_sketch(block: Block) -> bool:
    """Whether its function ``train`` has no body."""
    functions = [
        n
        for n in ast.walk(ast.parse(block.text))
        if isinstance(n, ast.FunctionDef) and n.name == "train"
    ]
    return all(isinstance(f.body[0], ast.Expr) and f.body[0].value.value is ... for f in functions)  # type: ignore[attr-defined]


def _trained(found: Any, job: ZeusJob, folder: Path) -> Any:
    function: Callable[..., Any] = getattr(found, "function", found)
    wanted = function.__code__.co_varnames[1 : function.__code__.co_argcount]
    run = ZeusRun.from_plan(plan(job, folder))
    try:
        return run.train(function, **{name: GIVEN[name] for name in wanted})
    finally:
        run.close()
