"""``airflow zeus export``: CSV as a person reads it, JSON with all there is,
nothing that a spreadsheet would run.
"""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import Observation, State
from airflow_provider_zeus.model.trial_fields import flat
from airflow_provider_zeus.reports.export_rows import COLUMNS, cost_of
from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.store.variables.store import VariableStore
from tests.unit.cli.conftest import Zeus, recur
from tests.unit.store.sql.sqlite_kit import execute
from tests.unit.store.store_kit import JOB, DictPort, report, request, run, seen

DOCUMENT = Path(__file__).parents[3] / "docs" / "cli.md"


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def trials_in(text: str) -> list[dict[str, Any]]:
    return [trial for line in lines(text) if "run" in line for trial in line["run"]["trials"]]


def test_a_person_reads_a_run_from_left_to_right(
    zeus: Zeus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__PRICE_PER_KWH", "0.5")
    monkeypatch.setenv("AIRFLOW__ZEUS__CURRENCY", "EUR")
    monkeypatch.setenv("AIRFLOW__ZEUS__G_CO2E_PER_KWH", "100")
    trial = recur(store, 1, energy_j=3.6e6)
    (found,) = rows(zeus("export").out)
    assert tuple(found) == COLUMNS
    seen = trial.observation
    assert list(found.values())[:9] == [
        *("d.train", "run1", "1", found["opened_at_utc"], "s1", "reached target", "32"),
        *(str(seen.power_limit_w), str(seen.epochs)),
    ]
    assert [float(found[n]) for n in ("energy_j", "time_s", "epochs")] == [
        seen.energy_j,
        seen.time_s,
        seen.epochs,
    ]
    assert (float(found["money"]), found["currency"], found["co2e_g"]) == (
        pytest.approx(0.5),
        "EUR",
        "100.0",
    )
    assert (found["energy_source"], found["device_model"], found["device_count"]) == (
        "simulated",
        "V100",
        "1",
    )
    assert found["why"] == trial.planned.why
    assert found["opened_at_utc"].endswith("+00:00")


def test_the_recipes_of_the_document(
    zeus: Zeus, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pandas = pytest.importorskip("pandas", reason="the recipes are for pandas")
    trials = [recur(store, n) for n in (1, 2, 3)]
    monkeypatch.chdir(tmp_path)
    zeus("export", "d.train", "--output", "runs.csv")
    (recipes,) = re.findall(
        r"### In Python.*?```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL
    )
    names: dict[str, Any] = {}
    exec(recipes, names)
    assert names["weekly_kwh"].sum() == pytest.approx(
        sum(t.observation.energy_j or 0.0 for t in trials) / 3.6e6
    )
    assert set(names["needed"].index) == {t.batch_size for t in trials}
    assert isinstance(names["monthly_g"], pandas.Series)


def test_the_json_is_whole(zeus: Zeus, store: Store) -> None:
    trial = recur(store, 1, profile=1, points=2)  # type: ignore[arg-type]
    first, job, profile, run, end = lines(zeus("export", "--format", "json").out)
    assert (first, end) == ({"format": 1}, {"end": {"trials": 1}})
    assert job == {
        "job": {"job_id": "d.train", "told_seq": 1, "last_number": 1, "events": {}, "days": []}
    }
    assert profile["profile"]["samples"]
    (data,) = run["run"]["trials"]
    assert data.keys() == flat(trial).keys() | {"points"}
    assert data | {"points": None} == json.loads(json.dumps(flat(trial) | {"points": None}))
    assert len(data["points"]) == 2


def test_a_missing_figure_is_an_empty_cell_and_null_with_its_reason(
    zeus: Zeus, store: Store
) -> None:
    key = store.ask(request(1)).trial.key
    store.tell(
        key,
        State.FAILED,
        Report(observation=Observation(time_s=3.0, reasons={"energy_j": "no source"})),
    )
    (found,) = rows(zeus("export", "d.train").out)
    assert (found["energy_j"], found["epochs"], found["money"], found["time_s"]) == (
        "",
        "",
        "",
        "3.0",
    )
    assert found["missing"] == "energy_j: no source"
    (data,) = trials_in(zeus("export", "d.train", "--format", "json").out)
    assert (data["energy_j"], data["reasons"]) == (None, {"energy_j": "no source"})
    assert data["spec"] == json.loads(json.dumps(JOB.to_dict()))


def test_the_cost_of_a_job_that_cannot_be_read_is_not_known(store: Store) -> None:
    known = run(store, 1).trial
    assert cost_of(replace(known, observation=seen()))[1] == "J"
    assert cost_of(replace(known, observation=seen(), spec={"eta": 7})) == (None, None)


def test_money_without_a_currency_is_no_figure(
    zeus: Zeus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__PRICE_PER_KWH", "0.5")
    recur(store, 1)
    (found,) = rows(zeus("export").out)
    assert (found["money"], found["currency"]) == ("", "")


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_no_text_is_a_formula(zeus: Zeus, store: Store, start: str) -> None:
    job_id = f"{start}HYPERLINK(1)"
    key = store.ask(request(1, job_id=job_id)).trial.key
    store.tell(key, State.FAILED, report(metric=-0.5), reason=f"{start}cmd, a comma\nand more")
    (row,) = rows(zeus("export").out)
    shown = repr(start)[1:-1] if start in "\t\r" else f"'{start}"
    assert row["job_id"] == f"{shown}HYPERLINK(1)"
    assert row["reason"] == f"{shown}cmd, a comma\\nand more"
    assert row["metric"] == "-0.5"  # a number is no text
    (data,) = trials_in(zeus("export", "--format=json").out)
    assert data["job_id"] == job_id


def test_all_jobs_or_one_into_a_file(zeus: Zeus, store: Store, home: Path) -> None:
    recur(store, 1)
    recur(store, 2)
    recur(store, 1, job_id="e.train")
    path = home / "trials.csv"
    assert zeus("export", "--output", str(path)).out == f"3 attempts written to {path}.\n"
    assert [r["job_id"] for r in rows(path.read_text())] == ["d.train", "d.train", "e.train"]
    assert zeus("export", "e.train", "--format", "json", "--output", str(path)).out.startswith(
        "1 attempt written"
    )
    assert [r["job_id"] for r in trials_in(path.read_text())] == ["e.train"]


def test_an_empty_log_is_an_empty_list(zeus: Zeus, store: Store) -> None:
    assert lines(zeus("export", "--format", "json").out) == [{"format": 1}, {"end": {"trials": 0}}]
    assert rows(zeus("export").out) == []


def test_a_file_that_cannot_be_written_is_named(zeus: Zeus, store: Store, home: Path) -> None:
    done = zeus("export", "--output", str(home / "nowhere" / "x.csv"))
    assert done.status == 1
    assert "nowhere/x.csv' cannot" in done.err
    assert "d.tra" in zeus("export", "d.tra").err


def test_a_trial_that_cannot_be_read_is_left_out_and_named(
    zeus: Zeus, store: Store, home: Path
) -> None:
    for n in (1, 2, 3):
        recur(store, n)
    execute(f"sqlite:///{home}/zeus.db", "UPDATE zeus_trial SET planned = '[' WHERE number = 2")
    done = zeus("export", "d.train")
    assert done.status == 0
    assert [row["trial"] for row in rows(done.out)] == ["1", "3"]
    assert "d.train/2" in done.err


def test_the_name_of_the_file_says_its_form(zeus: Zeus, store: Store, home: Path) -> None:
    recur(store, 1)
    for name, arguments in (
        ("a.json", ()),
        ("a.jsonl", ()),
        ("b.csv", ()),
        ("c.json", ("--format", "csv")),
    ):
        assert zeus("export", "--output", str(home / name), *arguments).status == 0
        is_json = (home / name).read_text().startswith("{")
        assert is_json == (name in ("a.json", "a.jsonl")), name
    assert zeus("import", str(home / "a.json")).out.startswith(
        "d.train: 0 attempts imported, 1 in the log already"
    )


def test_the_jobs_of_a_file_are_sorted_and_a_damaged_one_is_left_out(
    zeus: Zeus, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = DictPort()
    store = VariableStore(port, overlap_possible=False)
    monkeypatch.setattr("airflow_provider_zeus.store.open.open_store", lambda conn_id, **_: store)
    for job_id in ("b.train", "a.train", "c.train"):
        recur(store, 1, job_id=job_id)
    port.data["zeus-log:b.train"] = "{"
    done = zeus("export", "--format", "json")
    assert done.status == 1
    assert "b.train is left out: " in done.err
    assert [trial["job_id"] for trial in trials_in(done.out)] == ["a.train", "c.train"]
