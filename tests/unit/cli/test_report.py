"""``airflow zeus report``: a month as HTML and CSV, by kind of source, with what is not known left open."""

from __future__ import annotations

import csv
import io
import json
import re
import stat
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from airflow_provider_zeus.hooks.zeus import _in_database, about_dags
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.reports.month_report import (
    COLUMNS,
    as_csv,
    as_html,
    as_record,
    as_records,
    groups_csv,
    month_report,
)
from airflow_provider_zeus.reports.month_spent import GONE, NONE, DagAbout
from airflow_provider_zeus.reports.months import PeriodSum, SavedDraws
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.cli.conftest import Zeus
from tests.unit.store.store_kit import report, request

KWH_J = 3.6e6


def of(
    job: str, period: int = 1, source: str | None = "nvml_counter", kwh: float | None = 2.0, **more: Any
) -> PeriodSum:
    known: dict[str, Any] = {"dag_id": "d", "job_id": job, "source": source, "period": period, "runs": 3, "unknown": 0}
    known["without_energy"] = 0
    known |= {"energy_j": None if kwh is None else kwh * KWH_J, "time_s": 7200.0, "gpu_s": 14400.0}
    known |= dict.fromkeys(("paid", "paid_j", "g_co2e", "g_co2e_j", "start_saved", "start_saved_g")) | {
        "currencies": ()
    }
    return PeriodSum(**{**known, **more})


def draws(kind: str, kwh: float, sd_kwh: float) -> SavedDraws:
    noise = np.random.default_rng(1).standard_normal(1000)
    spent = (2 * KWH_J, 7200.0, 14400.0)
    return SavedDraws(kind, KWH_J * (kwh + sd_kwh * noise), 3600.0 + noise, 3600.0 + noise, 3, spent=spent)


def test_energy_that_is_missing_makes_a_lower_bound() -> None:
    found = month_report("2026-11", [of("a", without_energy=1)], {}, PRICES, ABOUT)
    assert "≥ 2 kWh" in as_html(found)
    assert [r["attempts_without_energy"] for r in csv.DictReader(io.StringIO(as_csv(found)))] == ["1"]
    groups = list(csv.DictReader(io.StringIO(groups_csv(found))))
    assert groups
    assert {r["attempts_without_energy"] for r in groups} == {"1"}


def test_the_hours_price_of_each_job_counts() -> None:
    hours = {"paid": 1.0, "paid_j": 2 * KWH_J, "currencies": ("EUR",)}
    found = month_report("2026-11", [of("a", **hours), of("b")], {}, PRICES, {})
    assert [as_record(row, found)["money"] for row in found.rows] == [pytest.approx(1.5), pytest.approx(1.5)]
    mixed = month_report("2026-11", [of("a", **{**hours, "currencies": ("USD",)}), of("b")], {}, PRICES, {})
    assert [as_record(row, mixed)["currency"] for row in mixed.rows] == ["USD", "EUR"]
    assert " EUR" not in as_html(mixed).partition("<table>")[0], "two currencies are not added"


PRICES = Prices(price_per_kwh=0.5, pue=1.5, g_co2e_per_kwh=400.0, currency="EUR")


def test_a_sum_with_an_old_default_in_it_says_so() -> None:
    saved = {("d", "a"): replace(draws("measured", 1.0, 0.1), old=True), ("d", "b"): draws("measured", 1.0, 0.1)}
    page = as_html(month_report("2026-11", [of("a"), of("b")], saved, PRICES, {}))
    assert "Saved by 2 jobs, 1 job judged by an old run of the default: " in page


def test_each_job_by_kind_with_what_it_saved() -> None:
    sums = [of("a"), of("b", source="simulated", unknown=2), of("a", period=0, kwh=1.0)]
    found = month_report("2026-11", sums, {("d", "a"): draws("measured", 1.0, 0.1), ("d", "b"): "no run"}, PRICES, {})
    a, b = (as_record(row, found) for row in found.rows)
    assert (a["job_id"], a["kind"], a["runs"], a["energy_kwh"], a["time_h"], a["gpu_h"]) == (
        "a",
        "measured",
        3,
        2.0,
        2,
        4,
    )
    assert (a["money"], a["currency"], a["co2e_kg"]) == (pytest.approx(1.5), "EUR", pytest.approx(1.2))
    assert a["saved_energy_kwh"] == pytest.approx(1.0, rel=0.02)
    assert a["saved_energy_low_kwh"] < a["saved_energy_kwh"] < a["saved_energy_high_kwh"]
    assert (b["saved_energy_kwh"], b["saved_not_known"], b["attempts_without_figures"]) == (None, "no run", 2)
    page = as_html(found)
    assert page.count("<h2>") == 2
    assert "Spent: 2 kWh, 2 h 00 min, 1.50 EUR, 1.2 kg CO₂e, in 3 runs of 1 job" in page
    assert "The month before: 1 kWh" in page
    assert "not known (no run)" in page


def test_what_starts_from_earlier_models_saved_is_said_of_the_jobs_that_have_any() -> None:
    a, b = draws("measured", 1.0, 0.1), draws("measured", 2.0, 0.1)
    saved = {("d", "a"): replace(a, started=(0.5 * b.energy, 0.5 * a.time)), ("d", "b"): b}
    page = as_html(month_report("2026-11", [of("a"), of("b")], saved, PRICES, {}))
    said = re.search(r"Of that by starts from earlier models: ([\d.]+) kWh \(.* of energy, [\d.]+ [hm].* of time", page)
    assert said is not None
    assert float(said[1]) == pytest.approx(1.0, rel=0.02)
    assert "by starts" not in as_html(month_report("2026-11", [of("a")], {("d", "a"): a}, PRICES, {}))
    bought = {("d", "a"): "Its 2 retrainings brought <acc>."}
    assert "a (d): Its 2 retrainings brought &lt;acc&gt;." in as_html(
        month_report("2026-11", [of("a")], {}, PRICES, {}, bought)
    )


def test_a_loss_and_what_is_not_clear_are_said() -> None:
    sums = [of("loses"), of("open")]
    saved = {("d", "loses"): draws("measured", -1.0, 0.1), ("d", "open"): draws("measured", 0.1, 1.0)}
    page = as_html(month_report("2026-11", sums, saved, Prices(), {}))
    assert " kWh lost (" in page
    assert "not clear yet (" in page
    assert "EUR" not in page
    assert "CO₂e, in" not in page


def test_what_was_saved_is_in_money_and_carbon_too() -> None:
    found = month_report("2026-11", [of("a")], {("d", "a"): draws("measured", 1.0, 0.1)}, PRICES, {})
    (record,) = as_records(found)
    assert record["saved_money"] == pytest.approx(0.75, rel=0.02)
    assert record["saved_low_money"] < record["saved_money"] < record["saved_high_money"]
    assert record["saved_co2e_kg"] == pytest.approx(0.6, rel=0.02)
    assert tuple(record) == COLUMNS
    totals, _, table = as_html(found).partition("<table>")
    assert " of time, 0.75 EUR (" in totals
    assert " g CO₂e (" in totals
    assert "0.75 EUR (" in table
    unpriced = month_report("2026-11", [of("a")], {("d", "a"): draws("measured", 1.0, 0.1)}, Prices(), {})
    assert (as_records(unpriced)[0]["saved_money"], as_records(unpriced)[0]["saved_co2e_kg"]) == (None, None)


def test_attempts_that_reported_nothing_are_in_both_files() -> None:
    dead = of("b", source=None, kwh=None, time_s=None, gpu_s=None, unknown=9)
    found = month_report("2026-11", [of("a"), dead], {}, PRICES, {})
    assert "In no figure: 9 attempts of 1 job that reported nothing." in as_html(found)
    assert as_records(found)[1] == {
        "month": "2026-11",
        "dag_id": "d",
        "job_id": "b",
        "attempts_without_figures": 9,
    }
    assert "No run began" not in as_html(month_report("2026-11", [dead], {}, PRICES, {}))


def test_names_are_escaped_and_nothing_comes_from_elsewhere() -> None:
    page = as_html(month_report("2026-11", [of("<script>alert(1)</script>\x1b[31m")], {}, Prices(currency="<b>"), {}))
    assert "<script>" not in page
    assert "\x1b" not in page
    assert "http" not in page
    assert "No run began" in as_html(month_report("2026-11", [], {}, Prices(), {}))


def test_energy_that_nothing_measured_has_no_price() -> None:
    found = month_report("2026-11", [of("a", source=None, kwh=None)], {}, PRICES, {})
    (record,) = (as_record(row, found) for row in found.rows)
    assert (record["kind"], record["energy_kwh"], record["money"], record["co2e_kg"]) == (
        "time alone",
        None,
        None,
        None,
    )


def test_the_files_of_a_real_log(zeus: Zeus, store: Store, tmp_path: Path) -> None:
    for n in (1, 2, 3):
        asked = store.ask(request(n))
        store.tell(asked.trial.key, State.CONVERGED, report(asked.trial.batch_size, metric=0.95, served=0.8))
    month = f"{datetime.now(UTC):%Y-%m}"
    done = zeus("report", "--out", str(tmp_path / "reports"))
    assert done.status == 0, done.err
    page, table, groups = (tmp_path / "reports" / f"zeus-{month}{end}" for end in (".html", ".csv", "-groups.csv"))
    assert done.out.split() == [str(page), str(table), str(groups)]
    (row,) = csv.DictReader(table.read_text().splitlines())
    assert (row["job_id"], row["kind"], row["runs"], row["money"]) == ("d.train", "simulated", "3", "")
    assert "in 3 runs of 1 job" in page.read_text()
    assert "d.train (d): Its 3 retrainings brought accuracy from 0.8 to 0.95 on average" in page.read_text()
    assert zeus("report", "--month", "2020-01", "--out", str(tmp_path)).status == 0
    earlier = (tmp_path / "zeus-2020-01.html").read_text()
    assert "No run began" in earlier
    assert "retrainings bought" not in earlier
    assert (tmp_path / "zeus-2020-01.csv").read_text().strip() == ",".join(COLUMNS), "the names of the columns"


def test_the_files_are_this_users_alone_and_follow_no_link(zeus: Zeus, store: Store, tmp_path: Path) -> None:
    folder, asked = tmp_path / "reports", ("report", "--month", "2020-01", "--out", str(tmp_path / "reports"))
    for _ in range(2):  # the second one writes over the first
        assert zeus(*asked).status == 0
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())]
        assert modes == [0o700, 0o600, 0o600, 0o600]
    kept = tmp_path / "kept"
    kept.write_text("mine")
    for ending in ("html", "csv"):
        (planted := folder / f"zeus-2020-01.{ending}").unlink()
        planted.symlink_to(kept)
        done = zeus(*asked)
        assert (done.status, f"{planted} is a symbolic link" in done.err) == (1, True), done.err
        planted.unlink()
    folder.chmod(0o777)
    (planted := folder / "zeus-2020-01.html").unlink()
    planted.hardlink_to(kept)
    assert zeus(*asked).status == 1
    assert kept.read_text() == "mine", "it is not emptied either"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--month", "2026-13"), 'write it as "2026-11"'), (("--out", "/dev/null/x"), "name a folder")],
)
def test_bad_input_is_named(zeus: Zeus, store: Store, arguments: tuple[str, str], said: str) -> None:
    done = zeus("report", *arguments)
    assert (done.status, said in done.err) == (1, True), done.err


ABOUT = {"d": DagAbout(["gpu", "nightly"], ["ann"]), "e": DagAbout([], ["ann", "ben"])}


def test_owners_and_tags_have_totals_by_kind_from_one_maker() -> None:
    sums = [of("a"), of("b", dag_id="e"), of("c", source="simulated", dag_id="e"), of("old", dag_id="gone")]
    found = month_report("2026-11", sums, {}, PRICES, ABOUT)
    energy = {(g.by, g.kind, g.name): (g.spent.energy_j or 0.0) / KWH_J for g in found.groups}
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
    line = next(csv.DictReader(groups_csv(found).splitlines()))
    assert [line[name] for name in ("by", "kind", "name", "jobs", "money")] == ["owner", "measured", "ann", "2", "3.0"]
    page = as_html(found)
    assert page.count("<caption>By owner") == page.count("<h2>") == 2
    assert "<td>ann</td><td class=n>2</td><td class=n>6</td><td class=n>4 kWh</td>" in page
    assert "<caption>" not in as_html(month_report("2026-11", sums, {}, PRICES, {})), "nothing is known of any DAG"


def test_energy_that_nothing_measured_is_empty_in_a_group_too() -> None:
    found = month_report("2026-11", [of("a", source=None, kwh=None)], {}, PRICES, ABOUT)
    line = next(csv.DictReader(groups_csv(found).splitlines()))
    assert (line["energy_kwh"], line["money"], line["currency"], line["co2e_kg"], line["time_h"]) == (
        "",
        "",
        "",
        "",
        "2.0",
    )


def test_the_command_shows_what_owners_spent(zeus: Zeus, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = store.ask(request(1))
    store.tell(asked.trial.key, State.CONVERGED, report(asked.trial.batch_size))
    monkeypatch.setattr("airflow_provider_zeus.hooks.zeus.about_dags", lambda _: ABOUT)
    done = zeus("report", "--by", "owner", "-o", "json")
    (row,) = json.loads(done.out)
    (trial,) = store.trials("d.train")
    assert (row["by"], row["name"], row["kind"], row["runs"], row["money"]) == ("owner", "ann", "simulated", 1, None)
    assert row["energy_kwh"] == (trial.observation.energy_j or 0.0) / KWH_J
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
        assert _in_database({"grouped", "never"}) == {"grouped": (["gpu"], "ann, ben")}, "those that are shown"
        assert about_dags({"grouped", "never"}) == {"grouped": DagAbout(["gpu"], ["ann", "ben"])}
    finally:
        with create_session() as session:
            for dag_id in ("grouped", "other"):
                session.delete(session.get(DagModel, dag_id))


def test_in_a_task_tags_and_owners_come_from_airflows_api(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.exceptions import AirflowRuntimeError
    from airflow.sdk.execution_time.comms import ErrorResponse

    def get_dag(dag_id: str) -> Any:
        if dag_id == "gone":
            raise AirflowRuntimeError(ErrorResponse(detail={"status_code": 404}))
        return SimpleNamespace(tags=["gpu"], owners="ann, ben")

    monkeypatch.setattr("airflow.sdk.get_current_context", lambda: {"ti": SimpleNamespace(get_dag=get_dag)})
    assert about_dags({"d", "gone"}) == {"d": DagAbout(["gpu"], ["ann", "ben"])}
