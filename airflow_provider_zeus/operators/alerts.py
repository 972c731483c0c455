"""Events of a job, handed to its notifiers once, when they begin. No training waits for it.

A run looks at its job once Airflow has the task's state and value, as callback of the task: it adds
nothing to the task's time, and a notifier that raises or hangs changes no state. Events that a
decision shows, a deadline at risk, an earlier run that was killed or a store that is away, is sent
by a thread while the run trains.

Which events began is not decided in the transaction that ends a trial: an attempt that another one
follows and a try that Airflow repeats end a trial too, but no run.
"""

from __future__ import annotations

import copy
import fcntl
import json
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus import private_files
from airflow_provider_zeus.airflow_compat import is_test_run
from airflow_provider_zeus.errors import JobSpecError, StoreError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.event import Event
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.patience import bounded
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports import alerts
from airflow_provider_zeus.signals.prices import in_force

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store

# A store or a notifier that hangs must not hold up a task's end.
READ_S = 6.0
SEND_S = 5.0
# Airflow ends a task's process 20 s after its state: it would cut a longer look off.
ALL_S = 12.0
DAY_S = 86_400.0

log = guarded_log(__name__)


@dataclass(frozen=True, slots=True)
class Named:
    """A notifier, made when it is needed, and its name in the log."""

    name: str
    make: Callable[[], Callable[[Any], Any]]


def notifiers_of(own: Sequence[Callable[[Any], Any]]) -> list[Named]:
    """The notifiers of the configuration, then ``own``, those of the job.

    Raises JobSpecError: the option is no list.

    A notifier renders its own fields for good, so each event gets a new copy.
    """
    from airflow.sdk import conf

    notifiers = configured(conf.get("zeus", "notifiers", fallback="") or "")
    for notifier in own:
        name = getattr(notifier, "__qualname__", type(notifier).__name__)
        notifiers.append(Named(name, partial(copy.copy, notifier)))
    return notifiers


def configured(text: str) -> list[Named]:
    """The notifiers that the option names; nothing is imported yet. Raises JobSpecError."""

    def wrong(value: object, problem: str) -> JobSpecError:
        form = (
            '[{"classpath": "airflow.providers.smtp.notifications.smtp.SmtpNotifier", "kwargs": '
            "{}}]"
        )
        return JobSpecError.of("[zeus] notifiers", value, problem, f"give a list as {form}")

    def made(module: str, name: str, kwargs: Mapping[str, Any]) -> Callable[[Any], Any]:
        notifier: Callable[[Any], Any] = getattr(import_module(module), name)(**kwargs)
        return notifier

    if not text.strip():
        return []
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        # Neither the text nor the error behind this one is shown: kwargs may hold a password.
        raise wrong("...", f"no JSON ({error})") from None
    if not isinstance(entries, list):
        raise wrong("...", "no list")
    notifiers = []
    for entry in entries:
        fields = entry if isinstance(entry, Mapping) else {}
        path = fields.get("classpath")
        kwargs = fields.get("kwargs", {})
        is_path = isinstance(path, str) and "." in path.strip(".")
        if not is_path or not isinstance(kwargs, Mapping):
            raise wrong(path, "an entry without classpath, or whose kwargs are no object")
        module, _, name = str(path).rpartition(".")
        notifiers.append(Named(name, partial(made, module, name, kwargs)))
    return notifiers


def send(named: Named, context: Mapping[str, Any], event: Mapping[str, Any]) -> None:
    """Hand an event to a notifier, for at most :data:`SEND_S` seconds. Raises nothing.

    Of an error only its class is logged: its text may hold an address with a secret.

    :param event: as :func:`event_of` returns it.
    """
    handed = {**context, "zeus": {**event}}  # a copy: a notifier writes its fields into it

    def hand_over() -> BaseException | None:
        try:
            named.make()(handed)
        except BaseException as error:
            # Raised, a TimeoutError of the notifier's own would pass for that of the limit.
            return error
        return None

    try:
        error = bounded(hand_over, SEND_S)
    except TimeoutError as late:
        log.warning(
            "Zeus: notifier %s did not take the event %r: %s.", named.name, event["kind"], late
        )
        return
    if error is None:
        return
    # the place alone says which notifier's code raised, and holds no secret
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    place = f"{frame.f_code.co_filename}:{line}"
    log.warning(
        "Zeus: notifier %s did not take the event %r: %s, raised at %s. Its text is not logged: "
        "it may hold an address with a secret.",
        *(named.name, event["kind"], type(error).__name__, place),
    )


def event_of(event: Event, run: Trial) -> dict[str, Any]:
    """An event as ``{{ zeus }}`` of a notifier's templates: plain JSON.

    ``run``: a trial of the run that sends it.
    """
    from airflow.sdk import conf

    from airflow_provider_zeus.links.zeus import run_path

    dag_id = run.origin.dag_id
    run_id = event.run_id or run.origin.run_id
    base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
    return {
        "kind": event.kind,
        "sentence": event.sentence,
        "remedy": event.remedy,
        "figures": dict(event.figures),
        "job": run.job_id,
        "dag": dag_id,
        "run": run_id,
        "trial": event.since,
        "page": f"{base}/{run_path(dag_id, run_id)}" if base else "",
    }


def is_first_today(state_dir: Path, now_s: float) -> bool:
    """Whether no other run on this host has told within a day that the store is away.

    Raises OSError.

    :param now_s: seconds since the epoch.
    """
    # one file for all runs of this host: an outage of hours is one event, not one for each run
    private_files.make_folder(state_dir)
    descriptor = private_files.open_file(state_dir / "store-away", os.O_RDWR | os.O_CREAT)
    with os.fdopen(descriptor, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # else two runs may both be the first
        try:
            sent_s = float(file.read(100))
        except ValueError:  # a new file is empty, and a damaged one must hide no event
            sent_s = 0.0
        if 0 <= now_s - sent_s < DAY_S:
            return False
        file.seek(0)
        file.truncate()
        file.write(repr(now_s))
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAlerts:
    """The looks of one run at its job.

    :param trial: of the run.
    :param reopen: opens the trial log, or raises StoreError.
    :param state_dir: folder of this host.
    """

    context: Mapping[str, Any]
    trial: Trial
    reopen: Callable[[], Store]
    state_dir: Path

    def watch(self, *, after_killed: bool) -> None:
        """Look at the job when the task has ended, and beside the training if the decision shows an
        event.

        In ``dag.test()`` the look at the end is the only one: no second thread may speak with
        Airflow there. Raises nothing.

        :param after_killed: whether the newest trial before this one was abandoned.
        """
        if not self._teaches:
            return
        self.after_task(decision=False)
        shows_event = after_killed or self._is_unasked
        if not shows_event and alerts.deadline_at_risk([self.trial]) is None:
            return
        # a second thread would speak with Airflow through the same pipe as the task
        if is_test_run():
            return
        # a notifier may need Airflow's context variables, which threads do not inherit
        call = copy_context().run
        look = partial(self.look, decision=True)
        try:
            threading.Thread(target=call, args=(look,), name="zeus-events", daemon=True).start()
        except RuntimeError:  # nothing is lost: the look at the task's end sends it
            log.debug("Zeus could not start a thread for its events.", exc_info=True)

    @property
    def _teaches(self) -> bool:
        """Whether runs of this type raise events: those that teach."""
        return self.trial.origin.run_type in self.trial.job.learn_from

    @property
    def _is_unasked(self) -> bool:
        """Whether the log could not be asked for the run's batch size, and has no row of it."""
        return not self.trial.number

    def after_task(self, *, decision: bool) -> None:
        """Let the task look when Airflow has its state: success, or failure without a further try.

        :param decision: at the events that the decision shows; else at the end of the run.
        """
        if not self._teaches:
            return
        task = self.context["task"]
        for name in ("on_success_callback", "on_failure_callback"):
            callbacks = getattr(task, name, None) or ()
            if not isinstance(callbacks, Sequence):
                callbacks = (callbacks,)
            # Airflow calls them in order: the author's own come first, and ours delays
            # none of them
            setattr(task, name, [*callbacks, lambda context: self.look(decision=decision)])

    def look(self, *, decision: bool) -> None:
        """Send the events that began by the time of the decision, or by the end of the run. Raises
        nothing.
        """

        def look_and_send() -> None:
            begun = self._begun(is_away=decision and self._is_unasked)
            if begun:
                self._send(begun)

        try:
            bounded(look_and_send, ALL_S)
        except Exception:
            log.warning(
                "Zeus could not look for events of %s.", visible(self.trial.job_id), exc_info=True
            )

    def _begun(self, *, is_away: bool) -> list[Event]:
        """The events that began.

        ``is_away``: the store could not be asked for the run's batch size.
        """
        begun: list[Event] = []
        try:
            begun.extend(bounded(self._begun_in_log, READ_S))
        except (StoreError, TimeoutError) as error:
            log.debug("Zeus could not look for events: %s", error)
            is_away = True
        if not is_away:
            return begun
        try:
            if is_first_today(self.state_dir, time.time()):
                begun.append(alerts.store_away(self.trial.job))
        except OSError as error:
            log.warning(
                "Zeus does not send that its store is away, it could do so at every run: %s", error
            )
        return begun

    def _begun_in_log(self) -> Sequence[Event]:
        look = partial(alerts.look, run=self.trial, prices=in_force())
        with closing(self.reopen()) as store:
            return store.look(self.trial.job_id, look, last=alerts.NEWEST)

    def _send(self, events: Sequence[Event]) -> None:
        try:
            notifiers = notifiers_of(getattr(self.context["task"], "notify", ()))
        except JobSpecError as error:
            log.warning("Zeus sends no event: %s", error)
            return
        for event in events:
            for named in notifiers:
                send(named, self.context, event_of(event, self.trial))
