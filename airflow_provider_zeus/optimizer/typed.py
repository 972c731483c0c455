"""Whether what was read from JSON holds the kinds of values that it says. Standard library only.

Plans, results and Variables may come from another version, or from anybody's hand: what does not fit is named where it
is read, and not by an error from the midst of a decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

from airflow_provider_zeus.optimizer.trial import Trial

_MOST = 2.0**64  # of any number: sums of such are finite
NEVER_NEGATIVE = {"epochs", "samples", "samples_per_epoch", "energy_j", "time_s", "max_power_w", "power_limit_w"}
_SPEC = {  # what every job says, and what is read of it
    "batch_sizes": "whole numbers",
    "default_batch_size": "int",
    "target": "str",
    "job_version": "str",
    "policy": "str",
    "eta": "float",
    "beta": "float",
    "window": "int",
    "seed": "int",
}
_NEEDED = ("batch_sizes", "default_batch_size", "target")
_NAMES = ("start_id", "ti_id", "job_id")
_COUNTS = ("attempt", "try_number", "map_index")  # 32 bits in a database
_SUMS = ("samples", "steps")  # may be told as 5.0
_MOST_START_ID = 100  # characters; ours has 32


def check_fields(*parts: Any) -> None:
    """Raises ValueError, naming it, where a field of one of these data classes holds another kind of value."""
    for part in parts:
        for name, kind, optional in _kinds(type(part)):  # type: ignore[arg-type]
            value = getattr(part, name)
            if value is not None or not optional:
                check(name, kind, value)


def check_trial(trial: Trial) -> None:
    """The same for a trial, with all that it holds and what a decision reads of its job."""
    decision, spec = trial.decision, trial.spec
    check_fields(trial, trial.key, trial.origin, trial.observation, decision)
    check_fields(*decision.in_order, trial.planned)
    for name, kind in _SPEC.items():
        if name in spec or name in _NEEDED:
            check(name, kind, spec.get(name))
    for batch_size in (trial.batch_size, *spec["batch_sizes"]):
        _refuse_unless(batch_size > 0, "batch_size", batch_size, "not above 0")
    for name in NEVER_NEGATIVE:
        value = getattr(trial.observation, name)
        _refuse_unless(value is None or value >= 0, name, value, "below 0")


def check(name: str, kind: str, value: Any) -> None:
    """Raises ValueError where a value is not of a kind; a number must be one that can be summed."""
    if kind in ("int", "float"):
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MOST
        _refuse_unless(is_number, name, value, "no number that can be kept")
        _refuse_unless(kind == "float" or name in _SUMS or isinstance(value, int), name, value, "no whole number")
        _refuse_unless(name not in _COUNTS or abs(value) < 2**31, name, value, "beyond what is counted")
    elif kind == "bool":
        _refuse_unless(isinstance(value, bool), name, value, "neither true nor false")
    elif kind == "str":
        _refuse_unless(isinstance(value, str), name, value, "no text")
        if name in _NAMES:  # kept as they are, or not at all
            _refuse_unless("\0" not in value.encode().decode(), name, value, "no text that can be kept")
            plain = len(value) <= _MOST_START_ID and value.isprintable()
            _refuse_unless(plain or name != "start_id", name, value, "no name of a start")
    elif kind == "Mapping":
        _refuse_unless(isinstance(value, Mapping), name, value, "no object")
        for why in value.values() if name == "reasons" else ():
            check("reason", "str", why)
    elif kind in ("numbers", "whole numbers"):
        _refuse_unless(isinstance(value, list | tuple), name, value, "no list")
        for each in value:
            check(name, "float" if kind == "numbers" else "int", each)


def _refuse_unless(good: bool, name: str, value: Any, problem: str) -> None:
    if not good:
        raise ValueError(f"{name} = {str(value)[:80]!r} is {problem}")


@lru_cache(maxsize=32)
def _kinds(of: Any) -> tuple[tuple[str, str, bool], ...]:
    return tuple((f.name, _kind(str(f.type)), str(f.type).endswith("None")) for f in fields(of))


def _kind(said: str) -> str:
    plain = said.removesuffix(" | None")
    if plain.startswith("tuple[float"):
        return "numbers"
    return "Mapping" if plain.startswith("Mapping") else plain
