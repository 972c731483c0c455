"""Events of a job after each of its runs: kept on its page, and handed to its notifiers. No training waits for it.

A look at the job takes place once Airflow has the task's state and value, as callback of the task: it adds nothing to
the task's time, and what raises or hangs changes no state. What a decision shows already, a deadline at risk or a
store that is away, is sent by a thread while the run trains.
"""

from __future__ import annotations

import copy
import json
import logging
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.airflow_compat import is_test_run
from airflow_provider_zeus.errors import JobSpecError, StoreError
from airflow_provider_zeus.model.trial import ProfileSample, Trial, newest_device
from airflow_provider_zeus.patience import T, bounded
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports import alerts
from airflow_provider_zeus.reports.alert_book import AlertBook, Record
from airflow_provider_zeus.reports.alerts import KINDS, NEWEST, STORE, Event
from airflow_provider_zeus.signals.prices import in_force
from airflow_provider_zeus.store.alerts import change_book, claimed, keep_taken
from airflow_provider_zeus.store.variables.airflow import AirflowVariables

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store


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

    def wrong(value: object, problem: str) -> JobSpecError:
        form = '[{"classpath": "airflow.providers.smtp.notifications.smtp.SmtpNotifier", "kwargs": {}}]'
        return JobSpecError.of("[zeus] notifiers", value, problem, f"give a list as {form}")

    def made(module: str, name: str, kwargs: Mapping[str, Any]) -> Callable[[Any], Any]:
        notifier: Callable[[Any], Any] = getattr(import_module(module), name)(**kwargs)
        return notifier

    if not text.strip():
        return []
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise wrong("...", f"no JSON ({error})") from None  # kwargs may hold a password
    if not isinstance(entries, list):
        raise wrong("...", "no list")
    found = []
    for entry in entries:
        path, kwargs = (entry.get("classpath"), entry.get("kwargs", {})) if isinstance(entry, Mapping) else (None, None)
        if not isinstance(path, str) or "." not in path.strip(".") or not isinstance(kwargs, Mapping):
            raise wrong(path, "an entry without classpath, or whose kwargs are no object")
        module, _, name = path.rpartition(".")
        found.append(Named(name, partial(made, module, name, kwargs)))
    return found


def send(named: Named, context: Mapping[str, Any], record: Record, job_id: str, most_s: float) -> str:
    """Hand an event to a notifier, for at most so many seconds; why it did not take it, empty where it did.

    The reason is the class of the error alone, and so is what is logged: its text may hold an address with a secret.
    """
    handed = {**context, "zeus": event_of(record, job_id)}  # a copy: a notifier writes its fields into it

    def hand_over() -> BaseException | None:
        try:
            named.make()(handed)
        except BaseException as error:  # of any kind, a TimeoutError of its own and a group too
            return error
        return None

    try:
        error = bounded(hand_over, most_s)
    except TimeoutError as late:
        log.warning("Zeus: notifier %s did not take the event %r: %s.", named.name, record.kind, late)
        return f"{named.name}: no answer for {most_s:.0f} s"
    if error is None:
        return ""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    place = f"{frame.f_code.co_filename}:{line}"
    log.warning(
        "Zeus: notifier %s did not take the event %r: %s, raised at %s. Its text is not logged: it may hold an "
        "address with a secret.",
        *(named.name, record.kind, type(error).__name__, place),
    )
    return f"{named.name}: {type(error).__name__}"


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


# Limits of reading the log, of asking it which task sends an event, of one notifier.
READ_S, CLAIM_S, SEND_S = 6.0, 2.0, 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAlerts:
    """The looks of one run.

    :param reopen: opens the trial log, or raises StoreError.
    :param stored: whether the log was asked for the run's batch size.
    :param trial: of the run.
    """

    context: Mapping[str, Any]
    trial: Trial
    stored: bool
    reopen: Callable[[], Store]
    turn: threading.Lock = field(default_factory=threading.Lock)  # a short run ends while its decision is still sent

    def watch(self) -> None:
        """Look at the decision now, beside the training, and at the job when the task has ended. Raises nothing.

        In ``dag.test()`` the look at the end is the only one: no second thread may speak with Airflow there.
        """
        self.after_task(ended=True)
        if self._concern and self.decided() and not is_test_run():
            call = copy_context().run
            try:
                threading.Thread(target=call, args=(self.look,), name="zeus-alerts", daemon=True).start()
            except RuntimeError:  # the look at the end sends it
                log.debug("Zeus could not start a thread for its events.", exc_info=True)

    @property
    def _concern(self) -> bool:
        """Whether runs of this type are looked at: those that teach."""
        return self.trial.origin.run_type in self.trial.job.learn_from

    def after_task(self, *, ended: bool) -> None:
        """Let the task :meth:`look` when Airflow has its state: success, or failure without a further try."""
        task = self.context["task"]
        if not self._concern:
            return
        for name in ("on_success_callback", "on_failure_callback"):
            given = getattr(task, name, None) or ()
            others = [*given] if isinstance(given, Sequence) else [given]
            setattr(task, name, [*others, lambda context: self.look(ended=ended)])

    def decided(self) -> list[Event]:
        """What the decision shows."""
        found = [alerts.deadline_at_risk(self.trial)]
        if not self.stored:
            found.append(alerts.store_away(self.trial.job))
        return [event for event in found if event is not None]

    def look(self, *, ended: bool = False) -> None:
        """Keep and send what the decision shows; where the run has ended, what the job's log shows. Raises nothing.

        The look at the decision ends no event of another run.
        """

        def keep_and_send() -> None:
            with self.turn:
                self._keep_and_send(*(self._shown_by_the_log() if ended else (self.decided(), ())))

        try:
            bounded(keep_and_send, 12.0)  # sending included; Airflow ends a task's process 20 s after its state
        except Exception:
            log.warning("Zeus could not look for events of %s.", visible(self.trial.job_id), exc_info=True)

    def _shown_by_the_log(self) -> tuple[list[Event], Collection[str]]:
        """The events that hold, and the kinds that were looked at."""
        own, away = self.trial, alerts.store_away(self.trial.job)

        def read(store: Store) -> tuple[list[Trial], list[ProfileSample]]:
            """The newest trials of the job, and the profile of their device."""
            trials = store.trials(own.job_id, last=NEWEST)
            return trials, store.profile(own.job_id, newest_device(trials), own.job.job_version)

        try:
            trials, profiles = bounded(lambda: self._in_log(read), READ_S)
        except (StoreError, TimeoutError):
            return [away], (STORE,)
        found = alerts.events(trials, profiles=profiles, prices=in_force())
        return (found if self.stored else [*found, away]), KINDS

    def _keep_and_send(self, events: Sequence[Event], kinds: Collection[str]) -> None:
        port, origin, now_s = AirflowVariables(), self.trial.origin, time.time()

        look: dict[str, Any] = {"dag_id": origin.dag_id, "run_id": origin.run_id, "now_s": now_s, "kinds": kinds}
        try:
            book = change_book(port, self.trial.job_id, lambda held: held.updated(events, **look))
        except StoreError as error:
            log.warning("Zeus cannot keep its events and sends those of this run: %s", error)
            book = AlertBook().updated(events, **look)
        try:
            notifiers = notifiers_of(getattr(self.context["task"], "notify", ()))
        except JobSpecError as error:
            log.warning("Zeus sends no event: %s", error)
            notifiers = []
        due = book.due([named.name for named in notifiers]) if notifiers else []
        for record in (r for r in due if r.dag_id == origin.dag_id):  # runs of another DAG tell theirs
            self._send(port, record, [named for named in notifiers if named.name not in record.sent_to])

    def _send(self, port: AirflowVariables, record: Record, notifiers: Sequence[Named]) -> None:
        """Hand an event to notifiers, and note which took it."""
        job_id = self.trial.job_id
        try:
            mine, taken_before = bounded(lambda: self._in_log(lambda store: claimed(store, job_id, record)), CLAIM_S)
        except (StoreError, TimeoutError):  # without the log no other task can be asked
            mine, taken_before = True, []
        if not mine:
            return
        notifiers = [named for named in notifiers if named.name not in taken_before]
        problems = {n.name: why for n in notifiers if (why := send(n, self.context, record, job_id, SEND_S))}
        taken = [*taken_before, *(named.name for named in notifiers if named.name not in problems)]
        with suppress(StoreError, TimeoutError):
            bounded(lambda: self._in_log(lambda store: keep_taken(store, job_id, record, taken)), CLAIM_S)
        try:
            change_book(port, job_id, lambda b: b.noted(record, taken, "; ".join(problems.values()), time.time()))
        except StoreError as error:
            log.warning("Zeus could not note that an event was sent: %s", error)

    def _in_log(self, call: Callable[[Store], T]) -> T:
        with closing(self.reopen()) as store:
            return call(store)
