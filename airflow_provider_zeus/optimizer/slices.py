"""Runs by the slice of the data that they trained on. Pure, standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from airflow_provider_zeus.model.trial import State, Trial

OUT_OF_REACH = 3  # slices in a row on which every run missed, before that counts against the batch sizes


class SliceRun(NamedTuple):
    """One run. Of a run that did not reach its target, ``epochs`` is a lower bound of what it needs."""

    number: int  # of its trial
    batch_size: int
    epochs: float
    reached: bool
    most: float | None = None  # of a run that ended below its target: see most_epochs()

    def ended(self, max_epochs: float) -> bool:
        """Whether it was trained to an end: to its target or below it. Else it was given up."""
        return self.reached or self.most is not None or self.epochs >= max_epochs

    def missed(self, max_epochs: float) -> bool:
        """Whether more training was not to be had: its epochs were over, or its loop was left below the target."""
        return not self.reached and (self.epochs >= max_epochs or self.epochs < (self.most or 0.0))


def most_epochs(trial: Trial) -> float | None:
    """``max_epochs`` of the time of a run that ended below its target; None for any other run."""
    if trial.state is not State.EXHAUSTED or not trial.observation.epochs:
        return None
    most = trial.spec.get("max_epochs")
    return float(most) if isinstance(most, int | float) else 0.0


def slice_name(trial: Trial) -> str:
    """The data that a trial trained on: each task and map index of a DAG run has a part of its own."""
    data, recurrence = trial.origin.data_slice, trial.recurrence
    return data or recurrence[0] if len(recurrence) == 1 else short((*recurrence, data or ""))


def short(names: Sequence[str]) -> str:
    """A short text that stands for a recurrence; a task instance's id stays as it is."""
    return names[0] if len(names) == 1 else sha256("\n".join(names).encode()).hexdigest()[:12]


class Change(NamedTuple):
    """A lasting change of the data, which all batch sizes share."""

    since: int  # number of the first trial after it
    jump: float  # of log Epochs
    shown_by: tuple[int, ...]  # numbers of the trials that showed it


class Slice(NamedTuple):
    """The runs on one slice of the data: those of one recurrence, in the order of their trial numbers."""

    name: str
    runs: tuple[SliceRun, ...]
    missed: bool  # a run took all its epochs or was left below the target, and none reached it

    @classmethod
    def of(cls, name: str, runs: tuple[SliceRun, ...], max_epochs: float) -> Slice:
        """The slice that these runs trained on."""
        reached, missed = any(r.reached for r in runs), any(r.missed(max_epochs) for r in runs)
        return cls(name, runs, missed and not reached)


def grouped(runs: Iterable[SliceRun], names: Mapping[int, str], max_epochs: float) -> list[Slice]:
    """Runs by slice, in the order of their trial numbers; runs that follow each other on one slice share an entry."""
    slices: list[Slice] = []
    for run in sorted(runs):
        add(slices, run, names.get(run.number, ""), max_epochs)
    return slices


def add(slices: list[Slice], run: SliceRun, name: str, max_epochs: float) -> None:
    """Add the newest run."""
    before = slices.pop().runs if slices and name and slices[-1].name == name else ()
    slices.append(Slice.of(name, (*before, run), max_epochs))


def hopeless(slices: Sequence[Slice]) -> list[bool]:
    """Whether each slice says nothing about batch sizes: no run on it reached the target, and that is an exception.

    Where :data:`OUT_OF_REACH` slices in a row were missed, the target itself has moved out of reach.
    """
    found, start = [s.missed for s in slices], 0
    for i in range(len(slices) + 1):
        if i == len(slices) or not found[i]:
            if i - start >= OUT_OF_REACH:
                found[start:i] = [False] * (i - start)
            start = i + 1
    return found


def settled(slices: Sequence[Slice]) -> int:
    """How many of the slices no later run can change: neither their runs nor whether they are hopeless."""
    last = max(len(slices) - 1, 0)
    first = max(last - OUT_OF_REACH, 0)
    while last > first and slices[last - 1].missed:
        last -= 1
    return last
