"""A command under supervision whose result says what its plan does not have."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException
from airflow.sdk.log import mask_secret

from airflow_provider_zeus.model.trial import Observation, State, Trial
from airflow_provider_zeus.operators.recurrence import Recurrence
from airflow_provider_zeus.operators.result_reporter import ResultReporter
from airflow_provider_zeus.operators.result_writer import planned_of
from airflow_provider_zeus.operators.supervise import supervise
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.training.interrupts import TrainingKilled
from airflow_provider_zeus.training.protocol.events import Kind, ResultLine
from tests.unit.operators.test_recurrence import JOB, context
from tests.unit.store.store_kit import began_alone

MOST_STARTS = 3  # so that a test of a command without an end ends


def line(kind: Kind, attempt: int | None = None, **fields: Any) -> ResultLine:
    return ResultLine(kind=kind, start_id="a", attempt=attempt, batch_size=32, **fields)


def end(attempt: int | None, state: State, energy_j: float = 7.0) -> ResultLine:
    return line(
        "end",
        attempt,
        state=state,
        observation=Observation(energy_j=energy_j, time_s=1.0, epochs=1.0),
    )


class Supervised:
    """Commands that write given lines as their result; the log is in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, lines: list[ResultLine], status: int = 0) -> None:
        text = shlex.quote("".join(x.to_json() + "\n" for x in lines))
        script = (
            f"echo >> starts; [ $(wc -l < starts) -gt {MOST_STARTS} ] && rm -f $ZEUS_RESULT && exit 1; "
            f'printf %s {text} >> "$ZEUS_RESULT"; exit {status}'
        )
        recurrence = Recurrence.open(JOB, context(), conn_id="zeus_default")
        try:
            supervise(recurrence, ["bash", "-c", script], os.environ, str(self.folder))
        finally:
            recurrence.close_device()
            json.dumps(recurrence.reporter.cost_xcom(), allow_nan=False)

    @property
    def starts(self) -> int:
        return len((self.folder / "starts").read_text().splitlines())

    @property
    def trials(self) -> list[Trial]:
        return list(open_store().trials("d.train"))


@pytest.fixture
def supervised(airflow_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Supervised:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))  # the store's file
    return Supervised(tmp_path)


@pytest.mark.parametrize("attempt", [0, -5, 900, None])
@pytest.mark.parametrize("status", [0, 1])
def test_an_attempt_that_the_plan_does_not_have_starts_nothing_again(
    supervised: Supervised, attempt: int | None, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [line("start"), line("attempt", attempt), end(attempt, State.GIVEN_UP), line("final")]
    if status:
        with pytest.raises(AirflowException, match="status 1"):
            supervised.run(lines, status)
    else:
        supervised.run(lines, status)
    assert supervised.starts == 1
    (trial,) = supervised.trials
    assert (trial.state, trial.key.attempt) == (State.FAILED, 1)
    said = [r.getMessage() for r in caplog.records if "the plan does not have" in r.getMessage()]
    assert len(said) == 1


def test_the_last_line_is_masked_before_it_is_cut(supervised: Supervised) -> None:
    mask_secret(password := "at-the-cut-of-a-line")
    recurrence = Recurrence.open(JOB, context(), conn_id="zeus_default")
    with pytest.raises(AirflowException, match="Its last line: 'x") as error:
        supervise(
            recurrence,
            ["bash", "-c", f"echo {490 * 'x'}{password}; exit 1"],
            os.environ,
            str(supervised.folder),
        )
    recurrence.close_device()
    assert password[:5] not in str(error.value)


def test_a_target_in_the_wrong_direction_is_said_of_a_command_that_prints_its_metric(
    supervised: Supervised, caplog: pytest.LogCaptureFixture
) -> None:
    recurrence = Recurrence.open(
        replace(JOB, target="loss >= 0.1"), context(), conn_id="zeus_default"
    )
    supervise(
        recurrence, ["bash", "-c", """echo '{"loss": 3.3}'"""], os.environ, str(supervised.folder)
    )
    recurrence.close_device()
    assert (
        caplog.text.count("training should make loss fall")
        == caplog.text.count('write "loss <= 0.1"')
        == 1
    )


@pytest.mark.parametrize("attempt", [0, -5, 900])
def test_it_costs_no_line_of_an_attempt_that_the_plan_has(
    supervised: Supervised, attempt: int
) -> None:
    odd = [line("attempt", attempt), end(attempt, State.GIVEN_UP)]
    known = [
        line("attempt", 1),
        end(1, State.CONVERGED),
        end(1, State.FAILED, 9.0),
        line("final", 1),
    ]
    supervised.run([line("start"), *odd, *known, *odd])
    assert supervised.starts == 1
    (trial,) = supervised.trials
    assert (trial.state, trial.observation.energy_j) == (State.CONVERGED, 7.0), (
        "the first end counts"
    )


@pytest.mark.parametrize("attempt", [0, -5, 1, 900])
def test_every_attempt_number_has_a_planned_attempt(attempt: int) -> None:
    first = began_alone(1, opened_at=1000.0)
    assert planned_of(first, line("end", attempt)) in first.decision.in_order


def test_a_second_end_of_an_attempt_is_left_out_with_one_warning(
    supervised: Supervised, caplog: pytest.LogCaptureFixture
) -> None:
    ends = [end(1, State.CONVERGED, energy_j) for energy_j in (7.0, 9.0, 11.0)]
    supervised.run([line("start"), line("attempt", 1), *ends, line("final", 1)])
    (trial,) = supervised.trials
    assert (trial.state, trial.observation.energy_j) == (State.CONVERGED, 7.0)
    assert len([r for r in caplog.records if "a second end of attempt 1" in r.getMessage()]) == 1


def test_lines_that_were_read_when_the_task_is_killed_are_passed_on(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = ResultReporter.__call__
    signals = [TrainingKilled("Airflow stopped the task")]

    def slow(reporter: ResultReporter, line: ResultLine) -> None:
        if line.kind == "attempt" and signals:
            raise signals.pop()
        take(reporter, line)

    monkeypatch.setattr(ResultReporter, "__call__", slow)
    with pytest.raises(TrainingKilled):
        supervised.run(
            [line("start"), line("attempt", 1), end(1, State.CONVERGED), line("final", 1)]
        )
    (trial,) = supervised.trials
    assert (trial.state, trial.observation.energy_j) == (State.CONVERGED, 7.0)


def test_a_command_trains_where_no_temporary_folder_can_be_written_to(
    supervised: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: ["/proc"])
    supervised.run([line("start"), line("attempt", 1), end(1, State.CONVERGED), line("final", 1)])
    assert [trial.state for trial in supervised.trials] == [State.CONVERGED]
