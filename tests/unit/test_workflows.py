"""GitHub's workflows say what the Makefile, pyproject.toml and the constraints say;
zizmor finds nothing in them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import checks

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github"
WORKFLOWS = sorted((FOLDER / "workflows").glob("*.yml"))
WITHOUT_A_TARGET = {
    *("release:attest", "release:publish", "release:page"),
    *("docs:publish", "codeql:analyze"),
}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))


@cache
def _read(path: Path) -> dict[Any, Any]:
    found = yaml.safe_load(path.read_text())
    assert isinstance(found, dict)
    return found


def _jobs() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{path.stem}:{name}", job)
        for path in WORKFLOWS
        for name, job in _read(path)["jobs"].items()
    ]


def _commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_zizmor_finds_nothing() -> None:
    zizmor = Path(sys.executable).with_name("zizmor")
    if not zizmor.exists():
        pytest.skip("zizmor is not installed here: make test installs it")
    command = [str(zizmor), "--offline", "--no-progress", "--persona", "auditor", str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("name", "job"), _jobs(), ids=[name for name, _ in _jobs()])
def test_a_job_runs_targets_of_the_makefile_and_may_do_little(
    name: str, job: dict[str, Any]
) -> None:
    called = [command.split()[1] for command in _commands(job) if command.startswith("make ")]
    assert set(called) <= TARGETS
    assert len(called) == (0 if name in WITHOUT_A_TARGET else 1)
    assert job["timeout-minutes"] <= (180 if name.startswith("nightly:") else 90)
    written = {right for right, level in job["permissions"].items() if level == "write"}
    allowed = {
        "release:attest": {"attestations", "id-token"},
        "release:publish": {"id-token"},
        "release:page": {"contents"},
        "docs:publish": {"id-token", "pages"},
        "codeql:analyze": {"security-events"},
    }
    assert written == allowed.get(name, set())


def test_each_check_of_a_change_has_its_job() -> None:
    called = {
        c.split()[1] for name, job in _jobs() if name.startswith("ci:") for c in _commands(job)
    }
    assert called == {"lint", "test", "test-lowest", "test-slow", "coverage", "release-check"}
    checked = {word for part in checks.CHECK for word in part.make.removeprefix("--jobs 2").split()}
    assert checked <= called


def test_the_matrix_is_every_python_and_airflow_that_is_claimed() -> None:
    matrix = _read(FOLDER / "workflows" / "ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    pythons = [c.rpartition(" ")[2] for c in classifiers if re.search(r":: 3\.\d+$", c)]
    assert matrix["python"] == pythons
    tested = [
        path.stem.partition("-")[2]
        for path in sorted((ROOT / "constraints").glob("constraints-3*.txt"))
    ]
    assert matrix["airflow"] == tested


def test_a_release_is_published_after_its_check_and_its_attestation_without_a_secret() -> None:
    text = (FOLDER / "workflows" / "release.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    assert "secrets." not in text
    assert jobs["attest"]["needs"] == "build"
    assert set(jobs["publish"]["needs"]) == {"build", "attest"}
    assert jobs["publish"]["environment"] == "pypi"
    assert _commands(jobs["build"])[0] == 'make release-check TAG="$GITHUB_REF_NAME"'
    (step,) = [step for step in jobs["publish"]["steps"] if "pypi-publish" in step["uses"]]
    assert step["with"]["attestations"] is True
    assert "password" not in step["with"]


def test_the_site_is_built_by_make_and_published_as_it_was_built() -> None:
    jobs = _read(FOLDER / "workflows" / "docs.yml")["jobs"]
    assert _commands(jobs["build"]) == ["make docs"]
    (artifact,) = [
        s for s in jobs["build"]["steps"] if "upload-pages-artifact" in s.get("uses", "")
    ]
    assert artifact["with"]["path"] == "site/"
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["environment"]["name"] == "github-pages"


def test_codeql_reads_every_language_of_the_package() -> None:
    job = _read(FOLDER / "workflows" / "codeql.yml")["jobs"]["analyze"]
    assert set(job["strategy"]["matrix"]["language"]) == {
        "python",
        "javascript-typescript",
        "actions",
    }


def test_nightly_runs_what_takes_longest_and_the_newest() -> None:
    found = _read(FOLDER / "workflows" / "nightly.yml")
    assert found[True]["schedule"]  # YAML 1.1 reads the key "on" as true
    assert {command for job in found["jobs"].values() for command in _commands(job)} == {
        'make test-mutants SEED="$GITHUB_RUN_NUMBER"',
        "make test-newest",
        "make test-nightly",
    }


def test_dependabot_knows_every_kind_of_dependency() -> None:
    updates = _read(FOLDER / "dependabot.yml")["updates"]
    assert {each["package-ecosystem"] for each in updates} == {
        "github-actions",
        "pip",
        "npm",
        "docker",
    }
    for each in updates:
        assert (ROOT / each["directory"].strip("/")).is_dir()


def test_the_forms_are_forms() -> None:
    forms = [
        path for path in (FOLDER / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"
    ]
    assert {path.stem for path in forms} == {"bug", "feature"}
    for path in forms:
        form = _read(path)
        assert form["name"]
        assert form["description"]
        fields = [part for part in form["body"] if part["type"] != "markdown"]
        assert len({part["id"] for part in fields}) == len(fields)
        assert any(part.get("validations", {}).get("required") for part in fields)


def test_pre_commit_accepts_its_configuration_and_runs_the_tools_of_make_lint() -> None:
    config = ROOT / ".pre-commit-config.yaml"
    clientlib = pytest.importorskip(
        "pre_commit.clientlib", reason="pre-commit: make test installs it"
    )
    (repository,) = clientlib.load_config(str(config))["repos"]
    entries = {hook["entry"].split()[0].rpartition("/")[2] for hook in repository["hooks"]}
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert lint
    assert entries == set(re.findall(r"\$\(BIN\)/(\w+)", lint[1]))


def test_the_test_files_that_the_makefile_names_are_there() -> None:
    """With one that is missing pytest runs none of the others."""
    named = re.findall(r"\btests/[\w/*]+(?:\.py)?", (ROOT / "Makefile").read_text())
    assert [name for name in named if not any(ROOT.glob(name))] == []
