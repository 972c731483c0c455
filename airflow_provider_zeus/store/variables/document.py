"""JSON documents of the Variable store: the heartbeats of an open trial, and the log of a job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, ClassVar, Self

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.partial_sums import Report, joined, merged, resolved
from airflow_provider_zeus.model.trial import Trial, TrialKey
from airflow_provider_zeus.model.wire import Count, Name, decode, encode, parse, without_none
from airflow_provider_zeus.store import rules
from airflow_provider_zeus.store.rows import DAMAGE, trial_to_dict

SCHEMA = 2
# Stored without these names, by position: a newer version may only append.
SAMPLES = ("device_model", "device_count", "energy_source", "samples", "job_version")
KEPT_POINTS = 100  # of one trial: the whole log is written at each question
_CHECKPOINT = ',"checkpoint":'

log = guarded_log(__name__)


def _dumped(data: Mapping[str, Any]) -> str:
    """A document of this version."""
    return json.dumps({"v": SCHEMA, **data}, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """Lease and sums of an open trial, in a Variable of their own: the log is not rewritten every
    15 s.
    """

    job_id: Name
    attempt: Count
    lease_until: float
    lease_s: float
    report: Report

    reads_newer: ClassVar[bool] = True

    @classmethod
    def of(cls, trial: Trial) -> Self:
        """The beat of an open trial as it stands in the log."""
        return cls(
            job_id=trial.job_id,
            attempt=trial.key.attempt,
            lease_until=trial.lease_until,
            lease_s=trial.lease_s,
            report=Report(observation=trial.observation),
        )

    def to_json(self) -> str:
        """One JSON document."""
        return _dumped(encode(self))

    @classmethod
    def read(cls, text: str | None) -> Self | None:
        """The beat of a Variable; None if it is damaged: the next heartbeat rewrites it."""
        if text is None:
            return None
        try:
            return decode(cls, parse(text, SCHEMA, nan=True))
        except DAMAGE as error:
            log.warning(
                "A Variable zeus-beat:... does not hold what this version writes (%s).", error
            )
            return None

    def with_heartbeat(
        self, key: TrialKey, report: Report, now: float, lease_s: float
    ) -> Self | None:
        """The beat after one more heartbeat; None if that is of another attempt or start."""
        held = self.report.observation
        is_another_start = rules.another_start(held, report.observation.start_id)
        if self.attempt != key.attempt or is_another_start:
            return None
        until, length_s = rules.lease_after(self.lease_until, self.lease_s, now, lease_s)
        news = resolved(held, report)
        sums = joined((self.report, news), most_points=KEPT_POINTS)
        return replace(self, lease_until=until, lease_s=length_s, report=sums)

    def on(self, trial: Trial) -> Trial:
        """The open trial with the lease and the sums of its beat."""
        observation = merged(trial.observation, self.report.observation)
        return replace(
            trial, observation=observation, lease_until=self.lease_until, lease_s=self.lease_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDocument:
    """The log of one job.

    Its parts are read one by one, so that a damaged one does not lose the others.
    """

    job_id: Name
    seq: int
    newest: int
    forgotten: int  # the count shows that a history is not whole
    specs: Sequence[Any]  # a job is long, and many trials have the same
    trials: Sequence[Any]
    samples: Sequence[Any]
    points: Sequence[Any]
    events: Any = None
    checkpoint: Sequence[Any] = ()  # without it each question would learn the whole log again

    reads_newer: ClassVar[bool] = True

    @classmethod
    def empty(cls, job_id: str) -> Self:
        """The log of a job that has no trial."""
        return cls(
            job_id=job_id, seq=0, newest=0, forgotten=0, specs=(), trials=(), samples=(), points=()
        )

    def to_json(self) -> str:
        """One JSON document. The checkpoint stands last, with a digest of all before it."""
        text = _dumped(
            {name: getattr(self, name) for name in self.__slots__ if name != "checkpoint"}
        )
        if not self.checkpoint:
            return text
        return f"{text[:-1]}{_CHECKPOINT}{json.dumps([_digest(text[:-1]), *self.checkpoint])}}}"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the text of :meth:`to_json`. Raises TypeError or ValueError.

        A checkpoint is left out if the log was changed by hand since.
        """
        document = decode(cls, parse(text, SCHEMA, nan=True))
        digest, *checkpoint = document.checkpoint or ("",)
        valid = digest == _digest(text.rpartition(_CHECKPOINT)[0])
        return replace(document, checkpoint=tuple(checkpoint) if valid else ())


def _digest(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()[:16]


def packed(trial: Trial, specs: list[Any]) -> dict[str, Any]:
    """A trial without the facts that the log says elsewhere; ``specs`` grows by the job's spec if
    it is new.

    Its decision holds the attempt that it ran, also if the decision's attempts were pruned.
    """
    decision = trial.decision
    if trial.planned not in decision.in_order:
        decision = replace(decision, attempts=(trial.planned,), stand_in=None, reliefs=())
    data = trial_to_dict(replace(trial, decision=decision))
    for name in ("job_id", "batch_size", "phase"):
        data.pop(name, None)  # a batch size of None was not written
    small = data["decision"]
    small["attempts"] = [_without_none(attempt) for attempt in small["attempts"]]
    if decision.stand_in is not None:
        small["stand_in"] = _without_none(small["stand_in"])
    small["reliefs"] = [_without_none(attempt) for attempt in small["reliefs"]]
    data["spec"] = position(data["spec"], specs)
    data["planned"] = (*decision.attempts, decision.stand_in, *decision.reliefs).index(
        trial.planned
    )
    return data


def position(spec: Any, specs: list[Any]) -> int:
    """The position of a spec in a list, which grows by one that is new."""
    if spec not in specs:
        specs.append(spec)
    return specs.index(spec)


def _without_none(attempt: Mapping[str, Any]) -> dict[str, Any]:
    # Written even if None (measured alone): without the name the trial would count as damaged.
    always = {"batch_size": attempt["batch_size"]}
    return always | without_none(attempt)
