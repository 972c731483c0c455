"""Trace files that someone spoilt: one line that names file, line and remedy,
or a replay with finite figures.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.errors import JobSpecError
from benchmarks.simulation.driver import replay
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.traces import Traces
from tests.hostile import HOSTILE
from tests.unit.benchmarks.simulation.tiny import tiny

CELLS = [
    "",
    "x",
    "-1",
    "0",
    "nan",
    "inf",
    "1e308",
    "1e-320",
    "9" * 400,
    "0.5",
    "16",
    "32",
    "\0",
    '"',
    "a,b",
    "é",
    "\r",
]


@HOSTILE
@given(data=st.data())
def test_a_spoilt_trace(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("traces")
    tiny(folder)
    path = data.draw(st.sampled_from(sorted(folder.glob("*.csv"))))
    path.write_bytes(_spoilt(path, data))
    for gpu, workload in ((None, None), ("toy", "bert_qa")):
        said = _replayed(Traces(folder), gpu, workload)
        assert said == "replayed" or (str(folder) in said or " = " in said), said
        assert "\n" not in said
        assert said == "replayed" or said.count(". ") >= 1, f"no remedy: {said}"


def _spoilt(path: Path, data: st.DataObject) -> bytes:
    rows = [line.split(",") for line in path.read_text().splitlines()]
    how = data.draw(
        st.sampled_from(["cell", "cell", "cell", "drop", "twice", "short", "cut", "bytes"])
    )
    row = data.draw(st.integers(0, len(rows) - 1))
    if how == "cell":
        rows[row][data.draw(st.integers(0, len(rows[row]) - 1))] = data.draw(st.sampled_from(CELLS))
    elif how == "drop":
        del rows[row]
    elif how == "twice":
        rows.insert(row, list(rows[row]))
    elif how == "short":
        del rows[row][data.draw(st.integers(0, len(rows[row]) - 1)) :]
    raw = "\n".join(",".join(cells) for cells in rows).encode()
    if how == "cut":
        return raw[: data.draw(st.integers(0, len(raw)))]
    return data.draw(st.binary(max_size=60)) + raw if how == "bytes" else raw


def _replayed(traces: Traces, gpu: str | None, workload: str | None) -> str:
    try:
        pairs = traces.pairs([gpu] if gpu else (), [workload] if workload else ())
        for pair in pairs:
            scenario = Scenario(pair, 0.5)
            log = replay(scenario, scenario.job(policy="zeus"), 3, 0)
            assert len(log) == 3
            assert all(map(math.isfinite, [*log.energy_j, *log.time_s, *log.cost]))
    except JobSpecError as error:
        return str(error)
    return "replayed"
