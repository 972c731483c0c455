"""The result of a training on another host is reported once, also when parts of it are missing."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.event import FAILING
from airflow_provider_zeus.model.trial import (
    LOST,
    Observation,
    Phase,
    PlannedAttempt,
    PowerPoint,
    ProfileSample,
    State,
)
from airflow_provider_zeus.operators.collect import (
    NO_RESULT,
    LinesOfPlan,
    Start,
    by_start,
    newest_start,
    open_attempts,
    report_all,
    starts_in_folder,
    starts_in_xcom,
)
from airflow_provider_zeus.operators.result_reporter import ResultReporter
from airflow_provider_zeus.operators.trial_tasks import not_told
from airflow_provider_zeus.plugin.views.costs import rows_of
from airflow_provider_zeus.plugin.views.run_view import parts_of
from airflow_provider_zeus.reports.alerts import look
from airflow_provider_zeus.reports.closing import closing
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.store.sql.store import SqlStore
from airflow_provider_zeus.training.protocol.environment import OtherRank
from airflow_provider_zeus.training.protocol.events import Kind, ResultLine
from airflow_provider_zeus.training.protocol.plan import Plan
from tests.strategies import REPRODUCIBLE
from tests.unit.store.store_kit import JOB, DictPort, report, request, seen

JOB_ID = "d.train"


def attempt(size: int) -> PlannedAttempt:
    return PlannedAttempt(batch_size=size, phase=Phase.EXPLORE, why="Because.")


PLAN = Plan(
    job_id=JOB_ID,
    ti_id="ti-2",
    number=2,
    first_attempt=1,
    spec=JOB.to_dict(),
    attempts=(attempt(16), attempt(32)),
)


def line(kind: Kind, start: str = "a", number: int | None = 1, **fields: Any) -> ResultLine:
    if kind in ("end",):
        fields = {"state": State.CONVERGED, "observation": seen(32), **fields}
    return ResultLine(kind=kind, start_id=start, attempt=number, batch_size=32, **fields)


def beat(start: str = "a", number: int = 1, energy_j: float = 5.0, **fields: Any) -> ResultLine:
    return line(
        "beat", start, number, observation=Observation(energy_j=energy_j, epochs=1.0), **fields
    )


def begun(start: str = "a", try_number: int | None = None) -> ResultLine:
    return ResultLine(kind="start", start_id=start, try_number=try_number)


class Recorder:
    """In place of a reporter: the lines it got."""

    def __init__(self) -> None:
        self.lines: list[ResultLine] = []

    def __call__(self, line: ResultLine) -> None:
        self.lines.append(line)

    def ends(self) -> list[tuple[str, int | None, str | None]]:
        return [(x.start_id, x.attempt, x.reason) for x in self.lines if x.kind == "end"]


def told(starts: list[Start], **kwargs: Any) -> Recorder:
    recorder = Recorder()
    report_all(starts, cast(ResultReporter, recorder), PLAN, **kwargs)
    return recorder


class TestXCom:
    LINES = (
        begun(try_number=2),
        line("attempt"),
        line("end"),
        ResultLine(kind="final", start_id="a", attempt=1),
    )

    def document(self) -> dict[str, Any]:
        return {"zeus": {"lines": [json.loads(x.to_json()) for x in self.LINES]}, "value": 7}

    def test_as_a_dict_and_as_text(self) -> None:
        assert starts_in_xcom(self.document(), "zeus") == [list(self.LINES)]
        assert starts_in_xcom(json.dumps(self.document()), "zeus") == [list(self.LINES)]

    def test_under_another_key(self) -> None:
        assert starts_in_xcom({"cost": self.document()["zeus"]}, "cost") == [list(self.LINES)]
        assert starts_in_xcom(self.document(), "cost") == []

    @pytest.mark.parametrize(
        "value",
        [
            None,
            "",
            "model saved",
            "{",
            "[" * 100_000,
            "NaN",
            7,
            True,
            [],
            [1],
            {},
            {"zeus": None},
            {"zeus": []},
            {"zeus": {"lines": None}},
            {"zeus": {"lines": "text"}},
            {"zeus": {"lines": [None]}},
            {"zeus": {"lines": [{"v": 2, "kind": "start", "start_id": "a"}]}},
            {"zeus": {"lines": [{"v": 1, "kind": "start", "start_id": ["a"]}]}},
            {"zeus": {"lines": [{"v": 1, "kind": "end", "start_id": "a", "state": "odd"}]}},
            {"zeus": {"lines": [{"v": 1, "kind": "end", "start_id": "a", "observation": 3}]}},
            {"zeus": {"lines": [{"v": 1, "kind": "end", "start_id": "a", "unknown": 3}]}},
        ],
    )
    def test_anything_else_is_no_result(self, value: Any) -> None:
        assert starts_in_xcom(value, "zeus") == []


class TestFolder:
    def write(self, path: Path, lines: list[ResultLine], *, at_s: float, more: str = "") -> None:
        path.write_text("".join(x.to_json() + "\n" for x in lines) + more)
        os.utime(path, (at_s, at_s))

    def test_the_oldest_start_comes_first_and_a_cut_off_line_is_left_out(
        self, tmp_path: Path
    ) -> None:
        self.write(tmp_path / "a.jsonl", [begun("late"), line("end", "late")], at_s=2000)
        self.write(
            tmp_path / "b.jsonl",
            [begun("early"), beat("early")],
            at_s=1000,
            more='{"v": 1, "kind": "en',
        )
        starts = starts_in_folder(tmp_path)
        assert [[x.kind for x in start] for start in starts] == [
            ["start", "beat"],
            ["start", "end"],
        ]
        assert [start[0].start_id for start in starts] == ["early", "late"]

    @pytest.mark.parametrize(
        "foreign",
        [b"hello\n", b"\xff\xfe\n", b'{"v": 9}\n', b'{"v": 1, "kind": "start", "start_id": []}\n'],
    )
    def test_a_foreign_file_is_named_and_left_out(
        self, tmp_path: Path, foreign: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "foreign.jsonl").write_bytes(foreign)
        (tmp_path / "notes.txt").write_text("not looked at")
        self.write(tmp_path / "a.jsonl", [begun()], at_s=1000)
        assert len(starts_in_folder(tmp_path)) == 1
        assert "foreign.jsonl" in caplog.text
        assert "notes.txt" not in caplog.text

    def test_a_file_with_more_lines_than_all_may_have_is_left_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        for name in ("a", "b", "c"):
            self.write(tmp_path / f"{name}.jsonl", [begun(name), beat(name)], at_s=1000)
        assert len(starts_in_folder(tmp_path)) == 3
        monkeypatch.setattr("airflow_provider_zeus.operators.collect.MOST_LINES", 5)
        assert len(starts_in_folder(tmp_path)) == 2
        assert len(caplog.records) == 1

    def test_what_cannot_be_opened_is_left_out(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "folder.jsonl").mkdir()
        (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nowhere")
        self.write(tmp_path / "a.jsonl", [begun()], at_s=1000)
        assert len(starts_in_folder(tmp_path)) == 1
        assert "gone.jsonl" in caplog.text
        assert "folder.jsonl" in caplog.text

    def test_empty_files_and_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").touch()
        assert starts_in_folder(tmp_path) == []
        assert starts_in_folder(tmp_path / "no") == []


def test_lines_of_two_starts_in_one_file() -> None:
    lines = [begun("a"), begun("b"), beat("a"), line("end", "b")]
    assert [[x.start_id for x in start] for start in by_start(lines)] == [["a", "a"], ["b", "b"]]


def test_which_attempts_never_ended() -> None:
    assert open_attempts([begun(), line("attempt"), line("end")]) == []
    (newest,) = open_attempts([begun(), line("attempt"), beat(energy_j=1.0), beat(energy_j=2.0)])
    assert newest.observation is not None
    assert newest.observation.energy_j == 2.0
    (newest,) = open_attempts(
        [line("attempt"), line("end"), beat("a", 2, 3.0), line("attempt", "a", 2)]
    )
    assert (newest.attempt, newest.observation and newest.observation.energy_j) == (2, 3.0)


def test_a_start_that_never_ended_has_failed_with_its_last_sums() -> None:
    recorder = told([[begun(), line("attempt"), beat(energy_j=5.0), beat(energy_j=9.0)]])
    end = recorder.lines[-1]
    assert (end.kind, end.state, end.attempt) == ("end", State.FAILED, 1)
    assert end.reason is not None
    assert NO_RESULT in end.reason
    assert end.observation == Observation(energy_j=9.0, epochs=1.0)


def test_a_start_that_never_ended_for_want_of_another_ranks_memory(tmp_path: Path) -> None:
    start = [begun(), line("attempt"), beat(energy_j=5.0)]
    full = line(
        "end",
        state=State.FAILED,
        reason="MemoryError: full",
        observation=Observation(out_of_memory=True),
    )
    OtherRank({"ZEUS_RESULT": f"{tmp_path}/"}, PLAN.ti_id, 1)(full)
    end = told([start], folder=str(tmp_path)).lines[-1]
    assert (end.state, end.reason) == (State.FAILED, "rank 1: MemoryError: full")
    assert end.observation == Observation(energy_j=5.0, epochs=1.0, out_of_memory=True)
    assert starts_in_folder(tmp_path) == [], "and what it left is taken for no result"


def test_news_of_the_last_heartbeat_are_told_once() -> None:
    sample = ProfileSample(batch_size=32, limit_w=200.0, samples=10, energy_j=2.0, time_s=1.0)
    point = PowerPoint(t_s=1.0, power_w=100.0, limit_w=200.0, phase="train")
    recorder = told([[begun(), line("attempt"), beat(profile=(sample,), points=(point,))]])
    assert [len(x.profile) for x in recorder.lines] == [0, 0, 1, 0]
    assert [len(x.points) for x in recorder.lines] == [0, 0, 1, 0]


def test_a_process_that_died_before_it_trained() -> None:
    ((start_id, number, reason),) = told([[begun()]]).ends()
    assert (start_id, number) == ("a", 1)
    assert reason is not None
    assert NO_RESULT not in reason


def test_nothing_came_back() -> None:
    recorder = told([])
    assert recorder.ends() == [("", 1, NO_RESULT)]
    (end,) = recorder.lines
    assert end.observation is not None
    assert end.observation.energy_j is None
    assert set(end.observation.reasons) == {"energy_j", "time_s", "epochs"}


def test_starts_whose_result_is_lost_are_lines_without_a_cost() -> None:
    start = [begun(try_number=3), line("attempt"), line("end")]
    assert newest_start([start]) == 3
    assert told([start], starts_seen=3).ends() == [
        ("a", 1, None),
        ("lost-1", 1, LOST),
        ("lost-2", 1, LOST),
    ]
    assert newest_start([[begun()]]) == 0
    assert newest_start([]) == 0


def test_what_a_later_try_kept_is_the_run_in_log_and_page(store: SqlStore) -> None:
    """The row of the try whose result was lost is written last."""
    first = store.ask(request(1, job_id=uuid4().hex, ti_id=uuid4().hex)).trial
    plan = replace(
        PLAN, job_id=first.job_id, ti_id=first.key.ti_id, attempts=first.decision.attempts
    )
    reporter = ResultReporter(store, DictPort(), first, lease_s=90, state_dir=Path("/no"))
    report_all(
        [[begun(try_number=2), line("attempt"), line("end"), line("final")]],
        reporter,
        plan,
        starts_seen=2,
    )
    log = store.trials(first.job_id)
    assert [(t.state, t.reason) for t in log] == [(State.CONVERGED, None), (State.FAILED, LOST)]
    assert closing(reporter.ended).startswith("reached its target after")
    (row,), (part,) = rows_of(log, JOB), parts_of(log).values()
    assert (row.state, [t.state for t in row.attempts]) == ("converged", ["failed", "converged"])
    assert [t.state for t in part] == [State.FAILED, State.CONVERGED]
    events = look({}, log, (), run=log[-1], prices=Prices()).begun
    assert not any(event.kind == FAILING for event in events)


def test_a_teardown_that_is_cleared_alone_tells_what_a_later_try_kept_again(
    store: SqlStore,
) -> None:
    first = store.ask(request(1, job_id=uuid4().hex, ti_id=uuid4().hex)).trial
    plan = replace(
        PLAN, job_id=first.job_id, ti_id=first.key.ti_id, attempts=first.decision.attempts
    )
    died = uuid4().hex
    kept = uuid4().hex
    starts = [
        [begun(died), line("attempt", died), beat(died)],
        [
            begun(kept),
            line("attempt", kept),
            line("end", kept),
            ResultLine(kind="final", start_id=kept, attempt=1),
        ],
    ]
    for _ in range(2):
        reporter = ResultReporter(store, DictPort(), first, lease_s=90, state_dir=Path("/no"))
        report_all(not_told(starts, lambda: store, first), reporter, plan)
        assert reporter.kept_end is not None
    assert [t.state for t in store.trials(first.job_id)] == [State.FAILED, State.CONVERGED]


def test_attempts_that_the_plan_does_not_have_are_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = told([[begun(), line("end", "a", 7), line("attempt"), line("end")]])
    assert recorder.ends() == [("a", 1, None)]
    assert "attempt 7" in caplog.text


def test_that_an_attempt_began_is_one_line_of_each_start() -> None:
    """Each waits for the log, which may not answer."""
    of_plan = LinesOfPlan(PLAN)
    often = [line("attempt", start) for _ in range(1000) for start in ("a", "b")]
    assert [each.start_id for each in of_plan.known(often)] == ["a", "b"]
    assert of_plan.known(often) == []
    others = [beat("a"), line("end", "a"), line("attempt", "c")]
    assert of_plan.known(others) == others


def a_line() -> st.SearchStrategy[ResultLine]:
    return st.builds(
        ResultLine,
        kind=st.sampled_from(["start", "attempt", "beat", "end", "final"]),
        start_id=st.sampled_from(["a", "b", ""]),
        try_number=st.none() | st.integers(0, 4),
        attempt=st.none() | st.integers(-1, 4),
        batch_size=st.none() | st.sampled_from([16, 32]),
        state=st.none() | st.sampled_from([State.CONVERGED, State.GIVEN_UP, State.FAILED]),
        reason=st.none() | st.just("odd"),
        observation=st.none() | st.just(Observation()) | st.just(seen(32)),
        points=st.just(())
        | st.just((PowerPoint(t_s=1.0, power_w=None, limit_w=None, phase="train"),)),
    )


@REPRODUCIBLE
@given(lines=st.lists(a_line(), max_size=14))
def test_every_start_gets_one_end_per_attempt_that_it_began(lines: list[ResultLine]) -> None:
    starts = by_start(lines)
    recorder = told(starts, starts_seen=newest_start(starts))
    counts = Counter((start, number) for start, number, _ in recorder.ends())
    assert set(counts.values()) == {1}
    of_starts = {
        start[0].start_id: {x.attempt for x in start if speaks_of_an_attempt(x)} or {1}
        for start in starts
    }
    if starts and not any(1 in began for began in of_starts.values()):
        # the row that was opened with the plan is closed, too
        of_starts[""] = of_starts.get("", set()) | {1}
    for start_id, began in of_starts.items():
        assert {number for of_start, number in counts if of_start == start_id} == began


def speaks_of_an_attempt(line: ResultLine) -> bool:
    """The plan has two attempts; one more may follow, with a size that fits a small slice."""
    is_one_more = line.attempt == 3 and line.batch_size is not None
    return line.kind in ("attempt", "beat", "end") and (line.attempt in (1, 2) or is_one_more)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlStore]:
    store = SqlStore(f"sqlite:///{tmp_path_factory.mktemp('log') / 'zeus.db'}", create=True)
    yield store
    store.close()


@pytest.mark.slow
@REPRODUCIBLE
@given(lines=st.lists(a_line(), max_size=8))
def test_whatever_lines_come_no_trial_stays_open_and_nothing_is_raised(
    store: SqlStore, lines: list[ResultLine]
) -> None:
    job_id = uuid4().hex
    port = DictPort()
    folder = Path("/no")
    store.tell(
        store.ask(request(1, job_id=job_id, ti_id=uuid4().hex)).trial.key,
        State.CONVERGED,
        report(32),
    )
    first = store.ask(request(2, job_id=job_id, ti_id=uuid4().hex)).trial
    plan = replace(PLAN, job_id=job_id, ti_id=first.key.ti_id, attempts=first.decision.attempts)
    assert len(plan.attempts) == 2
    logs = []
    for _ in range(2):  # a teardown may run twice
        reporter = ResultReporter(store, port, first, lease_s=90, state_dir=folder)
        report_all(by_start(lines), reporter, plan, starts_seen=newest_start(by_start(lines)))
        json.dumps(reporter.cost_xcom(), allow_nan=False)
        logs.append(store.trials(job_id))
    assert [t for t in logs[0] if t.state is State.RUNNING] == []
    assert port.data == {}
    assert logs[0] == logs[1]
