"""Reading traces: what is found in a folder, and the one line that names what is wrong with it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job_checks import POLICIES
from benchmarks.simulation.driver import default, grid_search, replay
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import PowerMeasurement, Traces
from tests.strategies import REPRODUCIBLE
from tests.unit.benchmarks.simulation.tiny import (
    POWER_HEAD,
    TRAIN_HEAD,
    power_rows,
    tiny,
    train_rows,
    write,
)


def test_a_pair_as_measured(tmp_path: Path) -> None:
    pair = tiny(tmp_path).pair
    assert pair.name == "bert_qa/toy"
    assert pair.batch_sizes == (16, 32, 64)
    assert pair.limits_w == (100.0, 200.0)
    assert pair.points[32] == (PowerMeasurement(100, 12, 90), PowerMeasurement(200, 8, 190))
    assert pair.epochs == {16: (2, 2), 32: (3, 3), 64: (3, math.inf)}
    assert (pair.default_batch_size, pair.max_epochs, pair.max_power_w) == (32, 6, 200.0)
    assert pair.recurrences == 2 * 3 * 2


def test_a_default_without_power_rows_gives_way_to_the_largest_below_it(tmp_path: Path) -> None:
    rows = [row for row in power_rows() if ",32," not in row]
    assert (
        Traces(write(tmp_path, power=[POWER_HEAD, *rows])).pair("bert_qa", "toy").default_batch_size
        == 16
    )
    rows = [row for row in power_rows() if ",64," in row]
    assert (
        Traces(write(tmp_path, power=[POWER_HEAD, *rows])).pair("bert_qa", "toy").default_batch_size
        == 64
    )


def test_another_default(tmp_path: Path) -> None:
    pair = tiny(tmp_path).pair
    assert pair.starting_at(16) == replace(pair, default_batch_size=16)
    with pytest.raises(
        JobSpecError, match=r"default_batch_size = 24: .* bert_qa/toy\. Use one of 16"
    ):
        pair.starting_at(24)
    never = replace(pair, epochs={**pair.epochs, 16: (math.inf, 7.0)})
    with pytest.raises(JobSpecError, match=r"6 epochs\. Use one of 32, 64\."):
        never.starting_at(16)


def test_max_power_is_that_of_the_whole_gpu(tmp_path: Path) -> None:
    # its power is above its limit, as in the real traces
    other = "cifar100,shufflenetv2,8,adadelta,300,5,310"
    assert (
        Traces(write(tmp_path, power=[POWER_HEAD, *power_rows(), other]))
        .pair("bert_qa", "toy")
        .max_power_w
        == 300
    )


def test_more_gpus_and_workloads_are_found_by_listing(tmp_path: Path) -> None:
    train = [TRAIN_HEAD, *train_rows()]
    train += ["mine,net,4,sgd,1,1,0.9,10", "mine,net,8,sgd,1,1,0.9,7", "mine,net,16,sgd,1,1,0.9,"]
    # a known training with another optimizer is not a new one
    train += ["squad,bert_base_uncased,8,sgd,1,1,84.0,2"]
    write(tmp_path, train)
    write(
        tmp_path,
        train,
        [POWER_HEAD, *(f"mine,net,{b},sgd,100,5,80" for b in (4, 8, 16))],
        gpu="other",
    )
    traces = Traces(tmp_path)
    assert traces.gpus == ("other", "toy")
    assert list(traces.workloads) == ["bert_qa", "mine-net-sgd@0.9"]
    assert [p.name for p in traces.pairs()] == ["mine-net-sgd@0.9/other", "bert_qa/toy"]
    assert [p.name for p in traces.pairs(workloads=["bert_qa"])] == ["bert_qa/toy"], (
        "the GPU that measured it"
    )
    with pytest.raises(JobSpecError, match=r"workload = 'bert_qa': .* other"):
        traces.pairs(["other"], ["bert_qa"])
    found = traces.pair("mine-net-sgd@0.9", "other")
    assert found.default_batch_size == 8, "the largest that always reaches its target (section 6.1)"
    assert found.max_epochs == 20
    assert [p.name for p in traces.pairs(gpus=["toy"])] == ["bert_qa/toy"]


@pytest.mark.parametrize(
    ("train", "power", "problem"),
    [
        (
            None,
            [POWER_HEAD.replace("power_limit", "limit"), *power_rows()],
            "lacks the column power_limit",
        ),
        ([TRAIN_HEAD.replace("target_epoch", "epoch")], None, "lacks the column target_epoch"),
        ([], None, "lacks the columns dataset"),
        (
            None,
            [POWER_HEAD, "squad,bert_base_uncased,16,adamw,100,fast,90"],
            "time_per_epoch = 'fast': in line 2 of",
        ),
        (
            None,
            [POWER_HEAD, "squad,bert_base_uncased,16,adamw,100,-3,90"],
            "is not a positive number",
        ),
        (
            None,
            [POWER_HEAD, "squad,bert_base_uncased,16,adamw,100,3"],
            "average_power = None: in line 2",
        ),
        (
            [TRAIN_HEAD, "squad,bert_base_uncased,x,adamw,1,1,84.0,2"],
            None,
            "batch_size = 'x': in line 2",
        ),
        (
            [TRAIN_HEAD, "squad,bert_base_uncased,16,adamw,1,1,84.0,inf"],
            None,
            "target_epoch = 'inf'",
        ),
        (
            [TRAIN_HEAD, "squad,bert_base_uncased,16.5,adamw,1,1,84.0,2"],
            None,
            "batch_size = '16.5': in line 2",
        ),
        (
            [TRAIN_HEAD, "squad,bert_base_uncased,0.5,adamw,1,1,84.0,2"],
            None,
            "is not a whole number",
        ),
        (
            [TRAIN_HEAD, "squad,bert_base_uncased,16,adamw,1,1,84.0"],
            None,
            "target_epoch = None: in line 2",
        ),
        (
            [TRAIN_HEAD, "squad,bert_base_uncased,16,adamw,1,1,84.0,1e300"],
            None,
            "is not a positive number from 1e-09",
        ),
        (
            [
                "target_epoch,target_metric,batch_size,dataset,optimizer,network",
                "2,84.0,16,squad,adamw",
            ],
            None,
            "network = None",
        ),
        (
            [TRAIN_HEAD, "squad,bert_base_uncased,32,adamw,1,1,84.0,7"],
            None,
            "default_batch_size = 32: no run of bert_qa/toy",
        ),
        ([TRAIN_HEAD], None, "workload = 'bert_qa': is not in these traces"),
        (None, [POWER_HEAD], "has no power trace on toy"),
    ],
)
def test_bad_files_are_named_in_one_line(
    tmp_path: Path, train: list[str] | None, power: list[str] | None, problem: str
) -> None:
    with pytest.raises(JobSpecError) as raised:
        Traces(write(tmp_path, train, power)).pair("bert_qa", "toy")
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


def test_missing_files_and_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(JobSpecError, match=r"nowhere': is not a folder\."):
        Traces(tmp_path / "nowhere").pairs()
    with pytest.raises(JobSpecError, match=r"no summary_power_<gpu>\.csv"):
        Traces(tmp_path).pairs()
    write(tmp_path)
    with pytest.raises(JobSpecError, match=r"gpu = 'h100': .* toy\."):
        Traces(tmp_path).pair("bert_qa", "h100")
    with pytest.raises(JobSpecError, match=r"gpu = 'h100': .* toy\."):
        Traces(tmp_path).pairs(gpus=["h100"])
    with pytest.raises(JobSpecError, match=r"workload = 'gpt': .* bert_qa\."):
        Traces(tmp_path).pairs(workloads=["gpt"])
    (tmp_path / "summary_train.csv").unlink()
    with pytest.raises(JobSpecError, match=r"summary_train\.csv': cannot be read"):
        Traces(tmp_path).pairs()
    (tmp_path / "summary_train.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(JobSpecError, match="is not a CSV file"):
        Traces(tmp_path).pairs()


def test_another_target_of_a_workload_of_table_1_is_found_where_its_own_is_not_there(
    tmp_path: Path,
) -> None:
    train = [TRAIN_HEAD, *(row.replace("84.0", "80.0") for row in train_rows())]
    assert list(Traces(write(tmp_path, train)).workloads) == ["squad-bert_base_uncased-adamw@80"]


def test_two_trainings_of_one_name_are_refused(tmp_path: Path) -> None:
    """A slash in a name counts as a dash, since names become paths:
    neither is to hide the other.
    """
    train = [TRAIN_HEAD, "mine,a/b,4,sgd,1,1,0.9,10", "mine,a-b,4,sgd,1,1,0.9,20"]
    with pytest.raises(JobSpecError, match=r"workload = 'mine-a-b-sgd@0\.9': "):
        _ = Traces(write(tmp_path, train)).workloads


def test_two_files_without_a_batch_size_in_common_are_no_traces(tmp_path: Path) -> None:
    """Not "nothing to replay" and success."""
    power = [POWER_HEAD, *(row.replace("uncased,", "uncased,1") for row in power_rows())]
    with pytest.raises(JobSpecError, match=r"traces = .* bert_qa .* summary_train\.csv"):
        Traces(write(tmp_path, power=power)).pairs()


JUNK = st.one_of(
    st.sampled_from(["", "0", "-1", "nan", "inf", "1e400", "1e300", "1e-300", '"', "1,2"]),
    st.floats().map(str),
)
SIZES = st.sampled_from(["16", "32", "64", "128"])
FIGURES = st.floats(1e-6, 1e6).map(str)


def mostly(usual: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """One cell in forty is anything."""
    return st.integers(0, 39).flatmap(lambda n: JUNK if n == 7 else usual)


@st.composite
def drawn_rows(draw: st.DrawFn, *columns: st.SearchStrategy[str]) -> list[str]:
    return [
        ",".join(
            [
                "squad,bert_base_uncased",
                draw(mostly(SIZES)),
                "adamw",
                *(draw(mostly(c)) for c in columns),
            ]
        )
        for _ in range(draw(st.integers(0, 4)))
    ]


@REPRODUCIBLE
@given(
    drawn_rows(
        st.just("1"),
        st.just("1"),
        st.sampled_from(["84.0", "0.9"]),
        st.sampled_from(["", "1", "2", "5.5"]),
    ),
    drawn_rows(st.sampled_from(["100", "200"]), FIGURES, FIGURES),
    st.booleans(),
)
def test_whatever_stands_in_the_files_it_is_replayed_or_said_in_one_line(
    train: list[str], power: list[str], own: bool
) -> None:
    """Every figure of a replay is finite, or an error names what is wrong."""
    with TemporaryDirectory() as name:
        head = (
            ([TRAIN_HEAD, *train_rows()], [POWER_HEAD, *power_rows()])
            if own
            else ([TRAIN_HEAD], [POWER_HEAD])
        )
        traces = Traces(write(Path(name), head[0] + train, head[1] + power))
        said = ""
        pairs = []
        try:
            pairs = traces.pairs()
        except JobSpecError as error:
            said = str(error)
    assert pairs or len(said.splitlines()) == 1
    for pair in pairs:
        scenario = Scenario(pair)
        logs = [replay(scenario, scenario.job(policy=policy), 3) for policy in POLICIES]
        for log in (*logs, default(scenario, 3), grid_search(scenario, 3)):
            assert all(map(math.isfinite, (*log.regret(), *log.energy_j, *log.time_s)))
        assert 0 < scenario.default_run.energy_j < math.inf
