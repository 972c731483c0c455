"""Data of the trial log: decisions and observations. Standard library only.

A *recurrence* is one scheduled run of a job; a *trial* is one attempt at training in it with one
batch size. Energies are joules, times seconds, powers watts. A missing figure is ``None``, never 0,
and ``Observation.reasons`` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, ClassVar, Self

from airflow_provider_zeus.model import wire
from airflow_provider_zeus.model.deadline import InTime
from airflow_provider_zeus.model.groups import newest_known
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import Start


class State(StrEnum):
    """State of a trial.

    ``DONE``: measured alone, and without an error. ``EXHAUSTED``: it ended below its target, by
    ``max_epochs`` or since its loop was left.
    """

    RUNNING = "running"
    CONVERGED = "converged"
    DONE = "done"  # without a target a run neither reaches it nor stays below it
    # Before the last attempt none may cost more than its bound, nor take the time of the next one.
    GIVEN_UP = "given_up"
    EXHAUSTED = "exhausted"  # its epochs teach: the batch size needs more of them than these
    # Without a metric nobody knows whether it reached its target.
    NO_METRIC = "no_metric"
    FAILED = "failed"
    NO_DATA = "no_data"  # a slice of no data, with no optimizer step, says nothing of a batch size
    # Nothing was trained, since the earlier model is still good: it teaches nothing.
    NOT_NEEDED = "not_needed"
    ABANDONED = "abandoned"  # a process that is killed cannot say so: its lease ends it

    @property
    def text(self) -> str:
        """For people: the same on pages, at the command line and in logs."""
        return _STATE_TEXTS.get(self, self.value.replace("_", " "))

    @property
    def kept_model(self) -> bool:
        """Whether a trial in this state ends with a model, below its target or not."""
        return self in (State.CONVERGED, State.EXHAUSTED, State.NO_METRIC)

    @property
    def unproven(self) -> bool:
        """Whether a trial in this state ends with a model that is not known to reach its target."""
        return self in (State.EXHAUSTED, State.NO_METRIC)

    @property
    def left_model(self) -> bool:
        """Whether a run in this state ends with a model, trained in it or before it."""
        return self in (State.CONVERGED, State.EXHAUSTED, State.NO_METRIC, State.NOT_NEEDED)

    @property
    def conclusive(self) -> bool:
        """Whether the trial's epochs teach: how many its batch size needs, or that it needs more
        than these.
        """
        return self in (State.CONVERGED, State.GIVEN_UP, State.EXHAUSTED)

    @property
    def died(self) -> bool:
        """Whether the trial ended without a result."""
        return self in (State.FAILED, State.ABANDONED)

    @property
    def teaches(self) -> bool:
        """Whether anything is learnt from the trial, if only its energy and time."""
        return self not in (State.RUNNING, State.DONE, State.NO_DATA, State.NOT_NEEDED)

    @property
    def awaits_result(self) -> bool:
        """Whether a report may still change the state: running, or closed without a result."""
        return self in (State.RUNNING, State.ABANDONED)


class Phase(StrEnum):
    """Why an attempt runs its batch size."""

    # Nothing is known of a size without a run (knowledge gradient; pruning, Algorithm 3).
    EXPLORE = "explore"
    RETURN = "return"  # the data may have changed since it last ran
    # A known size may be better than it seems (knowledge gradient; Thompson sampling, Algorithm 1).
    SAMPLE = "sample"
    # No other size is worth a try, or may be tried now, so the best known one runs.
    INCUMBENT = "incumbent"
    AUDIT = "audit"  # the default, so that what the job saves is measured and not only estimated
    PINNED = "pinned"  # a person knows better
    FALLBACK = "fallback"  # a store that is away must not stop a training
    # A job without batch sizes has nothing to choose: its task runs as it is.
    MEASURED = "measured"

    @property
    def text(self) -> str:
        """For people: the same on pages, at the command line and in logs."""
        return _PHASE_TEXTS.get(self, self.value)

    @property
    def exploring(self) -> bool:
        """Whether the attempt tries a batch size that is not yet known to work here."""
        return self in (Phase.EXPLORE, Phase.RETURN)


_STATE_TEXTS = {
    State.CONVERGED: "reached target",
    State.EXHAUSTED: "below target",
    State.NO_METRIC: "no metric reported",
}
_PHASE_TEXTS = {
    Phase.EXPLORE: "exploring",
    Phase.RETURN: "tried again",
    Phase.SAMPLE: "sampling",
    Phase.INCUMBENT: "best known",
    Phase.AUDIT: "measuring the default",
    Phase.FALLBACK: "without the log",
}
# Figures compare only if device model, count and energy source are equal.
Where = tuple[str, int, str | None]


@dataclass(frozen=True, slots=True)
class TrialKey:
    """Identity of a trial. ``ti_id`` is new for each try of a task, and the same for a redelivered
    message.
    """

    ti_id: wire.Name
    attempt: wire.Count = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The scheduled run that a trial belongs to; not part of its key."""

    dag_id: str = ""
    run_id: str = ""
    task_id: str = ""
    map_index: wire.Count = -1
    try_number: wire.Count = 1
    run_type: str = "manual"
    data_slice: str | None = None

    def recurrence(self, ti_id: str) -> tuple[str, ...]:
        """The scheduled run of one task and map index, in all its tries; outside of a run the task
        instance.
        """
        if not self.run_id:
            return (ti_id,)
        return self.dag_id, self.run_id, self.task_id, str(self.map_index)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """A device as ``choose`` sees it. ``energy_source`` is None if nothing measures energy."""

    model: str
    count: int = 1
    max_power_w: float | None = None  # of all GPUs used: Eq. 2 weighs their time at full power
    # Figures of two sources never add up.
    energy_source: str | None = None

    @property
    def where(self) -> Where:
        """Model, count and energy source."""
        return self.model, self.count, self.energy_source


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSample:
    """Steady-state training at one power limit, as sums: samples of one limit may be added.

    Of a run without a batch size the samples are its optimizer steps, and ``batch_size`` is the
    kind of step (``Observation.step_kind``).
    """

    batch_size: int
    limit_w: float
    samples: wire.Samples
    energy_j: float
    time_s: float
    steps: wire.Samples = 0
    capped: wire.Share | None = None  # a limit that never binds saves nothing
    sm_clock_mhz: wire.Amount | None = None  # a locked clock looks like a cap

    @classmethod
    def mark(cls, batch_size: int) -> Self:
        """A mark in a list of samples: earlier samples of this batch size are void.

        It measures nothing itself.
        """
        return cls(batch_size=batch_size, limit_w=0.0, samples=0, energy_j=0.0, time_s=0.0)

    def plus(self, other: Self) -> Self:
        """The sum of two samples of one limit."""
        return replace(
            self,
            samples=self.samples + other.samples,
            energy_j=self.energy_j + other.energy_j,
            time_s=self.time_s + other.time_s,
            steps=self.steps + other.steps,
            capped=self._mean(self.capped, other.capped, other.time_s),
            sm_clock_mhz=self._mean(self.sm_clock_mhz, other.sm_clock_mhz, other.time_s),
        )

    def _mean(self, own: float | None, others: float | None, time_s: float) -> float | None:
        """By time; of two of which one is not known, the other."""
        if own is None:
            return others
        whole_s = self.time_s + time_s
        if others is None or whole_s <= 0:
            return own
        return (own * self.time_s + others * time_s) / whole_s

    @property
    def is_mark(self) -> bool:
        """Whether this is a mark (:meth:`mark`)."""
        return self.limit_w == 0 and self.samples == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerPoint:
    """Mean power up to ``t_s`` seconds after the first training step, with power limit and phase at
    that time.

    :param phase: "profile", "train" or "validate".
    """

    t_s: float
    power_w: float | None
    limit_w: float | None
    phase: str


# A person knows that these runs went wrong: they teach nothing.
EXCLUDED = "excluded"
# As a reason: a size that was not used must teach nothing.
BATCH_SIZE = "batch_size"
# As a reason: no ZeusRun was opened, so nothing can stop a try that costs too much.
PLAIN = "run_handle"
# As a reason: a command that reads no batch size would make all sizes look alike.
UNSEEN = "batch_size_use"
# As a reason: an author should know why a warm start stayed cold.
WHY_COLD = "cold_start"
# Pages find such reasons by their beginning: a remedy follows it.
START_UNSEEN = "the start is not seen to be used"
# As a reason: a host that goes away says nothing against a batch size.
NO_STRIKE = "no_strike"
# Another try followed, so that nobody will bring its result any more.
LOST = "retried, result lost"
NO_RESULT = "no result"
# As a reason: a GPU that waits for batches wastes more than any batch size saves.
DATA_WAIT = "data_wait"
# Beside that reason: what the training can try against it.
TO_TRY = "to_try"
# As a reason: a load that no limit holds back has nothing to save.
UNCAPPED = "power_cap"
# As a reason: a laptop that slept says nothing of a batch size.
PAUSED = "pause"
# As a reason: a limit that is not in force saves nothing, though it was chosen.
LIMIT = "power_limit"
# As a reason: a container hides who used a GPU, so the figures are those of the processors.
GPU_HIDDEN = "gpu_hidden"
TELL_METRIC = (
    "a command of ZeusCommandOperator prints it as JSON on the last line of its output; any other "
    "training calls "
    "run.report() under ZeusRun.from_env()"
)
TELL_STEPS = (
    "use run.data_loader(data), or batches of run.batch_size with run.step(samples) after each "
    "optimizer step; where gradients are accumulated, the parts of a step add up to run.batch_size"
)
OF_OUTSIDE = ", outside of run.epochs()"  # each way to lose count has a remedy of its own
TELL_EPOCHS = (
    "train within `for epoch in run.epochs():` alone, and give what is no training a loader of its "
    "own"
)
OF_TRAINER = ", in a Trainer"  # a trainer makes its own loader, which only its callback can see
TELL_TRAINER = (
    "give the Trainer this package's callback of Hugging Face or Lightning, and the batch size "
    "run.local_batch_size "
    "(docs/how-to/frameworks.md)"
)


def untaught(which: str, why: str) -> str:
    """That runs did not use their batch size, as far as can be told, and the remedy.

    :param which: such as "this run teaches nothing and counts".
    :param why: ``Observation.bypassed``.
    """
    remedy = TELL_STEPS
    if why.endswith(OF_TRAINER):
        remedy = TELL_TRAINER
    elif why.endswith(OF_OUTSIDE):
        remedy = TELL_EPOCHS
    return f"{which} as no saving: {why}. Remedy: {remedy}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Costs and metric of one trial; partial sums while it runs.

    ``energy_j`` and ``time_s`` count from the first step to the last report, validation included.
    ``rest_*`` is the part outside training steps (validation, waiting). ``excess_*`` is what
    profiling cost beyond training the same samples at the chosen limit: it is shown, and not
    learnt. ``paused_*`` is the cost while the training stood still, in none of the other parts;
    None if it found no pause. ``price_per_kwh`` and ``g_co2e_per_kwh`` are means over the hours in
    which the energy was drawn. ``reasons``: field name -> why it is None.
    """

    reads_newer: ClassVar[bool] = True  # a training's host may have a newer version than ours
    epochs: wire.Amount | None = None
    samples: wire.Samples | None = None
    samples_per_epoch: wire.Amount | None = None
    energy_j: wire.Joules | None = None
    time_s: wire.Seconds | None = None
    rest_j: wire.RestJ | None = None
    rest_s: wire.RestS | None = None
    excess_j: wire.Difference | None = None
    excess_s: wire.Difference | None = None
    paused_j: wire.Joules | None = None
    paused_s: wire.Seconds | None = None
    metric: wire.AnyNumber | None = None
    target_value: wire.AnyNumber | None = None
    power_limit_w: wire.Watts | None = None
    device_model: wire.LongText | None = None
    device_count: wire.Devices | None = None
    max_power_w: wire.Watts | None = None
    energy_source: wire.LongText | None = None
    gpu_uuid: wire.GpuNames | None = None
    # One GPU that draws much more than its siblings has a fault.
    gpu_energy_j: tuple[wire.Joules, ...] | None = None
    limit_found_w: wire.Watts | None = None
    learning_rate: wire.AnyNumber | None = None
    # A planned start may not be taken: only what was taken teaches.
    start: Start | None = None
    # The earlier model's metric on new data shows whether training was worth it.
    served: wire.AnyNumber | None = None
    # A retried process sends its lines again: one start is one observation.
    start_id: wire.StartId | None = None
    # Without a batch size nothing else says which samples compare.
    step_kind: wire.Ordinal | None = None
    # A GPU that idles is slowed by its data, and no limit or batch size helps.
    gpu_busy: wire.Share | None = None
    # Time in which the GPU is paid for and does nothing.
    data_wait_s: wire.Seconds | None = None
    # The host serves other tasks too, so its energy is in no cost.
    host_j: wire.Joules | None = None
    host_source: wire.ShortText | None = None
    # A target that the first epoch reaches is too easy.
    epoch_metrics: tuple[wire.AnyNumber, ...] | None = None
    out_of_memory: bool = False  # only in a fresh process it says that the batch size does not fit
    # For ``run.previous``: it may hold anything, so no page shows it.
    returned: str | None = None
    # As known when the attempt ended: a price that is set later must change no earlier cost.
    price_per_kwh: float | None = None
    price_currency: wire.Currency | None = None
    price_source: wire.ShortText | None = None
    price_at_once: float | None = None  # the difference is what waiting saved
    g_co2e_per_kwh: float | None = None
    g_co2e_source: wire.ShortText | None = None
    g_co2e_at_once: float | None = None
    # The keys above, too, such as BATCH_SIZE: a figure that is there may still teach nothing.
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def bypassed(self) -> str | None:
        """Why the run shows nothing of its batch size: it teaches and saves nothing.

        None: it does.
        """
        return self.reasons.get(BATCH_SIZE)

    @property
    def wait_remedy(self) -> str:
        """A sentence on how to wait less for batches; empty if there is no need."""
        to_try = self.reasons.get(TO_TRY)
        return f" Try {to_try}." if to_try else ""

    @property
    def devices(self) -> int:
        """How many devices trained; one if that is not known."""
        return self.device_count or 1

    @property
    def excess(self) -> tuple[float, float]:
        """Energy [J] and time [s] of profiling beyond training's; 0 if nothing was profiled."""
        return self.excess_j or 0.0, self.excess_s or 0.0

    @property
    def where(self) -> Where | None:
        """Device of the figures; None if it is not known."""
        if self.device_model is None:
            return None
        return self.device_model, self.devices, self.energy_source

    @property
    def device(self) -> DeviceInfo | None:
        """The same as ``choose`` sees it."""
        if self.device_model is None:
            return None
        return DeviceInfo(
            model=self.device_model,
            count=self.devices,
            max_power_w=self.max_power_w,
            energy_source=self.energy_source,
        )

    @property
    def data_wait_j(self) -> float | None:
        """The energy while it waited for batches [J], at its mean power: waiting draws less."""
        if self.data_wait_s is None or self.energy_j is None:
            return None
        if not self.time_s:
            return None
        return self.energy_j * min(self.data_wait_s / self.time_s, 1.0)

    @property
    def data_wait_gpu_s(self) -> float | None:
        """Time of all devices while it waited for batches [s]: at most that of the attempt."""
        if self.data_wait_s is None or not self.time_s:
            return None
        return min(self.data_wait_s, self.time_s) * self.devices

    @property
    def spent(self) -> tuple[float | None, float]:
        """Energy [J] and time of all devices [s]; a time that is not known yet counts as 0."""
        return self.energy_j, (self.time_s or 0.0) * self.devices

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {
            "reasons": dict(self.reasons)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Previous:
    """The newest run of a job that left a model, or kept an earlier one: the value that
    ``run.previous`` reads.
    """

    # None: no JSON, or over 4 kB, which the next run's environment could not hold.
    returned: str | None = None
    not_needed: int = 0  # after many of them one has to train: a check may err


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The earlier model of a run of a job with ``starts``, as it was decided; all None if there
    was none.

    A run that was not needed passes on the one that it found.
    """

    from_ti_id: wire.Name | None = None
    from_attempt: wire.Count | None = None
    from_start: Start | None = None
    from_generations: wire.Count | None = None  # warm starts in a row wear a model out
    from_age: wire.Count | None = None  # an old model may not know the newest data

    @classmethod
    def after(cls, trial: Trial, age: int) -> Lineage:
        """The model that a trial left, for a run that comes ``age`` runs later."""
        if trial.state is State.NOT_NEEDED:
            return replace(trial.lineage, from_age=age)
        return cls(
            from_ti_id=trial.key.ti_id,
            from_attempt=trial.key.attempt,
            from_start=trial.observation.start or Start.COLD,
            from_generations=trial.generations,
            from_age=age,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAttempt:
    """One planned attempt. Without bounds (the last one) it is not stopped before ``max_epochs``.

    If the task is measured alone (``Phase.MEASURED``) it has no batch size.
    """

    batch_size: wire.Size
    phase: Phase
    why: str
    bound_epochs: wire.Amount | None = None
    bound_cost: wire.Amount | None = None
    # One epoch tells that they cost more than hoped, long before bound_cost is spent.
    max_epoch_cost: wire.Amount | None = None
    # A larger slice costs more: the bounds scale with it.
    bound_samples_per_epoch: wire.Amount | None = None
    round: wire.Count | None = None  # Algorithm 3 walks each round in order
    in_time: InTime | None = None
    # a relief has no batch size, so only its past tells how long it takes
    usual_s: wire.Seconds | None = None
    start: Start | None = None

    @property
    def bounded(self) -> bool:
        """Whether this attempt may be given up."""
        return self.bound_epochs is not None or self.bound_cost is not None

    @property
    def tried(self) -> bool:
        """Whether it is a try.

        The best known pair may be bounded, too, if another start follows it.
        """
        return self.phase.exploring or (self.bounded and self.phase is not Phase.INCUMBENT)

    def saying(self, sentence: str) -> Self:
        """The attempt with one more sentence in its reason."""
        return replace(self, why=f"{self.why} {sentence}".strip())


def incumbent_or_last(attempts: Sequence[PlannedAttempt]) -> PlannedAttempt:
    """The attempt that leaves the model if nothing is tried and none is given up: the incumbent,
    else the last.
    """
    incumbents = (attempt for attempt in attempts if attempt.phase is Phase.INCUMBENT)
    return next(incumbents, attempts[-1])


def fitting(too_large: PlannedAttempt, batch_size: int) -> PlannedAttempt:
    """The attempt after one whose size is larger than the slice of the data."""
    return PlannedAttempt(
        batch_size=batch_size,
        phase=Phase.INCUMBENT,
        why=f"The slice has fewer samples than batch size {too_large.batch_size}: the largest "
        "size that fits.",
        start=None if too_large.start is None else Start.COLD,
        in_time=too_large.in_time and InTime(finish_by_s=too_large.in_time.finish_by_s),
        bound_samples_per_epoch=too_large.bound_samples_per_epoch,
    )


def in_order(
    attempts: Sequence[PlannedAttempt],
    stand_in: PlannedAttempt | None,
    reliefs: Sequence[PlannedAttempt],
) -> tuple[PlannedAttempt, ...]:
    """All attempts that a decision may run, those that run only if the last one fails behind the
    others.
    """
    if stand_in is None:
        return (*attempts, *reliefs)
    return (*attempts, stand_in, *reliefs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The attempts of one recurrence: an exploratory attempt and the incumbent after it, or the
    incumbent alone.

    An incumbent that goes on from the earlier model is bounded, and the best pair of another start
    follows it. ``stand_in`` is the attempt that runs if the last one does not fit into memory.
    ``reliefs`` are those of which one runs if the last one fails otherwise: the first whose size
    has not failed in the process. A retry takes the first, whatever failed.
    """

    attempts: tuple[PlannedAttempt, ...]
    seed: int
    policy: str
    stand_in: PlannedAttempt | None = None
    reliefs: tuple[PlannedAttempt, ...] = ()
    # A setting may change after the decision, which is read with what it knew.
    settings: Mapping[str, Any] | None = field(default=None, compare=False)

    @property
    def in_order(self) -> tuple[PlannedAttempt, ...]:
        """The attempts, followed by ``stand_in`` and ``reliefs``."""
        return in_order(self.attempts, self.stand_in, self.reliefs)

    def each(self, change: Callable[[PlannedAttempt], PlannedAttempt]) -> Self:
        """The decision with all its attempts changed alike."""
        return replace(
            self,
            attempts=tuple(map(change, self.attempts)),
            stand_in=self.stand_in and change(self.stand_in),
            reliefs=tuple(map(change, self.reliefs)),
        )


OUTSIDE = "outside"  # nothing decided about it, and pages tell it apart

# A number or a name may follow in a reason, so it is known by its beginning.
SUPERSEDED = "superseded by try"
REDELIVERED = "redelivered: another start of the task took its place"
BY_HAND = "closed by hand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One row of the trial log."""

    job_id: wire.Name
    number: wire.Ordinal  # the order of opening: clocks of hosts differ
    key: TrialKey
    origin: Origin
    spec: Mapping[str, Any]  # the job of a DAG file may have changed since
    decision: Decision  # the next attempt of the run is read from it
    planned: PlannedAttempt
    state: State
    reason: str | None = None
    asked_after_seq: wire.Ordinal = 0  # a run that ended later taught it nothing
    # A run may end after a later one: a belief kept before then lacks it, and is learned anew.
    told_seq: wire.Ordinal | None = None
    opened_at: wire.Moment = 0.0  # the store's clock: those of hosts differ
    lease_until: wire.Moment = 0.0
    # A training that is killed reports nothing: after so long a silence it is dead.
    lease_s: wire.Span = 24 * 3600.0
    closed_at: wire.Moment | None = None
    observation: Observation = field(default_factory=Observation)
    lineage: Lineage = Lineage()

    @property
    def is_outside(self) -> bool:
        """Whether its task does not know Zeus, and was measured by the listener of ``[zeus]
        measure``.
        """
        return self.decision.policy == OUTSIDE

    @property
    def lost_to(self) -> str | None:
        """Why it no longer belongs to its run: a later try or start took it over, or a person
        closed it. None: it belongs to it.
        """
        if self.reason is not None and self.reason.startswith((SUPERSEDED, REDELIVERED, BY_HAND)):
            return self.reason
        return None

    @property
    def generations(self) -> int:
        """Generations of its model since a cold start: 0 if it started cold."""
        warm = self.observation.start not in (None, Start.COLD)
        if warm:
            return (self.lineage.from_generations or 0) + 1
        return 0

    @property
    def job(self) -> ZeusJob:
        """The job that was decided with.

        Raises JobSpecError: a version that this one cannot read wrote it.
        """
        return ZeusJob.from_dict(self.spec)

    @property
    def job_version(self) -> str:
        """The ``job_version`` that it was decided with: a new one starts an empty belief and power
        profile.
        """
        return str(self.spec["job_version"])

    @property
    def recurrence(self) -> tuple[str, ...]:
        """The scheduled run of one task and map index that it belongs to, in all its tries; else
        its task instance.
        """
        return self.origin.recurrence(self.key.ti_id)

    @property
    def batch_size(self) -> wire.Size:
        """Batch size of this trial; None if the task was measured alone."""
        return self.planned.batch_size

    def following(self, batch_size: int | None = None) -> PlannedAttempt | None:
        """The attempt after this one in the same decision; None if this was the last one.

        :param batch_size: that it trains with, if that is known; one that the decision lacks fits a
            small slice.
        """
        attempts = self.decision.in_order
        later: tuple[PlannedAttempt, ...] = ()
        if self.planned in attempts:  # else its attempts were pruned
            later = attempts[attempts.index(self.planned) + 1 :]
        # A size outside of the list was made to fit a small slice: the plan goes on as it is.
        if batch_size is None or batch_size not in self.spec["batch_sizes"]:
            for attempt in later:
                return attempt
            return None
        same = [plan for plan in later or attempts if plan.batch_size == batch_size]
        if not same:
            return fitting(self.planned, batch_size)
        # a stand-in comes before the reliefs: it runs after a lack of memory alone
        first, *others = same
        is_first = self.observation.out_of_memory or first in self.decision.attempts
        if is_first or not others:
            return first
        return others[-1]


def timed(trials: Sequence[Trial]) -> list[Trial]:
    """The trials whose time is known."""
    return [trial for trial in trials if trial.observation.time_s is not None]


def newest_device(trials: Sequence[Trial]) -> Where | None:
    """The device that the newest of these trials named; None if none did. ``trials``: by number."""
    return newest_known(trial.observation.where for trial in trials)
