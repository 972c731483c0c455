"""The log of one job as one JSON document, for stores that can only read and write whole texts."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from functools import reduce
from typing import Any, Self

from airflow_provider_zeus.optimizer.bounds import MOST_SAMPLES, few_samples
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.points import thinned
from airflow_provider_zeus.optimizer.policy import Belief, learn, prior
from airflow_provider_zeus.optimizer.trial import (
    UNSAID_LEASE_S,
    PowerPoint,
    ProfileSample,
    State,
    Trial,
    TrialKey,
    Where,
    summed,
    summed_with_marks,
)
from airflow_provider_zeus.optimizer.typed import check, check_fields
from airflow_provider_zeus.store import ledger
from airflow_provider_zeus.store.base import Report, Unreadable
from airflow_provider_zeus.store.figures import merged
from airflow_provider_zeus.store.rows import (
    DAMAGE,
    is_known,
    report_from_dict,
    report_to_dict,
    trial_from_dict,
    trial_to_dict,
    unreadable,
)
from airflow_provider_zeus.visible import visible

SCHEMA = 1
KEPT_TRIALS = 500
KEPT_POINTS = 100  # of one trial, and of the newest POINTED trials only: the whole log is written at each question
POINTED = 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Beat:
    """What the heartbeats of an open trial said, under a key of its own: the log is not rewritten every 15 s."""

    job_id: str
    attempt: int
    lease_until: float
    lease_s: float
    report: Report

    @classmethod
    def of(cls, trial: Trial, before: Self | None = None) -> Self:
        """The beat of an open trial as it is now; samples and points of the one ``before`` stay."""
        seen = trial.observation
        report = replace(before.report, observation=seen) if before else Report(observation=seen)
        return cls(trial.job_id, trial.key.attempt, trial.lease_until, trial.lease_s, report)

    def to_json(self) -> str:
        """One JSON document."""
        data = {"v": SCHEMA, "job_id": self.job_id, "attempt": self.attempt}
        data |= {"lease_until": self.lease_until, "lease_s": self.lease_s, "report": report_to_dict(self.report)}
        return json.dumps(data, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote. Raises KeyError, TypeError or ValueError."""
        data = _versioned(text)
        lease_s = data.get("lease_s", UNSAID_LEASE_S)
        beat = cls(data["job_id"], data["attempt"], data["lease_until"], lease_s, report_from_dict(data["report"]))
        check_fields(beat)
        return beat

    def with_news(self, news: Report, now: float, lease_s: float) -> Self:
        """After one more heartbeat."""
        old = self.report
        report = Report(
            observation=merged(old.observation, news.observation),
            profile=few_samples(summed_with_marks((*old.profile, *news.profile))),
            points=thinned([*old.points, *news.points], KEPT_POINTS),
        )
        until, length_s = ledger.lease_after(self.lease_until, self.lease_s, now, lease_s)
        return replace(self, lease_until=until, lease_s=length_s, report=report)


@dataclass(slots=True)
class VariableBook:
    """:class:`~airflow_provider_zeus.store.book.Book` in memory, read from and written to one text."""

    job_id: str
    now: float = 0.0
    seq: int = 0
    newest: int = 0
    forgotten: int = 0  # older trials that are no longer here
    log: list[Trial] = field(default_factory=list)  # in order of number
    samples: dict[tuple[Where, str], list[ProfileSample]] = field(
        default_factory=dict
    )  # by job version too; oldest first
    points: dict[int, list[PowerPoint]] = field(default_factory=dict)  # by trial number
    beats: dict[TrialKey, Beat] = field(default_factory=dict)  # of open trials
    unread: list[tuple[Any, Unreadable]] = field(default_factory=list)  # trials that are kept as they are
    specs: list[Any] = field(default_factory=list)  # that those refer to
    beating: dict[TrialKey, Beat] = field(default_factory=dict)  # to be written
    closed: list[Trial] = field(default_factory=list)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote. Raises KeyError, TypeError or ValueError when it did not."""
        data = _versioned(text)
        book = cls(job_id=data["job_id"], seq=data["seq"], newest=data["newest"], forgotten=data["forgotten"])
        check_fields(book)
        book._read_trials(data["trials"], data["specs"])
        versions = {ledger.version_of(spec) for spec in data["specs"] if isinstance(spec, Mapping)}
        unsaid = versions.pop() if len(versions) == 1 else ""  # samples once said no version: of several, none's
        for of_device in data["samples"]:
            with suppress(*DAMAGE):
                of, kept = _samples(of_device, unsaid)
                book.samples[of] = kept
        for of_trial in data["points"]:
            with suppress(*DAMAGE):
                number, points = of_trial[0], [_point(p) for p in of_trial[1]]
                check("points", "whole numbers", [number])
                book.points[number] = points
        return book

    def _read_trials(self, packed: Sequence[Any], specs: Sequence[Any]) -> None:
        """One damaged trial does not lose the others; it is written back as it is, since a person may repair it."""
        for each in packed:
            try:
                self.log.append(_unpacked(each, self.job_id, specs))
            except DAMAGE as error:
                known = {**each, "job_id": self.job_id} if isinstance(each, dict) else {"job_id": self.job_id}
                self.unread.append((each, unreadable(known, error)))
        self.log.sort(key=lambda trial: trial.number)
        self.specs = list(specs) if self.unread else []

    def to_json(self) -> str:
        """The newest 500 trials, and the power points of the newest 20."""
        self._forget()
        specs: list[Any] = list(self.specs)
        trials = [*(packed for packed, _ in self.unread), *(_packed(trial, specs) for trial in self.log)]
        data = {
            "v": SCHEMA,
            "job_id": self.job_id,
            "seq": self.seq,
            "newest": self.newest,
            "forgotten": self.forgotten,
            "specs": specs,
            "trials": trials,
            "samples": [[*device, [_fields(s) for s in kept], of] for (device, of), kept in self.samples.items()],
            "points": [[n, [astuple(p) for p in kept]] for n, kept in self.points.items()],
        }
        return json.dumps(data, separators=(",", ":"))

    def _forget(self) -> None:
        more = len(self.log) - KEPT_TRIALS
        if more > 0:
            if not self.forgotten:
                log.warning(
                    "Job %s: the Variable store keeps the newest %d trials and forgets older ones from now on; "
                    "use PostgreSQL to keep all.",
                    visible(self.job_id),
                    KEPT_TRIALS,
                )
            del self.log[:more]
            self.forgotten += more
        self.points = {n: kept for n, kept in self.points.items() if n > self.newest - POINTED}

    def overlay(self, beats: Mapping[TrialKey, Beat]) -> None:
        """Take in what the heartbeats of open trials said."""
        self.beats = dict(beats)
        for i, trial in enumerate(self.log):
            beat = beats.get(trial.key)
            if beat and trial.state is State.RUNNING:
                seen = merged(trial.observation, beat.report.observation)
                self.log[i] = replace(trial, observation=seen, lease_until=beat.lease_until, lease_s=beat.lease_s)

    def find(self, key: TrialKey) -> Trial | None:
        return next((t for t in self.log if t.key == key), None)

    def open_trials(self) -> list[Trial]:
        return [t for t in self.log if t.state is State.RUNNING]

    def of_task_instance(self, ti_id: str) -> list[Trial]:
        return [t for t in self.log if t.key.ti_id == ti_id]

    def next_attempt(self, ti_id: str) -> int:
        taken = [t.key.attempt for t in self.of_task_instance(ti_id)]
        for packed, _ in self.unread:
            attempt = packed.get("attempt") if isinstance(packed, dict) and packed.get("ti_id") == ti_id else None
            taken += [attempt] if isinstance(attempt, int) else []
        return max(taken, default=0) + 1

    def of_run(self, dag_id: str, run_id: str) -> list[Trial]:
        return [t for t in self.log if (t.origin.dag_id, t.origin.run_id) == (dag_id, run_id)]

    def belief(self, job: ZeusJob, oldest_open: int | None) -> Belief:
        return reduce(learn, filter(is_known, self.log), prior(job))

    def profile(self, device: Where | None, job_version: str) -> tuple[ProfileSample, ...]:
        if device is None:
            return ()
        own = {t.key for t in self.log if ledger.version_of(t.spec) == job_version}
        here = [b.report for key, b in self.beats.items() if key in own and b.report.observation.where == device]
        kept = self.samples.get((device, job_version), ())
        return summed([*kept, *(s for report in here for s in report.profile)])

    def limits_found(self) -> Mapping[str, tuple[float, float]]:
        seen = ((t.state, t.observation) for t in self.log if t.observation.limit_found_w is not None)
        return ledger.limits_left((o.gpu_uuid, state, o.limit_found_w, o.power_limit_w) for state, o in seen)

    def add(self, trial: Trial) -> None:
        for key in [k for k in self.beats if k.ti_id == trial.key.ti_id]:
            self._take_in(key)  # the beat's key is the task instance's: the new attempt's takes its place
        self.log.append(trial)
        self.newest = trial.number
        self._keep_beat(trial)

    def put(self, trial: Trial, *, relearn: bool = False) -> None:
        i = next(i for i, t in enumerate(self.log) if t.key == trial.key)
        self.log[i] = trial
        if trial.state is State.RUNNING:
            self._keep_beat(trial)
        else:
            self._take_in(trial.key)
            self.closed.append(trial)

    def _keep_beat(self, trial: Trial) -> None:
        """Its lease and figures go under the key of its task instance, unless another attempt's lie there."""
        if not any(key.ti_id == trial.key.ti_id and key != trial.key for key in self.beats):
            beat = Beat.of(trial, self.beats.get(trial.key))
            self.beats[trial.key] = self.beating[trial.key] = beat

    def _take_in(self, key: TrialKey) -> None:
        beat, trial = self.beats.pop(key, None), self.find(key)
        if beat and trial:
            self.add_samples(trial, beat.report.profile)
            self.add_points(key, beat.report.points)

    def add_samples(self, trial: Trial, samples: Iterable[ProfileSample]) -> None:
        device = trial.observation.where
        if device is None:
            return
        of = device, ledger.version_of(trial.spec)
        self.samples[of] = list(summed([*self.samples.get(of, ()), *samples])[:MOST_SAMPLES])

    def add_points(self, key: TrialKey, points: Sequence[PowerPoint]) -> None:
        trial = self.find(key)
        if trial and points:
            self.points[trial.number] = thinned([*self.points.get(trial.number, ()), *points], KEPT_POINTS)


def _packed(trial: Trial, specs: list[Any]) -> dict[str, Any]:
    """A trial without what its neighbours say too; ``specs`` grows by what it says first."""
    if trial.spec not in specs:
        specs.append(trial.spec)
    data = trial_to_dict(trial)
    for name in ("job_id", "batch_size", "phase"):
        del data[name]
    data["spec"] = specs.index(trial.spec)
    decision = trial.decision
    data["planned"] = (*decision.attempts, decision.stand_in).index(trial.planned)
    small: dict[str, Any] = {"attempts": [_small(a) for a in data["decision"]["attempts"]]}
    if decision.stand_in is not None:
        small["stand_in"] = _small(data["decision"]["stand_in"])
    return data | {"decision": data["decision"] | small}


def _small(attempt: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attempt.items() if value is not None}


def _unpacked(data: dict[str, Any], job_id: str, specs: Sequence[Any]) -> Trial:
    decision = data["decision"]
    older = decision.get("peeks", ())  # of a log from before 0.1.0
    planned = [*decision["attempts"], *older, decision.get("stand_in")][data["planned"]]
    return trial_from_dict({**data, "job_id": job_id, "spec": specs[data["spec"]], "planned": planned})


def _versioned(text: str) -> dict[str, Any]:
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("v") != SCHEMA:
        raise ValueError(f"not a document of version {SCHEMA}")
    return data


def _samples(of_device: Sequence[Any], unsaid: str) -> tuple[tuple[Where, str], list[ProfileSample]]:
    model, count, source, kept, *version = of_device
    of_version = version[0] if version else unsaid
    samples = [ProfileSample(**s) for s in kept]
    check_fields(*samples)
    check("samples of a device", "int", count)
    for text in (model, source or "", of_version):
        check("samples of a device", "str", text)
    return ((model, count, source), of_version), samples


def _point(values: Sequence[Any]) -> PowerPoint:
    t_s, power_w, limit_w, phase = values
    point = PowerPoint(t_s=t_s, power_w=power_w, limit_w=limit_w, phase=phase)
    check_fields(point)
    return point


def _fields(sample: ProfileSample) -> dict[str, Any]:
    return {name: getattr(sample, name) for name in ProfileSample.__slots__}
