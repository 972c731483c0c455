"""Traces small enough to reckon by hand, and pairs drawn at random.

At eta 0.5 and MAXPOWER 200 W an epoch costs 0.5 x energy + 100 W x time:

====  ======  ===============  ===============  ===========  ==============  ============
size  epochs  at 100 W         at 200 W         EpochCost    until success   its cost
====  ======  ===============  ===============  ===========  ==============  ============
  16  2, 2    20 s, 100 W      10 s, 200 W      2000 J       2 epochs        4000 J  (C*)
  32  3, 3    12 s,  90 W       8 s, 190 W      1560 J       3 epochs        4680 J
  64  3, -     8 s,  95 W       7 s, 180 W      1180 J       9 epochs        10620 J
====  ======  ===============  ===============  ===========  ==============  ============
"""

from __future__ import annotations

import math
from pathlib import Path

from hypothesis import strategies as st

from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Pair, PowerMeasurement, Traces

WHAT = "squad,bert_base_uncased,{},adamw"
TRAIN_HEAD = "dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch"
POWER_HEAD = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power"
EPOCHS = {16: ("2", "2"), 32: ("3", "3"), 64: ("3", "")}
POINTS = {
    16: [(100, 20, 100), (200, 10, 200)],
    32: [(100, 12, 90), (200, 8, 190)],
    64: [(100, 8, 95), (200, 7, 180)],
}


def train_rows() -> list[str]:
    return [
        f"{WHAT.format(b)},1e-3,{i},84.0,{epochs}"
        for b, runs in EPOCHS.items()
        for i, epochs in enumerate(runs)
    ]


def power_rows() -> list[str]:
    return [
        f"{WHAT.format(b)},{','.join(map(str, point))}"
        for b, points in POINTS.items()
        for point in points
    ]


def write(
    folder: Path, train: list[str] | None = None, power: list[str] | None = None, gpu: str = "toy"
) -> Path:
    """The two files in ``folder``; rows, where given, take the place of those above,
    heads included.
    """
    train = [TRAIN_HEAD, *train_rows()] if train is None else train
    power = [POWER_HEAD, *power_rows()] if power is None else power
    (folder / "summary_train.csv").write_text("\n".join(train) + "\n")
    (folder / f"summary_power_{gpu}.csv").write_text("\n".join(power) + "\n")
    return folder


def tiny(folder: Path) -> Scenario:
    """The scenario of the table above."""
    return Scenario(Traces(write(folder)).pair("bert_qa", "toy"))


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Any job whose default batch size reaches its target at least sometimes."""
    sizes = sorted(draw(st.sets(st.sampled_from([8, 16, 32, 64, 128]), min_size=1, max_size=4)))
    default = draw(st.sampled_from(sizes))
    limits = (100.0, 150.0, 200.0)
    points = {
        # no two alike: of equal costs the last digit decides, and it may differ between two ways to
        # reckon
        b: tuple(
            PowerMeasurement(
                p, draw(st.floats(2, 2000)) * (1 + b / 9973 + p / 99991), draw(st.floats(50, 250))
            )
            for p in limits
        )
        for b in sizes
    }
    needed = st.one_of(st.integers(1, 20).map(float), st.just(math.inf))
    epochs = {b: tuple(draw(st.lists(needed, min_size=1, max_size=4))) for b in sizes}
    epochs[default] = (*epochs[default], 6.0)
    return Scenario(
        Pair("drawn", "toy", default, 12, 200.0, points, epochs),
        draw(st.sampled_from([0.0, 0.5, 1.0])),
    )
