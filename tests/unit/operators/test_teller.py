"""What a training tells goes to the store, else into a Variable, else into a file; totals never hide a gap."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_zeus.operators.teller import Teller
from airflow_provider_zeus.optimizer.trial import Observation, State, Trial, TrialKey
from airflow_provider_zeus.store.sql import SqlStore
from airflow_provider_zeus.store.untold import drain
from airflow_provider_zeus.training.plan import Line
from tests.unit.store.store_kit import DictPort, report, request, seen

JOB_ID = "d.train"


@pytest.fixture
def store(tmp_path: Path) -> SqlStore:
    return SqlStore(f"sqlite:///{tmp_path / 'zeus.db'}", create=True)


def end(attempt: int, state: State, **changes: object) -> Line:
    observation = seen(32, **changes)
    return Line(
        kind="end", start_id="s", attempt=attempt, batch_size=32, state=state, reason=None, observation=observation
    )


def teller(store: SqlStore | None, port: DictPort, first: Trial, folder: Path) -> Teller:
    return Teller(store, port, first, lease_s=90, state_dir=folder)


def two_attempts(store: SqlStore) -> Trial:
    """An open trial whose decision has an exploratory attempt and the incumbent after it."""
    first = store.ask(request(1)).trial
    store.tell(first.key, State.CONVERGED, report(first.batch_size))
    return store.ask(request(2)).trial


def test_each_attempt_gets_its_row_and_its_result(store: SqlStore, tmp_path: Path) -> None:
    first = two_attempts(store)
    tell = teller(store, DictPort(), first, tmp_path)
    tell(Line(kind="start", start_id="s"))
    tell(Line(kind="attempt", start_id="s", attempt=1, batch_size=first.batch_size))
    tell(Line(kind="beat", start_id="s", attempt=1, observation=Observation(epochs=1.0, energy_j=5.0)))
    assert store.trials(JOB_ID)[-1].observation.energy_j == 5.0
    tell(end(1, State.GIVEN_UP))
    tell(Line(kind="attempt", start_id="s", attempt=2, batch_size=32))
    assert [t.state for t in store.trials(JOB_ID)[1:]] == [State.GIVEN_UP, State.RUNNING]
    tell(end(2, State.CONVERGED))
    tell(Line(kind="final", start_id="s", attempt=2))
    assert [t.state for t in store.trials(JOB_ID)[1:]] == [State.GIVEN_UP, State.CONVERGED]
    cost = tell.cost_xcom()
    assert cost["kept_attempt"] == 2
    assert cost["energy_j"] == 2 * seen(32).energy_j  # type: ignore[operator]
    assert [a["untold"] for a in cost["attempts"]] == [None, None]


def test_what_the_store_refuses_lies_in_a_variable_until_it_is_told(store: SqlStore, tmp_path: Path) -> None:
    first, port = two_attempts(store), DictPort()
    alone = teller(None, port, replace(first, number=0, key=TrialKey("ti-alone")), tmp_path)
    alone(end(1, State.CONVERGED, energy_j=77.0))
    assert alone.cost_xcom()["attempts"][0]["untold"] == "Variable zeus-untold:ti-alone:1"
    assert drain(store, port, JOB_ID) == 1
    assert [t.observation.energy_j for t in store.trials(JOB_ID) if t.key.ti_id == "ti-alone"] == [77.0]
    assert drain(store, port, JOB_ID) == 0


def test_without_variables_it_lies_in_a_file(store: SqlStore, tmp_path: Path) -> None:
    first, port = two_attempts(store), DictPort()
    port.down = True
    alone = teller(None, port, replace(first, key=TrialKey("ti-alone")), tmp_path / "state")
    alone(end(1, State.CONVERGED))
    (file,) = (tmp_path / "state").iterdir()
    assert str(file) in alone.cost_xcom()["attempts"][0]["untold"]
    port.down = False
    assert drain(store, port, JOB_ID, state_dir=tmp_path / "state") == 1
    assert not file.exists()


def test_with_nowhere_to_go_it_is_said_and_nothing_is_raised(
    store: SqlStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, port = two_attempts(store), DictPort()
    port.down = True
    (tmp_path / "taken").write_text("a file where the folder should be")
    alone = teller(None, port, first, tmp_path / "taken")
    alone(end(1, State.CONVERGED))
    assert alone.cost_xcom()["attempts"][0]["untold"] == "lost"
    assert "lost the cost of attempt 1" in caplog.text


def test_a_total_with_a_gap_is_none(store: SqlStore, tmp_path: Path) -> None:
    first = two_attempts(store)
    tell = teller(store, DictPort(), first, tmp_path)
    tell(end(1, State.GIVEN_UP, energy_j=None, reasons={"energy_j": "counter went back"}))
    tell(Line(kind="attempt", start_id="s", attempt=2, batch_size=32))
    tell(end(2, State.CONVERGED))
    cost = tell.cost_xcom()
    assert cost["energy_j"] is None
    assert cost["cost"] is None
    assert cost["time_s"] == 2 * seen(32).time_s  # type: ignore[operator]
    assert cost["attempts"][0]["reasons"] == {"energy_j": "counter went back"}
