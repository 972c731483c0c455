"""Dataclasses as plain JSON and back, by the types of their fields. Standard library only.

Plans, results, rows and Variables may come from another version, or from another hand. So each value is checked where
it is read, and an error names the field and its value. A class whose class variable ``reads_newer`` is True ignores
fields that it does not have; any other class refuses them.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Final, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")
Reader = Callable[[Any], Any]

_MOST = 2.0**64  # of any number: sums of such numbers are finite
_MOST_COUNT = 2**31 - 1  # of what a database holds in 32 bits
# Any finite number: a loss that diverges may be 1e300.
ANY_SIZE: Final = ("metric", "target_value", "learning_rate", "epoch_metrics")
_COUNTS = ("attempt", "try_number", "map_index")
_SUMS = ("samples", "steps")  # whole numbers that may be written as 5.0
_NAMES = ("start_id", "ti_id", "job_id")  # texts that are stored unchanged, or refused
_MOST_START_ID = 100  # characters; ours has 32

log = logging.getLogger(__name__)


def encode(value: Any) -> Any:
    """Plain JSON of a dataclass and of all that it holds."""
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, str):
        return str(value)  # of a StrEnum its value
    if isinstance(value, Mapping):
        return {key: encode(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [encode(part) for part in value]
    if is_dataclass(value):
        cls: Any = type(value)
        return {name: encode(getattr(value, name)) for name in _names(cls)}
    return value


def decode(cls: type[T], data: Any, *, newer: bool = False) -> T:
    """Read what :func:`encode` wrote.

    :param newer: a newer version may have written it: fields that are not known are ignored, and members of an
        enumeration that are not known keep their name (see :func:`member`).

    Raises ValueError where a value is missing, of the wrong kind or too large.
    """
    if not isinstance(data, Mapping):
        _refuse(cls.__name__, data, "no object")
    kind: Any = cls
    known, ignores_unknown = _fields(kind, newer)
    values = {}
    for name, optional, read in known:
        if name in data:
            value = data[name]
            values[name] = None if value is None and optional else read(value)
    if len(values) < len(data) and not ignores_unknown:
        _refuse("field", next(name for name in data if name not in values), f"unknown in {cls.__name__}")
    try:
        return cls(**values)
    except TypeError:
        for field in fields(kind):
            if field.name not in values and field.default is MISSING and field.default_factory is MISSING:
                raise ValueError(f"{field.name} is missing") from None
        raise


def parse(text: str, schema: int, *, nan: bool = False) -> dict[str, Any]:
    """A JSON object with ``"v": schema``, without that key. Raises ValueError for any other text.

    :param nan: let NaN and infinity pass, so that :func:`decode` refuses only the part that holds them.
    """
    data = json.loads(text, parse_constant=None if nan else refuse_constant)
    if not isinstance(data, dict) or data.pop("v", None) != schema:
        raise ValueError(f"not a document of version {schema}")
    return data


def refuse_constant(constant: str) -> NoReturn:
    """For ``parse_constant`` of a JSON decoder: NaN and infinity are not JSON."""
    raise ValueError(f"{constant} is not JSON")


def member(kind: type[E], text: Any) -> E:
    """The member of this value; for a value of a newer version a text of the class that is no member of it."""
    if not isinstance(text, str):
        _refuse(kind.__name__, text, "no text")
    found = kind._value2member_map_.get(text)
    return _unknown(kind, text) if found is None else found  # type: ignore[return-value]


@cache
def _unknown(kind: type[E], text: str) -> E:
    log.warning(
        "The trial log holds the %s %r, which this version does not know: such trials are shown and teach nothing. "
        "Upgrade airflow-provider-zeus on this machine.",
        kind.__name__.lower(),
        text,
    )
    unknown = str.__new__(kind, text)
    unknown._name_ = unknown._value_ = text
    return unknown


@cache
def _names(cls: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls))


@cache
def _fields(cls: Any, newer: bool) -> tuple[tuple[tuple[str, bool, Reader], ...], bool]:
    """Name, whether None is allowed, and reader of each field; whether other fields are ignored."""
    hints = get_type_hints(cls)
    found = []
    for f in fields(cls):
        hint = hints[f.name]
        optional = get_origin(hint) in (Union, UnionType)
        if optional:
            (hint,) = (each for each in get_args(hint) if each is not NoneType)
        found.append((f.name, optional, _reader(f.name, hint, newer)))
    return tuple(found), newer or getattr(cls, "reads_newer", False)


def _reader(name: str, hint: Any, newer: bool) -> Reader:
    """What checks and converts a value of one type."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: value
    if origin is Mapping:
        return _object_reader(name, None if args[1] is Any else _reader(name, args[1], newer))
    if origin in (tuple, Sequence):
        count = None if origin is Sequence or args[1:] == (...,) else len(args)
        return _list_reader(name, _reader(name, args[0], newer), count)
    if origin is Literal:
        return _choice_reader(name, args)
    if issubclass(hint, StrEnum):
        return partial(member, hint) if newer else _choice_reader(name, tuple(hint))
    if is_dataclass(hint):
        cls: Any = hint
        return partial(decode, cls, newer=newer)
    return _text_reader(name) if hint is str else _number_reader(name, hint)


def _object_reader(name: str, read: Reader | None) -> Reader:
    def read_object(value: Any) -> Any:
        if not isinstance(value, Mapping):
            _refuse(name, value, "no object")
        return value if read is None else {key: read(part) for key, part in value.items()}

    return read_object


def _list_reader(name: str, read: Reader, count: int | None) -> Reader:
    def read_list(value: Any) -> Any:
        if not isinstance(value, list | tuple) or count not in (None, len(value)):
            _refuse(name, value, "no list" if count is None else f"no list of {count}")
        return tuple(map(read, value))

    return read_list


def _choice_reader(name: str, choices: tuple[str, ...]) -> Reader:
    def read_choice(value: Any) -> Any:
        for choice in choices:
            if choice == value:
                return choice
        _refuse(name, value, f"none of {', '.join(choices)}")

    return read_choice


def _number_reader(name: str, kind: type) -> Reader:
    kinds = (int, float) if kind is float or name in _SUMS else (kind,)
    most = _MOST_COUNT if name in _COUNTS else sys.float_info.max if name in ANY_SIZE else _MOST
    problem = {bool: "neither true nor false", int: "no whole number that can be stored"}

    def read_number(value: Any) -> Any:
        if type(value) in kinds and abs(value) <= most:  # type(): True is no number
            return value
        _refuse(name, value, problem.get(kind, "no number that can be stored"))

    return read_number


def _text_reader(name: str) -> Reader:
    def read_text(value: Any) -> Any:
        if not isinstance(value, str):
            _refuse(name, value, "no text")
        return value

    def read_name(value: Any) -> Any:
        read_text(value).encode()  # a UnicodeEncodeError is a ValueError
        if "\0" in value:
            _refuse(name, value, "no text that can be stored")
        if name == "start_id" and not (len(value) <= _MOST_START_ID and value.isprintable()):
            _refuse(name, value, "no identifier of a start")
        return value

    return read_name if name in _NAMES else read_text


def _refuse(name: str, value: Any, problem: str) -> NoReturn:
    raise ValueError(f"{name} = {str(value)[:80]!r} is {problem}")
