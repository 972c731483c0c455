"""``airflow zeus check``: each usual mistake is found, with its remedy; what is right is not accused."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
import torch
from airflow.sdk import Context

from airflow_provider_zeus import JobSpecError, ZeusJob, check
from airflow_provider_zeus.cli.finding import Finding
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.cli.conftest import Zeus

FILE = Path(__file__).with_name("checked_dags.py")


@pytest.fixture(scope="module", autouse=True)
def _torch_is_loaded() -> None:
    """What torch imports for its first optimizer is imported once, and not in the process of each rehearsal."""
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def checked(zeus: Zeus, dag_id: str, *arguments: str) -> dict[str, Finding]:
    done = zeus("check", dag_id, "--file", str(FILE), "--json", *arguments)
    found = [Finding(**f) for f in json.loads(done.out)]
    assert done.status == int(any(f.status == "error" for f in found)), done
    assert len({f.check for f in found}) == len(found), "each check has a name of its own"
    assert all(f.remedy or "." in f.finding for f in found if f.status in ("warning", "error")), found
    return {f.check: f for f in found}


def accused(found: dict[str, Finding]) -> dict[str, str]:
    return {name: f.status for name, f in found.items() if f.status != "ok"}


@pytest.mark.parametrize("dag_id", ["right", "right_own_loader", "right_untold"])
def test_a_right_training_is_not_accused(zeus: Zeus, home: Path, dag_id: str) -> None:
    found = checked(zeus, dag_id)
    assert accused(found) == {}
    assert list(found) == [
        "import", "train: training", "train: steps", "train: batch size", "train: metric", "train: value",
        "train: model", "store zeus_default", "schema zeus_default", "power limit",
    ]  # fmt: skip
    assert "ran at batch size 16" in found["train: training"].finding, "not at the default, which a loop may have"
    how = "2 seen in torch" if dag_id == "right_untold" else "2 counted"
    assert f"{how}, of 16 samples" in found["train: steps"].finding
    assert [path.name for path in home.iterdir()] in ([], ["state"]), "no log, no record of a limit"


MISTAKES = {  # DAG: the only checks that are not OK, the status of each, a word of finding or remedy
    "no_loader_no_step": ("train: steps", "error", "use run.data_loader(data)"),
    "fixed_size_untold": ("train: batch size", "error", "with run.batch_size"),
    "fixed_size": ("train: batch size", "error", "32 samples are drawn for each optimizer step, and not the 16"),
    "fixed_size_told_as_chosen": ("train: batch size", "error", "run.batch_size"),
    "fixed_size_in_our_loader": ("train: training", "error", "leave batch_size out"),
    "accumulated_on_top": ("train: batch size", "error", "gradients are accumulated"),
    "per_cent": ("train: metric", "error", "report it as a share, or state the target in per cent"),
    "share_for_per_cent": ("train: metric", "warning", "in the unit of the target"),
    "another_metric": ("train: metric", "error", "run.report(accuracy=value)"),
    "no_report": ("train: metric", "error", "run.report(accuracy="),
    "not_a_number": ("train: metric", "error", "(checked_dags.py:73) -> the training may have diverged"),
    "no_set_target": ("train: metric", "error", "run.set_target(value)"),
    "reached_at_once": ("train: metric", "warning", "after its first steps"),
    "model_outside": ("train: model", "error", "inside the function"),
    "returns_nothing": ("train: value", "warning", "the path of the model"),
    "returns_the_model": ("train: value", "error", "return its path"),
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
    assert found[name].status == status
    assert words in f"{found[name].finding} -> {found[name].remedy}"
    others = {check for check, kind in accused(found).items() if kind != "undecided"} - {name}
    assert others <= {"train: training"}, "a mistake is named once; the training that ends by it is, too"


def test_what_cannot_be_known_is_undecided(zeus: Zeus, home: Path) -> None:
    found = checked(zeus, "upstream")
    assert accused(found) == {"of_loaded: training": "undecided"}
    assert "values of load, which did not run" in found["of_loaded: training"].finding


def test_errors_of_a_training(zeus: Zeus, home: Path) -> None:
    found = checked(zeus, "raises")
    kinds = {name.partition(":")[0]: f for name, f in found.items() if name.endswith(": training")}
    assert {name: f.status for name, f in kinds.items()} == {
        "broken": "error",
        "broken_by_a_made_up_date": "warning",
        "broken_by_a_partition": "error",
        "needs_a_run": "undecided",
        "needs_an_xcom": "undecided",
        "needs_a_gpu": "undecided",
    }
    assert "ValueError: no such file (checked_dags.py:" in kinds["broken"].finding
    assert "made-up ds" in kinds["broken_by_a_made_up_date"].finding
    given = "partition_key" in Context.__annotations__  # Airflow 3.2 has none
    why = "partition_key is None in each run" if given else "partition_key from Airflow 3.3 on"
    assert why in str(kinds["broken_by_a_partition"].remedy)
    assert "made-up" not in kinds["broken_by_a_partition"].finding
    assert "--gpu" in str(kinds["needs_a_gpu"].remedy)
    assert found["broken: steps"].status == "undecided"


def test_a_training_that_hangs(zeus: Zeus, home: Path) -> None:
    found = checked(zeus, "hangs", "--timeout", "1")["hangs: training"]
    assert (found.status, "within 1 s" in found.finding) == ("undecided", True)


@pytest.mark.slow
def test_commands(zeus: Zeus, home: Path) -> None:
    found = checked(zeus, "commands")
    assert {f.status for name, f in found.items() if name.startswith("right: ")} <= {"ok", "undecided"}
    assert found["right: batch size"].status == found["right: metric"].status == "ok"
    assert "trained nothing" in found["never_trains: training"].finding
    assert found["ignores_its_size: batch size"].status == "warning"
    assert "print it as JSON" in str(found["ignores_its_size: metric"].remedy)
    assert accused({n: f for n, f in found.items() if n.startswith("prints")}) == {
        "prints_its_result: batch size": "undecided"
    }
    assert found["several: training"].status == "undecided"
    assert found["submitted: training"].status == "undecided"
    assert "is not submitted" in found["submitted: training"].finding


@pytest.mark.slow
def test_a_result_that_does_not_come_back(zeus: Zeus, home: Path) -> None:
    found = checked(zeus, "trials")
    assert found["comes_back: result"].status == "ok"
    assert found["no_xcom: result"].status == "error"
    assert str(found["no_xcom: result"].remedy).startswith("set ZEUS_XCOM")
    assert found["prints_it: result"].status == "error"
    assert "train by ZeusRun.from_env().train(fn), set ZEUS_XCOM" in str(found["prints_it: result"].remedy)
    assert "prints_it: metric" not in found, "what it prints is not read"
    assert found["no_plan: training"].status == "error"
    assert "ZEUS_PLAN" in found["no_plan: training"].finding
    assert found["in_an_image: plan"].status == "warning"
    assert "cat /tmp/zeus.json" in str(found["in_an_image: result"].remedy)
    assert found["in_an_image: training"].status == "undecided"
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
    done = zeus("check", "fixed_size", "--file", str(FILE), "--task", "train")
    assert done.status == 1
    lines = done.out.splitlines()
    assert lines[0].startswith("OK       import")
    assert any(line.startswith("error    train: batch size") for line in lines)
    assert any(line.strip().startswith("-> build the loader") for line in lines)
    assert lines[-1].endswith("1 errors.")


# --- in a notebook

JOB = ZeusJob(batch_sizes=[16, 32], default_batch_size=32, target="loss <= 0.1", max_epochs=3, mode="measure")


def test_the_function_of_a_notebook(store: Store, home: Path, tmp_path: Path) -> None:
    before = sorted(home.rglob("*"))

    def train(run, rows, *, saved_to):  # type: ignore[no-untyped-def]
        for _ in run.epochs():
            for _ in range(rows // run.batch_size):
                run.step(run.batch_size)
            run.report(loss=0.7)
        saved_to.write_text(str(run.batch_size))
        return str(saved_to)

    found = check(JOB, train, 160, saved_to=tmp_path / "model")
    assert {f.check: f.status for f in found} == {
        "training": "ok", "steps": "ok", "batch size": "ok", "metric": "ok", "value": "ok", "model": "undecided",
        "store zeus_default": "ok", "schema zeus_default": "ok", "power limit": "ok",
    }  # fmt: skip
    assert repr(found).splitlines()[-1] == "9 checks: 8 OK, 0 warnings, 0 errors, 1 undecided."
    (tmp_path / "model").unlink()
    assert store.jobs() == []
    assert sorted(home.rglob("*")) == before

    found = check(JOB, train, 160, saved_to=tmp_path / "model", to_report=True)
    assert {f.check: f.status for f in found}["value"] == "undecided"
    assert not (tmp_path / "model").exists(), "nothing after the loop has run"


def test_a_long_epoch_is_left(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_zeus.training.rehearsal.EPOCH_S", 0.1)

    def endless(run):  # type: ignore[no-untyped-def]
        for _ in run.epochs():
            while True:
                run.step(32)

    found = {f.check: f for f in check(JOB, endless)}
    assert found["training"].status == "ok"
    assert "has not ended" in found["training"].finding
    assert (found["steps"].status, found["metric"].status) == ("ok", "undecided")
    assert "32 samples, and not the 16" in found["batch size"].finding


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


def test_what_a_training_prints_fills_no_disk_and_what_it_leaves_stops_no_check(home: Path, tmp_path: Path) -> None:
    def train(run):  # type: ignore[no-untyped-def]
        (tmp_path / "kinds").write_text(str([stat.S_ISCHR(os.fstat(fd).st_mode) for fd in (0, 1, 2)]))
        for _ in run.epochs():
            folder = next(p for p in run.attempt_dir.parents if p.name.startswith("zeus-check-"))
            os.mkfifo(folder / "ended")
            os._exit(0)

    found = {f.check: f for f in check(JOB, train)}
    assert (tmp_path / "kinds").read_text() == "[True, True, True]"
    assert (found["training"].status, "died" in found["training"].finding) == ("error", True)


def test_what_a_notebook_gives_wrongly(home: Path) -> None:
    with pytest.raises(JobSpecError, match="has no parameter 'run'"):
        check(JOB, lambda: None)
