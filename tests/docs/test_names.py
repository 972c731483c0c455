"""Everything public stands in the reference: counted against the code,
not against what made the pages.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from importlib import import_module

import pytest

import airflow_provider_zeus
from airflow_provider_zeus.get_provider_info import get_provider_info
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.operators import mixins
from airflow_provider_zeus.reports.export_rows import COLUMNS
from airflow_provider_zeus.store import live_settings
from airflow_provider_zeus.training.protocol import environment
from tests.docs.blocks import ROOT
from tests.docs.conftest import Built

pytestmark = pytest.mark.slow  # the site is built

API = (
    "reference/job.html",
    "reference/run.html",
    "reference/operators.html",
    "reference/python.html",
)
CLASSES = (
    "ZeusRun",
    "ZeusJob",
    "ZeusTrainOperator",
    "ZeusCommandOperator",
    "ZeusTrial",
    "ZeusHook",
)
OTHERS = (  # public by the documents, and not at the package's root
    "airflow_provider_zeus.decorators.zeus.zeus_task",
    "airflow_provider_zeus.integrations.huggingface.ZeusTrainerCallback",
    "airflow_provider_zeus.integrations.huggingface.arguments",
    "airflow_provider_zeus.integrations.lightning.ZeusCallback",
)


def members(name: str) -> Iterator[str]:
    """The class, and what it defines itself without an underscore:
    fields of a dataclass are parameters.
    """
    found = getattr(airflow_provider_zeus, name)
    yield f"airflow_provider_zeus.{name}"
    for member, value in vars(found).items():
        if not member.startswith("_") and (
            inspect.isfunction(value) or isinstance(value, property | classmethod)
        ):
            yield f"airflow_provider_zeus.{name}.{member}"


def all_there(
    kind: str, wanted: Iterable[str], there: Iterable[str], capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = list(wanted)
    there = set(there)
    missing = [name for name in wanted if name not in there]
    with capsys.disabled():
        print(f"\n{kind}: {len(wanted) - len(missing)} of {len(wanted)}", end=" ")
    assert wanted
    assert missing == []


def words(built: Built, *pages: str) -> set[str]:
    """The words of pages, as names of code are: with dots, underscores and hyphens inside."""
    return set(
        re.findall(
            r"-{0,2}[A-Za-z_][\w.-]*(?<![.-])", " ".join(built.pages[page].text for page in pages)
        )
    )


def test_public_names(built: Built, capsys: pytest.CaptureFixture[str]) -> None:
    anchors = set().union(*(built.pages[page].anchors for page in API))
    roots = [
        f"airflow_provider_zeus.{n}" for n in airflow_provider_zeus.__all__ if n != "__version__"
    ]
    wanted = [*roots, *OTHERS, *(name for each in CLASSES for name in members(each))]
    all_there("public names", dict.fromkeys(wanted), anchors, capsys)
    assert "__version__" in built.pages["reference/python.html"].text


def test_names_at_the_root_alone_are_public(built: Built) -> None:
    """Nothing private is shown as if it were public."""
    known = {
        *airflow_provider_zeus.__all__,
        *(name.rpartition(".")[2] for name in OTHERS),
        "ZeusSignalHook",
    }
    for page in API:
        shown = [a for a in built.pages[page].anchors if a.startswith("airflow_provider_zeus.")]
        assert {
            name.rpartition(".")[2] for name in shown if name.rpartition(".")[2][0].isupper()
        } <= known
        assert [name for name in shown if name.rpartition(".")[2].startswith("_")] == []


def test_every_parameter_is_explained(built: Built, capsys: pytest.CaptureFixture[str]) -> None:
    """Fields of a job, and the arguments of the operators, each with its row."""
    parameters = [*inspect.signature(ZeusJob).parameters]
    assert {f.name for f in fields(ZeusJob)} | {"notify"} == set(parameters)
    all_there("fields of ZeusJob", parameters, rows(built, "reference/job.html"), capsys)
    for name in ("ZeusTrainOperator", "ZeusCommandOperator", "ZeusTrial"):
        taken = [
            p
            for p in inspect.signature(getattr(airflow_provider_zeus, name)).parameters
            if p != "kwargs"
        ]
        all_there(name, taken, rows(built, "reference/operators.html"), capsys)


def rows(built: Built, page: str) -> set[str]:
    """First cells of the tables of a page."""
    text = (built.folder / page).read_text(encoding="utf-8")
    return {
        re.sub("<[^>]+>", "", cell).strip()
        for cell in re.findall(r"<tr[^>]*>\s*<td[^>]*>(.*?)</td>", text, re.S)
    }


def test_options(built: Built, capsys: pytest.CaptureFixture[str]) -> None:
    page = built.pages["reference/options.html"]
    options = get_provider_info()["config"]["zeus"]["options"]
    all_there("options of [zeus]", options, page.anchors, capsys)
    for name, option in options.items():
        assert not option["example"] or " ".join(option["example"].split()) in " ".join(
            page.text.split()
        ), name
    fields_of = [
        f for kind in get_provider_info()["connection-types"] for f in kind.get("conn-fields", {})
    ]
    kinds = [kind["connection-type"] for kind in get_provider_info()["connection-types"]]
    all_there("Connections", [*kinds, *fields_of], words(built, "reference/options.html"), capsys)
    settings = [*live_settings._CHANGES]
    all_there("live settings", settings, rows(built, "reference/options.html"), capsys)
    used = {
        value
        for value in vars(environment).values()
        if isinstance(value, str) and value.startswith("ZEUS_")
    }
    all_there(
        "variables of a training", sorted(used), rows(built, "reference/options.html"), capsys
    )


def test_commands_and_their_arguments(built: Built, capsys: pytest.CaptureFixture[str]) -> None:
    """As Airflow's own parser has them."""
    from airflow.cli.cli_parser import get_parser

    wanted = list(_commands(get_parser(), ()))
    page = built.pages["reference/commands.html"]
    parts = re.split(r"\n(?=zeus [a-z ]+¶)", page.text)
    of = {part.partition("¶")[0].strip(): part for part in parts}
    missing = [
        f"{path} {name}" for path, names in wanted for name in names if name not in of.get(path, "")
    ]
    with capsys.disabled():
        print(
            f"\ncommands: {len(wanted)}, arguments: {sum(len(names) for _, names in wanted)}",
            end=" ",
        )
    assert len(wanted) >= 16
    assert missing == []


def _commands(
    parser: argparse.ArgumentParser, path: tuple[str, ...]
) -> Iterator[tuple[str, list[str]]]:
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not groups and path[:1] == ("zeus",):
        taken = [a for a in parser._actions if not isinstance(a, argparse._HelpAction)]
        yield (
            " ".join(path),
            [str(n) for a in taken for n in (a.option_strings or [a.metavar or a.dest.upper()])],
        )
    for group in groups:
        for name, child in group.choices.items():
            if path or name == "zeus":
                yield from _commands(child, (*path, name))


def test_xcoms(built: Built, capsys: pytest.CaptureFixture[str]) -> None:
    keys = [
        value for name, value in vars(mixins).items() if name.isupper() and isinstance(value, str)
    ]
    all_there("XComs", keys, rows(built, "reference/xcoms.html"), capsys)
    source = inspect.getsource(
        import_module("airflow_provider_zeus.operators.result_reporter").ResultReporter.cost_xcom
    )
    source += inspect.getsource(
        import_module("airflow_provider_zeus.operators.recurrence").decision_xcom
    )
    fields_of = re.findall(r'^ +"(\w+)":', source, re.M)
    there = {part for word in words(built, "reference/xcoms.html") for part in word.split(".")}
    all_there("fields of XComs", fields_of, there, capsys)


def test_metrics(built: Built, capsys: pytest.CaptureFixture[str]) -> None:
    """The names of the table in docs/metrics.md, which says what each means."""
    text = (
        (ROOT / "docs" / "metrics.md")
        .read_text(encoding="utf-8")
        .partition("## Names")[2]
        .partition("## Tags")[0]
    )
    all_there(
        "metrics",
        re.findall(r"`(zeus\.[\w.]+)`", text),
        rows(built, "reference/metrics.html"),
        capsys,
    )


def test_facets(built: Built, capsys: pytest.CaptureFixture[str]) -> None:
    schema = ROOT / "airflow_provider_zeus" / "schemas" / "1-0-0" / "ZeusRunFacet.json"
    wanted = json.loads(schema.read_text(encoding="utf-8"))["properties"]
    all_there("fields of facets", wanted, rows(built, "reference/facets.html"), capsys)


def test_schema(built: Built, capsys: pytest.CaptureFixture[str]) -> None:
    from airflow_provider_zeus.store.sql import schema

    tables = schema.metadata.tables
    all_there("tables", tables, built.pages["reference/schema.html"].anchors, capsys)
    columns = {column.name: None for table in tables.values() for column in table.columns}
    all_there("columns", columns, rows(built, "reference/schema.html"), capsys)
    all_there("columns of an export", COLUMNS, words(built, "reference/schema.html"), capsys)
    assert f"revision {schema.HEAD}" in built.pages["reference/schema.html"].text


def test_routes(built: Built, capsys: pytest.CaptureFixture[str]) -> None:
    from airflow_provider_zeus.plugin.api.app import app

    found = [
        (route.path, *sorted(route.methods))
        for route in app.routes
        if getattr(route, "methods", None)
    ]
    text = built.pages["reference/routes.html"].text
    all_there(
        "routes",
        (f"/zeus{path}" for path, *_ in found),
        re.findall(r"/zeus[\w/{}-]*", text),
        capsys,
    )
    posts = [path for path, *methods in found if "POST" in methods]
    assert text.count("POST") == len(posts)
    assert text.count("editors of the DAG") == len(posts), (
        "each change takes the permission to edit"
    )
