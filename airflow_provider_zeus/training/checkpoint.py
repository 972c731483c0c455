"""Where the newest checkpoint of a run lies: what a retry of its task goes on from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_zeus.model import wire
from airflow_provider_zeus.model.trial import Observation, TrialKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that ``run.checkpointed()`` told of.

    ``observation`` is what its attempt had taken until then: where the try died before the log had it, the next try
    writes it there, in place of what the log has and not beside it.
    """

    path: wire.LongText
    epochs: wire.Ordinal
    batch_size: wire.Size
    key: TrialKey
    observation: Observation


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The newest one of an earlier try, and what keeps a new one; by default nothing does."""

    newest: Checkpoint | None = None
    keep: Callable[[Checkpoint], None] = lambda checkpoint: None
