"""The trigger of a task that waits for a cheaper start.

It runs in Airflow's triggerer, beside everybody's triggers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_zeus.patience import bounded
from airflow_provider_zeus.signals.forecast import Start
from airflow_provider_zeus.signals.reading import planned_start
from airflow_provider_zeus.store.open import open_store


class ZeusStartTrigger(BaseTrigger):
    """Fires at the cheapest start by the newest forecast, and not after ``latest_s``, except within
    its first minute (``first_s``).

    A forecast that cannot be read changes nothing: the start that is planned holds. Times are
    seconds since the epoch.

    :param start_s: the start as planned when the task deferred.
    :param latest_s: the latest start.
    :param duration_s: believed duration of the run [s].
    :param signal: the series of the forecast, as ``ZeusJob.start_signal``.
    :param zeus_conn_id: of the run log, which keeps the series of services.
    """

    replan_s = 900.0  # a forecast changes some times a day
    # it does not fire before: Airflow fails tasks whose wait ends while they still defer
    first_s = 60.0

    def __init__(
        self, start_s: float, latest_s: float, duration_s: float, signal: str, zeus_conn_id: str
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.start_s = start_s
        self.latest_s = latest_s
        self.duration_s = duration_s
        self.signal = signal
        self.zeus_conn_id = zeus_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments."""
        names = ("start_s", "latest_s", "duration_s", "signal", "zeus_conn_id")
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Sleep until the start, and look at the newest forecast now and then."""
        first_s = time.time() + self.first_s
        # Not the start as it was planned: if this triggerer takes over from another one, that start
        # may be past, though the other one had found a later one.
        until_s = self.latest_s
        while True:
            await self._replan(until_s)
            until_s = min(self.start_s, self.latest_s)
            left_s = max(until_s, first_s) - time.time()
            if left_s <= 0:
                break
            await asyncio.sleep(min(left_s, self.replan_s))
        yield TriggerEvent({"start_s": self.start_s})  # type: ignore[no-untyped-call]

    async def _replan(self, until_s: float) -> None:
        """Move the start if the forecast has changed; not from ``until_s`` on."""
        if time.time() >= until_s:
            return

        def planned() -> Start:
            try:
                keeper = bounded(
                    lambda: open_store(self.zeus_conn_id, create=False, keeps_file_open=False), 8.0
                )
            except Exception:  # then the service is asked, and nothing is kept
                keeper = None
            return planned_start(self.signal, time.time(), self.latest_s, self.duration_s, keeper)[
                0
            ]

        try:
            # a blocking read would hold all other triggers of this process
            start = await asyncio.to_thread(planned)
        except Exception as error:  # of any kind: raised, it would fail the task
            self.log.warning("Zeus: %s. The start stays as it was planned.", error)
            return
        if start.at_s != self.start_s:
            self.log.info(
                "Zeus: the forecast changed; the start moves by %+.0f s.", start.at_s - self.start_s
            )
            self.start_s = start.at_s
