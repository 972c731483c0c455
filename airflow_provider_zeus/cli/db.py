"""``airflow zeus db``."""

from __future__ import annotations

from argparse import Namespace

from airflow_provider_zeus.cli.shell import command, say


@command
def upgrade(args: Namespace) -> None:
    """Make or migrate the tables of the trial log."""
    from airflow_provider_zeus.store.upgrade import upgrade

    say(upgrade(args.conn_id))
