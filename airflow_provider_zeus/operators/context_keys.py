"""Keys of Airflow's context that a template or a training function asks for, and that its run
lacks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any, NamedTuple

from airflow_provider_zeus import patterns
from airflow_provider_zeus.errors import JobSpecError

DATED = frozenset(  # Airflow leaves them out of a run without a logical date
    {
        *("logical_date", "ds", "ds_nodash", "ts", "ts_nodash", "ts_nodash_with_tz"),
        *("data_interval_start", "data_interval_end"),
        *("prev_data_interval_start_success", "prev_data_interval_end_success"),
    }
)


class Lack(NamedTuple):
    """A missing key: the field, its template or function, the problem and the remedy."""

    where: str
    value: str
    problem: str
    remedy: str

    def error(self) -> JobSpecError:
        """The error of a run."""
        return JobSpecError.of(*self)


def no_date(where: str, value: str, key: str, context: Mapping[str, Any]) -> Lack:
    """The run has no logical date, and so no such key."""
    problem = f"this run has no {key}: asset-triggered runs, those of partitions "
    problem += "and some manual ones have no logical date"
    if context.get("partition_key"):
        return Lack(where, value, problem, "take partition_key, the name of its data")
    return Lack(where, value, problem, "take run_id, which each run has")


def none_in(template: str, value: object, context: Mapping[str, Any]) -> str | None:
    """The key that a template wrote as ``None``: of these Airflow gives None to runs that lack
    them.
    """
    if "None" not in str(value):
        return None
    if patterns.search(r"\bpartition_key\b", template) and context.get("partition_key") is None:
        return "partition_key"
    dated = patterns.search(
        r"\bdag_run\.(logical_date|data_interval_start|data_interval_end)\b", template
    )
    if dated is not None and "logical_date" not in context:
        return dated[1]
    return None


def no_partition(where: str, value: str, key: str) -> Lack:
    """The run is of no partition, and so has no key of one.

    :param key: of the context, which it has instead.
    """
    from airflow.sdk import Context

    if "partition_key" not in Context.__annotations__:
        problem = "no task gets partition_key before Airflow 3.3"
        return Lack(where, value, problem, f"take {key}, or upgrade Airflow")
    problem = "partition_key is None in each run of a DAG without a schedule by partitions"
    return Lack(where, value, problem, f"give it such a schedule, or take {key}")


def undefined_in(where: str, template: str, message: str, context: Mapping[str, Any]) -> Lack:
    """The key that a template lacks, by the message of Jinja's UndefinedError."""
    undefined = patterns.search(r"'(\w+)' is undefined", message)
    if undefined is not None:
        return _no_key(where, template, undefined[1], context)
    attribute = patterns.search(r" has no (?:attribute|element) '?([^']+)'?$", message)
    name = message if attribute is None else attribute[1]
    path = _path_to(name, template)
    dates = [part for part in path if part in DATED]
    if dates and "logical_date" not in context:
        return no_date(where, template, dates[0], context)
    if path[0] == "params":
        params = ", ".join(sorted(context.get("params") or {})) or "none"
        remedy = f"correct its name; the params are: {params}"
        return Lack(where, template, f"there is no param {name}", remedy)
    remedy = "correct the name"
    if path[:2] == ["dag_run", "conf"]:
        remedy += ", or give it a default: only a run that somebody triggers has a conf"
    owner = ".".join(path[:-1]) or "a value"
    return Lack(where, template, f"{owner} has no {name}", remedy)


def _no_key(where: str, template: str, name: str, context: Mapping[str, Any]) -> Lack:
    """The context has no such key."""
    if name in DATED:
        return no_date(where, template, name, context)
    if name == "partition_key":
        return no_partition(where, template, "ds" if "ds" in context else "run_id")
    remedy = "correct it, or give it a default: {{ x | default('y') }}"
    # a typing error is the likeliest cause
    for near in get_close_matches(name, context, 1):
        remedy = f"did you mean {near}"
    return Lack(where, template, f"no run has {name}", remedy)


def _path_to(name: str, template: str) -> list[str]:
    """The names that lead to ``name`` in a template, as ``["params", "target"]``; ``[name]`` if
    none is found.
    """
    path: list[str] = []
    for between, word in patterns.findall(r"(\W*)(\w+|$)", template):
        # Jinja takes both params.target and params["target"].
        goes_on = between.strip("[]'\"") in ("", ".")
        if not goes_on:
            path = []
        path.append(word)
        if word == name and len(path) > 1:
            return path
    return [name]


def undated_argument(
    function: Callable[..., Any], given: Collection[str], context: Mapping[str, Any]
) -> Lack | None:
    """The first parameter of a function that only a run with a logical date fills, if this run
    has none.

    :param given: parameters that the author's call fills.
    """
    lacking = DATED.difference(given, context)
    for key, parameter in inspect.signature(function).parameters.items():
        if key in lacking and parameter.default is parameter.empty:
            name = getattr(function, "__name__", repr(function))
            return no_date(f"an argument of {name}()", key, key, context)
    return None


def templates_of(operator: Any) -> Iterator[tuple[str, str]]:
    """(name of the field, template) of each text in the templated fields of an operator."""
    for field in operator.template_fields:
        yield from _templates_in(field, getattr(operator, field, None))


def _templates_in(where: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        if "{{" in value or "{%" in value:
            yield where, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            inner = f"ZeusJob.{key}" if where == "job" else f"{where}[{key!r}]"
            yield from _templates_in(inner, part)
    elif isinstance(value, list | tuple | set):
        for part in value:
            yield from _templates_in(where, part)


class ChecksTemplates:
    """An operator that says which field of it names a key that its run lacks, before anything is
    asked or trained.

    Airflow renders the fields. Its errors are logged there with a traceback of Jinja, and names
    no field of a job. So a template that fails is left as it is, and ``check_templates()`` raises
    the error.
    """

    _undefined: tuple[str, str] | None = None

    def render_template(
        self, content: Any, context: Any, jinja_env: Any = None, seen_oids: Any = None
    ) -> Any:
        """Render a template, as Airflow does."""
        from jinja2 import Undefined, UndefinedError

        render = partial(super().render_template, content)  # type: ignore[misc]
        if not isinstance(content, str):  # Airflow calls this again for each text in it
            return render(context, jinja_env, seen_oids)
        try:
            value = render(context, jinja_env, seen_oids)
            # With render_template_as_native_obj Jinja returns it, and raises once it is a text.
            if isinstance(value, Undefined):
                str(value)
            key = none_in(content, value, context)
            if key is not None:
                raise UndefinedError(f"{key!r} is undefined")
            return value
        except UndefinedError as error:
            # later templates often fail for the same reason: the first one is told
            if self._undefined is None:
                self._undefined = content, str(error)
            # raised here, Airflow would log Jinja's traceback, which names no field of
            # a job
            return content

    def check_templates(self, context: Mapping[str, Any]) -> None:
        """Raise JobSpecError if a template could not be rendered."""
        if self._undefined is None:
            return
        template, message = self._undefined
        where = next((field for field, text in templates_of(self) if text == template), "template")
        raise undefined_in(where, template, message, context).error()
