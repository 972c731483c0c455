"""The routes of a DAG's tab inside Airflow's own app: charts, export; who may see them,
and odd requests.
"""

from __future__ import annotations

import csv
import io
import json
import urllib.request
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from airflow_provider_zeus.errors import SignalError
from airflow_provider_zeus.model.trial import State, TrialKey
from airflow_provider_zeus.plugin.api import reading
from airflow_provider_zeus.plugin.text import headline
from airflow_provider_zeus.plugin.views import dag_view
from airflow_provider_zeus.reports.export_rows import csv_of
from airflow_provider_zeus.reports.job_remarks import candidates, looks_like
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.signals.reading import signal_series
from airflow_provider_zeus.signals.series import Series, Step, Unit
from airflow_provider_zeus.store.sql.store import SqlStore, Store
from tests.unit.plugin.auth_manager import SECRET
from tests.unit.plugin.kit import JOB, ran, trial
from tests.unit.store.sql.sqlite_kit import execute
from tests.unit.store.store_kit import report, request

BASE = "/zeus/api/dags/{}/{}"
ROUTES = ("costs", "charts", "export")


def path(route: str, dag_id: str = "d") -> str:
    return BASE.format(dag_id, route)


def answer(viewer: Any, route: str, **params: Any) -> Any:
    got = viewer.get(path(route), params=params)
    assert got.status_code == 200, got.text
    return got.json()


def at_full_power(store: Store, n: int, **changes: Any) -> None:
    """A run at the device's highest limit: what the default draws there is known."""
    ran(store, n, power_limit_w=300.0, **changes)


# --- charts


def test_the_charts_are_there_with_tables_and_a_badge(viewer: Any, store: Store) -> None:
    for n in range(1, 6):
        at_full_power(store, n)
    found = answer(viewer, "charts")
    for name in ("cost", "saved", "belief", "front"):
        assert found[name]["option"], name
        assert found[name]["table"]["rows"], name
        assert found[name]["text"], name
    assert found["sentence"]["source"]["kind"] == "simulated"
    assert json.dumps(found).count('"simulated", "kind"') == 1, "one badge for all figures"
    assert found["whose"] == "V100"
    assert found["paid"].endswith("Whether it has paid off is not clear yet.")
    said = found["sentence"]["text"]
    assert said.startswith("5 runs cost ")
    assert "Whether they saved anything against always batch size 32" in said


def test_the_tab_says_what_the_last_retrainings_bought(viewer: Any, store: Store) -> None:
    at_full_power(store, 1)
    assert answer(viewer, "charts")["worth"] == "", "no run reported how good the earlier model was"
    for n in (2, 3, 4):
        at_full_power(store, n, served=0.7, metric=0.8)
    said = answer(viewer, "charts")["worth"]
    assert said.startswith(
        "The last 3 retrainings brought accuracy from 0.7 to 0.8 on average for "
    )
    assert ": 0.1 each" in said


def test_figures_of_another_source_are_not_added(viewer: Any, store: Store) -> None:
    at_full_power(store, 1)
    at_full_power(store, 2)
    before = answer(viewer, "charts")["saved"]["table"]["rows"]
    at_full_power(store, 3, energy_source="nvml_counter")
    found = answer(viewer, "charts")
    assert found["sentence"]["source"]["kind"] == "source"
    assert any("another energy source" in text for text in found["gaps"])
    assert len(found["saved"]["table"]["rows"] if found["saved"]["table"] else []) < len(before) + 1


def test_money_and_carbon_only_where_they_are_set(
    viewer: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in (1, 2, 3):
        at_full_power(store, n)
    plain = answer(viewer, "charts")["headline"]
    assert [a["question"] for a in plain] == ["Cost", "Next run"], "the default ran once"
    assert not [t for a in plain for t in a["figures"] if t["name"] in ("Money", "CO₂e")]
    monkeypatch.setenv("AIRFLOW__ZEUS__PRICE_PER_KWH", "0.3")
    monkeypatch.setenv("AIRFLOW__ZEUS__CURRENCY", "EUR")
    monkeypatch.setenv("AIRFLOW__ZEUS__G_CO2E_PER_KWH", "400")
    names = [[t["name"] for t in a["figures"]] for a in answer(viewer, "charts")["headline"]]
    assert names[0] == names[1] == ["Energy", "Time", "Money", "CO₂e"]


def test_another_hour_of_the_day_is_named_where_a_tariff_is_set(
    viewer: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in (1, 2, 3):
        at_full_power(store, n)
    assert answer(viewer, "charts")["shift"] == ""
    hours = {
        "timezone": "UTC",
        "unit": "EUR/kWh",
        "default": 0.3,
        "rules": [{"hours": "3-4", "value": 0.1}],
    }
    monkeypatch.setenv("AIRFLOW__ZEUS__TARIFF", json.dumps(hours))
    assert "3 scheduled runs" in answer(viewer, "charts")["shift"]


def test_another_hour_of_the_day_by_the_series_that_the_log_keeps(
    viewer: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_full_power(store, 1)
    extra = {"preset": "electricity-maps", "zone": "DE"}
    monkeypatch.setenv(
        "AIRFLOW_CONN_ZEUS_CARBON", json.dumps({"conn_type": "zeus_signal", "extra": extra})
    )
    monkeypatch.setattr(
        urllib.request, "build_opener", lambda *_: pytest.fail("a page asks no service")
    )
    assert answer(viewer, "charts")["shift"] == "", "nothing is kept"
    hour = store.trials("d.train")[0].opened_at // 3600 * 3600
    steps = [
        Step(hour + h * 3600, hour + (h + 1) * 3600, 100.0 if h == 5 else 400.0)
        for h in range(-24, 48)
    ]
    series = Series.of(Unit.parse("g/kWh"), steps, source="api.electricitymaps.com", zone="DE")
    store.signal(kept_name())
    store.keep_signal(kept_name(), series.to_json())
    at_full_power(store, 2)
    said = answer(viewer, "charts")["shift"]
    assert said.startswith(
        "By zeus_carbon (api.electricitymaps.com, DE) the energy of 2 scheduled runs from "
    )
    assert "(75 % less)" in said


@pytest.mark.parametrize(
    ("role", "by"), [("viewer", "the job's own carbon signal"), ("op", "grid_of_us")]
)
def test_the_connection_of_a_jobs_own_signal_is_for_those_who_may_read_connections(
    anonymous: Any, token_of: Any, store: Store, monkeypatch: pytest.MonkeyPatch, role: str, by: str
) -> None:
    """The other one asks first, so that an answer that is kept would give it away."""

    def read(signal: str, *_: Any) -> Series:
        if signal != "grid_of_us":
            raise SignalError.of(signal, "no Connection")
        return Series.of(Unit.parse("g/kWh"), steps, source="grid.example")

    monkeypatch.setattr(reading, "signal_series", read)
    for n in (1, 2):
        at_full_power(store, n, job=replace(JOB, follow="grid_of_us", start_signal="grid_of_us"))
    hour_s = store.trials("d.train")[0].opened_at // 3600 * 3600
    steps = [Step(hour_s + h * 3600, hour_s + (h + 1) * 3600, 400.0) for h in range(-24, 48)]
    said = {}
    for asks in sorted(("viewer", "op"), key=lambda each: each == role):
        headers = {"Authorization": f"Bearer {token_of(asks, asks)}"}
        said[asks] = anonymous.get("/zeus/api/dags/d/charts", headers=headers).json()["shift"]
    assert said[role].startswith(f"By {by} (grid.example) ")
    paths = [
        "dags/d/costs",
        "dags/d/charts",
        "dags/d/export",
        "dags/d/settings?job_id=d.train",
        "jobs",
    ]
    paths += ["dags/d/runs/run1/costs", "dags/d/runs/run1/charts?job_id=d.train&task_id=train"]
    texts = [anonymous.get(f"/zeus/api/{path}", headers=headers).text for path in paths]
    assert any("grid_of_us" in text for text in texts) == (role == "op")


def kept_name() -> str:
    """The name under which tasks keep the series of Connection ``zeus_carbon``."""
    names = []

    class Keeper:
        def signal(self, name: str) -> tuple[str | None, bool]:
            names.append(name)
            raise FileNotFoundError

        def keep_signal(self, name: str, series: str | None) -> None:
            """Nothing."""

    with pytest.raises(SignalError):
        signal_series("carbon", 0.0, 1.0, Keeper())
    return names[0]


def test_the_next_run_is_that_of_zeus_switched_off(
    viewer: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in (1, 2):
        at_full_power(store, n)
    monkeypatch.setenv("AIRFLOW__ZEUS__ENABLED", "measure")
    found = answer(viewer, "charts")
    assert found["headline"][-1]["about"].startswith(f"batch size {JOB.default_batch_size}")
    assert "is pinned by [zeus] enabled = measure" in found["why"]


# --- export


def test_the_csv_is_that_of_the_command_line(viewer: Any, store: Store) -> None:
    for n in (1, 2, 3):
        ran(store, n)
    got = viewer.get(path("export"))
    assert got.text == "".join(csv_of([store.trials("d.train")], Prices()))
    lines = list(csv.DictReader(io.StringIO(got.text)))
    assert [line["trial"] for line in lines] == ["1", "2", "3"]
    for line, t in zip(lines, store.trials("d.train"), strict=True):
        opened = datetime.fromisoformat(line["opened_at_utc"])
        assert opened.timestamp() == pytest.approx(t.opened_at, abs=1e-3)
    assert got.headers["Content-Type"] == "text/csv; charset=utf-8"
    disposition = got.headers["Content-Disposition"]
    assert disposition.startswith('attachment; filename="zeus-d.train-2')
    assert disposition.endswith('.csv"')


def test_the_csv_is_of_the_runs_of_this_dag(viewer: Any, store: Store) -> None:
    for n in (1, 2, 3):
        ran(store, n)
    # another DAG's run in the same job is not for readers of this one
    ran(store, 4, dag_id="other")

    lines = csv.DictReader(io.StringIO(viewer.get(path("export")).text))
    assert [line["run_id"] for line in lines] == ["run1", "run2", "run3"]


def test_a_spreadsheet_computes_nothing_of_it(viewer: Any, store: Store) -> None:
    ran(store, 1, run_id="=1+1", state=State.FAILED, reason="@SUM(A1)")
    (line,) = csv.DictReader(io.StringIO(viewer.get(path("export")).text))
    assert (line["run_id"], line["reason"]) == ("'=1+1", "'@SUM(A1)")


def test_the_file_name_takes_any_job(viewer: Any, store: Store) -> None:
    ran(store, 1, job_id='../a "b"\nß')
    name = viewer.get(path("export")).headers["Content-Disposition"]
    assert name.startswith('attachment; filename="zeus-.._a__b___-')


# --- pages


def test_older_runs_come_page_by_page(viewer: Any, store: Store) -> None:
    for n in range(1, 6):
        ran(store, n)
    pages = [answer(viewer, "costs", limit=2, skip=skip) for skip in (0, 2, 4)]
    assert [[r["run_id"] for r in page["rows"]] for page in pages] == [
        ["run5", "run4"],
        ["run3", "run2"],
        ["run1"],
    ]
    assert [(page["more"], page["skipped"]) for page in pages] == [(True, 0), (True, 2), (False, 4)]
    assert answer(viewer, "costs", limit=2, skip=5)["note"] == "There is no older run."
    assert viewer.get(path("costs"), params={"skip": -1}).status_code == 422


# --- who, and odd logs


@pytest.mark.parametrize("route", ROUTES)
def test_a_closed_dag_is_closed_here_too(
    viewer: Any, anonymous: Any, store: Store, route: str
) -> None:
    ran(store, 1, dag_id=SECRET)
    assert viewer.get(path(route, SECRET)).status_code == 403
    assert anonymous.get(path(route)).status_code == 401
    assert viewer.post(path(route)).status_code == 405
    # its job through a DAG that one may read
    got = viewer.get(path(f"{route}{'&' if '?' in route else '?'}job_id=d.train"))
    assert got.status_code == (404 if "export" in route else 200)
    assert "run1" not in got.text


@pytest.mark.parametrize("route", ROUTES[:2])
def test_a_dag_without_a_job_says_so(viewer: Any, store: Store, route: str) -> None:
    assert answer(viewer, route)["note"] == dag_view.NO_JOB


@pytest.mark.parametrize("asked", [{"dag_id": "a\0b"}, {"job_id": "a\0b"}])
def test_a_null_byte_which_postgresql_refuses_asks_no_log(
    viewer: Any, store: Store, asked: dict[str, str]
) -> None:
    ran(store, 1)
    got = viewer.get(
        path("costs", quote(asked.get("dag_id", "d"))), params={"job_id": asked.get("job_id")}
    )
    assert got.status_code == 404


@pytest.mark.parametrize(
    "changes",
    [
        {"state": State.FAILED, "reason": "it died"},
        {"energy_j": None, "energy_source": None},
        {"time_s": None, "energy_j": None},
        {"epochs": None},
        {"device_model": None},
        {"samples_per_epoch": None, "samples": None},
        {"state": State.EXHAUSTED},
    ],
)
def test_an_odd_log_is_answered(viewer: Any, store: Store, changes: dict[str, Any]) -> None:
    ran(store, 1, **changes)
    found = answer(viewer, "charts")
    assert found["sentence"]["text"]
    ran(store, 2)
    assert answer(viewer, "charts")["cost"]["option"]


def test_a_running_trial_alone(viewer: Any, store: Store) -> None:
    from tests.unit.store.store_kit import request

    asked = store.ask(request(1)).trial
    assert asked.key == TrialKey("ti-1")
    found = answer(viewer, "charts")
    assert found["sentence"]["text"] == headline.NO_RUN
    assert "still running" in found["cost"]["note"]


def test_trials_that_cannot_be_read_fail_no_answer_and_are_named(
    viewer: Any, store: Store, home: Path
) -> None:
    for n in (1, 2, 3):
        ran(store, n)
    for where, rows in (("number = 3", ["run2", "run1"]), ("number > 0", [])):
        execute(f"sqlite:///{home}/zeus.db", f"UPDATE zeus_trial SET decision = '[' WHERE {where}")
        costs = answer(viewer, "costs")
        assert [row["run_id"] for row in costs.get("rows", [])] == rows
        assert "cannot be read: d.train/" in costs["left_out"]
        assert costs["note"] == (None if rows else costs["left_out"])
        assert (answer(viewer, "charts")["note"] is None) == bool(rows)
        assert viewer.get(path("export"), params={"kind": "csv"}).status_code == 200


def test_a_log_that_was_replaced_is_the_one_that_is_shown(
    viewer: Any, store: Store, home: Path
) -> None:
    """No task runs, and a log with the same numbers and other trials takes the place of the
    file.
    """
    for n in (1, 2):
        ran(store, n, epochs=5.0)
    before = answer(viewer, "charts")["belief"]["table"]["rows"]
    other = SqlStore(f"sqlite:///{home}/other.db", create=True)
    for n in (1, 2):
        ran(other, n, job_id="d.train", run_id=f"other{n}", epochs=50.0)
    other.close()
    store.close()
    execute(f"sqlite:///{home}/other.db", "UPDATE zeus_trial SET ti_id = 'other-' || ti_id")
    (home / "other.db").rename(home / "zeus.db")
    assert [row["run_id"] for row in answer(viewer, "costs")["rows"]] == ["other2", "other1"]
    assert answer(viewer, "charts")["belief"]["table"]["rows"] != before


# --- what the newest trials show of the job itself


def test_a_job_of_another_dag_under_the_same_id_is_said_without_its_name(
    viewer: Any, store: Store
) -> None:
    other = {
        "origin": replace(request(2).origin, dag_id=SECRET),
        "job": replace(JOB, batch_sizes=[32, 4096]),
    }
    ran(store, 1)
    assert answer(viewer, "costs")["remarks"] == []
    store.tell(
        store.ask(request(2, ti_id="theirs", **other)).trial.key, State.CONVERGED, report(32)
    )
    ran(store, 3, device_model="A40")
    found = answer(viewer, "costs")["remarks"]
    assert ["Two jobs" in found[0], "A40" in found[1], len(found)] == [True, True, 2]
    assert SECRET not in str(found)
    assert "4096" not in str(found)


def test_a_new_target_is_said(viewer: Any, store: Store) -> None:
    ran(store, 1)
    asked = store.ask(request(2, job=replace(JOB, target="accuracy >= 0.9"))).trial
    store.tell(asked.key, State.CONVERGED, report(32))
    (said,) = answer(viewer, "costs")["remarks"]
    assert "accuracy >= 0.9" in said


# --- a job under a new name


def present(monkeypatch: pytest.MonkeyPatch, *dag_ids: str) -> None:
    """The DAGs that Airflow has."""

    monkeypatch.setattr(reading, "present_dags", lambda asked: {d for d in asked if d in dag_ids})


def offered(browser: Any, dag_id: str = "d") -> list[str]:
    got = browser.get(path("costs", dag_id))
    assert got.status_code == 200, got.text
    return [text for text in got.json()["remarks"] if "looks like" in text]


def test_a_job_whose_dag_was_renamed_is_offered_its_history(
    admin: Any, viewer: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(1, 4):
        ran(store, n, dag_id="old", job_id="old.train")
    ran(store, 9)
    present(monkeypatch, "d")
    assert offered(admin) == [
        "This job looks like old.train under a new name: DAG old is gone, and its batch sizes and"
        " target are the same. If so, this gives it that history: airflow zeus jobs rename d.train"
        " d.train.new && airflow zeus jobs rename old.train d.train"
    ]
    present(monkeypatch, "d", "old")
    assert offered(admin) == []  # that DAG is still there


def test_a_task_that_was_renamed_is_offered_its_history_too(viewer: Any, store: Store) -> None:
    for n in range(1, 4):
        origin = replace(request(n).origin, task_id="fit")
        asked = store.ask(
            request(n, ti_id=f"fit-{n}", origin=origin, job_id="d.fit", job=JOB)
        ).trial
        store.tell(asked.key, State.CONVERGED, report(32))
    ran(store, 9)
    got = viewer.get(path("costs"), params={"job_id": "d.train"}).json()["remarks"]
    assert any(
        "task fit has not run since" in text and "rename d.fit d.train" in text for text in got
    )


def test_nothing_is_offered_where_it_is_not_certain_or_not_for_this_reader(
    admin: Any, viewer: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(store, 1, dag_id="old", job_id="old.train")
    ran(store, 9)
    present(monkeypatch, "d")
    monkeypatch.setattr("airflow_provider_zeus.plugin.api.auth.readable_dags", lambda user: {"d"})
    assert offered(admin)  # who may edit Connections may read the whole log
    assert offered(viewer) == []
    store.close_trial(
        "d.train", store.ask(request(8, ti_id="later", job=JOB)).trial.number, by="a test"
    )
    assert offered(admin)


def test_a_job_with_a_history_or_other_batch_sizes_is_no_new_name() -> None:
    old = trial(1, "r1", dag_id="old", job_id="old.train")
    new = trial(1, "r2", opened_at=5_000.0)
    assert candidates([new], [old, new]) == [old]
    assert looks_like([old], new, set()) == "old.train"
    assert looks_like([old, replace(old, job_id="x")], new, set()) is None
    assert candidates([replace(new, number=2)], [old]) == []  # it had a history that is not shown
    assert candidates([new] * 11, [old]) == []
    assert candidates([new], [replace(old, spec={**old.spec, "batch_sizes": [1, 2]})]) == []
    assert candidates([new], [replace(old, spec={**old.spec, "target": "x >= 1"})]) == []
    assert candidates([new], [replace(old, opened_at=9_000.0)]) == []  # it still runs
    assert candidates([new], [replace(old, job_id="named by hand")]) == []
    assert candidates([], [old]) == []
