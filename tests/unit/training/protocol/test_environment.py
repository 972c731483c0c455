"""How a started process finds its plan and where its result goes,
by environment variables alone.
"""

from __future__ import annotations

import json
import logging
import os
import resource
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_provider_zeus.errors import BelowTargetError, JobSpecError
from airflow_provider_zeus.model.trial import Observation, PowerPoint, State
from airflow_provider_zeus.training.attempt import LiveAttempt
from airflow_provider_zeus.training.protocol import environment
from airflow_provider_zeus.training.protocol.environment import (
    Document,
    OtherRank,
    Results,
    plan_of,
    try_of,
    with_memory_of_others,
)
from airflow_provider_zeus.training.protocol.events import ResultLine, ResultSender, ResultWriter
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun
from tests.locks import free_for_others
from tests.result_files import read_result
from tests.unit.training.conftest import Kit, explore, incumbent, loop


@pytest.fixture
def pod_xcom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for a pod's ``/airflow/xcom/return.json``; its folder is not there yet."""
    path = tmp_path / "airflow" / "xcom" / "return.json"
    monkeypatch.setattr(environment, "_POD_XCOM", path)
    return path


class Process:
    """A training as a process that was started with a plan runs it."""

    def __init__(self, kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kit = kit
        self._monkeypatch = monkeypatch

    def run(self, plan: Plan | None = None, **environ: str | Path) -> ZeusRun:
        for name, value in {"ZEUS_PLAN": (plan or self.kit.plan()).to_json(), **environ}.items():
            self._monkeypatch.setenv(name, str(value))
        return ZeusRun.from_env()


@pytest.fixture
def process(kit: Kit, monkeypatch: pytest.MonkeyPatch, pod_xcom: Path) -> Process:
    for name in ("ZEUS_PLAN", "ZEUS_RESULT", "ZEUS_XCOM", "ZEUS_TRY"):
        monkeypatch.delenv(name, raising=False)
    return Process(kit, monkeypatch)


class TestPlan:
    def test_as_a_path_and_as_json(self, kit: Kit, tmp_path: Path) -> None:
        plan = kit.plan()
        (tmp_path / "plan.json").write_text(plan.to_json())
        assert plan_of({"ZEUS_PLAN": str(tmp_path / "plan.json")}) == plan
        assert plan_of({"ZEUS_PLAN": plan.to_json()}) == plan
        assert plan_of({"ZEUS_PLAN": "\n  " + plan.to_json()}) == plan

    @pytest.mark.parametrize("environ", [{}, {"ZEUS_PLAN": ""}])
    def test_missing(self, environ: dict[str, str]) -> None:
        with pytest.raises(JobSpecError, match="ZEUS_PLAN = None"):
            plan_of(environ)

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(JobSpecError, match=r"plan = '.*no.json'"):
            plan_of({"ZEUS_PLAN": str(tmp_path / "no.json")})

    @pytest.mark.parametrize(
        "change", [{"v": 2}, {"attempts": []}, {"attempts": 3}, {"unknown": 1}, {"seed": None}]
    )
    def test_another_version_or_no_plan(
        self, kit: Kit, tmp_path: Path, change: dict[str, Any]
    ) -> None:
        data = {**json.loads(kit.plan().to_json()), **change}
        if change == {"seed": None}:
            del data["job_id"]
        for text in (json.dumps(data), "{}", "{", "[1]", "null"):
            (tmp_path / "plan.json").write_text(text)
            with pytest.raises(JobSpecError, match=rf"plan = '{len(text)} characters'"):
                plan_of({"ZEUS_PLAN": str(tmp_path / "plan.json")})


@pytest.mark.parametrize(
    ("text", "number"), [("3", 3), (" 2 ", 2), ("", None), ("None", None), ("-1", None)]
)
def test_the_try_as_far_as_it_was_told(text: str, number: int | None) -> None:
    assert try_of({"ZEUS_TRY": text}) == number
    assert try_of({}) is None


class TestResult:
    def test_a_file_gets_the_lines_of_one_start_after_the_other(
        self, process: Process, tmp_path: Path
    ) -> None:
        path = tmp_path / "new" / "result.jsonl"
        for number in ("1", "2"):
            process.run(ZEUS_RESULT=path, ZEUS_TRY=number).train(loop)
        lines = list(read_result(path))
        assert [x.kind for x in lines] == ["start", "attempt", "end", "final"] * 2
        assert [x.try_number for x in lines if x.kind == "start"] == [1, 2]
        assert len({x.start_id for x in lines}) == 2

    @pytest.mark.parametrize("exists", [True, False])
    def test_a_folder_gets_one_file_per_start(
        self, process: Process, tmp_path: Path, exists: bool
    ) -> None:
        folder = tmp_path / "results"
        if exists:
            folder.mkdir()
        for _ in range(2):
            process.run(ZEUS_RESULT=str(folder) if exists else f"{folder}/").train(loop)
        files = sorted(folder.glob("*.jsonl"))
        assert [len(list(read_result(file))) for file in files] == [4, 4]

    def test_a_place_that_cannot_be_written_is_said_once_and_the_training_goes_on(
        self, process: Process, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "file").write_text("no folder")
        assert process.run(ZEUS_RESULT=tmp_path / "file" / "result.jsonl").train(loop) == 256
        (said,) = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
        assert "ZEUS_RESULT=" in said

    def test_a_disk_that_is_full_later_stops_nothing_either(
        self, process: Process, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "result.jsonl"
        run = process.run(ZEUS_RESULT=path)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, hard))
        try:
            assert run.train(loop) == 256
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "write a 'attempt' line" in caplog.text
        assert [x.kind for x in read_result(path)] == ["start"], "whole lines only"
        said = [
            r.levelno
            for r in caplog.records
            if "tries again" in r.getMessage() and r.levelno > logging.DEBUG
        ]
        assert said == [logging.WARNING], "once"

    def test_nowhere(self, process: Process, tmp_path: Path) -> None:
        assert process.run().train(loop) == 256
        assert not [path for path in tmp_path.iterdir() if path.suffix in (".json", ".jsonl")]


class TestXCom:
    def read(self, path: Path) -> dict[str, Any]:
        """The document, which Airflow reads as one line of JSON."""
        text = path.read_text()
        assert len(text.splitlines()) == 1
        return dict(json.loads(text, parse_constant=lambda constant: pytest.fail(constant)))

    def test_the_result_and_the_users_value(self, process: Process, tmp_path: Path) -> None:
        path = tmp_path / "return.json"
        process.run(ZEUS_XCOM=path, ZEUS_TRY="2").train(lambda run: {"model": f"m-{loop(run)}\n"})
        document = self.read(path)
        assert document["value"] == {"model": "m-256\n"}
        lines = [ResultLine.from_json(json.dumps(line)) for line in document["zeus"]["lines"]]
        assert [x.kind for x in lines] == ["start", "attempt", "end", "final"]
        assert lines[0].try_number == 2
        assert lines[2].state is State.CONVERGED
        assert (lines[2].observation or Observation()).energy_j
        assert [p.name for p in tmp_path.glob("*return.json*")] == ["return.json"], (
            "no half of it is left"
        )

    def test_in_a_pod_by_itself(self, process: Process, pod_xcom: Path) -> None:
        process.run().train(loop)
        assert not pod_xcom.exists(), "no pod"
        pod_xcom.parent.mkdir(parents=True)
        process.run().train(loop)
        assert self.read(pod_xcom)["value"] == 256

    @pytest.mark.parametrize(
        "value", [object(), {1, 2}, float("nan"), {"loss": float("inf")}, b"model"]
    )
    def test_a_value_that_is_no_json_is_null_with_a_warning(
        self, process: Process, tmp_path: Path, value: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        def train(run: ZeusRun) -> Any:
            loop(run)
            return value

        path = tmp_path / "return.json"
        assert process.run(ZEUS_XCOM=path).train(train) is value
        assert self.read(path)["value"] is None
        assert len(self.read(path)["zeus"]["lines"]) == 4
        assert "XCom gets null" in caplog.text

    def test_below_a_required_target_it_is_written_too(
        self, process: Process, tmp_path: Path
    ) -> None:
        path = tmp_path / "return.json"
        plan = process.kit.plan(max_epochs=2, require_target=True)
        with pytest.raises(BelowTargetError):
            process.run(plan, ZEUS_XCOM=path).train(loop, epochs=5)
        document = self.read(path)
        assert [
            line.get("state") for line in document["zeus"]["lines"] if line["kind"] == "end"
        ] == ["exhausted"]
        assert document["zeus"]["lines"][-1]["attempt"] == 1, "its model is kept"

    def test_a_training_that_fails_writes_it_too(self, process: Process, tmp_path: Path) -> None:
        def train(run: ZeusRun) -> None:
            for _ in run.epochs():
                raise RuntimeError("disk full")

        path = tmp_path / "return.json"
        with pytest.raises(RuntimeError):
            process.run(ZEUS_XCOM=path).train(train)
        end, final = self.read(path)["zeus"]["lines"][-2:]
        assert (end["state"], end["reason"]) == ("failed", "RuntimeError: disk full")
        assert "attempt" not in final

    def test_every_attempt_is_in_it(self, process: Process, tmp_path: Path) -> None:
        path = tmp_path / "return.json"
        plan = process.kit.plan(explore(1024, bound_epochs=1.0), incumbent(256))
        process.run(plan, ZEUS_XCOM=path).train(loop)
        ends = [line for line in self.read(path)["zeus"]["lines"] if line["kind"] == "end"]
        assert [(line["attempt"], line["state"]) for line in ends] == [
            (1, "given_up"),
            (2, "converged"),
        ]

    def test_many_power_points_stay_small(self, tmp_path: Path) -> None:
        document = Document(tmp_path / "return.json")
        document(ResultLine(kind="start", start_id="a"))
        beat = ResultLine(kind="beat", start_id="a", attempt=1)
        for i in range(2000):
            points = [
                PowerPoint(t_s=10 * i + j, power_w=200.0, limit_w=200.0, phase="train")
                for j in range(10)
            ]
            document(replace(beat, points=tuple(points)))
        document(ResultLine(kind="end", start_id="a", attempt=1, state=State.CONVERGED))
        document(ResultLine(kind="final", start_id="a", attempt=1))
        lines = self.read(tmp_path / "return.json")["zeus"]["lines"]
        assert [line["kind"] for line in lines] == ["start", "end", "final"]
        assert 100 < len(lines[1]["points"]) <= 500
        assert lines[1]["points"][-1]["t_s"] == 19_999
        assert (tmp_path / "return.json").stat().st_size < 48 * 1024

    def test_a_place_that_cannot_be_written_stops_nothing(
        self, process: Process, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        result = tmp_path / "result.jsonl"
        run = process.run(ZEUS_XCOM=tmp_path / "no" / "return.json", ZEUS_RESULT=result)
        assert run.train(loop) == 256
        assert "no/return.json" in caplog.text
        assert [x.kind for x in read_result(result)] == ["start", "attempt", "end", "final"]


class TestTwoPlaces:
    """A result file and a document: what one of them does not take, the other one does."""

    @pytest.fixture
    def full(self, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
        """Whether the disk of the result file is full, in its last entry."""
        full = [True]
        write = ResultWriter.__call__

        def call(self: ResultWriter, line: ResultLine) -> None:
            if full[-1]:
                raise OSError(28, os.strerror(28))
            write(self, line)

        monkeypatch.setattr(ResultWriter, "__call__", call)
        return full

    def lines(self, path: Path) -> list[ResultLine]:
        return [
            ResultLine.from_json(json.dumps(line))
            for line in json.loads(path.read_text())["zeus"]["lines"]
        ]

    def test_the_document_is_whole_where_the_file_takes_nothing(
        self, process: Process, tmp_path: Path, full: list[bool], caplog: pytest.LogCaptureFixture
    ) -> None:
        result = tmp_path / "result.jsonl"
        xcom = tmp_path / "return.json"
        assert process.run(ZEUS_RESULT=result, ZEUS_XCOM=xcom).train(loop) == 256
        lines = self.lines(xcom)
        assert [line.kind for line in lines] == ["start", "attempt", "end", "final"]
        assert (lines[2].observation or Observation()).energy_j
        said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        assert len([text for text in said if "ZEUS_RESULT=" in text]) == 1
        assert "anywhere" not in caplog.text, "nothing is lost"

    def test_each_line_reaches_both_once_after_an_error_that_passes(
        self, tmp_path: Path, full: list[bool], pod_xcom: Path
    ) -> None:
        result = tmp_path / "result.jsonl"
        xcom = tmp_path / "return.json"
        sender = ResultSender(Results({"ZEUS_RESULT": str(result), "ZEUS_XCOM": str(xcom)}))
        sender.send("start")
        sender.send("attempt", attempt=1)
        full.append(False)
        sender.send("end", attempt=1, state=State.CONVERGED, observation=Observation(energy_j=7.0))
        sender.send("final", attempt=1)
        assert list(read_result(result)) == self.lines(xcom)
        assert [line.kind for line in self.lines(xcom)] == ["start", "attempt", "end", "final"]

    def test_the_only_place_gets_the_line_again(
        self, tmp_path: Path, full: list[bool], pod_xcom: Path
    ) -> None:
        sender = ResultSender(Results({"ZEUS_RESULT": str(tmp_path / "result.jsonl")}))
        sender.send("start")
        full.append(False)
        sender.send("final")
        assert [line.kind for line in read_result(tmp_path / "result.jsonl")] == ["start", "final"]

    def test_a_document_that_cannot_be_written_does_not_write_the_file_twice(
        self, process: Process, tmp_path: Path
    ) -> None:
        results = Results(
            {"ZEUS_RESULT": str(tmp_path / "r.jsonl"), "ZEUS_XCOM": str(tmp_path / "no" / "x.json")}
        )
        sender = ResultSender(results)
        for _ in range(2):
            sender.send("final")
        assert len(list(read_result(tmp_path / "r.jsonl"))) == 2

    def test_an_end_that_another_thread_is_writing_is_not_logged_as_lost(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        taken: list[ResultLine] = []
        close = Thread(target=lambda: sender.close(), daemon=True)

        def slow(line: ResultLine) -> None:
            close.start()
            close.join(0.2)  # it waits for the line
            taken.append(line)

        sender = ResultSender(slow)
        sender.send("end", attempt=1, state=State.CONVERGED, observation=Observation(energy_j=7.0))
        close.join(60.0)
        assert [line.kind for line in taken] == ["end"]
        assert "anywhere" not in caplog.text

    def test_a_line_is_sent_while_no_other_thread_sends_one(self) -> None:
        free: list[bool] = []

        def sink(_: ResultLine) -> None:
            free.append(free_for_others(sender._lock))

        sender = ResultSender(sink)
        sender.put(ResultLine(kind="final", start_id="a"))
        assert free == [False]

    def test_no_other_thread_sends_an_end_while_a_beat_takes_what_is_new(self) -> None:
        free: list[bool] = []
        taken: list[ResultLine] = []

        def take_unsent() -> tuple[tuple[()], tuple[()]]:
            free.append(free_for_others(sender._lock))
            return (), ()

        sender = ResultSender(taken.append)
        planned = SimpleNamespace(batch_size=32)
        live = SimpleNamespace(ended=False, number=1, planned=planned, take_unsent=take_unsent)
        sender.send("beat", cast(LiveAttempt, live))
        assert (free, [line.kind for line in taken]) == ([False], ["beat"])

    def test_where_neither_takes_it_the_cost_is_logged(
        self, process: Process, tmp_path: Path, full: list[bool], caplog: pytest.LogCaptureFixture
    ) -> None:
        run = process.run(
            ZEUS_RESULT=tmp_path / "result.jsonl", ZEUS_XCOM=tmp_path / "no" / "return.json"
        )
        assert run.train(loop) == 256
        run.close()
        (said,) = [r.getMessage() for r in caplog.records if "anywhere" in r.getMessage()]
        assert json.loads(said[said.index("{") :])["observation"]["energy_j"]


class TestAnotherRank:
    """What a process other than rank 0 leaves beside the result."""

    def end(
        self, reason: str, *, no_memory: bool, state: State = State.FAILED, attempt: int = 1
    ) -> ResultLine:
        observation = Observation(time_s=4.0, out_of_memory=no_memory)
        return ResultLine(
            kind="end",
            start_id="s",
            attempt=attempt,
            batch_size=16,
            state=state,
            reason=reason,
            observation=observation,
        )

    @pytest.mark.parametrize("folder", [False, True])
    def test_its_want_of_memory_is_the_reason_of_rank_0s_end(
        self, tmp_path: Path, folder: bool
    ) -> None:
        environ = {"ZEUS_RESULT": str(tmp_path) if folder else str(tmp_path / "result.jsonl")}
        OtherRank(environ, "ti/1", 3)(self.end("MemoryError: full", no_memory=True))
        Results(environ, "ti/1")(
            self.end("RuntimeError: connection closed by peer", no_memory=False)
        )
        (path,) = tmp_path.glob("*.jsonl")
        (end,) = read_result(path)
        assert end.observation == Observation(time_s=4.0, out_of_memory=True)
        assert end.reason == "rank 3: MemoryError: full"

    def test_any_other_end_stays_as_it_is(self, tmp_path: Path) -> None:
        environ = {"ZEUS_RESULT": str(tmp_path / "result.jsonl")}
        other = OtherRank(environ, "ti/1", 1)
        other(self.end("ValueError: bad data", no_memory=False))
        assert list(tmp_path.iterdir()) == [], "rank 0 alone writes the result"
        other(self.end("MemoryError: full", no_memory=True, attempt=2))
        lines = [
            self.end("ValueError: of another attempt", no_memory=False),
            self.end("", no_memory=False, state=State.CONVERGED, attempt=2),
            ResultLine(kind="beat", start_id="s", attempt=2, observation=Observation()),
        ]
        results = Results(environ, "ti/1")
        for line in lines:
            results(line)
        assert list(read_result(tmp_path / "result.jsonl")) == lines
        end = self.end("killed", no_memory=False, attempt=2)
        assert with_memory_of_others(end, environ["ZEUS_RESULT"], "ti/2") == end, "of another task"
        assert with_memory_of_others(end, None, "ti/1") == end
        assert with_memory_of_others(end, environ["ZEUS_RESULT"], "ti/1") != end

    def test_without_a_place_nothing_is_left(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        OtherRank({}, "ti/1", 1)(self.end("MemoryError: full", no_memory=True))
        assert list(tmp_path.iterdir()) == []


def test_results_without_a_document_take_a_value_and_do_nothing(pod_xcom: Path) -> None:
    results = Results({})
    results(ResultLine(kind="final", start_id="a"))
    results.hand_over(object())
    assert not os.path.exists(pod_xcom)
