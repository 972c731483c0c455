"""``python -m demo.levers``, called by ``make demo-levers``."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo.api import part
from demo.feed import OVER
from demo.guards import run_alone
from demo.processes import end_leftovers
from demo.servers import Servers, free_port
from demo.settings import DAGS, STATE, TAB, DemoError, Options, airflow_env

if TYPE_CHECKING:
    from airflow_provider_zeus.plugin.views.dag_view import JobLog

DAG_ID = "zeus_levers"
TASK = "train"
JOB_ID = f"{DAG_ID}.{TASK}"
WEEKS = ("2013-W14", "2013-W15", "2013-W16")
FALLS = 3  # when this run is due the intensity is about to fall
# [g CO2e/kWh]
HIGH = 450.0
LOW = 120.0
FALLS_IN_S = 12.0
STEP_S = 20.0
HOURS = 3
RUN_TIMEOUT_S = 300.0
HOME = STATE / "levers"
CARBON = HOME / "signals" / "carbon.csv"
ABOUT = f"""\
One job with all that a scheduler can decide: retrain New York's weather model only where the
earlier one is no longer good, at the cleanest minute, done 15 minutes after its run was due. The
trainings are real; time and energy are those of a SIMULATED V100. The carbon intensity is made up:
it falls from {HIGH:g} to {LOW:g} g/kWh just after the third run is due. A wait this short is
slept; a longer one holds no worker."""


def main() -> int:
    """Run the demo; returns the exit status."""
    return run_alone("The demo", _demo)


def _demo() -> int:
    options = Options.read(os.environ, terminal=sys.stdout.isatty())
    print(ABOUT, flush=True)
    begun_s = time.monotonic()
    for pid in end_leftovers():
        print(f"  ended processes of an earlier demo (session {pid})", flush=True)
    env = levers_env(free_port(options.port))
    os.environ.clear()  # open_store() must read the servers' configuration, and no other
    os.environ.update(env)
    write_carbon(HIGH)
    servers = Servers(env, [DAG_ID])
    try:
        servers.start()
        print(
            f"Airflow is up ({time.monotonic() - begun_s:.0f} s): {servers.url}/dags/{DAG_ID}",
            flush=True,
        )
        for number, week in enumerate(WEEKS, 1):
            if number == FALLS:
                write_carbon(HIGH, then=LOW)
            print(f"  {number}/{len(WEEKS)}  {week}  {' '.join(_run(servers, week))}", flush=True)
        log = _job_log()
        print(f"\nWhat saved it:\n{_levers(log)}\n\nWhat comes next:\n{_next_run(log)}", flush=True)
        print(
            f"\nSee {servers.url}/dags/{DAG_ID}/{TAB} ({time.monotonic() - begun_s:.0f} s)",
            flush=True,
        )
        if options.stay:
            servers.stay()
        return 0
    finally:
        with suppress(OSError):  # the terminal may be gone
            print("Stopping ...", flush=True)
        servers.stop()
        end_leftovers()


def levers_env(port: int) -> dict[str, str]:
    """Environment of the demo's Airflow: a home of its own, and the signal ``carbon``."""
    carbon = {"file": CARBON.name, "times": "time", "values": "g_per_kwh", "unit": "g/kWh"}
    path = os.pathsep.join(filter(None, [str(DAGS), os.environ.get("PYTHONPATH")]))
    return airflow_env(port) | {
        "AIRFLOW_HOME": str(HOME),
        "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).with_name("dags")),
        "AIRFLOW__ZEUS__ATTEMPT_ROOT": str(HOME / "models"),
        "AIRFLOW_CONN_ZEUS_CARBON": json.dumps({"conn_type": "zeus_signal", "extra": carbon}),
        "PYTHONPATH": path,  # the weather data
    }


def write_carbon(now_g: float, then: float | None = None) -> None:
    """Write the intensity from a minute ago on [g/kWh]; ``then``:
    what it is :data:`FALLS_IN_S` from now.
    """
    falls_s = time.time() + FALLS_IN_S
    rows = ["time,g_per_kwh"]
    for i in range(-3, round(HOURS * 3600 / STEP_S)):
        value = now_g if then is None or i < 0 else then
        rows.append(f"{datetime.fromtimestamp(falls_s + i * STEP_S, UTC).isoformat()},{value:g}")
    CARBON.parent.mkdir(parents=True, exist_ok=True)
    new = CARBON.with_suffix(".new")
    new.write_text("\n".join(rows) + "\n", encoding="utf-8")
    new.replace(CARBON)  # whole: a run may be reading


def _run(servers: Servers, week: str) -> Iterator[str]:
    """Train on a week; yields what the run says of its levers."""
    path = f"dags/{DAG_ID}/dagRuns"
    run_id = servers.api.post(path, {"logical_date": None, "conf": {"week": week}})["dag_run_id"]
    path = f"{path}/{part(run_id)}"
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while (state := servers.api.get(path)["state"]) not in OVER:
        servers.check()
        if time.monotonic() > deadline:
            raise DemoError(
                f"the run on {week} did not end in {RUN_TIMEOUT_S:.0f} s; logs: {HOME / 'logs'}"
            )
        time.sleep(0.5)
    if state != "success":
        raise DemoError(
            f"the run on {week} failed; logs:"
            f" {HOME / 'logs' / f'dag_id={DAG_ID}' / f'run_id={run_id}'}"
        )
    yield from _said(run_id)


def _said(run_id: str) -> Iterator[str]:
    """What the tab of a run says of it, in sentences."""
    from airflow_provider_zeus.model.trial import State
    from airflow_provider_zeus.plugin.text.run_notes import deadline
    from airflow_provider_zeus.store.open import open_store
    from airflow_provider_zeus.units import energy_text

    store = open_store()
    try:
        trials = [trial for trial in store.trials(JOB_ID) if trial.origin.run_id == run_id]
    finally:
        store.close()
    newest = trials[-1]
    seen = trials[-1].observation
    if newest.state is State.NOT_NEEDED:
        yield "not needed: the earlier model is still good on the newest week."
        return
    sizes = " then ".join(str(t.batch_size) for t in trials)
    energy_j = sum(t.observation.energy_j or 0.0 for t in trials)
    yield f"batch size {sizes}, {energy_text(energy_j)}"
    if seen.g_co2e_per_kwh is not None:
        instead = (
            ""
            if seen.g_co2e_at_once is None
            else f" instead of {seen.g_co2e_at_once:.0f}, for it waited"
        )
        yield f"at {seen.g_co2e_per_kwh:.0f} g CO2e/kWh{instead}."
    yield deadline(trials)


def _job_log() -> JobLog:
    """What the DAG's tab is made of."""
    from airflow_provider_zeus.plugin.text.factors import configured
    from airflow_provider_zeus.plugin.views.dag_view import JobLog
    from airflow_provider_zeus.plugin.views.job_analysis import JobAnalysis, job_today
    from airflow_provider_zeus.reports.dataset import as_dataset
    from airflow_provider_zeus.store.open import open_store

    store = open_store()
    try:
        trials = store.trials(JOB_ID)
        log = as_dataset(trials, job_today(trials, store.settings(JOB_ID)))
        profiles = (
            [] if log.where is None else store.profile(JOB_ID, log.where, log.job.job_version)
        )
    finally:
        store.close()
    return JobLog(trials, JobAnalysis.of(trials, log, profiles), configured(), {}, more=False)


def _levers(log: JobLog) -> str:
    """The table *What saved it* of the DAG's tab."""
    table = log.levers
    if table is None:
        return "  nothing yet"
    return "\n".join("  " + line for line in _aligned([table.columns, *table.rows]))


def _next_run(log: JobLog) -> str:
    """What the DAG's tab says of the next run."""
    from airflow_provider_zeus.plugin.text.headline import comes_next

    upcoming = log.analysis.next_run
    return f"  {comes_next(upcoming)}.\n  {upcoming.attempts[0].why}"


def _aligned(rows: list[list[Any]]) -> list[str]:
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


if __name__ == "__main__":
    sys.exit(main())
