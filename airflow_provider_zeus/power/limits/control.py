"""Setting power limits such that the limit found is always given back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import RLock
from typing import Self

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.log_guard import guarded_log, level
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.limits.guardian_client import GuardianClient
from airflow_provider_zeus.power.limits.limit_format import is_ours, is_rounded, same_w
from airflow_provider_zeus.power.limits.record import restore_orphans
from airflow_provider_zeus.power.nvml.library import BoundedNvml

log = guarded_log(__name__)


class LimitControl:
    """Context manager that sets a device's power limits and gives the limit found back at the end.

    A guardian process starts before the first change. A guardian that dies is replaced before the
    next change and by :meth:`keep_guarded`. A limit that another process sets meanwhile stays, also
    at the end. When a limit cannot be set, that is logged once, ``can_set`` becomes False, and the
    training continues.

    :param state_dir: folder of the records of changed limits; a path of the host, mounted into
        containers.
    :param found_earlier_w: (limit found, limit left behind) [W] of an earlier trial that died on
        this GPU without giving the limit back. If the present limit equals the limit left behind,
        and is lower than the limit found, the limit found is set first. Any other limit was set on
        purpose and stays.
    """

    found_w: float | None = None
    can_set = False
    why_not_set = ""  # a tuned limit that is not in force saves nothing, and pages say why

    def __init__(
        self,
        device: Device,
        state_dir: str | os.PathLike[str],
        *,
        found_earlier_w: tuple[float, float] | None = None,
    ) -> None:
        self.device = device
        self._state_dir = state_dir
        self._found_earlier_w = found_earlier_w
        self._guardian: GuardianClient | None = None
        self._guardian_lock = RLock()  # the heartbeat's thread replaces a dead guardian too
        self._is_guardian_missing = False  # logged once: a heartbeat tries again every few seconds

    def __enter__(self) -> Self:
        self._pid = os.getpid()
        # First: else a limit that a dead training left would count as the one found.
        restore_orphans(self._state_dir, BoundedNvml)
        present_w = self.device.limit_w()
        if present_w is not None and self._found_earlier_w is not None:
            earlier_w, left_w = self._found_earlier_w
            # Any other limit was set on purpose since.
            if same_w(present_w, left_w) and earlier_w > present_w:
                try:
                    self.device.set_limit_w(earlier_w)
                except DeviceError as error:
                    log.warning(
                        "An earlier training left the power limit at %s W instead of %s W: %s",
                        left_w,
                        earlier_w,
                        error,
                    )
                present_w = self.device.limit_w()
        self.found_w = present_w
        # A limit in force that is none of these, nor found_w, is another process's and stays.
        self._ours_w: tuple[float, ...] = ()
        self.can_set = present_w is not None and self.device.limit_range() is not None
        self.why_not_set = self.device.missing.get("helper", "")
        return self

    def __exit__(self, *_: object) -> None:
        # A forked child that leaves the block must not change its parent's limit.
        if os.getpid() == self._pid:
            self.can_set = False
            self._give_back()

    def grid_w(self, limits_w: Sequence[float] | None = None) -> tuple[float, ...]:
        """Limits to profile [W], from the highest to the lowest, none above the limit found; empty
        without limits.

        :param limits_w: the user's list; default: the device's grid, plus the limit found if it is
            not on the grid.

        Raises JobSpecError: a limit of the user is out of the device's range.
        """
        limits = self.device.limit_range()
        found_w = self.found_w
        if limits is None or found_w is None:
            return ()
        wanted: Sequence[float] = (*limits.grid_w(), found_w)
        if limits_w is not None:
            limits.check(limits_w, self.device.info.model)
            wanted = limits_w
        # A driver that rounds takes both for one limit, which would be profiled twice.
        exact = {found_w if same_w(limit_w, found_w) else limit_w for limit_w in wanted}
        allowed = [limit_w for limit_w in exact if limit_w <= found_w]
        return tuple(sorted(allowed, reverse=True)) or (found_w,)

    def set_w(self, limit_w: float) -> bool:
        """Set the limit [W] and return whether it is in force.

        Raises ValueError: it is above the limit found (see :meth:`grid_w`).
        """
        if not self.can_set or self.found_w is None:
            return False
        # Somebody lowered the limit on purpose, for heat or for a bill.
        if limit_w > self.found_w and not same_w(limit_w, self.found_w):
            raise ValueError(
                f"power limit = {limit_w:g} W: above the limit found, {self.found_w:g} W; use "
                "grid_w()"
            )
        present_w = self.device.limit_w()
        if present_w is None:
            why = self.device.missing.get("limit_w", "")
            log.warning(
                "Power limits are not set from here on: the present limit cannot be read. %s", why
            )
            self.why_not_set = f"the present limit cannot be read. {why}".rstrip()
            self.can_set = False  # the guardian stays: the limit must still be given back
            return False
        if not self._is_ours(present_w):  # set on purpose: ours must not replace it, now or later
            self.why_not_set = f"another process set it to {present_w:g} W"
            self.can_set = False
            self._release()
            return False
        if same_w(limit_w, self.found_w):
            limit_w = self.found_w
        # A limit that is in force already needs no guardian.
        if limit_w != present_w:
            self._change(present_w, limit_w, self.found_w)
        return self.can_set

    def keep_guarded(self) -> None:
        """Replace the guardian if it died. Any thread may call this; the device is not used."""
        with self._guardian_lock:
            if self._guardian is None or self._guardian.alive:
                return
            try:
                # The dead one's record stays until the new one is ready.
                self._guardian = self._guardian.restarted()
            except DeviceError as error:
                # Logged once: the heartbeat tries again every few seconds.
                log.log(
                    level(again=self._is_guardian_missing),
                    "The guardian of the power limit died and cannot be replaced yet: %s",
                    error,
                )
                self._is_guardian_missing = True
            else:
                log.warning("The guardian of the power limit died and was replaced.")
                self._is_guardian_missing = False

    def _change(self, present_w: float, limit_w: float, found_w: float) -> None:
        """Set a limit [W] under a living guardian; on an error give the limit found back."""
        with self._guardian_lock:
            if not self.can_set:  # given back by another thread: a change would outlast the block
                return
            try:
                restore = self.device.restore_record()
                if restore is None:
                    raise DeviceError(
                        "This device cannot describe how to restore its limit. Use mode='measure'."
                    )
                if self._guardian is None:
                    self._guardian = GuardianClient(self._state_dir, restore, found_w)
                elif not self._guardian.alive:
                    self._guardian = self._guardian.restarted()
                # Before the change: the limit in force is known as ours if this process dies here.
                self._guardian.note(present_w, limit_w)
                # Both, since a signal handler may raise before the change or after it.
                self._ours_w = (present_w, limit_w)
                self.device.set_limit_w(limit_w)
                self._ours_w = (limit_w,)
                in_force_w = self.device.limit_w()
                # A rounded limit must count as ours, else it would never be given back.
                if in_force_w is not None and is_rounded(in_force_w, limit_w):
                    self._guardian.note(limit_w, in_force_w)
                    self._ours_w = (limit_w, in_force_w)
            except (DeviceError, OSError) as error:
                log.warning(
                    "Power limits are not set from here on; the training continues. %s", error
                )
                self.why_not_set = str(error)
                self.can_set = False
                self._give_back()

    def _is_ours(self, present_w: float) -> bool:
        """Whether this control found or set the limit in force [W]; logged when not."""
        if self.found_w is not None and is_ours(present_w, self.found_w, self._ours_w):
            return True
        log.warning("The power limit is %s W, which was not set here: it stays.", present_w)
        return False

    def _give_back(self) -> None:
        """Restore the limit found and end the guardian; does nothing if no limit was changed."""
        with self._guardian_lock:  # a change that has begun ends first, else it would undo this
            # A limit that was never changed here may be another process's by now: it stays.
            if self._guardian is None or self.found_w is None:
                return
            try:
                present_w = self.device.limit_w()
                if present_w is None:
                    raise DeviceError(
                        "the present limit cannot be read. "
                        f"{self.device.missing.get('limit_w', '')}"
                    )
                if self._is_ours(present_w) and present_w != self.found_w:
                    self.device.set_limit_w(self.found_w)
                self._ours_w = ()
            except DeviceError as error:
                # The guardian stays: it tries again when this process ends.
                log.error("The limit found, %s W, could not be restored: %s", self.found_w, error)
                return
            self._release()

    def _release(self) -> None:
        with self._guardian_lock:
            guardian = self._guardian
            self._guardian = None
        if guardian is not None:
            guardian.finish()
