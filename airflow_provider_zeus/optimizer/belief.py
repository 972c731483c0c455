"""What the trial log has taught: the value that :func:`~airflow_provider_zeus.optimizer.fold.learn` folds.

A belief keeps what Eq. 6 needs apart: Epochs(b) of the runs that teach it, and the rates behind EpochCost(b) per
device. Every part is a set of which the newest or the oldest entries by *trial number* are kept, so its size does not
grow with the log, and trials may arrive in any order. They give one belief; only a change of Epochs is looked for among
the runs still within the window, so one that a late arrival would have told before them may be missed.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_zeus.optimizer.cost import Rates
from airflow_provider_zeus.optimizer.drift import Change, Surprise
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.reached import Runs, counted, with_one_more
from airflow_provider_zeus.optimizer.strikes import Failure, struck
from airflow_provider_zeus.optimizer.trial import DeviceInfo, Where

if TYPE_CHECKING:
    from airflow_provider_zeus.optimizer.surrogate import Surrogate

VERSION = "5"  # of the fold; a checkpoint of another version is not read
STOPPED_USED = 32  # newest stopped runs that the surrogate is conditioned on
RATES_KEPT = 8  # newest trials whose rates are averaged, per batch size and device
UNKNOWN = ""  # model of a trial that ended before it could name its device

Run = tuple[int, int, float]  # trial number, batch size, epochs


@dataclass(frozen=True, kw_only=True)
class Belief:
    """What is known of a job; see ``fold.learn`` for what enters where."""

    job: ZeusJob
    newest: tuple[int, bool] = (0, False)  # highest trial number learnt, and whether that trial died
    converged: tuple[Run, ...] = ()  # the window: newest ``job.window`` runs that reached the target
    stopped: tuple[Run, ...] = ()  # as many newest runs that did not: Epochs(b) > epochs
    slices: Mapping[int, str] = field(default_factory=dict)  # number of such a run: the data it trained on
    explored: Mapping[tuple[int, int], tuple[int, bool]] = field(default_factory=dict)  # (round, b): number, converged
    listed: Mapping[int, int] = field(default_factory=dict)  # b: number of the first trial that could have chosen it
    rates: Mapping[tuple[int, Where], tuple[tuple[int, Rates], ...]] = field(default_factory=dict)
    seen: Mapping[tuple[int, Where], int] = field(default_factory=dict)  # newest trial of b that ended by itself there
    too_large: frozenset[tuple[int, str]] = frozenset()  # (b, model): out of memory
    ends: Mapping[tuple[int, str], tuple[tuple[int, bool], ...]] = field(default_factory=dict)  # newest: number, death
    started: tuple[int, ...] = ()  # numbers of the newest first attempts: one per recurrence
    failures: tuple[Failure, ...] = ()  # newest attempts that raised an error
    changes: tuple[Change, ...] = ()  # of Epochs, the newest seen: what ran before them tells no more than the shape
    surprises: tuple[Surprise, ...] = ()  # newest runs of this era against what was predicted for them
    slice_size: tuple[int, float] | None = None  # (number, samples per epoch) of the newest trial that told it
    device: tuple[int, Where, float | None] | None = None  # number, device, MAXPOWER [W] of the newest trial

    def out_of_memory(self, batch_size: int, model: str) -> bool:
        """Whether it ran out of memory once, on this device model or an unknown one."""
        return any((batch_size, m) in self.too_large for m in (model, UNKNOWN))

    def keeps_dying(self, batch_size: int, model: str) -> bool:
        """Two deaths in a row without a result, on this device model or an unknown one.

        Deaths are forgotten with the window: what killed those runs may be gone.
        """
        ends = [end for m in {model, UNKNOWN} for end in self.ends.get((batch_size, m), ())]
        if sum(death for _, death in ends) < 2:
            return False
        ends = sorted(ends)[-2:]
        return len(ends) == 2 and all(death for _, death in ends) and ends[-1][0] >= self.window_start()

    def infeasible(self, model: str) -> frozenset[int]:
        """Batch sizes that do not fit this device model, or keep dying there."""
        models = (model, UNKNOWN)
        died = {b for (b, m), ends in self.ends.items() if m in models for _, death in ends if death}
        dying = {b for b in died if self.keeps_dying(b, model)}
        return frozenset(dying | {b for b, m in self.too_large if m in models})

    @cached_property
    def struck(self) -> frozenset[int]:
        """Batch sizes whose try raised an error lately, where the attempt after it raised none."""
        return struck(self.failures, self.started)

    def barred(self, model: str, sizes: Iterable[int]) -> frozenset[int]:
        """What may not run on this device model: infeasible sizes, and struck ones while another of ``sizes`` fits."""
        infeasible = self.infeasible(model)
        others = set(sizes) - infeasible - self.struck
        return infeasible | self.struck if others else infeasible

    def window_start(self) -> int:
        """Number of the oldest trial in the window of ``job.window`` converged runs; 0 while it is not full."""
        return self.converged[0][0] if len(self.converged) >= self.job.window else 0

    @cached_property
    def surrogate(self) -> Surrogate:
        """Posterior of log Epochs from the runs of this era, over the job's batch sizes and those of earlier lists."""
        from airflow_provider_zeus.optimizer.surrogate import fit

        *before, reached = self.by_era
        era = self.era
        newest = [run for run in self.stopped if run[0] >= era][-STOPPED_USED:]
        stopped = [(b, epochs, self.beside(n)) for n, b, epochs in newest]
        most = float(self.job.max_epochs or 1)
        sizes = sorted({*self.job.batch_sizes, *reached, *(b for b, _, _ in stopped)})
        jumps = [math.fsum(c.jump**2 for c in self.changes[i:]) for i in range(len(self.changes))]
        return fit(sizes, self.job.default_batch_size, reached, stopped, list(zip(before, jumps, strict=True)), most)

    @cached_property
    def by_era(self) -> list[Runs]:
        """Runs that reached the target between one change and the next; ours are last."""
        starts = [bisect_left(self.converged, (change.since,)) for change in self.changes]
        ends = pairwise([0, *starts, len(self.converged)])
        return [counted((b, epochs) for _, b, epochs in self.converged[i:j]) for i, j in ends]

    @cached_property
    def newest_runs(self) -> Mapping[int, int]:
        """Number of the newest run of each batch size within the window, or given up or missed as lately."""
        return _newest_runs((*self.converged, *self.stopped), {})

    def replaced(self, changes: Mapping[str, object]) -> Self:
        """``dataclasses.replace`` at a quarter of its price: a fold makes one belief per trial."""
        new, mine = object.__new__(type(self)), self.__dict__
        new.__dict__.update({name: mine[name] for name in self.__dataclass_fields__}, **changes)
        return new

    def count_on(self, before: Self) -> None:
        """Take over what ``before``, from which this belief was learnt, has counted, where one run at most is new."""
        reached = _added(before.converged, self.converged)
        stopped = _added(before.stopped, self.stopped)
        if reached is None or stopped is None:
            return
        mine, known = self.__dict__, before.__dict__
        if "by_era" in known and self.changes is before.changes:
            *earlier, era = known["by_era"]
            mine["by_era"] = [*earlier, with_one_more(era, *reached[0][1:])] if reached else known["by_era"]
            if "reached" in known and all(b in known["reached"] for _, b, _ in reached):
                mine["reached"] = known["reached"]
        if "newest_runs" in known:
            mine["newest_runs"] = _newest_runs((*reached, *stopped), known["newest_runs"])

    @cached_property
    def reached(self) -> frozenset[int]:
        """Batch sizes of which a run within the window reached the target."""
        return frozenset[int]().union(*self.by_era)

    def beside(self, number: int) -> list[tuple[int, float]]:
        """(batch size, epochs) of the runs of this era that reached the target on the same slice of the data."""
        return self._by_slice.get(self.slices.get(number, ""), [])

    @cached_property
    def _by_slice(self) -> dict[str, list[tuple[int, float]]]:
        found: dict[str, list[tuple[int, float]]] = {}
        for n, b, epochs in self.converged[bisect_left(self.converged, (self.era,)) :]:
            if n in self.slices:
                found.setdefault(self.slices[n], []).append((b, epochs))
        return found

    @property
    def era(self) -> int:
        """Number of the first trial since Epochs changed last; 0 where no change was seen."""
        return self.changes[-1].since if self.changes else 0

    def age(self) -> int:
        """Recurrences since Epochs changed last: runs of this era that went to their end."""
        most, era = float(self.job.max_epochs or 1), self.era
        ended = sum([n >= era and epochs >= most for n, _, epochs in self.stopped])
        return ended + len(self.converged) - bisect_left(self.converged, (era,))

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
                "slices": list(self.slices.items()),
                "explored": [[*k, *v] for k, v in self.explored.items()],
                "listed": list(self.listed.items()),
                "rates": _plain(self.rates),
                "seen": [[*k, n] for k, n in self.seen.items()],
                "too_large": sorted(self.too_large),
                "ends": [[*k, v] for k, v in self.ends.items()],
                "started": self.started,
                "failures": self.failures,
                "changes": self.changes,
                "surprises": self.surprises,
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
            slices=dict(d["slices"]),
            explored={(r, b): (n, ok) for r, b, n, ok in d["explored"]},
            listed=dict(d["listed"]),
            rates=_read(d["rates"]),
            seen={(b, tuple(w)): n for b, w, n in d["seen"]},
            too_large=frozenset((b, m) for b, m in d["too_large"]),
            ends={(b, m): tuple((n, death) for n, death in v) for b, m, v in d["ends"]},
            started=tuple(d["started"]),
            failures=tuple(Failure(*f) for f in d["failures"]),
            changes=tuple(Change(since, jump, tuple(told_by)) for since, jump, told_by in d["changes"]),
            surprises=tuple(Surprise(*s) for s in d["surprises"]),
            slice_size=tuple(d["slice_size"]) if d["slice_size"] else None,
            device=(device[0], tuple(device[1]), device[2]) if device else None,
        )


def _added(before: tuple[Run, ...], after: tuple[Run, ...]) -> tuple[Run, ...] | None:
    """What came behind ``before``, one run at most; None where more is new, or something has gone."""
    if after is before:
        return ()
    if before and len(after) == len(before) + 1 and after[-2] is before[-1]:
        return after[-1:]
    return None


def _newest_runs(runs: tuple[Run, ...], before: Mapping[int, int]) -> dict[int, int]:
    newest = dict(before)
    for n, b, _ in runs:
        newest[b] = max(n, newest.get(b, 0))
    return newest


def _plain(rates: Mapping[tuple[int, Where], tuple[tuple[int, Rates], ...]]) -> list[object]:
    return [[b, where, [[n, *r] for n, r in entries]] for (b, where), entries in rates.items()]


def _read(rows: list[Any]) -> dict[tuple[int, Where], tuple[tuple[int, Rates], ...]]:
    return {(b, tuple(where)): tuple((n, Rates(*r)) for n, *r in entries) for b, where, entries in rows}


def prior(job: ZeusJob) -> Belief:
    """The belief before any trial: the flat prior of section 4.3."""
    return Belief(job=job)


def belief_tag(job: ZeusJob) -> str:
    """Everything that a belief depends on beside the log: a checkpoint is read only under an equal tag."""
    return json.dumps(
        [
            VERSION,
            job.target,
            job.job_version,
            job.window,
            sorted(job.learn_from),
            job.default_batch_size,
            job.policy,
        ]
    )
