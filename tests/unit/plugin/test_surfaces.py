"""A log of 33 runs with retries, map indexes and two sources:
every surface has the same figures to the last digit.
"""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zeus.cli import runs as cli_runs
from airflow_provider_zeus.cli.export_lines import line_of_part
from airflow_provider_zeus.cli.report import by_job
from airflow_provider_zeus.model.run_numbers import RunNumbers
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.operators.openlineage import FACET, lineage_of
from airflow_provider_zeus.reports.months import month_bounds, month_of
from airflow_provider_zeus.reports.run_figures import RunFigures, with_log
from airflow_provider_zeus.reports.run_metrics import trial_metrics
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.training import trackers
from tests.unit.operators.test_result_reporter import end, reporter_of, settled
from tests.unit.store.store_kit import DictPort, request

RUNS = 33
RETRIED = (4, 9, 25)
MAPPED = (7, 30)
Part = tuple[str, int]  # run, map index
NAMES = {"energy_j": "energyJ", "time_s": "timeS"}  # in a facet
FIGURES = tuple(NAMES)


def task(
    store: Store, n: int, folder: Path, map_index: int = -1, try_number: int = 1, **seen: Any
) -> dict[str, Any]:
    """A try of a task, by the reporter of a real one: what it tells XCom,
    lineage and assets, metrics and a tracker.
    """
    origin = replace(request(n).origin, map_index=map_index, try_number=try_number)
    ti_id = f"ti-{n}-{map_index}-{try_number}"
    trial = store.ask(request(n, ti_id=ti_id, origin=origin, try_number=try_number)).trial
    reporter = reporter_of(store, DictPort(), trial, folder)  # type: ignore[arg-type]
    state = State.FAILED if n in RETRIED and try_number == 1 else State.CONVERGED
    source = "nvml_counter" if n > 22 else "simulated"
    spent = {"energy_j": 800.1 + n / 3 + map_index / 7, "time_s": 9.7 + n / 11}
    line = end(1, state, **spent, energy_source=source, power_limit_w=300.0)
    reporter(replace(line, batch_size=trial.batch_size))
    settled(reporter)
    newest = store.trials("d.train", last=100)
    figures = with_log(
        RunFigures(cost=reporter.cost_xcom(), ended=reporter.ended), newest, store.profile
    )
    told: dict[str, float] = {}
    log_to = trackers.Trackers({})
    log_to._write = lambda name, run, prefix, known, *_: told.update(known)  # type: ignore[method-assign]
    log_to._trackers = {"mlflow": SimpleNamespace(open_run=lambda closed: None)}  # type: ignore[dict-item]
    log_to.write_figures(state, reporter.ended[-1].observation, {})
    event = figures.as_event(Prices())
    return {
        "xcom": reporter.cost_xcom(),
        "event": event,
        "facet": {f: getattr(lineage_of(event).run_facets[FACET], a) for f, a in NAMES.items()},
        "metrics": {
            m.name.rpartition(".")[2]: m.value
            for m in trial_metrics(reporter.ended, newest)
            if not m.total
        },
        "mlflow": told,
    }


@pytest.fixture
def log(store: Store, tmp_path: Path) -> dict[Part, list[dict[str, Any]]]:
    """What the tries of each run told as they ended."""
    told: dict[Part, list[dict[str, Any]]] = defaultdict(list)
    for n in range(1, RUNS + 1):
        for index in range(3) if n in MAPPED else (-1,):
            for try_number in (1, 2) if n in RETRIED else (1,):
                told[f"run{n}", index].append(task(store, n, tmp_path, index, try_number))
    return told


def parts(trials: list[Trial], of: Any) -> dict[Part, dict[str, float]]:
    """The sums of figures by run and map index; ``of``: a trial's."""
    sums: dict[Part, dict[str, float]] = defaultdict(lambda: dict.fromkeys(FIGURES, 0.0))
    for trial in trials:
        for figure in FIGURES:
            sums[trial.origin.run_id, trial.origin.map_index][figure] += of(trial)[figure]
    return dict(sums)


def test_every_surface_says_what_another_says(
    admin: Any, store: Store, log: Any, tmp_path: Path
) -> None:
    def answer(path: str, **params: Any) -> Any:
        got = admin.get(f"/zeus/api/{path}", params=params)
        assert got.status_code == 200, got.text
        return got.json()

    trials = store.trials("d.train")
    held = parts(trials, lambda t: t.observation.to_dict())
    assert len(held) == RUNS + 2 * len(MAPPED)
    assert len(trials) == len(held) + len(RETRIED)

    told = {
        name: {
            part: {f: sum(one[name][f] for one in tries) for f in FIGURES}
            for part, tries in log.items()
        }
        for name in ("xcom", "event", "facet", "metrics", "mlflow")
    }
    assert {name: each == held for name, each in told.items()} == dict.fromkeys(told, True)

    numbers = RunNumbers(trials)
    by_cli = {(t.origin.run_id, t.number): cli_runs._figures(t, numbers) for t in trials}
    assert parts(trials, lambda t: by_cli[t.origin.run_id, t.number]) == held
    lines = list(csv.DictReader(io.StringIO(admin.get("/zeus/api/dags/d/export").text)))
    history = [json.loads(line_of_part(part)) for part in store.history("d.train")]
    exported = [trial for line in history if "run" in line for trial in line["run"]["trials"]]
    for rows in (lines, exported):
        numbered = {int(row["trial"] if "trial" in row else row["number"]): row for row in rows}
        assert (
            parts(trials, lambda t, by=numbered: {f: float(by[t.number][f]) for f in FIGURES})
            == held
        )

    tab = answer("dags/d/costs")
    rows = {(r["run_id"], -1 if r["map_index"] is None else r["map_index"]): r for r in tab["rows"]}
    assert {
        p: {"energy_j": r["energy"]["value"], "time_s": r["time"]["value"]} for p, r in rows.items()
    } == held
    for run_id in {run_id for run_id, _ in held}:
        for part in answer(f"dags/d/runs/{run_id}/costs")["parts"]:
            key = run_id, -1 if part["map_index"] is None else part["map_index"]
            tiles = {t["name"]: t["figure"]["value"] for t in part["headline"][0]["figures"]}
            assert {"energy_j": tiles["Energy"], "time_s": tiles["Time"]} == held[key]
            assert len(tiles) == 2, "and no third figure that weighs both"

    # Sums are of one source: what a page, the month and its report say of each.
    (simulated, counted) = sorted(
        tab["totals"], key=lambda total: total["source"]["kind"], reverse=True
    )
    slow = answer("dags/d/charts")
    cost = {t["name"]: t["figure"]["text"] for t in slow["headline"][0]["figures"]}
    newest = min((simulated, counted), key=lambda total: total["source"]["text"] == "simulated")
    assert cost == {
        "Energy": newest["energy"]["text"],
        "Time": newest["time"]["text"],
    }
    assert (
        slow["sentence"]["text"]
        .split(" cost ")[1]
        .startswith(f"{cost['Energy']} and {cost['Time']}. ")
    )
    month = month_of(trials[0].opened_at)
    kinds = {
        k["source"]["text"]: k["answers"][0]["figures"]
        for k in answer("months", month=month)["kinds"]
    }
    assert sorted(kinds) == sorted(t["source"]["text"] for t in tab["totals"]), kinds
    for total in tab["totals"]:
        spent = {t["name"]: t["figure"]["text"] for t in kinds[total["source"]["text"]]}
        assert spent == {"Energy": total["energy"]["text"], "Time": total["time"]["text"]}
    table = by_job(month, store.sums(month_bounds(month, 1)), {}, Prices())
    reported = {record["kind"]: record for record in table.records}
    for kind, total in zip(
        ("measured", "simulated"),
        (newest, next(t for t in tab["totals"] if t is not newest)),
        strict=True,
    ):
        assert reported[kind]["energy_kwh"] == pytest.approx(
            total["energy"]["value"] / 3.6e6, rel=1e-14
        )

    # What was saved: the tab, the page of all jobs, the month and its report.
    (saved,) = [a for a in slow["headline"] if a["about"].startswith("against ")]
    on_tab = {t["name"]: t["figure"]["exact"] for t in saved["figures"]}
    of_all = answer("jobs/d/saved", job_id="d.train")
    assert of_all["text"] == slow["sentence"]["exact"]
    both = {t["name"]: t["figure"] for t in saved["figures"]}["Together"]
    assert both["text"] in ("not clear yet", of_all["figure"]["text"].partition(" (")[0])
    assert slow["sentence"]["text"].endswith(f"\nNext run: {of_all['next']}.")
    for found in answer("months/saved", month=month)["answers"].values():
        assert {t["name"]: t["figure"]["exact"] for t in found["figures"]}.items() <= on_tab.items()
