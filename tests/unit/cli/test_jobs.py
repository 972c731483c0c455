"""``airflow zeus jobs``: the list, and settings that the next question follows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Phase, State, Trial
from airflow_provider_zeus.optimizer.policy import choose, learn, prior
from airflow_provider_zeus.optimizer.situation import Situation
from airflow_provider_zeus.plugin.api import reading
from airflow_provider_zeus.store.live_settings import CHANGED
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.pending import remember
from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.store.variables.airflow import AirflowVariables, variable_key
from airflow_provider_zeus.units import SHORT_TASKS
from tests.unit.cli.conftest import Zeus, recur
from tests.unit.store.sql.sqlite_kit import execute
from tests.unit.store.store_kit import DEVICE, JOB, began_alone, outside, report, request

KEY = "zeus-settings:d.train"


def settings(key: str = KEY) -> object:
    """What the Variable holds, without the record of its last change."""
    text = AirflowVariables().get(key)
    return (
        None
        if text is None
        else {n: value for n, value in json.loads(text).items() if n != CHANGED}
    )


def test_tasks_measured_from_outside_are_listed_alone_or_left_out(zeus: Zeus, store: Store) -> None:
    assert SHORT_TASKS in zeus("jobs", "list", "--measured").out, "why a new user finds none"
    recur(store, 1)
    outside(store, 2, dag_id="sales", task_id="load")
    outside(store, 3, dag_id="sales", task_id="send")
    listed = zeus("jobs", "list").out
    assert "d.train" in listed
    assert "sales." not in listed
    assert "2 tasks measured from outside: airflow zeus jobs list --measured" in listed
    done = zeus("jobs", "list", "--measured")
    assert "d.train" not in done.out
    assert [line.split("|")[0].strip() for line in done.out.splitlines()[2:4]] == [
        "sales.load",
        "sales.send",
    ]
    assert done.out.rstrip().endswith(SHORT_TASKS)


def test_the_list_says_where_each_job_stands(zeus: Zeus, store: Store) -> None:
    recur(store, 1)
    recur(store, 2, State.GIVEN_UP)
    store.tell(
        store.ask(request(2, ti_id="d.train-2-again")).trial.key, State.CONVERGED, report(64)
    )
    recur(store, 1, job_id="other [red]")
    AirflowVariables().set(KEY, '{"eta": 0.9}')
    done = zeus("jobs", "list")
    head, _, first, second = done.out.rstrip().split("\n")
    cells = [[cell.strip() for cell in line.split("|")] for line in (head, first, second)]
    assert cells[0] == [
        "job",
        "runs",
        "last state",
        "batch size",
        "energy",
        "time",
        "source",
        "settings",
    ]
    assert cells[1] == [
        "d.train",
        "2",
        "reached target",
        "64",
        "0.667 Wh",
        "18 s",
        "simulated",
        "eta=0.9",
    ]
    assert cells[2][:4] == ["other [red]", "1", "reached target", "32"]
    assert done.status == 0


def test_what_a_run_has_taken_counts_while_its_next_attempt_trains(
    zeus: Zeus, store: Store
) -> None:
    recur(store, 1, State.GIVEN_UP)
    store.ask(request(1, ti_id="d.train-1-again"))
    line = zeus("jobs", "list", "-o", "plain").out.splitlines()[1]
    assert "≥ 0.311 Wh" in line
    assert "≥ 9 s" in line
    assert "simulated" in line


def test_a_job_whose_energy_nothing_measures(zeus: Zeus, store: Store) -> None:
    recur(store, 1, energy_j=None, energy_source=None)
    assert "| energy not measured |" in zeus("jobs", "list").out


def test_one_damaged_variable_hides_no_other_job(
    zeus: Zeus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_ZEUS_DEFAULT", '{"conn_type": "zeus", "extra": {"store": "variable"}}'
    )
    store = open_store(overlap_possible=False)
    names = [f"zeus-log:{job}" for job in ("damaged", "whole")]
    try:
        for name in names:
            recur(store, 1, job_id=name.partition(":")[2])
        AirflowVariables().set(names[0], "{")
        done = zeus("jobs", "list")
        assert "whole" in done.out
        assert done.err.startswith("damaged is left out: Variable 'zeus-log:damaged' does not hold")
        done = zeus("jobs", "list", "-o", "json")
        assert ([job["job"] for job in json.loads(done.out)], done.status) == (["whole"], 1)
        done = zeus("export")
        assert ("whole" in done.out, "damaged is left out" in done.err, done.status) == (
            True,
            True,
            1,
        )
        done = zeus("repair")
        assert ("Expired attempts" in done.out, "damaged is left out" in done.err, done.status) == (
            True,
            True,
            1,
        )
    finally:
        for name in (*names, "zeus-jobs"):
            AirflowVariables().delete(name)


def test_json_keeps_numbers_with_their_units(zeus: Zeus, store: Store) -> None:
    recur(store, 1)
    (job,) = json.loads(zeus("jobs", "list", "-o", "json").out)
    assert job == {
        "job": "d.train",
        "runs": 1,
        "attempts": 1,
        "last_state": "converged",
        "last_batch_size": 32,
        "last_cost": 0.5 * 1120 + 0.5 * 300 * 9,
        "cost_unit": "J",
        "energy_source": "simulated",
        "settings": {},
        "remarks": [],
    }


def test_two_jobs_under_one_id_and_another_device_are_said_of_their_job(
    zeus: Zeus, store: Store
) -> None:
    other = {
        "origin": replace(request(2).origin, dag_id="e"),
        "job": replace(JOB, batch_sizes=[32, 128]),
    }
    recur(store, 1)
    store.tell(store.ask(request(2, ti_id="e-2", **other)).trial.key, State.CONVERGED, report(32))
    recur(store, 3, device_model="A40")
    recur(store, 1, job_id="alone")
    said = [line for line in zeus("jobs", "list").out.splitlines() if line.startswith("d.train: ")]
    assert ["warning: Two jobs" in line for line in said] == [True, False]
    assert "e.train" in said[0]
    assert "A40" in said[1]
    alone, both = json.loads(zeus("jobs", "list", "-o", "json").out)
    assert (alone["remarks"], len(both["remarks"])) == ([], 2)


def test_an_empty_log_says_so(zeus: Zeus, store: Store, home: Path) -> None:
    assert zeus("jobs", "list").out == f"No job in sqlite:{home}/zeus.db yet.\n"
    assert json.loads(zeus("jobs", "list", "-o", "json").out) == []


def test_without_a_log_the_message_goes_to_stderr(zeus: Zeus, home: Path) -> None:
    done = zeus("jobs", "list")
    assert (done.status, done.out) == (1, "")
    assert "no run log yet" in done.err
    assert "Traceback" not in done.err
    assert not (home / "zeus.db").exists()


def test_pinning_and_pausing_change_the_next_decision_and_keep_what_else_is_set(
    zeus: Zeus, store: Store
) -> None:
    recur(store, 1)
    AirflowVariables().set(KEY, '{"eta": 0.9, "of a newer version": 1}')
    assert zeus("jobs", "pin", "d.train", "64").status == 0
    assert settings() == {"eta": 0.9, "of a newer version": 1, "pin_batch_size": 64}
    assert open_store().ask(request(2)).trial.batch_size == 64
    assert zeus("jobs", "pause", "d.train").status == 0
    assert settings() == {
        "eta": 0.9,
        "of a newer version": 1,
        "pin_batch_size": 64,
        "pause_exploration": True,
    }
    assert zeus("jobs", "resume", "d.train").status == 0
    assert settings() == {"eta": 0.9, "of a newer version": 1}, "a pin and a pause end together"


def test_an_excluded_run_teaches_nothing_until_that_is_undone(zeus: Zeus, store: Store) -> None:
    for n in range(1, 5):
        recur(store, n)
    retried = store.ask(request(4, ti_id="again", try_number=2)).trial
    store.tell(retried.key, State.CONVERGED, report(retried.batch_size or 0))
    done = zeus("jobs", "exclude", "d.train", "4")
    assert done.status == 0, done.err
    assert settings() == {"excluded": [4, 5]}, "all tries of the run"
    assert zeus("jobs", "exclude", "d.train", "1").status == 0
    assert settings() == {"excluded": [1, 4, 5]}
    asked = open_store().ask(request(5)).trial
    assert asked.decision.settings == {"excluded": [1, 4, 5]}
    taught = [trial for trial in store.trials("d.train") if trial.number in (2, 3)]
    as_if = choose(
        Situation(JOB, reduce(learn, taught, prior(JOB)), device=DEVICE, seed=asked.decision.seed)
    )
    assert asked.decision == as_if
    assert zeus("jobs", "exclude", "d.train", "4", "--undo").status == 0
    assert settings() == {"excluded": [1]}
    assert zeus("jobs", "exclude", "d.train", "1", "--undo").status == 0
    assert settings() == {}
    done = zeus("jobs", "exclude", "d.train", "99")
    assert (done.status, settings()) == (1, {})
    assert "d.train has no run 99" in done.err


def test_a_job_without_batch_sizes_has_nothing_to_pause(zeus: Zeus, store: Store) -> None:
    store.ask(request(1, job=ZeusJob(eta=0.5), device=None))
    done = zeus("jobs", "pause", "d.train")
    assert (done.status, settings()) == (1, None)
    assert 'nothing to pause. To set no power limit, give its task mode="measure".' in done.err


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (["pin", "d.train", "64"], "batch size pinned to 64"),
        (["pause", "d.train"], "exploration paused"),
        (["resume", "d.train"], "exploration resumed, batch size unpinned"),
        (["reset", "d.train", "-y"], "job reset"),
        (["exclude", "d.train", "1"], "other runs teach nothing"),
    ],
    ids=lambda value: value[0],
)
def test_a_change_records_the_user_of_the_command_and_not_the_author_of_an_earlier_change(
    zeus: Zeus, store: Store, monkeypatch: pytest.MonkeyPatch, command: list[str], what: str
) -> None:
    recur(store, 1)
    by_the_page = {"by": "admin", "at": "2026-05-04T08:00:00+00:00", "what": "exploration paused"}
    AirflowVariables().set(KEY, json.dumps({"eta": 0.9, CHANGED: by_the_page}))
    monkeypatch.setattr("getpass.getuser", lambda: "ann")
    assert zeus("jobs", *command).status == 0
    live, change = reading.live_settings("d.train")
    assert (live["eta"], change["by"]) == (0.9, "cli: ann")
    assert change["what"].startswith(what)
    assert change["at"] > by_the_page["at"]


def test_the_removal_of_the_last_setting_leaves_only_its_record(zeus: Zeus, store: Store) -> None:
    recur(store, 1)
    zeus("jobs", "pause", "d.train")
    assert settings() == {"pause_exploration": True}
    assert zeus("jobs", "resume", "d.train").status == 0
    assert settings() == {}
    assert reading.live_settings("d.train")[1]["what"] == "exploration resumed, batch size unpinned"
    assert zeus("jobs", "resume", "d.train").status == 0


def test_a_name_that_is_no_key_of_a_variable(zeus: Zeus, store: Store) -> None:
    recur(store, 1, job_id="with blank/and slash")
    assert zeus("jobs", "pin", "with blank/and slash", "16").status == 0
    assert settings(variable_key("zeus-settings", "with blank/and slash")) == {"pin_batch_size": 16}
    assert open_store().ask(request(2, job_id="with blank/and slash")).trial.batch_size == 16


@pytest.mark.parametrize("size", ["48", "0", "-16"])
def test_a_batch_size_that_the_job_does_not_have_is_refused(
    zeus: Zeus, store: Store, size: str
) -> None:
    recur(store, 1)
    done = (
        zeus("jobs", "pin", "d.train", "--", size)
        if size.startswith("-")
        else zeus("jobs", "pin", "d.train", size)
    )
    assert done.status == 1
    assert f"BATCH_SIZE = {size}: not in batch_sizes [16, 32, 64]" in done.err
    assert settings() is None


@pytest.mark.parametrize(
    "command",
    [["pin", "16"], ["pause"], ["resume"], ["reset", "-y"], ["exclude", "1"]],
    ids=lambda c: str(c[0]),
)
def test_an_unknown_job_is_an_error_with_near_names(
    zeus: Zeus, store: Store, command: list[str]
) -> None:
    recur(store, 1)
    name, *rest = command
    done = zeus("jobs", name, "d.trian", *rest)
    assert done.status == 1
    assert "'d.trian': no such job" in done.err
    assert "Did you mean d.train." in done.err
    assert settings(variable_key("zeus-settings", "d.trian")) is None


def test_where_no_name_is_near_the_jobs_are_named(zeus: Zeus, store: Store) -> None:
    assert "none yet" in zeus("runs", "zzz").err
    for n in range(12):
        recur(store, 1, job_id=f"j{n:02}")
    err = zeus("runs", "zzz").err
    assert "j00, j01, j02" in err
    assert "and 2 more" in err


@pytest.mark.parametrize(
    "command", [["pin", "16"], ["pause"], ["resume"], ["reset", "-y"]], ids=lambda c: str(c[0])
)
def test_a_variable_that_is_no_object_is_not_overwritten(
    zeus: Zeus, store: Store, command: list[str]
) -> None:
    recur(store, 1)
    name, *rest = command
    # each kind of text by one command; which of them it is, no command asks
    for text in (
        ['{"eta": 0.8,}', "{", "[1]", "3", "null", "[" * 3000] if name == "pin" else ["[1]"]
    ):
        AirflowVariables().set(KEY, text)
        done = zeus("jobs", name, "d.train", *rest)
        assert done.status == 1, text
        assert f"Variable {KEY!r} is no JSON object" in done.err
        assert "It holds" not in done.err, "a text may hold a password"
        assert AirflowVariables().get(KEY) == text
        assert open_store().settings("d.train") == {}


def test_a_variable_of_the_environment_is_an_error(
    zeus: Zeus, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    recur(store, 1)
    monkeypatch.setenv("AIRFLOW_VAR_ZEUS-SETTINGS:D.TRAIN", '{"eta": 0.1}')
    done = zeus("jobs", "pause", "d.train")
    assert done.status == 1
    assert f"Variable {KEY!r} does not keep" in done.err


# --- reset


@pytest.fixture(params=["sqlite", "variable"])
def log(
    request: pytest.FixtureRequest, home: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Store]:
    if request.param == "variable":
        monkeypatch.setenv(
            "AIRFLOW_CONN_ZEUS_DEFAULT", '{"conn_type": "zeus", "extra": {"store": "variable"}}'
        )
    return lambda: open_store(overlap_possible=False)


def explored(trials: list[Trial]) -> list[tuple[int | None, int]]:
    return [(t.planned.round, t.batch_size) for t in trials if t.planned.phase is Phase.EXPLORE]


def test_a_reset_job_learns_from_the_start_and_its_log_stays(
    zeus: Zeus, log: Callable[[], Store]
) -> None:
    for n in range(1, 9):
        recur(log(), n)
    assert log().trials("d.train", last=1)[0].planned.phase is Phase.SAMPLE
    before = log().trials("d.train")
    done = zeus("jobs", "reset", "d.train", "-y")
    assert done.status == 0
    assert log().trials("d.train") == before
    restarted = recur(log(), 9)
    assert (restarted.planned.phase, restarted.planned.round, restarted.batch_size) == (
        Phase.EXPLORE,
        1,
        JOB.default_batch_size,
    )
    assert not restarted.planned.bounded  # no belief that could bound it
    version = restarted.spec["job_version"]
    assert version.startswith("1+20")
    assert version.removeprefix("1+") in done.out
    after = [restarted, *(recur(log(), n) for n in range(10, 17))]
    assert explored(after) == explored(before)
    assert {b for _, b in explored(after)} == set(JOB.batch_sizes)
    assert after[-1].planned.phase is Phase.SAMPLE


def test_a_reset_keeps_the_other_settings(zeus: Zeus, store: Store) -> None:
    recur(store, 1)
    zeus("jobs", "pause", "d.train")
    zeus("jobs", "reset", "d.train", "--yes")
    found = settings()
    assert isinstance(found, dict)
    assert set(found) == {"pause_exploration", "job_version"}


@pytest.mark.parametrize(
    ("answer", "changed"), [("y", True), ("Yes", True), ("n", False), ("", False), (None, False)]
)
def test_a_reset_asks_first(
    zeus: Zeus, store: Store, monkeypatch: pytest.MonkeyPatch, answer: str | None, changed: bool
) -> None:
    recur(store, 1)
    asked = []

    def answered(question: str) -> str:
        asked.append(question)
        if answer is None:
            raise EOFError
        return answer

    monkeypatch.setattr("builtins.input", answered)
    done = zeus("jobs", "reset", "d.train")
    assert "d.train" in asked[0]
    assert done.status == (0 if changed else 1)
    assert (settings() is not None) is changed
    assert ("Nothing was changed." in done.out) is not changed


def test_a_newest_trial_that_cannot_be_read_stops_no_pin(
    zeus: Zeus, store: Store, home: Path
) -> None:
    for n in (1, 2):
        recur(store, n)
    execute(f"sqlite:///{home}/zeus.db", "UPDATE zeus_trial SET spec = '{' WHERE number = 2")
    assert zeus("jobs", "pin", "d.train", "64").status == 0
    assert zeus("jobs", "list").status == 0


def test_a_rename_takes_trials_and_settings_along(zeus: Zeus, store: Store) -> None:
    recur(store, 1)
    recur(store, 2)
    AirflowVariables().set(KEY, '{"eta": 0.9}')
    done = zeus("jobs", "rename", "d.train", "e.train")
    assert (done.status, done.out) == (0, "2 attempts of d.train are now of e.train.\n")
    assert (settings(KEY), settings("zeus-settings:e.train")) == (None, {"eta": 0.9})
    assert store.jobs() == ["e.train"]
    assert store.runs("e", "e.train", last=5)
    assert store.settings("e.train") == {"eta": 0.9}


def test_a_cost_that_waits_to_be_stored_gets_the_new_name(zeus: Zeus, store: Store) -> None:
    recur(store, 1)
    alone = began_alone(2, opened_at=1000.0)
    remember(AirflowVariables(), alone.key, State.CONVERGED, report(), "d.train", trial=alone)
    assert zeus("jobs", "rename", "d.train", "e.train").out.startswith(
        "2 attempts of d.train are now of e.train."
    )
    assert (store.jobs(), AirflowVariables().keys("zeus-untold:")) == (["e.train"], [])


@pytest.mark.parametrize("step", ["copied", "renamed"])
def test_a_rename_that_was_cut_off_is_finished(zeus: Zeus, store: Store, step: str) -> None:
    recur(store, 1)
    AirflowVariables().set(KEY, '{"eta": 0.9}')
    AirflowVariables().set("zeus-settings:e.train", '{"eta": 0.9}')
    if step == "renamed":
        store.rename("d.train", "e.train")
    assert zeus("jobs", "rename", "d.train", "e.train").status == 0
    assert (settings(KEY), settings("zeus-settings:e.train")) == (None, {"eta": 0.9})
    assert store.jobs() == ["e.train"]
    assert zeus("jobs", "rename", "d.train", "e.train").status == 1  # there is nothing left to do


def test_a_rename_that_is_refused_changes_nothing(zeus: Zeus, store: Store) -> None:
    recur(store, 1)
    recur(store, 1, job_id="e.train")
    AirflowVariables().set(KEY, '{"eta": 0.9}')
    done = zeus("jobs", "rename", "d.train", "e.train")
    assert done.status == 1
    assert "Choose a free name" in done.err
    assert (settings(KEY), settings("zeus-settings:e.train")) == ({"eta": 0.9}, None)
    AirflowVariables().set("zeus-settings:e.train", '{"eta": 0.1}')
    assert "have live settings" in zeus("jobs", "rename", "d.train", "e.train").err
    assert store.jobs() == ["d.train", "e.train"]
    AirflowVariables().delete("zeus-settings:e.train")
    assert zeus("jobs", "rename", "e.train", "f.train").status == 0
    assert zeus("jobs", "rename", "d.train", "e.train").status == 0
    assert [t.number for t in store.trials("e.train")] == [1]
    assert "NEW = ''" in zeus("jobs", "rename", "e.train", "").err
    assert "at most 1000 bytes of UTF-8" in zeus("jobs", "rename", "e.train", 334 * "語").err
