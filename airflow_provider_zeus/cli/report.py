"""``airflow zeus report``: what all jobs spent and saved in a month, as an HTML page and a CSV file."""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path

from airflow_provider_zeus.cli.shell import command, opened, say
from airflow_provider_zeus.hooks.zeus import write_month
from airflow_provider_zeus.reports.months import month_of


@command
def report(args: Namespace) -> None:
    """Write the report of a month."""
    with opened(args) as store:
        for file in write_month(store, args.month or month_of(time.time()), Path(args.out)):
            say(str(file))
