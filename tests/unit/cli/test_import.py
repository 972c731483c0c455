"""``airflow zeus import``: what an export holds comes back, earlier trainings teach, a bad file writes nothing."""

from __future__ import annotations

import copy
import csv
import io
import json
import random
import re
import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.cli import read_file
from airflow_provider_zeus.cli.import_log import trials_of
from airflow_provider_zeus.cli.read_export import histories_of, of_json
from airflow_provider_zeus.cli.read_file import MOST_BYTES, entries_of, table_of
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.trial import IMPORTED, Origin, Phase, State, Trial, newest_here
from airflow_provider_zeus.optimizer.policy import learn, prior
from airflow_provider_zeus.plugin.views import overview_state, overview_view
from airflow_provider_zeus.reports.export_rows import COLUMNS, exact, json_of, row
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.sql.store import SqlStore, Store
from airflow_provider_zeus.store.variables.store import VariableStore
from tests.unit.cli.conftest import Zeus, recur
from tests.unit.store.store_kit import JOB, Clock, DictPort, report, request

EARLIER = "batch_size,epochs,energy_j,time_s,date,reached,power_limit_w,device\n"


@pytest.fixture
def other(home: Path, empty_log: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty log behind Connection ``other``."""
    path = str(shutil.copy(empty_log, home / "other.db"))
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "sqlite", "host": path}))
    return SqlStore(f"sqlite:///{path}", create=True)


def written(home: Path, text: str, name: str = "in.csv") -> str:
    (home / name).write_text(text)
    return str(home / name)


def plain(trial: Trial) -> Trial:
    """A trial without the mark of an import."""
    reasons = {name: why for name, why in trial.observation.reasons.items() if name != IMPORTED}
    return replace(trial, observation=replace(trial.observation, reasons=reasons))


STORES: dict[str, Callable[[Path], Store]] = {
    "sql": lambda path: SqlStore(f"sqlite:///{path}", create=True, now=Clock()),
    "variables": lambda path: VariableStore(DictPort(), overlap_possible=False, now=Clock()),
}


@pytest.mark.parametrize(
    ("source", "target", "seed"),
    [("sql", "variables", 0), ("variables", "sql", 1), ("sql", "sql", 0), ("sql", "sql", 1)],
)
def test_another_log_believes_and_decides_the_same(
    zeus: Zeus, home: Path, monkeypatch: pytest.MonkeyPatch, seed: int, source: str, target: str
) -> None:
    draw = random.Random(seed)
    job = replace(JOB, policy=draw.choice(["zeus", "knowledge_gradient"]), log_to=["mlflow"], eta=0.25)
    stores = {"a": STORES[source](home / "a.db"), "b": STORES[target](home / "b.db")}
    monkeypatch.setattr("airflow_provider_zeus.store.open.open_store", lambda conn_id, **_: stores[conn_id])
    log = stores["a"]
    for n in range(1, draw.randint(12, 22)):
        trial = log.ask(request(n, job=job)).trial
        state = draw.choice([State.CONVERGED] * 4 + [State.FAILED, State.GIVEN_UP, State.NO_DATA, State.EXHAUSTED])
        figures: dict[str, Any] = {"epochs": draw.uniform(1, 9), "returned": f'{{"n": {n}}}', "learning_rate": 1 / 3}
        log.tell(trial.key, state, report(trial.batch_size, profile=1, points=3, **figures), reason=f"= {n}\n")
    path = str(home / "log.json")
    assert zeus("export", "--conn-id", "a", "--format", "json", "--output", path).status == 0
    dry = zeus("import", path, "--conn-id", "b", "--dry-run")
    assert f"{len(log.trials('d.train'))} trials would be imported" in dry.out
    assert stores["b"].jobs() == []
    done = zeus("import", path, "--conn-id", "b")
    assert (done.status, done.err) == (0, "")
    before, after = log.trials("d.train"), [plain(t) for t in stores["b"].trials("d.train")]
    if "variables" not in (source, target):
        assert after == before
    assert [t.observation.energy_j for t in after] == [t.observation.energy_j for t in before]
    beliefs = [reduce(learn, trials, prior(job)).to_json() for trials in (before, after)]
    assert beliefs[0] == beliefs[1]
    one, two = (stores[name].ask(request(90, job=job)) for name in ("a", "b"))
    assert one.trial.decision == two.trial.decision
    assert (one.profile, one.previous, one.limits_found_w) == (two.profile, two.previous, two.limits_found_w)
    assert log.points(before[-1].key) == stores["b"].points(before[-1].key)
    again = zeus("import", path, "--conn-id", "b")
    assert (again.status, len(stores["b"].trials("d.train"))) == (0, len(before) + 1) or target == "variables"


def test_an_imported_trial_says_so_and_a_second_import_adds_nothing(
    zeus: Zeus, store: Store, other: Store, home: Path
) -> None:
    for n in (1, 2, 3):
        recur(store, n, points=2)  # type: ignore[arg-type]
    path = str(home / "log.json")
    zeus("export", "--format", "json", "--output", path)
    first = zeus("import", path, "--conn-id", "other")
    assert first.out.startswith("d.train: 3 trials imported\n3 trials imported into sqlite:")
    assert "d.train: 0 trials imported, 3 in the log already" in zeus("import", path, "--conn-id", "other").out
    assert [t.observation.imported is not None for t in other.trials("d.train")] == [True] * 3
    assert str(other.trials("d.train")[0].observation.imported).startswith("log.json, by ")
    assert "reached target (imported)" in zeus("trials", "d.train", "--conn-id", "other").out
    onward = zeus("export", "--conn-id", "other", "--format", "json", "--output", path)  # and from there again
    assert onward.status == 0
    assert "3 in the log already" in zeus("import", path).out


def test_another_name_and_an_open_trial(zeus: Zeus, store: Store, other: Store, home: Path) -> None:
    recur(store, 1)
    store.ask(request(2, ti_id="open"))
    path = str(home / "log.json")
    zeus("export", "--format", "json", "--output", path)
    done = zeus("import", path, "--conn-id", "other", "--job", "e.train")
    assert "1 trial of the file left out: not closed." in done.out
    (trial,) = other.trials("e.train")
    assert (trial.origin.dag_id, trial.origin.task_id) == ("e", "train")
    refused = zeus("import", path, "--job", "e.train")
    assert refused.status == 1
    assert "in this log already, as trial 1 of 'd.train'" in refused.err
    assert zeus("import", path, "--job", "e.train", "--dry-run").status == 1
    assert store.jobs() == ["d.train"]


def test_a_csv_export_brings_all_columns(zeus: Zeus, store: Store, other: Store, home: Path) -> None:
    for n in range(1, 8):
        state = State.CONVERGED if n % 3 else State.FAILED
        recur(store, n, state, learning_rate=-0.5, returned='"x"', device_model="=GPU" if n % 2 else "[A100]")
    before = store.trials("d.train")
    path = str(home / "log.csv")
    zeus("export", "--output", path)
    assert zeus("import", path, "--conn-id", "other").status == 0
    for was, now in zip(before, map(plain, other.trials("d.train")), strict=True):
        assert abs(now.opened_at - was.opened_at) < 0.001
        times = {name: getattr(was, name) for name in ("opened_at", "lease_until", "closed_at")}
        assert replace(now, **times) == replace(was, observation=replace(was.observation, returned=None))
    assert other.profiles("d.train") == []
    decisions = [each.ask(request(90, ti_id="next")).trial.decision for each in (store, other)]
    assert decisions[0] == decisions[1]


def test_earlier_trainings_teach_epochs_once(zeus: Zeus, store: Store, home: Path) -> None:
    recur(store, 1, epochs=5.0)
    lines = "16,9,1200,30,2026-03-01,true,150,A100\n16,8.5,,31,2026-02-01,,,\n64,12,900,20,,false,,\n"
    path = written(home, EARLIER + lines)
    assert "3 trials would be imported" in zeus("import", path, "--job", "d.train", "--dry-run").out
    assert len(store.trials("d.train")) == 1
    assert zeus("import", path, "--job", "d.train").status == 0
    assert "d.train: 0 trials imported, 3 in the log already" in zeus("import", path, "--job", "d.train").out
    _, undated, second, first = store.trials("d.train")
    assert [t.batch_size for t in (undated, second, first)] == [64, 16, 16]
    assert (undated.state, undated.opened_at) == (State.EXHAUSTED, 0.0)
    seen = first.observation
    assert (seen.epochs, seen.energy_j, seen.time_s, seen.power_limit_w) == (9.0, 1200.0, 30.0, 150.0)
    assert (seen.energy_source, seen.where, first.planned.phase) == ("imported", None, Phase.IMPORTED)
    assert str(seen.imported).endswith("; trained on A100")
    assert (second.observation.energy_j, second.observation.energy_source) == (None, None)
    assert second.observation.reasons["energy_j"] == "not in the imported file"
    belief = reduce(learn, store.trials("d.train"), prior(JOB))
    assert [run[1:] for run in belief.converged] == [(32, 5.0), (16, 8.5), (16, 9.0)]
    assert belief.device is not None
    assert belief.device[1][0] == "V100"  # no device of an imported training
    answer = store.ask(request(9, ti_id="next"))
    assert answer.trial.number == 5


def test_an_imported_training_is_not_the_last_run_of_its_job(
    zeus: Zeus, store: Store, other: Store, home: Path
) -> None:
    """Not of the list, nor of the page of all jobs, which reads the newest trials alone."""
    recur(store, 1, State.GIVEN_UP)
    lines = "".join(f"16,{n},1200,30,2026-03-01,,,\n" for n in range(1, 1 + 2 * overview_state.NEWEST))
    assert zeus("import", written(home, EARLIER + lines), "--job", "d.train").status == 0
    (listed,) = json.loads(zeus("jobs", "list", "-o", "json").out)
    assert (listed["last_state"], listed["last_batch_size"], listed["trials"]) == ("given_up", 32, 25)
    newest = store.latest(last=overview_state.NEWEST)
    (row,) = overview_view.rows(newest, {"d"}, {}, now=0.0)
    assert (row.run_id, row.outcome, row.batch_size) == ("run1", "given_up", 32)

    recur(other, 7, State.FAILED, job_id="d.train")  # and those of another log
    log = zeus("export", "--format", "json").out
    assert zeus("import", written(home, log, "log.json"), "--conn-id", "other").status == 0
    assert newest_here(other.trials("d.train")).origin.run_id == "run7"
    assert {t.origin.run_id for t in other.latest(last=3)} == {"run7"}


def test_an_earlier_training_is_no_previous_run(zeus: Zeus, store: Store, home: Path) -> None:
    recur(store, 1, returned='"mine"')
    zeus("import", written(home, EARLIER + "16,9,1200,30,,,,\n"), "--job", "d.train")
    previous = store.ask(request(9, ti_id="next")).previous
    assert previous is not None
    assert previous.returned == '"mine"'


BAD_LINES = {
    "48,9,1,1,,,,": "line 3, batch_size = '48': not in batch_sizes [16, 32, 64] of d.train. Correct",
    "1e1,9,1,1,,,,": "line 3, batch_size = '1e1'",
    "16,0,1,1,,,,": "line 3, epochs = '0': no number above 0",
    "16,,1,1,,,,": "line 3, epochs = ''",
    "16,nan,1,1,,,,": "line 3, epochs = 'nan'",
    "16,9,-1,1,,,,": "line 3, energy_j = '-1'",
    "16,9,1,1e99,,,,": "line 3, time_s = '1e99'",
    "16,9,1,1,yesterday,,,": "line 3, date = 'yesterday': no date. Write it as 2026-11-24",
    "16,9,1,1,9999-01-01,,,": "line 3, date",
    "16,9,1,1,,maybe,,": "line 3, reached = 'maybe'",
    "16,9,1,1,,,x,": "line 3, power_limit_w = 'x'",
    f"16,9,1,1,,,,{'d' * 300}": "line 3, device",
    "16,9,1,1": "line 3, cells = 4: the first line has 8",
    '16,9,1,1,,,,"': "no CSV",
}


@pytest.fixture(scope="module")
def told() -> tuple[Trial, dict[str, Any]]:
    """A trial, and its entry in an export."""
    log = STORES["variables"](Path())
    trial = log.tell(log.ask(request(1)).trial.key, State.CONVERGED, report(points=2))
    file = io.StringIO()
    file.writelines(json_of([[{**row(trial, None), **exact(trial)}]]))
    return trial, json.loads(file.getvalue())["trials"][0]


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_is_named(told: tuple[Trial, dict[str, Any]], line: str) -> None:
    text = f"{EARLIER}16,9,1,1,,,,\n{line}\n"
    with pytest.raises(JobSpecError, match=re.escape(BAD_LINES[line])):
        trials_of(table_of(text, "x.csv")[1], told[0], "x.csv")


def test_a_bad_line_writes_nothing(zeus: Zeus, store: Store, home: Path) -> None:
    recur(store, 1)
    done = zeus("import", written(home, f"{EARLIER}16,9,1,1,,,,\n48,9,1,1,,,,\n"), "--job", "d.train")
    assert (done.status, len(store.trials("d.train"))) == (1, 1)
    assert "line 3, batch_size = '48'" in done.err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "columns = ''"),
        ("a,b\n1,2\n", "batch_size, epochs, energy_j, time_s missing"),
        ("batch_size,epochs,energy_j,time_s,colour\n", "columns = 'colour'"),
        ("batch_size,epochs,energy_j,time_s,time_s\n", "stands there twice"),
        ("[1, 2]", "this version reads format 1 alone"),
        ('{"format": 2}', "format = 2"),
        ('{"format": 1, "trials": 5, "profiles": []}', "trials = 5"),
        ('{"format": 1, "trials": [5], "profiles": []}', "trials[0], entry = 5"),
        ('{"format": 1, "trials": [{}], "profiles": []}', "trials[0]"),
        ('{"format": NaN}', "NaN is not JSON"),
        ("{" * 10_000, "no JSON"),
        ('{"format": 1, "trials": [], "profiles": []} more', "no JSON (it goes on after its end)"),
        ('{"format": 1, "trials": []}', "profiles = None: no list"),
        ('{"trials": [], "profiles": [], "format": 1}', "format = None"),
        ('{"format": 1 "trials": [], "profiles": []}', "no JSON (no ',' at character 14)"),
        ("batch_size,epochs,energy_j,time_s\n16,9,1,1\n", "--job = None: earlier trainings name no job"),
    ],
)
def test_a_file_of_another_kind_is_refused(zeus: Zeus, store: Store, home: Path, text: str, says: str) -> None:
    recur(store, 1)
    done = zeus("import", written(home, text))
    assert done.status == 1
    assert says in done.err
    assert len(store.trials("d.train")) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"format": 1, "trials": [' + "{}, " * 100_000 + "{}]}", "more than 3,000"),
        ('{"format": 1, "profiles": [], "trials": [' + "[" * 1_000_000, "no JSON"),
        (EARLIER + "," * 1_000_000, "line 2, line = '...': longer than"),
        (EARLIER + '"\n",' * 300_000, "longer than 262,144 characters"),
        (EARLIER + "16,9,1,1,,,,\n" * 100_000, "more than 3,000 lines"),
    ],
    ids=["entries", "nested", "cells", "one record of many lines", "lines"],
)
def test_a_file_is_counted_before_it_takes_many_times_its_size(
    text: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_file, "MOST_TRIALS", 3000)
    tracemalloc.start()
    try:
        with pytest.raises(JobSpecError, match=re.escape(says)):
            for _ in entries_of(text, "x", "trials") if text[0] == "{" else table_of(text, "x")[1]:
                pass
        assert tracemalloc.get_traced_memory()[1] < 4 * len(text)
    finally:
        tracemalloc.stop()


def test_an_export_takes_a_few_times_its_size_and_may_be_written_in_any_layout(
    told: tuple[Trial, dict[str, Any]],
) -> None:
    points = [[n / 7, 100 + n / 7, 200.0, "train"] for n in range(300)]
    document = {
        "format": 1,
        "trials": [{**told[1], "trial": n, "ti_id": f"{n}", "points": points} for n in range(1, 9)],
    }
    for layout in (None, 1):
        text = json.dumps({**document, "profiles": []}, indent=layout)
        tracemalloc.start()
        trials, profiles = (entries_of(text, "x", wanted) for wanted in ("trials", "profiles"))
        (history,) = histories_of(((place, of_json(place, entry)) for place, entry in trials), profiles)[0]
        assert tracemalloc.get_traced_memory()[1] < 8 * len(text)
        tracemalloc.stop()
        assert [t.number for t in history.trials] == [*range(1, 9)]


def test_what_cannot_be_read_is_refused(zeus: Zeus, store: Store, home: Path) -> None:
    recur(store, 1)
    (home / "latin.csv").write_bytes(b"batch_size\n\xff")
    assert "line 2 is not UTF-8" in zeus("import", str(home / "latin.csv")).err
    assert "cannot be read" in zeus("import", str(home / "nowhere")).err
    with open(home / "large", "wb") as file:
        file.truncate(MOST_BYTES + 1)
    assert "larger than 256 MB" in zeus("import", str(home / "large")).err
    lonely = written(home, EARLIER + "16,9,1,1,,,,\n")
    assert "no such job" in zeus("import", lonely, "--job", "nobody").err


def changed(**values: object) -> Callable[[dict[str, Any]], object]:
    return lambda trial: trial.update(values)


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a negative energy": (changed(energy_j=-1.0), "below 0"),
    "a huge energy": (changed(energy_j=1e300), "energy_j"),
    "a text for a number": (changed(epochs="9"), "epochs"),
    "no batch size": (lambda t: t["planned"].update(batch_size=0), "batch_size"),
    "a huge batch size": (lambda t: t["planned"].update(batch_size=2**60), "batch_size"),
    "an unknown state": (changed(state="lost"), "state = 'lost': not known to this version"),
    "an unknown phase": (lambda t: t["planned"].update(phase="lost"), "not known to this version"),
    "no key": (changed(ti_id=""), "no name of a trial"),
    "a number of 0": (changed(trial=0), "number = 0"),
    "a huge number": (changed(trial=2**62), "number"),
    "a huge closing": (changed(told_seq=2**62), "told_seq"),
    "a time after all": (changed(opened_at=1e18), "opened_at"),
    "a NUL": (changed(run_id="a\0"), "run_id"),
    "a long text": (changed(data_slice="x" * 5000), "data_slice"),
    "a job that cannot be": (lambda t: t["spec"].update(eta=7), "eta"),
    "a MAXPOWER that no cost can be of": (lambda t: t["spec"].update(max_power_w=1e308), "max_power_w"),
    "a long line": (lambda t: t["spec"].update(more="x" * 10**6), "longer than"),
    "bad points": (changed(points=[[1, 2]]), "points"),
    "a job of too many bytes": (changed(job_id=334 * "語"), "longer than 1000 bytes of UTF-8"),
    "too many points": (changed(points=[[i, 1.0, None, "train"] for i in range(600)]), "points"),
    "points below 0": (changed(points=[[-5.0, 1.0, None, "train"]]), "points"),
    "too many devices": (changed(device_count=2**31), "device_count"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_entry_is_refused(told: tuple[Trial, dict[str, Any]], name: str) -> None:
    change, says = HOSTILE[name]
    entry = copy.deepcopy(told[1])
    change(entry)
    with pytest.raises(JobSpecError, match=r"^trials\[0\], ") as found:  # noqa: PT012 - both read the entry
        ((place, read),) = entries_of(json.dumps({"format": 1, "trials": [entry], "profiles": []}), "x", "trials")
        of_json(place, read)
    assert says in str(found.value)


def test_a_hostile_export_writes_nothing(zeus: Zeus, store: Store, other: Store, home: Path) -> None:
    recur(store, 1)
    recur(store, 2)
    document = json.loads(zeus("export", "--format", "json").out)
    document["trials"][1]["energy_j"] = -1.0
    done = zeus("import", written(home, json.dumps(document), "x.json"), "--conn-id", "other")
    assert (done.status, other.jobs()) == (1, [])
    assert "trials[1], " in done.err


def test_a_trial_that_stands_there_twice_and_a_bad_profile(zeus: Zeus, store: Store, other: Store, home: Path) -> None:
    trial = store.ask(request(1)).trial
    store.tell(trial.key, State.CONVERGED, report(profile=1))
    document = json.loads(zeus("export", "--format", "json").out)

    def refused(**parts: object) -> str:
        done = zeus("import", written(home, json.dumps({**document, **parts}), "x.json"), "--conn-id", "other")
        assert (done.status, other.jobs()) == (1, [])
        return done.err

    assert "trials[1], ti_id and attempt" in refused(trials=document["trials"] * 2)
    (profile,) = document["profiles"]
    assert "profiles[0], device" in refused(profiles=[{**profile, "device_model": 5}])
    assert "profiles[0], samples" in refused(
        profiles=[{**profile, "samples": [{**profile["samples"][0], "time_s": -1}]}]
    )
    assert "no trial of this job" in refused(profiles=[{**profile, "job_id": "x"}])


def test_a_csv_of_a_run_without_a_dag_comes_back(zeus: Zeus, store: Store, other: Store, home: Path) -> None:
    trial = store.ask(replace(request(1), origin=Origin())).trial
    store.tell(trial.key, State.CONVERGED, report())
    path = written(home, zeus("export").out)
    assert zeus("import", path, "--conn-id", "other").status == 0
    assert other.trials("d.train")[0].origin == Origin()


def test_a_pruned_csv_and_one_with_a_changed_cell(zeus: Zeus, store: Store, other: Store, home: Path) -> None:
    recur(store, 1)
    rows = list(csv.DictReader(zeus("export").out.splitlines()))
    path = home / "x.csv"

    def with_cells(**cells: str) -> str:
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerow({**rows[0], **cells})
        return str(path)

    assert "line 2, energy_j = 'much'" in zeus("import", with_cells(energy_j="much"), "--conn-id", "other").err
    assert "line 2, entry = " in zeus("import", with_cells(planned_phase=""), "--conn-id", "other").err
    assert "line 2, spec_..." in zeus("import", with_cells(spec_eta="9"), "--conn-id", "other").err
    pruned = json.dumps({**json.loads(rows[0]["decision"]), "attempts": []})
    assert zeus("import", with_cells(decision=pruned, energy_j="77"), "--conn-id", "other").status == 0
    (trial,) = other.trials("d.train")
    assert (trial.observation.energy_j, trial.batch_size, trial.decision.attempts) == (77.0, 32, ())


def test_an_import_needs_a_log(zeus: Zeus, home: Path) -> None:
    done = zeus("import", written(home, '{"format": 1, "trials": [], "profiles": []}'))
    assert done.status == 1
    assert "no trial log yet" in done.err
    open_store().close()
    assert "No closed trial in" in zeus("import", written(home, '{"format": 1, "trials": [], "profiles": []}')).out
