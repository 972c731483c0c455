"""The pages of what a run leaves behind: XComs, metrics, facets, the tables of the trial log."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from importlib import import_module, resources
from types import ModuleType
from typing import Any

from airflow_provider_zeus.operators import mixins as keys
from airflow_provider_zeus.reports.export_rows import COLUMNS
from airflow_provider_zeus.reports.run_metrics import Metric
from airflow_provider_zeus.store.sql import schema as tables
from docs_site.meanings import metric_meanings
from docs_site.sample import sample
from docs_site.tables import code, table

UNITS = {"j": "J", "s": "s", "w": "W", "g": "g"}
SCHEMAS = "schemas"  # folder of the package, a folder of it for each version


def xcoms() -> str:
    """Each XCom, and the fields of those for users with the values of a real run."""
    rows = [[code(value), said] for value, said in _constants(keys)]
    shown = sample()
    return "\n".join(
        [
            "# XComs\n",
            (
                "Pushed by the task that trains; around another operator (`ZeusTrial`) the setup"
                " task `<task_id>_ask`"
            ),
            (
                "pushes the decision and the teardown task `<task_id>_tell` the cost. Units end the"
                " names: `_j` joules,"
            ),
            (
                "`_s` seconds, `_w` watts. A figure that is not known is `null`, and `reasons` says"
                " why.\n"
            ),
            table(["key", "what it is"], rows),
            "The examples are of a training on a simulated GPU, so its figures are simulated.\n",
            "## zeus_decision\n",
            _fields(shown.decision),
            "## zeus_cost\n",
            _fields(shown.cost),
        ]
    )


def _constants(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Each constant of a module that is a text, with its comment."""
    for line, comment in _commented_lines(inspect.getsource(module)):
        constant = re.match(r'([A-Z_]+) = "(\w+)"', line)
        if constant is None or not comment:
            continue
        name, value = constant.groups()
        assert getattr(module, name) == value
        yield value, comment[0].upper() + comment[1:] + "."


def _commented_lines(source: str) -> Iterator[tuple[str, str]]:
    """Each line of code with its comment: the one behind it, else the lines of comment above it."""
    above: list[str] = []
    for line in source.splitlines():
        if line.lstrip().startswith("# "):
            above.append(line.strip().removeprefix("# "))
            continue
        code_part, mark, behind = line.partition("  # ")
        yield code_part, behind if mark else " ".join(above)
        above = []


def _fields(value: Mapping[str, Any]) -> str:
    rows = [[code(name), code(json.dumps(found)[:90])] for name, found in _flat(value)]
    return table(["field", "of this run"], rows)


def _flat(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, found in value.items():
        if isinstance(found, list | tuple) and found and isinstance(found[0], Mapping):
            yield from _flat(found[0], f"{before}{name}[].")
        elif isinstance(found, Mapping) and found:
            yield from _flat(found, f"{before}{name}.")
        else:
            yield before + name, found


def metrics() -> str:
    """Each metric that runs sent, with its kind, its unit and its tags."""
    found: dict[str, Metric] = {}
    for metric in [*sample().metrics, *sample("none").metrics]:
        found.setdefault(metric.name, metric)
    said = metric_meanings()
    rows = [
        [
            code(name),
            "counter" if m.total else "gauge",
            unit_of(name),
            ", ".join(map(code, m.tags)),
            said[name],
        ]
        for name, m in sorted(found.items())
    ]
    return "\n".join(
        [
            "# Metrics\n",
            (
                "All metrics of a run, as the code sends them. Airflow puts its prefix before each"
                " name. Tags, StatsD,"
            ),
            "OpenTelemetry and the dashboard: [metrics](../metrics.md).\n",
            table(["name", "kind", "unit", "tags", "what"], rows),
        ]
    )


def unit_of(name: str) -> str:
    """Unit of a metric, which ends its name."""
    return UNITS.get(name.rpartition("_")[2], "1")


def facets() -> str:
    """Each facet of OpenLineage's events, from its JSON schema."""
    parts = [
        "# Facets\n",
        (
            "What OpenLineage's run events hold. When they are sent:"
            " [lineage](../how-to/exporters.md#openlineage).\n"
        ),
    ]
    for facet in schemas():
        needs = facet["dependentRequired"]
        rows = [
            [
                code(name),
                found.get("type")
                or " or ".join(map(code, found.get("enum", [found.get("const")]))),
                ", ".join(map(code, needs.get(name, ()))),
                found.get("description", ""),
            ]
            for name, found in facet["properties"].items()
        ]
        parts += [
            f"## {facet['title']}\n",
            f"{facet['description']} `_schemaURL` is `{facet['$id']}`.\n",
            table(["field", "type or values", "comes with", "meaning"], rows),
        ]
    return "\n".join(parts)


def schemas() -> Iterator[dict[str, Any]]:
    """The JSON schemas that the package ships."""
    for version in sorted(
        resources.files("airflow_provider_zeus").joinpath(SCHEMAS).iterdir(), key=lambda f: f.name
    ):
        for file in sorted(version.iterdir(), key=lambda f: f.name):
            yield json.loads(file.read_text(encoding="utf-8"))


def schema() -> str:
    """The tables of the trial log, and the columns of an export."""
    said = _column_comments()
    parts = [
        "# Schema of the trial log\n",
        (
            f"Tables of a PostgreSQL or SQLite log at revision `{tables.HEAD}`. `airflow zeus db"
            " upgrade` makes and"
        ),
        "changes them. They are private: read the log by `airflow zeus export`. Its JSON is all of",
        (
            "the log, its CSV has the columns [below](#columns-of-an-export). Energies are in"
            " joules, powers in watts,"
        ),
        "times in UTC seconds since the epoch.\n",
    ]
    for found in tables.metadata.sorted_tables:
        rows = [
            [
                code(c.name),
                str(c.type).lower(),
                "" if c.nullable else "not null",
                "key" if c.primary_key else "",
                said.get((found.name, c.name), ""),
            ]
            for c in found.columns
        ]
        parts += [f"## {found.name}\n", table(["column", "type", "", "", "meaning"], rows)]
    columns = "\n".join(f"- `{name}`" for name in COLUMNS)
    parts += [
        "## Columns of an export\n",
        "The CSV of `airflow zeus export` has these, in this order:\n",
        columns,
        "",
    ]
    return "\n".join(parts)


def _column_comments() -> dict[tuple[str, str], str]:
    """The comment of each column in the source, by the names of its table and of the column."""
    comments = {}
    table_name = ""
    newest = import_module(
        f"airflow_provider_zeus.store.sql.migrations.versions.tables_{tables.HEAD}"
    )
    for line, comment in _commented_lines(inspect.getsource(newest)):
        if begun := re.fullmatch(r' {4}"(\w+)",', line):
            table_name = begun[1]
        column = re.search(r'sa\.Column\("(\w+)"', line)
        if column is not None and comment:
            comments[table_name, column[1]] = comment
    return comments
