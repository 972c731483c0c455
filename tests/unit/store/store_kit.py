"""What the tests of the store share: a job, a request, an observation, a recurrence,
a clock, Variables in a dict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.partial_sums import Report
from airflow_provider_zeus.model.trial import (
    OUTSIDE,
    Decision,
    DeviceInfo,
    Observation,
    Origin,
    Phase,
    PlannedAttempt,
    PowerPoint,
    ProfileSample,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.optimizer.policy import measured
from airflow_provider_zeus.store.base import AskAnswer, AskRequest, HistoryPart, JobHead, RunTrials
from airflow_provider_zeus.store.sql.store import Store

JOB = ZeusJob(
    batch_sizes=[16, 32, 64],
    default_batch_size=32,
    target="accuracy >= 0.8",
    max_epochs=10,
    policy="zeus",
)
DEVICE = DeviceInfo(model="V100", count=1, max_power_w=300.0, energy_source="simulated")


class Clock:
    """A clock that only the test moves."""

    def __init__(self, t: float = 1000.0) -> None:
        self.t = t

    def __call__(self) -> float:
        return self.t


class DictPort:
    """Variables in a dict.

    ``lose``: keys whose writing is lost; ``down``: nothing can be reached.
    """

    def __init__(self, listable: bool = True) -> None:
        self.data: dict[str, str] = {}
        self.lose: set[str] = set()
        self.down = False
        self.listable = listable
        self.written: list[str] = []

    def _check(self) -> None:
        if self.down:
            raise StoreError("no API")

    def get(self, key: str) -> str | None:
        self._check()
        return self.data.get(key)

    def set(self, key: str, text: str) -> None:
        self._check()
        self.written.append(key)
        if key not in self.lose:
            self.data[key] = text

    def delete(self, key: str) -> None:
        self._check()
        self.data.pop(key, None)

    def keys(self, prefix: str) -> list[str]:
        self._check()
        if not self.listable:
            raise StoreError("a task on Airflow 3.2 cannot list")
        return sorted(k for k in self.data if k.startswith(prefix))


def request(
    n: int = 1, *, ti_id: str | None = None, try_number: int = 1, **changes: Any
) -> AskRequest:
    """The question of recurrence ``n``."""
    origin = Origin(
        dag_id="d",
        run_id=f"run{n}",
        task_id="train",
        try_number=try_number,
        run_type="scheduled",
        data_slice=f"s{n}",
    )
    values = {
        "job": JOB,
        "job_id": "d.train",
        "ti_id": ti_id or f"ti-{n}",
        "origin": origin,
        "device": DEVICE,
    }
    return AskRequest(**{**values, **changes})


def seen(batch_size: int = 32, **changes: Any) -> Observation:
    """What a run cost: fewer joules a sample for larger batches, more epochs."""
    values: dict[str, Any] = {
        "epochs": 3.0 + batch_size / 16,
        "samples": 5000,
        "samples_per_epoch": 1000.0,
        "energy_j": 800.0 + 10 * batch_size,
        "time_s": 9.0,
        "rest_j": 5.0,
        "rest_s": 0.5,
        "metric": 0.81,
        "power_limit_w": 200.0,
        "device_model": DEVICE.model,
        "device_count": 1,
        "max_power_w": 300.0,
        "energy_source": "simulated",
        "gpu_uuid": "GPU-1",
        "limit_found_w": 250.0,
        "learning_rate": 0.001 * batch_size / 32,
    }
    return Observation(**{**values, **changes})


def report(batch_size: int = 32, *, profile: int = 0, points: int = 0, **changes: Any) -> Report:
    """A report with so many profile samples and power points."""
    samples = [
        ProfileSample(
            batch_size=batch_size, limit_w=200.0, samples=10, energy_j=2.0, time_s=1.0, steps=1
        )
        for _ in range(profile)
    ]
    curve = [
        PowerPoint(t_s=i + 1.0, power_w=100.0 + i, limit_w=200.0, phase="train")
        for i in range(points)
    ]
    return Report(observation=seen(batch_size, **changes), profile=samples, points=curve)


def run(store: Store, n: int, state: State = State.CONVERGED, **changes: object) -> AskAnswer:
    """Recurrence ``n`` from question to result."""
    asked = store.ask(request(n))
    store.tell(asked.trial.key, state, report(asked.trial.batch_size, **changes))  # type: ignore[arg-type]
    return asked


def only(store: Store) -> Trial:
    """The one trial in the log."""
    (trial,) = store.trials("d.train")
    return trial


def began_alone(n: int, *, opened_at: float) -> Trial:
    """The open trial of recurrence ``n``, which began while no store could be asked."""
    attempt = PlannedAttempt(batch_size=32, phase=Phase.FALLBACK, why="no store")
    return Trial(
        job_id="d.train",
        number=0,
        key=TrialKey(f"ti-{n}"),
        origin=request(n).origin,
        spec=JOB.to_dict(),
        decision=Decision(attempts=(attempt,), seed=0, policy="zeus"),
        planned=attempt,
        state=State.RUNNING,
        opened_at=opened_at,
    )


def parts_of(
    job_id: str, trials: Sequence[Trial], points: Sequence[PowerPoint] = ()
) -> list[HistoryPart]:
    """The history of a job whose trials are runs of one trial each, all with these power points."""
    head = JobHead(
        job_id=job_id, told_seq=max(t.told_seq or 0 for t in trials), last_number=trials[-1].number
    )
    return [head, *(RunTrials(job_id=job_id, trials=[trial], points=[points]) for trial in trials)]


def outside(
    store: Store, n: int, state: State | None = State.DONE, at_s: float = 0.0, **changes: Any
) -> Trial:
    """A task of run ``n`` that ``[zeus] measure`` names, written by its listener.

    ``state`` None: it is running.
    """
    of_origin = ("dag_id", "task_id", "run_id", "map_index", "try_number")
    names = {name: changes.pop(name) for name in of_origin if name in changes}
    origin = replace(request(n).origin, **names)
    job = ZeusJob(mode="measure")
    decision = measured(job, policy=OUTSIDE)
    trial = Trial(
        job_id=f"{origin.dag_id}.{origin.task_id}",
        number=0,
        key=TrialKey(changes.pop("ti_id", f"{origin.dag_id}-{origin.task_id}-{n}")),
        origin=origin,
        spec=job.to_dict(),
        decision=decision,
        planned=decision.attempts[0],
        state=State.RUNNING,
        opened_at=at_s,
    )
    row = store.adopt(trial)
    told = {"epochs": None, "energy_source": "rapl", "start_id": f"start-{n}", **changes}
    report = Report(observation=seen(**told))
    if state is None:
        store.heartbeat(row.key, report)
        return row
    return store.tell(row.key, state, report)
