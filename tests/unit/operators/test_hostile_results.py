"""Result lines that someone spoilt: told as far as they can be read, and no other trial of the log is changed by them.

The log goes on afterwards: it can be read, asked and told, by SQL and by Variables alike.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.trial import PowerPoint, ProfileSample, State
from airflow_provider_zeus.operators.collect import (
    Start,
    newest_start,
    report_all,
    starts_in_folder,
    starts_in_xcom,
)
from airflow_provider_zeus.operators.config import ZeusConfig
from airflow_provider_zeus.operators.recurrence import plan_of
from airflow_provider_zeus.operators.result_reporter import ResultReporter
from airflow_provider_zeus.store.base import AskRequest
from airflow_provider_zeus.store.sql.store import SqlStore, Store
from airflow_provider_zeus.store.variables.store import VariableStore
from airflow_provider_zeus.training.protocol.events import ResultLine
from tests.hostile import HOSTILE, each_change, spoilt, texts
from tests.unit.store.store_kit import JOB, DictPort, report, request, seen

SAMPLE = ProfileSample(batch_size=32, limit_w=200.0, samples=100, energy_j=5.0, time_s=1.0, steps=4)
POINT = PowerPoint(t_s=1.0, power_w=180.0, limit_w=200.0, phase="train")
CONFIG = ZeusConfig(
    state_dir=Path("unused"), heartbeat_s=15.0, lease_s=90.0, cpu_watts=None, power_read_only=True
)
WHOLE = [
    ResultLine(kind="start", start_id="a", try_number=1),
    ResultLine(kind="attempt", start_id="a", attempt=1, batch_size=32),
    ResultLine(
        kind="beat",
        start_id="a",
        attempt=1,
        batch_size=32,
        observation=seen(32, gpu_energy_j=(5.0, 5.0)),
    ),
    ResultLine(
        kind="end",
        start_id="a",
        attempt=1,
        batch_size=32,
        state=State.CONVERGED,
        reason="Done.",
        observation=seen(32, reasons={"rest_j": "why"}),
        profile=(SAMPLE,),
        points=(POINT,),
        notes={"steps": 4.0},
    ),
    ResultLine(kind="final", start_id="a", attempt=1),
]
JOB_ID = "d.train"
LINES = [json.loads(line.to_json()) for line in WHOLE]


@pytest.fixture(params=["sqlite", pytest.param("variables", marks=pytest.mark.nightly)])
def store(request: pytest.FixtureRequest, tmp_path: Path, empty_log: Path) -> Iterator[Store]:
    """A log of a job with one trial told."""
    if request.param == "sqlite":
        shutil.copy(empty_log, tmp_path / "zeus.db")
        opened: Store = SqlStore(f"sqlite:///{tmp_path}/zeus.db", create=True, now=lambda: 1000.0)
    else:
        opened = VariableStore(DictPort(), overlap_possible=False, now=lambda: 1000.0)
    first = opened.ask(question(0)).trial
    opened.tell(first.key, State.CONVERGED, report(32, profile=1, points=1))
    yield opened
    opened.close()


numbers = itertools.count(1)


def tell_and_go_on(store: Store, found: list[Start], tmp: Path) -> None:
    """Tell what was found as the newest recurrence's; then the next one asks, trains and tells."""
    (before,) = store.trials(f"{JOB_ID}.0")[:1]
    number = next(numbers)
    asked = store.ask(question(number))
    job_id = asked.trial.job_id
    plan = plan_of(asked, CONFIG)
    port = DictPort()
    reporter = ResultReporter(store, port, asked.trial, lease_s=90.0, state_dir=tmp)
    report_all(found, reporter, plan, starts_seen=newest_start(found))
    assert port.data == {}, "a cost that no store will ever take"
    log = store.recurrence("d", asked.trial.origin.run_id)
    assert log
    assert all(t.state is not State.RUNNING for t in log), f"an end was not told: {found}"
    assert all(isinstance(p.t_s, int | float) for trial in log for p in store.points(trial.key))
    json.dumps(reporter.cost_xcom(), allow_nan=False)
    after = store.ask(question(number, run=number + 10**6)).trial
    assert store.tell(after.key, State.CONVERGED, report(after.batch_size)).state is State.CONVERGED
    sums = store.profile(job_id, ("V100", 1, "simulated"), "1")
    assert all(0 <= s.energy_j + s.time_s < math.inf and s.samples >= 0 for s in sums)
    assert store.trials(f"{JOB_ID}.0")[:1] == [before], "another trial was changed"


def question(number: int, *, run: int | None = None) -> AskRequest:
    """Of a job of its own, so that what was told before changes no decision here."""
    return request(run or number, job=JOB, job_id=f"{JOB_ID}.{number}")


@pytest.mark.slow
def test_one_change_anywhere_in_a_result(store: Store, tmp_path: Path) -> None:
    """Each part of each line, replaced by each leaf, where the line can still be read."""
    read = 0
    port = getattr(store, "_port", None)
    first = dict(port.data) if port else {}
    for index, line in enumerate(LINES):
        for changed in each_change(line):
            lines = [*LINES[:index], changed, *LINES[index + 1 :]]
            found = starts_in_xcom({"zeus": {"lines": lines}}, "zeus")
            if found and found != UNCHANGED:
                read += 1
                if port:
                    port.data = dict(first)  # else each question reads the logs of all before
                tell_and_go_on(store, found, tmp_path)
    assert read > 50, "the test has to reach the store"


UNCHANGED = starts_in_xcom({"zeus": {"lines": LINES}}, "zeus")


@pytest.mark.slow
@HOSTILE
@given(data=st.data())
def test_a_spoilt_result_file(store: Store, tmp_path: Path, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(LINES) - 1))
    lines = [json.dumps(line) for line in LINES]
    lines[index] = data.draw(texts(LINES[index]))
    raw = "\n".join([*lines, ""]).encode(errors="surrogatepass")
    raw = data.draw(
        st.sampled_from([raw, raw, raw, raw[: len(raw) // 2], b"\xff\xfe" + raw, raw * 2])
    )
    (tmp_path / "one.jsonl").write_bytes(raw)
    tell_and_go_on(store, starts_in_folder(tmp_path), tmp_path)


@pytest.mark.slow
@HOSTILE
@given(document=spoilt({"zeus": {"lines": LINES}, "value": 3}), as_text=st.booleans())
def test_a_spoilt_xcom(store: Store, tmp_path: Path, document: Any, as_text: bool) -> None:
    value = json.dumps(document) if as_text else document
    tell_and_go_on(store, starts_in_xcom(value, "zeus"), tmp_path)
