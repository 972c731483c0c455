"""Dataclasses as plain JSON and back, by the types of their fields. Standard library only.

A type such as ``Joules`` is a float with a rule: which values its field can have.

Plans, results, rows and Variables may come from another version, or from another hand. So each
value is checked when it is read, and an error names the field and its value. A class whose class
variable ``reads_newer`` is True ignores fields that it does not have; any other class refuses them.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache, partial
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.patience import T

E = TypeVar("E", bound=StrEnum)
K = TypeVar("K")
Reader = Callable[[Any], Any]

log = guarded_log(__name__)


LEAST = 1e-9  # no meter tells less, and a product of two such numbers is not 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Which numbers a field can have.

    A number beyond ``readable`` is refused when it is read. The other bounds are those of what can
    be measured: a training that reports another number gets None with a reason, since no decision
    could be computed with it. Products of such numbers are finite and not 0, in any unit.
    """

    low: float = -1e15
    high: float = 1e15
    least: float = LEAST
    rounded: bool = False  # of two equal values rounding may leave a tiny difference
    part_of: str = ""  # only beside the whole can rounding be told from a part below 0
    readable: float = 2.0**64  # sums of such numbers are finite
    whole: bool = False  # other languages write 5.0 for a whole number

    def problem(self, value: Any) -> str:
        """Why a number, or one of a tuple, cannot have been measured; empty if it can, and for
        anything else.
        """
        if isinstance(value, tuple):
            are_numbers = all(isinstance(part, int | float) for part in value)
            if not are_numbers or any(map(self.problem, value)):
                return "not a list of finite numbers"
            return ""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return ""
        if not math.isfinite(value):
            return "not a finite number"
        if value < self.low == 0:
            return f"{value:g} was reported, which is below 0"
        is_large_enough = value == 0 or abs(value) >= self.least
        if is_large_enough and self.low <= value <= self.high:
            return ""
        if self.high == 1:
            return f"{value:g} was reported, which is no share"
        return f"{value:g} was reported, which nothing measures"


@dataclass(frozen=True, slots=True)
class Text:
    """How long a text can be.

    A longer one is cut, or refused if it has to be stored unchanged (``exact``).
    """

    most: int | None = None
    exact: bool = False


# A batch size. None in a run that was measured alone. The type does not say so: such a run never
# reaches what decides, trains or compares (``choose``, ``learn`` and ``as_dataset`` leave it out),
# and the pages ask for its phase.
if TYPE_CHECKING:
    Size = int
else:
    Size = int | None
Amount = Annotated[float, Figure(low=0)]
Joules = Annotated[float, Figure(low=0)]
Seconds = Annotated[float, Figure(low=0)]
Watts = Annotated[float, Figure(low=0)]
Share = Annotated[float, Figure(low=0, high=1, least=0)]
RestJ = Annotated[float, Figure(rounded=True, least=0, part_of="energy_j")]
RestS = Annotated[float, Figure(rounded=True, least=0, part_of="time_s")]
Difference = Annotated[float, Figure(rounded=True, least=0)]
AnyNumber = Annotated[  # a loss that diverges may be 1e300
    float, Figure(low=-math.inf, high=math.inf, least=0, readable=sys.float_info.max)
]
Devices = Annotated[int, Figure(low=1, high=10**6 - 1)]
Samples = Annotated[int, Figure(low=0, whole=True)]
Count = Annotated[int, Figure(readable=2**31 - 1)]  # a database holds 32 bits
MOST_NUMBER = 2**40  # a number above it is damage, and would use up the others
Ordinal = Annotated[int, Figure(low=0, high=MOST_NUMBER)]
LATEST_S = 4_102_444_800  # a later moment is a mistake of units
Moment = Annotated[float, Figure(low=0, high=LATEST_S, least=0)]
Span = Annotated[float, Figure(low=-LATEST_S, high=LATEST_S, least=0)]
Logarithm = Annotated[float, Figure(low=-100, high=100, least=0)]
Name = Annotated[str, Text(exact=True)]
StartId = Annotated[str, Text(100, exact=True)]  # ours has 32 characters
LongText = Annotated[str, Text(1000)]
ShortText = Annotated[str, Text(200)]
Currency = Annotated[str, Text(12)]
GpuNames = Annotated[str, Text(10_000)]


def encode(value: Any) -> Any:
    """Plain JSON of a dataclass and of all that it holds."""
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, str):
        return str(value)  # a StrEnum is plain to JSON alone: YAML refuses one
    if isinstance(value, Mapping):
        return {key: encode(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [encode(part) for part in value]
    if is_dataclass(value):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    return value


def without_none(data: Mapping[K, T | None]) -> dict[K, T]:
    """The values that are known."""
    return {name: value for name, value in data.items() if value is not None}


def decode(cls: type[T], data: Any, *, newer: bool = False) -> T:
    """Read the dict of :func:`encode`.

    :param newer: a newer version may have written it: fields that are not known are ignored, and
        members of an enumeration that are not known keep their name (see :func:`member`).

    Raises ValueError if a value is missing, of the wrong kind or too large.
    """
    if not isinstance(data, Mapping):
        _refuse(cls.__name__, data, "no object")
    kind: Any = cls
    values = {}
    for name, is_optional, reader in _fields(kind, newer):
        if name in data:
            value = data[name]
            values[name] = None if value is None and is_optional else reader(value)
    ignores_unknown = newer or getattr(cls, "reads_newer", False)
    # Each row of the log is read here: the names are compared only if there are more of them.
    if len(values) < len(data) and not ignores_unknown:
        unknown = [name for name in data if name not in values]
        _refuse("field", unknown[0], f"unknown in {cls.__name__}")
    for name in _needed(kind):
        if name not in values:
            raise ValueError(f"{name} is missing")
    return cls(**values)


@cache
def _needed(cls: Any) -> tuple[str, ...]:
    """The fields of a dataclass that have no default."""
    return tuple(
        field.name for field in fields(cls) if field.default is field.default_factory is MISSING
    )


def parse(text: str, schema: int, *, nan: bool = False) -> dict[str, Any]:
    """A JSON object with ``"v": schema``, without that key. Raises ValueError for any other text.

    :param nan: let NaN and infinity pass, so that :func:`decode` refuses only the part that holds
        them.
    """
    data = json.loads(text, parse_constant=None if nan else refuse_constant)
    if not isinstance(data, dict) or data.pop("v", None) != schema:
        raise ValueError(f"not a document of version {schema}")
    return data


def refuse_constant(constant: str) -> NoReturn:
    """For ``parse_constant`` of a JSON decoder: NaN and infinity are not JSON."""
    raise ValueError(f"{constant} is not JSON")


def member(kind: type[E], text: Any) -> E:
    """The member of this value; for a value of a newer version a text of the class that is no
    member of it.
    """
    if not isinstance(text, str):
        _refuse(kind.__name__, text, "no text")
    try:
        of_kind: E = kind(text)
    except ValueError:
        of_kind = _unknown(kind, text)
    return of_kind


@cache
def _unknown(kind: type[E], text: str) -> E:
    # Once a process, as the function is cached: each row would say it again.
    log.warning(
        "The run log holds the %s %r, which this version does not know: such runs are shown and "
        "teach nothing. "
        "Upgrade airflow-provider-zeus on this machine.",
        kind.__name__.lower(),
        text,
    )
    unknown = str.__new__(kind, text)
    unknown._name_ = unknown._value_ = text
    return unknown


@cache
def rules(cls: Any) -> dict[str, Figure | Text]:
    """The rules of a dataclass for its numbers and texts, those in lists too: field name ->
    rule.
    """
    hints = get_type_hints(cls, include_extras=True)
    return without_none({name: _rule(hint) for name, hint in hints.items()})


def _rule(hint: Any) -> Figure | Text | None:
    if get_origin(hint) is Annotated:
        rule: Figure | Text = hint.__metadata__[0]
        return rule
    if hint in (int, float):
        return Figure()
    if get_origin(hint) not in (Union, UnionType, tuple):
        return None
    for part in get_args(hint):
        of_part = _rule(part)
        if of_part is not None:
            return of_part
    return None


@cache
def _fields(cls: Any, newer: bool) -> list[tuple[str, bool, Reader]]:
    """Name, whether None is allowed, and reader of each field."""
    hints = get_type_hints(cls, include_extras=True)
    readers = []
    for field in fields(cls):
        hint = hints[field.name]
        is_optional = get_origin(hint) in (Union, UnionType)
        if is_optional:
            (hint,) = {*get_args(hint)} - {NoneType}
        readers.append((field.name, is_optional, _reader(field.name, hint, newer)))
    return readers


def _reader(name: str, hint: Any, newer: bool) -> Reader:
    """The function that checks and converts a value of one type."""
    origin = get_origin(hint)
    args = get_args(hint)
    if hint is Any:
        return _as_it_is
    if origin is Mapping:
        return partial(_read_object, name, _reader(name, args[1], newer))
    if origin in (tuple, Sequence):
        has_any_count = origin is Sequence or args[1:] == (...,)
        count = None if has_any_count else len(args)
        return partial(_read_list, name, _reader(name, args[0], newer), count)
    if origin is Literal:
        return partial(_read_choice, name, args)
    kind = hint
    rule = None
    if origin is Annotated:
        kind, rule = args
    return _value_reader(name, kind, rule, newer)


def _value_reader(name: str, kind: Any, rule: Any, newer: bool) -> Reader:
    """The reader of a type that is no list and no mapping; ``rule``: of its annotation."""
    if issubclass(kind, StrEnum):
        if newer:
            return partial(member, kind)
        return partial(_read_choice, name, tuple(kind))
    if is_dataclass(kind):
        cls: Any = kind
        return partial(decode, cls, newer=newer)
    if kind is str:
        return partial(_read_text, name, rule)
    rule = rule or Figure()
    kinds = (int, float) if kind is float or rule.whole else (kind,)
    problem = {bool: "neither true nor false", int: "no whole number that can be stored"}
    return partial(
        _read_number, name, kinds, rule.readable, problem.get(kind, "no number that can be stored")
    )


def _refuse(name: str, value: Any, problem: str) -> NoReturn:
    raise ValueError(f"{name} = {str(value)[:80]!r} is {problem}")


def _read_object(name: str, read_part: Reader, value: Any) -> Any:
    if not isinstance(value, Mapping):
        _refuse(name, value, "no object")
    # as it is: a spec has 40 fields in each row, and its job checks them
    if read_part is _as_it_is:
        return value
    return {key: read_part(part) for key, part in value.items()}


def _as_it_is(value: Any) -> Any:
    return value


def _read_list(name: str, read_part: Reader, count: int | None, value: Any) -> Any:
    if not isinstance(value, list | tuple) or count not in (None, len(value)):
        _refuse(name, value, "no list" if count is None else f"no list of {count}")
    return tuple(map(read_part, value))


def _read_choice(name: str, choices: tuple[str, ...], value: Any) -> Any:
    for choice in choices:
        if choice == value:
            return choice
    _refuse(name, value, f"none of {', '.join(choices)}")


def _read_number(name: str, kinds: tuple[type, ...], most: float, problem: str, value: Any) -> Any:
    if type(value) in kinds and abs(value) <= most:  # type(): True is no number
        return value
    _refuse(name, value, problem)


def _read_text(name: str, rule: Text | None, value: Any) -> Any:
    if not isinstance(value, str):
        _refuse(name, value, "no text")
    if rule is None or not rule.exact:
        return value
    value.encode()  # a UnicodeEncodeError is a ValueError
    if "\0" in value:
        _refuse(name, value, "no text that can be stored")
    if rule.most is None:
        return value
    if len(value) > rule.most or not value.isprintable():
        _refuse(name, value, f"no printable text of at most {rule.most} characters")
    return value
