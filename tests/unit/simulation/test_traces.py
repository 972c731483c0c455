"""Reading traces: what is found in a folder, and the one line that names what is wrong with it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.simulation.traces import Point, Traces
from tests.unit.simulation.tiny import POWER_HEAD, TRAIN_HEAD, power_rows, tiny, train_rows, write


def test_a_pair_as_measured(tmp_path: Path) -> None:
    pair = tiny(tmp_path).pair
    assert pair.name == "bert_qa/toy"
    assert pair.batch_sizes == (16, 32, 64)
    assert pair.limits_w == (100.0, 200.0)
    assert pair.points[32] == (Point(100, 12, 90), Point(200, 8, 190))
    assert pair.epochs == {16: (2, 2), 32: (3, 3), 64: (3, math.inf)}
    assert (pair.default_batch_size, pair.max_epochs, pair.max_power_w) == (32, 6, 200.0)
    assert pair.recurrences == 2 * 3 * 2


def test_a_default_without_power_rows_gives_way_to_the_largest_below_it(tmp_path: Path) -> None:
    rows = [row for row in power_rows() if ",32," not in row]
    assert Traces(write(tmp_path, power=[POWER_HEAD, *rows])).pair("bert_qa", "toy").default_batch_size == 16
    rows = [row for row in power_rows() if ",64," in row]
    assert Traces(write(tmp_path, power=[POWER_HEAD, *rows])).pair("bert_qa", "toy").default_batch_size == 64


def test_max_power_is_that_of_the_whole_gpu(tmp_path: Path) -> None:
    other = "cifar100,shufflenetv2,8,adadelta,300,5,310"  # its power is above its limit, as in the real traces
    assert Traces(write(tmp_path, power=[POWER_HEAD, *power_rows(), other])).pair("bert_qa", "toy").max_power_w == 300


def test_more_gpus_and_workloads_are_found_by_listing(tmp_path: Path) -> None:
    train = [TRAIN_HEAD, *train_rows()]
    train += ["mine,net,4,sgd,1,1,0.9,10", "mine,net,8,sgd,1,1,0.9,7", "mine,net,16,sgd,1,1,0.9,"]
    train += ["squad,bert_base_uncased,8,sgd,1,1,84.0,2"]  # a known training with another optimizer is not a new one
    write(tmp_path, train)
    write(tmp_path, train, [POWER_HEAD, *(f"mine,net,{b},sgd,100,5,80" for b in (4, 8, 16))], gpu="other")
    traces = Traces(tmp_path)
    assert traces.gpus == ("other", "toy")
    assert list(traces.workloads) == ["bert_qa", "mine-net-sgd@0.9"]
    assert [p.name for p in traces.pairs()] == ["mine-net-sgd@0.9/other", "bert_qa/toy"]
    found = traces.pair("mine-net-sgd@0.9", "other")
    assert found.default_batch_size == 8, "the largest that always reaches its target (section 6.1)"
    assert found.max_epochs == 20
    assert [p.name for p in traces.pairs(gpus=["toy"])] == ["bert_qa/toy"]


@pytest.mark.parametrize(
    ("train", "power", "problem"),
    [
        (None, [POWER_HEAD.replace("power_limit", "limit"), *power_rows()], "lacks the column power_limit"),
        ([TRAIN_HEAD.replace("target_epoch", "epoch")], None, "lacks the column target_epoch"),
        ([], None, "lacks the column dataset"),
        (None, [POWER_HEAD, "squad,bert_base_uncased,16,adamw,100,fast,90"], "time_per_epoch = 'fast': in line 2 of"),
        (None, [POWER_HEAD, "squad,bert_base_uncased,16,adamw,100,-3,90"], "is not a positive number"),
        (None, [POWER_HEAD, "squad,bert_base_uncased,16,adamw,100,3"], "average_power = None: in line 2"),
        ([TRAIN_HEAD, "squad,bert_base_uncased,x,adamw,1,1,84.0,2"], None, "batch_size = 'x': in line 2"),
        ([TRAIN_HEAD, "squad,bert_base_uncased,16,adamw,1,1,84.0,inf"], None, "target_epoch = 'inf'"),
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
    with pytest.raises(JobSpecError, match=r"holds no summary_power_<gpu>\.csv"):
        Traces(tmp_path).pairs()
    write(tmp_path)
    with pytest.raises(JobSpecError, match=r"gpu = 'h100'.*Use one of toy"):
        Traces(tmp_path).pair("bert_qa", "h100")
    with pytest.raises(JobSpecError, match=r"gpu = 'h100'.*Use one of toy"):
        Traces(tmp_path).pairs(gpus=["h100"])
    with pytest.raises(JobSpecError, match=r"workload = 'gpt'.*Use one of bert_qa"):
        Traces(tmp_path).pairs(workloads=["gpt"])
    (tmp_path / "summary_train.csv").unlink()
    with pytest.raises(JobSpecError, match=r"summary_train\.csv': cannot be read \(No such file or directory\)"):
        Traces(tmp_path).pairs()
    (tmp_path / "summary_train.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(JobSpecError, match="is not a text file"):
        Traces(tmp_path).pairs()
