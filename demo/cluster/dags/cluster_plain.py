"""A DAG that does not know Zeus: two mapped tasks that keep a processor busy.

``[zeus] measure`` names its tag.
"""

from __future__ import annotations

import time

from airflow.sdk import DAG, task

BUSY_S = 1.5


def work(number: int) -> int:
    """Keep a thread of the processor busy."""
    until_s = time.process_time() + BUSY_S
    while time.process_time() < until_s:
        pass
    return number


with DAG("cluster_plain", schedule=None, tags=["plain"]):
    task(work).expand(number=[1, 2])
