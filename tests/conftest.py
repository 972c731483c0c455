"""An Airflow of the tests' own: one home and one migrated metadata database per test process, no servers."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import database, postgres  # noqa: F401

# Before anything imports Airflow, which reads its home once; anew in each worker of pytest-xdist.
_HOME = Path(tempfile.mkdtemp(prefix="zeus-airflow-"))
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
os.environ.update(
    AIRFLOW_HOME=str(_HOME),
    AIRFLOW__CORE__DAGS_FOLDER=str(_HOME / "dags"),
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__UNIT_TEST_MODE="False",
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{_HOME}/airflow.db",
    AIRFLOW__LOGGING__LOGGING_LEVEL="WARNING",
    CUDA_VISIBLE_DEVICES="",  # no test reads, let alone sets, a real GPU
)
(_HOME / "dags").mkdir()


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """``AIRFLOW_HOME`` with a migrated metadata database."""
    from airflow.utils import db

    db.initdb()
    return _HOME


@pytest.fixture(autouse=True)
def _no_variables_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """The metadata database serves many tests; none may find another's Variables."""
    yield
    if "airflow_home" in request.fixturenames:
        from airflow_provider_zeus.store.airflow_variables import AirflowVariables

        port = AirflowVariables()
        for key in port.keys("zeus-"):
            port.delete(key)
