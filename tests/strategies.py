"""Trials to test with: a plain builder,
and hypothesis strategies for logs with all in them that may go wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import POLICIES, RUN_TYPES
from airflow_provider_zeus.model.trial import (
    Decision,
    DeviceInfo,
    Observation,
    Origin,
    Phase,
    PlannedAttempt,
    ProfileSample,
    State,
    Trial,
    TrialKey,
)

V100 = DeviceInfo(model="V100", max_power_w=250.0, energy_source="nvml_counter")
A40 = DeviceInfo(model="A40", max_power_w=300.0, energy_source="nvml_counter")
CPU = DeviceInfo(model="cpu")
REPRODUCIBLE = settings(derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def make_trial(
    number: int,
    batch_size: int,
    state: State = State.CONVERGED,
    *,
    job: ZeusJob,
    phase: Phase = Phase.SAMPLE,
    round_: int | None = None,
    run_type: str = "scheduled",
    data_slice: str | None = None,
    attempt: int = 1,
    spec: Mapping[str, Any] | None = None,
    **figures: Any,
) -> Trial:
    """One row of a log; ``figures`` are those of its observation,
    ``spec`` what differs from the job's own.
    """
    planned = PlannedAttempt(batch_size=batch_size, phase=phase, why="Because.", round=round_)
    return Trial(
        job_id="dag.train",
        number=number,
        key=TrialKey(f"ti-{number}", attempt),
        origin=Origin(run_type=run_type, data_slice=data_slice),
        spec={**job.to_dict(), **(spec or {})},
        decision=Decision(attempts=(planned,), seed=number, policy=job.policy),
        planned=planned,
        state=state,
        observation=Observation(**figures),
    )


@st.composite
def jobs(draw: st.DrawFn) -> ZeusJob:
    """Jobs of both policies.

    The window of ``"zeus"`` is small enough to slide within a log of :func:`logs`; that of the
    other is not, since how a run is judged depends on runs that have left it.
    """
    sizes = draw(st.sampled_from([(32,), (16, 32), (8, 16, 32, 64)]))
    policy = draw(st.sampled_from(POLICIES))
    return ZeusJob(
        policy=policy,
        batch_sizes=sizes,
        default_batch_size=draw(st.sampled_from(sizes)),
        target="acc >= 0.9",
        max_epochs=20,
        eta=draw(st.sampled_from([0.0, 0.5, 1.0])),
        window=2 * len(sizes) if policy == "zeus" else 500,
    )


def _figure(high: float) -> st.SearchStrategy[float]:
    """A figure: 0 where a window was too short to be read, else of a size that instruments give."""
    return st.one_of(st.just(0.0), st.floats(1e-3, high))


def _maybe(high: float) -> st.SearchStrategy[float | None]:
    return st.one_of(st.none(), _figure(high))


def observations() -> st.SearchStrategy[Observation]:
    """Observations with any figure missing, zero or contradicting another."""
    return st.builds(
        Observation,
        epochs=st.one_of(st.none(), st.integers(0, 20).map(float), _figure(40)),
        samples=st.sampled_from([None, 0, 1, 640, 10_000]),
        samples_per_epoch=st.sampled_from([None, 0.0, 320.0, 1_000.0]),
        energy_j=_maybe(1e7),
        time_s=_maybe(1e5),
        rest_j=_maybe(1e4),
        rest_s=_maybe(1e3),
        excess_j=st.sampled_from([None, 0.0, 50.0]),
        excess_s=st.sampled_from([None, 0.0, 5.0]),
        device_model=st.sampled_from([None, "V100", "V100", "A40"]),
        device_count=st.sampled_from([None, 1, 2]),
        max_power_w=st.sampled_from([None, 250.0]),
        energy_source=st.sampled_from([None, "nvml_counter"]),
        out_of_memory=st.sampled_from([False, False, False, True]),
    )


@st.composite
def logs(draw: st.DrawFn, job: ZeusJob, max_size: int = 16) -> list[Trial]:
    """Logs in order of number: every state, phase and run type, other targets,
    job versions and batch-size lists.
    """
    states = st.sampled_from([*State, State.CONVERGED, State.CONVERGED, State.GIVEN_UP])
    specs = st.sampled_from(
        [
            {},
            {},
            {},
            {"target": "acc>=0.90"},
            {"target": "acc >= 0.8"},
            {"job_version": "2"},
            {"batch_sizes": [32]},
        ]
    )
    phases = st.sampled_from([(Phase.EXPLORE, 1), (Phase.EXPLORE, 2), *((p, None) for p in Phase)])
    log = []
    for number in range(1, draw(st.integers(0, max_size)) + 1):
        phase, round_ = draw(phases)
        trial = make_trial(
            number,
            draw(st.sampled_from([*job.batch_sizes, 128])),  # 128 has left the list
            draw(states),
            job=job,
            phase=phase,
            round_=round_,
            run_type=draw(st.sampled_from([*RUN_TYPES, "scheduled", "scheduled", "scheduled"])),
            attempt=draw(st.integers(1, 2)),
            spec=draw(specs),
            **draw(observations()).to_dict(),
        )
        log.append(trial)
    return log


@st.composite
def jobs_and_logs(draw: st.DrawFn) -> tuple[ZeusJob, list[Trial]]:
    """A job and a log of it."""
    job = draw(jobs())
    return job, draw(logs(job))


def devices() -> st.SearchStrategy[DeviceInfo | None]:
    """What the next question may come from."""
    return st.sampled_from(
        [None, V100, V100, A40, CPU, DeviceInfo(model="V100", energy_source="nvml_counter")]
    )


def profiles() -> st.SearchStrategy[list[ProfileSample]]:
    """Profile samples as stored, windows too short to be read included."""
    sample = st.builds(
        ProfileSample,
        batch_size=st.sampled_from([16, 32, 64]),
        limit_w=st.sampled_from([100.0, 175.0, 250.0]),
        samples=st.sampled_from([0, 64, 6_400]),
        energy_j=_figure(1e5),
        time_s=_figure(1e3),
    )
    return st.lists(sample, max_size=6)
