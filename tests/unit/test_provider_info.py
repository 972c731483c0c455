"""The metadata is valid by Airflow's own schema, and everything that it names is there."""

from __future__ import annotations

import json
from importlib import import_module, resources
from importlib.metadata import entry_points
from typing import Any

import jsonschema
import pytest

from airflow_provider_zeus.get_provider_info import get_provider_info


def test_the_entry_point_gives_it() -> None:
    (entry,) = [
        e for e in entry_points(group="apache_airflow_provider") if e.dist and e.dist.name == "airflow-provider-zeus"
    ]
    assert entry.load()() == get_provider_info()


def test_it_is_valid_by_airflows_schema() -> None:
    schema = json.loads(resources.files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def _named(info: dict[str, Any]) -> list[str]:
    modules = [m for kind in ("operators", "hooks") for group in info[kind] for m in group["python-modules"]]
    classes = [c["hook-class-name"] for c in info["connection-types"]] + [
        d["class-name"] for d in info["task-decorators"]
    ]
    return modules + classes


@pytest.mark.parametrize("name", _named(get_provider_info()))
def test_what_it_names_is_there(name: str) -> None:
    try:
        import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        assert callable(getattr(import_module(module), attribute))


def test_airflow_reads_its_options(airflow_home: Any) -> None:
    from airflow.configuration import conf
    from airflow.providers_manager import ProvidersManager

    ProvidersManager().initialize_providers_configuration()
    assert conf.getfloat("zeus", "heartbeat_s") == 15.0
    assert conf.getfloat("zeus", "lease_s") == 90.0
    assert conf.get("zeus", "state_dir") == ""
