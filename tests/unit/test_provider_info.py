"""The metadata is valid by Airflow's own schema, and everything that it names is there."""

from __future__ import annotations

import inspect
import json
import re
from importlib import import_module, resources
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import jsonschema
from packaging.version import Version

import airflow_provider_zeus
from airflow_provider_zeus import __version__
from airflow_provider_zeus.get_provider_info import get_provider_info


def test_the_entry_point_gives_it() -> None:
    (entry,) = [
        e
        for e in entry_points(group="apache_airflow_provider")
        if e.dist and e.dist.name == "airflow-provider-zeus"
    ]
    assert entry.load()() == get_provider_info()


def test_it_is_valid_by_airflows_schema() -> None:
    schema = json.loads(
        resources.files("airflow").joinpath("provider_info.schema.json").read_text()
    )
    jsonschema.validate(get_provider_info(), schema)


def _named(info: dict[str, Any]) -> list[str]:
    modules = [
        m
        for kind in ("operators", "hooks")
        for group in info[kind]
        for m in group["python-modules"]
    ]
    classes = [c["hook-class-name"] for c in info["connection-types"]] + [
        d["class-name"] for d in info["task-decorators"]
    ]
    return modules + classes + info.get("extra-links", []) + info.get("cli", [])


def test_what_it_names_is_there() -> None:
    for name in _named(get_provider_info()):
        try:
            import_module(name)
        except ModuleNotFoundError:
            module, _, attribute = name.rpartition(".")
            assert callable(getattr(import_module(module), attribute)), name


def test_it_names_every_operator_and_hook() -> None:
    from airflow.sdk import BaseHook, BaseOperator

    for room, base in (("operators", BaseOperator), ("hooks", BaseHook)):
        package = import_module(f"airflow_provider_zeus.{room}")
        # it needs that provider
        names = [m.name for m in iter_modules(package.__path__) if m.name != "openlineage"]
        modules = [import_module(f"{package.__name__}.{name}") for name in names]
        defining = {
            m.__name__
            for m in modules
            for name, c in vars(m).items()
            if inspect.isclass(c)
            and issubclass(c, base)
            and c.__module__ == m.__name__
            and not name.startswith("_")
        }
        assert defining
        assert defining == {
            m for group in get_provider_info()[room] for m in group["python-modules"]
        }


def test_the_pieces_belong_to_the_one_integration() -> None:
    info = get_provider_info()
    (integration,) = info["integrations"]
    groups = [group for kind in ("operators", "hooks") for group in info[kind]]
    assert {group["integration-name"] for group in groups} == {integration["integration-name"]}
    for connection in info["connection-types"]:
        hook = connection["hook-class-name"].rpartition(".")
        assert getattr(import_module(hook[0]), hook[2]).conn_type == connection["connection-type"]


def _options() -> list[tuple[str, dict[str, Any]]]:
    return [
        (name, o)
        for section in get_provider_info()["config"].values()
        for name, o in section["options"].items()
    ]


def test_each_option_is_documented_in_full() -> None:
    read = {
        "string": str,
        "float": float,
        "integer": int,
        "boolean": {"True": True, "False": False}.__getitem__,
    }
    for name, option in _options():
        assert set(option) == {"type", "default", "description", "example", "version_added"}, name
        assert option["example"], name
        assert option["description"].endswith("."), name
        assert Version(option["version_added"]) <= Version(Version(__version__).base_version), name
        for value in (option["default"], option["example"]):
            if value:
                read[option["type"]](value)  # type: ignore[operator]
        assert option["example"] != option["default"], name


def test_every_option_read_is_documented() -> None:
    source = "\n".join(p.read_text() for p in Path(airflow_provider_zeus.__path__[0]).rglob("*.py"))
    read = set(re.findall(r"\bconf\.get\w*\(\s*\"zeus\",\s*\"(\w+)\"", source))
    assert read
    assert read <= {name for name, _ in _options()}


def test_the_plugin_is_named_in_one_place() -> None:
    assert "plugins" not in get_provider_info(), (
        "Airflow rejects a plugin that is also an entry point"
    )


def test_airflow_reads_its_options(airflow_home: Any) -> None:
    from airflow.configuration import conf
    from airflow.providers_manager import ProvidersManager

    ProvidersManager().initialize_providers_configuration()
    assert conf.getfloat("zeus", "heartbeat_s") == 15.0
    assert conf.getfloat("zeus", "lease_s") == 90.0
    assert conf.get("zeus", "state_dir") == ""
