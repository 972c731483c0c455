"""Replays by the package on ``PYTHONPATH``, which may be an earlier one: regrets and speed, as JSON.

Reads from its standard input ``{"traces": DIR, "jobs": [...]}``: pairs, each with the tables of Epochs that hold
before and after a shift. Uses only what the package has had since its first version, so that two versions are held
against each other on the same cases and machine. Looks at other sizes within a run (``peek``, now gone) stay off.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_zeus.simulation.driver import replay
from airflow_provider_zeus.simulation.scenario import Scenario
from airflow_provider_zeus.simulation.traces import Traces


def regrets_of(traces: Traces, asked: Mapping[str, Any]) -> list[float]:
    """Expected regret [C*] from the shift on, one figure per seed; of a job without a shift that of all recurrences."""
    pair = traces.pair(asked["workload"], asked["gpu"])
    tables = [{int(b): tuple(runs) for b, runs in table.items()} for table in asked["tables"]]
    truths = [Scenario(replace(pair, epochs=table, max_epochs=asked["max_epochs"])) for table in tables]
    shifts, job, found = dict(zip([asked["shift"]], truths[1:], strict=False)), truths[0].job(), []
    if hasattr(job, "peek"):
        job = truths[0].job(peek=False)
    for seed in range(asked["seeds"]):
        curve = replay(truths[0], job, asked["recurrences"], seed, shifts).expected_regret()
        found.append(curve[-1] - (curve[asked["shift"] - 1] if shifts else 0.0))
    return found


def main() -> None:
    """Write the regrets of each job, and recurrences per second of this process."""
    told = json.load(sys.stdin)
    traces, jobs, start = Traces(Path(told["traces"])), told["jobs"], time.process_time()
    found = [regrets_of(traces, asked) for asked in jobs]
    spent_s = time.process_time() - start
    recurrences = sum(asked["recurrences"] * asked["seeds"] for asked in jobs)
    json.dump({"regrets": found, "per_s": recurrences / spent_s}, sys.stdout)


if __name__ == "__main__":
    main()
