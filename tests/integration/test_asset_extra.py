"""The events of a task's outlets carry what its run cost, under the key ``zeus`` of their extra."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, AssetAlias, task

from airflow_provider_zeus.operators.command import ZeusCommandOperator
from airflow_provider_zeus.reports import run_figures
from airflow_provider_zeus.reports.run_figures import RunFigures
from tests.integration.jobs import SCRIPT, job, log_of, loop

START = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[2]


def extras(uri: str) -> list[dict[str, Any]]:
    """Extras of an asset's events, oldest first, as the metadata database holds them."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = select(AssetEvent).join(AssetModel, AssetModel.id == AssetEvent.asset_id)
        events = session.scalars(found.where(AssetModel.uri == uri).order_by(AssetEvent.id)).all()
        return [json.loads(json.dumps(e.extra)) for e in events]


def test_the_event_says_cost_and_saving_beside_what_the_author_put_there(run_dag: Any) -> None:
    model = Asset("model_of_north", uri="s3://models/north")
    with DAG("zeus_outlets", schedule=None, start_date=START) as dag:

        @task.zeus(job(), outlets=[model])
        def train(run, outlet_events=None):
            outlet_events[model].extra = {"rows": 5000}
            loop(run, {16: 19, 32: 4, 64: 5}[run.batch_size])

        train()
    runs = [run_dag(dag) for _ in range(2)]
    assert [r.state for r in runs] == ["success", "success"]
    first, second = extras("s3://models/north")
    assert (first["rows"], second["rows"]) == (5000, 5000)
    kept, given_up, last = log_of("zeus_outlets.train")
    zeus = first["zeus"]
    assert (zeus["batch_size"], zeus["energy_source"], zeus["time_source"]) == (
        32,
        "simulated",
        "simulated",
    )
    assert zeus["energy_j"] == pytest.approx(kept.observation.energy_j)
    assert zeus["power_limit_w"] == kept.observation.power_limit_w
    assert (zeus["saved_source"], zeus["default_batch_size"]) == ("measured", 32)
    spent_j = (given_up.observation.energy_j or 0.0) + (last.observation.energy_j or 0.0)
    assert second["zeus"]["energy_j"] == pytest.approx(spent_j)
    assert second["zeus"]["saved_j"] < 0, "16 was tried in vain"
    assert set(zeus) & {"money", "currency", "co2e_g"} == set(), "no price and no intensity is set"


def test_prices_that_are_set_are_there_with_unit_and_source(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("PRICE_PER_KWH", "0.3"), ("CURRENCY", "EUR"), ("G_CO2E_PER_KWH", "380")):
        monkeypatch.setenv(f"AIRFLOW__ZEUS__{name}", value)
    model = Asset("model_of_south", uri="s3://models/south")
    with DAG("zeus_outlets_priced", schedule=None, start_date=START) as dag:

        @task.zeus(job(), outlets=[model])
        def train(run):
            loop(run, 4)

        train()
    assert run_dag(dag).state == "success"
    (zeus,) = [extra["zeus"] for extra in extras("s3://models/south")]
    kwh = zeus["energy_j"] / 3.6e6
    assert (zeus["currency"], zeus["money_source"]) == ("EUR", "[zeus] price_per_kwh")
    assert zeus["money"] == pytest.approx(0.3 * kwh)
    assert zeus["co2e_g"] == pytest.approx(380 * kwh)
    assert zeus["co2e_source"] == "[zeus] g_co2e_per_kwh"


def test_switched_off_the_event_has_nothing_of_ours(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__ENABLED", "False")
    model = Asset("model_of_nowhere", uri="s3://models/nowhere")
    with DAG("zeus_outlets_off", schedule=None, start_date=START) as dag:

        @task.zeus(job(), outlets=[model])
        def train(run, outlet_events=None):
            outlet_events[model].extra = {"rows": 5000}
            loop(run, 4)

        train()
    assert run_dag(dag).state == "success"
    assert extras("s3://models/nowhere") == [{"rows": 5000}]


@pytest.mark.slow
def test_a_commands_outlets_and_an_alias_carry_them_too(run_dag: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    plain = Asset("cmd", uri="s3://models/cmd")
    named = Asset("named", uri="s3://models/named")
    alias = AssetAlias("any")
    with DAG("zeus_outlets_more", schedule=None, start_date=START) as dag:
        ZeusCommandOperator(
            task_id="command",
            job=job(),
            command=[sys.executable, "train.py"],
            env={"PYTHONPATH": str(ROOT)},
            cwd=str(tmp_path),
            outlets=[plain],
        )

        @task.zeus(job(), outlets=[alias])
        def aliased(run, outlet_events=None):
            loop(run, 4)
            outlet_events[alias].add(named, extra={"rows": 7})

        aliased()
    assert run_dag(dag).state == "success"
    assert extras("s3://models/cmd")[0]["zeus"]["batch_size"] == 32
    (extra,) = extras("s3://models/named")
    assert (extra["rows"], extra["zeus"]["batch_size"]) == (7, 32)


def test_what_cannot_be_said_fails_no_task(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no figures today")

    monkeypatch.setattr(RunFigures, "as_event", broken)
    model = Asset("model_of_west", uri="s3://models/west")
    with DAG("zeus_outlets_broken", schedule=None, start_date=START) as dag:

        @task.zeus(job(), outlets=[model])
        def train(run):
            loop(run, 4)

        train()
    assert run_dag(dag).state == "success"
    assert extras("s3://models/west") == [{}]


def test_without_the_log_the_saving_alone_is_absent(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the log cannot be read")

    monkeypatch.setattr(run_figures, "with_log", broken)
    model = Asset("model_of_east", uri="s3://models/east")
    with DAG("zeus_outlets_no_log", schedule=None, start_date=START) as dag:

        @task.zeus(job(), outlets=[model])
        def train(run):
            loop(run, 4)

        train()
    assert run_dag(dag).state == "success"
    (zeus,) = [extra["zeus"] for extra in extras("s3://models/east")]
    assert zeus["energy_j"] > 0
    assert not {"saved_j", "saved_s", "saved_source", "default_batch_size"} & set(zeus)
