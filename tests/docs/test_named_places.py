"""A constant and a source that the docs name are where they say."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec

import pytest

from airflow_provider_zeus.reports.run_metrics import NONE, SOURCES
from tests.docs.blocks import ROOT

ROOMS = ("airflow_provider_zeus.optimizer", "airflow_provider_zeus.optimizer.knowledge_gradient")


def named(page: str) -> set[tuple[str, str]]:
    """(module, constant) of each ``module.CONSTANT`` of a page."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return set(re.findall(r"`([a-z_]+)\.([A-Z][A-Z_]+)`", text))


@pytest.mark.parametrize("page", ["policy.md", "knowledge-gradient.md"])
def test_a_constant_stands_in_the_module_that_is_named(page: str) -> None:
    for module, constant in named(page):
        found = [f"{room}.{module}" for room in ROOMS if find_spec(f"{room}.{module}")]
        assert any(hasattr(import_module(name), constant) for name in found), (module, constant)


def test_policy_md_names_the_rounds_of_exploration() -> None:
    assert ("thompson", "ROUNDS") in named("policy.md")


def test_each_source_of_a_metric_is_named() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith("| `source` |")]
    assert all(f"`{source}`" in line for source in (*SOURCES, NONE))
