"""``airflow zeus worth``: what the last retrainings of a job bought."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from airflow_provider_zeus.cli.shell import command, known, opened, print_data, say
from airflow_provider_zeus.model.trial import newest_here
from airflow_provider_zeus.reports.dataset import as_dataset
from airflow_provider_zeus.reports.worth import worth as bought


@command
def worth(args: Namespace) -> int:
    """Print it. Raises JobSpecError: no such job."""
    with opened(args) as store:
        job_id = known(store, args.job)
        trials = store.trials(job_id)
    job = newest_here(trials).job
    if not job.chooses_size:
        say("This job names no metric: no run tells what it bought.")
        return 0
    log = as_dataset(trials, job)
    found = bought(log, log.belief().changes, args.last)
    if print_data({"job": job_id, **({"missing": found} if isinstance(found, str) else asdict(found))}, args.output):
        return 0
    say(f"Not known: {found}." if isinstance(found, str) else found.text)
    return 0
