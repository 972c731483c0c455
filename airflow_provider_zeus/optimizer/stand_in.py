"""What takes an attempt's place where that does not fit into memory. Standard library only."""

from __future__ import annotations

from collections.abc import Collection

from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.trial import Attempt, Phase


def smaller(job: ZeusJob, b: int, reached: Collection[int] = (), infeasible: Collection[int] = ()) -> Attempt | None:
    """The next smaller batch size: of those that reached the target, else of all that may run; None where none may."""
    fit = [s for s in job.batch_sizes if s < b and s not in infeasible]
    known = [s for s in fit if s in reached]
    if not fit:
        return None
    why = f"Where {b} does not fit into memory: the nearest smaller size{' that reached the target' if known else ''}."
    return Attempt(batch_size=max(known or fit), phase=Phase.INCUMBENT if known else Phase.EXPLORE, why=why)
