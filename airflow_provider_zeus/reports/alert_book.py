"""What is kept of a job's events: open ones and a history, who took them, and what is silenced. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from airflow_provider_zeus.model.size_bounds import truncated
from airflow_provider_zeus.model.wire import decode, encode, parse
from airflow_provider_zeus.reports.alerts import Event

_MOST_NAME, _MOST_SENTENCE = 200, 600  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One event from its beginning to its end. Times are seconds since the epoch; ``ended_s`` None: it is open."""

    kind: str
    name: str
    since: int | None = None
    sentence: str
    remedy: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    dag_id: str
    run_id: str  # in which it was seen first
    began_s: float
    ended_s: float | None = None
    sent_to: Sequence[str] = ()  # names of the notifiers that took it
    sent_s: float | None = None
    tries: int = 0  # to send it
    not_sent: str = ""  # why some notifier, or all, did not

    @property
    def identity(self) -> tuple[str, str, str, int | None]:
        """What tells it from the other open events of its job."""
        return self.name, self.dag_id, self.run_id, self.since

    def is_of(self, event: Event, dag_id: str) -> bool:
        """Whether this is the record of an event. ``dag_id``: of the run that looked, where no trial showed it."""
        origin = event.origin
        if self.name != event.name[:_MOST_NAME] or self.dag_id != (origin.dag_id if origin else dag_id):
            return False
        return origin is None or event.moves or self.run_id == origin.run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Who silenced a kind of event, and when."""

    by: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertBook:
    """Records of one job, oldest first, and its silenced kinds of event."""

    records: Sequence[Record] = ()
    silenced: Mapping[str, Silence] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str | None) -> Self:
        """Read a book; an empty one where there is no text. Raises ValueError for what is none, or no UTF-8."""
        book = decode(cls, parse(text, 1), newer=True) if text and text.strip() else cls()
        json.dumps(encode(book), ensure_ascii=False).encode()
        return book

    def to_json(self) -> str:
        """The book as text."""
        return json.dumps({"v": 1, **encode(self)})

    @property
    def open(self) -> list[Record]:
        """The events that hold."""
        return [r for r in self.records if r.ended_s is None]

    def updated(
        self, events: Sequence[Event], *, dag_id: str, run_id: str, now_s: float, kinds: Collection[str], most: int = 50
    ) -> Self:
        """The book after a look at the job: new events are open, those that no longer hold have ended.

        An event that is open stays the same one; its sentence becomes the newest. With another origin it is another
        event: that of one DAG is never reported as that of another.

        :param dag_id, run_id: of the run that looked, for events that no trial showed: other DAGs do not end these.
        :param kinds: that were looked at; events of other kinds stay as they are.
        :param most: records kept: those that are open, and the newest others.
        """
        begun, records = list(events), []
        for r in self.records:
            event = next((e for e in begun if r.ended_s is None and r.is_of(e, dag_id)), None)
            if event is not None:
                begun.remove(event)
                r = replace(r, sentence=truncated(event.sentence, _MOST_SENTENCE), figures=dict(event.figures))
            elif r.ended_s is None and r.kind in kinds and (r.since is not None or r.dag_id == dag_id):
                r = replace(r, ended_s=now_s)
            records.append(r)
        records += [_begun(e, dag_id, run_id, now_s) for e in begun]
        ended = [r for r in records if r.ended_s is not None]
        gone = ended[: max(len(records) - most, 0)]
        return replace(self, records=tuple(r for r in records if r not in gone))

    def due(self, notifiers: Collection[str]) -> list[Record]:
        """Open events that one of these notifiers has not taken yet, without silenced kinds."""
        return [r for r in self.open if r.kind not in self.silenced and not set(notifiers) <= {*r.sent_to}]

    def noted(self, record: Record, taken_by: Collection[str], not_sent: str, now_s: float) -> Self:
        """The book after an attempt to send an open event.

        :param taken_by: the notifiers that took it now.
        :param not_sent: why others did not; empty: all took it.
        """
        records = [*self.records]
        for i, r in enumerate(records):
            if r.ended_s is None and r.identity == record.identity:
                taken = tuple(dict.fromkeys((*r.sent_to, *taken_by)))
                sent_s = now_s if taken_by else r.sent_s
                records[i] = replace(r, sent_to=taken, sent_s=sent_s, not_sent=not_sent, tries=r.tries + 1)
        return replace(self, records=tuple(records))

    def with_silence(self, kind: str, silence: Silence | None) -> Self:
        """The book with a kind of event silenced, or (None) heard again."""
        others = {k: s for k, s in self.silenced.items() if k != kind}
        return replace(self, silenced=others if silence is None else {**others, kind: silence})


def _begun(event: Event, dag_id: str, run_id: str, now_s: float) -> Record:
    return Record(
        kind=event.kind,
        name=event.name[:_MOST_NAME],
        since=event.since,
        sentence=truncated(event.sentence, _MOST_SENTENCE),
        remedy=event.remedy,
        figures=dict(event.figures),
        dag_id=event.origin.dag_id if event.origin else dag_id,
        run_id=event.origin.run_id if event.origin else run_id,
        began_s=now_s,
    )
