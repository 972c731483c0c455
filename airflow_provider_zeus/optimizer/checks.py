"""What each field of a :class:`ZeusJob` must be. Every error names field, value and remedy. Standard library only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.optimizer.objective import OBJECTIVES, slowdown_of
from airflow_provider_zeus.optimizer.target import Target

if TYPE_CHECKING:
    from airflow_provider_zeus.optimizer.job import ZeusJob

POLICIES = ("knowledge_gradient", "zeus")
MODES = ("optimize", "observe", "measure", "off")
RUN_TYPES = ("scheduled", "asset_triggered", "manual", "backfill", "test")
GPU_LOCKS = ("wait", "share")
DEVICES = ("auto", "nvml", "rapl", "none")  # and "simulated:<gpu>/<load>"


def is_deferred(value: object) -> bool:
    """Whether a value is known only when the task runs: a template, or something that Airflow resolves (XComArg)."""
    return (isinstance(value, str) and ("{{" in value or "{%" in value)) or hasattr(value, "resolve")


def bad(name: str, value: object, problem: str, remedy: str) -> JobSpecError:
    """The error of one field of a job."""
    return JobSpecError.of(f"ZeusJob.{name}", value, problem, remedy)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _sequence(job: ZeusJob, name: str, value: Any) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise bad(name, value, "not a list with at least one entry", "give a list, as in [16, 32, 64]")


def _batch_sizes(job: ZeusJob, name: str, value: Any) -> None:
    _sequence(job, name, value)
    for entry in value:
        if not _whole(entry) or entry <= 0:
            raise bad(name, value, f"{entry!r} is not a positive whole number", "give batch sizes as positive integers")
    twice = sorted({b for b in value if list(value).count(b) > 1})
    if twice:
        raise bad(name, value, f"{twice[0]} is there more than once", "name each batch size once")


def _default(job: ZeusJob, name: str, value: Any) -> None:
    _at_least(1)(job, name, value)
    if not is_deferred(job.batch_sizes) and value not in job.batch_sizes:
        raise bad(name, value, f"not in batch_sizes {list(job.batch_sizes)}", "add it there or choose one of them")


def _target(job: ZeusJob, name: str, value: Any) -> None:
    try:
        Target.parse(value)
    except JobSpecError as error:
        raise JobSpecError(f"ZeusJob.{error}") from None


def _window(job: ZeusJob, name: str, value: Any) -> None:
    _at_least(1)(job, name, value)
    if not is_deferred(job.batch_sizes) and value < 2 * len(job.batch_sizes):
        raise bad(
            name,
            value,
            f"too small for {len(job.batch_sizes)} batch sizes: exploration alone would fill it",
            f"use at least {2 * len(job.batch_sizes)} (two converged recurrences per batch size) or fewer batch sizes",
        )


def _device(job: ZeusJob, name: str, value: Any) -> None:
    if value not in DEVICES and not (isinstance(value, str) and value.startswith("simulated:") and "/" in value):
        known = ", ".join(repr(d) for d in DEVICES)
        raise bad(
            name, value, "no such device", f"use {known} or 'simulated:<gpu>/<load>', as 'simulated:v100/shufflenet'"
        )


def _limits(job: ZeusJob, name: str, value: Any) -> None:
    if value is None:
        return
    _sequence(job, name, value)
    for entry in value:
        if not _finite(entry) or entry <= 0:
            raise bad(
                name,
                value,
                f"{entry!r} is not a positive number of watts",
                "give limits in watts, as in [150, 200, 250]",
            )


def _objective(job: ZeusJob, name: str, value: Any) -> None:
    remedy = f"use one of {', '.join(OBJECTIVES)}, or 'max_slowdown=1.05' with a factor of at least 1"
    try:
        known = isinstance(value, str) and (value in OBJECTIVES or slowdown_of(value) is not None)
    except ValueError:
        raise bad(name, value, "not a factor of at least 1", remedy) from None
    if not known:
        raise bad(name, value, "not known", remedy)


def _learn_from(job: ZeusJob, name: str, value: Any) -> None:
    _sequence(job, name, value)
    for entry in value:
        _one_of(RUN_TYPES)(job, name, entry)


Check = Callable[["ZeusJob", str, Any], None]


def _one_of(allowed: Sequence[str]) -> Check:
    def check(job: ZeusJob, name: str, value: Any) -> None:
        if value not in allowed:
            raise bad(name, value, "not known", f"use one of {', '.join(allowed)}")

    return check


def _at_least(least: int) -> Check:
    def check(job: ZeusJob, name: str, value: Any) -> None:
        if value is None:
            raise bad(name, value, "is missing", f"set it to a whole number of at least {least}")
        if not _whole(value) or value < least:
            raise bad(name, value, f"not a whole number of at least {least}", f"set it to {least} or more")

    return check


def _gpus(job: ZeusJob, name: str, value: Any) -> None:
    if value is not None and (not _whole(value) or value < 1):
        raise bad(name, value, "not a whole number of at least 1", "give the GPUs of one host, or leave it out")


def _number(ok: Callable[[float], bool], problem: str, remedy: str, *, optional: bool = False) -> Check:
    def check(job: ZeusJob, name: str, value: Any) -> None:
        if not (optional and value is None) and not (_finite(value) and ok(value)):
            raise bad(name, value, problem, remedy)

    return check


def _text(job: ZeusJob, name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise bad(name, value, "not a text", "give a text of at least one character")


def _optional_text(job: ZeusJob, name: str, value: Any) -> None:
    if value is not None:
        _text(job, name, value)


def _flag(job: ZeusJob, name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise bad(name, value, "neither True nor False", "set it to True or False")


_POSITIVE_W = "set it to the device's highest power limit in watts, or leave it out"
CHECKS: dict[str, Check] = {
    "batch_sizes": _batch_sizes,
    "default_batch_size": _default,
    "target": _target,
    "max_epochs": _at_least(1),
    "eta": _number(lambda v: 0 <= v <= 1, "not a number from 0 to 1", "0 weighs time alone, 1 energy alone, 0.5 both"),
    "beta": _number(lambda v: v > 1, "not a number above 1", "2 gives exploration twice the incumbent's cost"),
    "policy": _one_of(POLICIES),
    "window": _window,
    "job_id": _optional_text,
    "job_version": _text,
    "data_slice": _optional_text,
    "device": _device,
    "gpus": _gpus,
    "mode": _one_of(MODES),
    "gpu_lock": _one_of(GPU_LOCKS),
    "power_limits_w": _limits,
    "power_objective": _objective,
    "max_power_w": _number(lambda v: v > 0, "not a positive number of watts", _POSITIVE_W, optional=True),
    "profile_s": _number(lambda v: v > 0, "not a positive number of seconds", "5 is usually enough"),
    "profile_steps": _at_least(1),
    "learn_from": _learn_from,
    "require_target": _flag,
    "strict": _flag,
    "seed": _at_least(0),
}
