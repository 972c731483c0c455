"""What the trial log teaches: a pure fold, ``reduce(learn, trials, prior(job))``.

A belief keeps what Eq. 6 needs apart: Epochs(b) of the runs that teach it, and the rates behind EpochCost(b) per
device. Every part is a set of which the newest or the oldest entries by *trial number* are kept, so trials may arrive
in any order and give one belief, and its size does not grow with the log.
"""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Self, TypeVar

from airflow_provider_zeus.optimizer.cost import Rates
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.trial import DeviceInfo, Phase, State, Trial

VERSION = "1"  # of the fold; a checkpoint of another version is not read
RATES_KEPT = 8  # newest trials whose rates are averaged, per batch size and device

Run = tuple[int, int, float]  # trial number, batch size, epochs
Where = tuple[str, int, str | None]  # device model, count, energy source
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What is known of a job; see :func:`learn` for what enters where."""

    job: ZeusJob
    newest: int = 0  # highest trial number learnt
    converged: tuple[Run, ...] = ()  # the window: newest ``job.window`` runs that reached the target
    stopped: tuple[Run, ...] = ()  # as many newest runs that did not: Epochs(b) > epochs
    explored: Mapping[tuple[int, int], tuple[int, bool]] = field(default_factory=dict)  # (round, b): number, converged
    listed: Mapping[int, int] = field(default_factory=dict)  # b: number of the first trial that could have chosen it
    rates: Mapping[tuple[int, Where], tuple[tuple[int, Rates], ...]] = field(default_factory=dict)
    too_large: frozenset[tuple[int, str]] = frozenset()  # (b, model): out of memory
    ends: Mapping[tuple[int, str], tuple[tuple[int, bool], ...]] = field(default_factory=dict)  # newest 2: number, died
    slice_size: tuple[int, float] | None = None  # (number, samples per epoch) of the newest trial that told it
    device: tuple[int, Where, float | None] | None = None  # number, device, MAXPOWER [W] of the newest trial

    def infeasible(self, batch_size: int, model: str) -> bool:
        """Out of memory once, or two deaths in a row without a result, on this device model."""
        ends = self.ends.get((batch_size, model), ())
        return (batch_size, model) in self.too_large or (len(ends) == 2 and all(died for _, died in ends))

    def last_device(self) -> DeviceInfo | None:
        """The device of the newest trial that named one."""
        if self.device is None:
            return None
        (model, count, source), max_power_w = self.device[1:]
        return DeviceInfo(model=model, count=count, energy_source=source, max_power_w=max_power_w)

    def to_json(self) -> str:
        """One JSON document for a checkpoint; the job is not in it (the tag answers for it)."""
        return json.dumps(
            {
                "newest": self.newest,
                "converged": self.converged,
                "stopped": self.stopped,
                "explored": [[*k, *v] for k, v in self.explored.items()],
                "listed": list(self.listed.items()),
                "rates": [[b, where, [[n, *astuple(r)] for n, r in v]] for (b, where), v in self.rates.items()],
                "too_large": sorted(self.too_large),
                "ends": [[*k, v] for k, v in self.ends.items()],
                "slice_size": self.slice_size,
                "device": self.device,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, job: ZeusJob, text: str) -> Self:
        """Read what :meth:`to_json` wrote under the same :func:`belief_tag`."""
        d = json.loads(text)
        device = d["device"]
        return cls(
            job=job,
            newest=d["newest"],
            converged=tuple((n, b, e) for n, b, e in d["converged"]),
            stopped=tuple((n, b, e) for n, b, e in d["stopped"]),
            explored={(r, b): (n, ok) for r, b, n, ok in d["explored"]},
            listed=dict(d["listed"]),
            rates={(b, tuple(w)): tuple((n, Rates(*r)) for n, *r in v) for b, w, v in d["rates"]},
            too_large=frozenset((b, m) for b, m in d["too_large"]),
            ends={(b, m): tuple((n, died) for n, died in v) for b, m, v in d["ends"]},
            slice_size=tuple(d["slice_size"]) if d["slice_size"] else None,
            device=(device[0], tuple(device[1]), device[2]) if device else None,
        )


def prior(job: ZeusJob) -> Belief:
    """The belief before any trial: the flat prior of section 4.3."""
    return Belief(job=job)


def belief_tag(job: ZeusJob) -> str:
    """Everything that a belief depends on beside the log: a checkpoint is read only under an equal tag."""
    return json.dumps([VERSION, job.target, job.job_version, job.window, sorted(job.learn_from)])


def learn(belief: Belief, trial: Trial) -> Belief:
    """Take one trial in. Pure; running trials and those of another ``job_version`` teach nothing.

    Epochs(b) is taught by runs of the present target whose run type is in ``learn_from`` and which ended by
    themselves; rates by every trial that measured them; feasibility by out of memory and deaths.
    """
    job, o, n, b = belief.job, trial.observation, trial.number, trial.batch_size
    if trial.state is State.RUNNING or trial.spec.get("job_version", job.job_version) != job.job_version:
        return belief
    where: Where | None = None
    changes: dict[str, object] = {"newest": max(n, belief.newest)}
    if o.device_model is not None:
        where = (o.device_model, o.device_count or 1, o.energy_source)
        if belief.device is None or n > belief.device[0]:
            changes["device"] = (n, where, o.max_power_w)
        died = (n, trial.state is State.ABANDONED)
        changes["ends"] = _with(
            belief.ends, (b, o.device_model), _newest(belief.ends.get((b, o.device_model)), died, 2)
        )
        if o.out_of_memory:
            changes["too_large"] = belief.too_large | {(b, o.device_model)}
        rates = Rates.of(o)
        if rates is not None:
            kept = _newest(belief.rates.get((b, where)), (n, rates), RATES_KEPT)
            changes["rates"] = _with(belief.rates, (b, where), kept)
    if o.samples_per_epoch and (belief.slice_size is None or n > belief.slice_size[0]):
        changes["slice_size"] = (n, o.samples_per_epoch)
    if trial.spec.get("target", job.target) == job.target:
        changes |= _learn_epochs(belief, trial)
    return replace(belief, **changes)  # type: ignore[arg-type]


def _learn_epochs(belief: Belief, trial: Trial) -> dict[str, object]:
    job, n, b, epochs = belief.job, trial.number, trial.batch_size, trial.observation.epochs
    if trial.state not in _ENDED or trial.origin.run_type not in job.learn_from or not epochs:
        return {}
    reached = trial.state is State.CONVERGED
    name = "converged" if reached else "stopped"
    changes: dict[str, object] = {name: _newest(getattr(belief, name), (n, b, epochs), job.window)}
    listed = dict(belief.listed)
    for size in trial.spec.get("batch_sizes", ()):
        if n < listed.get(size, n + 1):
            listed[size] = n
    if listed != belief.listed:
        changes["listed"] = listed
    if trial.planned.phase is Phase.EXPLORE and trial.planned.round is not None:
        key = (trial.planned.round, b)
        if n < belief.explored.get(key, (n + 1, False))[0]:
            changes["explored"] = _with(belief.explored, key, (n, reached))
    return changes


_ENDED = (State.CONVERGED, State.GIVEN_UP, State.EXHAUSTED)


def _with(mapping: Mapping[K, V], key: K, value: V) -> dict[K, V]:
    return {**mapping, key: value}


def _newest(entries: tuple[V, ...] | None, entry: V, keep: int) -> tuple[V, ...]:
    """``entries`` (ordered by trial number, their first item) with ``entry``; the ``keep`` newest of them."""
    grown = list(entries or ())
    insort(grown, entry, key=lambda e: e[0])  # type: ignore[index]
    return tuple(grown[-keep:])
