"""Three plain tasks that do not know Zeus:
with ``[zeus] measure = tag:zeus`` each of them has its cost.
"""

from datetime import datetime

from airflow.sdk import dag, task


@dag(schedule=None, start_date=datetime(2026, 1, 1), tags=["zeus", "example"])
def zeus_plain():
    """Make numbers, sort them, add them up. Nothing of Zeus is imported."""

    @task
    def extract():
        return sum(i * i % 7919 for i in range(12_000_000))

    @task
    def transform(seed):
        return sorted((i * seed) % 1_000_003 for i in range(4_000_000))[:3]

    @task
    def load(rows):
        return sum(i % 7 for i in range(30_000_000)) + sum(rows)

    load(transform(extract()))


zeus_plain()
