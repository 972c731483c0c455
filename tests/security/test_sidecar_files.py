"""Attacks on the power limit sidecar by files: it runs as root,
and its attackers plant names, records and sockets.
"""

# ruff: noqa: F811  # fixtures are imported and named by arguments
from __future__ import annotations

import ast
import json
import os
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fake_nvml import FakeNvml, Gpu
from tests.unit.power.conftest import ROOT, wait_for
from tests.unit.power.limits.test_guardian import WITHIN_S
from tests.unit.power.limits.test_sidecar import Peer, Running, card, serve, set_to, sidecar, uuid  # noqa: F401

NOBODY = 65534
Serve = Callable[..., Running]
as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can make another user's files and processes"
)


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def record(found_w: float, *set_w: float) -> str:
    return json.dumps({"boot_id": boot_id(), "found_w": found_w, "set_w": list(set_w)})


def has_ended(running: Running) -> bool:
    """Whether it refused to start."""
    return "cannot start" in running.said and running.process.wait(60) == 1


def as_nobody(attack: Callable[[], Any]) -> bool:
    """Whether the attack works for another user, of the group that may connect."""
    if (pid := os.fork()) == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(4242)
            os.setuid(NOBODY)
            attack()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def open_way(folder: Path) -> None:
    """Let other users come as far as this folder."""
    for each in (folder, *folder.parents):
        each.chmod(each.stat().st_mode | 0o005)


# --- symlinks


@pytest.mark.parametrize("mode", [0o777, 0o700], ids=["in a folder for all", "in a folder of root"])
@pytest.mark.parametrize(
    "name", ["{}.json.new", "{}.json", "first-{}.json", "first-{}.json.new", "lock"]
)
def test_no_file_is_written_through_a_symlink(
    card: Gpu, serve: Serve, tmp_path: Path, name: str, mode: int
) -> None:
    victim = tmp_path / "victim"
    state = tmp_path / "sidecar"
    victim.write_text("root's own")
    victim.chmod(0o600)
    state.mkdir()
    state.chmod(mode)
    (state / name.format(uuid(card))).symlink_to(victim)
    running = serve()
    if name == "lock":
        assert has_ended(running), "the link is not opened, even where nothing would be written"
    elif not has_ended(running):
        with Peer(running.socket) as peer:
            assert peer.ask(set_to(card, 150.0))["ok"]
        wait_for(lambda: card.limit_w == 250.0, WITHIN_S)
    assert victim.read_text() == "root's own"
    assert stat.S_IMODE(victim.stat().st_mode) == 0o600


def test_a_folder_of_records_that_is_a_symlink_is_refused(
    card: Gpu, serve: Serve, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "sidecar").symlink_to(target)
    assert has_ended(serve())
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_only_a_folder_is_opened_as_the_folder_of_records(
    card: Gpu, serve: Serve, tmp_path: Path, kind: str
) -> None:
    """Whoever opens a pipe that nobody writes to waits for ever; here it is held open,
    so that a sidecar that opens it goes on, and fails later.
    """
    state = tmp_path / "sidecar"
    if kind == "pipe":
        os.mkfifo(state, 0o700)
    else:
        state.touch(0o700)
    held = os.open(state, os.O_RDWR)
    running = serve()
    os.close(held)
    assert has_ended(running)
    assert repr(str(state)) in running.said


# --- planted records


@pytest.mark.parametrize("after_a_start", [False, True])
def test_a_planted_record_never_raises_the_cap(
    card: Gpu, nvml: FakeNvml, serve: Serve, tmp_path: Path, after_a_start: bool
) -> None:
    """Even by another process of root's: no limit above the one found first is ever set."""
    card.limit_w = 180.0
    state = tmp_path / "sidecar"
    if after_a_start:
        serve().end()
    else:
        state.mkdir(mode=0o700)
    (state / f"{uuid(card)}.json").write_text(record(250.0, 250.0, 180.0))
    running = serve()
    wait_for(lambda: running.records == [], WITHIN_S)
    assert (card.limit_w, nvml.sets) == (180.0, [])
    assert "Use 100 to 180 W" in running.ask(set_to(card, 200.0))["error"]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("another user's", marks=as_root),
        *("writable by all", "hard link", "link", "pipe", "huge", "not finite"),
    ],
)
def test_a_record_that_may_be_another_users_is_not_believed(
    card: Gpu, nvml: FakeNvml, serve: Serve, tmp_path: Path, kind: str
) -> None:
    """The record is one that would be believed, but for this: 150 W set, 200 W found,
    of 250 W at the first start.
    """
    state = tmp_path / "sidecar"
    serve().end()
    card.limit_w = 150.0
    planted = state / f"{uuid(card)}.json"
    planted.write_text(record(200.0, 250.0, 150.0))
    if kind == "another user's":
        os.chown(planted, NOBODY, NOBODY)
    elif kind == "writable by all":
        planted.chmod(0o666)
    elif kind == "hard link":
        (tmp_path / "other").hardlink_to(planted)
    elif kind == "link":
        planted.symlink_to(planted.rename(tmp_path / "other"))
    elif kind == "pipe":
        planted.unlink()
        os.mkfifo(planted)
    elif kind == "huge":
        planted.write_text(record(200.0, *[150.0] * 10_000))
    elif kind == "not finite":
        planted.write_text(record(float("nan"), 150.0))
    running = serve()
    assert "is no record" in running.said
    assert running.process.poll() is None
    assert (card.limit_w, nvml.sets) == (150.0, [])


def test_a_link_in_the_place_of_its_lock_is_not_followed(
    card: Gpu, nvml: FakeNvml, serve: Serve, tmp_path: Path
) -> None:
    state = tmp_path / "sidecar"
    state.mkdir(mode=0o700)
    (state / "lock").symlink_to(tmp_path / "victim")
    assert has_ended(serve())
    assert not (tmp_path / "victim").exists()
    assert nvml.sets == []


def test_an_administrators_raise_is_taken_over_on_purpose_alone(
    card: Gpu, serve: Serve, tmp_path: Path
) -> None:
    card.limit_w = 180.0
    running = serve()
    with Peer(running.socket) as peer:
        assert peer.ask(set_to(card, 150.0))["ok"]
        running.end(signal.SIGKILL)
    running = serve()
    wait_for(lambda: card.limit_w == 180.0, WITHIN_S)
    card.limit_w = 250.0
    refused = running.ask(set_to(card, 150.0))["error"]
    first = tmp_path / "sidecar" / f"first-{uuid(card)}.json"
    assert f"remove {first}" in refused
    assert card.limit_w == 250.0
    running.end()
    first.unlink()
    with Peer(serve().socket) as peer:
        assert peer.ask(set_to(card, 200.0))["ok"]
    wait_for(lambda: card.limit_w == 250.0, WITHIN_S)


# --- folders of others


@pytest.mark.parametrize("which", ["sidecar", "sockets"])
@pytest.mark.parametrize(
    "kind",
    [pytest.param("another user's", marks=as_root), "writable by its group", "below one for all"],
)
def test_a_folder_that_others_may_change_is_refused(
    card: Gpu, nvml: FakeNvml, serve: Serve, tmp_path: Path, which: str, kind: str
) -> None:
    folder = tmp_path / "above" / which
    folder.mkdir(parents=True)
    if kind == "another user's":
        os.chown(folder, NOBODY, NOBODY)
    elif kind == "writable by its group":
        folder.chmod(0o775)
    else:
        folder.parent.chmod(0o777)
    option = (
        ("--state", str(folder)) if which == "sidecar" else ("--socket", str(folder / "power.sock"))
    )
    running = serve(*option)
    assert has_ended(running)
    assert "is not safe" in running.said
    assert "chmod go-w" in running.said
    assert (list(folder.iterdir()), nvml.sets) == ([], [])


@as_root
def test_another_user_can_neither_plant_nor_read(card: Gpu, serve: Serve, tmp_path: Path) -> None:
    sockets = tmp_path / "sockets"
    state = tmp_path / "sidecar"
    path = sockets / "power.sock"
    before = os.umask(0)  # as careless as can be
    try:
        running = serve("--group", "4242", "--socket", str(path))
    finally:
        os.umask(before)
    open_way(tmp_path)
    assert "serving" in running.said
    assert as_nobody(lambda: socket.socket(socket.AF_UNIX).connect(str(path)))
    assert not as_nobody(lambda: (state / f"{uuid(card)}.json").write_text(record(250.0, 250.0)))
    assert not as_nobody(lambda: list(state.iterdir()))
    assert not as_nobody(lambda: (sockets / "other.sock").symlink_to("/etc/passwd"))
    assert not as_nobody(lambda: path.rename(sockets / "away"))
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in state.iterdir()} == {0o600}


# --- the socket's name


@pytest.mark.parametrize("kind", ["file", "symlink", "folder"])
def test_only_a_socket_is_replaced_by_its_own(
    card: Gpu, serve: Serve, tmp_path: Path, kind: str
) -> None:
    victim = tmp_path / "victim"
    path = tmp_path / "power.sock"
    victim.write_text("root's own")
    if kind == "file":
        path.write_text("root's own")
    elif kind == "symlink":
        path.symlink_to(victim)
    else:
        path.mkdir()
    running = serve()
    assert has_ended(running)
    assert "is no socket" in running.said
    assert victim.read_text() == "root's own"
    assert path.is_dir() if kind == "folder" else path.read_text() == "root's own"


def test_the_socket_of_a_dead_sidecar_is_replaced(
    card: Gpu, sidecar: Running, serve: Serve
) -> None:
    sidecar.end(signal.SIGKILL)
    assert sidecar.socket.exists()
    assert serve().ask({"do": "limits"})["ok"]
    assert stat.S_IMODE(sidecar.socket.stat().st_mode) == 0o600


def test_an_empty_folder_of_records_is_made_private_and_a_used_one_is_refused(
    card: Gpu, serve: Serve, tmp_path: Path
) -> None:
    """Container engines make the folders that they mount, with mode 755."""
    state = tmp_path / "sidecar"
    state.mkdir(mode=0o755)
    serve().end()
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    state.chmod(0o755)
    refused = serve()
    assert has_ended(refused)
    assert "chmod it to 700" in refused.said


# --- what the examples mount


def test_every_example_mounts_the_sockets_folder_read_only() -> None:
    for name, service in yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())[
        "services"
    ].items():
        for mount in service.get("volumes", []):
            if mount.split(":")[0].startswith("/run/zeus"):
                assert mount.endswith(":ro") or name == "power-limits", f"{name}: {mount}"
    tree = ast.parse((ROOT / "dags" / "zeus_kubernetes.py").read_text())
    mounts = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and ast.unparse(n.func) == "k8s.V1VolumeMount"
    ]
    options = [{k.arg: ast.unparse(k.value) for k in mount.keywords} for mount in mounts]
    (socket_mount,) = [each for each in options if each["mount_path"] == "'/run/zeus'"]
    assert socket_mount["read_only"] == "True"
    words = (ROOT / "docs" / "power.md").read_text()
    assert "/run/zeus` mounted read-only" in " ".join(words.split())
