"""The format of a limit's record: which limit was found, and which ones of ours may be in force
instead.

Every process that gives a limit back decides by it: the training, its guardian, the sidecar. Python
3.9 or newer, standard library only: the sidecar runs with this file on hosts that have nothing
else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

SAME_W = 0.5  # drivers round: the limit that was set may read slightly other
MOST_ROUNDING_W = 1.0  # by less than this a driver rounds: up, down or to the nearest watt
# All that JSON of a stranger may raise while it is read: none of it may stop a process.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


def new_record(found_w: float, *set_w: float) -> dict[str, Any]:
    """The record of a changed limit: the boot of the host, the limit found [W], the limits of which
    one is in force.

    A driver has its default limit after another boot, so there is nothing to give back then.
    """
    return {"boot_id": boot_id(), "found_w": found_w, "set_w": list(set_w)}


def read_record(text: bytes) -> dict[str, Any]:
    """Read a record. Raises ValueError: it is none."""
    try:
        record = json.loads(text)
        # json.loads() takes NaN and Infinity, too, which no driver may be asked for.
        if not all(0 < watts < math.inf for watts in (record["found_w"], *record["set_w"])):
            raise ValueError("it names no limit")
        return {"boot_id": "", **record}
    except UNREADABLE as error:
        raise ValueError(f"{type(error).__name__}: {error}"[:200]) from None


def to_give_back(record: dict[str, Any], present_w: float) -> tuple[float | None, str]:
    """The limit [W] to set so that the one found is in force, None if none is to be set; and a text
    for the log.
    """
    found_w = record["found_w"]
    if present_w == found_w:
        return None, f"the limit is {found_w:g} W as it was found"
    if not is_ours(present_w, found_w, record["set_w"]):
        return None, f"the limit is {present_w:g} W, which was not set by us: left alone"
    return found_w, f"restored {found_w:g} W from {present_w:g} W"


def is_ours(present_w: float, found_w: float, set_w: Iterable[float]) -> bool:
    """Whether the limit in force [W] is exactly the one found, or as near to one that we set as
    drivers round.

    A limit that is merely near the one found was set by us or by another process. Taking it for the
    one found would let the limit sink a little with each client.
    """
    if present_w == found_w:
        return True
    return any(same_w(present_w, limit_w) for limit_w in set_w if limit_w != found_w)


def same_w(one_w: float, other_w: float) -> bool:
    """Whether two limits [W] are equal to a driver that rounds."""
    return abs(one_w - other_w) < SAME_W


def is_rounded(in_force_w: float, set_w: float) -> bool:
    """Whether the limit in force [W] is one that was just set, but rounded by the driver: it is
    ours as well.
    """
    return in_force_w != set_w and abs(in_force_w - set_w) < MOST_ROUNDING_W


def boot_id() -> str:
    """The kernel's identifier of the present boot; empty if it has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
