"""A simulated GPU, plans on it, and what a training on it wrote down."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import airflow_provider_zeus
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Observation, Phase, PlannedAttempt, ProfileSample
from airflow_provider_zeus.power.limits import control
from airflow_provider_zeus.power.simulated.gpu import SimulatedGpu
from airflow_provider_zeus.training.protocol.events import ResultLine
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.ranks import Ranks
from airflow_provider_zeus.training.run import ZeusRun

ROOT = Path(airflow_provider_zeus.__file__).parents[1]
SAMPLES = 51_200  # of one epoch: 50 steps of 1024, 200 of 256


@dataclass
class Kit:
    """Runs on one simulated V100 (ShuffleNet) whose state lies in ``tmp``;
    ``lines`` is what they wrote down.
    """

    tmp: Path
    lines: list[ResultLine] = field(default_factory=list)
    runs: list[ZeusRun] = field(default_factory=list)  # closed when the test ends, however it does
    # what must not happen, put here by code whose errors may be lost
    never: list[str] = field(default_factory=list)

    @property
    def gpu(self) -> SimulatedGpu:
        return SimulatedGpu(
            "v100", load="shufflenet", state_file=self.tmp / "simulated-v100-shufflenet.gpu"
        )

    def plan(self, *attempts: PlannedAttempt, **changes: Any) -> Plan:
        """A plan; ``changes`` that name a field of the plan go there, the others to the job."""
        spec = {
            "batch_sizes": [256, 1024],
            "default_batch_size": 256,
            "target": "acc >= 0.9",
            "max_epochs": 10,
            "device": "simulated:v100/shufflenet",
        }
        own = {
            name: changes.pop(name) for name in list(changes) if name in Plan.__dataclass_fields__
        }
        return Plan(
            **{
                "job_id": "dag.train",
                "ti_id": "ti-1",
                "number": 1,
                "first_attempt": 1,
                "spec": ZeusJob(**{**spec, **changes}).to_dict(),
                "attempts": attempts or (incumbent(256),),
                "heartbeat_s": 60.0,
                "state_dir": str(self.tmp),
                **own,
            }
        )

    def run(
        self, *attempts: PlannedAttempt, on: Any = None, sink: Any = None, **changes: Any
    ) -> ZeusRun:
        """A run ``on`` a device, or on the one that the job names."""
        self.runs.append(
            ZeusRun.from_plan(
                self.plan(*attempts, **changes), sink=sink or self.lines.append, device=on
            )
        )
        return self.runs[-1]

    def rank(self, rank: int, size: int = 2) -> ZeusRun:
        """The run of one of several processes of a host."""
        self.runs.append(
            ZeusRun.from_plan(
                self.plan(), sink=self.lines.append, ranks=Ranks(rank, size, rank, size)
            )
        )
        return self.runs[-1]

    def ends(self) -> list[ResultLine]:
        return [line for line in self.lines if line.kind == "end"]

    def last(self) -> Observation:
        """What the last attempt that ended observed."""
        observation = self.ends()[-1].observation
        assert observation is not None
        return observation

    def profile(self) -> tuple[ProfileSample, ...]:
        return tuple(s for line in self.lines for s in line.profile)


class RealClock(SimulatedGpu):
    """A GPU whose time counts as that of this host, so that waits are a part of it."""

    def __init__(self, kit: Kit) -> None:
        super().__init__("v100", load="shufflenet", state_file=kit.tmp / "real.gpu")
        self.info = replace(self.info, energy_source="nvml_counter")


def explore(batch_size: int, **bounds: Any) -> PlannedAttempt:
    return PlannedAttempt(
        batch_size=batch_size, phase=Phase.EXPLORE, why="Explored.", round=1, **bounds
    )


def incumbent(batch_size: int) -> PlannedAttempt:
    return PlannedAttempt(batch_size=batch_size, phase=Phase.INCUMBENT, why="Known.")


def steps(run: ZeusRun, samples: int = SAMPLES) -> None:
    """One epoch's optimizer steps over so many samples,
    the last one short where they do not divide.
    """
    left = samples
    while left > 0:
        run.step(min(run.batch_size, left))
        left -= run.batch_size


def loop(
    run: ZeusRun, *, epochs: int = 3, samples: int = SAMPLES, saved: list[int] | None = None
) -> int:
    """A training whose metric reaches 0.9 in the given epoch; returns its batch size,
    ``saved`` gets it too.
    """
    for epoch in run.epochs():
        steps(run, samples)
        run.report(acc=0.9 if epoch + 1 >= epochs else 0.5)
    if saved is not None:
        saved.append(run.batch_size)
    return run.batch_size


class Guardian:
    """In place of the guardian's process, which takes longer to start than most trainings here.

    Real ones: ``tests/unit/power/limits``, and the scripts of ``test_profiling.py``.
    """

    alive = True

    def __init__(self, *_: object) -> None:
        pass

    def note(self, *limits_w: float) -> None:
        """Nothing restores a limit."""

    def finish(self) -> None:
        """It ends."""


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kit]:
    monkeypatch.setattr(control, "GuardianClient", Guardian)
    kit = Kit(tmp_path)
    yield kit
    for run in kit.runs:
        run.close()
    assert kit.never == []


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python code in a fresh interpreter,
    with ``ZEUS_PLAN`` and ``ZEUS_RESULT`` of a plan if one is given.
    """

    def start(
        code: str, plan: Plan | None = None, result: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if plan is not None:
            environment["ZEUS_PLAN"] = plan.to_json()
        if result is not None:
            environment["ZEUS_RESULT"] = str(result)
        return subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return start
