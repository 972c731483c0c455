"""The words of the trial log: what was decided, what was observed. Standard library only.

A *recurrence* is one scheduled run of a job; a *trial* is one attempt at training in it with one batch size.
Energies are joules, times seconds, powers watts. A figure that could not be had is ``None`` and
``Observation.reasons`` says why; it is never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Self


class State(StrEnum):
    """State of a trial (design: "The store")."""

    RUNNING = "running"
    CONVERGED = "converged"  # reached its target
    GIVEN_UP = "given_up"  # exploratory, stopped at its bound
    EXHAUSTED = "exhausted"  # max_epochs done, below target
    FAILED = "failed"  # ended by an error
    NO_DATA = "no_data"  # not one optimizer step: the slice of data was empty, and teaches nothing
    ABANDONED = "abandoned"  # nobody came back: lease expired, or a later try took over


class Phase(StrEnum):
    """Why an attempt runs its batch size."""

    EXPLORE = "explore"  # a size without a run that counts (knowledge gradient; pruning exploration, Algorithm 3)
    RETURN = "return"  # a size that nothing ran for long is tried once
    SAMPLE = "sample"  # a known size, whose run teaches (knowledge gradient; Thompson sampling, Algorithm 1)
    INCUMBENT = "incumbent"  # the best known: nothing is worth a try, may be tried now, or the try was given up
    PINNED = "pinned"  # a live setting fixes the batch size
    FALLBACK = "fallback"  # no store at hand: default or last-known batch size


UNSAID_LEASE_S = 24 * 3600.0  # of a row that does not say how long its lease is: the default of a ZeusTrial

EXPLORING = (Phase.EXPLORE, Phase.RETURN)  # attempts at a batch size that is not yet proven here

Where = tuple[str, int, str | None]  # device model, count, energy source: figures of other devices do not compare


@dataclass(frozen=True, slots=True)
class TrialKey:
    """Identity of a trial: ``ti_id`` is new for each try of a task and equal for a redelivered message."""

    ti_id: str
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Which scheduled run a trial belongs to; attributes, never its key."""

    dag_id: str = ""
    run_id: str = ""
    task_id: str = ""
    map_index: int = -1
    try_number: int = 1
    run_type: str = "manual"  # scheduled | asset_triggered | manual | backfill | test
    data_slice: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """What ``choose`` must know of a device. ``energy_source`` None: nothing measures energy here."""

    model: str
    count: int = 1
    max_power_w: float | None = None  # sum over the GPUs used (MAXPOWER of Eq. 2)
    energy_source: str | None = None  # nvml_counter | nvml_poll | rapl | estimate | simulated

    @property
    def where(self) -> Where:
        """What figures must share to be compared."""
        return self.model, self.count, self.energy_source


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSample:
    """Steady-state training measured at one power limit: sums, so that samples of one limit may be added."""

    batch_size: int
    limit_w: float
    samples: int
    energy_j: float
    time_s: float
    steps: int = 0

    @classmethod
    def anew(cls, batch_size: int) -> Self:
        """A mark among samples: those before it at this batch size hold no more. Readers without it see no sample."""
        return cls(batch_size=batch_size, limit_w=0.0, samples=0, energy_j=0.0, time_s=0.0)

    @property
    def is_mark(self) -> bool:
        """Whether it is what :meth:`anew` made."""
        return self.limit_w == 0 and self.samples == 0


def since_anew(samples: Iterable[ProfileSample]) -> list[ProfileSample]:
    """Samples that hold, by batch size: those behind the last mark of their batch size; no mark."""
    kept: dict[int, list[ProfileSample]] = {}
    for sample in samples:
        if sample.is_mark:
            kept.pop(sample.batch_size, None)
        else:
            kept.setdefault(sample.batch_size, []).append(sample)
    return [sample for of_size in kept.values() for sample in of_size]


def summed(samples: Iterable[ProfileSample]) -> tuple[ProfileSample, ...]:
    """One sample per (batch size, limit), in that order, of those that hold."""
    sums: dict[tuple[int, float], ProfileSample] = {}
    for s in since_anew(samples):
        old = sums.get((s.batch_size, s.limit_w))
        sums[s.batch_size, s.limit_w] = s if old is None else _added(old, s)
    return tuple(sums[key] for key in sorted(sums))


def summed_with_marks(samples: Iterable[ProfileSample]) -> tuple[ProfileSample, ...]:
    """The same sums, behind a mark of each batch size that was measured anew: it takes back what was sent earlier."""
    samples = list(samples)
    marks = {s.batch_size: s for s in samples if s.is_mark}
    return (*marks.values(), *summed(samples))


def _added(a: ProfileSample, b: ProfileSample) -> ProfileSample:
    return replace(
        a,
        samples=a.samples + b.samples,
        energy_j=a.energy_j + b.energy_j,
        time_s=a.time_s + b.time_s,
        steps=a.steps + b.steps,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerPoint:
    """Mean power up to ``t_s`` seconds after the first training step, with the limit and phase then in force."""

    t_s: float
    power_w: float | None
    limit_w: float | None
    phase: str  # profile | train | validate


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one trial cost and reached; partial sums while it runs.

    ``energy_j`` and ``time_s`` run from the first step to the last report, validation included. ``rest_*`` is the
    part outside training steps (validation, waiting); ``excess_*`` is what profiling cost beyond the same samples at
    the chosen limit: the user sees it, the bandit does not learn it.
    """

    epochs: float | None = None
    samples: int | None = None
    samples_per_epoch: float | None = None
    energy_j: float | None = None
    time_s: float | None = None
    rest_j: float | None = None
    rest_s: float | None = None
    excess_j: float | None = None
    excess_s: float | None = None
    metric: float | None = None
    target_value: float | None = None
    power_limit_w: float | None = None
    device_model: str | None = None
    device_count: int | None = None
    max_power_w: float | None = None
    energy_source: str | None = None
    gpu_uuid: str | None = None  # of several GPUs: joined by commas
    gpu_energy_j: tuple[float, ...] | None = None  # of several GPUs: the part of ``energy_j`` that each of them drew
    limit_found_w: float | None = None
    learning_rate: float | None = None
    start_id: str | None = None  # which start of the plan observed it: two starts are two observations
    out_of_memory: bool = False  # and in the first attempt of its process: the batch size does not fit
    reasons: Mapping[str, str] = field(default_factory=dict)  # field name -> why it is None

    @property
    def where(self) -> Where | None:
        """What figures must share to be compared; None where the device is not known."""
        return None if self.device_model is None else (self.device_model, self.device_count or 1, self.energy_source)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"reasons": dict(self.reasons)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote; unknown keys (of a newer writer) are ignored."""
        known = {f.name for f in fields(cls)}
        each = data.get("gpu_energy_j")
        parts = {} if each is None else {"gpu_energy_j": tuple(each)}
        return cls(**{k: v for k, v in data.items() if k in known} | parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One planned attempt. All bounds None: never stopped before ``max_epochs`` (the incumbent)."""

    batch_size: int
    phase: Phase
    why: str
    bound_epochs: float | None = None
    bound_cost: float | None = None  # joules of Eq. 2
    max_epoch_cost: float | None = None  # EpochCost above which this batch size would not have been chosen
    bound_samples_per_epoch: float | None = None  # of the newest slice: cost bounds assume it, and scale with the slice
    round: int | None = None  # pruning round (Algorithm 3) of an EXPLORE attempt

    @property
    def bounded(self) -> bool:
        """Whether this attempt may be given up."""
        return self.bound_epochs is not None or self.bound_cost is not None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what ``dataclasses.asdict`` made of it."""
        return cls(**{**data, "phase": Phase(data["phase"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What ``choose`` answers: one exploratory attempt and the incumbent after it, or the incumbent alone.

    ``stand_in`` takes the place of an attempt that nothing follows, where it does not fit into memory, and with
    ``second_chance`` where it ends at ``max_epochs`` below its target too.
    """

    attempts: tuple[Attempt, ...]
    seed: int
    policy: str
    stand_in: Attempt | None = None
    second_chance: bool = False

    @property
    def in_order(self) -> tuple[Attempt, ...]:
        """The attempts, and behind them what stands in for the last one."""
        return self.attempts if self.stand_in is None else (*self.attempts, self.stand_in)

    @property
    def chances(self) -> tuple[Attempt, ...]:
        """What runs one after the other until one reaches its target, where all fit into memory."""
        return self.in_order if self.second_chance else self.attempts

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], attempt: Callable[[Mapping[str, Any]], Attempt] = Attempt.from_dict
    ) -> Self:
        """Read what :meth:`to_dict` wrote; ``attempt`` reads each attempt of it."""
        attempts = tuple(map(attempt, data["attempts"]))
        stand_in = attempt(data["stand_in"]) if data.get("stand_in") else None
        return cls(
            attempts=attempts,
            seed=data["seed"],
            policy=data["policy"],
            stand_in=stand_in,
            second_chance=data.get("second_chance", False),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One row of the trial log."""

    job_id: str
    number: int  # order of asking within the job, from 1
    key: TrialKey
    origin: Origin
    spec: Mapping[str, Any]  # ZeusJob.to_dict() with live settings applied, as decided with
    decision: Decision  # made once per ask; a second attempt's row repeats it
    planned: Attempt  # the attempt of that decision which this trial runs
    state: State
    reason: str | None = None
    asked_after_seq: int = 0  # the highest told_seq that the decision knew
    told_seq: int | None = None  # order of closing, or of being opened again, within the job; None before the first
    opened_at: float = 0.0  # seconds since the epoch, the store's clock
    lease_until: float = 0.0
    lease_s: float = UNSAID_LEASE_S  # length of the lease: how long after its last report a trial counts as living
    closed_at: float | None = None
    observation: Observation = field(default_factory=Observation)

    @property
    def batch_size(self) -> int:
        """Batch size of this trial."""
        return self.planned.batch_size
