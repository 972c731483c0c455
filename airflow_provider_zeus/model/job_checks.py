"""Checks of the fields of a :class:`ZeusJob`. Every error names field, value and remedy. Standard library only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model import deadline
from airflow_provider_zeus.model.budget import Budget
from airflow_provider_zeus.model.target import Target

POLICIES = ("knowledge_gradient", "zeus")
MODES = ("optimize", "observe", "measure", "off")
RUN_TYPES = ("scheduled", "asset_triggered", "manual", "backfill", "test")
GPU_LOCKS = ("wait", "share")
OBJECTIVES = ("cost", "energy", "time")  # what the best power limit minimises
ON_BUDGET = ("warn", "incumbent")
TRACKERS = ("mlflow",)  # each a module of integrations/
DEVICES = ("auto", "nvml", "rapl", "none")  # and "simulated:<gpu>/<load>"

Check = Callable[[Any, str, Any], None]  # batch sizes of the job, name of the field, its value; raises JobSpecError


def is_deferred(value: object) -> bool:
    """Whether a value is known only when the task runs: a template, or an XComArg."""
    return (isinstance(value, str) and ("{{" in value or "{%" in value)) or hasattr(value, "resolve")


def bad(name: str, value: object, problem: str, remedy: str) -> JobSpecError:
    """The error of one field of a job."""
    return JobSpecError.of(f"ZeusJob.{name}", value, problem, remedy)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _must(ok: Callable[[Any], bool], problem: str, remedy: str, *, optional: bool = False) -> Check:
    """A check of one condition; with ``optional`` None passes too."""

    def check(sizes: Any, name: str, value: Any) -> None:
        if not (optional and value is None) and not ok(value):
            raise bad(name, value, problem, remedy)

    return check


def _one_of(allowed: Sequence[str]) -> Check:
    return _must(lambda value: value in allowed, "not known", f"use one of {', '.join(allowed)}")


def _at_least(least: int) -> Check:
    """A check of a required whole number."""
    problem = f"not a whole number of at least {least}"
    whole = _must(lambda value: _whole(value) and value >= least, problem, f"set it to {least} or more")

    def check(sizes: Any, name: str, value: Any) -> None:
        if value is None:
            raise bad(name, value, "is missing", f"set it to a whole number of at least {least}")
        whole(sizes, name, value)

    return check


_LISTS = {  # an example of each field that is a list
    "batch_sizes": "[16, 32, 64]",
    "budget": '["50 kWh/month", "20 EUR/week"]',
    "learn_from": '["scheduled", "manual"]',
    "power_limits_w": "[150, 200, 250]",
}


def _sequence(sizes: Any, name: str, value: Any) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise bad(name, value, "not a list with at least one entry", f"give a list, as in {_LISTS[name]}")


def _batch_sizes(sizes: Any, name: str, value: Any) -> None:
    _sequence(sizes, name, value)
    for entry in value:
        if not _whole(entry) or entry <= 0:
            raise bad(name, value, f"{entry!r} is not a positive whole number", "give batch sizes as positive integers")
    twice = sorted({b for b in value if list(value).count(b) > 1})
    if twice:
        raise bad(name, value, f"{twice[0]} is there more than once", "name each batch size once")


def _default(sizes: Any, name: str, value: Any) -> None:
    _at_least(1)(sizes, name, value)
    if not is_deferred(sizes) and value not in sizes:
        raise bad(name, value, f"not in batch_sizes {list(sizes)}", "add it there or choose one of them")


def _target(sizes: Any, name: str, value: Any) -> None:
    try:
        Target.parse(value)
    except JobSpecError as error:
        raise JobSpecError(f"ZeusJob.{error}") from None


def _window(sizes: Any, name: str, value: Any) -> None:
    _at_least(1)(sizes, name, value)
    if not is_deferred(sizes) and value < 2 * len(sizes):
        raise bad(
            name,
            value,
            f"too small for {len(sizes)} batch sizes: exploration alone would fill it",
            f"use at least {2 * len(sizes)} (two converged recurrences per batch size) or fewer batch sizes",
        )


def _device(sizes: Any, name: str, value: Any) -> None:
    if value not in DEVICES and not (isinstance(value, str) and value.startswith("simulated:") and "/" in value):
        known = ", ".join(repr(d) for d in DEVICES)
        remedy = f"use {known} or 'simulated:<gpu>/<load>', as 'simulated:v100/shufflenet'"
        raise bad(name, value, "no such device", remedy)


def _budget(sizes: Any, name: str, value: Any) -> None:
    several = isinstance(value, list | tuple) and value
    for text in value if several else [] if value is None else [value]:
        try:
            Budget.parse(text)
        except JobSpecError as error:
            raise JobSpecError(f"ZeusJob.{error}") from None


def _finish_by(sizes: Any, name: str, value: Any) -> None:
    try:
        if value is not None:
            deadline.parse(value)
    except JobSpecError as error:
        raise JobSpecError(f"ZeusJob.{error}") from None


def _start_within(sizes: Any, name: str, value: Any) -> None:
    try:
        length = value is None or isinstance(deadline.parse(value), timedelta)
    except JobSpecError:
        length = False
    if not length:
        raise bad(name, value, "no length of time", "give timedelta(hours=8), or '8 h', at most a year")


def _limits(sizes: Any, name: str, value: Any) -> None:
    if value is None:
        return
    _sequence(sizes, name, value)
    for entry in value:
        if not _finite(entry) or entry <= 0:
            problem = f"{entry!r} is not a positive number of watts"
            raise bad(name, value, problem, "give limits in watts, as in [150, 200, 250]")


def _learn_from(sizes: Any, name: str, value: Any) -> None:
    _sequence(sizes, name, value)
    for entry in value:
        _one_of(RUN_TYPES)(sizes, name, entry)


_ETA = "0 weighs time alone, 1 energy alone, 0.5 both"
_MAX_POWER_W = "set it to the device's highest power limit in watts, or leave it out"
_TEXT = ("not a text", "give a text of at least one character")
_signal = _must(
    lambda value: isinstance(value, str) and value != "",
    "no name of a signal",
    'use "carbon", "price" or the id of a Connection of type Zeus signal',
    optional=True,
)
_FLAG = _must(lambda value: isinstance(value, bool), "neither True nor False", "set it to True or False")
CHECKS: dict[str, Check] = {
    "batch_sizes": _batch_sizes,
    "default_batch_size": _default,
    "target": _target,
    "max_epochs": _at_least(1),
    "eta": _must(lambda value: _finite(value) and 0 <= value <= 1, "not a number from 0 to 1", _ETA),
    "beta": _must(
        lambda value: _finite(value) and value > 1,
        "not a number above 1",
        "2 gives exploration twice the incumbent's cost",
    ),
    "policy": _one_of(POLICIES),
    "window": _window,
    "budget": _budget,
    "on_budget": _one_of(ON_BUDGET),
    "retrain_every": _must(
        lambda value: _whole(value) and value >= 1,
        "not a whole number of at least 1",
        "give a number of runs, as 7, or leave it out",
        optional=True,
    ),
    "finish_by": _finish_by,
    "start_within": _start_within,
    "start_signal": _signal,
    "max_slowdown": _must(
        lambda value: _finite(value) and value >= 1,
        "not a number of at least 1",
        "1.2 lets a run take 1.2 times as long as the fastest known, or leave it out",
        optional=True,
    ),
    "expected_runs": _must(
        lambda value: _whole(value) and value >= 1,
        "not a whole number of at least 1",
        "give the number of scheduled runs of the job, or leave it out",
        optional=True,
    ),
    "audit": _must(
        lambda value: _finite(value) and 0 <= value <= 1,
        "not a share from 0 to 1",
        "0.02 lets audits take 2 % of what the job spends, 0 turns them off",
    ),
    "job_id": _must(lambda value: isinstance(value, str) and value != "", *_TEXT, optional=True),
    "job_version": _must(lambda value: isinstance(value, str) and value != "", *_TEXT),
    "data_slice": _must(lambda value: isinstance(value, str) and value != "", *_TEXT, optional=True),
    "device": _device,
    "gpus": _must(
        lambda value: _whole(value) and value >= 1,
        "not a whole number of at least 1",
        "give the GPUs of one host, or leave it out",
        optional=True,
    ),
    "mode": _one_of(MODES),
    "gpu_lock": _one_of(GPU_LOCKS),
    "power_limits_w": _limits,
    "power_objective": _one_of(OBJECTIVES),
    "follow": _signal,
    "max_power_w": _must(
        lambda value: _finite(value) and 0 < value <= 1e6,
        "not a number of watts above 0 and up to a million",
        _MAX_POWER_W,
        optional=True,
    ),
    "profile_s": _must(
        lambda value: _finite(value) and value > 0, "not a positive number of seconds", "5 is usually enough"
    ),
    "profile_steps": _at_least(1),
    "learn_from": _learn_from,
    "log_to": _must(
        lambda value: isinstance(value, list | tuple) and all(entry in TRACKERS for entry in value),
        "no list of known trackers",
        'give ["mlflow"], or leave it out',
    ),
    "require_target": _FLAG,
    "strict": _FLAG,
    "seed": _at_least(0),
}
