"""``airflow zeus simulate``: the product's policies on measured traces."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from airflow_provider_zeus.cli.simulate import _paid_back_at
from airflow_provider_zeus.simulation.driver import replay
from tests.unit.cli.conftest import Zeus
from tests.unit.cli.test_trials import cells
from tests.unit.simulation.tiny import TRAIN_HEAD, tiny, write


@pytest.fixture
def traces(home: Path) -> str:
    folder = home / "traces"
    folder.mkdir()
    return str(write(folder))


def test_a_line_per_policy(zeus: Zeus, traces: str) -> None:
    done = zeus("simulate", "--traces", traces, "--policy", "default", "zeus", "--seeds", "1")
    head, *lines = cells(done.out)
    assert head == [
        "workload", "gpu", "policy", "recurrences", "regret [C*]", "energy", "time", "energy, last 5", "time, last 5",
        "pays from run", "below target",
    ]  # fmt: skip
    row = ["bert_qa", "toy", "default", "12", "2.04", "1.000", "1.000", "1.000", "1.000", "-", "0"]
    assert lines[0] == row, "12 x 680 J of 4000 J"
    assert [line[2] for line in lines[:2]] == ["default", "zeus"]


def test_what_would_have_been_saved_in_words(zeus: Zeus, traces: str) -> None:
    """One run of 32 takes 3 epochs of 1520 J and 8 s; where each limit has half of the first, 220 J less, 2 s more."""
    done = zeus("simulate", "--traces", traces, "--policy", "default", "zeus", "--recurrences", "1", "--seeds", "2")
    legend, (said,) = done.out.splitlines()[4:-1], done.out.splitlines()[-1:]
    assert legend[0].startswith("Simulated; means over 2 replays.")
    assert said.startswith("bert_qa on toy: ")
    for part in ("over 1 run zeus", "4.8% less energy (0.0611 Wh", "8.3% more time (2 s", "batch size 32 at"):
        assert part in said


def test_another_default_to_compare_with(zeus: Zeus, traces: str) -> None:
    """16 is the best: nothing pays. 2 epochs of 2000 J and 10 s are the measure then."""
    common = ("simulate", "--traces", traces, "--seeds", "1", "-o", "json", "--policy", "zeus", "default")
    zeus_, default = json.loads(zeus(*common, "--default-batch-size", "16").out)["summaries"]
    assert (default["default_batch_size"], default["regret"], default["energy"]) == (16, 0, 1)
    assert zeus_["paid_back_at"] is None
    assert zeus_["saved_energy_j"] == pytest.approx(4000 * (1 - zeus_["energy"]))
    assert zeus_["saved_time_s"] == pytest.approx(20 * (1 - zeus_["time"]))
    assert zeus(*common, "--default-batch-size", "24").err.startswith("default_batch_size = 24: was not measured")


def test_when_a_policy_has_paid_for_itself() -> None:
    assert _paid_back_at(10, [[9, 9]]) == 1
    assert _paid_back_at(10, [[12, 9, 8, 7]]) == 3, "29 J of 30"
    assert _paid_back_at(10, [[12, 7, 20, 2]]) is None
    assert _paid_back_at(10, [[14, 8], [4, 8]]) == 1, "in the mean over seeds"
    assert _paid_back_at(10, [[10, 10]]) is None
    assert _paid_back_at(0.3, [[0.1 + 0.2 - 1e-16, 0.1]]) == 2, "the last digit saves nothing"


def test_figures_are_those_of_the_replay(zeus: Zeus, traces: str) -> None:
    """Two seeds of 8 recurrences; with --verbose a line for each of them too."""
    scenario = tiny(Path(traces))
    done = zeus("simulate", "--traces", traces, "--policy", "zeus", "--seeds", "2", "--recurrences", "8",
                "--verbose", "-o", "json")  # fmt: skip
    found = json.loads(done.out)
    (summary,), lines = found["summaries"], found["recurrences"]
    logs = [replay(scenario, scenario.job(policy="zeus"), 8, seed) for seed in (0, 1)]
    assert summary["regret"] == pytest.approx(sum(log.regret()[-1] for log in logs) / 2)
    assert summary["energy_last5"] == pytest.approx(sum(sum(log.energy_j[-5:]) for log in logs) / 10 / (3 * 1520))
    assert summary["attempts"] == sum(sum(log.attempts) for log in logs) == sum(len(r["batch_sizes"]) for r in lines)
    assert (summary["recurrences"], summary["runs_without_model"]) == (16, 0)
    assert [r["energy_j"] for r in lines] == [j for log in logs for j in log.energy_j]
    assert [(r["seed"], r["recurrence"]) for r in lines] == [(seed, n) for seed in (0, 1) for n in range(1, 9)]
    assert found["source"] == "simulated"


def test_by_itself_it_compares_the_policies_of_this_package(zeus: Zeus, traces: str) -> None:
    found = json.loads(zeus("simulate", "--traces", traces, "--recurrences", "3", "-o", "json").out)
    assert [s["policy"] for s in found["summaries"]] == ["knowledge_gradient", "zeus"]
    assert {s["seeds"] for s in found["summaries"]} == {5}
    assert found["recurrences"] == []


def test_eta_counts(zeus: Zeus, traces: str) -> None:
    """At eta 1 energy alone counts: C* is 3 epochs of 32 at 100 W, 1080 J each; Default pays 3 of 1520 J."""
    arguments = ("simulate", "--traces", traces, "--policy", "default", "--seeds", "1", "--eta", "1", "-o", "json")
    (summary,) = json.loads(zeus(*arguments).out)["summaries"]
    assert summary["regret"] == pytest.approx(12 * (1520 - 1080) / 1080)


def test_a_line_per_recurrence_in_the_table(zeus: Zeus, traces: str) -> None:
    out = zeus(
        "simulate", "--traces", traces, "--policy", "default", "--seeds", "1", "--recurrences", "2", "--verbose"
    ).out
    first = next(line for line in cells(out)[1:] if line[0] == "bert_qa")
    assert first == [
        "bert_qa", "toy", "default", "0", "1", "32", "3", "1.27 Wh", "24 s", "200 W", "reached", "0.17"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--policy", "nope"), "Baselines are default, grid_search."),
        (("--workload", "nope"), "workload = 'nope'"),
        (("--gpu", "nope"), "gpu = 'nope'"),
        (("--eta", "2", "--policy", "default"), "eta = 2"),
        (("--eta", "nan"), "eta = nan"),
    ],
)
def test_what_cannot_be_replayed_is_one_line(zeus: Zeus, traces: str, arguments: tuple[str, ...], said: str) -> None:
    done = zeus("simulate", "--traces", traces, *arguments)
    assert (done.status, done.out) == (1, "")
    assert said in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ("dataset,network\n", "lacks the columns optimizer"),
        (f"{TRAIN_HEAD}\nsquad,bert_base_uncased,32,adamw,1,1,84.0,many\n", "target_epoch = 'many': in line 2 of"),
        (f"{TRAIN_HEAD}\nsquad,bert_base_uncased,32,adamw\n", "target_epoch = None: in line 2 of"),
        (f"{TRAIN_HEAD}\nsquad,bert_base_uncased,32,adamw,1,1,84.0,\n", "default_batch_size = 32: no run of bert_qa"),
        (f"{TRAIN_HEAD}\nsquad,bert_base_uncased,33,adamw,1,1,84.0,1\n", "no power trace of bert_qa at a batch size"),
    ],
)
def test_bad_traces_are_one_line_with_a_remedy(zeus: Zeus, traces: str, train: str, said: str) -> None:
    (Path(traces) / "summary_train.csv").write_text(train)
    done = zeus("simulate", "--traces", traces)
    assert (done.status, done.out, len(done.err.splitlines())) == (1, "", 1)
    assert said in done.err
    assert re.search(r"\. (Give|Correct|Add|Measure) .*\.$", done.err.strip()), "the remedy"


def test_no_traces_no_replay(zeus: Zeus, home: Path) -> None:
    done = zeus("simulate", "--traces", str(home / "nowhere"))
    assert done.status == 1
    assert "nowhere': is not a folder" in done.err
    assert zeus("simulate").status == 2
