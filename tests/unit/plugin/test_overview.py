"""The page of all jobs: states, trends, rows, and what it costs to answer."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zeus.model.trial import Phase, PlannedAttempt, ProfileSample, State, Trial
from airflow_provider_zeus.plugin.answer_parts import JobSaved
from airflow_provider_zeus.plugin.api import auth, overview_routes
from airflow_provider_zeus.plugin.api.reading import LruCache
from airflow_provider_zeus.plugin.views import costs, overview_state, overview_view
from airflow_provider_zeus.plugin.views.job_analysis import JobAnalysis
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.months import month_bounds, month_of
from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from tests.golden import Table
from tests.unit.plugin.auth_manager import SECRET
from tests.unit.plugin.kit import JOB, ran, trial
from tests.unit.store.sql.sqlite_kit import execute

HOUR = 3600.0


def log(
    *states: State, phase: Phase = Phase.SAMPLE, every_s: float = HOUR, **changes: Any
) -> list[Trial]:
    return [
        trial(n, f"run{n}", state=state, phase=phase, opened_at=n * every_s, **changes)
        for n, state in enumerate(states, start=1)
    ]


def state(trials: list[Trial], later_s: float = 60.0) -> tuple[str, str]:
    found = overview_state.state_of(trials, trials[-1].opened_at + later_s)
    return found.name, found.why


C = State.CONVERGED
F = State.FAILED
X = State.EXHAUSTED
R = State.RUNNING
N = State.NO_METRIC


def known(*states: State, **changes: Any) -> list[Trial]:
    """A log of two sizes: a run of 64 before these."""
    first, *others = log(C, *states, **changes)
    return [replace(first, planned=replace(first.planned, batch_size=64)), *others]


def test_a_job_that_tries_nothing_is_settled() -> None:
    assert state(known(C, C, C))[0] == "settled"
    assert state(log(C, phase=Phase.PINNED))[0] == "settled"


def test_settled_needs_evidence() -> None:
    assert state(log(C))[0] == "not exploring yet", "one run of the default"
    assert state(known(C))[0] == "learning"
    assert state(known(C, C))[0] == "settled"
    name, why = state(log(C, C, C, C))
    assert (name, "Only batch size 32" in why) == ("not exploring yet", True), (
        "nothing else is known"
    )
    assert state(log(*[C] * overview_state.NEWEST))[0] == "settled", "what ran before is not shown"
    only = [replace(t, spec=replace(JOB, batch_sizes=[32]).to_dict()) for t in log(C, C, C)]
    assert state(only)[0] == "settled", "there is no other size"


@pytest.mark.parametrize(
    "changes", [{"run_type": "backfill"}, {"run_type": "test"}, {"phase": Phase.FALLBACK}]
)
def test_runs_that_show_nothing_of_the_policy_settle_nothing(changes: dict[str, Any]) -> None:
    assert state(known(*[C] * 8, **changes))[0] == (
        "waiting" if "run_type" in changes else "learning"
    )
    first, second, *others = known(C, C, C, C, C)
    late = log(*[C] * 10, **changes)[len(others) + 2 :]
    name, why = state([first, second, *others, *late])
    assert (name, "that teach" in why) == ("settled", True)
    tried = [replace(t, planned=replace(t.planned, phase=Phase.EXPLORE)) for t in others]
    assert state([first, second, *tried, *late])[0] == "exploring"


@pytest.mark.parametrize("phase", [Phase.EXPLORE, Phase.RETURN])
def test_a_job_that_tries_is_exploring(phase: Phase) -> None:
    assert state(known(C, C, C, phase=phase))[0] == "exploring"
    assert state(log(C, C, C, phase=phase))[0] == "not exploring yet", (
        "the first run is one of the default"
    )


def gave_up_and_another_ended_the_run() -> list[Trial]:
    first, second = log(C, C)
    bounded = PlannedAttempt(
        batch_size=16, phase=Phase.SAMPLE, why="16 may be cheaper.", bound_epochs=3.0
    )
    gave_up = replace(
        first,
        planned=bounded,
        decision=replace(first.decision, attempts=(bounded,)),
        state=State.GIVEN_UP,
    )
    return [gave_up, replace(second, origin=first.origin)]


def test_a_bounded_attempt_is_a_try_even_where_another_ended_the_run() -> None:
    name, why = state(gave_up_and_another_ended_the_run())
    assert (name, "16" in why) == ("exploring", True)


def test_before_anything_converged_a_job_explores() -> None:
    assert state(log(R))[0] == "exploring"


def test_runs_that_do_not_teach_settle_nothing() -> None:
    assert state(log(*[C] * 16, run_type="backfill"))[0] == "waiting"
    mixed = [*known(C, C), trial(9, "run9", run_type="test", opened_at=3 * HOUR)]
    assert state(mixed)[0] == "settled"
    assert (
        state([*known(C, C, phase=Phase.EXPLORE), *log(*[C] * 6, run_type="backfill")[2:]])[0]
        == "exploring"
    )
    taught = {**JOB.to_dict(), "learn_from": ["backfill"]}
    assert (
        state([replace(t, spec=taught) for t in known(C, C, run_type="backfill")])[0] == "settled"
    )
    assert state(log(C, C, F, run_type="backfill"))[0] == "failing", "what failed is said first"


def test_failing() -> None:
    assert state(log(C, C, F))[0] == "failing"
    assert state(log(C, F, State.ABANDONED))[0] == "failing"
    assert state(log(C, X, X))[0] == "failing"
    assert state(known(C, C, X))[0] == "settled", "one run below its target is no rule"
    assert state(log(C, X, C, C, X, C, C, X, C, batch_size=64))[0] == "below target"
    assert state(log(*[C] * 8, X, C, C, batch_size=64))[0] != "below target", "an exception"
    assert state(log(C, F, R))[0] == "failing", "the run that goes on has not shown anything yet"
    assert state(log(F, F, C))[0] == "not exploring yet"


def test_a_run_without_a_metric_is_no_failure() -> None:
    assert state(log(C, N, N))[0] == "no metric"
    assert state(known(C, C, N)[:-1])[0] == "settled"
    assert state(log(N, C))[0] != "no metric", "it came again"


def test_stale_is_measured_by_the_jobs_own_rhythm() -> None:
    weekly = known(C, C, C, every_s=7 * 86400.0)
    assert state(weekly, 20 * 86400.0)[0] == "settled"
    assert state(weekly, 22 * 86400.0)[0] == "stale"
    assert state(known(C, C, every_s=60.0), 3000.0)[0] == "settled", "an hour at least"
    assert state(log(C), 29 * 86400.0)[0] == "not exploring yet"
    assert state(log(C), 31 * 86400.0)[0] == "stale"
    assert state(log(C, C, R), 1e9)[0] != "stale", "it runs"


DAY = 24 * HOUR
# situation: the log, and how long after its newest run it is looked at
STATES: dict[str, tuple[list[Trial], float]] = {
    "its newest runs took one size": (known(C, C, C), 60.0),
    "two runs taught something": (known(C, C, C)[:2], 60.0),
    "the default alone has run": (log(C, C, C), 60.0),
    "its batch size is pinned": (log(C, phase=Phase.PINNED), 60.0),
    "it explores": (known(C, C, C, phase=Phase.EXPLORE), 60.0),
    "an attempt was given up, and another ended the run": (
        gave_up_and_another_ended_the_run(),
        60.0,
    ),
    "its first run is going on": (log(R), 60.0),
    "its newest run was killed": (log(C, C, F, reason="killed (9)"), 60.0),
    "its newest two runs left no model": (log(C, F, State.ABANDONED), 60.0),
    "its newest two runs ended below the target": (log(C, X, X), 60.0),
    "3 of its newest 9 runs ended below the target": (
        log(C, X, C, C, X, C, C, X, C, batch_size=64),
        60.0,
    ),
    "its newest run reported no metric": (
        log(C, N, N, reason="the command did not report its acc: print it"),
        60.0,
    ),
    "16 runs do not teach": (log(*[C] * 16, run_type="backfill"), 60.0),
    "no run began for long": (log(C, C, C, C, every_s=7 * DAY), 22 * DAY),
    "its only run began long ago": (log(C), 31 * DAY),
}


@pytest.mark.parametrize("situation", STATES)
def test_the_sentence_of_each_state(situation: str) -> None:
    """What the overview says of a job, word by word."""
    name, why = state(*STATES[situation])
    Table("zeus_page").check(situation, f"{name}: {why}")


def test_map_indexes_of_a_run_are_no_rhythm() -> None:
    day_s = 86400.0
    daily = [
        trial(3 * n + i, f"run{n}", map_index=i, opened_at=n * day_s + i)
        for n in range(1, 5)
        for i in range(3)
    ]
    assert state(daily, day_s)[0] != "stale", (
        "they begin a second apart, and the next run a day later"
    )
    assert (
        state(daily, 4 * day_s)[1]
        == "Its newest run began 4 days ago; usually one begins every 1 day."
    )


def trend(*joules: float, **changes: Any) -> tuple[str, str]:
    trials = [
        trial(n, f"run{n}", energy_j=j, time_s=1.0, **changes)
        for n, j in enumerate(joules, start=1)
    ]
    found = overview_state.trend_of(costs.rows_of(trials, replace(JOB, eta=1.0)))
    return found.blocks, found.text


def test_trends() -> None:
    assert trend(800, 800, 400, 400) == ("██▁▁", "↓ 50 %")
    assert trend(400, 400, 800, 800) == ("▁▁██", "↑ 100 %")
    assert trend(500, 500, 500, 500) == ("▄▄▄▄", "→ steady")
    assert trend(800, 400, 400) == ("", "too few runs"), "one run says nothing of those to come"


def test_runs_of_another_source_are_no_part_of_a_trend() -> None:
    trials = [trial(n, f"run{n}", energy_j=100.0 * n) for n in (1, 2)]
    trials += [
        trial(n, f"run{n}", energy_j=9.0 * n, energy_source="nvml_counter") for n in (3, 4, 5, 6)
    ]
    assert len(overview_state.trend_of(costs.rows_of(trials, JOB)).blocks) == 4


def test_a_run_without_data_is_no_part_of_a_trend() -> None:
    trials = [trial(n, f"run{n}", energy_j=100.0, time_s=1.0) for n in (1, 2, 3, 4)]
    empty = trial(5, "run5", 32, State.NO_DATA, energy_j=0.0, time_s=0.0, epochs=1.0)
    assert len(overview_state.trend_of(costs.rows_of([*trials, empty], JOB)).blocks) == 4


def test_a_change_of_the_data_is_told_while_it_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_zeus.optimizer.belief import Belief
    from airflow_provider_zeus.optimizer.slices import Change

    belief = Belief(job=JOB)
    assert overview_state.drifted(belief, log(C)) is None
    monkeypatch.setattr(Belief, "changes", (Change(3, 0.6, (3, 4)),))
    found = overview_state.drifted(belief, log(C, C, C, C))
    assert found is not None
    assert (found.name, "2 runs ago" in found.why, "run 3" in found.why) == (
        "drifted",
        True,
        True,
    )
    assert overview_state.drifted(belief, log(*[C] * 12)) is None, "old news"


def test_what_a_newer_version_wrote_is_a_row_all_the_same() -> None:
    (row,) = overview_view.rows([replace(log(C)[0], spec={"nobody": "knows"})], {"d"}, {}, 2 * HOUR)
    assert (row.last_energy.text, "newer version" in row.last_energy.exact) == ("–", True)


def of_runs(trials: list[Trial], profile: list[ProfileSample], *, all_of: bool = True) -> JobSaved:
    return overview_view.saved(
        trials, JobAnalysis.of(trials, as_dataset(trials, JOB), profile), all_of=all_of
    )


def test_what_was_saved_and_lost() -> None:
    profile = [
        ProfileSample(batch_size=32, limit_w=w, samples=1000, energy_j=w * 0.9, time_s=1.0)
        for w in (200.0, 300.0)
    ]
    slow = [trial(n, f"run{n}", 32, energy_j=900.0, epochs=5.0, time_s=20.0) for n in (1, 2, 3)]
    cheap = [trial(n, f"run{n}", 64, energy_j=100.0, epochs=3.0) for n in range(4, 9)]
    found = of_runs([*slow, *cheap], profile)
    assert (found.word, found.kind) == ("Saved", "good")
    assert "8 runs" in found.text
    dear = [trial(n, f"run{n}", 64, energy_j=3000.0, epochs=9.0, time_s=30.0) for n in range(4, 9)]
    lost = of_runs([*slow, *dear], profile)
    assert (lost.word, lost.kind, " lost " in lost.text) == ("Lost", "bad", True)
    early = of_runs([*slow[:1], *dear[:1]], profile)
    assert (early.word, early.kind, early.figure.value) == ("Too early", "", None)
    unknown = of_runs(cheap, profile)
    assert (unknown.word, unknown.figure.value) == ("Not known", None)
    assert "batch size 32" in unknown.text
    assert re.fullmatch(r"batch size \d+.* about \d.* Wh and \d.* s", found.next), "what comes next"
    assert (found.of, of_runs([*slow, *cheap], profile, all_of=False).of) == ("", "newest 8 runs")


# --- the routes


def test_the_jobs_of_readable_dags_alone(viewer: Any, store: Store) -> None:
    for n in (1, 2):
        ran(store, n)
    ran(store, 3, dag_id=SECRET, job_id="their job")
    ran(store, 4, dag_id="shared with " + SECRET, job_id="d.train")
    answer = viewer.get("/zeus/api/jobs")
    assert SECRET not in answer.text.replace("shared with " + SECRET, "")
    assert "their job" not in answer.text


def test_a_dag_whose_runs_this_user_may_not_read(
    viewer: Any, store: Store, airflow_app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    # the DAG itself
    monkeypatch.setattr(get_auth_manager(), "get_authorized_dag_ids", lambda **_: {"d", SECRET})
    ran(store, 1)
    ran(store, 1, dag_id=SECRET, job_id="theirs", state=State.FAILED, reason="their failure")
    answer = viewer.get("/zeus/api/jobs")
    assert [job["job_id"] for job in answer.json()["jobs"]] == ["d.train"]
    assert "their" not in answer.text
    month = month_of(store.trials("d.train")[0].opened_at)
    (kind,) = viewer.get("/zeus/api/months", params={"month": month}).json()["kinds"]
    assert kind["answers"][0]["about"] == "1 run of 1 job"
    saved = viewer.get("/zeus/api/months/saved", params={"month": month}).json()
    assert (
        saved["progress"]
        == "What was saved is not known for 1 job: measured alone, its default has not run, or a figure is missing."
    )


def test_of_many_dags_those_of_jobs_alone_are_asked_for_their_runs(
    viewer: Any, store: Store, known_dags: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known_dags.update(f"without a job {n}" for n in range(500))
    asked: list[str] = []
    monkeypatch.setattr(auth, "may_read_runs", lambda user, dag_id: not asked.append(dag_id))
    for n, dag_id in enumerate(("d", "d", "e", "unknown"), start=1):
        ran(store, n, dag_id=dag_id, job_id=f"{dag_id}.train")
    assert len(viewer.get("/zeus/api/jobs").json()["jobs"]) == 2
    assert sorted(asked) == ["d", "e"]


def test_a_row(viewer: Any, store: Store, known_dags: set[str]) -> None:
    for n in (1, 2, 3, 4):
        ran(store, n, energy_j=1000.0 - 100 * n)
    ran(store, 5, dag_id="e", job_id="e.train")
    ran(store, 6, dag_id="unknown", job_id="u.train")
    variables = AirflowVariables()
    variables.set("zeus-settings:d.train", '{"pin_batch_size": 64}')
    try:
        first, second = viewer.get("/zeus/api/jobs").json()["jobs"]
    finally:
        variables.delete("zeus-settings:d.train")
    assert (first["dag_id"], first["job_id"], first["run_id"], second["job_id"]) == (
        "d",
        "d.train",
        "run4",
        "e.train",
    )
    assert (first["last_energy"]["value"] > 0, first["source"]["text"]) == (True, "simulated")
    assert (first["settings"], second["settings"]) == (["batch size pinned to 64"], [])
    assert first["trend"]["text"].startswith("↓")


def test_trials_that_cannot_be_read_are_named_to_those_who_may_see_them(
    viewer: Any, store: Store, home: Any, known_dags: set[str]
) -> None:
    for n in (1, 2, 3):
        ran(store, n)
    ran(store, 1, dag_id=SECRET, job_id="secret.train")
    execute(f"sqlite:///{home}/zeus.db", "UPDATE zeus_trial SET spec = '{' WHERE number < 3")
    answer = viewer.get("/zeus/api/jobs").json()
    assert [job["run_id"] for job in answer["jobs"]] == ["run3"]
    said = "2 attempts of this log cannot be read: d.train/1, d.train/2; see “airflow zeus doctor”."
    assert (answer["left_out"], answer["note"]) == (said, None)
    execute(f"sqlite:///{home}/zeus.db", "UPDATE zeus_trial SET spec = '{'")
    assert (
        viewer.get("/zeus/api/jobs")
        .json()["note"]
        .startswith("3 attempts of this log cannot be read")
    )


def test_savings_are_asked_for_apart(viewer: Any, store: Store) -> None:
    for n in (1, 2, 3):
        ran(store, n)
    answer = viewer.get("/zeus/api/jobs/d/saved", params={"job_id": "d.train"})
    assert (answer.status_code, answer.json()["word"]) == (200, "Not known")
    assert viewer.get("/zeus/api/jobs/d/saved", params={"job_id": "no"}).status_code == 404
    assert viewer.get("/zeus/api/jobs/e/saved", params={"job_id": "d.train"}).status_code == 404
    assert (
        viewer.get(f"/zeus/api/jobs/{SECRET}/saved", params={"job_id": "d.train"}).status_code
        == 403
    )


def test_without_a_job_it_says_how_to_start(viewer: Any, home: Any) -> None:
    answer = viewer.get("/zeus/api/jobs").json()
    assert (answer["note"], answer["store"], answer["jobs"]) == (overview_view.NO_JOBS, "", [])
    assert list(home.iterdir()) == []


@pytest.mark.nightly
def test_of_500_jobs_with_400_runs_the_newest_alone_are_read(
    viewer: Any, store: Store, home: Any, known_dags: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long that takes is printed: on an idle core less than a second."""
    import sqlalchemy as sa

    from airflow_provider_zeus.model.trial_fields import flat
    from airflow_provider_zeus.store.rows import read_row
    from airflow_provider_zeus.store.sql import pages as sql_pages
    from airflow_provider_zeus.store.sql import schema

    ran(store, 1)
    row = flat(store.trials("d.train")[0])
    engine = sa.create_engine(f"sqlite:///{home / 'zeus.db'}")
    known_dags.update(f"dag{j}" for j in range(500))
    with engine.begin() as connection:
        jobs = [{"job_id": f"job{j}", "told_seq": 400, "last_number": 400} for j in range(500)]
        connection.execute(sa.insert(schema.job), jobs)
        first = [
            row | {"dag_id": "dag0", "job_id": "job0", "number": n, "ti_id": f"0-{n}", "run_id": f"run{n}"}
            | {"told_seq": n, "opened_at": 1e9 + n}
            for n in range(1, 401)
        ]  # fmt: skip
        connection.execute(sa.insert(schema.trial), first)
        columns = [c for c in schema.trial.c if c.name in row]
        for j in range(1, 500):  # copied by the database itself, which is much faster
            own = {
                "dag_id": sa.literal(f"dag{j}"),
                "job_id": sa.literal(f"job{j}"),
                "ti_id": sa.literal(f"{j}-") + sa.cast(schema.trial.c.number, sa.Text),
            }
            copied = sa.select(*(own.get(c.name, c) for c in columns)).where(
                schema.trial.c.job_id == "job0"
            )
            connection.execute(sa.insert(schema.trial).from_select(columns, copied))
    engine.dispose()
    read: list[Any] = []
    monkeypatch.setattr(sql_pages, "read_row", lambda row: read.append(row) or read_row(row))
    began = time.process_time()
    answer = viewer.get("/zeus/api/jobs")
    print(f"jobs: {time.process_time() - began:.3f} s, {len(answer.content)} bytes")
    assert len(answer.json()["jobs"]) == 501
    assert len(read) == 500 * overview_state.NEWEST + 1
    began = time.process_time()
    assert viewer.get("/zeus/api/jobs/dag7/saved", params={"job_id": "job7"}).status_code == 200
    print(f"saved: {time.process_time() - began:.3f} s")


def test_json_is_told_plainly(viewer: Any, store: Store, known_dags: set[str]) -> None:
    ran(store, 1)
    assert json.loads(viewer.get("/zeus/api/jobs").text)["note"] is None


# --- the month of all jobs


def test_the_month_is_of_readable_dags_alone(
    viewer: Any, store: Store, known_dags: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview_routes, "WORK_S", 60.0)  # however busy the host is
    for n, dag_id in enumerate(("d", "d", "d", "e", SECRET, "unknown"), start=1):
        ran(store, n, dag_id=dag_id, job_id=f"{dag_id}.train")
    month = month_of(store.trials("d.train")[0].opened_at)
    answer = viewer.get("/zeus/api/months", params={"month": month}).json()
    (kind,) = answer["kinds"]
    assert (answer["month"], kind["kind"], kind["answers"][0]["about"]) == (
        month,
        "simulated",
        "4 runs of 2 jobs",
    )
    saved = viewer.get("/zeus/api/months/saved", params={"month": month}).json()
    assert (saved["done"], saved["answers"].keys()) == (True, {"simulated"})


def test_a_dag_that_was_deleted_keeps_its_log_which_the_pages_show_again_when_it_is_back(
    viewer: Any, store: Store, known_dags: set[str]
) -> None:
    for n, dag_id in enumerate(("d", "e", "e"), start=1):
        ran(store, n, dag_id=dag_id, job_id=f"{dag_id}.train")
    month = month_of(store.trials("d.train")[0].opened_at)

    def spent() -> str:
        (kind,) = viewer.get("/zeus/api/months", params={"month": month}).json()["kinds"]
        return str(kind["answers"][0]["about"])

    before = viewer.get("/zeus/api/jobs").json()["jobs"]
    assert spent() == "3 runs of 2 jobs"
    known_dags.discard("e")
    assert [job["job_id"] for job in viewer.get("/zeus/api/jobs").json()["jobs"]] == ["d.train"]
    assert spent() == "1 run of 1 job"
    spent_in_log = store.sums(month_bounds(month, 1))
    assert {s.job_id for s in spent_in_log} == {"d.train", "e.train"}, (
        "as airflow zeus report counts them"
    )
    known_dags.add("e")
    assert viewer.get("/zeus/api/jobs").json()["jobs"] == before
    assert spent() == "3 runs of 2 jobs"


def test_savings_of_many_jobs_come_bit_by_bit(
    viewer: Any, store: Store, known_dags: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview_routes, "WORK_S", 0.0)
    for n in range(1, 4):
        for job in ("a", "b", "c"):
            ran(store, n, job_id=job)
    month = month_of(store.trials("a")[0].opened_at)
    said = [viewer.get("/zeus/api/months/saved", params={"month": month}).json() for _ in range(3)]
    assert [s["done"] for s in said] == [False, False, True]
    assert said[1]["progress"] == "2 of 3 jobs added up so far."


def test_more_jobs_than_are_kept_at_first_are_added_up_too(
    viewer: Any, store: Store, known_dags: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request fitted the first jobs again, which the later ones had pushed out,
    and the page asked for ever.
    """
    monkeypatch.setattr(overview_routes, "WORK_S", 0.0)
    monkeypatch.setattr(overview_routes, "_savings", LruCache(2))
    for job in ("a", "b", "c", "e", "f"):
        ran(store, 1, job_id=job)
    month = month_of(store.trials("a")[0].opened_at)
    said = [
        viewer.get("/zeus/api/months/saved", params={"month": month}).json()["done"]
        for _ in range(5)
    ]
    assert said == [False] * 4 + [True]


@pytest.mark.parametrize("month", ["", "2026", "2026-13", "2026-11-01", "yesterday", "0000-01"])
def test_what_is_no_month_is_refused(viewer: Any, store: Store, month: str) -> None:
    for route in ("/zeus/api/months", "/zeus/api/months/saved"):
        answer = viewer.get(route, params={"month": month})
        assert answer.status_code == (422 if month else 200)


def test_a_month_of_nothing_has_no_lines(viewer: Any, home: Any) -> None:
    answer = viewer.get("/zeus/api/months").json()
    assert (answer["kinds"], answer["months"], answer["chart"]) == ([], [], None)
    assert viewer.get("/zeus/api/months/saved").json() == {
        "answers": {},
        "done": True,
        "progress": "",
    }
