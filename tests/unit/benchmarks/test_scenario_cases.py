"""Scenarios that others bring: what a case of the file becomes, what is refused, and the report."""

from __future__ import annotations

import inspect
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.errors import JobSpecError
from benchmarks import scenarios
from benchmarks.quality import scenario_cases
from benchmarks.quality.drifts import Drift, shifted
from benchmarks.quality.scenario_cases import KEYS, read_cases
from benchmarks.quality.scenario_sets import EASIER, GPU, harder, listed, on_gpu, retargeted, static_scenarios
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Traces
from tests.unit.benchmarks.simulation.tiny import write

PAIR = {"pair": "bert_qa/toy"}


def read(folder: Path, *cases: object) -> dict[str, Drift]:
    path = folder / "cases.json"
    path.write_text(json.dumps(cases))
    return read_cases(path, Traces(write(folder)))


def test_a_pair_alone_is_as_measured(tmp_path: Path) -> None:
    found = read(tmp_path, PAIR, {**PAIR, "eta": 1, "recurrences": 7, "name": "energy alone"})
    measured = Traces(tmp_path).pair("bert_qa", "toy")
    assert found == {"cases[0]": Drift(Scenario(measured), 100), "energy alone": Drift(Scenario(measured, 1), 7)}


def test_each_key_is_a_change_of_the_benchmarks_own_sets(tmp_path: Path) -> None:
    whole = Scenario(Traces(write(tmp_path)).pair("bert_qa", "toy"))
    told = [{"target": "easier"}, {"target": "harder"}, {"gpu_fill": "wide"}, {"batch_sizes": [64, 32, 48]}]
    found = [drift.before for drift in read(tmp_path, *({**PAIR, **fields} for fields in told)).values()]
    made = [retargeted(whole, *EASIER), harder(whole), on_gpu(whole, -GPU), listed(whole, [32, 48, 64])]
    assert found == made
    own = static_scenarios([whole.pair])
    assert found[:3] == [own[f"bert_qa/toy {kind}"] for kind in ("easier target", "harder target", "wide GPU")]


def test_a_drift_is_one_of_drifts_at_its_time(tmp_path: Path) -> None:
    drift = {"kind": "level x3", "at": 5, "back": 9}
    (found,) = read(tmp_path, {**PAIR, "drift": drift, "recurrences": 12}).values()
    whole = Scenario(Traces(tmp_path).pair("bert_qa", "toy"))
    truths = shifted("level x3", whole, [whole])
    assert truths is not None
    before, after = truths
    assert found == Drift(before, 12, {5: after, 9: before})
    assert after.pair.epochs[16] == (6, 6)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"batchsizes": [16]}, r"cases\[0\].batchsizes = \[16\].*batch_sizes"),
        ({"pair": "bert_qa"}, r"cases\[0\].pair = 'bert_qa'"),
        ({"pair": "bert_qa/h100"}, "gpu = 'h100'"),
        ({"eta": 1.5}, r"cases\[0\].eta = 1.5.*0 to 1"),
        ({"eta": True}, r"cases\[0\].eta = True"),
        ({"batch_sizes": [16, 128]}, r"batch_sizes = \[16, 128\].*from 16 to 64"),
        ({"batch_sizes": [32, 32]}, "batch_sizes"),
        ({"batch_sizes": [16], "default_batch_size": 32}, "default_batch_size = 32"),
        ({"target": "easy"}, "target = 'easy'.*harder"),
        ({"target": "harder", "default_batch_size": 64}, "default_batch_size = 64: never reaches"),
        ({"gpu_fill": "big"}, "gpu_fill = 'big'"),
        ({"recurrences": 0}, "recurrences = 0"),
        ({"drift": "level x2"}, r"cases\[0\].drift = 'level x2': is not an object"),
        ({"drift": {"kind": "level y2", "at": 5}}, r"drift.kind = 'level y2'.*silent"),
        ({"drift": {"kind": ["silent"], "at": 5}}, "drift.kind"),
        ({"drift": {"kind": "switched", "at": 5}}, "drift.kind = 'switched': cannot befall"),
        ({"drift": {"kind": "level x2", "at": 100}}, r"drift.at, .back = \[100\].*1 to 99"),
        ({"drift": {"kind": "level x2", "at": 9, "back": 5}}, r"\[9, 5\]"),
        ({"drift": {"kind": "level x2", "at": 9, "for": 5}}, "drift.for = 5: is unknown"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(JobSpecError, match=named):
        read(tmp_path, {**PAIR, **fields})


@pytest.mark.parametrize("text", ["", "{}", "[]", "[1]", '[{"name": "a"}]'])
def test_a_file_that_holds_no_cases_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cases.json"
    path.write_text(text)
    told = ["--traces", str(write(tmp_path)), "--file", str(path), "--out", str(tmp_path / "out")]
    assert scenarios.main(told) == 2
    assert not (tmp_path / "out").exists()


def test_two_cases_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JobSpecError, match="'a': is the name of two cases"):
        read(tmp_path, {**PAIR, "name": "a"}, {**PAIR, "name": "a"})


def test_the_documented_example_has_every_key() -> None:
    text = inspect.getdoc(scenario_cases) or ""
    example = json.loads(textwrap.dedent(text[text.index("    [") : text.index("=====")]))
    assert set(example[0]) == set(KEYS)
    assert set(example[1]) == {"pair"}


def test_the_report_holds_each_policy_against_both_baselines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "cases.json", tmp_path / "out"
    drift = {"kind": "level x2", "at": 5}
    path.write_text(json.dumps([{**PAIR, "name": "still"}, {**PAIR, "name": "shift", "drift": drift}]))
    told = ["--traces", str(write(tmp_path)), "--seeds", "2", "--jobs", "1", "--out", str(out)]
    assert scenarios.main([*told, "--file", str(path)]) == 0
    report = json.loads((out / "report.json").read_text())
    policies = {"knowledge_gradient", "zeus", "hill_climbing", "default"}
    assert set(report["policies"]) == policies
    assert set(report["cases"]) == {"still", "shift"}
    assert report["cases"]["shift"]["regret_since"] == 5
    for case in report["cases"].values():
        assert case["default"]["total_vs_default"] == [1, 1, 1]
        assert case["zeus"]["regret_vs_paper"] == [1, 1, 1]
        for policy in policies:
            value, low, high = case[policy]["total_vs_default"]
            assert 0 < low <= value <= high
            assert case[policy]["attempts"] <= 2
    ours = report["policies"]["knowledge_gradient"]["total_vs_default"]
    costs = {name: case["knowledge_gradient"]["total_vs_default"][0] for name, case in report["cases"].items()}
    assert ours["worst_case"] == max(costs, key=lambda name: costs[name])
    assert ours["mean"][0] == pytest.approx(sum(costs.values()) / 2)
    printed = capsys.readouterr().out
    assert printed.count("| knowledge_gradient |") == 3
    assert (out / "report.md").read_text().startswith("# Cases")
