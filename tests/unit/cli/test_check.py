"""``airflow zeus check``: each usual mistake is found, with its remedy; what is right is not accused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from airflow.sdk import Context

from airflow_provider_zeus.cli import checks_host
from airflow_provider_zeus.cli.finding import Finding
from airflow_provider_zeus.errors import ConnectionLookupError
from tests.unit.cli.conftest import Zeus

FILE = Path(__file__).with_name("checked_dags.py")


def checked(zeus: Zeus, dag_id: str, *arguments: str) -> dict[str, Finding]:
    done = zeus("check", dag_id, "--file", str(FILE), "--json", *arguments)
    found = [Finding(**f) for f in json.loads(done.out)]
    assert done.status == int(any(f.status == "error" for f in found)), done
    assert len({f.check for f in found}) == len(found), "each check has a name of its own"
    assert all(f.remedy or "." in f.finding for f in found if f.status in ("warning", "error")), found
    return {f.check: f for f in found}


def accused(found: dict[str, Finding]) -> dict[str, str]:
    return {name: f.status for name, f in found.items() if f.status != "ok"}


def test_a_right_dag_is_not_accused(zeus: Zeus, home: Path) -> None:
    found = checked(zeus, "right")
    assert accused(found) == {}
    assert list(found) == ["import", "train: job", "store zeus_default", "schema zeus_default", "power limit"]
    assert found["train: job"].finding == "batch sizes 16, 32, 64, default 32, until accuracy >= 0.9"
    assert [path.name for path in home.iterdir()] in ([], ["state"]), "no log, no record of a limit"


MISTAKES = {  # DAG: the only checks that are not OK, the status of each, a word of finding or remedy
    "wrong_direction": ("train: target", "error", 'write "accuracy >= 0.9"'),
    "limits_out_of_range": ("power limit", "error", "use limits from 100 to 250 W"),
    "no_signal": ("Connection zeus_carbno", "error", "correct the name"),
    "conn_misspelt": ("Connection zeus_defualt", "error", "correct its name"),
    "one_id_two_jobs": ("job ids", "error", "give each its own job_id"),
    "expanded": ("by_region: mapped", "warning", 'job_id_by="region"'),
}


@pytest.mark.parametrize("dag_id", MISTAKES)
def test_a_usual_mistake_is_found(zeus: Zeus, home: Path, dag_id: str) -> None:
    name, status, words = MISTAKES[dag_id]
    found = checked(zeus, dag_id)
    assert accused(found) == {name: status}, "a mistake is named once"
    assert words in f"{found[name].finding} -> {found[name].remedy}"


def test_a_task_that_needs_values_of_others_is_checked_as_far_as_it_is_known(zeus: Zeus, home: Path) -> None:
    found = checked(zeus, "upstream")
    assert accused(found) == {"of_loaded: context": "undecided"}
    assert "values of load, which did not run" in found["of_loaded: context"].finding
    assert found["of_loaded: job"].status == "ok"


def test_what_a_task_asks_of_its_run(zeus: Zeus, home: Path) -> None:
    found = checked(zeus, "contexts")
    assert accused(found) == {
        "by_partition: context": "error",
        "by_a_template_of_an_xcom: context": "undecided",
        "by_a_template_that_fails: context": "undecided",
    }
    given = "partition_key" in Context.__annotations__  # Airflow 3.2 has none
    why = "partition_key is None in each run" if given else "no task gets partition_key before Airflow 3.3"
    assert why in found["by_partition: context"].finding
    assert "XCom return_value of task load, which only a run has" in found["by_a_template_of_an_xcom: context"].finding
    assert "ZeroDivisionError" in found["by_a_template_that_fails: context"].finding


def test_commands(zeus: Zeus, home: Path) -> None:
    found = checked(zeus, "commands")
    assert accused(found) == {
        "ignores_its_size: batch size": "warning",
        "several: batch size": "warning",
        "tracked_prints_its_result: log_to": "warning",
    }
    assert found["right: batch size"].status == found["prints_its_result: batch size"].status == "ok"
    assert "submitted: batch size" not in found, "its script is read on another host"
    assert "no run of mlflow" in found["tracked_prints_its_result: log_to"].finding


def test_a_result_that_does_not_come_back(zeus: Zeus, home: Path) -> None:
    found = checked(zeus, "trials")
    assert found["comes_back: plan"].status == found["comes_back: result"].status == "ok"
    assert found["no_xcom: result"].status == "warning"
    assert str(found["no_xcom: result"].remedy).startswith("set ZEUS_XCOM")
    assert found["no_plan: plan"].status == "warning"
    assert "ZEUS_PLAN" in found["no_plan: plan"].finding
    assert found["in_an_image: plan"].status == "warning"
    assert "cat /tmp/zeus.json" in str(found["in_an_image: result"].remedy)
    assert found["in_a_pod: plan"].status == "ok"
    assert "do_xcom_push=True" in str(found["in_a_pod: result"].remedy)


def test_a_dag_that_is_not_there_or_has_no_zeus_task(zeus: Zeus, home: Path, tmp_path: Path) -> None:
    assert "right" in str(checked(zeus, "rihgt")["import"].remedy)
    assert "@task.zeus" in str(checked(zeus, "no_zeus")["tasks"].remedy)
    broken = tmp_path / "broken.py"
    broken.write_text("from airflow.sdk import DAG\nraise ValueError('a comma is missing')\n")
    done = zeus("check", "d", "--file", str(broken))
    assert done.status == 1
    assert "broken.py: ValueError: a comma is missing" in done.out


def test_people_read_lines(zeus: Zeus, home: Path) -> None:
    done = zeus("check", "wrong_direction", "--file", str(FILE), "--task", "train")
    assert done.status == 1
    lines = done.out.splitlines()
    assert lines[0].startswith("OK       import")
    assert any(line.startswith("error    train: target") for line in lines)
    assert any(line.strip().startswith("-> write ") for line in lines)
    assert lines[-1].endswith("1 errors.")


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
    assert (found.status, found.check, found.finding) == ("error", "Connection zeus_price", "no database")
