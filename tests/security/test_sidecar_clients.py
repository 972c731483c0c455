"""Attacks on the power limit sidecar by those who may connect:
none may delay or deny the others.
"""

# ruff: noqa: F811  # fixtures are imported and named by arguments
from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_provider_zeus.power.limits.driver import Nvml
from airflow_provider_zeus.power.limits.helpers import LimitHelper, SidecarClient, ZeusdClient
from airflow_provider_zeus.power.limits.sidecar_server import (
    AT_ONCE,
    PER_S,
    Limit,
    Records,
    Sidecar,
)
from tests.fake_nvml import FakeNvml, Gpu
from tests.unit.power.conftest import wait_for
from tests.unit.power.limits.test_sidecar import Peer, Running, card, serve, set_to, sidecar, uuid  # noqa: F401

PROMISED_S = 2.0
BUSY_S = 60.0  # for a round in which the host itself was late
ROUNDS = 3
Serve = Callable[..., Running]

# A process that connects, as user and with as many connections as it is asked to, sends a line on
# each and stays.
PROCESS = """
import os, socket, sys, time
path, line, flood = sys.argv[1], sys.argv[4].encode(), sys.argv[5]
user, connections = int(sys.argv[2]), int(sys.argv[3])
if user:
    os.setgroups([]); os.setgid(4242); os.setuid(user)
peers = []
for _ in range(connections):
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(30)
    peer.connect(path)
    peers.append(peer)
said = b""
if line:
    peers[0].sendall(line + b"\\n")
    said = peers[0].recv(65536)
print(said.decode().strip(), flush=True)
while flood == "flood":
    for peer in peers:
        peer.setblocking(False)
        try:
            peer.send(b'{"do": "limits"}\\n' * 200)
            peer.recv(65536)
        except OSError:
            pass
time.sleep(600)
"""

# A process that connects without end, asks nothing and keeps some hundred connections.
CONNECTIONS = """
import socket, sys
peers = []
print(flush=True)
while True:
    peer = socket.socket(socket.AF_UNIX)
    peer.setblocking(False)
    try:
        peer.connect(sys.argv[1])
        peers.append(peer)
    except BlockingIOError:
        peer.close()
    if len(peers) > 500:
        for other in peers[:250]:
            other.close()
        del peers[:250]
"""

# Many processes of one user, each with one connection on which it asks without end.
CROWD = """
import os, socket, sys, time
for _ in range(100):
    if os.fork() == 0:
        while os.getppid() != 1:
            with socket.socket(socket.AF_UNIX) as peer:
                try:
                    peer.connect(sys.argv[1])
                    while peer.send(b'{"do": "limits"}\\n') and peer.recv(65536):
                        pass
                except OSError:
                    pass
        os._exit(0)
print(flush=True)
time.sleep(600)
"""


class Process:
    """A client in a process of its own."""

    def __init__(
        self,
        path: Path,
        *,
        user: int = 0,
        connections: int = 1,
        ask: Any = None,
        flood: bool = False,
    ) -> None:
        line = json.dumps(ask) if ask is not None else ""
        arguments = [str(path), str(user), str(connections), line, "flood" if flood else ""]
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", PROCESS, *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        said = self.process.stdout.readline().strip()
        self.answer = json.loads(said) if said else None

    def die(self) -> None:
        self.process.kill()
        self.process.wait(60)
        assert self.process.stdout
        self.process.stdout.close()


@pytest.fixture
def run() -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def run(path: Path, **keywords: Any) -> Process:
        started.append(Process(path, **keywords))
        return started[-1]

    yield run
    for process in started:
        process.die()


def give_back_times(
    card: Gpu, sidecar: Running, run: Callable[..., Process], enough_s: float
) -> list[float]:
    """How long it takes from a holder's death until its limit is back [s], in some rounds."""
    taken_s = []
    for _ in range(ROUNDS):
        holder = run(sidecar.socket, ask=set_to(card, 150.0))
        assert holder.answer == {"ok": True}
        assert card.limit_w == 150.0
        os.kill(holder.process.pid, signal.SIGKILL)
        taken_s.append(wait_for(lambda: card.limit_w == 250.0, BUSY_S))
        if taken_s[-1] <= enough_s:
            break
    return taken_s


# --- time


@pytest.mark.parametrize("within_s", [BUSY_S, pytest.param(PROMISED_S, marks=pytest.mark.nightly)])
def test_a_flood_delays_no_restore(
    card: Gpu, sidecar: Running, run: Callable[..., Process], within_s: float
) -> None:
    """The seconds are nightly's: here the host may be late.

    Served in turn the flood alone would take minutes.
    """
    run(sidecar.socket, connections=4, flood=True)
    run(sidecar.socket, connections=1, flood=True)
    card.slow_s = 0.1
    assert min(give_back_times(card, sidecar, run, within_s)) <= within_s


@pytest.mark.parametrize(
    ("slow_s", "within_s"),
    [
        pytest.param(600.0, BUSY_S, id="hangs", marks=pytest.mark.slow),
        pytest.param(600.0, PROMISED_S, id="hangs, by the clock", marks=pytest.mark.nightly),
        pytest.param(0.1, PROMISED_S, id="slow, by the clock", marks=pytest.mark.nightly),
    ],
)
def test_the_slow_driver_of_one_gpu_delays_no_other(
    card: Gpu,
    nvml: FakeNvml,
    serve: Serve,
    run: Callable[..., Process],
    slow_s: float,
    within_s: float,
) -> None:
    other = nvml.add(may_set=2)
    running = serve()
    with Peer(running.socket) as one, Peer(running.socket) as two, Peer(running.socket) as three:
        assert one.ask(set_to(other, 150.0))["ok"]
        other.slow_s = slow_s
        one.connection.sendall(json.dumps(set_to(other, 125.0)).encode() + b"\n")
        for waiting in (two, three):
            waiting.connection.sendall(
                json.dumps({"do": "restore", "gpus": [uuid(other)]}).encode() + b"\n"
            )
        assert min(give_back_times(card, running, run, within_s)) <= within_s
        assert running.ask({"do": "limits"})["ok"]
    assert running.end() == (0 if slow_s < 1 else 1)


def test_a_lost_gpu_keeps_no_limit_of_another(
    card: Gpu, nvml: FakeNvml, sidecar: Running, serve: Serve
) -> None:
    lost = nvml.add(may_set=2)
    with Peer(sidecar.socket) as peer:
        assert peer.ask(set_to(card, 150.0))["ok"]
        sidecar.end(signal.SIGKILL)
    lost.lost = 1
    running = serve()
    assert "GPU 1 is not served" in running.said
    wait_for(lambda: card.limit_w == 250.0, BUSY_S)
    assert list(running.ask({"do": "limits"})["gpus"]) == [uuid(card)]


def test_a_log_that_is_not_read_any_more_ends_no_sidecar(card: Gpu, sidecar: Running) -> None:
    assert sidecar.process.stderr
    sidecar.process.stderr.close()
    for _ in range(3):
        with Peer(sidecar.socket) as peer:
            assert peer.ask(set_to(card, 150.0)) == {"ok": True}
        wait_for(lambda: card.limit_w == 250.0, BUSY_S)
    sidecar.process.stderr = None  # which the fixture reads
    assert sidecar.end() == 0


def test_a_log_that_nobody_reads_holds_nothing_up(card: Gpu, sidecar: Running) -> None:
    """Its pipe is soon full; the line after those that no longer fit says how many they were."""
    log = sidecar.process.stderr
    rounds = 40
    assert log is not None
    fcntl.fcntl(log, fcntl.F_SETPIPE_SZ, 4096)

    def is_held_and_restored() -> None:
        with Peer(sidecar.socket) as peer:
            assert peer.ask(set_to(card, 150.0)) == {"ok": True}
        wait_for(lambda: card.limit_w == 250.0, BUSY_S)

    for _ in range(rounds):
        is_held_and_restored()
    lines = os.read(log.fileno(), 4096).decode().splitlines()
    is_held_and_restored()
    said, _, dropped = log.readline().rpartition(": ")
    assert said == "lines of this log that were dropped, since it was not read"
    assert len(lines) + int(dropped) == 2 * rounds, "who holds it, and what was restored"
    assert sidecar.end() == 0


def test_a_signal_ends_it_though_nobody_reads_its_log(card: Gpu, sidecar: Running) -> None:
    log = sidecar.process.stderr
    assert log is not None
    fcntl.fcntl(log, fcntl.F_SETPIPE_SZ, 4096)
    with Peer(sidecar.socket) as peer:
        for _ in range(30):
            assert peer.ask({"do": "restore", "gpus": [uuid(card)]})["ok"]
            assert peer.ask(set_to(card, 150.0))["ok"]
        assert card.limit_w == 150.0
        assert sidecar.end() == 0
    assert card.limit_w == 250.0


def test_an_error_of_its_own_gives_limits_back_before_it_ends() -> None:
    restored: list[str] = []
    limit: Any = SimpleNamespace(uuid="GPU-x", restore=lambda: restored.append("GPU-x"))
    wake, woken = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        server = Sidecar([limit], listener, wake, woken)
        turn = server._turn
        turns = iter([MemoryError("of any kind")])

        def fails_once() -> None:
            for error in turns:
                raise error
            turn()

        server._turn = fails_once  # type: ignore[method-assign]
        assert server.run() == 1
    assert restored == ["GPU-x"]
    os.close(wake)
    os.close(woken)


@pytest.mark.parametrize("is_new", [False, True], ids=["one connection", "a new one each time"])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_who_asks_without_end_waits_and_no_other_does(
    card: Gpu, serve: Serve, run: Callable[..., Process], tmp_path: Path, is_new: bool
) -> None:
    sidecar = serve("--group", "4242")
    for each in (tmp_path, *tmp_path.parents):
        each.chmod(each.stat().st_mode | 0o005)
    begun_s = time.monotonic()
    asked = AT_ONCE + 20
    with Peer(sidecar.socket) as flood:
        for _ in range(asked):
            assert (sidecar.ask({"do": "limits"}) if is_new else flood.ask({"do": "limits"}))[
                "ok"
            ], "late, not refused"
        assert time.monotonic() - begun_s > 19 / PER_S
        flood.connection.sendall(b'{"do": "limits"}\n' * 3000)  # for a minute
        assert run(sidecar.socket, user=65534, ask=set_to(card, 150.0)).answer == {"ok": True}
        flood.connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            asked += flood.connection.recv(1 << 22).count(b"\n")
        assert asked < AT_ONCE + 3020, "it still waits"


ASKS = """
import socket, sys
path, often = sys.argv[1], int(sys.argv[2])
peer = socket.socket(socket.AF_UNIX)
peer.connect(path)
peer.sendall(b'{"do": "limits"}\\n' * often)
answers = peer.makefile("rb")
for _ in range(often):
    answers.readline()
"""


def test_two_processes_of_a_user_ask_no_faster_than_one(sidecar: Running) -> None:
    begun_s = time.monotonic()
    for often in (AT_ONCE, AT_ONCE // 2):
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", ASKS, str(sidecar.socket), str(often)], check=True
        )
    assert time.monotonic() - begun_s > (AT_ONCE // 2 - 1) / PER_S


# --- places


def test_many_connections_of_one_process_lock_no_other_out(
    card: Gpu, sidecar: Running, run: Callable[..., Process]
) -> None:
    run(sidecar.socket, connections=200)
    with Peer(sidecar.socket) as peer:
        assert peer.ask({"do": "limits"})["ok"]
    assert run(sidecar.socket, ask=set_to(card, 150.0)).answer == {"ok": True}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_many_processes_of_one_user_push_out_no_other_user(
    card: Gpu, serve: Serve, run: Callable[..., Process], tmp_path: Path
) -> None:
    running = serve("--group", "4242")
    for each in (tmp_path, *tmp_path.parents):
        each.chmod(each.stat().st_mode | 0o005)
    with Peer(running.socket) as idle, Peer(running.socket) as holder:
        assert idle.ask({"do": "limits"})["ok"]
        assert holder.ask(set_to(card, 150.0))["ok"]
        for _ in range(4):
            run(running.socket, user=65534, connections=40)
        assert idle.ask({"do": "limits"})["ok"], "the same connection still"
        assert holder.ask(set_to(card, 125.0))["ok"]
        answer = run(running.socket, ask={"do": "limits"}).answer
        assert answer is not None
        assert answer["ok"]
        assert card.limit_w == 125.0


def test_a_training_that_lost_its_place_goes_on(
    card: Gpu, sidecar: Running, run: Callable[..., Process]
) -> None:
    training = SidecarClient(str(sidecar.socket), [uuid(card)])
    training.check()
    with contextlib.ExitStack() as crowd:
        for _ in range(80):  # of this very process
            crowd.enter_context(Peer(sidecar.socket))
        training.set_limit_w(150.0)
        assert card.limit_w == 150.0
        training.restore_w(250.0)
    training.close()
    assert card.limit_w == 250.0


@pytest.mark.slow
def test_a_crowd_of_the_same_user_locks_no_training_out(card: Gpu, sidecar: Running) -> None:
    """With more processes than there are places, and a driver that takes its time."""
    arguments = [sys.executable, "-I", "-S", "-c", CROWD, str(sidecar.socket)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, start_new_session=True) as crowd:
        try:
            assert crowd.stdout
            crowd.stdout.readline()
            time.sleep(1.0)
            card.slow_s = 0.1
            for _ in range(3):
                training = SidecarClient(str(sidecar.socket), [uuid(card)])
                training.check()
                training.set_limit_w(150.0)
                training.restore_w(250.0)
                assert card.limit_w == 250.0
                training.close()
        finally:
            os.killpg(crowd.pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_flood_of_connections_locks_no_training_out(card: Gpu, sidecar: Running) -> None:
    """Not even while more wait to be taken than the kernel lets wait."""
    flood = [
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", CONNECTIONS, str(sidecar.socket)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    try:
        for process in flood:
            assert process.stdout
            process.stdout.readline()
        time.sleep(1.0)
        for _ in range(5):
            training = SidecarClient(str(sidecar.socket), [uuid(card)])
            training.check()
            training.set_limit_w(150.0)
            training.close()
            wait_for(lambda: card.limit_w == 250.0, BUSY_S)
    finally:
        for process in flood:
            process.kill()
            process.communicate()


# --- holds


@pytest.mark.parametrize("limit_w", [99.0, 300.0, float("nan")])
def test_a_refused_set_takes_no_hold(card: Gpu, sidecar: Running, limit_w: float) -> None:
    with Peer(sidecar.socket) as greedy, Peer(sidecar.socket) as training:
        assert not greedy.ask(set_to(card, limit_w))["ok"]
        assert sidecar.ask({"do": "limits"})["gpus"][uuid(card)]["held_by"] is None
        assert training.ask(set_to(card, 150.0))["ok"]
    wait_for(lambda: card.limit_w == 250.0, BUSY_S)


def test_refused_sets_without_end_deny_no_other_the_gpu(card: Gpu, sidecar: Running) -> None:
    """Refused only once the driver was asked:
    an administrator's cap has come since the sidecar's start.
    """
    card.limit_w = 180.0
    card.slow_s = 0.02
    stop = threading.Event()
    granted = []

    def grab() -> None:
        with Peer(sidecar.socket) as peer:
            while not stop.is_set():
                granted.append(peer.ask(set_to(card, 220.0))["ok"])

    greedy = [threading.Thread(target=grab) for _ in range(3)]
    for thread in greedy:
        thread.start()
    try:
        wait_for(lambda: len(granted) > 3, BUSY_S)
        for _ in range(5):
            assert set_and_give_back(sidecar, set_to(card, 150.0)) == {"ok": True}
            time.sleep(0.05)
    finally:
        stop.set()
        for thread in greedy:
            thread.join()
    assert not any(granted)


def set_and_give_back(sidecar: Running, request: dict[str, Any]) -> Any:
    """Its answer, and the limit given back by the time that this returns."""
    with Peer(sidecar.socket) as peer:
        answer = peer.ask(request)
        peer.ask({"do": "restore", "gpus": request["gpus"]})
    return answer


def test_a_set_that_fails_at_one_gpu_holds_none_and_leaves_none_changed(
    card: Gpu, nvml: FakeNvml, serve: Serve
) -> None:
    other = nvml.add(may_set=2)
    running = serve()
    nvml.fail("nvmlDeviceSetPowerManagementLimit", 999, times=1)
    with Peer(running.socket) as greedy, Peer(running.socket) as training:
        for gpus in ([uuid(card), uuid(other)], [uuid(card), "GPU-unknown"]):
            assert not greedy.ask({"do": "set", "gpus": gpus, "limit_w": 150.0})["ok"]
            wait_for(lambda: (card.limit_w, other.limit_w) == (250.0, 250.0), BUSY_S)
        for gpu in (card, other):
            assert training.ask(set_to(gpu, 150.0))["ok"]


def test_waiting_for_a_gpu_is_served_in_turn(card: Gpu, sidecar: Running) -> None:
    """Two connections that ask without end for the same GPU keep no third from having it."""
    stop = threading.Event()

    def grab() -> None:
        with Peer(sidecar.socket) as peer:
            while not stop.is_set():
                peer.ask(set_to(card, 125.0))
                peer.ask({"do": "restore", "gpus": [uuid(card)]})

    greedy = [threading.Thread(target=grab) for _ in range(2)]
    for thread in greedy:
        thread.start()
    try:
        with Peer(sidecar.socket) as training:
            wait_for(lambda: training.ask(set_to(card, 150.0))["ok"], BUSY_S)
            time.sleep(0.1)
            assert card.limit_w == 150.0
    finally:
        stop.set()
        for thread in greedy:
            thread.join()


def test_no_request_but_its_own_ends_a_hold(card: Gpu, sidecar: Running) -> None:
    with Peer(sidecar.socket) as holder, Peer(sidecar.socket) as other:
        assert holder.ask(set_to(card, 150.0))["ok"]
        assert holder.ask({"do": "limits", "gpus": [uuid(card)]})["ok"]
        assert not holder.ask(set_to(card, 99.0))["ok"]
        assert not holder.ask({"do": "restore", "gpus": [uuid(card), "GPU-unknown"]})["ok"]
        for request in (
            {"do": "restore", "gpus": [uuid(card)]},
            set_to(card, 200.0),
            set_to(card, 99.0),
        ):
            assert "held by process" in other.ask(request)["error"]
        assert card.limit_w == 150.0
        assert sidecar.ask({"do": "limits"})["gpus"][uuid(card)]["held_by"] == os.getpid()


def test_an_administrators_lowest_limit_holds(card: Gpu, nvml: FakeNvml, serve: Serve) -> None:
    running = serve("--lowest-share", "0.6")
    assert running.ask({"do": "limits"})["gpus"][uuid(card)]["min_w"] == 150.0
    with Peer(running.socket) as peer:
        assert "Use 150 to 250 W" in peer.ask(set_to(card, 100.0))["error"]
        assert nvml.sets == []
        for limit_w in (149.6, 150.0):
            assert peer.ask(set_to(card, limit_w))["ok"]
            assert card.limit_w == 150.0


# --- the limit found


NEAR_W = st.floats(-1.0, 1.0)
ANY_W = st.floats(100.0, 250.5)
CLIENTS = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("set near the present limit"), CLIENTS, NEAR_W),
    st.tuples(st.just("set"), CLIENTS, ANY_W),
    st.tuples(st.just("restore"), CLIENTS, st.none()),
    st.tuples(st.just("leave"), CLIENTS, st.none()),
    st.tuples(st.just("die"), st.none(), NEAR_W),
    st.tuples(st.just("kill the sidecar"), st.none(), st.none()),
)
RATCHET = [("set near the present limit", 0, -0.49), ("leave", 0, None)] * 4


def test_clients_that_ask_for_a_little_less_lower_no_limit_for_good(
    card: Gpu, sidecar: Running
) -> None:
    for lower_w in (0.49, 0.6, 0.49):
        with Peer(sidecar.socket) as peer:
            assert peer.ask(set_to(card, 250.0 - lower_w))["ok"]
        wait_for(lambda: sidecar.records == [], BUSY_S)
        assert card.limit_w == 250.0


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(found_w=250.0, steps=RATCHET)
@example(
    found_w=249.3,
    steps=[("set", 0, 150.0), *RATCHET, ("die", None, -0.3), ("kill the sidecar", None, None)],
)
@given(found_w=st.sampled_from([250.0, 249.3, 200.25]), steps=st.lists(STEPS, max_size=12))
def test_after_the_last_client_the_limit_is_exactly_the_one_found(
    card: Gpu, serve: Serve, found_w: float, steps: list[tuple[str, int | None, float | None]]
) -> None:
    """Whatever clients asked for, and however they ended,
    provided that nobody else sets a limit.
    """
    card.limit_w = found_w
    running = serve()
    clients: dict[int | None, Peer] = {}
    for what, client, watts in steps:
        if what == "kill the sidecar":
            running.end(signal.SIGKILL)
            running = serve()
            clients.clear()
        elif what == "leave":
            if client in clients:
                clients.pop(client).__exit__()
        elif what == "die":
            holder = Process(running.socket, ask=set_to(card, card.limit_w + (watts or 0.0)))
            holder.die()
        else:
            if client not in clients:
                clients[client] = Peer(running.socket)
            limit_w = (
                card.limit_w + (watts or 0.0) if what == "set near the present limit" else watts
            )
            request = (
                set_to(card, limit_w)
                if what != "restore"
                else {"do": "restore", "gpus": [uuid(card)]}
            )
            # which is refused where another client holds it, or it is out of range
            clients[client].ask(request)
        assert card.limit_w <= found_w
    for peer in clients.values():
        peer.__exit__()
    wait_for(lambda: running.records == [], BUSY_S)
    assert card.limit_w == found_w
    assert running.end() == 0
    shutil.rmtree(running.state)  # the next example begins as after a boot


@pytest.mark.parametrize("rounded", [math.floor, math.ceil, round])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_driver_that_rounds_keeps_no_limit_for_good(
    tmp_path: Path, rounded: Callable[[float], int], is_killed: bool
) -> None:
    """It has another limit in force than the one that was set, which is ours all the same."""
    tmp_path.chmod(0o700)
    nvml = RoundingNvml(rounded)
    for limit_w in (150.5, 150.9, 150.1, 249.4):
        limit = Limit(nvml, "GPU-1", Records(str(tmp_path)), 0.0)
        limit.change(limit_w)
        assert nvml.in_force_w == limit.limit_w == rounded(limit_w)
        if is_killed:
            limit = Limit(nvml, "GPU-1", Records(str(tmp_path)), 0.0)
        limit.restore()
        assert nvml.in_force_w == 250.0


class RoundingNvml(Nvml):
    """A driver that sets whole watts."""

    def __init__(self, rounded: Callable[[float], int]) -> None:
        self._rounded = rounded
        self.in_force_w = 250.0

    def limit_w(self, uuid: str) -> float:
        return self.in_force_w

    def range_w(self, uuid: str) -> tuple[float, float]:
        return 100.0, 250.0

    def set_limit_w(self, uuid: str, limit_w: float) -> None:
        self.in_force_w = float(self._rounded(limit_w))


def test_a_limit_of_another_that_is_near_the_one_found_is_left_alone(
    card: Gpu, sidecar: Running
) -> None:
    with Peer(sidecar.socket) as peer:
        assert peer.ask(set_to(card, 150.0))["ok"]
        card.limit_w = 249.8
    wait_for(lambda: sidecar.records == [], BUSY_S)
    assert card.limit_w == 249.8


def test_a_request_near_the_limit_found_changes_nothing(card: Gpu, sidecar: Running) -> None:
    with Peer(sidecar.socket) as peer:
        for limit_w in (249.51, 250.0, 250.49):
            assert peer.ask(set_to(card, limit_w))["ok"]
            assert card.limit_w == 250.0


# --- the training's side


@pytest.mark.parametrize(
    ("helper", "part"),
    [
        (SidecarClient, b""),
        (SidecarClient, b" "),
        (ZeusdClient, b""),
        (ZeusdClient, b"H"),
        (ZeusdClient, b"HTTP/1.1 200 OK\r\n"),
    ],
    ids=["silent sidecar", "sidecar in drops", "silent zeusd", "zeusd in drops", "zeusd in lines"],
)
def test_a_socket_that_never_answers_holds_no_training_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helper: Callable[..., LimitHelper], part: bytes
) -> None:
    """One time limit for the whole request, not one for each of its bytes;
    and no second attempt.
    """
    monkeypatch.setattr(importlib.import_module(helper.__module__), "ANSWER_S", 0.5)
    connections = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "silent.sock"))
        listener.listen()

        def drip() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connections.append(connection)
                    with contextlib.suppress(OSError):
                        while part:
                            connection.sendall(part)
                            time.sleep(0.05)

        server = threading.Thread(target=drip, daemon=True)
        server.start()
        with pytest.raises(OSError, match="cannot be reached"):
            helper(str(tmp_path / "silent.sock"), ["GPU-x"]).set_limit_w(150.0)
        wait_for(lambda: bool(connections), BUSY_S)  # its thread may begin late
        assert len(connections) == 1
        listener.shutdown(socket.SHUT_RDWR)
        server.join()
    for connection in connections:
        connection.close()


@pytest.mark.parametrize(
    "said", ['{"ok": true, "gpus": 5}', '{"ok": true, "gpus": null}', '{"ok": true}', "[" * 100_000]
)
def test_an_answer_of_any_kind_is_an_error_that_a_training_survives(
    tmp_path: Path, said: str
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "odd.sock"))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(4096)
                connection.sendall(said.encode() + b"\n")

        server = threading.Thread(target=answer)
        server.start()
        with pytest.raises(OSError, match="no power limit sidecar"):
            SidecarClient(str(tmp_path / "odd.sock"), ["GPU-x"]).check()
        server.join()


@pytest.mark.parametrize(
    "said",
    [
        '{"enabled_api_groups": null}',
        '{"enabled_api_groups": ["gpu-control"], "gpus": 7}',
        '{"enabled_api_groups": ["gpu-control"], "gpus": [7]}',
        "[" * 60_000,
    ],
)
def test_any_answer_of_a_zeusd_is_an_error_that_a_training_survives(
    monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    zeusd = ZeusdClient("/nowhere.sock", [0], ["V100"])
    monkeypatch.setattr(zeusd, "_call", lambda *_: said.encode())
    with pytest.raises(OSError, match="is no zeusd"):
        zeusd.check()


def test_an_answer_without_end_is_cut_off(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "endless.sock"))
        listener.listen()

        def pour() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                while True:
                    connection.sendall(b"x" * 65536)

        server = threading.Thread(target=pour)
        server.start()
        with pytest.raises(OSError, match="no power limit sidecar"):
            SidecarClient(str(tmp_path / "endless.sock"), ["GPU-x"]).check()
        server.join()
