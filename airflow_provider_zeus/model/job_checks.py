"""Types of the fields of a :class:`ZeusJob`: each says which values its field can have, and what to
do about others.

Standard library only.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
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
DEVICES = ("auto", "nvml", "rapl", "none")


class Start(StrEnum):
    """The start of a training.

    Cold is from fresh weights, warm from the earlier model's, shrunk from a mix of both.
    """

    COLD = "cold"
    # a compromise: half of the earlier weights and a tenth of the fresh ones still learn new data
    SHRUNK = "shrunk"
    WARM = "warm"


Refusal = tuple[str, str] | None
Rule = Callable[[Any], Refusal]


def is_deferred(value: object) -> bool:
    """Whether a value is known only when the task runs: a template, or an XComArg."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    return hasattr(value, "resolve")


def plain(value: Any) -> Any:
    """Numbers and arrays of numpy as Python's own, in lists too; anything else unchanged."""
    # Sizes often come from numpy, whose numbers no JSON takes.
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
    """The rule of a field: its type, whether it may be left out, and how a rendered text of it
    is read.
    """

    rule: Rule
    optional: bool
    kind: type
    is_list: bool

    @classmethod
    def of(cls, hint: Any) -> Self:
        """The rule of a type: one of this module, or such a one and None."""
        parts = _members(hint)
        (annotated,) = (part for part in parts if part is not NoneType)
        kind, rule = get_args(annotated)
        first, *_ = _members(kind)
        is_list = get_origin(first) is Sequence
        if is_list:
            (first,) = get_args(first)
        return cls(rule=rule, optional=NoneType in parts, kind=first, is_list=is_list)

    def check(self, name: str, value: Any) -> None:
        """Raises JobSpecError that names field, value and remedy."""
        if value is None and self.optional:
            return
        try:
            refusal = self.rule(value)
        # a target or a deadline has found its own error, without the field's name
        except JobSpecError as error:
            raise JobSpecError(f"ZeusJob.{error}") from None
        if refusal is None:
            return
        problem, remedy = refusal
        # A missing field gets an error of its own: "None is not ..." would puzzle its author.
        if is_missing(value):
            raise bad(name, None, "is missing", remedy)
        raise bad(name, value, problem, remedy)

    def read(self, value: Any) -> Any:
        """A rendered template is text: convert it to the field's type, or return it unchanged if
        that fails.
        """
        if self.kind is str and is_number(value):
            return str(value)  # rendered by a DAG with render_template_as_native_obj
        # What is no text was rendered to an object, and a template is not rendered yet.
        if not isinstance(value, str) or is_deferred(value):
            return value
        try:
            if self.is_list:
                return [self._entry(text) for text in _entries(value)]
            return self._one(value)
        except ValueError:
            return value

    def _entry(self, text: str) -> Any:
        """One entry of a list; raises ValueError."""
        if self.kind is str:
            return text.strip(" '\"")
        return self.kind(text)

    def _one(self, text: str) -> Any:
        """A text in the field's type; raises ValueError."""
        if self.kind is bool:
            return {"true": True, "True": True, "false": False, "False": False}.get(text, text)
        return self.kind(text)


def is_number(value: object) -> bool:
    """Whether a value is a number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _members(hint: Any) -> tuple[Any, ...]:
    """The types of a union; of any other type itself."""
    if get_origin(hint) in (Union, UnionType):
        return get_args(hint)
    return (hint,)


def _entries(text: str) -> list[str]:
    """The entries of a list that was rendered as text."""
    if text == "[]":
        return []
    # Jinja renders a list as Python writes it.
    return text.strip("[]() ").split(",")


def _must(ok: Callable[[Any], object], problem: str, remedy: str) -> Rule:
    return lambda value: None if ok(value) else (problem, remedy)


def _number(
    what: str,
    remedy: str,
    low: float,
    high: float = sys.float_info.max,
    *,
    above: bool = False,
    whole: bool = False,
) -> Rule:
    """A number from ``low`` to ``high``; ``above``: not ``low`` itself."""

    def fits(value: Any) -> bool:
        if not is_number(value) or (whole and not isinstance(value, int)):
            return False
        is_above = value > low if above else value >= low
        return is_above and bool(value <= high)

    return _must(fits, f"not {what}", remedy)


def _at_least(least: int, remedy: str = "") -> Rule:
    what = f"a whole number of at least {least}"
    remedy = remedy or f"set it to {least} or more"
    return _number(what, remedy, least, math.inf, whole=True)


def _one_of(*allowed: str, remedy: str = "") -> Rule:
    remedy = remedy or f"use one of {', '.join(allowed)}"
    return _must(lambda value: value in allowed, "not known", remedy)


def _text(problem: str, remedy: str) -> Rule:
    return _must(lambda value: isinstance(value, str) and value != "", problem, remedy)


def fits_index(job_id: str) -> bool:
    """Whether a database can hold an id of a job: 1000 bytes, with those of a DAG and a run in an
    index of 2704.
    """
    return len(job_id.encode(errors="surrogatepass")) <= 1000


def _job_id(value: Any) -> Refusal:
    refusal = _name(value)
    if refusal is None and not fits_index(value):
        remedy = "shorten it: a character beyond ASCII takes 2 to 4 bytes"
        return "longer than 1000 bytes of UTF-8", remedy
    return refusal


def check_new_id(what: str, job_id: str) -> None:
    """Raise JobSpecError if a command was given no id for a job. ``what``: its argument."""
    is_text = bool(job_id) and job_id.isprintable()
    if not is_text or not fits_index(job_id):
        remedy = (
            "Give at most 1000 bytes of UTF-8, all printable (a character beyond ASCII takes 2 to "
            "4 bytes)"
        )
        raise JobSpecError.of(what, job_id, "not a name of a job", remedy)


_name = _text("not a text", "give a text of at least one character")


def _list_of(rule: Rule, example: str, *, once: str = "") -> Rule:
    """A list with at least one entry, each of which keeps ``rule``. ``once``: the remedy if one is
    there twice.
    """

    def refuse(value: Any) -> Refusal:
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        if not is_list or not value:
            return "not a list with at least one entry", f"give a list, as in {example}"
        for entry in value:
            refusal = rule(entry)
            if refusal is not None:
                problem, remedy = refusal
                return f"{entry!r} is {problem}", remedy
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
    with suppress(JobSpecError):
        if isinstance(deadline.parse(value), timedelta):
            return None
    return "no length of time", "give timedelta(hours=8), or '8 h', at most a year"


def _is_device(value: Any) -> bool:
    if value in DEVICES:
        return True
    return isinstance(value, str) and value.startswith("simulated:") and "/" in value


BatchSizes = Annotated[
    Sequence[int],
    _list_of(
        _number(
            "a positive whole number",
            "give batch sizes as positive integers",
            1,
            math.inf,
            whole=True,
        ),
        "[16, 32, 64]",
        once="name each batch size once",
    ),
]
OneOrMore = Annotated[int, _at_least(1)]
DefaultSize = Annotated[int, _at_least(1, "set it to one of batch_sizes")]
NoneOrMore = Annotated[int, _at_least(0)]
TrialNumbers = Annotated[
    Sequence[int],
    _list_of(_number("a number in the log", "give numbers", 1, 2**53, whole=True), "[17, 18]"),
]
# None is the default alone: within Annotated it is refused, as of a job that left it out.
MaxEpochs = Annotated[int | None, _at_least(1)]
TargetText = Annotated[str, lambda value: Target.parse(value) and None]
Eta = Annotated[
    float, _number("a number from 0 to 1", "0 weighs time alone, 1 energy alone, 0.5 both", 0, 1)
]
Policy = Annotated[str, _one_of(*POLICIES)]
ExpectedRuns = Annotated[
    int, _at_least(1, "give the number of scheduled runs of the job, or leave it out")
]
Starts = Annotated[Sequence[str], _starts]
RetrainEvery = Annotated[int, _at_least(1, "give a number of runs, as 7, or leave it out")]
FinishBy = Annotated[str | datetime | timedelta, lambda value: deadline.parse(value) and None]
StartWithin = Annotated[str | timedelta, _start_within]
Signal = Annotated[
    str,
    _text(
        "no name of a signal", 'use "carbon", "price" or the id of a Connection of type Zeus signal'
    ),
]
Audit = Annotated[
    float,
    _number(
        "a share from 0 to 1",
        "0.02 lets audits take 2 % of what the job spends, 0 turns them off",
        0,
        1,
    ),
]
Name = Annotated[str, _name]
JobId = Annotated[str, _job_id]
Device = Annotated[
    str,
    _must(
        _is_device,
        "no such device",
        f"use {', '.join(map(repr, DEVICES))} or 'simulated:<gpu>/<load>', as "
        "'simulated:v100/shufflenet'",
    ),
]
Gpus = Annotated[int, _at_least(1, "give the GPUs of one host, or leave it out")]
Mode = Annotated[str, _one_of("optimize", "observe", "measure", "off")]
GpuLock = Annotated[str, _one_of("wait", "share")]
PowerLimits = Annotated[
    Sequence[float],
    _list_of(
        _number(
            "a positive number of watts",
            "give limits in watts, as in [150, 200, 250]",
            0,
            above=True,
        ),
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
ProfileS = Annotated[
    float, _number("a positive number of seconds", "5 is usually enough", 0, above=True)
]
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
    bool,
    _must(
        lambda value: isinstance(value, bool), "neither True nor False", "set it to True or False"
    ),
]
