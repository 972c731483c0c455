"""The part of a trial log that reports read: each trial once, of this job version, with finite figures.

Sources are never mixed: joules and seconds come from the trials of one ``where`` (device model, count, energy source),
the newest by default. Epochs do not depend on the GPU (Eq. 6): the trials of all devices count for them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import DeviceInfo, Observation, Phase, State, Trial, Where
from airflow_provider_zeus.optimizer.belief import Belief, prior
from airflow_provider_zeus.optimizer.learn import learn, same_target, with_rates

BYPASSED = "that did not use its batch size, as far as can be told"
UNKNOWN_STATE = "in a state or phase that this version does not know"
FOREIGN = "on another device or by another energy source, for joules and seconds"
_STATES, _PHASES = frozenset(State), frozenset(Phase)
# Profiling at limits below the chosen one draws less than the same samples there; a price of the hour may be below 0.
_SIGNED = {"metric", "target_value", "excess_j", "excess_s", "price_per_kwh", "price_at_once"}


@dataclass(frozen=True)
class Dataset:
    """Trials in order of number, and how many were left out of them, by reason."""

    job: ZeusJob
    trials: tuple[Trial, ...]
    where: Where | None  # None: no trial has named its device yet
    left_out: dict[str, int]
    lessons: tuple[Trial, ...]  # all that the policy learns from: also runs that are left out of the figures
    folded: Belief | None = None  # what was learned from the lessons, where that is known already

    @property
    def device(self) -> DeviceInfo | None:
        """The device of ``where`` as ``choose`` expects it, with the MAXPOWER [W] that its newest trial reported."""
        if self.where is None:
            return None
        powers_w = [t.observation.max_power_w for t in self.here() if t.observation.max_power_w is not None]
        model, count, source = self.where
        max_power_w = powers_w[-1] if powers_w else None
        return DeviceInfo(model=model, count=count, energy_source=source, max_power_w=max_power_w)

    def here(self) -> tuple[Trial, ...]:
        """The trials whose figures may be added and compared: those of ``where``."""
        return tuple(t for t in self.trials if t.observation.where == self.where) if self.where else ()

    def newest_limit_w(self, batch_size: int) -> float | None:
        """The power limit [W] of the newest run of a batch size that left a model here; None: none was read."""
        runs = (t for t in reversed(self.here()) if t.batch_size == batch_size and t.state.kept_model)
        return next((w for t in runs if (w := t.observation.power_limit_w)), None)

    def of_target(self) -> Dataset:
        """Without the runs to another target, whose epochs and totals do not compare. What was learned stays."""
        same = tuple(t for t in self.trials if same_target(t, self.job))
        gone = len(self.trials) - len(same)
        if not gone:
            return self
        return replace(self, trials=same, left_out={**self.left_out, "of another target": gone})

    def belief(self) -> Belief:
        """What the job's policy has learned: the belief that its next run is decided with."""
        return reduce(learn, self.lessons, prior(self.job)) if self.folded is None else self.folded

    def at(self, job: ZeusJob, recosted: Callable[[Trial], Trial]) -> Dataset:
        """The same trials, their energy and time replaced by ``recosted``, under a job that weighs them differently.

        Their epochs and states stay as they are, and so does what was learned from these.
        """
        lessons = tuple(map(recosted, self.lessons))
        by_number = {t.number: t for t in lessons}
        trials = tuple(by_number[t.number] for t in self.trials)  # they are lessons, too
        folded = None if self.folded is None else with_rates(replace(self.folded, job=job), lessons)
        return replace(self, job=job, trials=trials, lessons=lessons, folded=folded)


def as_dataset(trials: Iterable[Trial] | Dataset, job: ZeusJob, where: Where | None = None) -> Dataset:
    """Take from a log what may be read for ``job``; odd trials are left out and counted, nothing is raised.

    A :class:`Dataset`, made for the same job, is returned as it is, so that several reports share one.

    Left out are: a second row of one trial (the row stored last stays), a state or phase that this version does not
    know, a run whose slice of data was empty, one that did not use its batch size (``Observation.bypassed``), another
    ``job_version``. A figure that is not finite, or is below 0 where it cannot be, counts as missing. Old trials of
    another policy, another eta or another batch-size list stay: they are re-costed.
    """
    if isinstance(trials, Dataset):
        return trials
    rows = sorted(trials, key=lambda t: (t.number, t.told_seq or 0))
    once = list({t.number: t for t in rows}.values())
    readable = [t for t in once if t.state in _STATES and t.planned.phase in _PHASES]
    known = [replace(t, observation=_finite(t.observation)) for t in readable]
    trained = [t for t in known if t.state is not State.NO_DATA]
    used = [t for t in trained if t.observation.bypassed is None]
    own = [t for t in used if t.spec["job_version"] == job.job_version]
    steps: list[tuple[str, Sequence[Trial], Sequence[Trial]]] = [
        ("written twice", rows, once),
        (UNKNOWN_STATE, once, known),
        ("whose slice of data was empty", known, trained),
        (BYPASSED, trained, used),
        ("of another job_version", used, own),
    ]
    left_out = {why: len(before) - len(after) for why, before, after in steps if len(after) < len(before)}
    devices = Counter(t.observation.where for t in own if t.observation.where is not None)
    if where is None:
        where = next((t.observation.where for t in reversed(own) if t.observation.where is not None), None)
    others = sum(n for device, n in devices.items() if device != where)
    if others:
        left_out[FOREIGN] = others
    return Dataset(job, tuple(own), where, left_out, tuple(known))


def _finite(o: Observation) -> Observation:
    """The observation with every figure missing that is not finite, or is below 0 where it cannot be."""
    gone = {
        f.name: None
        for f in fields(o)
        if isinstance(value := getattr(o, f.name), int | float)
        and not (math.isfinite(value) and (value >= 0 or f.name in _SIGNED))
    }
    return replace(o, **gone) if gone else o  # type: ignore[arg-type]
