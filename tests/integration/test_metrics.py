"""What Airflow's own Stats send of real runs, as real receivers get it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from airflow_provider_zeus import ZeusTrial
from airflow_provider_zeus.model.cost import Weights, observed_cost
from airflow_provider_zeus.model.trial import DeviceInfo, Trial
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.run_figures import Yardstick
from airflow_provider_zeus.store.open import open_store
from tests.integration.jobs import job, log_of, zeus_dag
from tests.receivers import Received, airflow_sends, flush, otlp, statsd

pytest.importorskip("statsd")
pytest.importorskip("datadog")


@pytest.fixture
def receives(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Starts a receiver of a kind, and Airflow's Stats that send to it."""
    with ExitStack() as stack:

        def start(kind: str) -> Received:
            received = stack.enter_context(otlp() if kind == "otel" else statsd())
            stack.enter_context(airflow_sends(kind, received.port, monkeypatch.setenv))
            return received

        yield start


def told(received: Received, name: str, **tags: str) -> float:
    """The newest value of a name, whose tags are among others these."""
    received.wait_for(name)
    found = [p.value for p in received.of(name) if p.tags.items() >= tags.items()]
    assert found, [p.tags for p in received.of(name)]
    return found[-1]


def cost_of(trial: Trial) -> float:
    o = trial.observation
    info = DeviceInfo(
        model=o.device_model or "", max_power_w=o.max_power_w, energy_source=o.energy_source
    )
    cost = observed_cost(o, Weights.of(trial.job, info))
    assert cost is not None
    return cost


@pytest.mark.parametrize(
    "kind",
    ["otel", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("influx", "datadog"))],
)
@pytest.mark.slow
def test_a_run_is_told_with_its_tags(
    kind: str, run_dag: Any, receives: Callable[[str], Received], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
    received = receives(kind)
    dag = zeus_dag(f"metrics_{kind}", job())
    for _ in range(2):
        assert run_dag(dag).state == "success"
        flush()
    log = log_of(dag.dag_id + ".train")
    last = log[-1]
    o = log[-1].observation
    of_job = {
        "zeus_job": last.job_id,
        "dag_id": dag.dag_id,
        "task_id": "train",
        "source": "simulated",
    }
    assert told(received, "zeus.trial.energy_j", **of_job) == pytest.approx(o.energy_j)
    assert told(received, "zeus.trial.time_s", **of_job) == pytest.approx(o.time_s)
    assert told(received, "zeus.trial.epochs", **of_job) == o.epochs
    assert told(received, "zeus.trial.cost_j", **of_job) == pytest.approx(cost_of(last))
    assert told(received, "zeus.trial.batch_size", **of_job) == last.batch_size
    assert told(received, "zeus.trial.limit_w", **of_job) == o.power_limit_w
    assert told(received, "zeus.believed.cost_j", batch_size="32", **of_job) > 0

    trials = [p for p in received.wait_for("zeus.trials") if p.delta]
    assert sum(p.value for p in trials) == len(log)
    assert {(p.tags["phase"], p.tags["state"]) for p in trials} == {
        (t.planned.phase, t.state) for t in log
    }
    energy_j = sum(p.value for p in received.of("zeus.trials.energy_j"))
    assert energy_j == pytest.approx(sum(t.observation.energy_j or 0.0 for t in log))
    assert {p.kind for p in received.points} == {"gauge", "counter"}
    assert all(
        p.kind == ("counter" if p.name.startswith("airflow.zeus.trials") else "gauge")
        for p in received.points
    )


def test_a_saving_and_a_loss_are_told(run_dag: Any, receives: Callable[[str], Received]) -> None:
    received = receives("influx")
    dag = zeus_dag("metrics_saving", job())
    expected = []
    for _ in range(3):
        assert run_dag(dag).state == "success"
        log = log_of("metrics_saving.train")
        last = log[-1]
        where = log[-1].observation.where
        assert where is not None
        profile = open_store().profile(last.job_id, where, "1")
        yardstick = Yardstick.of(as_dataset(log, last.job, where), where, profiles=profile)
        expected.append(
            yardstick.saving([t for t in log if t.key.ti_id == last.key.ti_id]).cost.saved.value
        )
    assert min(expected) < 0 < max(expected)
    received.wait_for("zeus.trial.saving_j")
    # StatsD has no negative gauge: it is set to 0, and lowered from there
    assert [p.value for p in received.of("zeus.trial.saving_j") if p.value] == pytest.approx(
        [v for v in expected if v]
    )


def test_without_tags_the_name_holds_job_and_source(
    run_dag: Any, receives: Callable[[str], Received]
) -> None:
    received = receives("statsd")
    dag = zeus_dag("metrics_plain", job())
    assert run_dag(dag).state == "success"
    (trial,) = log_of("metrics_plain.train")
    assert told(received, "zeus.trial.energy_j.metrics_plain__train.simulated") == pytest.approx(
        trial.observation.energy_j
    )
    assert told(received, "zeus.trials.metrics_plain__train.simulated.explore.converged") == 1
    assert told(received, "zeus.believed.cost_j.metrics_plain__train.simulated.32") > 0
    assert not received.of("zeus.trial.energy_j"), "all jobs in one gauge"


def test_what_is_not_measured_is_absent(run_dag: Any, receives: Callable[[str], Received]) -> None:
    received = receives("influx")
    dag = zeus_dag("metrics_time", job(device="none"))
    assert run_dag(dag).state == "success"
    received.wait_for("zeus.trial.cost_s")
    received.wait_for("zeus.believed.cost_s")
    names = {p.name.removeprefix("airflow.") for p in received.points}
    assert not {name for name in names if name.endswith(("_j", "_w"))}
    assert {p.tags["source"] for p in received.points} == {"none"}


def test_a_training_elsewhere_is_told_by_the_teardown(
    run_dag: Any, receives: Callable[[str], Received], tmp_path: Any
) -> None:
    from airflow.providers.standard.operators.bash import BashOperator
    from airflow.sdk import DAG

    received = receives("influx")
    with (
        DAG("metrics_elsewhere", schedule=None) as dag,
        ZeusTrial(job(), result_path=str(tmp_path)) as trial,
    ):
        BashOperator(task_id="train", bash_command="exit 0", env=trial.env, append_env=True)
    run_dag(dag)
    (row,) = log_of("metrics_elsewhere.train")
    (point,) = received.wait_for("zeus.trials")
    assert point.tags["state"] == row.state.value
    assert point.tags["task_id"] == "train"
    gauges = {p.name for p in received.points if p.kind == "gauge"}
    assert gauges <= {"airflow.zeus.trial.batch_size"}, "what it spent is not known"


def test_with_metrics_off_nothing_is_sent(
    run_dag: Any, receives: Callable[[str], Received]
) -> None:
    received = receives("off")
    dag = zeus_dag("metrics_off", job())
    assert run_dag(dag).state == "success"
    assert received.raw == []
