"""A job for which no batch size is chosen on every page, and its history once it names sizes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_zeus.cli.export_lines import FORMAT, Skipped, line_of, line_of_part, parts_of
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import UNCAPPED, ProfileSample, State
from airflow_provider_zeus.reports.closing import closing
from airflow_provider_zeus.store.sql.store import Store
from tests.golden import Table
from tests.unit.plugin.kit import ran
from tests.unit.store.store_kit import outside, request, seen

PAGE = Table("job_page")
KIND = 99
PROFILE = [
    ProfileSample(batch_size=KIND, limit_w=w, samples=100, energy_j=j, time_s=10.0, steps=100)
    for w, j in ((250.0, 1000.0), (200.0, 800.0))
]


def measured(
    store: Store, n: int, mode: str = "measure", state: State = State.DONE, **changes: Any
) -> None:
    asked = store.ask(request(n, ti_id=f"d-d.train-{n}", job=ZeusJob(mode=mode), device=None))
    values = {
        "epochs": None,
        "samples": None,
        "metric": None,
        "samples_per_epoch": None,
        "gpu_busy": 0.5,
    } | changes
    profile = PROFILE if mode == "optimize" else []
    store.tell(
        asked.trial.key, state, Report(observation=seen(**values), profile=profile), reason=None
    )


def answer(viewer: Any, path: str, **params: Any) -> Any:
    got = viewer.get(f"/zeus/api/{path}", params=params)
    assert got.status_code == 200, got.text
    return got.json()


@pytest.fixture
def texts(viewer: Any, store: Store) -> Any:
    def of(path: str, **params: Any) -> str:
        return json.dumps(answer(viewer, path, **params), ensure_ascii=False)

    return of


def test_the_tab_says_what_it_took_and_what_would_save(
    viewer: Any, store: Store, texts: Any
) -> None:
    for n in (1, 2, 3):
        measured(store, n, energy_j=3600.0, time_s=10.0)
    quick = answer(viewer, "dags/d/costs")
    slow = answer(viewer, "dags/d/charts")
    assert [block["id"] for block in quick["blocks"] if block["id"] in ("belief", "controls")] == []
    assert [row["attempts"][0]["batch_size"] for row in quick["rows"]] == [None] * 3
    cost, each = slow["headline"]
    assert (each["question"], each["about"]) == ("Next run", "as the runs so far")
    assert cost["about"] == "of 3 runs"
    assert {tile["name"]: tile["figure"]["text"] for tile in cost["figures"]}["Energy"] == "3 Wh"
    shown = {tile["name"]: tile["figure"]["text"] for tile in each["figures"]}
    assert (shown["Energy"], shown["Mean power"], shown["GPU use"]) == ("1 Wh", "360 W", "50 %")
    assert 'mode="optimize"' in slow["rung"]
    named = [block["id"] for block in quick["blocks"]]
    assert named.index("headline") < named.index("cost") < named.index("rung"), "below what it took"
    PAGE.check("a job is only measured", slow["sentence"]["text"])
    assert slow["cost"]["option"]["yAxis"]["name"] == "energy [Wh]", "which is all that it costs"
    assert "Energy [Wh]" in slow["cost"]["table"]["columns"]
    assert quick["facts"] == "", "nothing is weighed"
    assert slow["cost"]["option"] is not None
    assert "None" not in texts("dags/d/costs") + texts("dags/d/charts")


def test_a_task_that_waited_elsewhere_says_so_and_asks_for_no_meter(
    viewer: Any, store: Store
) -> None:
    idle = {"energy_j": "its worker was nearly idle (0.04 s of processor time in 3 s)"}
    outside(store, 1, energy_j=None, energy_source=None, time_s=3.0, reasons=idle)
    why = answer(viewer, "dags/d/charts")["state"]
    PAGE.check("a task waited for work elsewhere", why)
    (part,) = answer(viewer, "dags/d/runs/run1/costs")["parts"]
    assert why in part["notes"]
    assert part["source"]["why"] == why


def test_what_the_power_limit_saved_stands_there_with_its_interval(
    viewer: Any, store: Store
) -> None:
    for n in (1, 2):
        measured(store, n, "optimize", samples=1000, step_kind=KIND, excess_j=0.0, excess_s=0.0)
    facts = answer(viewer, "dags/d/costs")["facts"]
    PAGE.check("how a limit is chosen", facts)
    _, saved, upcoming = answer(viewer, "dags/d/charts")["headline"]
    assert (upcoming["question"], upcoming["about"]) == ("Next run", "at 200 W, as the runs so far")
    assert [tile["name"] for tile in upcoming["figures"]][:2] == ["Energy", "Time"]
    assert saved["question"] == "Saved"
    assert saved["about"] == "by the power limit, against full power (250 W)"
    assert saved["figures"][0]["kind"] == "good"
    assert "90 % sure" in saved["figures"][0]["figure"]["exact"]
    assert [tile["name"] for tile in saved["figures"]] == ["Energy", "Time", "Together"]
    assert saved["figures"][2]["figure"]["text"].endswith(" %"), (
        "no amount that could be read as energy"
    )
    of_job = answer(viewer, "jobs/d/saved", job_id="d.train")
    assert of_job["word"] == "Saved"
    assert (of_job["kind"], of_job["of"]) == ("good", "by the power limit")
    assert of_job["figure"]["text"].startswith(saved["figures"][2]["figure"]["text"]), (
        "by the same cost as on its tab"
    )
    assert of_job["amounts"].endswith("time\u00a0not\u00a0clear\u00a0yet"), "as on its tab"
    (part,) = answer(viewer, "dags/d/runs/run2/costs")["parts"]
    assert part["verdict"]["word"] == "Saved"
    assert part["attempts"][0]["ended"].startswith("It trained, and its power limit was tuned")
    assert of_job["next"].startswith("at 200 W, about ")
    slow = answer(viewer, "dags/d/charts")
    assert "mode=" not in slow["rung"]
    PAGE.check("a power limit saved", slow["sentence"]["text"])
    assert slow["sentence"]["sure"] in slow["sentence"]["text"]
    assert slow["sentence"]["exact"].count("90 % sure") == 2
    assert slow["state"] == ""


def test_a_job_that_only_tunes_its_limit_has_the_state_and_words_of_one(
    viewer: Any, admin: Any, store: Store
) -> None:
    measured(store, 1, "optimize", power_limit_w=300.0)
    (job,) = answer(admin, "jobs")["jobs"]
    assert job["state"] == {
        "name": "tuned",
        "why": "It chooses no batch size; its power limit is tuned.",
    }
    (part,) = answer(viewer, "dags/d/runs/run1/costs")["parts"]
    assert part["verdict"]["word"] == "Tuned"
    store.ask(request(2, ti_id="d-d.train-2", job=ZeusJob(mode="optimize"), device=None))
    (part,) = answer(viewer, "dags/d/runs/run2/costs")["parts"]
    assert part["progress"]["text"] == "Running, and its power limit is tuned."
    line = closing(store.trials("d.train")[:1])
    assert line.startswith("trained, and its power limit was tuned, ")


def test_the_next_run_is_told_by_those_that_had_its_limit(viewer: Any, store: Store) -> None:
    measured(store, 1, "optimize", power_limit_w=150.0, energy_j=36_000.0, time_s=300.0)
    # a driver rounds
    measured(store, 2, "optimize", power_limit_w=249.7, energy_j=3_600.0, time_s=100.0)
    measured(store, 3, "optimize", power_limit_w=250.0, energy_j=7_200.0, time_s=140.0)
    slow = answer(viewer, "dags/d/charts")
    PAGE.check("the next run by those at its limit", slow["sentence"]["text"])
    upcoming = slow["headline"][-1]
    assert upcoming["about"] == "as those at 250 W"
    assert upcoming["figures"][0]["figure"]["text"] == "1.5 Wh"
    assert (
        answer(viewer, "jobs/d/saved", job_id="d.train")["next"]
        == "at 250 W, about 1.5 Wh and 2 min 00 s"
    )


def test_where_no_limit_can_save_anything_all_parts_say_so(viewer: Any, store: Store) -> None:
    why = {
        UNCAPPED: "the training draws 74 W, and the lowest limit is 200 W: no limit holds it back"
    }
    more = {
        "samples": 1000,
        "step_kind": KIND,
        "power_limit_w": 250.0,
        "excess_j": -9.0,
        "excess_s": -0.1,
    }
    measured(store, 1, "optimize", reasons=why, **more)
    slow = answer(viewer, "dags/d/charts")
    PAGE.check("no power limit can save anything", slow["sentence"]["text"])
    assert [card["question"] for card in slow["headline"]] == ["Cost", "Next run"]
    (part,) = answer(viewer, "dags/d/runs/run1/costs")["parts"]
    Table("run_page").check("no power limit could save anything", part["verdict"]["text"])
    assert [card["question"] for card in part["headline"]] == ["Cost"]
    assert answer(viewer, "jobs/d/saved", job_id="d.train")["word"] == "Nothing"


def test_a_job_whose_limit_is_not_tuned_yet_says_which_one_is_in_force(
    viewer: Any, store: Store
) -> None:
    measured(store, 1, "optimize", power_limit_w=300.0)
    text = answer(viewer, "dags/d/charts")["sentence"]["text"]
    PAGE.check("no power limit was tuned yet", text)


def test_a_runs_page_has_power_and_use_and_no_verdict_on_a_default(
    viewer: Any, store: Store, texts: Any
) -> None:
    measured(store, 1, energy_j=3600.0, time_s=10.0)
    (part,) = answer(viewer, "dags/d/runs/run1/costs")["parts"]
    assert part["verdict"]["word"] == "Measured"
    assert [tile["name"] for tile in part["headline"][0]["figures"]] == [
        "Energy",
        "Time",
        "Mean power",
        "GPU use",
    ]
    assert part["attempts"][0]["batch_size"] is None
    assert part["state_text"] == "done"
    charts = texts("dags/d/runs/run1/charts", job_id="d.train", task_id="train")
    assert "None" not in charts + texts("dags/d/runs/run1/costs")


def test_a_failed_and_a_running_run_are_shown(viewer: Any, store: Store) -> None:
    measured(store, 1, state=State.FAILED)
    store.ask(request(2, ti_id="d-d.train-2", job=ZeusJob(mode="measure"), device=None))
    rows = answer(viewer, "dags/d/costs")["rows"]
    assert [row["state_text"] for row in rows] == ["running", "failed"]
    (part,) = answer(viewer, "dags/d/runs/run2/costs")["parts"]
    assert part["progress"]["text"] == "Running, and measured as it is."
    answer(viewer, "dags/d/charts")


def test_the_page_of_all_jobs_and_the_month_know_it(viewer: Any, admin: Any, store: Store) -> None:
    for n in (1, 2):
        measured(store, n)
    (job,) = answer(admin, "jobs")["jobs"]
    assert (job["batch_size"], job["state"]["name"], job["outcome_text"]) == (
        None,
        "measured",
        "done",
    )
    saved = answer(viewer, "jobs/d/saved", job_id="d.train")
    assert (saved["word"], saved["text"]) == (
        "Nothing",
        "Nothing was saved so far: this job is only measured, and nothing is changed",
    )
    months = [json.dumps(answer(admin, path)) for path in ("months", "months/saved")]
    assert "None" not in "".join(months)


def test_a_job_that_names_sizes_keeps_these_runs_as_its_history(viewer: Any, store: Store) -> None:
    for n in (1, 2):
        measured(store, n)
    for n in (3, 4, 5):
        ran(store, n)
    rows = answer(viewer, "dags/d/costs")["rows"]
    assert [row["attempts"][-1]["batch_size"] for row in rows][-2:] == [None, None]
    slow = answer(viewer, "dags/d/charts")
    assert (
        "Left out: 2 attempts that were measured before the job named batch sizes." in slow["gaps"]
    )
    assert slow["headline"]
    assert slow["cost"]["option"] is not None


def test_an_import_reads_the_export(store: Store) -> None:
    measured(store, 1, "optimize", samples=1000, step_kind=KIND)
    parts = list(store.history("d.train"))
    lines = [line_of("format", FORMAT), *map(line_of_part, parts), line_of("end", {"trials": 1})]
    assert [*parts_of([line.encode() for line in lines], Skipped())] == parts
