"""``airflow zeus report``: a month by job, owner and tag, by kind of source,
with what is not known left open.
"""

from __future__ import annotations

import csv
import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from airflow_provider_zeus.cli.report import by_job, by_owner_or_tag
from airflow_provider_zeus.hooks.zeus import about_dags
from airflow_provider_zeus.model.period_sum import PeriodSum
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.reports.month_report import COLUMNS
from airflow_provider_zeus.reports.month_spent import GONE, NONE, DagAbout
from airflow_provider_zeus.reports.months import SavedDraws, SpentBy
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.units import UNKNOWN, energy_text
from tests.unit.cli.conftest import Zeus
from tests.unit.store.store_kit import report, request

KWH_J = 3.6e6
PRICES = Prices(price_per_kwh=0.5, pue=1.5, g_co2e_per_kwh=400.0, currency="EUR")
ABOUT = {"d": DagAbout(["gpu", "nightly"], ["ann"]), "e": DagAbout([], ["ann", "ben"])}
MONTH = "2026-11"


def of(
    job: str, source: str | None = "nvml_counter", kwh: float | None = 2.0, **more: Any
) -> PeriodSum:
    known: dict[str, Any] = {
        "dag_id": "d",
        "job_id": job,
        "source": source,
        "period": 0,
        "runs": 3,
        "unknown": 0,
    }
    known["without_energy"] = 0
    known |= {"energy_j": None if kwh is None else kwh * KWH_J, "time_s": 7200.0, "gpu_s": 14400.0}
    known |= dict.fromkeys(
        ("paid", "paid_j", "g_co2e", "g_co2e_j", "start_saved", "start_saved_g")
    ) | {"currencies": ()}
    return PeriodSum(**{**known, **more})


def draws(kind: str, kwh: float, sd_kwh: float) -> SavedDraws:
    noise = np.random.default_rng(1).standard_normal(1000)
    spent = SpentBy(2 * KWH_J, 7200.0, 14400.0)
    return SavedDraws(
        kind, KWH_J * (kwh + sd_kwh * noise), 3600.0 + noise, 3600.0 + noise, 3, spent=spent
    )


def test_energy_that_is_missing_makes_a_lower_bound() -> None:
    found = by_job(MONTH, [of("a", without_energy=1)], {}, PRICES)
    (row,) = found.rows
    assert [row[name] for name in ("energy", "money", "co₂e")] == [
        "≥ 2 kWh",
        "≥ 1.50 EUR",
        "≥ 1.2 kg CO₂e",
    ]
    assert [record["attempts_without_energy"] for record in found.records] == [1]
    for by in ("owner", "tag"):
        groups = by_owner_or_tag(MONTH, by, [of("a", without_energy=1)], ABOUT, PRICES)
        assert {row["energy"] for row in groups.rows} == {"≥ 2 kWh"}
        assert {record["attempts_without_energy"] for record in groups.records} == {1}


def test_the_hours_price_of_each_job_counts() -> None:
    hours = {"paid": 1.0, "paid_j": 2 * KWH_J, "currencies": ("EUR",)}
    found = by_job(MONTH, [of("a", **hours), of("b")], {}, PRICES)
    assert [record["money"] for record in found.records] == [pytest.approx(1.5), pytest.approx(1.5)]
    mixed = [of("a", **{**hours, "currencies": ("USD",)}), of("b")]
    assert [record["currency"] for record in by_job(MONTH, mixed, {}, PRICES).records] == [
        "USD",
        "EUR",
    ]
    (ann,) = by_owner_or_tag(MONTH, "owner", mixed, ABOUT, PRICES).records
    assert (ann["money"], ann["currency"]) == (None, None), "two currencies are not added"


def test_each_job_by_kind_with_what_it_saved() -> None:
    sums = [of("a"), of("b", source="simulated", unknown=2)]
    saved: dict[tuple[str, str], Any] = {
        ("d", "a"): draws("measured", 1.0, 0.1),
        ("d", "b"): "no run",
    }
    found = by_job(MONTH, sums, saved, PRICES)
    a, b = found.records
    assert (a["month"], a["job_id"], a["kind"], a["runs"]) == (MONTH, "a", "measured", 3)
    assert (a["energy_kwh"], a["time_h"], a["gpu_h"]) == (2.0, 2, 4)
    assert (a["money"], a["currency"], a["co2e_kg"]) == (
        pytest.approx(1.5),
        "EUR",
        pytest.approx(1.2),
    )
    assert a["saved_energy_kwh"] == pytest.approx(1.0, rel=0.02)
    assert a["saved_energy_low_kwh"] < a["saved_energy_kwh"] < a["saved_energy_high_kwh"]
    assert (b["saved_energy_kwh"], b["saved_not_known"], b["attempts_without_figures"]) == (
        None,
        "no run",
        2,
    )
    row, other = found.rows
    assert [row[name] for name in ("source", "runs", "energy", "time")] == [
        "measured",
        "3",
        "2 kWh",
        "2 h 00 min",
    ]
    assert float(row["energy saved"].partition(" kWh (")[0]) == pytest.approx(1.0, rel=0.02)
    assert (other["source"], other["energy saved"]) == ("simulated", "not known (no run)")


def test_what_another_kind_of_source_saved_is_not_added() -> None:
    found = by_job(MONTH, [of("a")], {("d", "a"): draws("simulated", 1.0, 0.1)}, PRICES)
    assert found.records[0]["saved_not_known"] == "the default is known by another kind of source"


def test_a_loss_and_what_is_not_clear_are_said() -> None:
    saved = {
        ("d", "loses"): draws("measured", -1.0, 0.1),
        ("d", "open"): draws("measured", 0.1, 1.0),
    }
    found = by_job(MONTH, [of("loses"), of("open")], saved, Prices())
    loses, is_open = found.rows
    assert " kWh lost (" in loses["energy saved"]
    assert is_open["energy saved"].startswith("not clear yet (")
    assert {row[name] for row in found.rows for name in ("money", "co₂e")} == {UNKNOWN}


def test_a_month_of_the_default_alone_saved_nothing() -> None:
    found = by_job(MONTH, [of("a")], {("d", "a"): draws("measured", 0.0, 0.0)}, PRICES)
    assert found.rows[0]["energy saved"] == energy_text(0.0)


def test_time_is_what_was_saved_if_nothing_measures_energy() -> None:
    alone = replace(draws("time alone", 1.0, 0.1), energy=None)
    found = by_job(MONTH, [of("a", source=None, kwh=None)], {("d", "a"): alone}, PRICES)
    assert found.rows[0]["energy saved"].startswith("time: 1 h 00 min (")


def test_what_was_saved_is_in_money_and_carbon_too() -> None:
    saved = {("d", "a"): draws("measured", 1.0, 0.1)}
    (record,) = by_job(MONTH, [of("a")], saved, PRICES).records
    assert record["saved_money"] == pytest.approx(0.75, rel=0.02)
    assert record["saved_low_money"] < record["saved_money"] < record["saved_high_money"]
    assert record["saved_co2e_kg"] == pytest.approx(0.6, rel=0.02)
    assert tuple(record) == COLUMNS
    (unpriced,) = by_job(MONTH, [of("a")], saved, Prices()).records
    assert (unpriced["saved_money"], unpriced["saved_co2e_kg"]) == (None, None)


def test_attempts_that_reported_nothing_are_named() -> None:
    dead = of("b", source=None, kwh=None, time_s=None, gpu_s=None, unknown=9)
    found = by_job(MONTH, [of("a"), dead], {}, PRICES)
    assert found.note == "In no figure: 9 attempts of 1 job that reported nothing so far."
    assert [row["job"] for row in found.rows] == ["a"]
    assert found.records[1] == {
        "month": MONTH,
        "dag_id": "d",
        "job_id": "b",
        "attempts_without_figures": 9,
    }


def test_energy_that_nothing_measured_has_no_price() -> None:
    time_alone = [of("a", source=None, kwh=None)]
    of_job = by_job(MONTH, time_alone, {}, PRICES)
    of_owner = by_owner_or_tag(MONTH, "owner", time_alone, ABOUT, PRICES)
    for table in (of_job, of_owner):
        assert table.rows[0]["source"] == "energy not measured", "as on the pages"
        (record,) = table.records
        assert (record["kind"], record["time_h"]) == ("time alone", 2.0)
        assert (record["energy_kwh"], record["money"], record["currency"], record["co2e_kg"]) == (
            None,
        ) * 4


def test_owners_and_tags_have_totals_by_kind_from_one_maker() -> None:
    sums = [
        of("a"),
        of("b", dag_id="e"),
        of("c", source="simulated", dag_id="e"),
        of("old", dag_id="gone"),
    ]
    energy = {
        (record["by"], record["kind"], record["name"]): record["energy_kwh"]
        for by in ("owner", "tag")
        for record in by_owner_or_tag(MONTH, by, sums, ABOUT, PRICES).records
    }
    assert energy == {
        ("owner", "measured", "ann"): 4.0,
        ("owner", "measured", "ben"): 2.0,
        ("owner", "measured", GONE): 2.0,
        ("owner", "simulated", "ann"): 2.0,
        ("owner", "simulated", "ben"): 2.0,
        ("tag", "measured", "gpu"): 2.0,
        ("tag", "measured", "nightly"): 2.0,
        ("tag", "measured", NONE): 2.0,
        ("tag", "measured", GONE): 2.0,
        ("tag", "simulated", NONE): 2.0,
    }
    found = by_owner_or_tag(MONTH, "owner", sums, ABOUT, PRICES)
    row = found.rows[0]
    record = found.records[0]
    assert (row["owner"], row["source"], row["jobs"], row["runs"], row["energy"]) == (
        "ann",
        "measured",
        "2",
        "6",
        "4 kWh",
    )
    assert (record["jobs"], record["money"]) == (2, pytest.approx(3.0))
    assert by_owner_or_tag(MONTH, "owner", sums, {}, PRICES).rows == [], (
        "nothing is known of any DAG"
    )


@pytest.mark.parametrize("by", ["owner", "tag"])
def test_a_control_character_in_an_owner_or_a_tag_is_shown_by_its_number(by: str) -> None:
    about = {"d": DagAbout(["a\x1b[31m"], ["a\x1b[31m"])}
    (row,) = by_owner_or_tag(MONTH, by, [of("a")], about, PRICES).rows
    assert row[by] == "a\\x1b[31m"


def test_a_control_character_in_a_job_or_a_dag_is_shown_by_its_number() -> None:
    (row,) = by_job(MONTH, [of("a\x1b[31m", dag_id="d\x1b[31m")], {}, PRICES).rows
    assert (row["job"], row["dag"]) == ("a\\x1b[31m", "d\\x1b[31m")


def test_the_month_of_a_real_log_in_each_form(
    zeus: Zeus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", datetime(2026, 11, 30, tzinfo=UTC).timestamp)  # none ends
    for n in (1, 2, 3):
        asked = store.ask(request(n))
        store.tell(asked.trial.key, State.CONVERGED, report(asked.trial.batch_size))
    energy_kwh = sum(t.observation.energy_j or 0.0 for t in store.trials("d.train")) / KWH_J
    (row,) = json.loads(zeus("report", "-o", "json").out)
    assert (row["job_id"], row["kind"], row["runs"], row["money"]) == (
        "d.train",
        "simulated",
        3,
        None,
    )
    assert row["month"] == MONTH
    assert row["energy_kwh"] == pytest.approx(energy_kwh)
    (line,) = csv.DictReader(zeus("report", "--by", "job", "--output", "csv").out.splitlines())
    assert (line["job_id"], line["runs"], line["money"]) == ("d.train", "3", "")
    assert float(line["energy_kwh"]) == row["energy_kwh"]
    shown = zeus("report")
    assert shown.status == 0, shown.err
    assert "simulated" in shown.out


def test_a_month_without_a_run(zeus: Zeus, store: Store) -> None:
    asked = ("report", "--month", "2020-01")
    assert "No run that reported its figures began in this month." in zeus(*asked).out
    assert json.loads(zeus(*asked, "-o", "json").out) == []
    assert zeus(*asked, "-o", "csv").out.strip() == ",".join(COLUMNS), "the names of the columns"


def test_a_name_is_neither_a_formula_nor_a_control_sequence(zeus: Zeus, store: Store) -> None:
    name = "=cmd()\x1b[31m"
    asked = store.ask(replace(request(1), job_id=name))
    store.tell(asked.trial.key, State.CONVERGED, report(asked.trial.batch_size))
    (line,) = csv.DictReader(zeus("report", "-o", "csv").out.splitlines())
    assert line["job_id"].startswith("'=")
    for form in ("table", "csv", "json"):
        assert "\x1b[31m" not in zeus("report", "-o", form).out, form


def test_no_month_is_named(zeus: Zeus, store: Store) -> None:
    done = zeus("report", "--month", "2026-13")
    assert (done.status, 'write it as "2026-11"' in done.err) == (1, True), done.err


def test_the_command_shows_what_owners_and_tags_spent(
    zeus: Zeus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = store.ask(request(1))
    store.tell(asked.trial.key, State.CONVERGED, report(asked.trial.batch_size))
    monkeypatch.setattr("airflow_provider_zeus.cli.report.about_dags", lambda _: ABOUT)
    (row,) = json.loads(zeus("report", "--by", "owner", "-o", "json").out)
    (trial,) = store.trials("d.train")
    assert (row["by"], row["name"], row["kind"], row["runs"], row["money"]) == (
        "owner",
        "ann",
        "simulated",
        1,
        None,
    )
    assert row["energy_kwh"] == (trial.observation.energy_j or 0.0) / KWH_J
    names = [
        line["name"]
        for line in csv.DictReader(zeus("report", "--by", "tag", "-o", "csv").out.splitlines())
    ]
    assert names == ["gpu", "nightly"]
    assert "nightly" in zeus("report", "--by", "tag").out


def test_tags_and_owners_are_read_from_airflow(zeus: Zeus) -> None:
    from airflow.models.dagbundle import DagBundleModel

    from airflow_provider_zeus.airflow_compat import DagModel, DagTag, create_session

    with create_session() as session:
        session.merge(DagBundleModel(name="tests"))
        session.flush()
        session.merge(DagModel(dag_id="grouped", bundle_name="tests", owners="ann, ben"))
        session.flush()
        session.merge(DagTag(dag_id="grouped", name="gpu"))
        session.merge(DagModel(dag_id="other", bundle_name="tests", owners="eve"))
    try:
        assert about_dags({"grouped", "never"}) == {"grouped": DagAbout(["gpu"], ["ann", "ben"])}
    finally:
        with create_session() as session:
            for dag_id in ("grouped", "other"):
                session.delete(session.get(DagModel, dag_id))


def test_the_column_of_dags_is_left_out_if_the_names_of_the_jobs_say_them() -> None:
    assert "dag" not in by_job(MONTH, [of("d.a"), of("d.b")], {}, PRICES).rows[0]
    assert "dag" in by_job(MONTH, [of("d.a"), of("e.b")], {}, PRICES).rows[0]
