"""``airflow zeus check`` reads the DAG's own file: what its neighbours do harms nothing,
and is not shown.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.dag_processing.bundles import manager

from airflow_provider_zeus.cli.dag_file import import_dag
from airflow_provider_zeus.cli.finding import Finding

DAG = "from airflow.sdk import DAG\nimport {module}\nwith DAG({name}): pass\n"
FAILS = (
    "from airflow.sdk import DAG\nprint('noise of a neighbour')\nraise ValueError('a secret of a"
    " neighbour')\n"
)


def bundles_are(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    kind = "airflow.dag_processing.bundles.local.LocalDagBundle"
    listed = [
        {"name": each.name, "classpath": kind, "kwargs": {"path": str(each)}} for each in folders
    ]
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps(listed))
    # Airflow 3.4 reads the list once in a process
    listing = getattr(manager, "_load_bundle_config_snapshot", None)
    if listing is not None:
        listing.cache_clear()


@pytest.fixture
def folder(airflow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    dags = tmp_path / "dags"
    dags.mkdir()
    bundles_are(monkeypatch, dags)
    before = [*sys.path]
    yield dags
    sys.path[:] = before
    for name in ("common", "halves"):
        sys.modules.pop(name, None)


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


def found(dag_id: str) -> Finding:
    dag, finding = import_dag(dag_id, None)
    assert (dag is not None) == (finding.status in ("ok", "warning"))
    return finding


def test_neighbours_are_not_imported_where_one_file_names_the_dag(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    triggers = FAILS + "TriggerDagRunOperator(task_id='t', trigger_dag_id='nightly')\n"
    write(
        folder,
        a_broken=triggers,
        nightly=DAG.format(module="json", name="'nightly'"),
        z_broken=FAILS,
    )
    (folder / "b_ran.py").write_text(
        f"import os, airflow  # dag\nopen({str(folder / 'ran')!r}, 'w').close()\n"
    )
    assert found("nightly") == Finding("import", "ok", f"nightly in {folder / 'nightly.py'}")
    assert not (folder / "ran").exists()
    out, err = capfd.readouterr()
    assert "neighbour" not in out + err


@pytest.mark.parametrize("argument", ["trigger_dag_id", "external_dag_id"])
def test_a_file_that_triggers_or_awaits_the_dag_does_not_define_it(
    folder: Path, capfd: pytest.CaptureFixture[str], argument: str
) -> None:
    write(
        folder,
        a_triggers=f"{FAILS}Operator({argument}='nightly')\n",
        b=DAG.format(module="json", name="'night' + 'ly'"),
    )
    assert found("nightly").finding == f"nightly in {folder / 'b.py'}"
    assert "noise" not in "".join(capfd.readouterr()), "it is imported elsewhere"


def test_an_import_leaves_the_log_as_it_was(folder: Path) -> None:
    write(folder, nightly=DAG.format(module="json", name="'nightly'"))
    logging.disable(logging.WARNING)
    found("nightly")
    assert logging.root.manager.disable == logging.WARNING


NEIGHBOURS = {
    "fails": FAILS + "'nightly'\n",
    "ends the process": "import os  # airflow dag 'nightly'\nos._exit(3)\n",
    "leaves a half module": (
        "import sys  # airflow dag 'nightly'\nsys.modules['halves'] = sys\nraise ImportError\n"
    ),
    "fills the output": (
        "import airflow, os  # dag 'nightly'\nfor _ in range(99): os.write(1, b'noise' * 999)\n"
    ),
}


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_a_neighbour_that_names_the_dag_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], neighbour: str
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT", "0.1")
    write(folder, halves="import time\ntime.sleep(0.2)\nwhole = True\n", a=NEIGHBOURS[neighbour])
    write(
        folder,
        b="import airflow  # dag 'nightly'\n",
        c="NAME = 'nightly'\n" + DAG.format(module="halves; halves.whole", name="NAME"),
    )
    finding = found("nightly")
    assert f"nightly in {folder / 'c.py'}" in finding.finding
    assert finding.status == "warning", "its own import takes longer than Airflow allows"
    assert "inside the training function" in str(finding.remedy)
    assert "noise" not in "".join(capfd.readouterr())


def test_an_id_that_its_own_file_does_not_name(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(
        folder, a="'nightly'\n" + FAILS, b=DAG.format(module="json", name="'night' + 'ly'"), c=FAILS
    )
    assert found("nightly").finding == f"nightly in {folder / 'b.py'}"
    assert "noise" not in "".join(capfd.readouterr())
    missing = found("nihgtly")
    assert (missing.status, missing.finding) == ("error", "there is no DAG nihgtly")
    assert missing.remedy == (
        "did you mean nightly; 2 files cannot be imported (airflow dags list-import-errors)"
    )


def test_an_error_of_its_own_file(folder: Path) -> None:
    write(folder, nightly=DAG.format(module="not_there", name="'nightly'"), other=FAILS)
    finding = found("nightly")
    assert "nightly.py: ModuleNotFoundError: No module named 'not_there'" in finding.finding
    assert "neighbour" not in f"{finding}"


def test_the_file_from_which_airflow_knows_it(folder: Path) -> None:
    from airflow.models.dagbundle import DagBundleModel

    from airflow_provider_zeus.airflow_compat import DagModel, create_session

    text = DAG.format(module="json", name="'nightly'")
    write(
        folder,
        a="import os, airflow  # dag\nos._exit(1)  # 'nightly'\n",
        b=text,
        c=text.replace("json", "os"),
    )
    with create_session() as session:
        session.merge(DagBundleModel(name="dags"))
        session.flush()
        session.add(DagModel(dag_id="nightly", bundle_name="dags", relative_fileloc="c.py"))
    try:
        assert found("nightly").finding == f"nightly in {folder / 'c.py'}"
    finally:
        with create_session() as session:
            session.delete(session.get(DagModel, "nightly"))


def test_a_bundle_that_cannot_be_read_and_its_modules(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "first"
    first.mkdir()
    write(first, common="NAME = 'other'\n")
    write(folder, common="NAME = 'nightly'\n", own=DAG.format(module="common", name="common.NAME"))
    bundles_are(monkeypatch, tmp_path / "not_there", first, folder)
    assert found("nightly").finding == f"nightly in {folder / 'own.py'}"
