"""Sending metrics: never an error, never a wait of more than a second, and no work where nobody listens."""

from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_zeus import airflow_compat
from airflow_provider_zeus.operators import metrics
from airflow_provider_zeus.operators.metrics import named, send_run
from airflow_provider_zeus.operators.mixins import figures_of
from airflow_provider_zeus.reports.run_figures import RunFigures
from airflow_provider_zeus.reports.run_metrics import Metric
from tests.receivers import airflow_sends
from tests.unit.reports.test_run_figures import DEFAULTS, trial

OWN = [trial(3, 32, 2.0)]


class Sent:
    """In place of Airflow's Stats."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def gauge(self, name: str, value: float, *, tags: Any) -> None:
        self.names.append(name)

    def incr(self, name: str, count: float, *, tags: Any) -> None:
        self.names.append(name)


class Log:
    """The log of a job."""

    def __init__(self, *trials: Any, hangs: threading.Event | None = None) -> None:
        self.rows = list(trials)
        self.hangs = hangs

    def runs(self, dag_id: str, job_id: str, *, last: int) -> Any:
        if self.hangs:
            self.hangs.wait(60)
        return self.rows[-last:]

    def profile(self, *_: Any) -> list[Any]:
        return []


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", "True")
    stats = Sent()
    monkeypatch.setitem(vars(airflow_compat), "Stats", stats)
    return stats


def run(log: Any, most_s: float = 60.0) -> RunFigures:
    reporter: Any = SimpleNamespace(ended=OWN, stopped=log is None)
    return figures_of({}, reporter, lambda: log, most_s=most_s)


def test_a_run_and_what_the_log_says_of_it(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "bounded", lambda call, _: call())  # however busy the host is
    send_run(run(Log(*DEFAULTS, *OWN)))
    assert {
        "zeus.trials",
        "zeus.trial.energy_j",
        "zeus.trial.saving_j",
        "zeus.believed.cost_j",
    } <= set(sent.names)


@pytest.mark.parametrize("name", ["AIRFLOW__METRICS__STATSD_ON", "AIRFLOW__ZEUS__ENABLED"])
def test_where_metrics_or_zeus_are_off_nothing_is_sent(
    name: str, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "False")
    send_run(run(Log(*OWN)))
    assert sent.names == []


def test_a_log_that_hangs_is_not_waited_for(sent: Sent) -> None:
    released = threading.Event()
    log: Any = Log(*OWN, hangs=released)
    begun_s = time.monotonic()
    send_run(run(log, most_s=0.2))
    waited_s = time.monotonic() - begun_s
    released.set()
    assert 0.2 <= waited_s < 50, "it hangs for a minute"
    assert "zeus.trial.energy_j" in sent.names
    assert "zeus.trial.saving_j" not in sent.names


def test_a_run_that_the_log_holds_in_part_has_no_saving(sent: Sent) -> None:
    send_run(run(Log(*DEFAULTS)))
    assert "zeus.trial.energy_j" in sent.names
    assert "zeus.trial.saving_j" not in sent.names


def test_without_a_log_its_figures_are_told(sent: Sent) -> None:
    send_run(run(None))
    assert "zeus.trials.energy_j" in sent.names


def test_stats_that_raise_fail_nothing(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError("no buffer space")

    monkeypatch.setattr(sent, "incr", broken)
    send_run(run(None))


def test_settings_that_cannot_be_read_fail_nothing(
    sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "perhaps")
    send_run(run(None))
    assert sent.names == []


def test_without_tags_the_job_and_the_source_are_in_the_name() -> None:
    tags = {
        "zeus_job": "sales.train",
        "dag_id": "sales",
        "task_id": "train",
        "device": "V100",
        "source": "rapl",
    }
    metric = Metric(
        name="zeus.trials",
        value=1.0,
        tags={**tags, "phase": "explore", "state": "failed"},
        total=True,
    )
    assert named(metric) == "zeus.trials.sales__train.rapl.explore.failed"


def test_the_longest_name_is_one_that_statsd_takes() -> None:
    tags = {"zeus_job": "j." * 30, "dag_id": "d", "source": "nvml_counter", "batch_size": "9" * 9}
    assert len("airflow." + named(Metric(name="zeus.believed.cost_j", value=1.0, tags=tags))) < 250


@pytest.mark.parametrize("host", ["127.0.0.1", "nobody.invalid"])
def test_a_receiver_that_is_not_there_fails_nothing(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("statsd")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as freed:
        freed.bind(("127.0.0.1", 0))
        port = freed.getsockname()[1]
    with airflow_sends("influx", port, monkeypatch.setenv):
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_HOST", host)
        send_run(run(None))
        send_run(run(None))
