"""``python -m demo.cluster``, called by ``make demo-cluster``."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.units import energy_text
from demo.cluster.account import problems, row, table
from demo.cluster.scenario import Played, Where, play
from demo.cluster.servers import Cluster
from demo.cluster.settings import JOBS, SLICES, Options, Site, job_id
from demo.guards import run_alone
from demo.processes import end_leftovers
from demo.settings import DAGS

ABOUT = """\
A cluster on this machine, on 127.0.0.1 only: PostgreSQL, Redis, api-server, scheduler,
dag-processor and two Celery workers with two SIMULATED GPUs each. Four jobs retrain a model of New
York's weather, their runs overlap, and one worker is killed in the middle. The trainings are real;
time and energy are those of the simulated GPUs."""


def main() -> int:
    """Run the cluster; returns the exit status."""
    return run_alone("The cluster", _demo)


def _demo() -> int:
    options = Options.read(os.environ)
    for pid in end_leftovers():
        print(f"  ended processes of an earlier demo (session {pid})", flush=True)
    print(ABOUT, flush=True)
    folder = Path(tempfile.mkdtemp(prefix="zeus-cluster-"))
    done = False  # else logs and models stay
    try:
        begun_s = time.monotonic()
        with running(folder) as (cluster, store):
            _say(f"The cluster is up ({time.monotonic() - begun_s:.0f} s): {cluster.site.url}")
            played = play(cluster, store, options.runs, weeks(options.runs), _say)
            wrong = report(cluster, store, played)
        done = not wrong
        return 0 if done else 1
    finally:
        end_leftovers()
        if done and not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            with suppress(OSError):
                print(f"Logs and models: {folder}", flush=True)


@contextmanager
def running(folder: Path) -> Iterator[tuple[Cluster, Store]]:
    """Start a cluster in ``folder`` and open its run log; close both at the end."""
    from airflow_provider_zeus.store.sql.store import SqlStore

    site = Site.fresh(folder)
    cluster = Cluster(site, _say)
    try:
        cluster.start()
        store = SqlStore(site.database("zeus"))
        try:
            yield cluster, store
        finally:
            store.close()
    finally:
        _say("Stopping ...")
        cluster.stop()


def weeks(runs: int) -> list[str]:
    """Return the slices of that many runs."""
    if str(DAGS) not in sys.path:
        sys.path.insert(0, str(DAGS))  # as Airflow does for DAG files
    from weather.slices import all_keys

    return all_keys()[: runs * SLICES]


def report(cluster: Cluster, store: Store, played: Played) -> list[str]:
    """Print the totals of the jobs; return the problems found."""
    log = {job: store.trials(job_id(job)) for job in JOBS}
    drawn_j = drawn(cluster.site)
    rows = [row(job, trials, len(played.runs[job]) * SLICES) for job, trials in log.items()]
    wrong = problems(log, played, drawn_j, saved(cluster.site, played))
    logged_j = sum(each.energy_j for each in rows)
    peaks = cluster.peaks
    _say("\nEnergy and GPU time are simulated:")
    for line in table(rows):
        _say(line)
    share = f"{logged_j / drawn_j:.1%}" if drawn_j else "nothing"
    _say(
        f"\nEnergy: {energy_text(logged_j)} in the log of {energy_text(drawn_j)} that the GPUs drew"
        f" ({share}); the"
    )
    _say(
        "log lacks what a killed training drew after its last heartbeat, and what is drawn outside"
        " of epochs."
    )
    _say(f"Wall time of the runs: {played.wall_s:.0f} s.")
    _say("Peak memory [MiB, shared pages counted once]:")
    for kind, mib in sorted(peaks.by_kind_mib.items(), key=lambda each: -each[1]):
        _say(f"  {kind:<14}{mib:>7.0f}")
    _say(f"  {'all at once':<14}{peaks.total_mib:>7.0f}")
    for line in wrong:
        _say(f"WRONG: {line}")
    _say("" if wrong else "Every run kept its model, and every attempt is accounted for.")
    return wrong


def drawn(site: Site) -> float:
    """Return the energy that all simulated GPUs of the cluster drew [J]."""
    from airflow_provider_zeus.power.simulated.state_file import ENERGY_J, StateFile

    return sum(
        StateFile(str(path)).slots[ENERGY_J]
        for path in site.folder.glob("worker-*/gpu-*/simulated-*.gpu")
    )


def saved(site: Site, played: Played) -> set[Where]:
    """Return the recurrences whose model is on disk."""
    found = set()
    for job, runs in played.runs.items():
        for number, run in enumerate(runs):
            keys = weeks(len(runs))[number * SLICES :][:SLICES]
            paths = [site.models / f"cluster_{job}" / run / f"{key}.pt" for key in keys]
            found |= {(job, run, index) for index, path in enumerate(paths) if path.exists()}
    return found


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
