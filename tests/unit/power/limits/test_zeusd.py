"""Limits set by zeusd for a process that may not,
and given back by the guardian through the same daemon.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.power.limits.helpers import TOKEN, ZeusdClient
from airflow_provider_zeus.power.limits.record import restore_orphans
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
from tests.fake_nvml import FakeNvml, Gpu
from tests.unit.power.conftest import ROOT, records, wait_for
from tests.unit.power.limits.test_guardian import HOLD, WITHIN_S, die_with_guardian

Guardians = Callable[[], list[int]]
ON_ZEUSD = """
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
gpu = NvmlDevice(power_socket="zeusd:" + state_dir + "/zeusd.sock")
"""


@pytest.fixture
def card(nvml: FakeNvml) -> Gpu:
    """The second of two GPUs, whose limits root alone may set; the one that CUDA shows."""
    nvml.add(may_set=2)
    return nvml.add("NVIDIA A40", may_set=2, max_w=300.0)


@pytest.fixture
def serve(
    card: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., str]]:
    """Start the daemon; the value of ``[zeus] power_socket`` with which it is reached."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", card.uuid.decode())
    started: list[subprocess.Popen[str]] = []

    def serve(*options: str) -> str:
        path = tmp_path / "zeusd.sock"
        path.unlink(missing_ok=True)
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.fake_zeusd", str(path), *options],
                cwd=ROOT,
                env={**os.environ, "FAKE_NVML_ROOT": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
        assert started[-1].stdout.readline() == "ready\n"
        return f"zeusd:{path}"

    def end() -> None:
        while started:
            daemon = started.pop()
            daemon.kill()
            daemon.communicate()

    serve.end = end
    yield serve
    end()


@pytest.fixture
def power_socket(serve: Callable[..., str]) -> str:
    return serve()


def test_the_server_of_these_tests_speaks_with_the_daemons_own_client(card: Gpu, serve) -> None:
    zeusd = pytest.importorskip(
        "zeus.utils.zeusd", reason="the public zeus package is not installed"
    )
    path = serve().removeprefix("zeusd:")
    client = zeusd.ZeusdClient(zeusd.ZeusdConfig.uds(path))
    zeusd.require_capabilities(client, control_gpu=True, gpu_ids=[1])
    assert [gpu.name for gpu in client.gpus] == ["Tesla V100-SXM2-16GB", "NVIDIA A40"]
    client.set_power_limit([1], 150_000)
    assert client.get_power_limit() == {0: 250_000, 1: 150_000}


def test_a_process_that_may_not_sets_limits_through_it(
    card: Gpu, nvml: FakeNvml, power_socket: str, tmp_path: Path, guardians: Guardians
) -> None:
    device = NvmlDevice(power_socket=power_socket)
    assert device.limit_range() is not None
    with LimitControl(device, tmp_path) as control:
        for limit_w in (200.0, 125.0):
            assert control.set_w(limit_w)
            assert (nvml.gpu(0).limit_w, card.limit_w) == (250.0, limit_w)
        assert len(guardians()) == 1
    assert card.limit_w == 300.0
    assert guardians() == records(tmp_path) == []
    assert os.getpid() not in nvml.setters


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
def test_the_guardian_gives_back_through_the_daemon(
    card: Gpu,
    nvml: FakeNvml,
    power_socket: str,
    tmp_path: Path,
    start,
    guardians: Guardians,
    signal_number: int,
) -> None:
    trainer = start(ON_ZEUSD + HOLD.replace("WORKERS", "4"))
    workers = trainer.hear()["workers"]
    try:
        assert card.limit_w == 150.0
        trainer.die(signal_number)
        wait_for(lambda: card.limit_w == 300.0, WITHIN_S)
        wait_for(lambda: guardians() == records(tmp_path) == [], WITHIN_S)
        for pid in workers:
            os.kill(pid, 0)
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
    assert len(set(nvml.setters)) == 1, "the daemon alone"


def test_the_record_of_a_training_that_died_with_its_guardian_is_served(
    card: Gpu, power_socket: str, serve, tmp_path: Path, start, guardians: Guardians
) -> None:
    trainer = start(ON_ZEUSD + HOLD.replace("WORKERS", "0"))
    trainer.hear()
    die_with_guardian(trainer, guardians, tmp_path)
    serve.end()
    assert restore_orphans(tmp_path) == 0, "out of reach: the record stays"
    serve()
    assert restore_orphans(tmp_path) == 1
    assert (card.limit_w, records(tmp_path)) == (300.0, [])


def test_a_token_is_read_from_where_the_daemons_own_client_reads_it(
    card: Gpu, serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start, guardians: Guardians
) -> None:
    power_socket = serve("--token", "s3cret")
    assert f"set {TOKEN}" in NvmlDevice(power_socket=power_socket).missing["limit_range"]
    monkeypatch.setenv(TOKEN, "wrong")
    assert f"set {TOKEN}" in NvmlDevice(power_socket=power_socket).missing["limit_range"]
    monkeypatch.setenv(TOKEN, "s3cret")
    trainer = start(ON_ZEUSD + HOLD.replace("WORKERS", "0"))
    trainer.hear()
    assert "s3cret" not in "".join(path.read_text() for path in records(tmp_path))
    trainer.die(signal.SIGKILL)
    wait_for(lambda: card.limit_w == 300.0, WITHIN_S)


def test_a_scope_that_is_missing_is_said(
    card: Gpu,
    serve,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(TOKEN, "s3cret")
    device = NvmlDevice(power_socket=serve("--token", "s3cret", "--scopes", "gpu-read"))
    with LimitControl(device, tmp_path) as control:
        assert not control.set_w(150.0)
    assert "HTTP status 403" in caplog.text
    assert card.limit_w == 300.0


def test_a_daemon_that_only_reads_is_named(serve) -> None:
    device = NvmlDevice(power_socket=serve("--groups", "gpu-read"))
    assert device.limit_range() is None
    assert "API group gpu-control" in device.missing["limit_range"]


def test_a_daemon_that_counts_other_gpus_is_refused(
    card: Gpu, nvml: FakeNvml, power_socket: str
) -> None:
    """In a container with one GPU of two, index 1 here would be another GPU there."""
    path = power_socket.removeprefix("zeusd:")
    with pytest.raises(OSError, match="not the same"):
        ZeusdClient(path, [0], ["NVIDIA A40"]).check()
    ZeusdClient(path, [1], ["Tesla V100-SXM2-16GB", "NVIDIA A40"]).check()


def test_the_drivers_refusal_is_passed_on(card: Gpu, nvml: FakeNvml, power_socket: str) -> None:
    device = NvmlDevice(power_socket=power_socket)
    nvml.fail("nvmlDeviceSetPowerManagementLimit", 15)
    with pytest.raises(DeviceError, match=r"power limit = 150 W: .*HTTP status 500"):
        device.set_limit_w(150.0)
    with pytest.raises(OSError, match="HTTP status 400"):
        ZeusdClient(power_socket.removeprefix("zeusd:"), [7]).set_limit_w(150.0)


def test_several_gpus_at_once(nvml: FakeNvml, card: Gpu, power_socket: str) -> None:
    ZeusdClient(power_socket.removeprefix("zeusd:"), [0, 1]).set_limit_w(150.0)
    assert [nvml.gpu(i).limit_w for i in (0, 1)] == [150.0, 150.0]


def test_a_socket_of_something_else_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with pytest.raises(OSError, match="cannot be reached"):
        ZeusdClient(path, [0]).check()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        if (pid := os.fork()) == 0:
            connection, _ = listener.accept()
            connection.recv(4096)
            connection.sendall(b'{"ok": false}\n')
            connection.close()
            os._exit(0)
        with pytest.raises(OSError, match="cannot be reached"):
            ZeusdClient(path, [0]).check()
        os.waitpid(pid, 0)
