"""The recipe for conda-forge says what pyproject.toml says, and rattler-build takes it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from airflow_provider_zeus import __version__

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "conda" / "recipe.yaml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def recipe() -> Any:
    return yaml.safe_load(RECIPE.read_text())


def named(lines: list[str]) -> dict[str, set[str]]:
    """Name -> its bounds."""
    found = (Requirement(line) for line in lines)
    return {each.name: {str(bound) for bound in each.specifier} for each in found}


def test_it_is_of_this_version_and_needs_what_the_project_needs() -> None:
    found = recipe()
    assert found["context"]["version"] == __version__
    assert f">={found['context']['python_min']}" == PROJECT["requires-python"]
    run = [line for line in found["requirements"]["run"] if not line.startswith("python ")]
    assert named(run) == named(PROJECT["dependencies"])
    (entry,) = found["build"]["python"]["entry_points"]
    assert dict([entry.split(" = ")]) == PROJECT["scripts"]


def test_its_licences_and_addresses_are_those_of_the_project() -> None:
    about = recipe()["about"]
    urls = PROJECT["urls"]
    assert about["license"] == PROJECT["license"]
    assert all((ROOT / name).is_file() for name in about["license_file"])
    addresses = (about["homepage"], about["repository"], about["documentation"])
    assert addresses == (urls["Homepage"], urls["Source"], urls["Documentation"])


def test_rattler_build_takes_and_renders_it() -> None:
    rattler_build = pytest.importorskip("rattler_build")
    text = RECIPE.read_text()
    (variant,) = rattler_build.Stage0Recipe.from_yaml(text).render(rattler_build.VariantConfig())
    assert (variant.recipe.package.name, str(variant.recipe.package.version)) == (
        "airflow-provider-zeus",
        __version__,
    )
    assert "python >=3.11" in [str(each) for each in variant.recipe.requirements.run]
    with pytest.raises(rattler_build.RattlerBuildError, match="requirments"):
        rattler_build.Stage0Recipe.from_yaml(text.replace("requirements:", "requirments:"))
