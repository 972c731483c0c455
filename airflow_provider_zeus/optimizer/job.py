"""``ZeusJob``: what a DAG author says of a recurring training. Standard library only: it is imported at DAG parse."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, fields, replace
from typing import Any, Self

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.optimizer.checks import CHECKS, bad, is_deferred
from airflow_provider_zeus.optimizer.target import Target


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
    :param beta: exploration is given up at ``beta`` times the incumbent's believed cost, at most (section 4.4); over 1.
    :param policy: how the next batch size is chosen: ``"knowledge_gradient"``, or the paper's ``"zeus"``.
    :param peek: deprecated and without effect: nothing runs any more after the model that is kept.
    :param window: the bandit remembers this many converged recurrences (section 4.4, data drift); a batch size that has
        not run among them is tried again.
    :param job_id: name of the job in the log; default ``<dag_id>.<task_id>``.
    :param job_version: change it when model or code change so much that the history should be forgotten.
    :param data_slice: name of the data of a run; default the partition key, else the end of the data interval.
    :param device: ``"auto"`` (an NVIDIA GPU, else what the host has), ``"nvml"`` (a GPU, or an error), ``"rapl"`` (the
        host's processors, or an error), ``"none"``, or ``"simulated:<gpu>/<load>"``.
    :param gpus: GPUs of one host that train together; default: those that ``CUDA_VISIBLE_DEVICES`` names, without it
        one; where several processes train together, one for each.
    :param mode: ``optimize`` sets power limits, ``observe`` sets them only while profiling, ``measure`` never sets one,
        ``off`` measures nothing.
    :param gpu_lock: ``wait`` until no other training of this host is on the GPU, or ``share`` it: then no limit is set
        and energy and time teach nothing.
    :param power_limits_w: limits to try [W]; default every 25 W of the device's range.
    :param power_objective: what the best of them has least of: ``"cost"`` (Eq. 7), ``"energy"`` or ``"time"``, or
        ``"max_slowdown=1.05"``: least energy among those that take at most 1.05 times as long as full power.
    :param max_power_w: MAXPOWER of Eq. 2 [W] where the device does not tell it.
    :param profile_s: seconds of steady training to measure at each limit (section 5: five suffice).
    :param profile_steps: and at least so many optimizer steps.
    :param learn_from: run types that teach the bandit; others are logged and shown.
    :param require_target: fail the task when the kept model is below the target.
    :param strict: fail the task when the store cannot be reached, and when the try of a batch size raises an error;
        default: train on and store the cost later, give the try up and train the best known batch size.
    :param seed: user's seed, mixed into each decision's own.
    """

    batch_sizes: Sequence[int]
    default_batch_size: int
    target: str
    max_epochs: int | None = None  # checked below, so that leaving it out is named like any other mistake
    eta: float = 0.5
    beta: float = 2.0
    policy: str = "knowledge_gradient"
    window: int = 250
    peek: InitVar[bool | None] = None
    job_id: str | None = None
    job_version: str = "1"
    data_slice: str | None = None
    device: str = "auto"
    gpus: int | None = None
    mode: str = "optimize"
    gpu_lock: str = "wait"
    power_limits_w: Sequence[float] | None = None
    power_objective: str = "cost"
    max_power_w: float | None = None
    profile_s: float = 5.0
    profile_steps: int = 10
    learn_from: Sequence[str] = ("scheduled", "asset_triggered", "manual")
    require_target: bool = False
    strict: bool = False
    seed: int = 0

    def __post_init__(self, peek: bool | None) -> None:
        if peek is not None:
            warnings.warn("ZeusJob(peek=...) has no effect any more: remove it.", DeprecationWarning, stacklevel=3)
        self.check()
        for name in _LISTS:  # the job's own, so that the caller's list may change
            value = getattr(self, name)
            if value is not None and not is_deferred(value):
                object.__setattr__(self, name, tuple(value))

    def check(self, *, rendered: bool = False) -> Self:
        """Check every literal; with ``rendered`` a template that is still there is an error too. Returns self."""
        for name, verify in CHECKS.items():
            value = getattr(self, name)
            if not is_deferred(value):
                verify(self, name, value)
            elif rendered:
                raise bad(
                    name, value, "a template that was not rendered", "use it in a templated field of the operator"
                )
        return self

    @property
    def parsed_target(self) -> Target:
        """The target, read."""
        return Target.parse(self.target)

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """The job with live settings applied (``eta``, ``job_version``; ``choose`` reads pause and pin). Checked again.

        A version is put after the job's own, once: a later change in the DAG starts the job anew too.
        """
        job = replace(self, eta=settings["eta"]) if "eta" in settings else self
        suffix = f"+{settings['job_version']}" if "job_version" in settings else ""
        return job if job.job_version.endswith(suffix) else replace(job, job_version=job.job_version + suffix)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; templates and XComArgs are kept as they are for Airflow to render."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_dict(cls, spec: Mapping[str, Any]) -> Self:
        """Build and check a job from :meth:`to_dict`, a mapped dict, or a rendered one (numbers may be strings)."""
        if not isinstance(spec, Mapping):  # a whole job as an XComArg, say
            problem = "known only when the task runs" if is_deferred(spec) else "neither a ZeusJob nor a dict"
            raise JobSpecError.of("job", spec, problem, "give a ZeusJob or a dict; its fields may be XComArgs")
        known = {f.name for f in fields(cls)}
        spec = {name: value for name, value in spec.items() if name not in _RETIRED}  # of an old row, or a mapped dict
        for name in spec:
            if name not in known:
                raise bad(name, spec[name], "no such field of a job", f"use one of {', '.join(sorted(known))}")
        for name in ("batch_sizes", "default_batch_size", "target"):
            if name not in spec:
                raise bad(name, None, "is missing", "every job needs it")
        return cls(**{name: _coerced(name, value) for name, value in spec.items()})


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _coerced(name: str, value: Any) -> Any:
    """Rendered templates arrive as text; turn it back into what the field holds. What does not fit stays text."""
    if name in _TEXTS and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)  # rendered by a DAG with render_template_as_native_obj
    if not isinstance(value, str) or is_deferred(value) or name not in _READ:
        return value
    read = _READ[name]
    try:
        return [read(part) for part in value.strip("[]() ").split(",")] if name in _LISTS else read(value)
    except (ValueError, KeyError):
        return value


_TEXTS = ("job_id", "job_version", "data_slice")
_FLAGS = {"True": True, "true": True, "False": False, "false": False}
_READ: dict[str, Callable[[str], Any]] = {
    "batch_sizes": int,
    "default_batch_size": int,
    "max_epochs": int,
    "eta": float,
    "beta": float,
    "window": int,
    "gpus": int,
    "power_limits_w": float,
    "max_power_w": float,
    "profile_s": float,
    "profile_steps": int,
    "seed": int,
    "learn_from": lambda part: part.strip(" '\""),
    "require_target": _FLAGS.__getitem__,
    "strict": _FLAGS.__getitem__,
}
_RETIRED = ("peek",)
_LISTS = ("batch_sizes", "power_limits_w", "learn_from")
