"""Quick start and tutorials, whole: each file is written as printed,
and each command runs in the order of the page.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.store.open import open_store
from tests.docs.blocks import blocks
from tests.docs.shell import Shell
from tests.unit.cli.conftest import home  # noqa: F401 - a fixture


@pytest.fixture
def dags(airflow_home: Path) -> Iterator[Path]:
    """Airflow's folder of DAGs, empty again afterwards."""
    folder = airflow_home / "dags"
    before = set(folder.iterdir())
    yield folder
    for path in set(folder.iterdir()) - before:
        if path.is_file():
            path.unlink()


class Reader:
    """Does what a page says, block by block."""

    def __init__(self, home: Path, dags: Path, capsys: Any) -> None:  # noqa: F811
        self.dags = dags
        self.shell = Shell(
            home, capsys, only_parsed={"airflow connections": "changes this Airflow"}
        )

    def follow(self, page: str) -> dict[str, str]:
        """What each command printed."""
        printed = {}
        for block in blocks(page):
            if block.title and block.language == "python":
                (self.dags / block.title).write_text(block.text, encoding="utf-8")
            elif block.kind == "commands" and not block.reason:
                printed |= {command: self.shell.take(command) for command in block.commands}
        return printed


@pytest.fixture
def reader(home: Path, dags: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Reader:  # noqa: F811
    monkeypatch.chdir(home)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return Reader(home, dags, capsys)


def trials(job_id: str) -> list[Trial]:
    return open_store(create=False).trials(job_id)


def test_quick_start(reader: Reader) -> None:
    printed = reader.follow("docs/quick-start.md")
    (trial,) = trials("quick.train")
    assert trial.state.value == "converged"
    assert trial.batch_size == 32
    assert "reached target" in printed["airflow zeus runs quick.train"]
    assert Path("quick.csv").read_text().count("\n") == 2
    assert "0 errors" in printed["airflow zeus check quick"]


@pytest.mark.slow
def test_a_function(reader: Reader) -> None:
    printed = reader.follow("docs/tutorials/function.md")
    (trial,) = trials("ring.train")
    assert (trial.state.value, trial.batch_size) == ("converged", 64)
    assert Path(json.loads(str(trial.observation.returned))).name == "ring.pt"
    shown = next(
        b.text for b in blocks("docs/tutorials/function.md") if b.text.startswith("5 checks")
    )
    assert re.sub(r"\d+ checks: \d+", "", shown.strip()) in printed["airflow zeus check ring"]


@pytest.mark.slow
def test_a_script(reader: Reader) -> None:
    printed = reader.follow("docs/tutorials/script.md")
    (trial,) = trials("slope.train")
    assert (trial.state.value, trial.batch_size) == ("converged", 50)
    (other,) = trials("other.train")
    assert (other.state.value, other.observation.epochs, other.observation.metric) == (
        "converged",
        4.0,
        1.1,
    )
    assert "0 errors" in printed["airflow zeus check slope"]


@pytest.mark.slow
def test_a_pod(reader: Reader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The cluster alone is replaced: a process that has the pod's environment,
    and nothing else, runs its command.
    """
    pod = pytest.importorskip(
        "airflow.providers.cncf.kubernetes.operators.pod", reason="Airflow's Kubernetes provider"
    )

    def in_a_process(self: Any, context: Any) -> Any:
        result = tmp_path / "return.json"
        env = {variable.name: variable.value for variable in self.env_vars}
        command = [
            word.replace("/app/", f"{reader.dags}/") for word in [*self.cmds, *self.arguments]
        ]
        bare = {
            "PATH": os.environ["PATH"],
            "ZEUS_XCOM": str(result),
            "ZEUS_STATE_DIR": str(tmp_path / "pod"),
        }
        subprocess.run(command, env={**bare, **env}, cwd=tmp_path, check=True)
        assert self.do_xcom_push
        return json.loads(result.read_text())

    monkeypatch.setattr(pod.KubernetesPodOperator, "execute", in_a_process)
    printed = reader.follow("docs/tutorials/pod.md")
    (trial,) = trials("pod.train")
    assert (trial.state.value, trial.batch_size) == ("converged", 60)
    assert json.loads(str(trial.observation.returned)) == {"model": "s3://models/60.pt"}
    assert "0 errors" in printed["airflow zeus check pod"]
    (image,) = [b.text for b in blocks("docs/tutorials/pod.md") if b.kind == "dockerfile"]
    assert re.findall("^[A-Z]+", image, re.M) == ["FROM", "RUN", "COPY"]
    assert "COPY train.py /app/train.py" in image
