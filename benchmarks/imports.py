"""What the modules of DAG authors add to a DAG file's imports: ``python -m benchmarks.imports``.

Each figure is processor time, the median over fresh interpreters. A DAG file imports
``airflow.sdk`` and some of its names anyway, so what ours add is taken beyond those; the ratio is
to ``import airflow.sdk`` of the same runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

from benchmarks.command import command

RUNS = 9
_SCRIPT = """
import json, sys, time
def timed(statement):
    start = time.process_time()
    exec(statement)
    return (time.process_time() - start) * 1e3
sdk = timed("import airflow.sdk; from airflow.sdk import DAG, BaseHook, BaseOperator, task")
before = set(sys.modules)
ours = timed("from airflow_provider_zeus import ZeusJob, ZeusTrial; import airflow_provider_zeus.operators.train, "
             "airflow_provider_zeus.operators.command, airflow_provider_zeus.decorators.zeus, "
             "airflow_provider_zeus.hooks.zeus, airflow_provider_zeus.plugin")
print(json.dumps([sdk, ours, sorted(set(sys.modules) - before)]))
"""


def measure() -> tuple[float, float, list[str]]:
    """(ms for airflow.sdk, ms that ours add,
    modules that they load) of one fresh interpreter, in processor time.
    """
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True
    )
    sdk_ms, ours_ms, modules = json.loads(done.stdout.splitlines()[-1])
    return sdk_ms, ours_ms, modules


@command()
def main(args: argparse.Namespace) -> None:
    """Print the table."""
    measure()  # warm the file cache
    runs = [measure() for _ in range(RUNS)]
    sdk_ms = statistics.median(r[0] for r in runs)
    ours_ms = statistics.median(r[1] for r in runs)
    print(f"import airflow.sdk with DAG, task, BaseOperator, BaseHook: {sdk_ms:8.1f} ms")
    print(
        f"our operator, decorator and hook modules add:             {ours_ms:8.1f} ms  (aim: at"
        " most 20)"
    )
    print(f"ratio within these runs:                                  {ours_ms / sdk_ms:8.2%}")
