"""The energy of a run is priced by its hours in each entry, and what a training says of prices counts for nothing."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.operators.command import ZeusCommandOperator
from airflow_provider_zeus.operators.trial import ZeusTrial
from airflow_provider_zeus.signals.hours import HourPrices
from tests.integration.jobs import SCRIPT, job, log_of, zeus_dag

START = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[2]
TARIFF = {"timezone": "UTC", "unit": "EUR/kWh", "default": 0.25}


@pytest.fixture(autouse=True)
def _a_tariff(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, unit, value in (("ZEUS_PRICE", "EUR/kWh", 0.25), ("ZEUS_CARBON", "g/kWh", 320.0)):
        extra = {"tariff": {**TARIFF, "unit": unit, "default": value}}
        monkeypatch.setenv(
            f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": "zeus_signal", "extra": extra})
        )


def is_priced(trial: Trial) -> bool:
    o = trial.observation
    assert (o.price_currency, o.price_source, o.g_co2e_source) == (
        "EUR",
        "tariff, UTC",
        "tariff, UTC",
    ), o.reasons
    return (o.price_per_kwh, o.g_co2e_per_kwh, o.price_at_once) == (
        pytest.approx(0.25),
        pytest.approx(320.0),
        None,
    )


def test_a_function(run_dag: Any) -> None:
    assert run_dag(zeus_dag("zeus_priced", job())).state == "success"
    assert all(map(is_priced, log_of("zeus_priced.train")))


def test_a_command(run_dag: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with DAG("zeus_priced_command", schedule=None, start_date=START) as dag:
        ZeusCommandOperator(
            task_id="train",
            job=job(),
            command=[sys.executable, str(tmp_path / "train.py")],
            env={"PYTHONPATH": str(ROOT)},
        )
    assert run_dag(dag).state == "success"
    assert all(map(is_priced, log_of("zeus_priced_command.train")))


def test_any_operator(run_dag: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with (
        DAG("zeus_priced_elsewhere", schedule=None, start_date=START, max_active_runs=1) as dag,
        ZeusTrial(job(), result_path=str(tmp_path / "results")) as trial,
    ):
        BashOperator(
            task_id="train",
            bash_command=f"{sys.executable} {tmp_path / 'train.py'}",
            env=trial.env | {"PYTHONPATH": str(ROOT)},
            append_env=True,
        )
    assert run_dag(dag).state == "success"
    assert all(map(is_priced, log_of("zeus_priced_elsewhere.train")))


def test_without_a_signal_nothing_is_priced_and_a_wrong_one_is_named(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_ZEUS_CARBON")
    monkeypatch.setenv(
        "AIRFLOW_CONN_ZEUS_PRICE",
        json.dumps({"conn_type": "zeus_signal", "extra": {"preset": "?"}}),
    )
    assert run_dag(zeus_dag("zeus_unpriced", job())).state == "success"
    seen = log_of("zeus_unpriced.train")[-1].observation
    assert (seen.price_per_kwh, seen.g_co2e_per_kwh) == (None, None)
    assert "preset" in seen.reasons["price_per_kwh"]
    assert "g_co2e_per_kwh" not in seen.reasons, "nobody asked for it"


def test_the_jobs_own_signal_prices_what_no_connection_of_all_does(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_ZEUS_CARBON")
    tariff = {"tariff": {**TARIFF, "unit": "g/kWh", "default": 55.0}}
    monkeypatch.setenv(
        "AIRFLOW_CONN_OWN_GRID", json.dumps({"conn_type": "zeus_signal", "extra": tariff})
    )
    assert (
        run_dag(zeus_dag("zeus_own_signal", job(start_within="8 h", start_signal="own_grid"))).state
        == "success"
    )
    seen = log_of("zeus_own_signal.train")[-1].observation
    assert (seen.g_co2e_per_kwh, seen.price_per_kwh) == (pytest.approx(55.0), pytest.approx(0.25))


def test_both_of_the_jobs_own_signals_price(run_dag: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ZEUS_PRICE", "ZEUS_CARBON"):
        monkeypatch.delenv(f"AIRFLOW_CONN_{name}")
    for name, unit, value in (("TIBBER", "EUR/kWh", 0.31), ("OWN_GRID", "g/kWh", 55.0)):
        extra = {"tariff": {**TARIFF, "unit": unit, "default": value}}
        monkeypatch.setenv(
            f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": "zeus_signal", "extra": extra})
        )
    both = job(start_within="8 h", start_signal="own_grid", follow="tibber")
    assert run_dag(zeus_dag("zeus_own_signals", both)).state == "success"
    seen = log_of("zeus_own_signals.train")[-1].observation
    assert (seen.g_co2e_per_kwh, seen.price_per_kwh) == (pytest.approx(55.0), pytest.approx(0.31))


def test_a_signal_that_hangs_costs_a_run_some_seconds_and_no_figure(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_zeus.operators import recurrence

    def hangs(*_: Any, **__: Any) -> None:
        time.sleep(60)

    monkeypatch.setattr(recurrence, "read_signal", hangs)
    monkeypatch.setattr("airflow_provider_zeus.operators.result_reporter.PRICED_S", 0.2)
    assert run_dag(zeus_dag("zeus_hanging_price", job())).state == "success"
    (seen,) = [t.observation for t in log_of("zeus_hanging_price.train") if t.state.kept_model]
    assert seen.energy_j is not None
    assert seen.price_per_kwh is None
    assert HourPrices(began_s=0.0, reader=hangs).live
