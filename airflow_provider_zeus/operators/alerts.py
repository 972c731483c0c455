"""Events of a job, handed to its notifiers once, when they begin. No training waits for it.

A run looks at its job once Airflow has the task's state and value, as callback of the task: it adds nothing to the
task's time, and what raises or hangs changes no state. What a decision shows, a deadline at risk, an earlier run that
was killed or a store that is away, is sent by a thread while the run trains.

Which events began is not decided in the transaction that ends a trial: an attempt that another one follows and a try
that Airflow repeats end a trial too, but no run.
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

READ_S, SEND_S = 6.0, 5.0  # limits of a look at the log, and of one notifier
ALL_S = 12.0  # limit of a look and of all notifiers; Airflow ends a task's process 20 s after its state
DAY_S = 86_400.0

log = guarded_log(__name__)


@dataclass(frozen=True, slots=True)
class Named:
    """A notifier, made when it is needed, and its name in the log."""

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


def send(named: Named, context: Mapping[str, Any], event: Mapping[str, Any]) -> None:
    """Hand an event to a notifier, for at most :data:`SEND_S` seconds. Raises nothing.

    Of an error only its class is logged: its text may hold an address with a secret.

    :param event: what :func:`event_of` returns.
    """
    handed = {**context, "zeus": {**event}}  # a copy: a notifier writes its fields into it

    def hand_over() -> BaseException | None:
        try:
            named.make()(handed)
        except BaseException as error:  # of any kind, a TimeoutError of its own and a group too
            return error
        return None

    try:
        error = bounded(hand_over, SEND_S)
    except TimeoutError as late:
        log.warning("Zeus: notifier %s did not take the event %r: %s.", named.name, event["kind"], late)
        return
    if error is None:
        return
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    place = f"{frame.f_code.co_filename}:{line}"
    log.warning(
        "Zeus: notifier %s did not take the event %r: %s, raised at %s. Its text is not logged: it may hold an "
        "address with a secret.",
        *(named.name, event["kind"], type(error).__name__, place),
    )


def event_of(event: Event, run: Trial) -> dict[str, Any]:
    """An event as ``{{ zeus }}`` of a notifier's templates: plain JSON. ``run``: a trial of the run that sends it."""
    from airflow.sdk import conf

    from airflow_provider_zeus.links.zeus import run_path

    dag_id, run_id = run.origin.dag_id, event.run_id or run.origin.run_id
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
    """Whether no other run on this host has told within a day that the store is away. Raises OSError.

    :param now_s: seconds since the epoch.
    """
    private_files.make_folder(state_dir)
    descriptor = private_files.open_file(state_dir / "store-away", os.O_RDWR | os.O_CREAT)
    with os.fdopen(descriptor, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        try:
            told_s = float(file.read(100))
        except ValueError:  # the file is new, or somebody wrote something else
            told_s = 0.0
        if 0 <= now_s - told_s < DAY_S:
            return False
        file.seek(0)
        file.truncate()
        file.write(repr(now_s))
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAlerts:
    """The looks of one run at its job.

    :param trial: of the run.
    :param stored: whether the log was asked for the run's batch size.
    :param reopen: opens the trial log, or raises StoreError.
    :param state_dir: folder of this host.
    """

    context: Mapping[str, Any]
    trial: Trial
    stored: bool
    reopen: Callable[[], Store]
    state_dir: Path

    def watch(self, *, after_killed: bool) -> None:
        """Look at the job when the task has ended, and beside the training if the decision shows an event.

        In ``dag.test()`` the look at the end is the only one: no second thread may speak with Airflow there. Raises
        nothing.

        :param after_killed: whether the newest trial before this one was abandoned.
        """
        if not self._teaches:
            return
        self.after_task(decision=False)
        shows_event = after_killed or not self.stored or alerts.deadline_at_risk(self.trial) is not None
        if not shows_event or is_test_run():
            return
        call = copy_context().run
        try:
            threading.Thread(target=call, args=(self.look_at_decision,), name="zeus-events", daemon=True).start()
        except RuntimeError:  # the look at the end sends it
            log.debug("Zeus could not start a thread for its events.", exc_info=True)

    @property
    def _teaches(self) -> bool:
        """Whether runs of this type raise events: those that teach."""
        return self.trial.origin.run_type in self.trial.job.learn_from

    def after_task(self, *, decision: bool) -> None:
        """Let the task look when Airflow has its state: success, or failure without a further try.

        :param decision: at what the decision shows; else at the end of the run.
        """
        if not self._teaches:
            return
        look = self.look_at_decision if decision else self.look_at_end
        task = self.context["task"]
        for name in ("on_success_callback", "on_failure_callback"):
            given = getattr(task, name, None) or ()
            others = [*given] if isinstance(given, Sequence) else [given]
            setattr(task, name, [*others, lambda context: look()])

    def look_at_decision(self) -> None:
        """Send what began by the time of the decision. Raises nothing."""
        self._look(is_away=not self.stored)

    def look_at_end(self) -> None:
        """Send what began by the end of the run. Raises nothing."""
        self._look(is_away=False)

    def _look(self, *, is_away: bool) -> None:
        def look_and_send() -> None:
            begun = self._begun(is_away=is_away)
            if begun:
                self._send(begun)

        try:
            bounded(look_and_send, ALL_S)
        except Exception:
            log.warning("Zeus could not look for events of %s.", visible(self.trial.job_id), exc_info=True)

    def _begun(self, *, is_away: bool) -> list[Event]:
        """The events that began. ``is_away``: the store could not be asked for the run's batch size."""
        begun: list[Event] = []
        try:
            begun.extend(bounded(self._begun_in_log, READ_S))
        except (StoreError, TimeoutError) as error:
            log.debug("Zeus could not look for events: %s", error)
            is_away = True
        if not is_away:
            return begun
        try:
            is_told = not is_first_today(self.state_dir, time.time())
        except OSError as error:
            log.warning("Zeus does not send that its store is away, it could do so at every run: %s", error)
            is_told = True
        if not is_told:
            begun.append(alerts.store_away(self.trial.job))
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
