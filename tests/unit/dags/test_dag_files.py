"""The example files as Airflow sees them: what they define, what they import,
and where they refuse.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import airflow.sdk
import pytest

from tests.unit.dags.conftest import DAGS

PARTITIONS = hasattr(airflow.sdk, "PartitionedAtRuntime")  # from Airflow 3.3
EXAMPLES = {
    "zeus_capriccio": [1, "NullTimetable", ["train"]],
    "zeus_demo": [1, "NullTimetable", ["train"]],
    "zeus_kubernetes": [16, "CronTriggerTimetable", ["zeus_ask", "zeus_tell", "train"]],
    "zeus_ladder": [16, "NullTimetable", ["measured", "tuned"]],
    "zeus_minimal": [16, "CronTriggerTimetable", ["train"]],
    "zeus_one_line": [16, "CronTriggerTimetable", ["prepare", "train"]],
    "zeus_plain": [16, "NullTimetable", ["extract", "transform", "load"]],
}
if PARTITIONS:
    EXAMPLES |= {
        "zeus_weather_slices": [1, "PartitionedAtRuntime", ["emit_next"]],
        "zeus_weather_retrain": [1, "PartitionedAssetTimetable", ["train"]],
    }
HEAVY = ("torch", "numpy", "pandas", "pynvml", "transformers")
PARSE = """
import json, logging, sys
from pathlib import Path
{before}
from airflow.dag_processing.dagbag import BundleDagBag
folder = Path({folder!r})
bag = BundleDagBag(dag_folder=folder, bundle_path=folder, bundle_name="examples")
print(json.dumps({{
    "dags": {{d: [dag.max_active_runs, type(dag.timetable).__name__, dag.task_ids] for d, dag in bag.dags.items()}},
    "errors": bag.import_errors,
    "heavy": [m for m in {heavy!r} if m in sys.modules],
}}))
"""
WITHOUT_PARTITIONS = """
import types, airflow.sdk
class Older(types.ModuleType):
    def __getattr__(self, name):
        if name == "PartitionedAtRuntime":
            raise AttributeError(name)
        return getattr(airflow.sdk, name)
older = Older("airflow.sdk")
older.__path__ = airflow.sdk.__path__
real, sys.modules["airflow.sdk"] = airflow.sdk, older
"""


def parse(folder: Path, home: Path, before: str = "") -> tuple[dict[str, Any], str]:
    """What a fresh process finds in a DAG folder, and what it logs."""
    code = PARSE.format(before=before, folder=str(folder), heavy=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=home,
        env={
            "AIRFLOW_HOME": str(home),
            # of Airflow 30 s: too little on a busy host
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "600",
            "PATH": "",
            "PYTHONPATH": str(DAGS.parent),
        },
    )
    return json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr


def test_all_examples_parse_and_import_nothing_heavy(tmp_path: Path) -> None:
    found, _ = parse(DAGS, tmp_path)
    assert found["errors"] == {}
    assert found["heavy"] == []
    assert found["dags"] == EXAMPLES


@pytest.mark.slow
def test_they_parse_from_any_folder(tmp_path: Path) -> None:
    """As in an installed wheel: the folder has another name and the checkout is not beside it."""
    folder = tmp_path / "example_dags"
    shutil.copytree(DAGS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    found, _ = parse(folder, tmp_path)
    assert found["errors"] == {}
    assert found["dags"] == EXAMPLES


@pytest.mark.slow
def test_without_runtime_partitions_the_weather_file_defines_nothing_and_says_so_once(
    tmp_path: Path,
) -> None:
    found, log = parse(DAGS, tmp_path, WITHOUT_PARTITIONS)
    assert found["errors"] == {}
    assert set(found["dags"]) == {
        "zeus_capriccio",
        "zeus_demo",
        "zeus_kubernetes",
        "zeus_ladder",
        "zeus_minimal",
        "zeus_one_line",
        "zeus_plain",
    }
    assert log.count("zeus_weather defines") == 1
    assert "Airflow 3.3" in log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dag_id", "module"),
    [
        ("zeus_kubernetes", "airflow.providers.cncf.kubernetes.operators.pod"),
    ],
)
def test_without_its_provider_a_file_defines_nothing_and_says_so_once(
    tmp_path: Path, dag_id: str, module: str
) -> None:
    found, log = parse(DAGS, tmp_path, f'import sys; sys.modules["{module}"] = None')
    assert found["errors"] == {}
    assert set(found["dags"]) == set(EXAMPLES) - {dag_id}
    assert log.count(f"{dag_id} defines") == 1


def test_the_pod_gets_the_plan_and_gives_the_result_back() -> None:
    import zeus_kubernetes

    pod = zeus_kubernetes.dag.get_task("train")
    assert {"ZEUS_PLAN", "ZEUS_POWER_SOCKET"} <= set(pod.env_vars)
    assert "env_vars" in pod.template_fields
    assert "ZEUS_RESULT" in pod.env_vars
    assert pod.retries == 2
    assert pod.upstream_task_ids == {"zeus_ask"}


@pytest.mark.parametrize(
    "name",
    [
        "zeus_capriccio.py",
        "zeus_demo.py",
        "zeus_kubernetes.py",
        "zeus_minimal.py",
        "zeus_weather.py",
    ],
)
def test_each_example_says_why_the_model_is_built_inside(name: str) -> None:
    text = " ".join((DAGS / name).read_text(encoding="utf-8").split())
    assert "attempt is a new call" in text.lower()


def test_the_minimal_example_stays_small() -> None:
    lines = (DAGS / "zeus_minimal.py").read_text(encoding="utf-8").splitlines()
    code = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert len(code) <= 32
