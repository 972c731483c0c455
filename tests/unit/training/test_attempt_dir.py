"""The folder of an attempt: fresh, removed when it is given up, kept with its model,
swept when its process died.
"""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.training.attempt_dir import (
    AttemptDir,
    KeptFolder,
    kept_by_the_dead,
    remove_orphans,
)
from airflow_provider_zeus.training.run import ZeusRun
from tests.unit.training.conftest import Kit, explore, incumbent, loop


def saves(run: ZeusRun) -> str:
    """Writes a checkpoint before it trains, as a framework does,
    and returns the path of its model.
    """
    path = run.attempt_dir / "model.txt"
    assert list(run.attempt_dir.iterdir()) == [], "it is fresh"
    path.write_text(str(run.batch_size))
    loop(run)
    return str(path)


def test_the_kept_attempts_folder_stays_and_the_others_goes(kit: Kit, tmp_path: Path) -> None:
    root = tmp_path / "models"
    run = kit.run(explore(1024, bound_epochs=1.0), incumbent(256), attempt_root=str(root))
    path = Path(run.train(saves))
    assert path.read_text() == "256"
    assert list(root.iterdir()) == [path.parent], "neither the other folder nor a marker"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("alone", [True, False])
def test_a_run_that_fails_leaves_nothing(kit: Kit, tmp_path: Path, alone: bool) -> None:
    root = tmp_path / "models"
    run = kit.run(incumbent(256), attempt_root=str(root))

    def train(run: ZeusRun) -> None:
        for _ in run.epochs():
            (run.attempt_dir / "half").mkdir()
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        train(run) if alone else run.train(train)
    run.close()
    assert list(root.iterdir()) == []


def test_without_any_temporary_folder_the_setting_is_named(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: ["/proc"])
    with pytest.raises(JobSpecError, match=r"attempt_root.*no folder can be made"):
        _ = kit.run().attempt_dir


def test_a_loop_alone_keeps_its_folder(kit: Kit, tmp_path: Path) -> None:
    path = Path(saves(kit.run(attempt_root=str(tmp_path / "models"))))
    assert path.read_text() == "256"
    assert list((tmp_path / "models").iterdir()) == [path.parent]


@pytest.mark.parametrize("inside", [True, False])
def test_behind_a_loop_alone_it_is_the_kept_attempts_and_no_later_run_removes_it(
    kit: Kit, tmp_path: Path, inside: bool
) -> None:
    run = kit.run(attempt_root=str(tmp_path / "models"))
    before = run.attempt_dir if inside else None
    loop(run)
    path = run.attempt_dir / "model"
    path.write_text("kept")
    assert before in (None, path.parent), "it is the same folder"
    assert list((tmp_path / "models").iterdir()) == [path.parent], "no marker stays"
    run.close()
    assert remove_orphans(tmp_path / "models") == 0
    assert path.read_text() == "kept"


@pytest.mark.parametrize("name", ["unlink", "close", "ftruncate"])
def test_a_marker_that_cannot_be_removed_costs_neither_value_nor_model(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "the root is read-only now")

    run = kit.run(
        explore(1024, bound_epochs=1.0), incumbent(256), attempt_root=str(tmp_path / "models")
    )

    def train(run: ZeusRun) -> str:
        path = saves(run)
        monkeypatch.setattr(*((Path, "unlink") if name == "unlink" else (os, name)), refused)
        return path

    path = Path(run.train(train))
    monkeypatch.undo()
    assert path.read_text() == "256"
    assert remove_orphans(tmp_path / "models") == 0 or name == "ftruncate"


def test_the_environment_names_the_root_where_the_training_runs(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUS_ATTEMPT_ROOT", str(tmp_path / "here"))
    assert (
        Path(kit.run(attempt_root="/of/another/host").train(saves)).parents[1] == tmp_path / "here"
    )


def test_by_default_it_lies_among_temporary_files(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert Path(kit.run().train(saves)).parents[1] == tmp_path


def test_a_root_that_cannot_be_used_is_named(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JobSpecError, match=r"\[zeus\] attempt_root = '.*file/models'"):
        kit.run(attempt_root=str(tmp_path / "file" / "models")).train(saves)


HOLDS = """
import os, sys
from airflow_provider_zeus.training.attempt_dir import AttemptDir
folder = AttemptDir(sys.argv[1])
(folder.path / "weights").write_text("half")
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Callable[[], subprocess.Popen[str]]:
    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDS, str(tmp_path)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    return start


def test_what_a_killed_process_left_is_removed_by_the_next_run_and_what_a_living_one_has_is_not(
    holder: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    with holder() as dead, holder() as living:
        assert dead.stdout is not None
        assert living.stdout is not None
        gone = Path(dead.stdout.readline().strip())
        there = Path(living.stdout.readline().strip())
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        mine = AttemptDir(str(tmp_path))
        assert not gone.exists()
        assert (there / "weights").read_text() == "half"
        assert mine.path.is_dir()
        mine.remove()
        living.kill()
    assert remove_orphans(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_what_another_host_or_a_trap_left_is_let_be(tmp_path: Path) -> None:
    kept = tmp_path / "precious"
    kept.mkdir()
    (kept / "model").write_text("mine")
    for name, text in (("other", "another-host"), ("empty", ""), ("binary", "\udcff")):
        (tmp_path / f"zeus-attempt-{name}").mkdir()
        (tmp_path / f"zeus-attempt-{name}.lock").write_text(text, errors="surrogateescape")
    (tmp_path / "zeus-attempt-link").symlink_to(kept)
    (tmp_path / "zeus-attempt-link.lock").symlink_to(kept / "model")
    os.mkfifo(tmp_path / "zeus-attempt-fifo.lock")
    (tmp_path / "zeus-attempt-folder.lock").mkdir()
    # what a marker of ours holds, behind a link
    (tmp_path / "ours").write_text(os.uname().nodename)
    (tmp_path / "zeus-attempt-planted").mkdir()
    (tmp_path / "zeus-attempt-planted.lock").symlink_to(tmp_path / "ours")
    assert remove_orphans(tmp_path) == 0
    assert kept_by_the_dead(tmp_path) == []
    (tmp_path / "zeus-attempt-link.lock").unlink()
    (tmp_path / "zeus-attempt-link.lock").write_text(os.uname().nodename)
    remove_orphans(tmp_path)
    assert (kept / "model").read_text() == "mine", "a link is not followed"


def test_a_marker_that_another_process_leases_holds_up_no_run(tmp_path: Path) -> None:
    """Whoever leases a file lets others wait for it when they open it: 45 s on most hosts."""
    marker = tmp_path / "zeus-attempt-leased.lock"
    marker.write_text(os.uname().nodename)
    marker.with_suffix("").mkdir()
    with marker.open() as file:

        def give_up(*_: object) -> None:
            """The kernel asks for it once somebody opens the file."""
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)

        before = signal.signal(signal.SIGIO, give_up)
        try:
            try:
                fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            except OSError as error:
                pytest.skip(f"no leases in this folder: {error}")
            assert remove_orphans(tmp_path) == 0, "it does not wait until the lease ends"
        finally:
            signal.signal(signal.SIGIO, before)
    assert remove_orphans(tmp_path) == 1
    assert [*tmp_path.iterdir()] == []


KILLED = {  # where a process is killed -> the code that kills it there
    "before it locked its marker": "module.fcntl.flock = die",
    "before it wrote to its marker": "module.os.write = die",
    "before it made its folder": "module.private_files.new_folder = die",
    "before it kept its folder": "at = 'keep'",
    "after it kept its folder": "at = 'kept'",
}

DIES = """
import os, signal, sys
from airflow_provider_zeus.training import attempt_dir as module
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
at = ""
{at}
folder = module.AttemptDir(sys.argv[1])
(folder.path / "weights").write_text("trained")
if at == "keep":
    die()
folder.keep()
die()
"""


@pytest.mark.parametrize("where", KILLED)
def test_wherever_a_process_is_killed_the_next_run_leaves_a_kept_folder_alone_and_nothing_else(
    tmp_path: Path, where: str
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", DIES.format(at=KILLED[where]), str(tmp_path)]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    assert [*tmp_path.iterdir()] != []
    remove_orphans(tmp_path)
    if where != "after it kept its folder":
        assert [*tmp_path.iterdir()] == []
        return
    (weights,) = tmp_path.glob("*/weights")
    assert weights.read_text() == "trained"
    assert kept_by_the_dead(tmp_path) == [KeptFolder(weights.parent, len("trained"))]


def test_a_marker_that_was_removed_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run takes the empty marker of a process that is slow for one that was left behind."""
    real = tempfile.mkstemp
    calls = []

    def slow(*arguments: object) -> tuple[int, str]:
        descriptor, name = real(*arguments)  # type: ignore[call-overload]
        calls.append(name)
        if len(calls) == 1:
            remove_orphans(tmp_path)
            assert not Path(name).exists()
        return descriptor, name

    monkeypatch.setattr("tempfile.mkstemp", slow)
    folder = AttemptDir(str(tmp_path))
    assert len(calls) == 2
    assert folder.path.with_suffix(".lock") == Path(calls[1])
    assert Path(calls[1]).read_text() == os.uname().nodename
    folder.remove()
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_is_kept_by_a_living_run_is_not_named(tmp_path: Path) -> None:
    folder = AttemptDir(str(tmp_path))
    folder.keep()
    assert kept_by_the_dead(tmp_path) == []
    folder.release()
    assert [*tmp_path.iterdir()] == [folder.path]


def test_a_folder_that_is_released_twice_touches_no_other_file(tmp_path: Path) -> None:
    """The end of a run may be written once more after it has failed,
    and its descriptor's number be used again.
    """
    folder = AttemptDir(str(tmp_path / "models"))
    folder.keep()
    folder.release()
    other = tmp_path / "other"
    with other.open("w") as file:
        file.write("of the author")
        file.flush()
        folder.release()
        assert os.fstat(file.fileno()).st_size == len("of the author"), "neither emptied nor closed"
    assert other.read_text() == "of the author"
