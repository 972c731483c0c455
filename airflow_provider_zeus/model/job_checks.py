"""Types of the fields of a :class:`ZeusJob`: each says which values its field can have, and what to do about others.

Standard library only.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Self, Union, get_args, get_origin

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model import deadline
from airflow_provider_zeus.model.target import Target

POLICIES = ("knowledge_gradient", "zeus")
RUN_TYPES = ("scheduled", "asset_triggered", "manual", "backfill", "test")
DEVICES = ("auto", "nvml", "rapl", "none")  # and "simulated:<gpu>/<load>"


class Start(StrEnum):
    """Where a training starts."""

    COLD = "cold"  # from fresh weights
    SHRUNK = "shrunk"  # from half of the earlier model's weights and a tenth of the fresh ones
    WARM = "warm"  # from the earlier model's weights


Refusal = tuple[str, str] | None  # what is wrong with a value, and the remedy
Rule = Callable[[Any], Refusal]


def is_deferred(value: object) -> bool:
    """Whether a value is known only when the task runs: a template, or an XComArg."""
    return (isinstance(value, str) and ("{{" in value or "{%" in value)) or hasattr(value, "resolve")


def plain(value: Any) -> Any:
    """Numbers and arrays of numpy as Python's own, in lists too; anything else unchanged."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return value


def is_missing(value: object) -> bool:
    """Whether a field was left out that has no default."""
    return value is None or (isinstance(value, tuple) and not value)


def bad(name: str, value: object, problem: str, remedy: str) -> JobSpecError:
    """The error of one field of a job."""
    return JobSpecError.of(f"ZeusJob.{name}", value, problem, remedy)


@dataclass(frozen=True, slots=True)
class JobField:
    """What the type of a field says: its rule, whether it may be left out, and what a rendered text is read as."""

    rule: Rule
    optional: bool
    kind: type
    is_list: bool

    @classmethod
    def of(cls, hint: Any) -> Self:
        """What a type says: one of this module, or such a one and None."""
        parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        kind, rule = get_args(next(part for part in parts if part is not NoneType))
        kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
        lists = [get_args(each)[0] for each in kinds if get_origin(each) is Sequence]
        return cls(rule, NoneType in parts, (*lists, *kinds)[0], bool(lists))

    def check(self, name: str, value: Any) -> None:
        """Raises JobSpecError that names field, value and remedy."""
        if value is None and self.optional:
            return
        try:
            refusal = self.rule(value)
        except JobSpecError as error:  # of a target or a deadline
            raise JobSpecError(f"ZeusJob.{error}") from None
        if refusal is not None:
            missing = is_missing(value)
            raise bad(name, None if missing else value, "is missing" if missing else refusal[0], refusal[1])

    def read(self, value: Any) -> Any:
        """A rendered template is text: convert it to the field's type, or return it unchanged where that fails."""
        if self.kind is str and isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)  # rendered by a DAG with render_template_as_native_obj
        if not isinstance(value, str) or is_deferred(value) or (self.kind is str and not self.is_list):
            return value
        try:
            if self.is_list:
                parts = value.strip("[]() ").split(",") if value != "[]" else []
                return [part.strip(" '\"") if self.kind is str else self.kind(part) for part in parts]
            if self.kind is bool:
                return {"true": True, "false": False}[value[:1].lower() + value[1:]]
            return self.kind(value)
        except (ValueError, KeyError):
            return value


def _must(ok: Callable[[Any], object], problem: str, remedy: str) -> Rule:
    return lambda value: None if ok(value) else (problem, remedy)


def _number(
    what: str, remedy: str, low: float, high: float = sys.float_info.max, *, above: bool = False, whole: bool = False
) -> Rule:
    """A number from ``low`` to ``high``; ``above``: not ``low`` itself."""

    def refuse(value: Any) -> Refusal:
        fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        return None if fits and low <= value <= high and not (above and value == low) else (f"not {what}", remedy)

    return refuse


def _at_least(least: int, remedy: str = "") -> Rule:
    what, remedy = f"a whole number of at least {least}", remedy or f"set it to {least} or more"
    return _number(what, remedy, least, math.inf, whole=True)


def _one_of(*allowed: str, remedy: str = "") -> Rule:
    return _must(lambda value: value in allowed, "not known", remedy or f"use one of {', '.join(allowed)}")


def _text(problem: str, remedy: str) -> Rule:
    return _must(lambda value: isinstance(value, str) and value != "", problem, remedy)


def fits_index(job_id: str) -> bool:
    """Whether a database can hold an id of a job: 1000 bytes, with those of a DAG and a run in an index of 2704."""
    return len(job_id.encode(errors="surrogatepass")) <= 1000


def _job_id(value: Any) -> Refusal:
    if isinstance(value, str) and value and not fits_index(value):
        return "longer than 1000 bytes of UTF-8", "shorten it: a character beyond ASCII takes 2 to 4 bytes"
    return _name(value)


def check_new_id(what: str, job_id: str) -> None:
    """Raise JobSpecError where a command was given no id for a job. ``what``: its argument."""
    if not job_id or not job_id.isprintable() or not fits_index(job_id):
        remedy = "Give at most 1000 bytes of UTF-8, all printable (a character beyond ASCII takes 2 to 4 bytes)"
        raise JobSpecError.of(what, job_id, "not a name of a job", remedy)


_name = _text("not a text", "give a text of at least one character")


def _list_of(rule: Rule, example: str, *, once: str = "") -> Rule:
    """A list with at least one entry, each of which keeps ``rule``. ``once``: the remedy where one is there twice."""

    def refuse(value: Any) -> Refusal:
        if isinstance(value, str) or not isinstance(value, Sequence) or not value:
            return "not a list with at least one entry", f"give a list, as in {example}"
        for entry in value:
            if (refusal := rule(entry)) is not None:
                return f"{entry!r} is {refusal[0]}", refusal[1]
        for entry in sorted(value) if once else ():
            if list(value).count(entry) > 1:
                return f"{entry} is there more than once", once
        return None

    return refuse


_SOME_STARTS = 'give ["cold"], or ["cold", "shrunk", "warm"]'
_some_starts = _list_of(_one_of(*Start, remedy=_SOME_STARTS), '["cold", "warm"]', once=_SOME_STARTS)


def _starts(value: Any) -> Refusal:
    refusal = _some_starts(value)
    if refusal is None and Start.COLD not in value:
        return "a list without cold starts, which a first run and a broken chain need", _SOME_STARTS
    return refusal


def _start_within(value: Any) -> Refusal:
    try:
        length = isinstance(deadline.parse(value), timedelta)
    except JobSpecError:
        length = False
    return None if length else ("no length of time", "give timedelta(hours=8), or '8 h', at most a year")


BatchSizes = Annotated[
    Sequence[int],
    _list_of(
        _number("a positive whole number", "give batch sizes as positive integers", 1, math.inf, whole=True),
        "[16, 32, 64]",
        once="name each batch size once",
    ),
]
OneOrMore = Annotated[int, _at_least(1)]
DefaultSize = Annotated[int, _at_least(1, "set it to one of batch_sizes")]
NoneOrMore = Annotated[int, _at_least(0)]
TrialNumbers = Annotated[
    Sequence[int],
    _list_of(_number("a trial's number", "give numbers of trials", 1, 2**53, whole=True), "[17, 18]"),
]
MaxEpochs = Annotated[int | None, _at_least(1)]  # None is refused like any other value that is wrong
TargetText = Annotated[str, lambda value: Target.parse(value) and None]
Eta = Annotated[float, _number("a number from 0 to 1", "0 weighs time alone, 1 energy alone, 0.5 both", 0, 1)]
Policy = Annotated[str, _one_of(*POLICIES)]
ExpectedRuns = Annotated[int, _at_least(1, "give the number of scheduled runs of the job, or leave it out")]
Starts = Annotated[Sequence[str], _starts]
RetrainEvery = Annotated[int, _at_least(1, "give a number of runs, as 7, or leave it out")]
FinishBy = Annotated[str | datetime | timedelta, lambda value: deadline.parse(value) and None]
StartWithin = Annotated[str | timedelta, _start_within]
Signal = Annotated[
    str, _text("no name of a signal", 'use "carbon", "price" or the id of a Connection of type Zeus signal')
]
Audit = Annotated[
    float, _number("a share from 0 to 1", "0.02 lets audits take 2 % of what the job spends, 0 turns them off", 0, 1)
]
Name = Annotated[str, _name]
JobId = Annotated[str, _job_id]
Device = Annotated[
    str,
    _must(
        lambda value: value in DEVICES or (isinstance(value, str) and value.startswith("simulated:") and "/" in value),
        "no such device",
        f"use {', '.join(map(repr, DEVICES))} or 'simulated:<gpu>/<load>', as 'simulated:v100/shufflenet'",
    ),
]
Gpus = Annotated[int, _at_least(1, "give the GPUs of one host, or leave it out")]
Mode = Annotated[str, _one_of("optimize", "observe", "measure", "off")]
GpuLock = Annotated[str, _one_of("wait", "share")]
PowerLimits = Annotated[
    Sequence[float],
    _list_of(
        _number("a positive number of watts", "give limits in watts, as in [150, 200, 250]", 0, above=True),
        "[150, 200, 250]",
    ),
]
MaxPower = Annotated[
    float,
    _number(
        "a number of watts above 0 and up to a million",
        "set it to the device's highest power limit in watts, or leave it out",
        0,
        1e6,
        above=True,
    ),
]
ProfileS = Annotated[float, _number("a positive number of seconds", "5 is usually enough", 0, above=True)]
RunTypes = Annotated[Sequence[str], _list_of(_one_of(*RUN_TYPES), '["scheduled", "manual"]')]
Trackers = Annotated[
    Sequence[str],
    _must(
        lambda value: isinstance(value, list | tuple) and all(entry == "mlflow" for entry in value),
        "no list of known trackers",
        'give ["mlflow"], or leave it out',
    ),
]
Flag = Annotated[
    bool, _must(lambda value: isinstance(value, bool), "neither True nor False", "set it to True or False")
]
