"""The part of a trial log that answers are read from: each trial once, of this job version, figures that are numbers.

Sources are never mixed: joules and seconds come from the trials of one ``where`` (device model, count, energy source),
the newest by default. Epochs do not depend on the GPU (Eq. 6) and are taught by all of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import reduce

from airflow_provider_zeus.optimizer.belief import Belief, prior
from airflow_provider_zeus.optimizer.fold import learn, same_target, with_rates
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.trial import DeviceInfo, Observation, Phase, State, Trial, Where

ENDED = (State.CONVERGED, State.GIVEN_UP, State.EXHAUSTED)
_STATES, _PHASES = frozenset(State), frozenset(Phase)


@dataclass(frozen=True)
class Evidence:
    """Trials in order of number, and what was left out of them (why -> how many)."""

    job: ZeusJob
    trials: tuple[Trial, ...]
    where: Where | None  # None: no trial has named its device yet
    left_out: dict[str, int]
    folded: Belief | None = None  # the fold of these trials, where somebody has it already

    @property
    def device(self) -> DeviceInfo | None:
        """The device of ``where`` as ``choose`` sees it, with the MAXPOWER [W] that its newest trial told."""
        if self.where is None:
            return None
        told = [t.observation.max_power_w for t in self.here() if t.observation.max_power_w is not None]
        model, count, source = self.where
        return DeviceInfo(model=model, count=count, energy_source=source, max_power_w=told[-1] if told else None)

    def here(self) -> tuple[Trial, ...]:
        """The trials whose figures may be added and compared: those of ``where``."""
        return tuple(t for t in self.trials if t.observation.where == self.where) if self.where else ()

    def of_target(self) -> Evidence:
        """Without the runs to another target, whose epochs and totals do not compare."""
        kept = tuple(t for t in self.trials if same_target(t, self.job))
        if len(kept) == len(self.trials):
            return self
        left_out = _counted(self.left_out, "of another target", self.trials, kept)
        return replace(self, trials=kept, left_out=left_out, folded=None)

    def belief(self, job: ZeusJob | None = None) -> Belief:
        """The fold of the trials under the job, or under a changed one."""
        if self.folded is not None and job in (None, self.job):
            return self.folded
        return reduce(learn, self.trials, prior(job or self.job))

    def at(self, job: ZeusJob, moved: Callable[[Trial], Trial]) -> Evidence:
        """The same trials with what they drew re-costed by ``moved``, under a job that weighs it otherwise.

        Their epochs and their ends stay as they are, and so does what was folded of them.
        """
        trials = tuple(moved(t) for t in self.trials)
        folded = None if self.folded is None else with_rates(replace(self.folded, job=job), trials)
        return replace(self, job=job, trials=trials, folded=folded)


def evidence(trials: Iterable[Trial] | Evidence, job: ZeusJob, where: Where | None = None) -> Evidence:
    """What of a log may be read for ``job``; nothing is raised for what is odd in it.

    An :class:`Evidence` made for the same job is taken as it is, so that several answers share one.

    Left out and counted are: a second row of one trial (the one told last stays), a state or phase that this
    version does not know, another ``job_version``. A figure that is no finite number, or below 0, counts as missing.
    Old trials of another policy, another eta or another batch-size list stay: they are history and are re-costed.
    """
    if isinstance(trials, Evidence):
        return trials
    found = sorted(trials, key=lambda t: (t.number, t.told_seq or 0))
    once = list({t.number: t for t in found}.values())
    left_out = _counted({}, "written twice", found, once)
    known = [t for t in once if t.state in _STATES and t.planned.phase in _PHASES]
    left_out = _counted(left_out, "in a state or phase that this version does not know", once, known)
    trained = [t for t in known if t.state is not State.NO_DATA]
    left_out = _counted(left_out, "whose slice of data was empty", known, trained)
    own = [t for t in trained if t.spec.get("job_version", job.job_version) == job.job_version]
    left_out = _counted(left_out, "of another job_version", trained, own)
    kept = tuple(replace(t, observation=_numbers(t.observation)) for t in own)
    devices = Counter(t.observation.where for t in kept if t.observation.where is not None)
    if where is None:
        where = next((t.observation.where for t in reversed(kept) if t.observation.where is not None), None)
    others = sum(n for device, n in devices.items() if device != where)
    if others:
        left_out["on another device or by another energy source, for joules and seconds"] = others
    return Evidence(job, kept, where, left_out)


def _counted(before: dict[str, int], why: str, some: Iterable[Trial], kept: Iterable[Trial]) -> dict[str, int]:
    gone = sum(1 for _ in some) - sum(1 for _ in kept)
    return {**before, why: gone} if gone else dict(before)


def _numbers(o: Observation) -> Observation:
    """The observation with every figure that is no finite number, or is below 0, missing; a metric may be below 0."""
    gone = {
        f.name: None
        for f in fields(o)
        if isinstance(value := getattr(o, f.name), int | float)
        and not (math.isfinite(value) and (value >= 0 or f.name in ("metric", "target_value")))
    }
    return replace(o, **gone) if gone else o  # type: ignore[arg-type]
