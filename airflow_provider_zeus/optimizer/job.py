"""``ZeusJob``: what a DAG author says of a recurring training. Standard library only: it is imported at DAG parse."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.optimizer.target import Target

POLICIES = ("zeus",)
MODES = ("optimize", "observe", "measure", "off")
RUN_TYPES = ("scheduled", "asset_triggered", "manual", "backfill", "test")
DEVICES = ("auto", "none")  # and "simulated:<gpu>/<load>"


def is_deferred(value: object) -> bool:
    """Whether a value is known only when the task runs: a template, or something that Airflow resolves (XComArg)."""
    return (isinstance(value, str) and ("{{" in value or "{%" in value)) or hasattr(value, "resolve")


@dataclass(frozen=True, kw_only=True)
class ZeusJob:
    """A recurring training and how to weigh its energy against its time.

    Every field may be a template string or an XComArg; literals are checked here, the rest before the first question
    to the store, by the same function. Raises JobSpecError naming field, value and remedy.

    :param batch_sizes: batch sizes that may be chosen [samples].
    :param default_batch_size: the one you would use without Zeus; tried first, and the fall-back. In ``batch_sizes``.
    :param target: when an epoch's metric is good enough, as ``"accuracy >= 0.84"``; ``"rmse <= runtime"`` is completed
        by ``run.set_target()``.
    :param max_epochs: epochs after which a training ends even below its target.
    :param eta: weight of energy against time in the cost (Eq. 2): 1 is energy alone, 0 is time alone.
    :param beta: exploration is given up at ``beta`` times the incumbent's believed cost (section 4.4); above 1.
    :param policy: how the next batch size is chosen.
    :param window: the bandit remembers this many converged recurrences (section 4.4, data drift).
    :param job_id: name of the job in the log; default ``<dag_id>.<task_id>``.
    :param job_version: change it when model or code change so much that the history should be forgotten.
    :param data_slice: name of the data of a run; default the partition key, else the end of the data interval.
    :param device: ``"auto"``, ``"none"``, or ``"simulated:<gpu>/<load>"``.
    :param mode: ``optimize`` sets power limits, ``observe`` sets them only while profiling, ``measure`` never sets one,
        ``off`` measures nothing.
    :param power_limits_w: limits to try [W]; default every 25 W of the device's range.
    :param max_power_w: MAXPOWER of Eq. 2 [W] where the device does not tell it.
    :param profile_s: seconds of steady training to measure at each limit (section 5: five suffice).
    :param profile_steps: and at least so many optimizer steps.
    :param learn_from: run types that teach the bandit; others are logged and shown.
    :param require_target: fail the task when the kept model is below the target.
    :param strict: fail the task when the store cannot be reached; default: train on, tell the cost later.
    :param seed: user's seed, mixed into each decision's own.
    """

    batch_sizes: Sequence[int]
    default_batch_size: int
    target: str
    max_epochs: int | None = None  # checked below, so that leaving it out is named like any other mistake
    eta: float = 0.5
    beta: float = 2.0
    policy: str = "zeus"
    window: int = 500
    job_id: str | None = None
    job_version: str = "1"
    data_slice: str | None = None
    device: str = "auto"
    mode: str = "optimize"
    power_limits_w: Sequence[float] | None = None
    max_power_w: float | None = None
    profile_s: float = 5.0
    profile_steps: int = 10
    learn_from: Sequence[str] = ("scheduled", "asset_triggered", "manual")
    require_target: bool = False
    strict: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        self.check()

    def check(self, *, rendered: bool = False) -> Self:
        """Check every literal; with ``rendered`` a template that is still there is an error too. Returns self."""
        for name, verify in _CHECKS.items():
            value = getattr(self, name)
            if not is_deferred(value):
                verify(self, name, value)
            elif rendered:
                raise _bad(
                    name, value, "a template that was not rendered", "use it in a templated field of the operator"
                )
        return self

    @property
    def parsed_target(self) -> Target:
        """The target, read."""
        return Target.parse(self.target)

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """The job with live settings applied (``eta``; pause and pin are read by ``choose``). Checked again."""
        return replace(self, eta=settings["eta"]) if "eta" in settings else self

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; templates and XComArgs are kept as they are for Airflow to render."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls, spec: Mapping[str, Any]) -> Self:
        """Build and check a job from :meth:`to_dict`, a mapped dict, or a rendered one (numbers may be strings)."""
        known = {f.name for f in fields(cls)}
        for name in spec:
            if name not in known:
                raise _bad(name, spec[name], "no such field of a job", f"use one of {', '.join(sorted(known))}")
        for name in ("batch_sizes", "default_batch_size", "target"):
            if name not in spec:
                raise _bad(name, None, "is missing", "every job needs it")
        return cls(**{name: _coerced(name, value) for name, value in spec.items()})


def _bad(name: str, value: object, problem: str, remedy: str) -> JobSpecError:
    return JobSpecError.of(f"ZeusJob.{name}", value, problem, remedy)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _coerced(name: str, value: Any) -> Any:
    """Rendered templates arrive as text; turn it back into what the field holds. What does not fit stays text."""
    if not isinstance(value, str) or is_deferred(value) or name not in _NUMBERS:
        return value
    read = _NUMBERS[name]
    try:
        return [read(part) for part in value.strip("[]() ").split(",")] if name in _LISTS else read(value)
    except ValueError:
        return value


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _sequence(job: ZeusJob, name: str, value: Any) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise _bad(name, value, "not a list with at least one entry", "give a list, as in [16, 32, 64]")


def _batch_sizes(job: ZeusJob, name: str, value: Any) -> None:
    _sequence(job, name, value)
    for entry in value:
        if not _whole(entry) or entry <= 0:
            raise _bad(
                name, value, f"{entry!r} is not a positive whole number", "give batch sizes as positive integers"
            )
    twice = sorted({b for b in value if list(value).count(b) > 1})
    if twice:
        raise _bad(name, value, f"{twice[0]} is there more than once", "name each batch size once")


def _default(job: ZeusJob, name: str, value: Any) -> None:
    if not is_deferred(job.batch_sizes) and value not in job.batch_sizes:
        raise _bad(name, value, f"not in batch_sizes {list(job.batch_sizes)}", "add it there or choose one of them")


def _target(job: ZeusJob, name: str, value: Any) -> None:
    try:
        Target.parse(value)
    except JobSpecError as error:
        raise JobSpecError(f"ZeusJob.{error}") from None


def _window(job: ZeusJob, name: str, value: Any) -> None:
    _at_least(1)(job, name, value)
    if not is_deferred(job.batch_sizes) and value < 2 * len(job.batch_sizes):
        raise _bad(
            name,
            value,
            f"too small for {len(job.batch_sizes)} batch sizes: exploration alone would fill it",
            f"use at least {2 * len(job.batch_sizes)} (two converged recurrences per batch size) or fewer batch sizes",
        )


def _device(job: ZeusJob, name: str, value: Any) -> None:
    if value not in DEVICES and not (isinstance(value, str) and value.startswith("simulated:") and "/" in value):
        known = ", ".join(repr(d) for d in DEVICES)
        raise _bad(
            name, value, "no such device", f"use {known} or 'simulated:<gpu>/<load>', as 'simulated:v100/shufflenet'"
        )


def _limits(job: ZeusJob, name: str, value: Any) -> None:
    if value is None:
        return
    _sequence(job, name, value)
    for entry in value:
        if not _finite(entry) or entry <= 0:
            raise _bad(
                name,
                value,
                f"{entry!r} is not a positive number of watts",
                "give limits in watts, as in [150, 200, 250]",
            )


def _learn_from(job: ZeusJob, name: str, value: Any) -> None:
    _sequence(job, name, value)
    for entry in value:
        _one_of(RUN_TYPES)(job, name, entry)


Check = Callable[[ZeusJob, str, Any], None]


def _one_of(allowed: Sequence[str]) -> Check:
    def check(job: ZeusJob, name: str, value: Any) -> None:
        if value not in allowed:
            raise _bad(name, value, "not known", f"use one of {', '.join(allowed)}")

    return check


def _at_least(least: int) -> Check:
    def check(job: ZeusJob, name: str, value: Any) -> None:
        if value is None:
            raise _bad(name, value, "is missing", f"set it to a whole number of at least {least}")
        if not _whole(value) or value < least:
            raise _bad(name, value, f"not a whole number of at least {least}", f"set it to {least} or more")

    return check


def _number(ok: Callable[[float], bool], problem: str, remedy: str, *, optional: bool = False) -> Check:
    def check(job: ZeusJob, name: str, value: Any) -> None:
        if not (optional and value is None) and not (_finite(value) and ok(value)):
            raise _bad(name, value, problem, remedy)

    return check


def _text(job: ZeusJob, name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise _bad(name, value, "not a text", "give a text of at least one character")


def _optional_text(job: ZeusJob, name: str, value: Any) -> None:
    if value is not None:
        _text(job, name, value)


def _flag(job: ZeusJob, name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise _bad(name, value, "neither True nor False", "set it to True or False")


_POSITIVE_W = "set it to the device's highest power limit in watts, or leave it out"
_CHECKS: dict[str, Check] = {
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
    "mode": _one_of(MODES),
    "power_limits_w": _limits,
    "max_power_w": _number(lambda v: v > 0, "not a positive number of watts", _POSITIVE_W, optional=True),
    "profile_s": _number(lambda v: v > 0, "not a positive number of seconds", "5 is usually enough"),
    "profile_steps": _at_least(1),
    "learn_from": _learn_from,
    "require_target": _flag,
    "strict": _flag,
    "seed": _at_least(0),
}
_NUMBERS: dict[str, Callable[[str], int | float]] = {
    "batch_sizes": int,
    "default_batch_size": int,
    "max_epochs": int,
    "eta": float,
    "beta": float,
    "window": int,
    "power_limits_w": float,
    "max_power_w": float,
    "profile_s": float,
    "profile_steps": int,
    "seed": int,
}
_LISTS = ("batch_sizes", "power_limits_w")
