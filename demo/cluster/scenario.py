"""The cluster's scenario: overlapping runs of four jobs, and the death of one worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.store.sql.store import Store
from demo.cluster.servers import Cluster
from demo.cluster.settings import JOBS, SLICES, WORKERS, dag_id, job_id
from demo.settings import DemoError

RUNS_TIMEOUT_S = 900.0
VICTIM = WORKERS[1]
IN_FLIGHT_S = 0.5  # for statements that a process had sent to the databases before it was paused
OVER = ("success", "failed")
Where = tuple[str, str, int]  # job, run, map index: one recurrence


@dataclass(slots=True)
class Played:
    """Runs and outcomes of the scenario."""

    runs: dict[str, list[str]]  # run ids by job
    # of each run, by job and run id
    states: dict[tuple[str, str], str] = field(default_factory=dict)
    # as they were when their worker was killed
    cut_short: list[Trial] = field(default_factory=list)
    wall_s: float = 0.0

    def recurrences(self) -> Iterator[Where]:
        """Yield the recurrences; each must end with a model."""
        for job, runs in self.runs.items():
            yield from ((job, run, index) for run in runs for index in range(SLICES))


def play(
    cluster: Cluster,
    store: Store,
    runs: int,
    weeks: list[str],
    say: Callable[[str], object] = print,
) -> Played:
    """Trigger ``runs`` runs of each job at once, kill a worker in the middle, wait for the end.

    Raises DemoError.
    """
    begun_s = time.monotonic()
    played = Played({job: [_trigger(cluster, job, n, weeks) for n in range(runs)] for job in JOBS})
    total = len(list(played.recurrences()))
    say(f"{runs} runs of each of {len(JOBS)} jobs are triggered: {total} trainings")
    deadline = begun_s + RUNS_TIMEOUT_S
    said = 0
    while not _over(cluster, played):
        cluster.check()
        log = {job: store.trials(job_id(job)) for job in JOBS}
        done = len(kept(log))
        if done >= said + max(total // 6, 1):
            said = done
            say(f"  {done:>3}/{total} models kept ({time.monotonic() - begun_s:.0f} s)")
        if not played.cut_short and done >= total // 4:
            played.cut_short = _kill(cluster, store, say)
        if time.monotonic() > deadline:
            raise DemoError(
                f"the runs were not over after {RUNS_TIMEOUT_S:.0f} s; logs: {cluster.site.logs}"
            )
        time.sleep(0.5)
    played.wall_s = time.monotonic() - begun_s
    return played


def kept(log: Mapping[str, Sequence[Trial]]) -> dict[Where, list[Trial]]:
    """Return the trials whose model was kept, by recurrence."""
    found: dict[Where, list[Trial]] = {}
    for job, trials in log.items():
        for t in trials:
            if t.state.kept_model:
                found.setdefault((job, t.origin.run_id, t.origin.map_index), []).append(t)
    return found


def _trigger(cluster: Cluster, job: str, number: int, weeks: list[str]) -> str:
    chosen = weeks[number * SLICES : (number + 1) * SLICES]
    body: dict[str, Any] = {"logical_date": None, "conf": {"weeks": chosen}}
    return str(cluster.api.post(f"dags/{dag_id(job)}/dagRuns", body)["dag_run_id"])


def _over(cluster: Cluster, played: Played) -> bool:
    for job, runs in played.runs.items():
        found = cluster.api.get(f"dags/{dag_id(job)}/dagRuns", limit=100)["dag_runs"]
        played.states.update(
            {(job, run["dag_run_id"]): run["state"] for run in found if run["dag_run_id"] in runs}
        )
    return all(state in OVER for state in played.states.values())


def _kill(cluster: Cluster, store: Store, say: Callable[[str], object]) -> list[Trial]:
    """Kill the worker if it is in the middle of a training;
    return the trials that this cut short.
    """
    if not _doomed(cluster, store):
        return []
    with cluster.paused(VICTIM):  # else a training might end between check and kill
        time.sleep(IN_FLIGHT_S)
        doomed = _doomed(cluster, store)
        if not doomed:
            return []
        count = cluster.kill(VICTIM)
    names = ", ".join(f"{t.job_id} attempt {t.number}" for t in doomed)
    say(f"  killed {VICTIM} and what it ran ({count} processes), in the middle of {names}")
    return doomed


def _doomed(cluster: Cluster, store: Store) -> list[Trial]:
    """Return the trials that run on the worker;
    none while one of its tasks has reported its cost and not ended.
    """
    pids = cluster.trainings(VICTIM)
    running = cluster.api.get("dags/~/dagRuns/~/taskInstances", state="running", limit=100)[
        "task_instances"
    ]
    here = {
        (ti["dag_run_id"], ti["dag_id"], ti["map_index"], ti["try_number"])
        for ti in running
        if ti["pid"] in pids
    }
    trials = [t for job in JOBS for t in store.trials(job_id(job)) if _try(t) in here]
    if any(t.state.kept_model for t in trials):
        return []
    return [t for t in trials if t.state is State.RUNNING and (t.observation.epochs or 0) > 0]


def _try(trial: Trial) -> tuple[str, str, int, int]:
    origin = trial.origin
    return origin.run_id, origin.dag_id, origin.map_index, origin.try_number
