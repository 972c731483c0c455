"""``airflow zeus export``: every field, units in the names, nothing that a spreadsheet would run."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import fields
from pathlib import Path

import pytest

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Observation, Origin, PlannedAttempt, State
from airflow_provider_zeus.model.wire import encode
from airflow_provider_zeus.reports.export_rows import COLUMNS
from airflow_provider_zeus.store.base import Report
from airflow_provider_zeus.store.rows import to_row
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.cli.conftest import Zeus, recur
from tests.unit.store.sql.sqlite_kit import execute
from tests.unit.store.store_kit import JOB, report, request


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_every_field_of_a_trial_is_a_column(zeus: Zeus, store: Store) -> None:
    trial = recur(store, 1)
    (row,) = rows(zeus("export").out)
    assert tuple(row) == COLUMNS
    flat = {"number": "trial", "opened_at": "opened_at_utc", "closed_at": "closed_at_utc"}
    flat |= {"lease_until": "lease_until_utc", "batch_size": "planned_batch_size", "phase": "planned_phase"}
    named = {flat.get(name, name) for name in to_row(trial)} - {"planned", "spec", "returned"}
    named |= {f"spec_{f.name}" for f in fields(ZeusJob)}
    costs = {"bound_cost", "max_epoch_cost"}
    named |= {f"planned_{f.name}" for f in fields(PlannedAttempt) if f.name not in costs}
    assert not named - set(row)
    seen = trial.observation
    assert [float(row[n]) for n in ("energy_j", "time_s", "epochs")] == [seen.energy_j, seen.time_s, seen.epochs]
    assert (float(row["cost_j"]), row["cost_s"]) == (0.5 * 1120 + 0.5 * 300 * 9, "")
    assert (row["energy_source"], row["spec_batch_sizes"], row["map_index"]) == ("simulated", "[16, 32, 64]", "-1")
    assert row["opened_at_utc"].endswith("+00:00")
    assert json.loads(row["decision"]) == json.loads(json.dumps(encode(trial.decision)))


def test_a_missing_figure_is_an_empty_cell_and_null_with_its_reason(zeus: Zeus, store: Store) -> None:
    key = store.ask(request(1)).trial.key
    store.tell(key, State.FAILED, Report(observation=Observation(time_s=3.0, reasons={"energy_j": "no source"})))
    (row,) = rows(zeus("export", "d.train").out)
    assert (row["energy_j"], row["epochs"], row["cost_j"], row["time_s"]) == ("", "", "", "3.0")
    (data,) = json.loads(zeus("export", "d.train", "--format", "json").out)["trials"]
    assert (data["energy_j"], data["cost_j"], data["reasons"]) == (None, None, {"energy_j": "no source"})
    assert data["spec"] == json.loads(json.dumps(JOB.to_dict()))
    assert {f.name for f in fields(Observation)} <= set(data)
    assert {f.name for f in fields(Origin)} <= set(data)


def test_bounds_have_the_unit_of_the_device_that_they_were_made_for(zeus: Zeus, store: Store) -> None:
    recur(store, 1)
    store.ask(request(2))  # bounded, and names no device yet
    first, second = rows(zeus("export").out)
    assert first["planned_bound_cost_j"] == ""
    assert float(second["planned_bound_cost_j"]) > 0
    assert second["planned_bound_cost_s"] == ""
    without = {"energy_j": None, "energy_source": None, "max_power_w": None, "reasons": {"energy_j": "no source"}}
    recur(store, 1, job_id="e.train", **without)
    (timed,) = rows(zeus("export", "e.train").out)
    assert (timed["cost_j"], timed["cost_s"], timed["energy_j"]) == ("", "9.0", "")


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_no_text_is_a_formula(zeus: Zeus, store: Store, start: str) -> None:
    job_id = f"{start}HYPERLINK(1)"
    key = store.ask(request(1, job_id=job_id)).trial.key
    store.tell(key, State.FAILED, report(learning_rate=-0.5), reason=f"{start}cmd, a comma\nand more")
    (row,) = rows(zeus("export").out)
    shown = repr(start)[1:-1] if start in "\t\r" else f"'{start}"
    assert row["job_id"] == f"{shown}HYPERLINK(1)"
    assert row["reason"] == f"{shown}cmd, a comma\\nand more"
    assert row["learning_rate"] == "-0.5"  # a number is no text
    (data,) = json.loads(zeus("export", "--format=json").out)["trials"]
    assert data["job_id"] == job_id


def test_all_jobs_or_one_into_a_file(zeus: Zeus, store: Store, home: Path) -> None:
    recur(store, 1)
    recur(store, 2)
    recur(store, 1, job_id="e.train")
    path = home / "trials.csv"
    assert zeus("export", "--output", str(path)).out == f"3 trials written to {path}.\n"
    assert [r["job_id"] for r in rows(path.read_text())] == ["d.train", "d.train", "e.train"]
    assert zeus("export", "e.train", "--format", "json", "--output", str(path)).out.startswith("1 trial written")
    assert [r["job_id"] for r in json.loads(path.read_text())["trials"]] == ["e.train"]


def test_an_empty_log_is_an_empty_list(zeus: Zeus, store: Store) -> None:
    assert json.loads(zeus("export", "--format", "json").out) == {"format": 1, "trials": [], "profiles": []}
    assert rows(zeus("export").out) == []


def test_a_file_that_cannot_be_written_is_named(zeus: Zeus, store: Store, home: Path) -> None:
    done = zeus("export", "--output", str(home / "nowhere" / "x.csv"))
    assert done.status == 1
    assert "nowhere/x.csv' cannot" in done.err
    assert "d.tra" in zeus("export", "d.tra").err


def test_a_trial_that_cannot_be_read_is_left_out_and_named(zeus: Zeus, store: Store, home: Path) -> None:
    for n in (1, 2, 3):
        recur(store, n)
    execute(f"sqlite:///{home}/zeus.db", "UPDATE zeus_trial SET planned = '[' WHERE number = 2")
    done = zeus("export", "d.train")
    assert done.status == 0
    assert [row["trial"] for row in rows(done.out)] == ["1", "3"]
    assert "d.train/2" in done.err


def test_the_name_of_the_file_says_its_form(zeus: Zeus, store: Store, home: Path) -> None:
    recur(store, 1)
    for name, arguments in (("a.json", ()), ("a.JSON", ()), ("b.csv", ()), ("c.json", ("--format", "csv"))):
        assert zeus("export", "--output", str(home / name), *arguments).status == 0
        is_json = (home / name).read_text().startswith("{")
        assert is_json == (name in ("a.json", "a.JSON")), name
    assert json.loads((home / "a.json").read_text())["format"] == 1
    assert zeus("import", str(home / "a.json")).out.startswith("d.train: 0 trials imported, 1 in the log already")
