"""The plan: the input of a training process without a database. One JSON document."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.groups import known_values
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.learning_rate import EarlierRate
from airflow_provider_zeus.model.run_numbers import TryNumbers
from airflow_provider_zeus.model.trial import (
    Observation,
    Phase,
    PlannedAttempt,
    Previous,
    ProfileSample,
    TrialKey,
    fitting,
    in_order,
    incumbent_or_last,
)
from airflow_provider_zeus.model.wire import LongText, Name, Ordinal, Size, decode, encode, parse
from airflow_provider_zeus.power.device import default_state_dir
from airflow_provider_zeus.power.factory import HostSettings
from airflow_provider_zeus.signals.forecast import Followed
from airflow_provider_zeus.untrusted_files import read_plain

SCHEMA = 1


class Ended(StrEnum):
    """How an attempt ended that another one may follow."""

    MISSED = "missed"
    FAILED = "failed"
    NO_MEMORY = "no_memory"
    TOO_FEW = "too_few"  # a size above the slice would never make a step


@dataclass(frozen=True, kw_only=True)
class Plan(HostSettings):
    """The attempts of one decision, and the power measurements of the job's earlier runs.

    ``stand_in`` replaces the last attempt if that does not fit into memory; the first of
    ``reliefs`` runs if it fails otherwise. ``limits_found_w``: by GPU, the limit found and the one
    last set [W].
    """

    job_id: Name
    ti_id: Name
    number: int
    first_attempt: int  # not always 1: an earlier try of the task has used the lower numbers
    spec: Mapping[str, Any]  # carried whole: a training has no store and no DAG file to ask
    attempts: tuple[PlannedAttempt, ...]
    stand_in: PlannedAttempt | None = None
    reliefs: tuple[PlannedAttempt, ...] = ()  # several: one of a size that failed is left out
    # The task's execution_timeout would cut off a relief that begins too late.
    time_left_s: float | None = None
    numbers: TryNumbers = field(default_factory=TryNumbers)
    seed: int = 0
    profile: tuple[ProfileSample, ...] = ()
    # An earlier trial may have died without restoring it: the limit in force is that trial's then.
    limits_found_w: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    signal: Followed | None = None  # its series: a training host may have no way to the service
    previous: Previous | None = None
    # A larger batch size needs another rate than the run before.
    earlier_rate: EarlierRate | None = None
    heartbeat_s: float = 15.0
    state_dir: str | None = None
    restarts: bool = False  # a fresh process has all of the GPU's memory again
    attempt_root: str | None = None  # a model may not fit into the folder for temporary files
    gpus_held: tuple[str, ...] = ()  # a child must not wait for the lock of its own parent

    @cached_property
    def job(self) -> ZeusJob:
        """The job. Raises JobSpecError if ``spec`` is not one, or holds a template."""
        return ZeusJob.from_dict(self.spec).check(rendered=True)

    @property
    def state_folder(self) -> str:
        """The folder of this host for limit records, GPU locks and simulated devices."""
        return self.state_dir or default_state_dir()

    @property
    def in_order(self) -> tuple[PlannedAttempt, ...]:
        """The attempts, then those that may run if the last one fails."""
        return in_order(self.attempts, self.stand_in, self.reliefs)

    @property
    def index_alone(self) -> int:
        """Index of the attempt that runs if no other can follow: the best known batch size and
        start.
        """
        return self.attempts.index(incumbent_or_last(self.attempts))

    def exploratory(self, index: int) -> bool:
        """Whether another attempt follows attempt ``index`` (from 0) if it misses."""
        return index + 1 < len(self.attempts)

    def for_retry(self) -> Self:
        """The plan of a retry under the same decision: one attempt alone, which then ends with a
        model.

        It is the default if another size may have failed.
        """
        if not self.reliefs:
            at = self.index_alone
            return replace(
                self, attempts=self.attempts[at : at + 1], first_attempt=self.first_attempt + at
            )
        relief = self.reliefs[0]
        number = self.first_attempt + self.in_order.index(relief)
        return replace(self, attempts=(relief,), stand_in=None, reliefs=(), first_attempt=number)

    def after(self, end: Ended, *, samples: int | None = None) -> Self | None:
        """The plan that goes on after the first of its attempts; None if none follows.

        :param samples: of the slice, if these are too few.
        """
        ran, *following = self.attempts
        size = ran.batch_size
        reliefs = self.reliefs
        if end in (Ended.FAILED, Ended.NO_MEMORY):  # the same size would mostly fail again
            reliefs = tuple(relief for relief in reliefs if relief.batch_size != size)
        rest = replace(
            self, attempts=tuple(following), reliefs=reliefs, first_attempt=self.first_attempt + 1
        )
        if end is Ended.TOO_FEW:
            return rest._fitting(ran, samples)
        if following:
            return rest
        if end is Ended.NO_MEMORY and self.stand_in is not None:
            return replace(rest, attempts=(self.stand_in,), stand_in=None)
        may_relieve = end is Ended.FAILED and size != self.job.default_batch_size
        if may_relieve and reliefs:
            return replace(rest, attempts=reliefs[:1], stand_in=None, reliefs=())
        return None

    def _fitting(self, ran: PlannedAttempt, samples: int | None) -> Self | None:
        """This plan from the first of its attempts that has enough samples; else with the largest
        size that has.

        :param ran: the attempt whose size was too large.
        :param samples: None or 0: it is not known how many there are, and the default runs.
        """
        fit = [self.job.default_batch_size]
        if samples:
            fit = [size for size in self.job.batch_sizes if size <= samples]
        fit = [size for size in fit if size < ran.batch_size]
        if not fit or ran.phase is Phase.PINNED:
            return None
        if self.attempts and self.attempts[0].batch_size in fit:
            return self
        return replace(self, attempts=(fitting(ran, max(fit)),))

    def in_time_for(self, relief: PlannedAttempt, spent_s: float) -> bool:
        """Whether the task's time limit leaves a relief the time that it usually takes.

        :param spent_s: since the training began.
        """
        if self.time_left_s is None or relief.usual_s is None:
            return True
        return self.time_left_s - spent_s >= relief.usual_s

    def to_json(self) -> str:
        """One JSON document."""
        return json.dumps({"v": SCHEMA, **encode(self)}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the text of :meth:`to_json`.

        Raises JobSpecError when it is not a plan of this version.
        """
        try:
            plan = decode(cls, parse(text, SCHEMA))
            if not plan.attempts:
                raise ValueError("no attempts")
            sizes = [attempt.batch_size for attempt in plan.in_order]
            chosen = known_values(sizes)
            if plan.heartbeat_s <= 0 or min(chosen, default=1) < 1:
                raise ValueError("a heartbeat or a batch size below 1")
            if None in sizes and plan.job.chooses_size:
                raise ValueError("an attempt without a batch size")
            return plan
        except (ValueError, TypeError, RecursionError) as error:
            raise JobSpecError.of(
                "plan",
                f"{len(text)} characters",
                f"not a plan of version {SCHEMA} ({error})",
                "use the same package version on both sides",
            ) from error

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the plan in a file.

        Raises JobSpecError: unreadable, not a plan of this version, above 16 MiB.
        """
        most_bytes = 2**24
        try:
            # A ConfigMap's files are links, which read_plain() refuses.
            text = read_plain(os.path.realpath(path), most_bytes).decode()
        except (OSError, ValueError) as error:
            problem = f"cannot be read: {getattr(error, 'strerror', error)}"
            raise JobSpecError.of(
                "plan", str(path)[:200], problem, "give the path of a plan"
            ) from error
        return cls.from_json(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that ``run.checkpointed()`` named.

    ``observation`` has the figures of its attempt until then. If the try died before the log had
    them, the next try writes them there, in place of the log's figures and not beside them.
    """

    path: LongText
    epochs: Ordinal
    batch_size: Size
    key: TrialKey
    observation: Observation
    start: Start = Start.COLD


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The newest one of an earlier try, and a function that keeps a new one; by default nothing
    does.
    """

    newest: Checkpoint | None = None
    keep: Callable[[Checkpoint], None] = lambda checkpoint: None
