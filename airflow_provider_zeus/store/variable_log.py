"""The log of one job as one JSON document, for stores that can only read and write whole texts."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import reduce
from typing import Any, Self

from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.points import thinned
from airflow_provider_zeus.optimizer.policy import Belief, learn, prior
from airflow_provider_zeus.optimizer.trial import (
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
from airflow_provider_zeus.store.base import Report
from airflow_provider_zeus.store.rows import is_known, report_from_dict, report_to_dict, trial_from_dict, trial_to_dict

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
    report: Report

    def to_json(self) -> str:
        """One JSON document."""
        data = {"v": SCHEMA, "job_id": self.job_id, "attempt": self.attempt, "lease_until": self.lease_until}
        return json.dumps(data | {"report": report_to_dict(self.report)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote. Raises KeyError, TypeError or ValueError."""
        data = _versioned(text)
        beat = cls(data["job_id"], data["attempt"], data["lease_until"], report_from_dict(data["report"]))
        check_fields(beat)
        return beat

    def with_news(self, news: Report, lease_until: float) -> Self:
        """After one more heartbeat."""
        old = self.report
        report = Report(
            observation=ledger.merged(old.observation, news.observation),
            profile=summed_with_marks((*old.profile, *news.profile)),
            points=thinned([*old.points, *news.points], KEPT_POINTS),
        )
        return replace(self, lease_until=max(self.lease_until, lease_until), report=report)


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
    added: list[Trial] = field(default_factory=list)
    closed: list[Trial] = field(default_factory=list)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote. Raises KeyError, TypeError or ValueError when it did not."""
        data = _versioned(text)
        versions = {ledger.version_of(spec) for spec in data["specs"]}
        unsaid = versions.pop() if len(versions) == 1 else ""  # samples once said no version: of several, none's
        book = cls(
            job_id=data["job_id"],
            seq=data["seq"],
            newest=data["newest"],
            forgotten=data["forgotten"],
            log=[_unpacked(packed, data["job_id"], data["specs"]) for packed in data["trials"]],
            samples={
                ((m, n, source), version[0] if version else unsaid): [ProfileSample(**s) for s in kept]
                for m, n, source, kept, *version in data["samples"]
            },
            points={number: [_point(p) for p in kept] for number, kept in data["points"]},
        )
        check_fields(book, *(s for kept in book.samples.values() for s in kept))
        check_fields(*(p for points in book.points.values() for p in points))
        check("points", "whole numbers", list(book.points))
        for (model, count, source), version in book.samples:
            check("samples of a device", "int", count)
            for text in (model, source or "", version):
                check("samples of a device", "str", text)
        return book

    def to_json(self) -> str:
        """The newest 500 trials, and the power points of the newest 20."""
        self._forget()
        specs: list[Mapping[str, Any]] = []
        trials = [_packed(trial, specs) for trial in self.log]
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
                    self.job_id,
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
                seen = ledger.merged(trial.observation, beat.report.observation)
                lease = max(trial.lease_until, beat.lease_until)
                self.log[i] = replace(trial, observation=seen, lease_until=lease)

    def find(self, key: TrialKey) -> Trial | None:
        return next((t for t in self.log if t.key == key), None)

    def open_trials(self) -> list[Trial]:
        return [t for t in self.log if t.state is State.RUNNING]

    def of_task_instance(self, ti_id: str) -> list[Trial]:
        return [t for t in self.log if t.key.ti_id == ti_id]

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
        self.added.append(trial)

    def put(self, trial: Trial, *, closed: bool = False) -> None:
        i = next(i for i, t in enumerate(self.log) if t.key == trial.key)
        self.log[i] = trial
        if closed:
            self._take_in(trial.key)
            self.closed.append(trial)

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
        self.samples[of] = list(summed([*self.samples.get(of, ()), *samples]))

    def add_points(self, key: TrialKey, points: Sequence[PowerPoint]) -> None:
        trial = self.find(key)
        if trial and points:
            self.points[trial.number] = thinned([*self.points.get(trial.number, ()), *points], KEPT_POINTS)


def _packed(trial: Trial, specs: list[Mapping[str, Any]]) -> dict[str, Any]:
    """A trial without what its neighbours say too; ``specs`` grows by what it says first."""
    if trial.spec not in specs:
        specs.append(trial.spec)
    data = trial_to_dict(trial)
    for name in ("job_id", "batch_size", "phase"):
        del data[name]
    data["spec"] = specs.index(trial.spec)
    decision = trial.decision
    data["planned"] = (*decision.attempts, *decision.peeks, decision.stand_in).index(trial.planned)
    small: dict[str, Any] = {name: [_small(a) for a in data["decision"][name]] for name in ("attempts", "peeks")}
    if decision.stand_in is not None:
        small["stand_in"] = _small(data["decision"]["stand_in"])
    return data | {"decision": data["decision"] | small}


def _small(attempt: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attempt.items() if value is not None}


def _unpacked(data: dict[str, Any], job_id: str, specs: Sequence[Mapping[str, Any]]) -> Trial:
    decision = data["decision"]
    planned = [*decision["attempts"], *decision.get("peeks", ()), decision.get("stand_in")][data["planned"]]
    return trial_from_dict({**data, "job_id": job_id, "spec": specs[data["spec"]], "planned": planned})


def _versioned(text: str) -> dict[str, Any]:
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("v") != SCHEMA:
        raise ValueError(f"not a document of version {SCHEMA}")
    return data


def _point(values: Sequence[Any]) -> PowerPoint:
    t_s, power_w, limit_w, phase = values
    return PowerPoint(t_s=t_s, power_w=power_w, limit_w=limit_w, phase=phase)


def _fields(sample: ProfileSample) -> dict[str, Any]:
    return {name: getattr(sample, name) for name in ProfileSample.__slots__}
