"""``ZeusJob(log_to=["mlflow"])`` with the real MLflow, in a folder, a database and before a server that hangs."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.training import trackers
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.conftest import Kit, explore, incumbent, loop, steps

LOG_TO: dict[str, Any] = {"log_to": ["mlflow"]}


@pytest.fixture(autouse=True)
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """MLflow, which writes into a folder of this test; imported here, for it takes a second."""
    mlflow: ModuleType = pytest.importorskip(
        "mlflow", reason="MLflow is not installed: airflow-provider-zeus[mlflow]"
    )
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr(trackers, "WRITE_S", 60.0)  # a busy machine
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    yield mlflow
    while mlflow.active_run():
        mlflow.end_run()
    mlflow.set_tracking_uri(before)


def written(run_id: str) -> tuple[dict[str, float], dict[str, str]]:
    """(Metrics, parameters) of ours in a run of MLflow."""
    from mlflow import MlflowClient

    found = MlflowClient().get_run(run_id)
    ours = [
        {k: v for k, v in held.items() if k.startswith("zeus/")}
        for held in (found.data.metrics, found.data.params)
    ]
    return ours[0], ours[1]


def curve(run_id: str, name: str) -> list[tuple[int, float]]:
    from mlflow import MlflowClient

    return sorted((m.step, m.value) for m in MlflowClient().get_metric_history(run_id, name))


def training(run: ZeusRun, seen: list[str], epochs: int = 3) -> int:
    """Trains as its author writes it: the run of MLflow is closed before the function returns."""
    import mlflow

    with mlflow.start_run() as opened:
        seen.append(opened.info.run_id)
        mlflow.log_metric("own", 1.0)
        return loop(run, epochs=epochs)


def test_figures_and_curve_are_in_the_run_that_the_training_had_open(
    mlflow: ModuleType, kit: Kit
) -> None:
    seen: list[str] = []
    assert kit.run(incumbent(256), **LOG_TO).train(training, seen) == 256
    metrics, params = written(seen[0])
    last = kit.last()
    assert metrics == {
        "zeus/energy_j": pytest.approx(last.energy_j),
        "zeus/time_s": pytest.approx(last.time_s),
        "zeus/epochs": 3.0,
        "zeus/acc": 0.9,
    }
    assert params == {
        "zeus/batch_size": "256",
        "zeus/power_limit_w": str(last.power_limit_w),
        "zeus/energy_source": "simulated",
        "zeus/state": "converged",
        "zeus/attempt": "1",
    }
    assert curve(seen[0], "zeus/acc") == [(0, 0.5), (1, 0.5), (2, 0.9)]
    assert mlflow.MlflowClient().get_run(seen[0]).data.metrics["own"] == 1.0


def test_an_attempt_that_is_given_up_does_not_look_like_the_kept_one(
    mlflow: ModuleType, kit: Kit
) -> None:
    """Both attempts write into one run, whose parameters MLflow lets nobody change."""
    with mlflow.start_run() as opened:
        run = kit.run(explore(1024, bound_epochs=2.0), incumbent(256), **LOG_TO)
        assert run.train(loop, epochs=3) == 256
    metrics, params = written(opened.info.run_id)
    assert [end.state for end in kit.ends()] == [State.GIVEN_UP, State.CONVERGED]
    given_up, kept = (end.observation for end in kit.ends())
    assert given_up is not None
    assert kept is not None
    assert metrics["zeus/given_up/energy_j"] == pytest.approx(given_up.energy_j)
    assert metrics["zeus/energy_j"] == pytest.approx(kept.energy_j)
    assert (params["zeus/given_up/batch_size"], params["zeus/batch_size"]) == ("1024", "256")
    assert curve(opened.info.run_id, "zeus/acc") == [(0, 0.5), (1, 0.5), (2, 0.9)]


def test_what_is_not_known_is_absent(mlflow: ModuleType, kit: Kit) -> None:
    def resumed(run: ZeusRun) -> None:
        run.resumed(epochs=2)
        for epoch in run.epochs():
            steps(run)
            run.report(acc=0.9 if epoch == 3 else 0.5)

    with mlflow.start_run() as opened:
        kit.run(incumbent(256), device="none", **LOG_TO).train(resumed)
    metrics, params = written(opened.info.run_id)
    assert set(metrics) == {"zeus/time_s", "zeus/acc"}, (
        "no device reads energy, and epochs before ours are not counted"
    )
    assert set(params) == {"zeus/batch_size", "zeus/state", "zeus/attempt"}
    assert curve(opened.info.run_id, "zeus/acc") == [(2, 0.5), (3, 0.9)], (
        "the epochs go on from the checkpoint's"
    )


def test_a_loop_without_train_writes_before_its_run_is_closed(mlflow: ModuleType, kit: Kit) -> None:
    with mlflow.start_run() as opened:
        loop(kit.run(incumbent(256), **LOG_TO))
    assert written(opened.info.run_id)[0]["zeus/energy_j"] == pytest.approx(kit.last().energy_j)


def test_without_an_open_run_one_line_says_so_and_nothing_is_made(
    kit: Kit, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="airflow_provider_zeus")
    run = kit.run(explore(1024, bound_epochs=2.0), incumbent(256), **LOG_TO)
    assert run.train(loop) == 256
    assert [r.getMessage() for r in caplog.records if "log_to" in r.getMessage()] == [
        "Zeus: log_to: this training has no run of mlflow open, so nothing is written there."
    ]
    assert not (tmp_path / "mlruns").exists()


def test_a_job_that_does_not_ask_for_it_writes_nothing(kit: Kit) -> None:
    seen: list[str] = []
    kit.run(incumbent(256)).train(training, seen)
    assert written(seen[0]) == ({}, {})


def test_a_run_that_is_gone_fails_no_training(
    mlflow: ModuleType, kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    def deletes(run: ZeusRun) -> int:
        seen: list[str] = []
        size = training(run, seen)
        mlflow.MlflowClient().delete_run(seen[0])
        return size

    assert kit.run(incumbent(256), **LOG_TO).train(deletes) == 256
    assert kit.ends()[-1].state is State.CONVERGED
    assert caplog.text.count("mlflow did not take the figures") == 1


def test_a_tracker_that_breaks_while_it_is_looked_at_fails_no_training(
    mlflow: ModuleType, kit: Kit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("half imported")

    with monkeypatch.context() as patched:
        patched.setattr(mlflow, "active_run", broken)
        assert kit.run(incumbent(256), **LOG_TO).train(loop) == 256
    assert caplog.text.count("half imported") == 1, "four looks, one line"


def test_only_rank_0_writes(kit: Kit) -> None:
    from airflow_provider_zeus.training.ranks import Ranks

    plan = kit.plan(**LOG_TO)
    for rank, names in ((0, ["mlflow"]), (1, [])):
        run = ZeusRun.from_plan(plan, sink=kit.lines.append, ranks=Ranks(rank, 2, rank, 2))
        kit.runs.append(run)
        assert list(run.progress.trackers._trackers) == names


@pytest.mark.slow  # MLflow makes its tables
def test_a_database_takes_them_as_a_folder_does(
    mlflow: ModuleType, kit: Kit, tmp_path: Path
) -> None:
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    seen: list[str] = []
    kit.run(incumbent(256), **LOG_TO).train(training, seen)
    assert written(seen[0])[0]["zeus/energy_j"] == pytest.approx(kit.last().energy_j)
    assert curve(seen[0], "zeus/acc") == [(0, 0.5), (1, 0.5), (2, 0.9)]


@pytest.fixture
def hanging() -> Iterator[str]:
    """The address of a server that takes connections and answers none."""
    server = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def take() -> None:
        try:
            while True:
                held.append(server.accept()[0])
        except OSError:
            return

    threading.Thread(target=take, daemon=True).start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    for connection in held:
        connection.close()


def test_a_server_that_hangs_holds_no_training(
    mlflow: ModuleType,
    kit: Kit,
    hanging: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Both attempts end; the second asks the server for nothing more."""
    monkeypatch.setattr(trackers, "WRITE_S", 0.5)
    # so that the thread left behind ends with the test
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    run = kit.run(explore(1024, bound_epochs=2.0), incumbent(256), **LOG_TO)
    with mlflow.start_run():
        mlflow.set_tracking_uri(hanging)
        begun_s = time.monotonic()
        assert run.train(loop) == 256
        took_s = time.monotonic() - begun_s
        mlflow.set_tracking_uri((kit.tmp / "mlruns").as_uri())
    assert took_s < 90.0, "MLflow itself waits for two minutes"
    assert [end.state for end in kit.ends()] == [State.GIVEN_UP, State.CONVERGED]
    assert caplog.text.count("mlflow has not answered for 0.5 s") == 1


def test_the_module_is_small() -> None:
    import airflow_provider_zeus.integrations.mlflow as ours

    assert len(Path(ours.__file__).read_text().splitlines()) <= 60
