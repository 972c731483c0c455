"""The first two rungs, before the weeks of batch sizes: an unchanged function is measured, then its limit is tuned."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.units import energy_text
from demo.api import Api, part
from demo.settings import HOME, LADDER, DemoError

RUN_TIMEOUT_S, POLL_S = 300.0, 0.5
RUNS = 2  # the first one profiles, the second one profits


def climb(api: Api, check: Callable[[], None]) -> None:
    """Run the DAG of both rungs, and print what its runs took. ``check`` raises when a server has ended."""
    for _ in range(RUNS):
        run_id = str(api.post(f"dags/{LADDER}/dagRuns", {"logical_date": None})["dag_run_id"])
        path, deadline_s = f"dags/{LADDER}/dagRuns/{part(run_id)}", time.monotonic() + RUN_TIMEOUT_S
        while (state := api.get(path)["state"]) not in ("success", "failed"):
            check()
            if time.monotonic() > deadline_s:
                raise DemoError(f"{LADDER}: no end after {RUN_TIMEOUT_S:.0f} s; logs: {HOME / 'logs'}")
            time.sleep(POLL_S)
        if state == "failed":
            raise DemoError(f"{LADDER} failed; logs: {HOME / 'logs' / f'dag_id={LADDER}'}")
    store = open_store()
    try:
        measured, tuned = (store.trials(f"{LADDER}.{name}")[-1] for name in ("measured", "tuned"))
    finally:
        store.close()
    print(f"1. One line, @task.zeus: a training as it is       {took(measured)}")
    print(f'2. A second word, mode="optimize": its power limit {took(tuned)}{less(measured, tuned)}')
    print("3. A ZeusJob with batch sizes: week by week", flush=True)


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
        old, new = getattr(before.observation, name), getattr(after.observation, name)
        if old and new is not None:
            found.append(f"{100 * (new / old - 1):+.0f} % {text}")
    return f": {', '.join(found)}" if found else ""
