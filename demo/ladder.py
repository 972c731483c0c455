"""The first rungs, before the weeks of batch sizes: plain tasks are measured, a function,
and its limit is tuned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.units import counted, energy_text
from demo.api import Api, part
from demo.settings import HOME, LADDER, PLAIN, DemoError

RUN_TIMEOUT_S = 300.0
POLL_S = 0.5
ROWS_TIMEOUT_S = 30.0
PLAIN_TASKS = 3  # of the DAG of rung 0
RUNS = 2  # the first one profiles, the second one profits


def climb(api: Api, check: Callable[[], None]) -> None:
    """Run the DAGs of the first rungs, and print what their runs took.

    ``check`` raises when a server has ended.
    """
    run_id = finished(api, PLAIN, check)
    plain = rows_of(run_id, check)
    print(f"0. No line, [zeus] measure = tag:zeus: {PLAIN}     {all_took(plain)}", flush=True)
    for _ in range(RUNS):
        finished(api, LADDER, check)
    store = open_store()
    try:
        measured, tuned = (store.trials(f"{LADDER}.{name}")[-1] for name in ("measured", "tuned"))
    finally:
        store.close()
    print(f"1. One line, @task.zeus: a training as it is       {took(measured)}")
    print(
        f'2. A second word, mode="optimize": its power limit {took(tuned)}{less(measured, tuned)}'
    )
    print("3. A ZeusJob with batch sizes: week by week", flush=True)


def rows_of(run_id: str, check: Callable[[], None]) -> list[Trial]:
    """The rows of the plain tasks of a run: each is written just after its task has ended."""
    store = open_store()
    try:
        deadline_s = time.monotonic() + ROWS_TIMEOUT_S
        while True:
            rows = store.recurrence(PLAIN, run_id)
            ended = [t for t in rows if t.is_outside and t.state is not State.RUNNING]
            if len(ended) >= PLAIN_TASKS or time.monotonic() > deadline_s:
                return ended
            check()
            time.sleep(POLL_S)
    finally:
        store.close()


def finished(api: Api, dag_id: str, check: Callable[[], None]) -> str:
    """Trigger a DAG and wait for its end; return the run's id.

    Raises DemoError if it fails, or takes too long.
    """
    run_id = str(api.post(f"dags/{dag_id}/dagRuns", {"logical_date": None})["dag_run_id"])
    path = f"dags/{dag_id}/dagRuns/{part(run_id)}"
    deadline_s = time.monotonic() + RUN_TIMEOUT_S
    while (state := api.get(path)["state"]) not in ("success", "failed"):
        check()
        if time.monotonic() > deadline_s:
            raise DemoError(f"{dag_id}: no end after {RUN_TIMEOUT_S:.0f} s; logs: {HOME / 'logs'}")
        time.sleep(POLL_S)
    if state == "failed":
        raise DemoError(f"{dag_id} failed; logs: {HOME / 'logs' / f'dag_id={dag_id}'}")
    return run_id


def all_took(trials: Sequence[Trial]) -> str:
    """Energy, time and number of the tasks of a run that were measured from outside."""
    from airflow_provider_zeus.plugin.text.words import source  # loads Airflow with its settings

    seen = [t.observation for t in trials]
    time_s = sum(o.time_s or 0.0 for o in seen)
    tasks = counted(len(seen), "task")
    energies = [o.energy_j for o in seen if o.energy_j is not None]
    if not energies:
        return f"{tasks}, {time_s:.0f} s; nothing measures energy"
    sources = {source(o.energy_source) for o in seen}
    return f"{tasks}, {energy_text(sum(energies))}, {time_s:.0f} s ({', '.join(sorted(sources))})"


def took(trial: Trial) -> str:
    """Energy, time and power limit of a run."""
    seen = trial.observation
    if seen.energy_j is None or seen.time_s is None:
        return "not known: see the task's log"
    limit = "" if seen.power_limit_w is None else f" at {seen.power_limit_w:.0f} W"
    return f"{energy_text(seen.energy_j)}, {seen.time_s:.0f} s{limit}"


def less(before: Trial, after: Trial) -> str:
    """How much energy and time a run took against another one of the same steps."""
    found = []
    for name, text in (("energy_j", "energy"), ("time_s", "time")):
        old = getattr(before.observation, name)
        new = getattr(after.observation, name)
        if old and new is not None:
            found.append(f"{100 * (new / old - 1):+.0f} % {text}")
    return f": {', '.join(found)}" if found else ""
