"""The training's side: in a folder that others may write,
no planted link leads its results to a file of its user.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from airflow_provider_zeus.model.trial import Observation, State
from airflow_provider_zeus.training.protocol.environment import (
    Document,
    OtherRank,
    Results,
    with_memory_of_others,
)
from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.untrusted_files import open_plain, opened_folder, read_plain
from tests.result_files import read_result

VICTIM = "ssh-ed25519 AAAA\nthe last line has no line feed"
ALICE = 61001  # no account of this host has it
END = ResultLine(
    kind="end",
    start_id="a",
    attempt=1,
    state=State.FAILED,
    reason="MemoryError: full",
    observation=Observation(out_of_memory=True),
)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the training's user that no result may go to."""
    path = tmp_path / "authorized_keys"
    path.write_text(VICTIM)
    return path


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that others may write."""
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o777)
    return path


def memory_name(shared: Path) -> str:
    """The name that another rank's want of memory is left under:
    everyone who knows the task instance knows it.
    """
    OtherRank({"ZEUS_RESULT": f"{shared}/"}, "ti", 1)(END)
    (path,) = shared.iterdir()
    path.unlink()
    return path.name


@pytest.mark.parametrize("suffix", ["", ".1", ".tmp"])
def test_a_want_of_memory_replaces_a_planted_link(shared: Path, victim: Path, suffix: str) -> None:
    name = memory_name(shared)
    (shared / f"{name}{suffix}").symlink_to(victim)
    OtherRank({"ZEUS_RESULT": f"{shared}/"}, "ti", 1)(END)
    assert victim.read_text() == VICTIM
    assert not (shared / name).is_symlink()
    failed = ResultLine(
        kind="end", start_id="a", attempt=1, state=State.FAILED, observation=Observation()
    )
    assert with_memory_of_others(failed, f"{shared}/", "ti").reason == "rank 1: MemoryError: full"


@pytest.mark.parametrize("name", ["return.json", ".return.json.{pid}"])
def test_an_xcom_document_replaces_a_planted_link(shared: Path, victim: Path, name: str) -> None:
    (shared / name.format(pid=os.getpid())).symlink_to(victim)
    Document(shared / "return.json")(ResultLine(kind="final", start_id="a"))
    assert victim.read_text() == VICTIM
    assert json.loads((shared / "return.json").read_text())["zeus"]["lines"]


@pytest.mark.parametrize("plant", ["symlink", "hard link", "dangling", "pipe", "folder"])
def test_a_result_file_that_was_planted_is_not_written_and_the_training_goes_on(
    shared: Path, victim: Path, plant: str
) -> None:
    path = shared / "result.jsonl"
    target = victim.with_name("new")
    {
        "symlink": lambda: path.symlink_to(victim),
        "hard link": lambda: os.link(victim, path),
        "dangling": lambda: path.symlink_to(target),
        "pipe": lambda: os.mkfifo(path),
        "folder": lambda: (path / "deep").mkdir(parents=True),
    }[plant]()
    results = Results({"ZEUS_RESULT": str(path)})
    results(END)
    assert victim.read_text() == VICTIM
    assert not target.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")
def test_a_result_file_of_another_user_is_not_appended_to(shared: Path) -> None:
    path = shared / "result.jsonl"
    path.write_text(VICTIM)
    os.chown(path, ALICE, ALICE)
    Results({"ZEUS_RESULT": str(path)})(END)
    assert path.read_text() == VICTIM


def test_an_own_result_file_is_appended_to(shared: Path) -> None:
    for _ in range(2):
        Results({"ZEUS_RESULT": str(shared / "result.jsonl")})(END)
    assert len(list(read_result(shared / "result.jsonl"))) == 2


def test_a_file_that_is_swapped_while_it_is_opened_is_the_checked_one_or_none(
    shared: Path, victim: Path
) -> None:
    """One thread puts a plain file, a link to the victim,
    a hard link and a pipe there in turn; another one reads.
    """
    path = shared / "a"
    half = shared / "half"
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            half.write_text("own")
            half.replace(path)
            half.symlink_to(victim)
            half.replace(path)
            os.mkfifo(half)
            half.replace(path)
            os.link(victim, half)
            half.replace(path)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        read = set()
        for _ in range(3000):
            try:
                with opened_folder(shared) as folder:
                    read.add(read_plain("a", 100, folder=folder, owners={os.geteuid()}))
            except (OSError, ValueError):
                continue
    finally:
        stop.set()
        swapping.join()
    assert read <= {b"own", b""}


def test_a_folder_that_is_swapped_after_it_was_opened_is_still_the_opened_one(
    shared: Path, victim: Path
) -> None:
    (shared / "authorized_keys").write_text("own")
    with opened_folder(shared) as folder:
        shared.rename(shared.with_name("moved"))
        shared.symlink_to(victim.parent)
        with open(open_plain(victim.name, folder=folder), "rb") as file:
            assert file.read() == b"own"
        with pytest.raises(OSError, match="directory"), opened_folder(shared):
            pass
