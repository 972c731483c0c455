"""Death under a real scheduler: every fault once during training, SIGKILL at every point,
and what Airflow itself does.

Cells are DAG runs of one site, a few at a time; three of them are of a site with CeleryExecutor.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from demo import processes
from demo.cluster.servers import Cluster
from demo.cluster.settings import Site as ClusterSite
from tests import fake_nvml
from tests.postgres import empty_database, server
from tests.system.death_airflow_cells import (
    CELERY,
    CELLS,
    HEARTBEAT_S,
    LEASE_S,
    LOCAL,
    TIMEOUT_S,
    AirflowCell,
    AirflowOutcome,
    AirflowPlayed,
)
from tests.system.death_stores import pasts
from tests.system.death_table import NOT_HERE, note
from tests.system.killing import ROOT, MemoryLimit
from tests.system.servers import Site, airflow, wait_until

AT_ONCE = 5
ALONE = "api-server gone for 30 s"  # it is everybody's

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


class AirflowMatrix:
    """Plays the cells of one executor that this test run has selected."""

    def __init__(
        self, site: Site, work: Path, selected: list[AirflowCell], deliver: Callable[[str], None]
    ) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._with = pasts(work, None)
        self._past = self._with.__enter__()[0]
        self._args = (site, work, deliver)
        self._selected = selected
        self._played: dict[AirflowCell, Future[AirflowOutcome]] = {
            cell: self._pool.submit(self._play, cell) for cell in selected if cell.fault != ALONE
        }

    def outcome(self, cell: AirflowCell) -> AirflowOutcome:
        """Of one cell. Raises AssertionError where something did not hold."""
        return self._begun(cell).result()

    def _begun(self, cell: AirflowCell) -> Future[AirflowOutcome]:
        if cell not in self._played:  # when all others are over
            wait(self._played.values())
            self._played[cell] = self._pool.submit(self._play, cell)
        return self._played[cell]

    def finish(self) -> None:
        """Play what is left: the outcomes stay when the site has gone."""
        wait([self._begun(cell) for cell in self._selected])

    def close(self) -> None:
        """End it."""
        self._pool.shutdown(cancel_futures=True)
        self._with.__exit__(None, None, None)

    def _play(self, cell: AirflowCell) -> AirflowOutcome:
        site, work, deliver = self._args
        return AirflowPlayed(site, work, self._past, cell, CELLS.index(cell) + 1, deliver).play()


def prepared(home: Path, selected: list[AirflowCell]) -> dict[str, str]:
    """Files of a site, and the settings of its servers."""
    (home / "dags").mkdir(parents=True)
    (home / "work").mkdir()
    shutil.copy(Path(__file__).with_name("death_airflow_dags.py"), home / "dags")
    dags = {cell.dag_id: TIMEOUT_S.get(cell.fault) for cell in selected}
    (home / "work" / "cells.json").write_text(json.dumps(dags))
    return {
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__PARALLELISM": str(AT_ONCE + 1),
        # after 3 Airflow ends the task, before the 30 s are over
        "AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS": "20",
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
        "AIRFLOW__ZEUS__HEARTBEAT_S": f"{HEARTBEAT_S:g}",
        "AIRFLOW__ZEUS__LEASE_S": f"{LEASE_S:g}",
        "LD_LIBRARY_PATH": f"{fake_nvml.compiled().parent}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "PYTHONPATH": str(ROOT),
        "ZEUS_TEST_DIR": str(home / "work"),
    }


@contextmanager
def local(home: Path, selected: list[AirflowCell]) -> Iterator[AirflowMatrix]:
    """One host with LocalExecutor; Airflow's own database is PostgreSQL,
    whose writers do not wait for each other.
    """
    with server() as admin, empty_database(admin) as metadata, ExitStack() as stack:
        conn = metadata.replace("postgresql://", "postgresql+psycopg2://")
        settings = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": conn} | prepared(home, selected)
        site = stack.enter_context(airflow(home, **settings))
        wait_until(
            lambda: all(site.api.get(f"dags/{c.dag_id}") is not None for c in selected),
            60,
            "the DAGs",
        )
        matrix = AirflowMatrix(site, home / "work", selected, lambda dag_id: None)
        try:
            yield matrix
        finally:
            matrix.close()


@dataclass(frozen=True, slots=True)
class DeathSite(ClusterSite):
    """The demo's cluster with DAGs of ours."""

    def env(self, worker: str | None = None) -> dict[str, str]:
        """Environment of every process."""
        settings = json.loads((self.folder / "settings.json").read_text())
        return ClusterSite.env(self, worker) | settings


class DeathCluster(Cluster):
    """Ready without the demo's DAGs."""

    dags: list[str]

    def _not_ready(self) -> list[str]:
        missing = [name for name in super()._not_ready() if not name.startswith("DAG ")]
        return missing or [f"DAG {dag}" for dag in self.dags if self.api.get(f"dags/{dag}") is None]


@contextmanager
def cluster(folder: Path, selected: list[AirflowCell]) -> Iterator[AirflowMatrix]:
    """PostgreSQL, Redis and two Celery workers."""
    settings = prepared(folder, selected)
    (folder / "settings.json").write_text(json.dumps(settings))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "RECORD", folder / "processes.json")
        running = DeathCluster(DeathSite.fresh(folder))
        running.dags = [cell.dag_id for cell in selected]
        try:
            running.start()
            site = Site(running.site.url, folder)
            matrix = AirflowMatrix(
                site, folder / "work", selected, lambda dag_id: deliver(running.site, dag_id)
            )
            try:
                yield matrix
            finally:
                matrix.close()
        finally:
            running.stop()


def deliver(site: ClusterSite, dag_id: str) -> None:
    """What Celery does where a message was not acknowledged in time:
    it goes back to the queue as it came.
    """
    import redis

    with redis.Redis(host="127.0.0.1", port=site.redis_port, password=site.password) as broker:
        kept = [json.loads(text)[0] for text in broker.hvals("unacked")]
        (message,) = [m for m in kept if dag_id in base64.b64decode(m["body"]).decode()]
        message["properties"]["redelivered"] = True
        broker.lpush("default", json.dumps(message))
    received = f"[{message['headers']['id']}] received"
    logs = list(site.logs.glob("worker-*.log"))
    wait_until(
        lambda: sum(log.read_text().count(received) for log in logs) == 2, 30, "the second delivery"
    )


@pytest.fixture(scope="module")
def matrices(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, object]]:
    if fake_nvml.compiler() is None:
        pytest.skip("no C compiler (cc, gcc, clang): the fake libnvidia-ml.so.1 cannot be built")
    items = [item for item in request.session.items if item.path == request.path]
    selected = [item.callspec.params["cell"] for item in items if hasattr(item, "callspec")]
    begun: dict[str, AirflowMatrix] = {}
    with ExitStack() as stack:

        def of(executor: str) -> AirflowMatrix:
            if executor not in begun:
                for other in begun.values():
                    other.finish()
                stack.close()  # one site at a time
                mine = [cell for cell in selected if cell.executor == executor]
                kind = local if executor == LOCAL else cluster
                begun[executor] = stack.enter_context(kind(tmp_path_factory.mktemp(executor), mine))
            return begun[executor]

        yield of


@pytest.mark.parametrize(
    "cell",
    sorted(CELLS, key=lambda c: (c.executor == CELERY, c.fault == ALONE)),
    ids=lambda c: c.dag_id,
)
def test_airflow_and_the_log_agree(
    matrices: Callable[[str], AirflowMatrix], cell: AirflowCell
) -> None:
    if cell.fault == "memory limit":
        try:
            MemoryLimit().remove()
        except OSError as error:
            why = (
                f"no memory cgroup may be made here ({error}), so the kernel cannot kill for want"
                " of memory"
            )
            note(
                AirflowOutcome(
                    cell.fault, cell.point, cell.executor, state=NOT_HERE + why
                ).to_dict()
            )
            pytest.skip(why)
    seen = matrices(cell.executor).outcome(cell)
    note(seen.to_dict())
