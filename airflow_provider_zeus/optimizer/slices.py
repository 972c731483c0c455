"""Runs by the slice of the data that they trained on. Pure, standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from airflow_provider_zeus.model.trial import State, Trial


class SliceRun(NamedTuple):
    """One run.

    Of a run that did not reach its target, ``epochs`` is a lower bound.
    """

    number: int
    batch_size: int
    epochs: float
    reached: bool
    most: float | None = None  # a run below its target might have reached it with more epochs

    def ended(self, max_epochs: float) -> bool:
        """Whether it was trained to an end: to its target or below it. Else it was given up."""
        return self.reached or self.most is not None or self.epochs >= max_epochs

    def missed(self, max_epochs: float) -> bool:
        """Whether it ended below its target: its epochs were over, or its loop was left."""
        if self.reached:
            return False
        left_below = self.most is not None and self.epochs < self.most
        return left_below or self.epochs >= max_epochs


def most_epochs(trial: Trial) -> float | None:
    """``max_epochs`` of the time of a run that ended below its target; None for any other run."""
    if trial.state is not State.EXHAUSTED or not trial.observation.epochs:
        return None
    most = trial.spec.get("max_epochs")
    return float(most) if isinstance(most, int | float) else 0.0


def slice_name(trial: Trial) -> str:
    """The data of a trial: each task and map index of a DAG run has a part of its own."""
    data = trial.origin.data_slice or ""
    if len(trial.recurrence) > 1:
        return short((*trial.recurrence, data))
    return data or short(trial.recurrence)


def short(names: Sequence[str]) -> str:
    """A short text that stands for a recurrence; a task instance's id stays as it is."""
    if len(names) == 1:
        return names[0]
    return sha256("\n".join(names).encode()).hexdigest()[:12]


class Change(NamedTuple):
    """A lasting change of the data, which all batch sizes share."""

    since: int
    jump: float
    shown_by: tuple[int, ...]  # these runs taught the change: the event is told by them


class Slice(NamedTuple):
    """The runs on one slice of the data: those of one recurrence, by trial number."""

    name: str
    runs: tuple[SliceRun, ...]
    missed: bool

    @classmethod
    def of(cls, name: str, runs: tuple[SliceRun, ...], max_epochs: float) -> Slice:
        """The slice that these runs trained on."""
        reached = any(r.reached for r in runs)
        missed = any(r.missed(max_epochs) for r in runs)
        return cls(name, runs, missed and not reached)


def in_slices(runs: Iterable[SliceRun], names: Mapping[int, str], max_epochs: float) -> list[Slice]:
    """Runs by trial number: those that follow each other on one slice share an entry."""
    slices: list[Slice] = []
    for run in sorted(runs):
        add(slices, run, names.get(run.number, ""), max_epochs)
    return slices


def add(slices: list[Slice], run: SliceRun, name: str, max_epochs: float) -> None:
    """Add the newest run."""
    runs: tuple[SliceRun, ...] = (run,)
    # Without a name nothing tells that two runs share their data.
    if name and slices and slices[-1].name == name:
        runs = (*slices.pop().runs, run)
    slices.append(Slice.of(name, runs, max_epochs))
