"""Hands the costs of attempts to the experiment trackers that a job names: ``ZeusJob.log_to``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model import wire
from airflow_provider_zeus.model.trial import Observation, State
from airflow_provider_zeus.patience import bounded
from airflow_provider_zeus.training.attempt import LiveAttempt

WRITE_S = 3.0  # a tracker that hangs must not hold up a training

log = guarded_log(__name__)


class Trackers:
    """The trackers of one process. Raises nothing, and says each problem once.

    :param names: modules of ``integrations/``, each with ``open_run()`` and ``write()``.
    :param closed: a run that the training has closed counts, too.
    """

    def __init__(self, names: Sequence[str], *, closed: bool = False) -> None:
        self._closed = closed
        self._trackers = {
            name: import_module(f"airflow_provider_zeus.integrations.{name}") for name in names
        }
        # Remembered: a training may close its run before the figures of its attempt are known.
        self._open: dict[str, Any] = {}
        self._said: set[str] = set()

    def look(self) -> None:
        """Remember the runs that the training has open now: it may close them before its function
        returns.
        """
        for name, tracker in self._trackers.items():
            try:
                self._open[name] = tracker.open_run(closed=self._closed) or self._open.get(name)
            except Exception as error:
                self._say(
                    f"the open run of {name} cannot be found ({type(error).__name__}: {error})."
                )

    def write(self, live: LiveAttempt, state: State, seen: Observation, metric: str) -> None:
        """Write the figures of an attempt that has ended; returns after :data:`WRITE_S` at the
        latest.

        :param metric: name of the target's metric.
        """
        epochs = enumerate(seen.epoch_metrics or (), live.epochs_resumed)
        curve = [(metric, epoch, value) for epoch, value in epochs]
        attempt = {"batch_size": live.planned.batch_size, "attempt": live.number}
        prefix = "zeus/" if live.interrupt is None else "zeus/given_up/"
        self.write_figures(state, seen, attempt, curve, prefix=prefix)

    def write_figures(
        self,
        state: State,
        seen: Observation,
        attempt: Mapping[str, Any],
        curve: Sequence[tuple[str, int, float]] = (),
        *,
        prefix: str = "zeus/",
    ) -> None:
        """The same of an attempt that is described by ``attempt``.

        ``prefix``: all names begin with it.
        """
        self.look()
        figures = {"energy_j": seen.energy_j, "time_s": seen.time_s, "epochs": seen.epochs}
        settings = {
            **attempt,
            "power_limit_w": seen.power_limit_w,
            "energy_source": seen.energy_source,
            "state": state.value,
        }
        numbers = {name: float(value) for name, value in wire.without_none(figures).items()}
        set_to = wire.without_none(settings)
        opened = self._open
        self._open = {}  # else the next attempt's figures could go into this one's run
        for name in list(self._trackers):
            self._write(name, opened.get(name), prefix, numbers, set_to, curve)

    def _write(self, name: str, run: Any, *figures: Any) -> None:
        if run is None:
            self._say(f"this training has no run of {name} open, so nothing is written there.")
            return

        def write() -> Exception | None:
            try:
                self._trackers[name].write(run, *figures)
            except Exception as error:  # in here: a TimeoutError of its own must not read as ours
                return error
            return None

        try:
            error = bounded(write, WRITE_S)
        except TimeoutError:
            del self._trackers[name]  # its thread may hang for ever: one is enough
            self._say(
                f"{name} has not answered for {WRITE_S:g} s; this training writes nothing more to "
                "it."
            )
            return
        if error is not None:
            self._say(
                f"{name} did not take the figures of this attempt ({type(error).__name__}: "
                f"{error})."
            )

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.warning("Zeus: log_to: %s", text)
