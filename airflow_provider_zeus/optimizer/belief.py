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

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.optimizer.cost import Rates
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.target import Target
from airflow_provider_zeus.optimizer.trial import DeviceInfo, Phase, State, Trial

VERSION = "1"  # of the fold; a checkpoint of another version is not read
RATES_KEPT = 8  # newest trials whose rates are averaged, per batch size and device
UNKNOWN = ""  # model of a trial that ended before it could name its device

Run = tuple[int, int, float]  # trial number, batch size, epochs
Where = tuple[str, int, str | None]  # device model, count, energy source
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What is known of a job; see :func:`learn` for what enters where."""

    job: ZeusJob
    newest: tuple[int, bool] = (0, False)  # highest trial number learnt, and whether that trial died
    converged: tuple[Run, ...] = ()  # the window: newest ``job.window`` runs that reached the target
    stopped: tuple[Run, ...] = ()  # as many newest runs that did not: Epochs(b) > epochs
    explored: Mapping[tuple[int, int], tuple[int, bool]] = field(default_factory=dict)  # (round, b): number, converged
    listed: Mapping[int, int] = field(default_factory=dict)  # b: number of the first trial that could have chosen it
    rates: Mapping[tuple[int, Where], tuple[tuple[int, Rates], ...]] = field(default_factory=dict)
    seen: Mapping[tuple[int, Where], int] = field(default_factory=dict)  # newest trial of b that ended by itself there
    too_large: frozenset[tuple[int, str]] = frozenset()  # (b, model): out of memory
    ends: Mapping[tuple[int, str], tuple[tuple[int, bool], ...]] = field(
        default_factory=dict
    )  # newest 2: number, death
    slice_size: tuple[int, float] | None = None  # (number, samples per epoch) of the newest trial that told it
    device: tuple[int, Where, float | None] | None = None  # number, device, MAXPOWER [W] of the newest trial

    def infeasible(self, batch_size: int, model: str) -> bool:
        """Out of memory once, or two deaths in a row without a result, on this device model or an unknown one."""
        models = {model, UNKNOWN}
        if any((batch_size, m) in self.too_large for m in models):
            return True
        ends = sorted(end for m in models for end in self.ends.get((batch_size, m), ()))[-2:]
        return len(ends) == 2 and all(death for _, death in ends)

    def window_start(self) -> int:
        """Number of the oldest trial in the window of ``job.window`` converged runs; 0 while it is not full."""
        return self.converged[0][0] if len(self.converged) >= self.job.window else 0

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
                "seen": [[*k, n] for k, n in self.seen.items()],
                "too_large": sorted(self.too_large),
                "ends": [[*k, v] for k, v in self.ends.items()],
                "slice_size": self.slice_size,
                "device": self.device,
            },
            separators=(",", ":"),
            allow_nan=False,
        )

    @classmethod
    def from_json(cls, job: ZeusJob, text: str) -> Self:
        """Read what :meth:`to_json` wrote under the same :func:`belief_tag`."""
        d = json.loads(text)
        device = d["device"]
        return cls(
            job=job,
            newest=tuple(d["newest"]),
            converged=tuple((n, b, e) for n, b, e in d["converged"]),
            stopped=tuple((n, b, e) for n, b, e in d["stopped"]),
            explored={(r, b): (n, ok) for r, b, n, ok in d["explored"]},
            listed=dict(d["listed"]),
            rates={(b, tuple(w)): tuple((n, Rates(*r)) for n, *r in v) for b, w, v in d["rates"]},
            seen={(b, tuple(w)): n for b, w, n in d["seen"]},
            too_large=frozenset((b, m) for b, m in d["too_large"]),
            ends={(b, m): tuple((n, death) for n, death in v) for b, m, v in d["ends"]},
            slice_size=tuple(d["slice_size"]) if d["slice_size"] else None,
            device=(device[0], tuple(device[1]), device[2]) if device else None,
        )


def where_of(device: DeviceInfo | None) -> Where | None:
    """Of a device, what figures must share to be compared."""
    return (device.model, device.count, device.energy_source) if device else None


def prior(job: ZeusJob) -> Belief:
    """The belief before any trial: the flat prior of section 4.3."""
    return Belief(job=job)


def belief_tag(job: ZeusJob) -> str:
    """Everything that a belief depends on beside the log: a checkpoint is read only under an equal tag."""
    return json.dumps([VERSION, job.target, job.job_version, job.window, sorted(job.learn_from)])


_ENDED = (State.CONVERGED, State.GIVEN_UP, State.EXHAUSTED)
_DIED = (State.FAILED, State.ABANDONED)
_UNPROVEN = (Phase.EXPLORE, Phase.RETURN)


def learn(belief: Belief, trial: Trial) -> Belief:
    """Take one trial in. Pure; running trials and those of another ``job_version`` teach nothing.

    Epochs(b) is taught by runs of the present target whose run type is in ``learn_from`` and which ended by
    themselves; rates by every trial that measured them; feasibility by out of memory and deaths.
    """
    job, n = belief.job, trial.number
    if trial.state is State.RUNNING or trial.spec.get("job_version", job.job_version) != job.job_version:
        return belief
    changes: dict[str, object] = {"newest": max((n, trial.state in _DIED), belief.newest)}
    _learn_feasible(belief, trial, changes)
    _learn_rates(belief, trial, changes)
    if _same_target(trial, job) and trial.state in _ENDED and trial.origin.run_type in job.learn_from:
        _learn_epochs(belief, trial, changes)
    return replace(belief, **changes)  # type: ignore[arg-type]


def _same_target(trial: Trial, job: ZeusJob) -> bool:
    text = trial.spec.get("target", job.target)
    if text == job.target:
        return True
    try:
        return Target.parse(text) == job.parsed_target  # "acc>=0.9" is "acc >= 0.90"
    except JobSpecError:  # of a log that another version wrote
        return False


def _learn_feasible(belief: Belief, trial: Trial, changes: dict[str, object]) -> None:
    """An exploratory attempt that raised is a death too: a batch size that the code cannot do must not come back."""
    b, model = trial.batch_size, trial.observation.device_model or UNKNOWN
    death = trial.state is State.ABANDONED or (trial.state is State.FAILED and trial.planned.phase in _UNPROVEN)
    changes["ends"] = _with(belief.ends, (b, model), (trial.number, death), 2)
    if trial.observation.out_of_memory:
        changes["too_large"] = belief.too_large | {(b, model)}


def _learn_rates(belief: Belief, trial: Trial, changes: dict[str, object]) -> None:
    o, n = trial.observation, trial.number
    if o.device_model is not None:
        where: Where = (o.device_model, o.device_count or 1, o.energy_source)
        if belief.device is None or n > belief.device[0]:
            changes["device"] = (n, where, o.max_power_w)
        if trial.state in _ENDED and n > belief.seen.get((trial.batch_size, where), 0):
            changes["seen"] = {**belief.seen, (trial.batch_size, where): n}
        rates = Rates.of(o)
        if rates is not None:
            changes["rates"] = _with(belief.rates, (trial.batch_size, where), (n, rates), RATES_KEPT)
    size = o.samples_per_epoch
    if not size and o.samples and o.epochs and trial.state in _ENDED:
        size = o.samples / o.epochs
    if size and (belief.slice_size is None or n > belief.slice_size[0]):
        changes["slice_size"] = (n, size)


def _learn_epochs(belief: Belief, trial: Trial, changes: dict[str, object]) -> None:
    n, b, epochs, keep = trial.number, trial.batch_size, trial.observation.epochs, belief.job.window
    reached = trial.state is State.CONVERGED
    if not reached:
        changes["stopped"] = _newest(belief.stopped, (n, b, epochs or 0.0), keep)
    elif epochs:
        changes["converged"] = _newest(belief.converged, (n, b, epochs), keep)
    earlier = {size: n for size in trial.spec.get("batch_sizes", ()) if n < belief.listed.get(size, n + 1)}
    if earlier:
        changes["listed"] = {**belief.listed, **earlier}
    if trial.planned.phase is Phase.EXPLORE and trial.planned.round is not None:
        key = (trial.planned.round, b)
        if n < belief.explored.get(key, (n + 1, False))[0]:
            changes["explored"] = {**belief.explored, key: (n, reached)}


def _with(mapping: Mapping[K, tuple[V, ...]], key: K, entry: V, keep: int) -> dict[K, tuple[V, ...]]:
    return {**mapping, key: _newest(mapping.get(key, ()), entry, keep)}


def _newest(entries: tuple[V, ...], entry: V, keep: int) -> tuple[V, ...]:
    """``entries`` (ordered by trial number, their first item) with ``entry``; the ``keep`` newest of them."""
    grown = list(entries)
    insort(grown, entry, key=lambda e: e[0])  # type: ignore[index]
    return tuple(grown[-keep:])
