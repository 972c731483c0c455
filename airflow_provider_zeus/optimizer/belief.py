"""The belief of a job: all that is learnt from its trial log (:func:`~airflow_provider_zeus.optimizer.learn.learn`).

A belief keeps the two factors of Eq. 6 apart: Epochs(b) of the runs that teach it, and per device the rates behind
EpochCost(b). Each field keeps only its newest or its oldest entries by *trial number*. So a belief does not grow with
the log, and does not depend on the order in which trials arrive, but for a run that comes after half a window has gone.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from airflow_provider_zeus.model.cost import Rates
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import EXCLUDED, DeviceInfo, Where
from airflow_provider_zeus.optimizer.reasons import Why
from airflow_provider_zeus.optimizer.slices import Change, Slice, SliceRun, add, grouped, hopeless
from airflow_provider_zeus.optimizer.starts import Served, StartRun

if TYPE_CHECKING:
    from airflow_provider_zeus.optimizer.knowledge_gradient.epochs import EpochsModel
    from airflow_provider_zeus.optimizer.knowledge_gradient.gp import GaussianProcess

VERSION = "18"  # of learn(); checkpoints of another version are not read
RECURRENCES_KEPT = 100  # newest recurrences that are told apart: later tries of them are no further ones
RATES_KEPT = 16  # newest trials whose rates may count, per batch size and device
STRUCK_FOR = 10  # recurrences for which strikes bar a size the first time; each time after that it is twice as long
STRUCK_MOST = 80  # and at most so long
STRIKES = 2  # that bar a size that has reached the target
STRIKES_IN = 3  # newest runs of the size in which they count
TARGET_IS_NEW = 8  # ended runs after a change of the target during which decisions name it
UNKNOWN = ""  # device model of a trial that ended before it reported its device

Run = tuple[int, int, float]  # trial number, batch size, epochs


class Failure(NamedTuple):
    """An attempt that raised an error or died after it began, other than by out of memory."""

    number: int
    batch_size: int
    run: str  # the recurrence that it belongs to
    of_size: bool  # whether the size may be the cause; else its start is, or its row says why not (NO_STRIKE)


class Kept(NamedTuple):
    """An attempt that kept a model after another one, or in a later try of its run."""

    number: int
    batch_size: int
    run: str


@dataclass(frozen=True, kw_only=True)
class Belief:
    """What is known of a job. :func:`~airflow_provider_zeus.optimizer.learn.learn` says which trial enters where."""

    job: ZeusJob
    excluded: frozenset[int] = frozenset()  # numbers of trials that teach nothing: a person took their runs out
    newest: tuple[int, bool] = (0, False)  # highest trial number, and whether that trial died or taught nothing
    plain: tuple[int, bool] = (0, False)  # newest trial that ended, and whether nothing could have stopped it (PLAIN)
    converged: tuple[Run, ...] = ()  # newest runs that reached the target: ``job.window``, and up to half as many more
    learned: int = 0  # how many such runs there were
    stopped: tuple[Run, ...] = ()  # as many newest runs that did not: Epochs(b) > epochs
    exhausted: Mapping[int, float] = field(default_factory=dict)  # number of one that ended below its target: most
    slices: Mapping[int, str] = field(default_factory=dict)  # number of such a run: the data that it trained on
    explored: Mapping[tuple[int, int], tuple[int, bool]] = field(default_factory=dict)  # (round, b): number, converged
    listed: Mapping[int, int] = field(default_factory=dict)  # b: number of the first trial that could have chosen it
    rates: Mapping[tuple[int, Where], tuple[tuple[int, Rates], ...]] = field(default_factory=dict)  # number, rates
    seen: Mapping[tuple[int, Where], int] = field(default_factory=dict)  # newest conclusive trial of b there
    too_large: frozenset[tuple[int, str]] = frozenset()  # (b, device model): out of memory
    failures: tuple[Failure, ...] = ()  # newest ones
    kept_after: tuple[Kept, ...] = ()  # newest ones: what failed before them in their run may be a strike
    newest_kept: int = 0  # number of the newest trial that kept a model
    ran_well: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # b: newest that ended without an error
    started: tuple[tuple[int, str], ...] = ()  # newest recurrences that teach: number of the first trial, and which
    recurrences: int = 0  # how many there were
    retargeted: tuple[int, str] = (0, "")  # newest trial that had another target, and that target
    audits: tuple[int, int] = (0, 0)  # how many audits there were, and the number of the newest
    slice_size: tuple[int, float] | None = None  # (number, samples per epoch) of the newest trial that reported it
    starts: tuple[StartRun, ...] = ()  # newest runs that reported their start, or raised: as many as ``job.window``
    served: tuple[Served, ...] = ()  # how the newest models served, as many
    device: tuple[int, Where, float | None] | None = None  # number, device, MAXPOWER [W] of the newest trial

    def out_of_memory(self, batch_size: int, model: str) -> bool:
        """Whether the batch size has run out of memory on this device model or an unknown one."""
        return any((batch_size, m) in self.too_large for m in (model, UNKNOWN))

    def infeasible(self, model: str) -> frozenset[int]:
        """Batch sizes that do not fit into this device model's memory."""
        return frozenset(b for b, m in self.too_large if m in (model, UNKNOWN))

    @cached_property
    def strikes(self) -> Mapping[int, frozenset[int]]:
        """Numbers of the trials that are strikes against their batch size, by size; one for each run.

        A failure is a strike where a later attempt or try of its run kept a model at another size. Where nothing else
        kept one, or the size that did had failed in the run too, the size is not known to be the cause.
        """
        kept_in: dict[str, list[Kept]] = {}
        for kept in self.kept_after:
            kept_in.setdefault(kept.run, []).append(kept)
        strikes: dict[int, dict[str, int]] = {}
        for failure in self.failures:
            if not failure.of_size:
                continue
            later = {kept.batch_size for kept in kept_in.get(failure.run, ()) if kept.number > failure.number}
            if later - self.failed_in(failure.run) - {failure.batch_size}:
                strikes.setdefault(failure.batch_size, {})[failure.run] = failure.number
        return {b: frozenset(numbers.values()) for b, numbers in strikes.items()}

    @cached_property
    def struck(self) -> frozenset[int]:
        """Batch sizes that are barred for a while by their strikes."""
        return frozenset(b for b in self.strikes if self._is_struck(b))

    def _is_struck(self, b: int) -> bool:
        """Whether strikes bar a size now: for 10 recurrences, and for twice as long each time that it fails again.

        One strike bars a size that has never reached the target, two in three runs any other one. A run without an
        error after that clears them.
        """
        needed, runs = (STRIKES, STRIKES_IN) if b in self.reached else (1, 1)
        ends = dict.fromkeys(self.ran_well.get(b, ()), False) | dict.fromkeys(self.strikes[b], True)
        newest: list[bool] = []
        times, barred_at = 0, 0
        for number, is_strike in sorted(ends.items()):
            if times and not is_strike:
                times = 0
                newest.clear()
            newest = [*newest, is_strike][-runs:]
            if is_strike and (times or sum(newest) >= needed):
                times, barred_at = times + 1, number
        since = sum(first > barred_at for first, _ in self.started)
        return times > 0 and since < min(STRUCK_FOR * 2 ** (times - 1), STRUCK_MOST)

    def barred(self, model: str, sizes: Iterable[int]) -> frozenset[int]:
        """Batch sizes that may not run on this device model.

        Infeasible ones; and struck ones, unless no other of ``sizes`` is left.
        """
        infeasible = self.infeasible(model)
        others = set(sizes) - infeasible - self.struck
        return infeasible | self.struck if others else infeasible

    def failed_in(self, run: str) -> frozenset[int]:
        """Batch sizes that failed in an earlier attempt or try of a run."""
        return frozenset(failure.batch_size for failure in self.failures if failure.run == run)

    @property
    def failed_lately(self) -> frozenset[int]:
        """Batch sizes that failed after the newest trial that kept a model."""
        newest = (f for f in self.failures if f.number > self.newest_kept)
        return frozenset(failure.batch_size for failure in newest if failure.of_size)

    def window_start(self) -> int:
        """Number of the oldest trial in a full window of ``job.window`` converged runs; 0 while it is not full."""
        return self.converged[-self.job.window][0] if len(self.converged) >= self.job.window else 0

    @cached_property
    def by_slice(self) -> list[Slice]:
        """Runs by slice of the data, oldest first. Runs older than the converged ones that are kept do not count."""
        oldest = self.converged[0][0] if self.learned > len(self.converged) else 0
        runs = [SliceRun(*run, True) for run in self.converged]
        runs += [self._stopped(run) for run in self.stopped if run[0] >= oldest]
        return grouped(runs, self.slices, self.max_epochs)

    def _stopped(self, run: Run) -> SliceRun:
        return SliceRun(*run, False, self.exhausted.get(run[0]))

    @cached_property
    def misses(self) -> tuple[Run, ...]:
        """The ``stopped`` runs that missed their target: ``max_epochs`` were over, or their loop was left below it."""
        return tuple(run for run in self.stopped if self._stopped(run).missed(self.max_epochs))

    @cached_property
    def hopeless(self) -> frozenset[int]:
        """Numbers of the runs on slices that say nothing about batch sizes."""
        skipped = zip(self.by_slice, hopeless(self.by_slice), strict=True)
        return frozenset(run.number for item, skip in skipped if skip for run in item.runs)

    @cached_property
    def epochs(self) -> EpochsModel:
        """Posterior of log Epochs, over the job's batch sizes and all that have run."""
        from airflow_provider_zeus.optimizer.knowledge_gradient.epochs import EpochsModel

        sizes = tuple(sorted({*self.job.batch_sizes, self.job.default_batch_size, *self.newest_runs}))
        before: EpochsModel | None = self.__dict__.pop("_before", None)
        return EpochsModel(sizes, self.job.default_batch_size, self.max_epochs, self.by_slice, before)

    @property
    def gp(self) -> GaussianProcess:
        """Posterior of the next run's log Epochs."""
        return self.epochs.gp

    @cached_property
    def newest_runs(self) -> Mapping[int, int]:
        """Trial number of the newest run of each batch size among ``converged`` and ``stopped``."""
        converged = {b: n for n, b, _ in self.converged}  # ordered by number: the newest is the last
        stopped = {b: n for n, b, _ in self.stopped}
        return {b: max(converged.get(b, 0), stopped.get(b, 0)) for b in converged | stopped}

    def changed(self, changes: Mapping[str, object]) -> Self:
        """A copy with some fields changed; with ``dataclasses.replace`` a replay of 300 trials takes a third longer.

        It skips ``__init__``, and what is known of earlier slices is used again where one run is new.
        """
        new, mine = object.__new__(type(self)), self.__dict__
        new.__dict__.update({name: mine[name] for name in self.__dataclass_fields__}, **changes)
        run = _appended(self.converged, new.converged) or _appended(self.stopped, new.stopped)
        before = mine.get("by_slice")
        if run and before and before[-1].runs[-1].number < run[0]:
            slices = before.copy()
            newest = SliceRun(*run, True) if new.stopped is self.stopped else new._stopped(run)
            add(slices, newest, new.slices.get(run[0], ""), self.max_epochs)
            new.__dict__["by_slice"] = slices
            new.__dict__["_before"] = mine.get("epochs") or mine.get("_before")
        elif "by_slice" in mine and new.converged is self.converged and new.stopped is self.stopped:
            kept = ("by_slice", "epochs", "hopeless", "newest_runs", "_before")
            new.__dict__.update({name: mine[name] for name in kept if name in mine})
        return new

    @cached_property
    def reached(self) -> frozenset[int]:
        """Batch sizes that reached the target within the window."""
        return frozenset([b for _, b, _ in self.converged])

    @property
    def max_epochs(self) -> float:
        """Epochs after which a run ends, even below its target."""
        return float(self.job.max_epochs or 1)

    @property
    def changes(self) -> tuple[Change, ...]:
        """Lasting changes of Epochs within the window; what older runs showed of the level counts less."""
        return () if self.job.policy == "zeus" or not self.converged else self.epochs.newest.changes

    @property
    def era(self) -> int:
        """Number of the first trial since the last change of Epochs; 0 without a change."""
        changes = self.changes
        return changes[-1].since if changes else 0

    def age(self) -> int:
        """Runs since the last change of Epochs that were not given up: to the target, or ended below it."""
        era = self.era
        missed = sum([n >= era for n, _, _ in self.misses])
        return missed + len(self.converged) - bisect_left(self.converged, (era,))

    def last_device(self) -> DeviceInfo | None:
        """The device of the newest trial that reported one."""
        if self.device is None:
            return None
        (model, count, source), max_power_w = self.device[1:]
        return DeviceInfo(model=model, count=count, energy_source=source, max_power_w=max_power_w)

    def target_change(self) -> str | None:
        """When the target changed and what that means, while few runs to the present one have ended; else None."""
        after, earlier = self.retargeted
        if not after or sum(run[0] > after for run in (*self.converged, *self.stopped)) >= TARGET_IS_NEW:
            return None
        return Why.NEW_TARGET.of(number=after, earlier=earlier, target=self.job.target)

    def to_json(self) -> str:
        """One JSON document for a checkpoint. It does not hold what :func:`belief_tag` stands for."""
        return json.dumps(
            {
                "newest": self.newest,
                "plain": self.plain,
                "converged": self.converged,
                "learned": self.learned,
                "stopped": self.stopped,
                "exhausted": list(self.exhausted.items()),
                "slices": list(self.slices.items()),
                "explored": [[*k, *v] for k, v in self.explored.items()],
                "listed": list(self.listed.items()),
                "rates": [[*key, [[n, *rates] for n, rates in entries]] for key, entries in self.rates.items()],
                "seen": [[*k, n] for k, n in self.seen.items()],
                "too_large": sorted(self.too_large),
                "failures": self.failures,
                "kept_after": self.kept_after,
                "newest_kept": self.newest_kept,
                "ran_well": list(self.ran_well.items()),
                "started": self.started,
                "recurrences": self.recurrences,
                "retargeted": self.retargeted,
                "audits": self.audits,
                "slice_size": self.slice_size,
                "device": self.device,
                **({"starts": self.starts, "served": self.served} if self.starts or self.served else {}),
            },
            separators=(",", ":"),
            allow_nan=False,
        )

    @classmethod
    def from_json(cls, before: Belief, text: str) -> Self:
        """Read what :meth:`to_json` wrote under the same :func:`belief_tag`. ``before``: the :func:`prior` of it."""
        d = json.loads(text)
        device = d["device"]
        return cls(
            job=before.job,
            excluded=before.excluded,
            newest=tuple(d["newest"]),
            plain=tuple(d["plain"]),
            converged=tuple((n, b, e) for n, b, e in d["converged"]),
            learned=d["learned"],
            stopped=tuple((n, b, e) for n, b, e in d["stopped"]),
            exhausted=dict(d["exhausted"]),
            slices=dict(d["slices"]),
            explored={(r, b): (n, ok) for r, b, n, ok in d["explored"]},
            listed=dict(d["listed"]),
            rates={(b, tuple(w)): tuple((n, Rates(*r)) for n, *r in entries) for b, w, entries in d["rates"]},
            seen={(b, tuple(w)): n for b, w, n in d["seen"]},
            too_large=frozenset((b, m) for b, m in d["too_large"]),
            failures=tuple(Failure(*f) for f in d["failures"]),
            kept_after=tuple(Kept(*k) for k in d["kept_after"]),
            newest_kept=d["newest_kept"],
            ran_well={b: tuple(numbers) for b, numbers in d["ran_well"]},
            started=tuple((n, name) for n, name in d["started"]),
            recurrences=d["recurrences"],
            retargeted=tuple(d["retargeted"]),
            audits=tuple(d["audits"]),
            slice_size=tuple(d["slice_size"]) if d["slice_size"] else None,
            device=(device[0], tuple(device[1]), device[2]) if device else None,
            starts=tuple(StartRun(*run) for run in d.get("starts", ())),
            served=tuple(Served(*each) for each in d.get("served", ())),
        )


def _appended(before: tuple[Run, ...], after: tuple[Run, ...]) -> Run | None:
    """The last of ``after`` where that is all that differs."""
    if len(after) != len(before) + 1 or (before and (after[0] is not before[0] or after[-2] is not before[-1])):
        return None
    return after[-1]


def prior(job: ZeusJob, settings: Mapping[str, Any] | None = None) -> Belief:
    """The belief before any trial: the flat prior of section 4.3.

    :param settings: live settings; ``excluded`` names trials that are not to teach anything.
    """
    return Belief(job=job, excluded=frozenset((settings or {}).get(EXCLUDED, ())))


def belief_tag(belief: Belief) -> str:
    """All that a belief depends on besides the log: a checkpoint is read only where its tag is equal."""
    job = belief.job
    learn_from = sorted(job.learn_from)
    parts = [VERSION, job.target, job.job_version, job.window, learn_from, job.default_batch_size, job.policy]
    if belief.excluded:
        parts.append(sorted(belief.excluded))
    return json.dumps(parts)
