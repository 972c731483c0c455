"""Which job of an earlier try a task goes on with. Its note in Airflow, and its folder, may be anybody's."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.model.trial import Origin
from airflow_provider_zeus.operators.left_job import JobNotes, LeftJob, left_job, note_in, plan_in
from airflow_provider_zeus.store.base import AskAnswer
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.training.protocol.plan import Plan
from tests.unit.operators.test_task_state import TaskState, context
from tests.unit.store.store_kit import request
from tests.unit.training.process.test_slurm import fake

KEY = "zeus_slurm_job"


class Site:
    """A task whose first try submitted job 7 and was killed."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "exchange"
        self.folder = self.root / "zeus-1"
        self.folder.mkdir(parents=True, mode=0o700)
        self.state = TaskState(folder / "task-state")
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.cancelled = folder / "cancelled"
        fake(self.bin, "squeue", "echo RUNNING")
        fake(self.bin, "sacct", "exit 1")
        fake(self.bin, "scancel", f'echo "$@" >> {self.cancelled}')
        origin = Origin(dag_id="d", run_id="r1", task_id="train")
        asked = request(ti_id="ti-1", origin=origin)
        self.plan = plan_of(open_store().ask(asked))
        plan_in(self.folder, 1).write_text(self.plan.to_json())
        notes = JobNotes.of(context(1, self.state), None)
        assert notes is not None
        notes.write("Submitted batch job 7", self.plan, self.folder)

    def left(self, **changes: Any) -> LeftJob | None:
        given = context(2, self.state)
        for name, value in changes.items():
            setattr(given["ti"], name, value)
        return left_job(given, str(self.bin / "sbatch"), os.environ, "zeus_default")

    def held(self) -> dict[str, Any]:
        found: dict[str, Any] = self.state.get(KEY)
        return found

    def note(self, *, in_folder: bool = True, **changes: Any) -> None:
        """Change the note in Airflow, and in the folder too."""
        held = {**self.held(), **changes}
        self.state.set(KEY, held)
        if in_folder:
            note_in(Path(held["folder"])).write_text(json.dumps(held))

    def cancels(self) -> str:
        return self.cancelled.read_text() if self.cancelled.exists() else ""


def plan_of(asked: AskAnswer) -> Plan:
    trial = asked.trial
    return Plan(
        job_id=trial.job_id,
        ti_id=trial.key.ti_id,
        number=trial.number,
        first_attempt=trial.key.attempt,
        spec=trial.spec,
        attempts=trial.decision.attempts,
    )


@pytest.fixture
def site(
    airflow_home: Path, tmp_path: Path, empty_log: Path, monkeypatch: pytest.MonkeyPatch
) -> Site:
    shutil.copy(empty_log, own := tmp_path / "zeus.db")
    log = json.dumps({"conn_type": "sqlite", "host": str(own)})
    monkeypatch.setenv("AIRFLOW_CONN_ZEUS_DEFAULT", log)
    monkeypatch.setenv("AIRFLOW__ZEUS__ATTEMPT_ROOT", str(tmp_path / "exchange"))
    return Site(tmp_path)


def test_it_goes_on_with_its_attempt_and_its_plan(site: Site) -> None:
    left = site.left()
    assert left is not None
    assert (left.job.number, left.folder) == ("7", site.folder)
    assert (left.first.key.ti_id, left.first.number) == ("ti-1", site.plan.number)
    assert left.plans == [site.plan]
    assert site.cancels() == ""


def test_what_the_training_writes_into_its_plan_decides_nothing(site: Site) -> None:
    spec = {**site.plan.spec, "require_target": True}
    changed = replace(site.plan, job_id="other", ti_id="other", spec=spec, heartbeat_s=1e6)
    plan_in(site.folder, 1).write_text(changed.to_json())
    left = site.left()
    assert left is not None
    assert left.plans == [site.plan]


def elsewhere(site: Site) -> None:
    other = site.root.parent / "zeus-2"
    shutil.copytree(site.folder, other)
    site.note(folder=str(other))


def by_dots(site: Site) -> None:
    site.note(folder=f"{site.folder}/../zeus-1")


def link(site: Site) -> None:
    other = site.root.parent / "real"
    site.folder.rename(other)
    site.folder.symlink_to(other)


def linked_note(site: Site) -> None:
    note = note_in(site.folder)
    note.rename(site.root / "real")
    note.symlink_to(site.root / "real")


def second_name(site: Site) -> None:
    os.link(note_in(site.folder), site.root / "second")


def pipe(site: Site) -> None:
    note_in(site.folder).unlink()
    os.mkfifo(note_in(site.folder))


def long_note(site: Site) -> None:
    with open(note_in(site.folder), "a") as file:
        file.write(" " * 20_000)


def deep(site: Site) -> None:
    site.state.set(KEY, json.loads("[" * 500 + "]" * 500))


ODD: list[Callable[[Site], Any]] = [
    lambda site: site.state.set(KEY, "text"),
    lambda site: site.state.set(KEY, {}),
    lambda site: site.note(in_folder=False, line="Submitted batch job 8"),
    lambda site: note_in(site.folder).write_text(json.dumps({**site.held(), "line": "8"})),
    lambda site: site.note(line="Submitted batch job 7; touch /tmp/x"),
    lambda site: site.note(line=7),
    lambda site: site.note(plans=[]),
    lambda site: site.note(plans="1"),
    lambda site: site.note(more=1),
    lambda site: site.folder.chmod(0o755),
    elsewhere,
    by_dots,
    link,
    linked_note,
    second_name,
    pipe,
    long_note,
    deep,
]


@pytest.mark.parametrize("change", ODD)
def test_an_odd_note_names_no_job_and_cancels_none(
    site: Site, change: Callable[[Site], Any], caplog: pytest.LogCaptureFixture
) -> None:
    change(site)
    assert site.left() is None
    assert site.cancels() == ""
    assert "touch" not in caplog.text
    assert "zeus-" not in caplog.text.replace("zeus-call", "")


def without_attempt(site: Site) -> None:
    site.note(ti_id="ti-9")


def odd_plan(site: Site) -> None:
    plan_in(site.folder, 1).write_text("[" * 100_000)


def no_plan(site: Site) -> None:
    plan_in(site.folder, 1).unlink()


def no_log(site: Site) -> None:
    os.environ["AIRFLOW_CONN_ZEUS_DEFAULT"] = json.dumps(
        {"conn_type": "sqlite", "host": str(site.root / "none.db")}
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda site: site.note(max_tries=98), "the task was cleared"),
        (without_attempt, "the run log does not hold its attempt"),
        (odd_plan, "its plan cannot be read"),
        (no_plan, "No such file"),
        (no_log, "none.db"),
    ],
)
def test_a_job_that_cannot_be_gone_on_with_is_cancelled(
    site: Site, change: Callable[[Site], Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    change(site)
    assert site.left() is None
    assert site.cancels() == "7\n"
    assert not site.folder.exists()
    assert why in caplog.text
    assert site.left() is None, "and once"
    assert site.cancels() == "7\n"


@pytest.mark.parametrize("other", [{"task_id": "other"}, {"run_id": "r2"}, {"map_index": 3}])
def test_the_attempt_of_another_task_instance_is_not_gone_on_with(
    site: Site, other: dict[str, Any]
) -> None:
    """Whoever may write to the state of one task reaches the attempts of no other."""
    assert site.left(**other) is None


def test_a_folder_that_the_task_itself_removed_leaves_nothing(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(site.folder)
    assert site.left() is None
    assert (site.cancels(), caplog.text) == ("", "")


def test_a_signal_while_it_looks_cancels_the_job(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("airflow_provider_zeus.operators.left_job.open_store", stop)
    with pytest.raises(KeyboardInterrupt):
        site.left()
    assert site.cancels() == "7\n"


@pytest.mark.parametrize(
    ("try_number", "max_tries", "noted"), [(1, 0, False), (1, 1, True), (2, 1, False), (2, 2, True)]
)
def test_a_job_is_noted_if_a_try_follows(
    tmp_path: Path, try_number: int, max_tries: int, noted: bool
) -> None:
    given = context(try_number, TaskState(tmp_path / "state"), max_tries)
    assert (JobNotes.of(given, None) is not None) == noted
    assert JobNotes.of(context(try_number, None, max_tries), None) is None


def test_a_state_that_cannot_be_written_leaves_no_note(site: Site) -> None:
    class Down:
        def set(self, key: str, value: Any) -> None:
            raise ConnectionError("the api-server is gone")

    note_in(site.folder).unlink()
    notes = JobNotes.of(context(1, Down()), None)
    assert notes is not None
    notes.write("Submitted batch job 7", site.plan, site.folder)
    assert not note_in(site.folder).exists(), "so that a killed worker cancels the job"
