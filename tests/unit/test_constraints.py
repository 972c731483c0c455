"""The constraints pin everything that an installation for development brings,
so that each one gets what was tested.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

LOWEST = "constraints-lowest.txt"
FOLDER = Path(__file__).parents[2] / "constraints"
TORCHS_OWN = ("nvidia-", "cuda-", "triton")  # CUDA libraries: torch itself pins each to one version


def _asked_for() -> Iterator[Requirement]:
    """What ``pip install -e '.[dev]'`` is asked for, extras within extras included;
    not from an older installation.
    """
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    while lines:
        requirement = Requirement(lines.pop())
        if requirement.name == project["name"]:
            lines += [
                line
                for extra in requirement.extras
                for line in project["optional-dependencies"][extra]
            ]
        else:
            yield requirement


def _brought(requirement: Requirement, seen: set[str]) -> Iterator[str]:
    """``requirement`` and what it requires, as far as it is installed."""
    name = canonicalize_name(requirement.name)
    key = f"{name}[{sorted(requirement.extras)}]"
    try:
        requires = [] if key in seen else distribution(name).requires or []
    except PackageNotFoundError:
        return  # for another system or Python
    seen.add(key)
    yield name
    for needed in map(Requirement, requires):
        if needed.marker is None or any(
            needed.marker.evaluate({"extra": e}) for e in {*requirement.extras, ""}
        ):
            yield from _brought(needed, seen)


def test_everything_installed_for_development_is_pinned() -> None:
    path = FOLDER / f"constraints-{version('apache-airflow')}.txt"
    if not path.exists() or sys.version_info[:2] != (3, 11):
        pytest.skip(
            f"the constraints were made with Python 3.11; here {sys.version.split()[0]} and no"
            f" {path.name}"
        )
    pinned = {name for name, _ in _pins(path)}
    seen: set[str] = set()
    brought = {name for requirement in _asked_for() for name in _brought(requirement, seen)}
    assert {"apache-airflow-core", "torch", "playwright", "psycopg2-binary"} <= brought
    unpinned = {name for name in brought - pinned if not name.startswith(TORCHS_OWN)}
    assert not unpinned, f"add to {path.name}: pip freeze --exclude-editable"


def test_all_of_them_pin_the_projects_own_needs_alike() -> None:
    """Only Airflow's closure may differ between the tested Airflows."""
    files = [
        dict(_pins(path))
        for path in sorted(FOLDER.glob("constraints-*.txt"))
        if path.name != LOWEST
    ]
    assert len(files) == 3
    for name in (
        "torch",
        "numpy",
        "nvidia-ml-py",
        "playwright",
        "psycopg2-binary",
        "pytest",
        "mypy",
        "ruff",
        "hatchling",
    ):
        assert len({pins[name] for pins in files}) == 1, name


def test_the_lowest_versions_tested_are_those_that_are_claimed() -> None:
    """What ``make test-lowest`` installs is what the bounds of pyproject.toml say,
    of all that the package imports.
    """
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]
    extras = (
        project["optional-dependencies"][name]
        for name in ("postgres", "torch", "huggingface", "lightning", "mlflow")
    )
    lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    assert len(lines) == 11
    pins = dict(_pins(FOLDER / LOWEST))
    for requirement in map(Requirement, lines):
        (bound,) = (s.version for s in requirement.specifier if s.operator == ">=")
        assert Version(pins[canonicalize_name(requirement.name)]) == Version(bound), requirement


def _pins(path: Path) -> Iterator[tuple[str, str]]:
    for line in path.read_text().splitlines():
        name, exact, pinned = line.partition("==")
        if exact and not line.startswith("#"):
            yield canonicalize_name(name), pinned
