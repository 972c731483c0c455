"""A log that 0.1.0 wrote: upgraded by ``airflow zeus db upgrade``, shown on every page, and asked for the next run.

``tests/unit/store/log_of_0_1_0.json`` holds the rows that the store of 0.1.0 itself wrote: two jobs of a DAG, one for
each policy, with seven runs that ended and one that was open. They are put into tables of its last revision (0006).
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_zeus.model.trial import State, TrialKey
from airflow_provider_zeus.store.base import Store
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.sql import migrate, schema
from airflow_provider_zeus.store.sql.engine import engine_of, read_url
from tests.unit.store.store_kit import report, request
from tests.unit.store.test_store_upgrade import at_revision

REVISION = "0006"
JOBS = {"d.train": "knowledge_gradient", "d.other": "zeus"}
ROWS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "store" / "log_of_0_1_0.json").read_text()
)
KEPT = ("epochs", "samples", "energy_j", "time_s", "metric", "power_limit_w", "max_power_w", "learning_rate")


def write(engine: sa.Engine) -> None:
    """The rows, by the columns that the database itself names; the database numbers the trials."""
    tables = sa.MetaData()
    tables.reflect(engine)
    numbers: dict[int, int] = {}
    with engine.begin() as connection:
        for name in ("zeus_job", "zeus_trial", "zeus_trial_power", "zeus_profile_sample"):
            for row in ROWS[name]:
                values = {column: value for column, value in row.items() if column != "id"}
                if name == "zeus_trial_power":
                    values["trial_id"] = numbers[row["trial_id"]]
                if row.get("state") == "running":
                    values |= {"lease_until": time.time() + 3600, "lease_s": 3600.0}  # it still trains
                key = connection.execute(sa.insert(tables.tables[name]).values(values)).inserted_primary_key
                if name == "zeus_trial":
                    assert key is not None
                    numbers[row["id"]] = key[0]


@pytest.fixture(params=["sqlite", "postgres"])
def log(
    request: pytest.FixtureRequest, airflow_home: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    """The log of 0.1.0 where tasks, pages and commands look for it, after ``airflow zeus db upgrade``."""
    from airflow.cli.cli_parser import get_parser

    url = f"sqlite:///{home / 'zeus.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("database")
        monkeypatch.setenv("AIRFLOW_CONN_ZEUS_DEFAULT", json.dumps({"conn_type": "postgres", "host": url}))
    engine = at_revision(url, REVISION)
    write(engine)
    arguments = get_parser().parse_args(["zeus", "db", "upgrade"])
    arguments.func(arguments)
    assert migrate.version(engine_of(read_url(url))) == schema.HEAD != REVISION
    engine.dispose()
    store = open_store(create=False)
    yield store
    store.close()


@pytest.mark.parametrize("job_id", JOBS)
def test_every_figure_is_as_it_was_written(log: Store, job_id: str) -> None:
    before = {row["number"]: row for row in ROWS["zeus_trial"] if row["job_id"] == job_id}
    trials = log.trials(job_id)
    assert {t.number for t in trials} == set(before)
    for trial in trials:
        row = before[trial.number]
        assert (trial.state, trial.reason, trial.batch_size) == (row["state"], row.get("reason"), row["batch_size"])
        assert {name: getattr(trial.observation, name) for name in KEPT} == {name: row.get(name) for name in KEPT}
    assert len(log.points(TrialKey(f"{job_id}-1"))) == 4


@pytest.mark.parametrize(("job_id", "policy"), JOBS.items())
def test_the_next_run_learns_from_it(log: Store, job_id: str, policy: str) -> None:
    """The open run is told after the upgrade; the next one decides by all eight."""
    task = job_id.partition(".")[2]
    changes = {"job": replace(request().job, policy=policy), "job_id": job_id}
    log.tell(TrialKey(f"{job_id}-8"), State.CONVERGED, report(64, epochs=4.0, energy_j=400.0, time_s=8.0))
    answer = log.ask(request(9, ti_id="new", origin=replace(request(9).origin, task_id=task), **changes))
    assert (answer.trial.number, answer.trial.decision.policy) == (9, policy)
    assert answer.trial.batch_size in (16, 32, 64)
    assert answer.trial.planned.why
    assert [s.samples for s in answer.profile] == [30], "what was profiled is not profiled again"


def test_every_page_shows_it(log: Store, admin: Any) -> None:
    def get(path: str, **params: Any) -> Any:
        answer = admin.get(f"/zeus/api/{path}", params=params)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        return answer

    costs = get("dags/d/costs", job_id="d.train").json()
    assert len(costs["rows"]) == 8
    for name in ("cost", "belief", "front"):
        assert get("dags/d/charts", job_id="d.train").json()[name]["option"], name
    assert get("dags/d/what-if", job_id="d.train", eta=0.2).json()["text"]
    rows = list(csv.DictReader(io.StringIO(get("dags/d/export", kind="csv").text)))
    assert {row["energy_j"] for row in rows} >= {"400.0", "500.0"}
    assert {part["job_id"] for part in get("dags/d/runs/run1/costs").json()["parts"]} == set(JOBS)
    assert {job["job_id"] for job in get("jobs").json()["jobs"]} >= set(JOBS)
