"""The baseline: each slice trained at the default batch size and full power,
outside of Airflow and the run log.

``python -m demo.baseline 2013-W13 ...`` trains the slices without a result; results are cached
until the example's code changes.
"""

from __future__ import annotations

import hashlib
import json
import sys
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from demo.settings import BASELINE, DAGS

if TYPE_CHECKING:
    from airflow_provider_zeus.model.job import ZeusJob


@dataclass(frozen=True, slots=True)
class Baseline:
    """Cost of one slice without Zeus. ``code``: fingerprint of the example that was trained."""

    slice_key: str
    code: str
    batch_size: int
    state: str
    epochs: float
    energy_j: float
    time_s: float
    cost_j: float


def fingerprint() -> str:
    """Return a hash of the example's code; a change makes cached results invalid."""
    files = sorted([DAGS / "zeus_weather.py", *(DAGS / "weather").glob("*.py")])
    return hashlib.sha256(b"\0".join(f.read_bytes() for f in files)).hexdigest()[:16]


def read(folder: Path = BASELINE) -> dict[str, Baseline]:
    """Read the results by slice, without those of other code or cut off by a kill."""
    code = fingerprint()
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            result = Baseline(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            continue
        if result.code == code:
            found[result.slice_key] = result
    return found


def main(keys: Sequence[str]) -> None:
    """Train the slices without a result, in order."""
    sys.path.insert(0, str(DAGS))  # as Airflow does for DAG files
    from zeus_weather import JOB

    BASELINE.mkdir(parents=True, exist_ok=True)
    for key in keys:
        if key not in read():
            result = asdict(train(JOB, key, BASELINE))
            draft = BASELINE / f"{key}.tmp"
            draft.write_text(json.dumps(result), encoding="utf-8")
            draft.rename(BASELINE / f"{key}.json")
            print(result, flush=True)


def train(job: ZeusJob, key: str, folder: Path) -> Baseline:
    """Train one slice: one attempt without a bound, no power limit set,
    on its own simulated GPU.
    """
    from weather import forecast

    from airflow_provider_zeus.model.cost import Weights, observed_cost
    from airflow_provider_zeus.model.trial import Phase, PlannedAttempt
    from airflow_provider_zeus.power.factory import open_device
    from airflow_provider_zeus.training.protocol.events import ResultLine
    from airflow_provider_zeus.training.protocol.plan import Plan
    from airflow_provider_zeus.training.run import ZeusRun

    attempt = PlannedAttempt(
        batch_size=job.default_batch_size, phase=Phase.PINNED, why="Baseline: the default, always."
    )
    plan = Plan(
        job_id="baseline",
        ti_id=f"baseline-{key}",
        number=1,
        first_attempt=1,
        spec=replace(job, mode="measure").to_dict(),
        attempts=(attempt,),
        seed=zlib.crc32(key.encode()),
        state_dir=str(folder),
    )
    device = open_device(job.device, state_dir=folder)
    lines: list[ResultLine] = []
    ZeusRun.from_plan(plan, device=device, sink=lines.append).train(forecast.retrain, key)
    end = next(line for line in lines if line.kind == "end")
    seen = end.observation
    cost_j = observed_cost(seen, Weights.of(job, device.info)) if seen else None
    if not (seen and end.state and seen.epochs and seen.energy_j and seen.time_s and cost_j):
        raise RuntimeError(f"the baseline of {key} has no figures: {end}")
    return Baseline(
        key,
        fingerprint(),
        attempt.batch_size,
        end.state.value,
        seen.epochs,
        seen.energy_j,
        seen.time_s,
        cost_j,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
