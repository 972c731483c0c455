"""What lets people find, cite and trust the project says what ``pyproject.toml`` and the code
say.
"""

from __future__ import annotations

import json
import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_zeus.get_provider_info import get_provider_info

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
URLS = PROJECT["urls"]
REGISTRY = yaml.safe_load((ROOT / ".airflow-registry.yaml").read_text())
KINDS = ("operators", "hooks", "triggers", "other")
NAMED = [each["module"] for kind in KINDS for each in REGISTRY[kind]]


@pytest.mark.parametrize("name", NAMED)
def test_every_module_of_the_registry_imports(name: str) -> None:
    module, _, found = name.rpartition(".")
    assert callable(getattr(import_module(module), found))


def test_the_registry_names_what_the_provider_info_names() -> None:
    info: dict[str, Any] = get_provider_info()
    assert REGISTRY["package-name"] == info["package-name"] == PROJECT["name"]
    assert REGISTRY["description"] == PROJECT["description"]
    assert (REGISTRY["docs-url"], REGISTRY["source-url"]) == (URLS["Documentation"], URLS["Source"])
    for kind in ("hooks", "triggers"):
        modules = {module for each in info[kind] for module in each["python-modules"]}
        assert {each["module"].rpartition(".")[0] for each in REGISTRY[kind]} <= modules


def test_the_address_of_the_facets_schema_is_within_the_site() -> None:
    folder = ROOT / "airflow_provider_zeus" / "schemas"
    for path in folder.rglob("*.json"):
        schema = json.loads(path.read_text())
        address = f"{URLS['Documentation']}schemas/{path.relative_to(folder)}"
        assert schema["$id"] == schema["properties"]["_schemaURL"]["const"] == address


def test_the_citation_names_the_paper_and_us() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["title"], cited["license"]) == (PROJECT["name"], "Apache-2.0")
    assert (cited["repository-code"], cited["url"]) == (URLS["Source"], URLS["Documentation"])
    paper = cited["preferred-citation"]
    assert [author["family-names"] for author in paper["authors"]] == ["You", "Chung", "Chowdhury"]
    assert (paper["url"], paper["year"]) == (URLS["Paper"], 2023)


def test_each_badge_is_that_of_a_workflow() -> None:
    readme = (ROOT / "README.md").read_text()
    badges = re.findall(r"!\[[^]]+\]\((\S+)/actions/workflows/(\S+)/badge\.svg\)", readme)
    assert {name for _, name in badges} == {"ci.yml", "codeql.yml", "docs.yml"}
    for source, name in badges:
        assert source == URLS["Source"]
        assert (ROOT / ".github" / "workflows" / name).is_file()


@pytest.mark.parametrize("name", ["AGENTS.md", "CODE_OF_CONDUCT.md"])
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text()
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert link.startswith(URLS["Source"]) or (ROOT / link).exists(), link
    assert len(text.splitlines()) <= 60


def test_agents_are_told_of_commands_and_places_that_are_there() -> None:
    text = (ROOT / "AGENTS.md").read_text()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= set(targets)
    places = re.findall(r"`((?:tests|docs|airflow_provider_zeus)/[\w/.]+)`", text)
    assert places
    for place in places:
        if "PATH" not in place:
            assert (ROOT / place).exists(), place
