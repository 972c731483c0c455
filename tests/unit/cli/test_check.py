"""``airflow zeus check``: each usual mistake is found, with its remedy;
what is right is not accused.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from airflow.sdk import Context

from airflow_provider_zeus.cli import checks_host
from airflow_provider_zeus.cli.finding import Finding
from airflow_provider_zeus.errors import ConnectionLookupError
from tests.golden import Table
from tests.unit.cli.conftest import Zeus

FILE = Path(__file__).with_name("checked_dags.py")


def checked(zeus: Zeus, dag_id: str, *arguments: str) -> dict[str, Finding]:
    done = zeus("check", dag_id, "--file", str(FILE), "--json", *arguments)
    found = [Finding(**f) for f in json.loads(done.out)]
    assert done.status == int(any(f.status == "error" for f in found)), done
    assert len({f.check for f in found}) == len(found), "each check has a name of its own"
    assert all(f.remedy or "." in f.finding for f in found if f.status in ("warning", "error")), (
        found
    )
    return {f.check: f for f in found}


def accused(found: dict[str, Finding]) -> dict[str, str]:
    return {name: f.status for name, f in found.items() if f.status != "ok"}


def test_a_right_dag_is_not_accused(zeus: Zeus, home: Path) -> None:
    found = checked(zeus, "right")
    assert accused(found) == {}
    assert list(found) == [
        "import",
        "train: job",
        "store zeus_default",
        "schema zeus_default",
        "power limit",
    ]
    assert (
        found["train: job"].finding == "batch sizes 16, 32, 64, default 32, until accuracy >= 0.9"
    )
    assert [path.name for path in home.iterdir()] in ([], ["state"]), "no log, no record of a limit"


def test_findings_have_a_name_of_their_own_and_a_remedy(zeus: Zeus, home: Path) -> None:
    found = checked(zeus, "trials")
    assert accused(found) == {
        "no_xcom: result": "warning",
        "no_plan: plan": "warning",
        "no_plan: result": "warning",
        "in_an_image: plan": "warning",
        "in_an_image: result": "warning",
        "in_a_pod: result": "error",
    }
    assert "submitted: batch size" not in checked(zeus, "commands"), "it is read on another host"


# situation: the DAG, and the exit status
CHECKED = {
    "a right DAG": ("right", 0),
    "a target in the wrong direction": ("wrong_direction", 1),
    "limits out of range": ("limits_out_of_range", 1),
    "a signal without its Connection": ("no_signal", 1),
    "a misspelt Connection of the store": ("conn_misspelt", 1),
    "two jobs under one id": ("one_id_two_jobs", 1),
    "a mapped task": ("expanded", 0),
    "a task that needs values of others": ("upstream", 0),
    "what tasks ask of their run": ("contexts", 1),
    "commands": ("commands", 0),
    "results that do not come back": ("trials", 1),
    "a misspelt DAG": ("rihgt", 1),
    "a DAG without a Zeus task": ("no_zeus", 1),
}


@pytest.mark.parametrize("situation", CHECKED)
def test_what_people_read(zeus: Zeus, home: Path, situation: str) -> None:
    dag_id, status = CHECKED[situation]
    done = zeus("check", dag_id, "--file", str(FILE))
    assert done.status == status
    text = done.out.replace(str(FILE), "FILE").replace(str(home), "HOME")
    # Airflow 3.2 has none: reason and remedy are others
    text = re.sub(r"('partition_key': ).*(\n +-> ).*", r"\1...\2...", text)
    Table("check").check(situation, text)


def test_tasks_that_are_only_measured_are_no_mistake(
    zeus: Zeus, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__ZEUS__MEASURE", "tag:plain")
    found = checked(zeus, "no_zeus")
    assert (
        found["tasks"].finding == "[zeus] measure names 1 task, and there is no Zeus task to check"
    )
    assert accused(found) == {}
    assert accused(checked(zeus, "no_zeus", "--task", "other")) == {}


@pytest.mark.parametrize(
    ("dag_id", "asked", "near"),
    [
        ("right", "trian", "train"),
        ("no_zeus", "othr", "other"),
        ("commands", "zzz", "ignores_its_size, prints_its_result, right, several, submitted,"),
    ],
)
def test_a_misspelt_task_gets_the_names_that_there_are(
    zeus: Zeus, home: Path, dag_id: str, asked: str, near: str
) -> None:
    found = checked(zeus, dag_id, "--task", asked)
    assert accused(found) == {"tasks": "error"}
    assert found["tasks"].finding == f"{dag_id} has no task {asked}"
    assert found["tasks"].remedy.startswith(f"did you mean {near}")


def test_what_no_task_gets(zeus: Zeus, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = checked(zeus, "contexts")
    assert "Traceback" not in caplog.text, "the findings say what could not be rendered"
    exists = "partition_key" in Context.__annotations__  # Airflow 3.2 has none
    why = (
        "partition_key is None in each run"
        if exists
        else "no task gets partition_key before Airflow 3.3"
    )
    assert why in found["by_partition: context"].finding


def test_a_file_that_cannot_be_imported(zeus: Zeus, home: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("from airflow.sdk import DAG\nraise ValueError('a comma is missing')\n")
    done = zeus("check", "d", "--file", str(broken))
    assert done.status == 1
    assert "broken.py: ValueError: a comma is missing" in done.out


def test_what_a_dag_file_prints_is_no_part_of_the_json(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from airflow.cli.cli_parser import get_parser

    noisy = tmp_path / "noisy.py"
    noisy.write_text("import os  # airflow dag\nprint('hello')\nos.write(1, b'noise')\n")
    args = get_parser().parse_args(["zeus", "check", "d", "--file", str(noisy), "--json"])
    capfd.readouterr()
    with pytest.raises(SystemExit):
        args.func(args)
    out, err = capfd.readouterr()
    assert json.loads(out)[0]["check"] == "import"
    assert "hello" in err
    assert "noise" in err


def test_a_signal_that_cannot_be_looked_up_is_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(conn_id: str) -> None:
        raise ConnectionLookupError("no database")

    monkeypatch.setattr("airflow_provider_zeus.store.open.find_connection", find)
    found = checks_host.signal("price")
    assert (found.status, found.check, found.finding) == (
        "error",
        "Connection zeus_price",
        "no database",
    )


@pytest.mark.parametrize(
    ("name", "tariff", "status"),
    [("price", "{}", "ok"), ("price", " ", "error"), ("carbon", "{}", "error")],
)
def test_a_tariff_takes_the_place_of_the_connection_of_prices_alone(
    monkeypatch: pytest.MonkeyPatch, name: str, tariff: str, status: str
) -> None:
    monkeypatch.setattr("airflow_provider_zeus.store.open.find_connection", lambda conn_id: None)
    monkeypatch.setenv("AIRFLOW__ZEUS__TARIFF", tariff)
    assert checks_host.signal(name).status == status
