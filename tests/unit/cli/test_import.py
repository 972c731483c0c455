"""``airflow zeus import``: all that an export holds comes back, and a bad file writes nothing."""

from __future__ import annotations

import copy
import json
import os
import random
import re
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.cli.export_lines import (
    FORMAT,
    MOST_FIELDS,
    MOST_LINE,
    Skipped,
    line_of,
    line_of_part,
    parts_of,
)
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.event import Event, Held, Looked
from airflow_provider_zeus.model.trial import State, TrialKey
from airflow_provider_zeus.model.trial_fields import flat
from airflow_provider_zeus.optimizer.policy import learn, prior
from airflow_provider_zeus.store.base import RunTrials
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.sql.store import SqlStore, Store
from airflow_provider_zeus.store.variables.store import VariableStore
from tests.unit.cli.conftest import Zeus, recur
from tests.unit.store.store_kit import JOB, Clock, DictPort, report, request

Lines = list[dict[str, Any]]


@pytest.fixture
def other(home: Path, empty_log: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty log behind Connection ``other``."""
    path = str(shutil.copy(empty_log, home / "other.db"))
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "sqlite", "host": path}))
    return SqlStore(f"sqlite:///{path}", create=True)


def written(home: Path, text: str) -> str:
    (home / "in.jsonl").write_text(text)
    return str(home / "in.jsonl")


def text_of(lines: Lines) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


STORES: dict[str, Callable[[Path], Store]] = {
    "sql": lambda path: SqlStore(f"sqlite:///{path}", create=True, now=Clock()),
    "variables": lambda path: VariableStore(DictPort(), overlap_possible=False, now=Clock()),
}


@pytest.mark.parametrize(
    ("source", "target", "seed"),
    [("sql", "variables", 0), ("variables", "sql", 1), ("sql", "sql", 0), ("sql", "sql", 1)],
)
def test_another_log_holds_believes_and_decides_the_same(
    zeus: Zeus, home: Path, monkeypatch: pytest.MonkeyPatch, seed: int, source: str, target: str
) -> None:
    """Trials, decisions, power over time, profiles and how far the log has got:
    two exports are equal.
    """
    draw = random.Random(seed)
    job = replace(
        JOB, policy=draw.choice(["zeus", "knowledge_gradient"]), log_to=["mlflow"], eta=0.25
    )
    stores = {"a": STORES[source](home / "a.db"), "b": STORES[target](home / "b.db")}
    monkeypatch.setattr(
        "airflow_provider_zeus.store.open.open_store", lambda conn_id, **_: stores[conn_id]
    )
    log = stores["a"]
    for n in range(1, draw.randint(12, 18)):
        trial = log.ask(request(n, job=job)).trial
        state = draw.choice(
            [State.CONVERGED] * 4 + [State.FAILED, State.GIVEN_UP, State.NO_DATA, State.EXHAUSTED]
        )
        figures: dict[str, Any] = {
            "epochs": draw.uniform(1, 9),
            "returned": f'{{"n": {n}}}',
            "learning_rate": 1 / 3,
        }
        log.tell(
            trial.key,
            state,
            report(trial.batch_size, profile=1, points=3, **figures),
            reason=f"= {n}\n",
        )
        if state is State.GIVEN_UP and len(trial.decision.in_order) > 1:
            second = log.begin(TrialKey(trial.key.ti_id, 2), trial.key)
            log.tell(second.key, State.CONVERGED, report(second.batch_size, profile=1, points=3))
    held = {
        "d": Held(
            number=3,
            events=(
                Event(kind="lost", since=3, sentence="s", remedy="r", figures={"lost_j": 1.5}),
            ),
        )
    }
    log.look("d.train", lambda *_: Looked(events=held, begun=()), last=1)
    path = str(home / "log.jsonl")
    assert zeus("export", "--conn-id", "a", "--output", path).status == 0
    done = zeus("import", path, "--conn-id", "b")
    assert (done.status, done.err) == (0, "")
    first, second_export = (
        zeus("export", "--conn-id", name, "--format", "json").out for name in ("a", "b")
    )
    if target == "variables":  # keep what the newest two runs returned
        first, second_export = (
            re.sub(r'"returned": [^,]*,', "", text) for text in (first, second_export)
        )
    assert second_export == first
    assert stores["b"].events("d.train") == held
    before = log.trials("d.train")
    after = stores["b"].trials("d.train")
    beliefs = [reduce(learn, trials, prior(job)).to_json() for trials in (before, after)]
    assert beliefs[0] == beliefs[1]
    again = zeus("import", path, "--conn-id", "b")
    assert again.out.startswith(f"d.train: 0 attempts imported, {len(before)} in the log already\n")
    one, two = (stores[name].ask(request(90, job=job)) for name in ("a", "b"))
    assert one.trial.decision == two.trial.decision
    assert (one.profile, one.previous, one.limits_found_w) == (
        two.profile,
        two.previous,
        two.limits_found_w,
    )


def test_an_open_trial_is_left_out_and_comes_later(
    zeus: Zeus, store: Store, other: Store, home: Path
) -> None:
    recur(store, 1)
    key = store.ask(request(2, ti_id="open")).trial.key
    path = str(home / "log.jsonl")
    zeus("export", "--output", path)
    done = zeus("import", path, "--conn-id", "other")
    assert "1 attempt of the file left out: not closed." in done.out
    assert [t.number for t in other.trials("d.train")] == [1]
    own = recur(other, 3)
    assert own.number == 3, "its number stays free"
    store.tell(key, State.CONVERGED, report())
    zeus("export", "--output", path)
    assert (
        "d.train: 1 attempt imported, 1 in the log already"
        in zeus("import", path, "--conn-id", "other").out
    )
    assert [t.number for t in other.trials("d.train")] == [1, 2, 3]


def test_a_log_with_a_history_of_its_own_refuses_all(
    zeus: Zeus, store: Store, other: Store, home: Path
) -> None:
    recur(store, 1)
    recur(store, 1, job_id="a.train")
    recur(other, 7)
    path = str(home / "log.jsonl")
    zeus("export", "--output", path)
    refused = zeus("import", path, "--conn-id", "other")
    assert refused.status == 1
    assert "Row 1 of 'd.train' is another one in this log" in refused.err
    assert other.jobs() == ["d.train"]
    assert zeus("jobs", "rename", "d.train", "d.before", "--conn-id", "other").status == 0
    assert zeus("import", path, "--conn-id", "other").status == 0
    assert other.jobs() == ["a.train", "d.before", "d.train"]


def test_a_field_of_a_job_that_is_not_known_is_left_out_and_named_once(
    zeus: Zeus, store: Store, other: Store, home: Path
) -> None:
    for n in (1, 2):
        recur(store, n)
    lines: Lines = [
        json.loads(line) for line in zeus("export", "--format", "json").out.splitlines()
    ]
    for line in lines:
        for trial in line["run"]["trials"] if "run" in line else ():
            trial["spec"] |= {"colour": "red", "shape\x1b": [1]}
    done = zeus("import", written(home, text_of(lines)), "--conn-id", "other")
    assert (
        done.out.count(
            "Fields of jobs that this version does not know, left out: colour, shape\\x1b."
        )
        == 1
    )
    assert [t.spec for t in other.trials("d.train")] == [t.spec for t in store.trials("d.train")]


# --- hostile files


@pytest.fixture(scope="module")
def told() -> Lines:
    """The lines of an export of one trial."""
    log = STORES["variables"](Path())
    log.tell(log.ask(request(1)).trial.key, State.CONVERGED, report(points=2, profile=1))
    parts = [line_of_part(part) for part in log.history("d.train")]
    return [
        json.loads(line)
        for line in (line_of("format", FORMAT), *parts, line_of("end", {"trials": 1}))
    ]


def read(text: str) -> Skipped:
    skipped = Skipped()
    for _ in parts_of(text.encode().splitlines(keepends=True), skipped):
        pass
    return skipped


def changed(**values: object) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        lines[3]["run"]["trials"][0].update(values)

    return change


def spec(**values: object) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        lines[3]["run"]["trials"][0]["spec"].update(values)

    return change


def of_profile(**values: object) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        lines[2]["profile"].update(values)

    return change


def of_head(**values: object) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        lines[1]["job"].update(values)

    return change


def event(**values: object) -> dict[str, Any]:
    plain = {"kind": "lost", "sentence": "It lost.", "remedy": "Look.", "run_id": "r", "since": 1}
    return {"d": {"number": 1, "events": [plain | values]}}


def test_what_is_not_changed_is_read(told: Lines) -> None:
    assert read(text_of(told)) == Skipped()


HOSTILE: dict[str, tuple[Callable[[Lines], None], str]] = {
    "an energy below 0": (
        changed(energy_j=-1.0),
        "line 4, trials[0], trial = 'ValueError: energy_j",
    ),
    "an infinite time": (changed(time_s=1e999), "is not JSON"),
    "a huge energy": (changed(energy_j=1e300), "energy_j"),
    "a text for a number": (changed(energy_j="much"), "energy_j"),
    "no state": (changed(state="great"), "not known to this version"),
    "no key": (changed(ti_id=""), "no name of an attempt"),
    "a number of 0": (changed(number=0), "number = 0"),
    "a huge number": (changed(number=2**62), "number"),
    "a huge closing": (changed(told_seq=2**62), "told_seq"),
    "a time after all": (changed(opened_at=1e18), "opened_at"),
    "a NUL": (changed(run_id="a\0"), "run_id"),
    "a long text": (changed(data_slice="x" * 5000), f"data_slice = '{80 * 'x'}': longer"),
    "another job": (changed(job_id="e.train"), "not that of its run"),
    "a job that cannot be": (spec(eta=7), "eta"),
    "a MAXPOWER that no cost can be of": (spec(max_power_w=1e308), "max_power_w"),
    "a long line": (spec(more="x" * MOST_LINE), "longer than"),
    "bad points": (changed(points=[[1, 2]]), "points"),
    "too many points": (changed(points=[[i, 1.0, None, "train"] for i in range(600)]), "points"),
    "points below 0": (changed(points=[[-5.0, 1.0, None, "train"]]), "points"),
    "too many devices": (changed(device_count=2**31), "device_count"),
    "no trial": (lambda lines: lines[3]["run"].update(trials=[5]), "line 4, trials[0], trial"),
    "no trials": (lambda lines: lines[3]["run"].update(trials=[]), "no list of 1 to"),
    "too many attempts in a line": (
        lambda lines: lines[3]["run"].update(
            trials=lines[3]["run"]["trials"] * (RunTrials.MOST + 1)
        ),
        "no list of 1 to",
    ),
    "a device of no name": (of_profile(device_model=5), "line 3, device"),
    "no device": (of_profile(device_count=0), "line 3, device"),
    "as many devices as no host has": (of_profile(device_count=10**6), "line 3, device"),
    "a text for a number of devices": (of_profile(device_count="2"), "line 3, device"),
    "a truth for a number of devices": (of_profile(device_count=True), "line 3, device"),
    "a profile below 0": (
        lambda lines: lines[2]["profile"]["samples"][0].update(time_s=-1),
        "line 3, samples",
    ),
    "a profile of no samples": (of_profile(samples=[5]), "line 3, samples"),
    "a profile of another job": (of_profile(job_id="x"), "its job has no line before it"),
    "a job of too many bytes": (of_head(job_id=334 * "語"), "longer than 1000 bytes of UTF-8"),
    "a job without a name": (of_head(job_id=""), "no name of a job"),
    "a huge count": (of_head(told_seq=2**62), "told_seq"),
    "a count below 0": (of_head(last_number=-1), "last_number"),
    "a text for a count": (of_head(last_number="x"), "last_number"),
    "an event of a long text": (of_head(events=event(sentence="x" * 5000)), "events"),
    "a figure that is none": (of_head(events=event(figures={"saved_j": [1]})), "no figure"),
    "events of another form": (of_head(events=[1]), "line 2, job"),
    "a job twice": (lambda lines: lines.insert(2, lines[1]), "each is once"),
    "a run without its job": (lambda lines: lines.pop(1), "its job has no line before it"),
    "another format": (
        lambda lines: lines[0].update(format=2),
        "this version reads format 1 alone",
    ),
    "no format": (lambda lines: lines.pop(0), "this version reads format 1 alone"),
    "another kind of line": (
        lambda lines: lines.insert(2, {"budget": {"job_id": "d.train"}}),
        "not known to this version",
    ),
    "two members": (lambda lines: lines[1].update(more=1), "no object with one member"),
    "no end": (lambda lines: lines.pop(), "it ends too early"),
    "a part is missing": (
        lambda lines: lines.pop(3),
        "there are 0 before it: a part of the file is missing",
    ),
    "more after the end": (lambda lines: lines.append(lines[1]), "the file has ended before it"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_line_is_refused(told: Lines, name: str) -> None:
    change, says = HOSTILE[name]
    lines = copy.deepcopy(told)
    change(lines)
    with pytest.raises(JobSpecError, match=re.escape(says)):
        read(text_of(lines))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it ends too early"),
        ("batch_size,epochs\n", "line 1, line = '...': no JSON"),
        ("[1, 2]\n", "no object with one member"),
        ('{"format": NaN}\n', "NaN is not JSON"),
        ("[" * 100_000 + "\n", "no JSON"),
        ('{"format": 1}\n{"job": 5}\n', "line 2, job"),
        ('{"format": 1}\n{"run": []}\n', "line 2, job_id"),
    ],
)
def test_a_file_of_another_kind_is_refused(text: str, says: str) -> None:
    with pytest.raises(JobSpecError, match=re.escape(says)):
        read(text)


def test_a_number_or_a_key_that_stands_there_twice_is_not_written_twice(
    zeus: Zeus, told: Lines, other: Store, home: Path
) -> None:
    twice = copy.deepcopy(told)
    twice.insert(4, copy.deepcopy(told[3]))
    twice[-1] = {"end": {"trials": 2}}
    assert (
        "1 attempt imported, 1 in the log"
        in zeus("import", written(home, text_of(twice)), "--conn-id", "other").out
    )
    twice[4]["run"]["trials"][0]["ti_id"] = "another"
    done = zeus("import", written(home, text_of(twice)), "--conn-id", "other")
    assert "is another one in this log" in done.err


def test_a_hostile_export_writes_nothing(
    zeus: Zeus, store: Store, other: Store, home: Path
) -> None:
    recur(store, 1)
    recur(store, 2)
    lines: Lines = [
        json.loads(line) for line in zeus("export", "--format", "json").out.splitlines()
    ]
    lines[3]["run"]["trials"][0]["energy_j"] = -1.0
    done = zeus("import", written(home, text_of(lines)), "--conn-id", "other")
    assert (done.status, other.jobs()) == (1, [])
    assert "line 4, trials[0], trial = 'ValueError: energy_j" in done.err


def test_what_is_no_plain_file_is_refused(zeus: Zeus, store: Store, home: Path) -> None:
    os.mkfifo(home / "pipe")
    (home / "link").symlink_to(home / "zeus.db")
    for name in ("pipe", "link", "nowhere", "."):
        done = zeus("import", str(home / name))
        assert done.status == 1
        assert "cannot be read" in done.err


def test_unknown_fields_without_an_end_take_no_memory(told: Lines) -> None:
    lines = copy.deepcopy(told)
    lines[3]["run"]["trials"][0]["spec"] |= {f"field {n}": n for n in range(10_000)}
    assert len(read(text_of(lines)).fields) == MOST_FIELDS


def test_memory_does_not_grow_with_the_log(told: Lines, tmp_path: Path) -> None:
    """Export and import hold some runs at a time."""
    (trial,) = told[3]["run"]["trials"]

    def many(runs: int) -> Iterator[bytes]:
        yield line_of("format", FORMAT).encode()
        yield line_of("job", {"job_id": "d.train", "told_seq": runs, "last_number": runs}).encode()
        for n in range(1, runs + 1):
            points = [[float(t), 100.0, 200.0, "train"] for t in range(100)]
            own = trial | {
                "number": n,
                "told_seq": n,
                "ti_id": f"t{n}",
                "run_id": f"r{n}",
                "points": points,
            }
            yield line_of("run", {"job_id": "d.train", "trials": [own]}).encode()
        yield line_of("end", {"trials": runs}).encode()

    def peak_b(runs: int) -> int:
        store = SqlStore(f"sqlite:///{tmp_path}/{runs}.db", create=True)
        tracemalloc.start()
        try:
            assert store.take_in(parts_of(many(runs), Skipped())) == {"d.train": (runs, 0)}
            count = sum(
                len(part.trials) for part in store.history("d.train") if isinstance(part, RunTrials)
            )
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            assert count == runs
            store.close()

    peak_b(10)  # what is imported and compiled
    assert peak_b(320) < 1.5 * peak_b(160)


def test_an_import_needs_a_log(zeus: Zeus, home: Path) -> None:
    empty = '{"format": 1}\n{"end": {"trials": 0}}\n'
    done = zeus("import", written(home, empty))
    assert done.status == 1
    assert "no run log yet" in done.err
    open_store().close()
    assert "0 attempts imported into" in zeus("import", written(home, empty)).out


def test_every_column_of_a_trial_is_in_its_line(told: Lines) -> None:
    log = STORES["variables"](Path())
    trial = log.tell(log.ask(request(1)).trial.key, State.CONVERGED, report())
    assert told[3]["run"]["trials"][0].keys() == flat(trial).keys() | {"points"}
