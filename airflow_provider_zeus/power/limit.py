"""Setting power limits so that the limit found always comes back (design: "A limit found is given back")."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from threading import RLock
from types import TracebackType
from typing import Self

from airflow_provider_zeus.errors import DeviceError
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.guard import Guard
from airflow_provider_zeus.power.record import restore_orphans, same_w

log = logging.getLogger(__name__)


class LimitControl:
    """Context manager over a device: sets limits within, gives the limit found back at the end, whatever ends it.

    A guardian process starts before the first change, and none where nothing is changed; one that dies is replaced
    before the next change and by :meth:`keep_guarded`. A limit that somebody else
    sets meanwhile is left alone, then and at the end. What cannot be set is logged once, ``can_set`` becomes False and
    the training goes on.

    :param state_dir: where records of changed limits lie; a path of the host, mounted into containers.
    :param found_earlier_w: (limit found, limit left behind) [W] of an earlier trial that died on this GPU without
        giving the limit back. Where the present limit is what it left behind, the one it found is given back first;
        any other is somebody's will.
    """

    found_w: float | None = None
    can_set = False

    def __init__(
        self, device: Device, state_dir: str | os.PathLike[str], *, found_earlier_w: tuple[float, float] | None = None
    ) -> None:
        self.device = device
        self._state_dir = state_dir
        self._found_earlier_w = found_earlier_w
        self._guard: Guard | None = None
        self._guard_lock = RLock()  # the heartbeat's thread looks after the guardian too
        self._unguarded = False  # said once, until a guardian watches again

    def __enter__(self) -> Self:
        self._pid = os.getpid()
        restore_orphans(self._state_dir)
        self._give_back_earlier()
        self.found_w = present_w = self.device.limit_w()
        self._ours_w: tuple[float, ...] = () if present_w is None else (present_w,)
        self.can_set = present_w is not None and self.device.limit_range() is not None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() == self._pid:  # a forked child that leaves the block must not touch its parent's limit
            self.can_set = False
            self._give_back()

    def grid_w(self, limits_w: Sequence[float] | None = None) -> tuple[float, ...]:
        """Limits to profile [W], from the highest to the lowest, none above the limit found; empty without limits.

        :param limits_w: the user's list; default the device's grid, with the limit found where it lies between.

        Raises JobSpecError when a limit of the user's is out of the device's range.
        """
        limits, found_w = self.device.limit_range(), self.found_w
        if limits is None or found_w is None:
            return ()
        limits.check(limits_w or (), self.device.info.model)
        asked = limits_w if limits_w is not None else (*limits.grid_w(), found_w)
        allowed = {min(w, found_w) for w in asked if w <= found_w or same_w(w, found_w)}
        return tuple(sorted(allowed, reverse=True)) or (found_w,)

    def set_w(self, limit_w: float) -> bool:
        """Set the limit [W]; whether it is in force. Raises ValueError above the limit found (see :meth:`grid_w`)."""
        if not self.can_set or self.found_w is None:
            return False
        if limit_w > self.found_w and not same_w(limit_w, self.found_w):
            raise ValueError(f"power limit = {limit_w:g} W: above the limit found, {self.found_w:g} W; use grid_w()")
        present_w = self.device.limit_w()
        if present_w is None:
            log.warning("Power limits are not set from here on: the present one cannot be read. %s", self._unread())
            self.can_set = False  # the guardian stays: what was set must be given back
            return False
        if not self._is_ours(present_w):
            self.can_set = False
            self._release()
            return False
        if not same_w(limit_w, present_w):
            self._change(present_w, limit_w, self.found_w)
        return self.can_set

    def keep_guarded(self) -> None:
        """Start another guardian where the one of this training has died. Any thread may call; no device is touched."""
        with self._guard_lock:
            if self._guard is None or self._guard.alive:
                return
            try:
                self._guard = self._guard.restarted()
            except DeviceError as error:
                level = logging.DEBUG if self._unguarded else logging.WARNING
                log.log(level, "The guardian of the power limit died, and another one is tried for: %s", error)
                self._unguarded = True
            else:
                log.warning("The guardian of the power limit died: another one watches this training now.")
                self._unguarded = False

    def _change(self, present_w: float, limit_w: float, found_w: float) -> None:
        with self._guard_lock:
            try:
                self._watched(found_w).note(present_w, limit_w)
                self._ours_w = (present_w, limit_w)  # a signal handler may raise on either side of the next line
                self.device.set_limit_w(limit_w)
                self._ours_w = (limit_w,)
            except (DeviceError, OSError) as error:
                log.warning("Power limits are not set from here on; the training goes on. %s", error)
                self.can_set = False
                self._give_back()

    def _watched(self, found_w: float) -> Guard:
        """The guardian, started at the first change and where it died. Raises DeviceError where none can watch."""
        restore = self.device.restore_record()
        if restore is None:
            raise DeviceError("This device cannot say how its limit is restored. Use mode='measure'.")
        if self._guard is None:
            self._guard = Guard(self._state_dir, restore, found_w)
        elif not self._guard.alive:
            self._guard = self._guard.restarted()
        return self._guard

    def _is_ours(self, present_w: float) -> bool:
        """Whether the limit in force [W] is one that we found or set; a line in the log when it is not."""
        if any(same_w(present_w, ours_w) for ours_w in self._ours_w):
            return True
        log.warning("The power limit is %s W, which was not set here: left to whoever set it.", present_w)
        return False

    def _unread(self) -> str:
        return self.device.missing.get("limit_w", "")

    def _give_back(self) -> None:
        """Restore the limit found, then release the guardian; nothing where nothing was changed."""
        if self._guard is None or self.found_w is None:
            return
        try:
            present_w = self.device.limit_w()
            if present_w is None:
                raise DeviceError(f"the present one cannot be read. {self._unread()}")
            if self._is_ours(present_w) and not same_w(present_w, self.found_w):
                self.device.set_limit_w(self.found_w)
            self._ours_w = (self.found_w,)
        except DeviceError as error:  # the guardian stays: it tries again when this process ends
            log.error("The limit found, %s W, could not be restored: %s", self.found_w, error)
            return
        self._release()

    def _give_back_earlier(self) -> None:
        """Restore what an earlier trial found, where the limit is still the one that it left behind."""
        present_w = self.device.limit_w()
        if present_w is None or self._found_earlier_w is None:
            return
        earlier_w, left_w = self._found_earlier_w
        if not same_w(present_w, left_w) or earlier_w <= present_w:
            return
        try:
            self.device.set_limit_w(earlier_w)
        except DeviceError as error:
            log.warning("An earlier trial left the power limit at %s W instead of %s W: %s", left_w, earlier_w, error)

    def _release(self) -> None:
        with self._guard_lock:
            guard, self._guard = self._guard, None
        if guard is not None:
            guard.finish()
