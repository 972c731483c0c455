"""The real parser and the real store; a home and a state folder of each test's own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.store.store_kit import report, request


@dataclass(frozen=True)
class Done:
    """What a command left: exit status, standard output, standard error."""

    status: int
    out: str
    err: str


Zeus = Callable[..., Done]


@pytest.fixture
def home(tmp_path: Path, airflow_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW__ZEUS__STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("AIRFLOW__ZEUS__ATTEMPT_ROOT", str(tmp_path / "models"))
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "LocalExecutor")
    # a command sets it; given back at the test's end
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    monkeypatch.delenv("AIRFLOW_CONN_ZEUS_DEFAULT", raising=False)
    return tmp_path


@pytest.fixture
def zeus(home: Path, capsys: pytest.CaptureFixture[str]) -> Zeus:
    """Runs ``airflow zeus ...`` in this process, from Airflow's own parser on."""
    from airflow.cli.cli_parser import get_parser

    def run(*arguments: str) -> Done:
        capsys.readouterr()
        status = 0
        try:
            args = get_parser().parse_args(["zeus", *arguments])
            args.func(args)
        except SystemExit as end:
            status = int(end.code or 0)
        return Done(status, *capsys.readouterr())

    return run


@pytest.fixture
def store(home: Path, empty_log: Path) -> Store:
    """``zeus.db``, as a task would open it."""
    from airflow_provider_zeus.store.open import open_store

    shutil.copy(empty_log, home / "zeus.db")
    return open_store()


def recur(
    store: Store, n: int, state: State = State.CONVERGED, job_id: str = "d.train", **changes: object
) -> Trial:
    """Recurrence ``n`` from question to result."""
    trial = store.ask(request(n, job_id=job_id, ti_id=f"{job_id}-{n}")).trial
    return store.tell(trial.key, state, report(trial.batch_size, **changes))  # type: ignore[arg-type]
