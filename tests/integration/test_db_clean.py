"""``airflow db clean`` and ``airflow db reset`` in a database that holds the run log too."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from airflow_provider_zeus.store.sql.store import SqlStore
from tests.system.servers import AIRFLOW
from tests.unit.store.store_kit import request, run


def airflow(home: Path, url: str, *command: str) -> None:
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")
    }
    settings = {"AIRFLOW_HOME": str(home), "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url}
    done = subprocess.run(
        [*AIRFLOW, *command], env=inherited | settings, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_every_row_of_the_log_stays(database: str, tmp_path: Path) -> None:
    airflow(tmp_path, database, "db", "migrate")
    store = SqlStore(database, create=True)
    run(store, 1)
    store.ask(request(2, try_number=2))
    before = store.trials("d.train")
    tomorrow = "2100-01-01T00:00:00+00:00"
    airflow(
        tmp_path,
        database,
        "db",
        "clean",
        "--clean-before-timestamp",
        tomorrow,
        "--yes",
        "--skip-archive",
    )
    assert store.trials("d.train") == before
    airflow(tmp_path, database, "db", "reset", "--yes")
    assert store.trials("d.train") == before
