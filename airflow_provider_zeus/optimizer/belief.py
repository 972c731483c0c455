"""The belief of a job: all that :func:`~.learn.learn` has learnt from its trial log.

A belief keeps the two factors of Eq. 6 apart: Epochs(b) of the runs that teach it, and per device
the rates behind EpochCost(b). Each field keeps only its newest or its oldest entries by *trial
number*. So a belief does not grow with the log, and does not depend on the order in which trials
arrive, except for a run that comes after half a window has gone.
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
from airflow_provider_zeus.optimizer.slices import Change, Slice, SliceRun, add, in_slices
from airflow_provider_zeus.optimizer.starts import Served, StartRun

if TYPE_CHECKING:
    from airflow_provider_zeus.optimizer.knowledge_gradient.epochs import EpochsModel
    from airflow_provider_zeus.optimizer.knowledge_gradient.gp import GaussianProcess

# A change of learn() raises it, so that no checkpoint by other rules is read.
VERSION = "21"
# A later try of a run is no further recurrence, so the newest ones are told apart.
RECURRENCES_KEPT = 100
RATES_KEPT = 16  # hardware and code change: older rates say little
# A size that keeps failing costs a run at each return, so each pause is twice as long.
STRUCK_FOR = 10
STRUCK_MOST = 80  # code and data change: no size is barred for ever
STRIKES = 2  # one failure may be that of a host
STRIKES_IN = 3
TARGET_IS_NEW = 8  # later it is no news
UNKNOWN = ""

Run = tuple[int, int, float]
Entries = tuple[tuple[int, Rates], ...]
RatesBySize = Mapping[tuple[int, Where], Entries]


def model_of(device: DeviceInfo | None) -> str:
    """The model of a device, of one that is not known, too."""
    return UNKNOWN if device is None else device.model


def where_of(device: DeviceInfo | None) -> Where | None:
    """The kind of device whose rates are comparable; None if it is not known."""
    return None if device is None else device.where


class Failure(NamedTuple):
    """An attempt that raised an error or died after it began, other than by out of memory."""

    number: int
    batch_size: int
    run: str
    # A failure by a start, or by a host (NO_STRIKE), says nothing against the size.
    of_size: bool


class Kept(NamedTuple):
    """An attempt that kept a model after another one, or in a later try of its run."""

    number: int
    batch_size: int
    run: str


@dataclass(frozen=True, kw_only=True)
class Belief:
    """What is known of a job.

    :func:`~airflow_provider_zeus.optimizer.learn.learn` says which trial enters which field. A
    tuple of a trial's number and what it showed is of the newest trial that showed it.
    """

    job: ZeusJob
    # A person knows that these runs went wrong: they must teach nothing.
    excluded: frozenset[int] = frozenset()
    # After a trial that died or taught nothing, the next run has to end with a model.
    newest: tuple[int, bool] = (0, False)
    # A try that nothing can stop must not follow one that nothing could stop.
    plain: tuple[int, bool] = (0, False)
    # Up to half a window more is kept, so that not each run has to forget one.
    converged: tuple[Run, ...] = ()
    learned: int = 0
    stopped: tuple[Run, ...] = ()  # lower bounds: without them sizes that fail would look cheap
    # By number: a run that ended below its target is judged by the ``max_epochs`` of its time.
    exhausted: Mapping[int, float] = field(default_factory=dict)
    # Runs on one slice tell of its difficulty together.
    slices: Mapping[int, str] = field(default_factory=dict)
    # By round and b, with the first number: round 2 walks over what converged in round 1.
    explored: Mapping[tuple[int, int], tuple[int, bool]] = field(default_factory=dict)
    # By b, the first trial that could choose it: one that joins after exploration is due a try.
    listed: Mapping[int, int] = field(default_factory=dict)
    rates: RatesBySize = field(default_factory=dict)
    # A size that converged elsewhere, or here a whole window ago, is due a run on this device.
    newest_there: Mapping[tuple[int, Where], int] = field(default_factory=dict)
    too_large: frozenset[tuple[int, str]] = frozenset()  # by model: a larger one may hold it
    failures: tuple[Failure, ...] = ()
    # What failed before a kept model in the same run may be a strike against its size.
    kept_after: tuple[Kept, ...] = ()
    newest_kept: int = 0
    # A run that ends without an error clears the strikes of its size.
    ran_well: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    # People know a run by its first trial's number; a retry is told by the run's name.
    started: tuple[tuple[int, str], ...] = ()
    recurrences: int = 0
    retargeted: tuple[int, str] = (0, "")  # epochs to another target do not compare
    audits: tuple[int, int] = (0, 0)  # audits keep a distance, and a share of what the job spends
    # With its trial's number: trials may arrive in any order, and the newest one counts.
    slice_size: tuple[int, float] | None = None
    # What a start is worth changes with the data: as many as ``job.window``.
    starts: tuple[StartRun, ...] = ()
    served: tuple[Served, ...] = ()
    # A decision whose device is not known yet is made for the newest trial's.
    device: tuple[int, Where, float | None] | None = None

    def infeasible(self, model: str) -> frozenset[int]:
        """Batch sizes that ran out of memory on this device model or an unknown one."""
        return frozenset(b for b, m in self.too_large if m in (model, UNKNOWN))

    def run_of(self, number: int) -> int:
        """Number of the first trial of the run: people know the run by it.

        A trial that is not the first of its run is remembered as such if it kept a model.
        """
        run = next((kept.run for kept in self.kept_after if kept.number == number), None)
        return next((first for first, name in self.started if name == run), number)

    @cached_property
    def strikes(self) -> Mapping[int, frozenset[int]]:
        """Numbers of the trials that are strikes against a batch size, one for each run.

        A failure is a strike if a later attempt or try of its run kept a model at another size.
        If nothing else kept one, or the size that did had failed in the run too,
        the size is not known to be the cause.
        """
        kept_in: dict[str, list[Kept]] = {}
        for kept in self.kept_after:
            kept_in.setdefault(kept.run, []).append(kept)
        strikes: dict[int, dict[str, int]] = {}
        for failure in self.failures:
            if not failure.of_size:
                continue
            later = {
                kept.batch_size
                for kept in kept_in.get(failure.run, ())
                if kept.number > failure.number
            }
            if later - self.failed_in(failure.run) - {failure.batch_size}:
                strikes.setdefault(failure.batch_size, {})[failure.run] = failure.number
        return {b: frozenset(numbers.values()) for b, numbers in strikes.items()}

    @cached_property
    def struck(self) -> frozenset[int]:
        """Batch sizes that are barred for a while by their strikes."""
        return frozenset(b for b in self.strikes if self._is_struck(b))

    def _is_struck(self, b: int) -> bool:
        """Whether strikes bar a size now.

        They do for 10 recurrences, and for twice as long each time that it fails again.

        One strike bars a size that has never reached the target, two in three runs any other one. A
        run without an error after that clears them.
        """
        needed = runs = 1
        if b in self.reached:
            needed = STRIKES
            runs = STRIKES_IN
        ends = dict.fromkeys(self.ran_well.get(b, ()), False) | dict.fromkeys(self.strikes[b], True)
        newest: list[bool] = []
        times = 0
        barred_at = 0
        for number, is_strike in sorted(ends.items()):
            if times and not is_strike:
                times = 0
                newest.clear()
            newest = [*newest, is_strike][-runs:]
            is_barred = times > 0 or sum(newest) >= needed
            if is_strike and is_barred:
                times += 1
                barred_at = number
        since = sum(first > barred_at for first, _ in self.started)
        return times > 0 and since < min(STRUCK_FOR * 2 ** (times - 1), STRUCK_MOST)

    def barred(self, model: str, sizes: Iterable[int]) -> frozenset[int]:
        """Batch sizes that may not run on this device model.

        Infeasible ones; and struck ones, unless no other of ``sizes`` is left.
        """
        infeasible = self.infeasible(model)
        others = set(sizes) - infeasible - self.struck
        if not others:
            return infeasible
        return infeasible | self.struck

    def failed_in(self, run: str) -> frozenset[int]:
        """Batch sizes that failed in an earlier attempt or try of a run."""
        return frozenset(failure.batch_size for failure in self.failures if failure.run == run)

    @property
    def failed_lately(self) -> frozenset[int]:
        """Batch sizes that failed after the newest trial that kept a model."""
        newest = (f for f in self.failures if f.number > self.newest_kept)
        return frozenset(failure.batch_size for failure in newest if failure.of_size)

    @property
    def why_another(self) -> Why:
        """The sentence about the attempt after a try: only a ZeusRun can give a try up."""
        if self.plain[1]:
            return Why.AFTER_MISS
        return Why.AFTER_TRY

    def window_start(self) -> int:
        """Number of the oldest trial in the window of converged runs; 0 until it is full."""
        if len(self.converged) < self.job.window:
            return 0
        return self.converged[-self.job.window][0]

    @cached_property
    def by_slice(self) -> list[Slice]:
        """Runs by slice of the data, oldest first.

        Runs older than the converged ones that are kept do not count.
        """
        oldest = self.converged[0][0] if self.learned > len(self.converged) else 0
        runs = [SliceRun(*run, True) for run in self.converged]
        runs += [self._stopped(run) for run in self.stopped if run[0] >= oldest]
        return in_slices(runs, self.slices, self.max_epochs)

    def _stopped(self, run: Run) -> SliceRun:
        return SliceRun(*run, False, self.exhausted.get(run[0]))

    @cached_property
    def misses(self) -> tuple[Run, ...]:
        """The ``stopped`` runs that trained to an end below their target."""
        return tuple(run for run in self.stopped if self._stopped(run).missed(self.max_epochs))

    def runs_since_change(self, b: int) -> int:
        """How many runs of a batch size teach its epochs as the data are now."""
        era = self.era
        return sum(size == b and n >= era for n, size, _ in (*self.converged, *self.stopped))

    def missed_lately(self, b: int) -> int:
        """How many complete runs of a size have missed the target since it last reached it."""
        newest = max((n for n, size, _ in self.converged if size == b), default=0)
        return sum(n > newest for n, size, _ in self.misses if size == b)

    @cached_property
    def epochs(self) -> EpochsModel:
        """Posterior of log Epochs, over the job's batch sizes and all that have run."""
        from airflow_provider_zeus.optimizer.knowledge_gradient.epochs import EpochsModel

        sizes = tuple(
            sorted({*self.job.batch_sizes, self.job.default_batch_size, *self.newest_runs})
        )
        before: EpochsModel | None = self.__dict__.pop("_before", None)
        return EpochsModel(
            sizes, self.job.default_batch_size, self.max_epochs, slices=self.by_slice, before=before
        )

    @property
    def gp(self) -> GaussianProcess:
        """Posterior of the next run's log Epochs."""
        return self.epochs.gp

    @cached_property
    def newest_runs(self) -> Mapping[int, int]:
        """Trial number of the newest run of each batch size among ``converged`` and ``stopped``."""
        return {b: n for n, b, _ in sorted((*self.converged, *self.stopped))}

    def changed(self, changes: Mapping[str, object]) -> Self:
        """A copy with some fields changed.

        With ``dataclasses.replace`` a replay of 300 trials takes a third longer: this skips
        ``__init__``, and uses the posterior of earlier slices again if one run is new.
        """
        new = object.__new__(type(self))
        mine = self.__dict__
        new.__dict__.update({name: mine[name] for name in self.__dataclass_fields__}, **changes)
        if new.converged is self.converged and new.stopped is self.stopped:
            of_runs = ("by_slice", "epochs", "newest_runs", "_before")
            new.__dict__.update({name: mine[name] for name in of_runs if name in mine})
            return new
        run = _appended(self.converged, new.converged) or _appended(self.stopped, new.stopped)
        before = mine.get("by_slice")
        if not run or not before:
            return new
        number = run[0]
        if before[-1].runs[-1].number < number:
            slices = before.copy()
            newest = SliceRun(*run, True) if new.stopped is self.stopped else new._stopped(run)
            add(slices, newest, new.slices.get(number, ""), self.max_epochs)
            new.__dict__["by_slice"] = slices
            new.__dict__["_before"] = mine.get("epochs") or mine.get("_before")
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
        """Lasting changes of Epochs within the window: older runs count less."""
        if self.job.policy == "zeus" or not self.converged:
            return ()
        return self.epochs.changes

    @property
    def era(self) -> int:
        """Number of the first trial since the last change of Epochs; 0 without a change."""
        changes = self.changes
        return changes[-1].since if changes else 0

    def age(self) -> int:
        """Runs since the last change of Epochs that were not given up."""
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
        """A sentence about a new target, until a few runs to it have ended; then None."""
        after, earlier = self.retargeted
        runs = sum(number > after for number, _, _ in (*self.converged, *self.stopped))
        if not after or runs >= TARGET_IS_NEW:
            return None
        return Why.NEW_TARGET.of(run=self.run_of(after), earlier=earlier, target=self.job.target)

    def to_json(self) -> str:
        """One JSON document for a checkpoint: the fields in which something was learnt.

        It does not hold what :func:`belief_tag` stands for.
        """
        learnt: dict[str, object] = {}
        for name in self.__dataclass_fields__.keys() - {"job", "excluded"}:
            value = getattr(self, name)
            if isinstance(value, Mapping):
                value = list(value.items())
            if value:
                learnt[name] = value
        # Of all these only a set is no JSON; sorted, since its order is any.
        return json.dumps(
            learnt, separators=(",", ":"), allow_nan=False, sort_keys=True, default=sorted
        )

    @classmethod
    def from_json(cls, before: Belief, text: str) -> Self:
        """Read what :meth:`to_json` wrote under the same :func:`belief_tag`.

        ``before``: the :func:`prior` of it.
        """
        fields: dict[str, Any] = {
            name: _as_tuples(value) for name, value in json.loads(text).items()
        }
        for name, entries in fields.items():
            if isinstance(getattr(before, name), Mapping):
                fields[name] = dict(entries)
            elif name in _RECORDS:
                fields[name] = tuple(_RECORDS[name](*entry) for entry in entries)
        rates = fields.get("rates", {})
        for key, entries in rates.items():
            rates[key] = tuple((n, Rates(*of_run)) for n, of_run in entries)
        too_large = frozenset(fields.pop("too_large", ()))
        return cls(job=before.job, excluded=before.excluded, too_large=too_large, **fields)


_RECORDS = {"failures": Failure, "kept_after": Kept, "starts": StartRun, "served": Served}


def _as_tuples(value: Any) -> Any:
    """What JSON has read, with a tuple in place of each list."""
    if isinstance(value, list):
        return tuple(map(_as_tuples, value))
    return value


def _appended(before: tuple[Run, ...], after: tuple[Run, ...]) -> Run | None:
    """The last run of ``after`` if nothing else differs."""
    if len(after) != len(before) + 1:
        return None
    same_ends = not before or (after[0] is before[0] and after[-2] is before[-1])
    return after[-1] if same_ends else None


def prior(job: ZeusJob, settings: Mapping[str, Any] | None = None) -> Belief:
    """The belief before any trial: the flat prior of section 4.3.

    :param settings: live settings; ``excluded`` names trials that are not to teach anything.
    """
    return Belief(job=job, excluded=frozenset((settings or {}).get(EXCLUDED, ())))


def belief_tag(belief: Belief) -> str:
    """All that a belief depends on besides the log: a checkpoint of another tag is not read."""
    job = belief.job
    learn_from = sorted(job.learn_from)
    parts = [VERSION, job.target, job.job_version, job.window, learn_from]
    parts += [job.default_batch_size, job.policy]
    if belief.excluded:
        parts.append(sorted(belief.excluded))
    return json.dumps(parts)
