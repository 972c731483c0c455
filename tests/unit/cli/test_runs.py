"""``airflow zeus runs``: one line per trial, figures for people and for programs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from airflow_provider_zeus.cli.shell import number_text, or_dash
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import BATCH_SIZE, UNSEEN, Observation, State, untaught
from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.units import energy_text, time_text
from tests.unit.cli.conftest import Zeus, recur
from tests.unit.store.store_kit import report, request


def cells(out: str) -> list[list[str]]:
    head, _, *lines = out.rstrip().split("\n")
    return [[cell.strip() for cell in line.split("|")] for line in (head, *lines)]


def test_a_line_per_trial_with_units(zeus: Zeus, store: Store) -> None:
    recur(store, 1)
    key = store.ask(request(2)).trial.key
    store.tell(
        key, State.FAILED, Report(observation=Observation(reasons={"energy_j": "no source"}))
    )
    head, first, second = cells(zeus("runs", "d.train").out)
    assert head == [
        "attempt", "DAG run", "slice", "batch size", "phase", "state", "epochs", "energy", "time", "limit", "source"
    ]  # fmt: skip
    assert first == [
        "1.1", "run1", "s1", "32", "exploring", "reached target", "5", "0.311 Wh", "9 s", "200 W", "simulated"
    ]  # fmt: skip
    assert second[5:] == ["failed", "-", "-", "-", "-", "-"]


def test_a_run_that_teaches_nothing_is_named(zeus: Zeus, store: Store) -> None:
    key = store.ask(request(1)).trial.key
    store.tell(
        key,
        State.CONVERGED,
        Report(observation=Observation(reasons={BATCH_SIZE: "no step was counted"})),
    )
    said = zeus("runs", "d.train").out
    assert cells(said)[1][5] == "reached target (untaught)"
    assert untaught("1 run teaches nothing and counts", "no step was counted") in said
    assert json.loads(zeus("runs", "d.train", "-o", "json").out)[0]["missing"] == {
        BATCH_SIZE: "no step was counted"
    }


def test_the_map_index_of_a_mapped_task(zeus: Zeus, store: Store) -> None:
    for index in (0, 1):
        origin = replace(request(1).origin, map_index=index)
        store.ask(request(1, ti_id=f"ti-{index}", origin=origin))
    store.ask(request(2))
    head, *lines = cells(zeus("runs", "d.train").out)
    assert head[1:3] == ["DAG run", "map index"]
    assert [line[1:3] for line in lines] == [["run1", "0"], ["run1", "1"], ["run2", "-"]]
    found = json.loads(zeus("runs", "d.train", "-o", "json").out)
    assert [(t["task_id"], t["map_index"], t["run_type"]) for t in found] == [
        ("train", 0, "scheduled"),
        ("train", 1, "scheduled"),
        ("train", None, "scheduled"),
    ]


def test_the_newest_or_those_of_a_run(zeus: Zeus, store: Store) -> None:
    for n in range(1, 26):
        recur(store, n)

    def numbers(*arguments: str) -> list[int]:
        return [
            t["trial"] for t in json.loads(zeus("runs", "d.train", "-o", "json", *arguments).out)
        ]

    assert numbers() == list(range(6, 26))
    assert numbers("--last", "3") == [23, 24, 25]
    assert numbers("--last", "100") == list(range(1, 26))
    assert numbers("--run", "run2") == [2]
    assert numbers("--run", "3") == [3]
    assert numbers("--run", "nowhere") == []
    assert "run 'nowhere'" in zeus("runs", "d.train", "--run", "nowhere").out


def test_why_each_batch_size_was_chosen_and_how_it_ended(zeus: Zeus, store: Store) -> None:
    trial = store.ask(request(1)).trial
    store.tell(trial.key, State.FAILED, Report(observation=Observation()), reason="disk full")
    assert "why" not in cells(zeus("runs", "d.train").out)[0]
    out = zeus("runs", "d.train", "--why").out
    said = " ".join(line.split("|")[-1].strip() for line in out.rstrip().split("\n")[2:])
    assert said == f"{trial.planned.why} Ended: disk full"


def test_missing_figures_are_null_with_their_reason(zeus: Zeus, store: Store) -> None:
    key = store.ask(request(1)).trial.key
    store.tell(
        key,
        State.FAILED,
        Report(observation=Observation(time_s=3.0, reasons={"energy_j": "no source"})),
    )
    (trial,) = json.loads(zeus("runs", "d.train", "-o", "json").out)
    assert (trial["energy_j"], trial["time_s"], trial["epochs"]) == (None, 3.0, None)
    assert trial["missing"] == {"energy_j": "no source"}


def test_a_script_that_reports_no_metric_is_told_with_the_remedy(zeus: Zeus, store: Store) -> None:
    recur(store, 1)
    trial = store.ask(request(2, ti_id="d.train-2")).trial
    seen = Observation(
        time_s=9.0,
        reasons={UNSEEN: "the command is not seen to use batch size 32: it never names it"},
    )
    store.tell(
        trial.key,
        State.NO_METRIC,
        Report(observation=seen),
        reason="the command did not report its metric",
    )
    for command in (("runs", "d.train"), ("jobs", "list")):
        said = zeus(*command).out
        assert "No metric reported: whether run 2 reached its target is not known" in said, command
        assert "JSON on the last line of its output" in said, command
        assert "not seen to use batch size 32" in said, command
    assert "no metric reported (batch size not seen)" in zeus("runs", "d.train").out
    exported = zeus("export").out
    assert ",no metric reported," in exported
    assert ",the command did not report its metric," in exported


def test_figures_have_the_units_of_the_cost_page(zeus: Zeus, store: Store) -> None:
    recur(store, 1, energy_j=720e3, time_s=2400.0)
    assert cells(zeus("runs", "d.train").out)[1][7:9] == ["0.2 kWh", "40 min 00 s"]


def test_where_time_alone_is_weighed_a_cost_is_seconds(zeus: Zeus, store: Store) -> None:
    recur(
        store, 1, energy_j=None, energy_source=None, time_s=120.0, reasons={"energy_j": "no source"}
    )
    (trial,) = json.loads(zeus("runs", "d.train", "-o", "json").out)
    assert (trial["cost"], trial["cost_unit"], trial["energy_source"]) == (120.0, "s", None)
    assert cells(zeus("runs", "d.train").out)[1][7:] == [
        "-",
        "2 min 00 s",
        "200 W",
        "energy not measured",
    ]


@pytest.mark.parametrize("last", ["0", "-1", "x"])
def test_a_number_of_trials_is_positive(zeus: Zeus, last: str) -> None:
    assert zeus("runs", "d.train", f"--last={last}").status == 2


@pytest.mark.parametrize(
    ("energy_j", "text"),
    [
        (None, "-"), (0.0, "0 Wh"), (1500.0, "0.417 Wh"), (359e3, "99.7 Wh"),
        (1.8e6, "0.5 kWh"), (36e6, "10 kWh"),
    ],
)  # fmt: skip
def test_energies_for_people(energy_j: float | None, text: str) -> None:
    assert or_dash(energy_j, energy_text) == text


@pytest.mark.parametrize(
    ("time_s", "text"),
    [(None, "-"), (0.25, "0.25 s"), (12.34, "12.3 s"), (100.0, "1 min 40 s"), (7200.0, "2 h 00 min")],
)  # fmt: skip
def test_times_for_people(time_s: float | None, text: str) -> None:
    assert or_dash(time_s, time_text) == text


def test_numbers_for_people() -> None:
    assert [number_text(v, " W") for v in (None, 200.0, 0.26)] == ["-", "200 W", "0.3 W"]


@pytest.mark.parametrize("arguments", [("runs", "d.train"), ("jobs", "list")])
def test_yaml_holds_what_json_holds(zeus: Zeus, store: Store, arguments: tuple[str, ...]) -> None:
    recur(store, 1)
    recur(store, 2, State.FAILED)
    as_json, as_yaml = (zeus(*arguments, "-o", form).out for form in ("json", "yaml"))
    assert yaml.safe_load(as_yaml) == json.loads(as_json)
    assert as_yaml.isascii()


@pytest.mark.parametrize("arguments", [("runs", "d.train"), ("jobs", "list")])
def test_plain_has_a_line_per_row_and_nothing_else(
    zeus: Zeus, store: Store, arguments: tuple[str, ...]
) -> None:
    for n in (1, 2):
        recur(store, n)
    lines = zeus(*arguments, "-o", "plain").out.splitlines()
    assert lines[0].split()[0] in ("attempt", "job")
    assert [line.split()[0] for line in lines[1:]] == (
        ["1.1", "2.1"] if arguments[0] == "runs" else ["d.train"]
    )
    assert "|" not in "".join(lines)


def test_plain_of_nothing_is_empty(zeus: Zeus, store: Store) -> None:
    recur(store, 1)
    done = zeus("runs", "d.train", "--run", "none", "-o", "plain")
    assert (done.out, "No run 'none' in the log of d.train" in done.err) == ("", True)


def test_attempts_of_a_run_and_a_slice_that_its_name_repeats(zeus: Zeus, store: Store) -> None:
    recur(store, 1)
    day = replace(request(2).origin, run_id="scheduled__2026-01-02", data_slice="2026-01-02")
    failed = store.ask(request(2, origin=day)).trial
    store.tell(failed.key, State.FAILED, report(16))
    store.ask(request(2, ti_id="again", origin=replace(day, try_number=2)))
    found = json.loads(zeus("runs", "d.train", "--last", "1", "-o", "json").out)
    assert [(each["run"], each["attempt"]) for each in found] == [(2, "2.1"), (2, "2.2")]
    assert "slice" in cells(zeus("runs", "d.train").out)[0], "one of them says more than its run"
    assert "slice" not in cells(zeus("runs", "d.train", "--last", "1").out)[0]


def test_the_id_of_a_dag_stands_for_its_job(zeus: Zeus, store: Store) -> None:
    recur(store, 1)
    assert zeus("runs", "d").out == zeus("runs", "d.train").out
    for command in (
        ("jobs", "pause", "d"),
        ("jobs", "exclude", "d", "1"),
        ("export", "d"),
        ("prune", "--older-than", "1h", "--job", "d"),
    ):
        assert zeus(*command).status == 0, command
    recur(store, 1, job_id="other")  # of the same DAG
    for command in (("runs", "d"), ("export", "d"), ("repair", "--close", "d", "1.1", "-y")):
        said = zeus(*command).err
        assert said == ("JOB = 'd': this DAG has 2 jobs. Name one of them: d.train, other.\n"), (
            command
        )
    assert zeus("jobs", "rename", "d", "e").err.startswith("JOB = 'd': this DAG has 2 jobs.")
