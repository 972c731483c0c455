"""A cluster of real processes, one worker of which is killed in the middle:
nothing is lost or counted twice.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.store.sql.store import Store
from demo import processes
from demo.api import part
from demo.cluster.__main__ import drawn, report, running, saved, weeks
from demo.cluster.scenario import Played, Where, play
from demo.cluster.servers import Cluster
from demo.cluster.settings import GPUS, JOBS, SLICES, job_id
from tests.system.servers import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]
RUNS = 2


def run_plain(cluster: Cluster) -> None:
    """Run the DAG that does not know Zeus to its end, on Celery's workers."""
    api = cluster.api
    run_id = api.post("dags/cluster_plain/dagRuns", {"logical_date": None})["dag_run_id"]
    path = f"dags/cluster_plain/dagRuns/{part(run_id)}"
    wait_until(lambda: api.get(path)["state"] == "success", 180, "the plain DAG", every_s=1.0)


def plain_rows(store: Store) -> list[Trial]:
    """The rows of its tasks that have ended: Airflow has their state a moment before."""
    rows = store.trials("cluster_plain.work")
    return [row for row in rows if row.state is not State.RUNNING]


class Happened:
    """What the cluster left, read while it was up."""

    plain: Sequence[Trial] = ()

    def __init__(
        self, cluster: Cluster, played: Played, log: dict[str, list[Trial]], wrong: list[str]
    ) -> None:
        self.cluster = cluster
        self.played = played
        self.log = log
        self.wrong = wrong
        self.tries = _tries(cluster, played)
        self.drawn_j, self.saved = drawn(cluster.site), saved(cluster.site, played)

    def attempts(self) -> Iterator[tuple[Where, Trial]]:
        """Trials by recurrence."""
        for job, trials in self.log.items():
            for t in trials:
                yield (job, t.origin.run_id, t.origin.map_index), t


def _tries(cluster: Cluster, played: Played) -> dict[Where, tuple[str, int]]:
    """State and number of tries of each task instance, as Airflow has it."""
    found = {}
    for job, runs in played.runs.items():
        for run in runs:
            path = f"dags/cluster_{job}/dagRuns/{run}/taskInstances"
            for ti in cluster.api.get(path)["task_instances"]:
                found[job, run, ti["map_index"]] = (ti["state"], ti["try_number"])
    return found


@pytest.fixture(scope="module")
def happened(tmp_path_factory: pytest.TempPathFactory) -> Happened:
    folder = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "RECORD", folder / "processes.json")
        with running(folder) as (cluster, store):
            run_plain(cluster)
            played = play(cluster, store, RUNS, weeks(RUNS))
            wait_until(lambda: len(plain_rows(store)) == 2, 60, "the rows of the plain tasks")
            log = {job: store.trials(job_id(job)) for job in JOBS}
            found = Happened(cluster, played, log, report(cluster, store, played))
            found.plain = plain_rows(store)
    return found


def test_the_demo_itself_finds_nothing_wrong(happened: Happened) -> None:
    assert happened.wrong == []


def test_a_plain_task_on_celery_is_measured_from_outside(happened: Happened) -> None:
    assert {row.origin.map_index for row in happened.plain} == {0, 1}
    for row in happened.plain:
        assert row.is_outside
        assert (row.state, row.reason) == (State.DONE, None)
        assert (row.observation.energy_j or 0.0) >= 7.0 * 1.5 * 0.9


def test_every_recurrence_keeps_one_model(happened: Happened) -> None:
    expected = {
        (job, run, index)
        for job in JOBS
        for run in happened.played.runs[job]
        for index in range(SLICES)
    }
    assert len(expected) == len(JOBS) * RUNS * SLICES
    assert Counter(
        where for where, t in happened.attempts() if t.state.kept_model
    ) == dict.fromkeys(expected, 1)
    assert happened.saved == expected
    assert set(happened.played.states.values()) == {"success"}


def test_trial_numbers_are_complete_and_no_trial_is_left_open(happened: Happened) -> None:
    for trials in happened.log.values():
        assert sorted(t.number for t in trials) == list(range(1, len(trials) + 1))
        assert all(t.state is not State.RUNNING for t in trials)
        told = sorted(t.told_seq or 0 for t in trials)
        assert told == list(range(1, len(trials) + 1)), "each was closed once"


def test_what_the_killed_worker_trained_was_trained_again(happened: Happened) -> None:
    cut_short = happened.played.cut_short
    assert cut_short
    by_key = {(t.key.ti_id, t.key.attempt): t for trials in happened.log.values() for t in trials}
    for before in cut_short:
        dead = by_key[before.key.ti_id, before.key.attempt]
        assert dead.state is State.ABANDONED
        assert (dead.observation.energy_j or 0) >= (before.observation.energy_j or 0)
        assert (dead.observation.epochs or 0) >= (before.observation.epochs or 0) > 0
        where = (
            dead.job_id.removeprefix("cluster_").removesuffix(".train"),
            dead.origin.run_id,
            dead.origin.map_index,
        )
        state, tries = happened.tries[where]
        (kept,) = [t for at, t in happened.attempts() if at == where and t.state.kept_model]
        assert (state, tries) == ("success", kept.origin.try_number)
        assert kept.origin.try_number > dead.origin.try_number
        assert kept.key.ti_id != dead.key.ti_id


def test_only_what_the_killed_worker_ran_was_lost(happened: Happened) -> None:
    dead = [t for _, t in happened.attempts() if t.state in (State.ABANDONED, State.FAILED)]
    assert 1 <= len(dead) <= GPUS, [(t.job_id, t.number, t.state, t.reason) for t in dead]


def test_no_energy_counts_twice_and_little_is_lost(happened: Happened) -> None:
    told_j = sum(t.observation.energy_j or 0 for trials in happened.log.values() for t in trials)
    assert 0.85 * happened.drawn_j < told_j <= happened.drawn_j


def test_runs_of_a_job_overlapped_and_slices_trained_at_once(happened: Happened) -> None:
    overlaps = 0
    for trials in happened.log.values():
        spans = [(t.opened_at, t.closed_at or 0.0, t.origin) for t in trials]
        together = [
            (a, b)
            for i, (s, e, a) in enumerate(spans)
            for s2, e2, b in spans[:i]
            if s < e2 and s2 < e
        ]
        overlaps += sum(a.run_id != b.run_id or a.map_index != b.map_index for a, b in together)
        decided = [t.asked_after_seq for t in trials]
        assert min(decided) == 0 and max(decided) > 0  # noqa: PT018
    assert overlaps, "of which job is a matter of time"
    runs = [{t.origin.run_id for t in trials} for trials in happened.log.values()]
    assert all(len(each) == RUNS for each in runs)


def test_nothing_is_left_running(happened: Happened) -> None:
    folder = str(happened.cluster.site.folder)
    left = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and folder in process.environ().get("AIRFLOW_HOME", ""):
                left.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    assert left == []
    assert not Path(happened.cluster._data).exists()
