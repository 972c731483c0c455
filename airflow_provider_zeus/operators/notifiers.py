"""The notifiers of a task, by ``[zeus] notifiers`` and ``ZeusJob(notify=...)``, and how an event is handed to them."""

from __future__ import annotations

import copy
import json
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.reports.alert_book import Record
from airflow_provider_zeus.store.patience import bounded

OPTION = "[zeus] notifiers"
_FORM = 'give a list as [{"classpath": "airflow.providers.smtp.notifications.smtp.SmtpNotifier", "kwargs": {}}]'

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Named:
    """A notifier, made when it is needed, and its name on the page."""

    name: str
    make: Callable[[], Callable[[Any], Any]]


def notifiers_of(own: Sequence[Callable[[Any], Any]]) -> list[Named]:
    """The notifiers of the configuration, then ``own``, those of the job. Raises JobSpecError: the option is no list.

    A notifier renders its own fields for good, so each event gets a new copy.
    """
    from airflow.sdk import conf

    found = configured(conf.get("zeus", "notifiers", fallback="") or "")
    for each in own:
        name = getattr(each, "__qualname__", type(each).__name__)
        found.append(Named(name, lambda each=each: copy.copy(each)))  # type: ignore[misc]
    seen: dict[str, int] = {}
    for i, named in enumerate(found):
        seen[named.name] = count = seen.get(named.name, 0) + 1
        found[i] = named if count == 1 else Named(f"{named.name} {count}", named.make)
    return found


def configured(text: str) -> list[Named]:
    """The notifiers that the option names; nothing is imported yet. Raises JobSpecError."""
    if not text.strip():
        return []
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JobSpecError.of(OPTION, "...", f"no JSON ({error})", _FORM) from None  # kwargs may hold a password
    if not isinstance(entries, list):
        raise JobSpecError.of(OPTION, "...", "no list", _FORM)
    return [_entry(entry) for entry in entries]


def _entry(entry: Any) -> Named:
    path, kwargs = (entry.get("classpath"), entry.get("kwargs", {})) if isinstance(entry, Mapping) else (None, None)
    if not isinstance(path, str) or "." not in path.strip(".") or not isinstance(kwargs, Mapping):
        raise JobSpecError.of(OPTION, path, "an entry without classpath, or whose kwargs are no object", _FORM)
    module, _, name = path.rpartition(".")

    def make() -> Callable[[Any], Any]:
        made: Callable[[Any], Any] = getattr(import_module(module), name)(**kwargs)
        return made

    return Named(name, make)


def send(named: Named, context: Mapping[str, Any], record: Record, job_id: str, most_s: float) -> str:
    """Hand an event to a notifier, for at most so many seconds; why it did not take it, empty where it did.

    The reason is the class of the error alone, and so is what is logged: its text may hold an address with a secret.
    """
    handed = {**context, "zeus": event_of(record, job_id)}  # a copy: a notifier writes its fields into it
    try:
        bounded(lambda: named.make()(handed), most_s)
    except TimeoutError as error:
        log.warning("Zeus: notifier %s did not take the event %r: %s.", named.name, record.kind, error)
        return f"{named.name}: no answer for {most_s:.0f} s"
    except (Exception, SystemExit) as error:
        *_, (frame, line) = traceback.walk_tb(error.__traceback__)
        place = f"{frame.f_code.co_filename}:{line}"
        log.warning(
            "Zeus: notifier %s did not take the event %r: %s, raised at %s. Its text is not logged: it may hold an "
            "address with a secret.",
            *(named.name, record.kind, type(error).__name__, place),
        )
        return f"{named.name}: {type(error).__name__}"
    return ""


def event_of(record: Record, job_id: str) -> dict[str, Any]:
    """An event as ``{{ zeus }}`` of a notifier's templates: plain JSON."""
    from airflow.sdk import conf

    from airflow_provider_zeus.links.zeus import run_path

    base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
    return {
        "kind": record.kind,
        "sentence": record.sentence,
        "remedy": record.remedy,
        "figures": dict(record.figures),
        "job": job_id,
        "dag": record.dag_id,
        "run": record.run_id,
        "trial": record.since,
        "began_s": record.began_s,
        "page": f"{base}/{run_path(record.dag_id, record.run_id)}" if base else "",
    }
