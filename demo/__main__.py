"""``python -m demo``, called by ``make demo``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

from demo.baseline import read as read_baselines
from demo.feed import OVER, Feed
from demo.guards import run_alone
from demo.ladder import climb
from demo.processes import Process, end_leftovers
from demo.run_costs import RunCost, run_costs
from demo.servers import Servers, free_port
from demo.settings import (
    BASELINE,
    CONSUMER,
    DAGS,
    JOB_ID,
    LADDER,
    PLAIN,
    PRODUCER,
    TAB,
    DemoError,
    Options,
    airflow_env,
)
from demo.table import progress, table
from demo.verdict import verdict

BASELINE_TIMEOUT_S = 600.0
ABOUT = """\
A model of New York's weather is retrained week by week; Zeus picks batch size and power limit of
each run. Every training is real, on this machine's CPU. Its time and power are those of a
SIMULATED V100, where only training steps count: validation costs 0 s and 0 J. The hold-out is
inside each slice and leaks: its error is no forecast skill."""


def main() -> int:
    """Run the demo; returns the exit status."""
    return run_alone("The demo", _demo)


def _demo() -> int:
    options = Options.read(os.environ, terminal=sys.stdout.isatty())
    print(ABOUT, flush=True)
    for pid in end_leftovers():
        print(f"  ended processes of an earlier demo (session {pid})", flush=True)
    port = free_port(options.port)
    if port != options.port:
        print(f"  port {options.port} is taken: using {port}", flush=True)
    env = airflow_env(port)
    os.environ.clear()  # open_store() must read the servers' configuration, and no other
    os.environ.update(env)
    servers = Servers(env, [CONSUMER, PRODUCER, PLAIN, LADDER])
    baseline: Process | None = None
    try:
        servers.start()
        print(f"Airflow is up: {servers.url}/dags/{CONSUMER}", flush=True)
        feed = Feed(servers.api, servers.check)
        # trains while the first rungs wait for Airflow
        baseline = _start_baseline(feed, options, port)
        climb(servers.api, servers.check)
        problem = _feed(feed, options.slices) or _wait_for(baseline)
        _print_result(_rows(), _page_says(), servers)
        if problem:
            raise DemoError(problem)
        if options.stay:
            print(f"See {servers.url}/dags/{CONSUMER}/{TAB}")
            servers.stay()
        return 0
    finally:
        with suppress(OSError):  # the terminal may be gone
            print("Stopping ...", flush=True)
        if baseline is not None:
            baseline.stop(grace_s=1.0)
        servers.stop()
        end_leftovers()


def _start_baseline(feed: Feed, options: Options, port: int) -> Process:
    """Start the training of all slices' baselines, those to come included,
    beside the demo at low priority.
    """
    known = list(feed.trainings())
    keys = known + [key for key in _weeks() if key not in known][: options.slices]
    return Process(
        "baseline", [sys.executable, "-m", "demo.baseline", *keys], airflow_env(port), nice=10
    )


@cache
def _weeks() -> list[str]:
    sys.path.insert(0, str(DAGS))  # as Airflow does for DAG files
    from weather import slices

    return slices.all_keys()


def _feed(feed: Feed, count: int) -> str | None:
    """Train on the next slices, print a line for each; return the problem,
    None when every run kept a model.
    """
    trainings = feed.trainings()
    left = [key for key, (_, state) in trainings.items() if state not in OVER]
    if left:
        print(f"  first the unfinished slices of an earlier demo: {', '.join(left)}", flush=True)
    total = min(count, len(_weeks()) - len(trainings) + len(left))
    done = 0
    for fed in feed.run(total):
        done += 1
        row = next((row for row in _rows() if row.slice_key == fed.slice_key), None)
        if not fed.ok or row is None or not row.kept:
            return f"the run on {fed.slice_key} kept no model; log: {fed.log()}"
        print(f"{done:>3}/{total}  {progress(row)}  ({fed.wall_s:.0f} s)", flush=True)
    if done < count:
        print(
            f"No slice is left: the year's {len(_weeks())} are trained. 'make demo-reset' starts"
            " again.",
            flush=True,
        )
    return None


def _rows() -> list[RunCost]:
    from airflow_provider_zeus.store.open import open_store

    store = open_store()
    try:
        return run_costs(store.trials(JOB_ID), read_baselines())
    finally:
        store.close()


def _wait_for(baseline: Process) -> str | None:
    """Wait until the baseline is trained; return the problem, None when there is none."""
    deadline = time.monotonic() + BASELINE_TIMEOUT_S
    while baseline.code() is None:
        print("  the baseline is still training ...", flush=True)
        if time.monotonic() > deadline:
            return (
                f"the baseline was not trained in {BASELINE_TIMEOUT_S:.0f} s; log: {baseline.log}"
            )
        baseline.wait(10.0)
    if baseline.code():
        return (
            f"the baseline ended with status {baseline.code()}; log:"
            f" {baseline.log}\n{baseline.tail()}"
        )
    return None


def _page_says() -> str:
    """The verdict and the first sentence of the DAG's tab,
    which knows the log alone and not the baseline.
    """
    from airflow_provider_zeus.plugin.text.headline import sentence
    from airflow_provider_zeus.plugin.text.saved_text import job_word
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
        known = JobAnalysis.of(trials, log, profiles)
        said = sentence(known.saving, known.next_run, known.source, known.weights)
        return f"{job_word(known.saving).text}. {said.text}"
    finally:
        store.close()


def _print_result(rows: Sequence[RunCost], page: str, servers: Servers) -> None:
    width = (os.get_terminal_size().columns or None) if sys.stdout.isatty() else None
    print(
        "\nCost per run, energy and time together in Wh (Eq. 2 of the paper: half energy, half time"
        " at full power):"
    )
    for line in [*table(rows, width), "", *verdict(rows)]:
        print(line)
    print(f"\nThe page, which knows the log alone and not this baseline, says:\n  {page}")
    print(f"\nTime and energy are the simulated GPU's. Baseline results: {BASELINE}")
    print(
        f"The servers used at most {servers.peak_mib:.0f} MiB of memory (resident, without the"
        " trainings).",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
