"""DAGs that do not know Zeus, and have the tag zeus: three plain tasks, a deferred one,
one to kill, one to stop.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, BaseOperator, task

WORK = Path(os.environ["ZEUS_TEST_DIR"])
START = datetime(2026, 1, 1, tzinfo=UTC)
TAGS = ["zeus"]
BUSY_SHELL = "import time\nwhile time.process_time() < {seconds}: pass"


def busy(seconds: float) -> None:
    until_s = time.process_time() + seconds
    while time.process_time() < until_s:
        pass


class Defers(BaseOperator):
    """Works, is deferred, and works again."""

    def execute(self, context: Any) -> None:
        busy(1.5)
        # Airflow fails a task that runs again before its scheduler has heard of the first part's
        # end
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=20)), method_name="resumed")

    def resumed(self, context: Any, event: Any = None) -> None:
        busy(1.5)


with DAG("measure_plain", schedule=None, start_date=START, tags=TAGS):

    @task
    def function() -> None:
        busy(1.5)

    @task
    def forks() -> None:
        for _ in range(2):
            if not (child := os.fork()):
                busy(1.0)
                os._exit(0)
            os.waitpid(child, 0)

    command = BashOperator(
        task_id="command", bash_command=f"python -c '{BUSY_SHELL.format(seconds=1.5)}'"
    )
    function() >> command >> forks()

with DAG("measure_deferred", schedule=None, start_date=START, tags=TAGS):
    Defers(task_id="waits")

with DAG("measure_killed", schedule=None, start_date=START, tags=TAGS):

    @task
    def long() -> None:
        (WORK / "long.pid").write_text(f"{os.getpid()}")
        busy(120)

    long()

with DAG("measure_stopped", schedule=None, start_date=START, tags=TAGS):
    BashOperator(task_id="shell", bash_command=f"python -c '{BUSY_SHELL.format(seconds=120)}'")

with DAG("measure_not_named", schedule=None, start_date=START):

    @task
    def other() -> None:
        busy(1.5)

    other()
