"""A trial read from its row (SQL) or from plain JSON (Variables, pending results), with every value
checked.

Rows of a newer version can be read: unknown fields are ignored, and an unknown state or phase keeps
its name. Pages show such a trial by that name, and the policy learns nothing from it
(:func:`is_known`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache
from operator import attrgetter
from typing import Any

from airflow_provider_zeus.model import wire
from airflow_provider_zeus.model.job import job_fields
from airflow_provider_zeus.model.job_checks import Rule
from airflow_provider_zeus.model.size_bounds import truncated, truncated_observation
from airflow_provider_zeus.model.trial import Phase, PowerPoint, State, Trial
from airflow_provider_zeus.model.trial_fields import FIELDS, flat, nested
from airflow_provider_zeus.model.wire import Figure, decode, refuse_constant, rules
from airflow_provider_zeus.store.base import Unreadable

_JSON = json.JSONDecoder(parse_constant=refuse_constant)
DAMAGED = object()  # not None, which is a value of JSON
DAMAGE = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
)
_POINT = tuple(field.name for field in fields(PowerPoint))
_point_values = attrgetter(*_POINT)
_STATES = frozenset(State)
_PHASES = frozenset(Phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spec:
    """The fields of the job of an earlier trial that a decision reads."""

    batch_sizes: tuple[int, ...]
    default_batch_size: wire.Size
    target: str | None
    job_version: wire.Name
    policy: str = ""
    eta: float = 0.0
    window: int = 0


def from_row(row: Mapping[Any, Any]) -> Trial:
    """Read the columns of :func:`.trial_fields.flat`; other columns are ignored, and long texts are
    cut.

    Raises an error of :data:`DAMAGE` if no decision can be computed with a value.
    """
    parts = nested(row)
    # Half a character or a number such as 1e999 would fail the whole answer of a page.
    written = [parts["planned"], parts["decision"], parts["spec"]]
    json.dumps(written, ensure_ascii=False, allow_nan=False).encode()
    trial = _cut(decode(Trial, parts, newer=True))
    _check_sizes(trial, decode(_Spec, trial.spec, newer=True))
    for name, rule in _job_numbers():
        value = trial.spec.get(name)
        refusal = rule(value) if isinstance(value, int | float) else None
        if refusal is not None:
            problem, _ = refusal
            raise ValueError(f"{name} = {value!r} is {problem}")
    for part in _parts(trial):
        _check_figures(part)
    return trial


def _cut(trial: Trial) -> Trial:
    """The trial with its long texts cut."""
    observation = truncated_observation(trial.observation)
    reason = trial.reason and truncated(trial.reason)
    # A page reads hundreds of trials, of which hardly one is cut: a copy of each takes its time.
    if observation is trial.observation and reason == trial.reason:
        return trial
    return replace(trial, observation=observation, reason=reason)


def _check_sizes(trial: Trial, spec: _Spec) -> None:
    """Raise ValueError if a batch size cannot be, or is missing though one was chosen."""
    is_measured = trial.planned.phase is Phase.MEASURED
    for planned in (trial.planned, *trial.decision.in_order):
        has_size = planned.batch_size is not None
        if has_size == is_measured:
            raise ValueError(
                f"batch_size = {planned.batch_size} of an attempt in phase {planned.phase.value}"
            )
    if not is_measured and None in (spec.target, spec.default_batch_size):
        raise ValueError("target or default_batch_size is missing")
    sizes = list(spec.batch_sizes)
    if not is_measured:
        sizes.append(trial.batch_size)
    lowest = min(sizes, default=1)
    if lowest <= 0:
        raise ValueError(f"batch_size = {lowest} is not above 0")


def _parts(trial: Trial) -> Iterator[Any]:
    """The trial and its parts that have figures."""
    yield from (trial, trial.observation, trial.lineage)
    for planned in (trial.planned, *trial.decision.in_order):
        yield planned
        if planned.in_time is not None:
            yield planned.in_time


def _check_figures(part: Any) -> None:
    """Raise ValueError if a number of a row cannot be: no decision, date or text can be made with
    it.
    """
    for name, rule in _figures(part.__class__):
        value = getattr(part, name)
        problem = "" if value is None else rule.problem(value)
        if problem:
            raise ValueError(f"{name} = {str(value)[:80]}: {problem}")


@cache
def _figures(cls: Any) -> list[tuple[str, Figure]]:
    return [(name, rule) for name, rule in rules(cls).items() if isinstance(rule, Figure)]


@cache
def _job_numbers() -> list[tuple[str, Rule]]:
    """The rules of a job's fields that are numbers."""
    numbers = {name: field for name, field in job_fields().items() if field.kind in (int, float)}
    return [(name, field.rule) for name, field in numbers.items() if not field.is_list]


def read_json(text: Any) -> Any:
    """The value of a JSON column; :data:`DAMAGED` if it is no JSON, so that one damaged row hides
    no other.
    """
    try:
        return _JSON.decode(text)
    except (ValueError, TypeError, RecursionError):
        return DAMAGED


def read_row(row: Mapping[Any, Any]) -> Trial | Unreadable:
    """The trial of a row; of a damaged one, such as one changed by hand, its identity and why it
    cannot be read.
    """
    try:
        for name, value in row.items():
            if value is DAMAGED:
                raise ValueError(f"{name} holds no JSON object")
        return from_row(row)
    except DAMAGE as error:
        problem = str(error)
        if not isinstance(error, ValueError):
            problem = f"{type(error).__name__}: {error}"
        number = row.get("number")
        return Unreadable(
            job_id=_text_in(row, "job_id"),
            number=number if isinstance(number, int) else None,
            dag_id=_text_in(row, "dag_id"),
            problem=problem,
        )


def _text_in(row: Mapping[Any, Any], name: str) -> str:
    """A text of a damaged row; empty if it is none."""
    text = row.get(name)
    if isinstance(text, str):
        return text
    return ""


def is_known(trial: Trial) -> bool:
    """Whether this version knows the trial's state and phase, so that the policy may learn from
    it.
    """
    return trial.state in _STATES and trial.planned.phase in _PHASES


def trial_to_dict(trial: Trial) -> dict[str, Any]:
    """Plain JSON of a trial without values that are None."""
    return wire.without_none(flat(trial))


def trial_from_dict(data: Mapping[str, Any]) -> Trial:
    """Read the dict of :func:`trial_to_dict`. Raises an error of :data:`DAMAGE`."""
    return from_row({**dict.fromkeys(field.name for field in FIELDS), **data})


def points_to_lists(points: Iterable[PowerPoint]) -> list[list[Any]]:
    """Each power point as the list of its values."""
    return [list(_point_values(point)) for point in points]


def points_from_lists(stored: Any) -> list[PowerPoint]:
    """Read the lists of :func:`points_to_lists`; points that cannot be read are left out."""
    if not isinstance(stored, list):
        return []
    points = []
    for values in stored:
        with suppress(TypeError, ValueError):
            points.append(decode(PowerPoint, dict(zip(_POINT, values, strict=True))))
    return points
