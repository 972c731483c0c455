"""Limits set by the root sidecar for a process that may not: what it grants,
and that every limit comes back.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.power.limits.control import LimitControl
from airflow_provider_zeus.power.limits.helpers import SidecarClient
from airflow_provider_zeus.power.limits.record import restore_orphans
from airflow_provider_zeus.power.limits.sidecar_server import Records
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
from tests.fake_nvml import FakeNvml, Gpu
from tests.unit.power.conftest import ROOT, records, wait_for
from tests.unit.power.limits.test_guardian import HOLD, WITHIN_S

Guardians = Callable[[], list[int]]
MODULE = "airflow_provider_zeus.power.limits.sidecar_server"
LIMITS = ROOT / "airflow_provider_zeus" / "power" / "limits"
ALONE = (
    "sidecar_server.py",
    "driver.py",
    "limit_format.py",
)  # what a host without the package needs
ON_SIDECAR = """
from airflow_provider_zeus.power.nvml.gpu import NvmlDevice
gpu = NvmlDevice(power_socket=state_dir + "/power.sock")
"""


class Running:
    """A sidecar in a process that may set limits, as root may."""

    def __init__(self, folder: Path, *options: str, gpus: str = "all") -> None:
        self.folder = folder
        self.socket = folder / "power.sock"
        self.state = folder / "sidecar"
        arguments = [
            "--gpus",
            gpus,
            "--socket",
            str(self.socket),
            "--state",
            str(self.state),
            *options,
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-m", MODULE, *arguments],
            cwd=ROOT,
            env={**os.environ, "FAKE_NVML_ROOT": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said = self.process.stderr.readline()

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    def ask(self, request: Any) -> Any:
        """One request on a connection of its own."""
        with Peer(self.socket) as peer:
            return peer.ask(request)

    @property
    def records(self) -> list[Path]:
        return sorted(self.state.glob("GPU-*"))


class Peer:
    """A connection that this process holds."""

    def __init__(self, path: Path) -> None:
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.settimeout(60)
        self.connection.connect(str(path))
        self.file = self.connection.makefile("rb")

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.connection.close()

    def ask(self, request: Any) -> Any:
        text = request if isinstance(request, bytes) else json.dumps(request).encode()
        self.connection.sendall(text + b"\n")
        return json.loads(self.file.readline())


@pytest.fixture
def card(nvml: FakeNvml) -> Gpu:
    """A GPU whose limit root alone may set: 100 to 250 W, at 250 W."""
    return nvml.add(may_set=2)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def serve(*options: str, **keywords: str) -> Running:
        started.append(Running(tmp_path, *options, **keywords))
        return started[-1]

    yield serve
    for sidecar in started:
        sidecar.process.kill()
        sidecar.process.communicate()


@pytest.fixture
def sidecar(card: Gpu, serve: Callable[..., Running]) -> Running:
    return serve()


def uuid(card: Gpu) -> str:
    return card.uuid.decode()


def set_to(card: Gpu, limit_w: Any) -> dict[str, Any]:
    return {"do": "set", "gpus": [uuid(card)], "limit_w": limit_w}


def hold(workers: int = 0) -> str:
    return ON_SIDECAR + HOLD.replace("WORKERS", str(workers))


# --- a training without the right to set limits


def test_a_process_that_may_not_sets_limits_through_it(
    card: Gpu, sidecar: Running, tmp_path: Path, guardians: Guardians
) -> None:
    with pytest.raises(DeviceError, match=r"no permission.*power_socket"):
        NvmlDevice().set_limit_w(150.0)
    device = NvmlDevice(power_socket=str(sidecar.socket))
    with LimitControl(device, tmp_path) as control:
        for limit_w in (200.0, 125.0):
            assert control.set_w(limit_w)
            assert card.limit_w == limit_w
        assert len(guardians()) == len(sidecar.records) == 1
    assert card.limit_w == 250.0
    device.close()
    wait_for(lambda: sidecar.records == [], WITHIN_S)
    assert guardians() == records(tmp_path) == []


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
def test_it_gives_back_when_the_trainer_dies_whatever_its_workers_do(
    card: Gpu, nvml: FakeNvml, sidecar: Running, start, signal_number: int
) -> None:
    """The workers live on; nobody but the sidecar may set."""
    trainer = start(hold(workers=4))
    workers = trainer.hear()["workers"]
    try:
        assert card.limit_w == 150.0
        trainer.die(signal_number)
        wait_for(lambda: card.limit_w == 250.0, WITHIN_S)
        for pid in workers:
            os.kill(pid, 0)
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
    assert set(nvml.setters) == {sidecar.process.pid}


def test_without_the_guardian_too(card: Gpu, sidecar: Running, start, guardians: Guardians) -> None:
    trainer = start(hold(workers=1))
    (worker,) = trainer.hear()["workers"]
    for pid in (*guardians(), trainer.process.pid):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: card.limit_w == 250.0, WITHIN_S)
    os.kill(worker, signal.SIGKILL)


def test_a_worker_that_lives_on_hides_nothing_where_no_process_is_seen(
    card: Gpu, sidecar: Running, start
) -> None:
    """In another PID namespace the sidecar knows its client by the connection alone:
    forked children close theirs.
    """
    trainer = start(hold(workers=1))
    (worker,) = trainer.hear()["workers"]
    try:
        assert sockets(trainer.process.pid)
        # it may not have run yet since it was forked
        wait_for(lambda: not sockets(worker), WITHIN_S)
    finally:
        os.kill(worker, signal.SIGKILL)
        trainer.die(signal.SIGKILL)


def sockets(pid: int) -> list[str]:
    """What a process holds of the kind that a connection is."""
    return [
        name
        for path in Path(f"/proc/{pid}/fd").iterdir()
        if (name := os.readlink(path)).startswith("socket:")
    ]


def test_a_sidecar_that_dies_restores_when_it_is_back(
    card: Gpu, sidecar: Running, serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    device = NvmlDevice(power_socket=str(sidecar.socket))
    with LimitControl(device, tmp_path) as control:
        assert control.set_w(150.0)
        sidecar.end(signal.SIGKILL)
        assert not control.set_w(125.0)
        assert "cannot be reached" in caplog.text
        assert card.limit_w == 150.0
        serve()
        wait_for(lambda: card.limit_w == 250.0, WITHIN_S)
    assert card.limit_w == 250.0
    assert sidecar.records == []


def test_the_record_of_a_dead_training_and_sidecar_is_served_by_the_next(
    card: Gpu, sidecar: Running, serve, tmp_path: Path, start, guardians: Guardians
) -> None:
    trainer = start(hold())
    trainer.hear()
    sidecar.end(signal.SIGKILL)
    trainer.die(signal.SIGKILL)
    wait_for(lambda: guardians() == [], WITHIN_S)  # it could reach nobody and left its record
    assert (card.limit_w, len(records(tmp_path))) == (150.0, 1)
    assert restore_orphans(tmp_path) == 0
    serve()
    wait_for(lambda: card.limit_w == 250.0, WITHIN_S)
    assert restore_orphans(tmp_path) == 1
    assert (card.limit_w, records(tmp_path)) == (250.0, [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_gives_back_before_it_ends(card: Gpu, sidecar: Running, number: int) -> None:
    with Peer(sidecar.socket) as peer:
        assert peer.ask(set_to(card, 150.0))["ok"]
        assert sidecar.end(number) == 0
    assert card.limit_w == 250.0
    assert not sidecar.socket.exists()


@pytest.mark.parametrize("bound", [False, True])
def test_a_socket_at_which_nobody_listens_means_that_no_limit_is_set(
    card: Gpu, nvml: FakeNvml, tmp_path: Path, caplog: pytest.LogCaptureFixture, bound: bool
) -> None:
    path = tmp_path / "power.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        if bound:
            listener.bind(str(path))
        device = NvmlDevice(power_socket=str(path))
    assert device.limit_range() is None
    assert "cannot be reached" in device.missing["limit_range"]
    assert "power_socket" in caplog.text
    with pytest.raises(DeviceError, match="cannot be reached"):
        device.set_limit_w(150.0)
    assert device.energy_j() is not None, "measuring needs no helper"
    assert nvml.sets == []


def test_a_socket_of_something_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        server = threading.Thread(target=answer)
        server.start()
        with pytest.raises(OSError, match="no power limit sidecar"):
            SidecarClient(str(path), ["GPU-x"]).check()
        server.join()


# --- what it grants


def test_limits_of_every_gpu_served(card: Gpu, sidecar: Running) -> None:
    gpu = {"min_w": 100.0, "max_w": 250.0, "limit_w": 250.0, "held_by": None}
    assert sidecar.ask({"do": "limits"}) == {"ok": True, "gpus": {uuid(card): gpu}}
    with Peer(sidecar.socket) as peer:
        peer.ask(set_to(card, 150.0))
        told = sidecar.ask({"do": "limits"})["gpus"][uuid(card)]
        assert (told["limit_w"], told["held_by"]) == (150.0, os.getpid())


def test_a_gpu_that_is_not_listed_is_refused(nvml: FakeNvml, card: Gpu, serve) -> None:
    other = nvml.add(may_set=2)
    sidecar = serve(gpus=uuid(other))
    answer = sidecar.ask(set_to(card, 150.0))
    assert not answer["ok"]
    assert "is not served here" in answer["error"]
    assert list(sidecar.ask({"do": "limits"})["gpus"]) == [uuid(other)]
    assert nvml.sets == []
    with pytest.raises(OSError, match="does not serve"):
        SidecarClient(str(sidecar.socket), [uuid(card)]).check()


@pytest.mark.parametrize(
    "limit_w", [99.0, 250.6, 300.0, 0.0, -150.0, 1e9, float("inf"), float("nan")]
)
def test_a_limit_out_of_range_never_reaches_the_driver(
    card: Gpu, nvml: FakeNvml, sidecar: Running, limit_w: float
) -> None:
    assert not sidecar.ask(set_to(card, limit_w))["ok"]
    assert nvml.sets == []
    assert sidecar.records == []


def test_a_cap_of_the_administrators_holds(card: Gpu, sidecar: Running) -> None:
    card.limit_w = 200.0
    with Peer(sidecar.socket) as peer:
        assert peer.ask(set_to(card, 150.0))["ok"]
        answer = peer.ask(set_to(card, 225.0))
        assert not answer["ok"]
        assert "Use 100 to 200 W" in answer["error"]
    wait_for(lambda: card.limit_w == 200.0, WITHIN_S)


def test_somebody_elses_limit_is_left_alone(card: Gpu, sidecar: Running) -> None:
    with Peer(sidecar.socket) as peer:
        assert peer.ask(set_to(card, 150.0))["ok"]
        card.limit_w = 180.0
        assert "left alone" in peer.ask({"do": "restore", "gpus": [uuid(card)]})["gpus"][uuid(card)]
    assert card.limit_w == 180.0
    assert sidecar.records == []


def test_a_gpu_has_one_holder_and_is_free_when_that_is_gone(card: Gpu, sidecar: Running) -> None:
    with Peer(sidecar.socket) as one, Peer(sidecar.socket) as other:
        assert one.ask(set_to(card, 150.0))["ok"]
        for request in (set_to(card, 125.0), {"do": "restore", "gpus": [uuid(card)]}):
            assert f"held by process {os.getpid()}" in other.ask(request)["error"]
        assert card.limit_w == 150.0
        assert one.ask({"do": "restore", "gpus": [uuid(card)]})["ok"]
        assert other.ask(set_to(card, 125.0))["ok"]
    wait_for(lambda: card.limit_w == 250.0, WITHIN_S)


def test_several_gpus_are_set_and_given_back_together(nvml: FakeNvml, card: Gpu, serve) -> None:
    other = nvml.add(may_set=2, limit_w=225.0)
    sidecar = serve()
    client = SidecarClient(str(sidecar.socket), [uuid(card), uuid(other)])
    client.check()
    client.set_limit_w(150.0)
    assert (card.limit_w, other.limit_w) == (150.0, 150.0)
    client.restore_w(0.0)
    assert (card.limit_w, other.limit_w) == (250.0, 225.0)
    client.set_limit_w(125.0)
    client.close()
    wait_for(lambda: (card.limit_w, other.limit_w) == (250.0, 225.0), WITHIN_S)


@pytest.mark.parametrize(
    "request_",
    [b"", b"{", b"[]", b"7", b"{}", b'{"do": "reboot"}', b'{"do": "set"}',
     b'{"do": "set", "gpus": "GPU", "limit_w": 1}',
     b'{"do": "set", "gpus": [], "limit_w": 150}', b'{"do": "set", "gpus": [1], "limit_w": 150}', b"\xff\xfe",
     b"[" * 12_000, b'{"do": "set", "gpus": ["GPU-x"], "limit_w": ' + b"9" * 3_000 + b"}",
     b'{"do": "restore"}', b'{"do": "set", "gpus": ["GPU-x"], "limit_w": "many"}'],
)  # fmt: skip
def test_what_is_no_request_is_refused_and_the_next_is_served(
    sidecar: Running, request_: bytes
) -> None:
    with Peer(sidecar.socket) as peer:
        assert not peer.ask(request_)["ok"]
        assert peer.ask({"do": "limits"})["ok"]


def test_a_request_that_comes_in_parts_is_served(card: Gpu, sidecar: Running) -> None:
    text = json.dumps(set_to(card, 150.0)).encode()
    with Peer(sidecar.socket) as peer:
        peer.connection.sendall(text[:20])
        # Sent later, and answered: the part before it has been read.
        assert sidecar.ask({"do": "limits"})["ok"]
        assert peer.ask(text[20:]) == {"ok": True}
        assert card.limit_w == 150.0


def test_a_request_without_end_is_cut_off(card: Gpu, sidecar: Running) -> None:
    with Peer(sidecar.socket) as peer:
        assert peer.ask(set_to(card, 150.0))["ok"]
        with pytest.raises(OSError, match=r"[Pp]ipe|reset"):
            peer.connection.sendall(b"x" * 2**26)
    wait_for(lambda: card.limit_w == 250.0, WITHIN_S)
    assert sidecar.ask({"do": "limits"})["ok"]


def test_a_driver_that_refuses_to_give_back_is_asked_again(
    card: Gpu, nvml: FakeNvml, sidecar: Running
) -> None:
    with Peer(sidecar.socket) as peer:
        assert peer.ask(set_to(card, 150.0))["ok"]
        nvml.fail("nvmlDeviceSetPowerManagementLimit", 999, times=1)
    wait_for(lambda: card.limit_w == 250.0, WITHIN_S)


def test_the_group_alone_may_connect(card: Gpu, serve) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    nobody = pwd.getpwnam("nobody")
    sidecar = serve("--group", "4242")
    assert sidecar.socket.stat().st_mode & 0o777 == 0o660
    sidecar.folder.chmod(0o755)
    for folder in sidecar.folder.parents:
        if folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(folder.stat().st_mode | 0o005)

    def may_connect(group: int) -> bool:
        if (pid := os.fork()) == 0:
            code = 1
            try:
                os.setgroups([])
                os.setgid(group)
                os.setuid(nobody.pw_uid)
                socket.socket(socket.AF_UNIX).connect(str(sidecar.socket))
                code = 0
            finally:
                os._exit(code)
        return os.waitpid(pid, 0)[1] == 0

    assert may_connect(4242)
    assert not may_connect(nobody.pw_gid)


def test_only_one_serves_a_folder_of_records(sidecar: Running, serve) -> None:
    other = serve()
    assert other.process.wait(60) == 1
    assert "another sidecar" in other.said
    assert sidecar.ask({"do": "limits"})["ok"]


def test_it_says_why_it_cannot_start(nvml: FakeNvml, card: Gpu, serve) -> None:
    unknown = serve(gpus="GPU-unknown")
    assert unknown.process.wait(60) == 1
    assert "GPU-unknown" in unknown.said
    nvml.lose_driver()
    assert "nvmlInit: the NVIDIA driver is not loaded" in serve().said


def test_clients_without_number_hinder_nobody_who_is_there(card: Gpu, sidecar: Running) -> None:
    with Peer(sidecar.socket) as holder:
        assert holder.ask(set_to(card, 150.0))["ok"]
        crowd = [Peer(sidecar.socket) for _ in range(100)]
        assert holder.ask(set_to(card, 125.0))["ok"]
        for peer in crowd:
            peer.__exit__()
    wait_for(lambda: card.limit_w == 250.0, WITHIN_S)


def test_a_client_that_never_reads_hinders_nobody(card: Gpu, sidecar: Running) -> None:
    with Peer(sidecar.socket) as silent, Peer(sidecar.socket) as other:
        silent.connection.settimeout(0.5)
        with contextlib.suppress(OSError):
            for _ in range(5000):
                silent.connection.sendall(b'{"do": "limits"}\n')
        assert other.ask(set_to(card, 150.0))["ok"]
    wait_for(lambda: card.limit_w == 250.0, WITHIN_S)


def test_a_record_that_cannot_be_read_is_ignored(card: Gpu, serve, tmp_path: Path) -> None:
    (tmp_path / "sidecar").mkdir(mode=0o700)
    (tmp_path / "sidecar" / f"{uuid(card)}.json").write_text("{")
    sidecar = serve()
    assert f"{uuid(card)}.json is no record" in sidecar.said
    assert "serving" in sidecar.process.stderr.readline()
    assert sidecar.ask(set_to(card, 150.0))["ok"]
    wait_for(lambda: card.limit_w == 250.0, WITHIN_S)


def test_what_comes_where_a_record_is_about_to_be_made_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (victim := tmp_path / "victim").write_text("root's own")
    records = Records(str(tmp_path / "sidecar"))

    def plant(name: str) -> None:
        """After the old file was removed, another process puts a second name of the victim there."""
        (tmp_path / "sidecar" / name).hardlink_to(victim)

    monkeypatch.setattr(records, "remove", plant)
    with pytest.raises(FileExistsError):
        records.write("GPU-1.json", {"found_w": 250.0})
    assert victim.read_text() == "root's own"


def test_a_record_of_an_earlier_boot_is_dropped(
    card: Gpu, nvml: FakeNvml, serve, tmp_path: Path
) -> None:
    card.limit_w = 150.0  # by whoever: the driver forgot what was set before the boot
    (tmp_path / "sidecar").mkdir(mode=0o700)
    record = {"boot_id": "another", "found_w": 250.0, "set_w": [250.0, 150.0]}
    (tmp_path / "sidecar" / f"{uuid(card)}.json").write_text(json.dumps(record))
    sidecar = serve()
    wait_for(lambda: sidecar.records == [], WITHIN_S)
    assert (card.limit_w, nvml.sets) == (150.0, [])


@pytest.mark.parametrize("name", ALONE)
def test_files_for_old_pythons_without_dependencies(name: str) -> None:
    """As far as that can be seen without one: grammar of 3.9,
    nothing imported but its standard library.
    """
    tree = ast.parse((LIMITS / name).read_text(), feature_version=(3, 9))
    imported: set[str] = set()
    beside: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            (beside if node.level else imported).add(str(node.module))
    assert imported
    assert {module.partition(".")[0] for module in imported} <= set(sys.stdlib_module_names)
    assert {f"{module}.py" for module in beside} <= set(ALONE)


def test_it_runs_without_the_package_in_a_folder_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "zeus_power"
    folder.mkdir()
    for name in ALONE:
        shutil.copy(LIMITS / name, folder)
    command = [sys.executable, "-S", "-m", "zeus_power.sidecar_server", "--gpus", "all"]
    command += ["--socket", "/proc/none/s", "--state", "/proc/none/r"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("cannot start: "), done.stderr


def test_the_command_of_the_wheel_starts_it_and_loads_no_airflow() -> None:
    (found,) = entry_points(group="console_scripts", name="zeus-power-sidecar")
    assert found.value == "airflow_provider_zeus.power.limits.sidecar_server:command"
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\nsys.argv = ['zeus-power-sidecar',"
        " '--gpus', 'all', '--socket', '/proc/none/s', '--state', '/proc/none/r']\nfrom"
        " airflow_provider_zeus.power.limits import sidecar_server\nloaded ="
        " {name.partition('.')[0] for name in sys.modules} -"
        " set(sys.stdlib_module_names)\nprint(sorted(loaded - {'__main__'}),"
        " flush=True)\nsidecar_server.command()\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout == "['airflow_provider_zeus']\n"
    assert (done.returncode, "cannot start" in done.stderr) == (1, True)
