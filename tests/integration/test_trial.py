"""``ZeusTrial`` around operators that know nothing of Airflow's store: plan by environment, result by XCom or files."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Variable, task, task_group

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.trial import LOST, PLAIN
from airflow_provider_zeus.operators import asking, trial_tasks
from airflow_provider_zeus.operators.collect import NO_RESULT
from airflow_provider_zeus.operators.command import ZeusCommandOperator
from airflow_provider_zeus.operators.trial import ZeusTrial
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.pending import drain
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from tests.integration.jobs import job, log_of

START = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[2]

TRAIN = """
import os, sys
from airflow_provider_zeus.training.run import ZeusRun
EPOCHS = {16: 19, 32: 4, 64: 5}
def train(run):
    for epoch in run.epochs():
        for _ in range(5000 // run.batch_size):
            run.step()
        run.report(accuracy=0.9 * (epoch + 1) / EPOCHS[run.batch_size])
    with open("saves", "a") as file:
        print(run.batch_size, file=file)
    return {"model": f"model-{run.batch_size}"}
ZeusRun.from_env().train(train)
"""


class Pod:
    """A process that knows only its environment: what it writes for XCom is the last line of its output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text(TRAIN)

    def env(self, trial: ZeusTrial, **more: str) -> dict[str, str]:
        own = {"PYTHONPATH": str(ROOT), "ZEUS_XCOM": str(self.folder / "return.json")}
        return (
            trial.env | own | {"ZEUS_STATE_DIR": str(self.folder), "PATH": "/usr/bin:/bin"} | more
        )

    def operator(
        self, trial: ZeusTrial, command: str = "{python} train.py && cat $ZEUS_XCOM", **kwargs: Any
    ) -> Any:
        env = self.env(trial, **kwargs.pop("env", {}))
        return BashOperator(
            task_id="train",
            bash_command=command.format(python=sys.executable),
            env=env,
            append_env=False,
            cwd=str(self.folder),
            **kwargs,
        )

    def saves(self) -> list[int]:
        path = self.folder / "saves"
        return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


def states(job_id: str) -> list[tuple[int, str, int]]:
    return [(t.batch_size, t.state.value, t.key.attempt) for t in log_of(job_id)]


def xcom(dag_run: Any, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
    ti = dag_run.get_task_instance(task_id, map_index=map_index)
    value = ti.xcom_pull(task_ids=task_id, key=key, map_indexes=map_index)
    return json.loads(value) if isinstance(value, str) and value.startswith("{") else value


@pytest.mark.slow
def test_a_pod_whose_first_attempt_is_given_up_ends_with_one_save(
    run_dag: Any, pod: Pod, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with DAG("zeus_pod", schedule=None, start_date=START) as dag, ZeusTrial(job()) as trial:
        pod.operator(trial)
    first = run_dag(dag)
    (chosen,) = [r for r in caplog.records if r.name == trial_tasks.__name__]
    assert (chosen.levelname, "batch size 32" in chosen.getMessage()) == ("INFO", True)
    second = run_dag(dag)
    assert (first.state, second.state) == ("success", "success")
    assert states("zeus_pod.train") == [
        (32, "converged", 1),
        (16, "given_up", 1),
        (32, "converged", 2),
    ]
    assert pod.saves() == [32, 32]
    cost = xcom(second, "zeus_tell", "zeus_cost")
    assert (cost["kept_attempt"], cost["batch_size"], cost["energy_source"]) == (2, 32, "simulated")
    assert cost["energy_j"] == pytest.approx(
        sum(t.observation.energy_j or 0 for t in log_of("zeus_pod.train")[1:])
    )
    assert xcom(second, "train")["value"] == {"model": "model-32"}
    origin = log_of("zeus_pod.train")[1].origin
    assert (origin.task_id, origin.run_id) == ("train", second.run_id)
    assert xcom(second, "zeus_ask", "zeus_decision")["batch_size"] == 16


@pytest.mark.slow
def test_each_instance_of_a_mapped_group_is_a_trial_of_its_own(run_dag: Any, pod: Pod) -> None:
    with DAG("zeus_mapped_group", schedule=None, start_date=START) as dag:

        @task_group
        def region(name: str) -> None:
            with ZeusTrial(job()) as trial:
                pod.operator(
                    trial, env={"ZEUS_XCOM": f"{pod.folder}/return-{{{{ ti.map_index }}}}.json"}
                )

        region.expand(name=["north", "south", "west"])
    dag_run = run_dag(dag)
    assert dag_run.state == "success"
    trials = log_of("zeus_mapped_group.region..train")
    assert sorted(t.origin.map_index for t in trials) == [0, 1, 2]
    assert {t.state.value for t in trials} == {"converged"}
    assert len(pod.saves()) == 3
    costs = [xcom(dag_run, "region.zeus_tell", "zeus_cost", index) for index in range(3)]
    assert [c["kept_attempt"] for c in costs] == [1, 1, 1]


@pytest.mark.nightly
def test_jobs_apart_when_their_id_is_a_template(run_dag: Any, pod: Pod) -> None:
    with DAG("zeus_mapped_jobs", schedule=None, start_date=START) as dag:

        @task_group
        def region(name: str) -> None:
            with ZeusTrial(job(job_id="region-{{ ti.map_index }}")) as trial:
                pod.operator(
                    trial, env={"ZEUS_XCOM": f"{pod.folder}/return-{{{{ ti.map_index }}}}.json"}
                )

        region.expand(name=["north", "south"])
    assert run_dag(dag).state == "success"
    assert [len(log_of(f"region-{index}")) for index in (0, 1)] == [1, 1]


@pytest.mark.slow
def test_a_job_for_each_argument_of_a_mapped_group(run_dag: Any, pod: Pod) -> None:
    with DAG("zeus_group_by", schedule=None, start_date=START) as dag:

        @task_group
        def region(name: str) -> None:
            with ZeusTrial(job(), job_id_by="name") as trial:
                pod.operator(
                    trial, env={"ZEUS_XCOM": f"{pod.folder}/return-{{{{ ti.map_index }}}}.json"}
                )

        region.expand(name=["north", "south"])
    assert run_dag(dag).state == "success"
    found = [log_of(f"zeus_group_by.region..train.{name}") for name in ("north", "south")]
    assert [[(t.origin.map_index, t.state.value) for t in trials] for trials in found] == [
        [(0, "converged")],
        [(1, "converged")],
    ]


def test_native_rendering_leaves_text_in_the_environment(run_dag: Any, pod: Pod) -> None:
    native = DAG(
        "zeus_pod_native", schedule=None, start_date=START, render_template_as_native_obj=True
    )
    with native as dag, ZeusTrial(job()) as trial:
        pod.operator(
            trial, "[ $ZEUS_BATCH_SIZE-$ZEUS_TRY = 32-1 ] && {python} train.py && cat $ZEUS_XCOM"
        )
    assert run_dag(dag).state == "success"
    assert states("zeus_pod_native.train") == [(32, "converged", 1)]


def nothing() -> None:
    pass


def two() -> None:
    EmptyOperator(task_id="one")
    EmptyOperator(task_id="two")


def mapped_operator() -> None:
    BashOperator.partial(task_id="train").expand(bash_command=["a", "b"])


def mapped_function() -> None:
    @task
    def train(x):
        return x

    train.expand(x=[1, 2])


def mapped_group() -> None:
    @task_group
    def region(name):
        EmptyOperator(task_id="train")

    region.expand(name=["north", "south"])


def measured() -> None:
    task.zeus(lambda: None, task_id="train")()


def of_a_job() -> None:
    task.zeus(job(), task_id="train")(lambda run: None)()


def mapped_of_a_job() -> None:
    task.zeus(job(), task_id="train")(lambda x, run=None: None).expand(x=[1, 2])


def measured_command() -> None:
    ZeusCommandOperator(task_id="train", command="train")


def command_of_a_group() -> None:
    @task_group(group_id="group", prefix_group_id=False)
    def group():
        ZeusCommandOperator(task_id="train", job=job(), command="train")

    group()


def another_trial() -> None:
    with ZeusTrial(job(), task_id="inner"):
        EmptyOperator(task_id="train")


class TestRefused:
    @pytest.mark.parametrize(
        "inside",
        [measured, of_a_job, mapped_of_a_job, measured_command, command_of_a_group, another_trial],
    )
    def test_a_task_of_zeus_within_a_trial(self, inside: Any) -> None:
        said = r"(train|inner_ask) is a task of Zeus already.*leave this ZeusTrial out, and give its job to that task"
        with pytest.raises(JobSpecError, match=said), DAG("d", schedule=None), ZeusTrial(job()):
            inside()

    @pytest.mark.parametrize(
        ("inside", "message"),
        [
            (nothing, "no operator"),
            (two, r"2 operators \(one, two\)"),
            (mapped_operator, r"train is mapped by \.expand\(\)"),
            (mapped_function, r"train is mapped by \.expand\(\)"),
            (mapped_group, r"region\.train is mapped by \.expand\(\)"),
        ],
    )
    def test_what_stands_inside(self, inside: Any, message: str) -> None:
        with pytest.raises(JobSpecError, match=message), DAG("d", schedule=None), ZeusTrial(job()):
            inside()

    def test_outside_of_a_dag(self) -> None:
        with (
            pytest.raises(JobSpecError, match="ZeusTrial = 'zeus': is outside of a DAG"),
            ZeusTrial(job()),
        ):
            pass

    def test_a_lease_of_nothing(self) -> None:
        with pytest.raises(JobSpecError, match=r"ZeusTrial.lease_s = 0: not above 0"):
            ZeusTrial(job(), lease_s=0)

    def test_an_error_inside_the_block_is_the_one_that_is_shown(self) -> None:
        with pytest.raises(ZeroDivisionError), DAG("d", schedule=None), ZeusTrial(job()):
            1 / 0  # noqa: B018

    def test_a_job_that_cannot_be(self) -> None:
        with pytest.raises(JobSpecError, match="default_batch_size"):
            ZeusTrial({**job().to_dict(), "default_batch_size": 33})


def test_names_of_setup_and_teardown() -> None:
    with DAG("zeus_names", schedule=None) as dag:
        with ZeusTrial(job()):
            EmptyOperator(task_id="a")
        with ZeusTrial(job()):
            EmptyOperator(task_id="b")
        with ZeusTrial(job(), task_id="resnet") as trial:
            EmptyOperator(task_id="c")
    assert set(dag.task_ids) == {
        *("a", "b", "c"),
        *("zeus_ask", "zeus_tell", "zeus_ask__1", "zeus_tell__1", "resnet_ask", "resnet_tell"),
    }
    assert trial.setup.is_setup
    assert trial.teardown.is_teardown
    assert not trial.teardown.on_failure_fail_dagrun, (
        "it decides about the run only where a target is required"
    )
    assert dag.get_task("c").upstream_task_ids == {"resnet_ask"}
    assert "resnet_ask" in trial.env["ZEUS_PLAN"]


def test_a_training_that_says_nothing_has_a_day_to_end(run_dag: Any) -> None:
    with DAG("zeus_day", schedule=None, start_date=START) as dag, ZeusTrial(job()):
        EmptyOperator(task_id="train")
    run_dag(dag)
    (trial,) = log_of("zeus_day.train")
    assert trial.lease_s == 86_400.0


@pytest.mark.parametrize("place", ["operator", "DAG", "nowhere"])
def test_what_depends_on_the_past(place: str) -> None:
    """The question waits with the training, for the run before to end; the report waits for nothing else."""
    waits = {"depends_on_past": True}
    with (
        DAG("zeus_past", schedule=None, default_args=waits if place == "DAG" else {}),
        ZeusTrial(job()) as trial,
    ):
        EmptyOperator(task_id="train", **(waits if place == "operator" else {}))
    expected = place != "nowhere"
    assert (trial.setup.depends_on_past, trial.setup.wait_for_downstream) == (expected, expected)
    assert not trial.teardown.depends_on_past


@pytest.mark.parametrize("required", [False, True])
def test_a_pod_that_dies_is_a_failed_trial_without_a_cost(
    run_dag: Any, pod: Pod, required: bool
) -> None:
    """And a failed run, whether or not Airflow counts the teardown among what decides that."""
    name = f"zeus_pod_dies_{required}"
    spec = job(require_target=required)
    with DAG(name, schedule=None, start_date=START) as dag, ZeusTrial(spec) as trial:
        pod.operator(trial, "kill -9 $$")
    assert run_dag(dag).state == "failed"
    (trial_,) = log_of(f"{name}.train")
    assert (trial_.state.value, trial_.reason) == ("failed", "no result")
    assert (trial_.observation.energy_j, trial_.observation.time_s) == (None, None)
    assert trial_.observation.reasons["energy_j"] == "no result"


@pytest.mark.slow
@pytest.mark.parametrize("by_files", [False, True], ids=["by XCom", "by files"])
def test_earlier_starts_of_a_retried_operator(
    run_dag: Any, pod: Pod, by_files: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The first start dies in its third epoch; only files tell what it cost."""
    name = f"zeus_retried_{by_files}"
    code = TRAIN.replace(
        "run.report(", "os.path.exists('died') or epoch < 2 or die()\n        run.report("
    )
    die = "def die():\n    open('died', 'w').close()\n    run_.progress.beat()\n    os.kill(os.getpid(), 9)\n"
    code = code.replace("EPOCHS =", die + "EPOCHS =").replace(
        "ZeusRun.from_env().train", "run_ = ZeusRun.from_env()\nrun_.train"
    )
    (pod.folder / "train.py").write_text(code)
    path = str(pod.folder / "results") if by_files else None
    with (
        DAG(name, schedule=None, start_date=START) as dag,
        ZeusTrial(job(), result_path=path) as trial,
    ):
        pod.operator(trial, retries=1, retry_delay=timedelta(0))
    caplog.set_level("INFO")
    dag_run = run_dag(dag)
    assert dag_run.state == "success"
    assert "Zeus: reached its target after" in caplog.text, "what was kept is the run"
    assert pod.saves() == [32]
    kept, lost = sorted(log_of(f"{name}.train"), key=lambda t: t.state.value)
    assert (kept.state.value, lost.state.value) == ("converged", "failed")
    assert kept.key != lost.key
    if by_files:
        assert NO_RESULT in (lost.reason or "")
        assert lost.observation.energy_j is not None
        assert lost.observation.epochs == pytest.approx(2, abs=1)
    else:
        assert lost.reason == LOST
        assert lost.observation.energy_j is None
    cost = xcom(dag_run, "zeus_tell", "zeus_cost")
    assert (
        cost["energy_j"] is None
        if not by_files
        else cost["energy_j"] > (kept.observation.energy_j or 0)
    )


@pytest.mark.slow
def test_clearing_the_training_asks_anew_and_saves_once_more(
    run_dag: Any, rerun_tasks: Any, pod: Pod
) -> None:
    with DAG("zeus_pod_cleared", schedule=None, start_date=START) as dag, ZeusTrial(job()) as trial:
        pod.operator(trial)
    dag_run = run_dag(dag)
    rerun_tasks(dag, dag_run, ["zeus_ask", "train", "zeus_tell"])
    first, again = log_of("zeus_pod_cleared.train")[:2]
    assert first.state.value == "converged"
    assert first.key.ti_id != again.key.ti_id
    assert all("retried" not in (t.reason or "") for t in log_of("zeus_pod_cleared.train"))
    assert pod.saves() == [32, 32]


@pytest.mark.slow
def test_clearing_the_setup_task_alone_books_no_training_twice(
    run_dag: Any, rerun_tasks: Any, pod: Pod
) -> None:
    with (
        DAG("zeus_pod_setup_cleared", schedule=None, start_date=START) as dag,
        ZeusTrial(job()) as trial,
    ):
        pod.operator(trial)
    dag_run = run_dag(dag)
    rerun_tasks(dag, dag_run, ["zeus_tell"])  # which may run again by itself: nothing changes
    assert [t.state.value for t in log_of("zeus_pod_setup_cleared.train")] == ["converged"]
    rerun_tasks(dag, dag_run, ["zeus_ask", "zeus_tell"])
    first, again = log_of("zeus_pod_setup_cleared.train")
    assert (first.state.value, again.state.value, again.observation.energy_j) == (
        "converged",
        "failed",
        None,
    )
    assert first.observation.start_id != again.observation.start_id


@pytest.mark.parametrize("required", [False, True])
def test_below_target_fails_the_run_only_where_the_target_is_required(
    run_dag: Any, pod: Pod, required: bool
) -> None:
    name = f"zeus_pod_below_{required}"
    spec = job(require_target=required, max_epochs=2)
    with DAG(name, schedule=None, start_date=START) as dag, ZeusTrial(spec) as trial:
        # its own exit status is lost, as in some pods
        pod.operator(trial, "{python} train.py; cat $ZEUS_XCOM")
    dag_run = run_dag(dag)
    assert dag_run.state == ("failed" if required else "success")
    assert dag_run.get_task_instance("train").state == "success"
    assert dag_run.get_task_instance("zeus_tell").state == ("failed" if required else "success")
    assert [t.state.value for t in log_of(f"{name}.train")] == ["exhausted"]
    assert pod.saves() == [32]


@pytest.mark.parametrize(("command", "state"), [(None, "success"), ("exit 1", "failed")])
def test_where_airflow_cannot_be_asked_a_kept_model_is_a_success(
    run_dag: Any, pod: Pod, monkeypatch: pytest.MonkeyPatch, command: str | None, state: str
) -> None:
    def gone(*_: Any) -> set[str]:
        raise ConnectionError("Airflow's API is gone")

    monkeypatch.setattr(trial_tasks.Training, "states", gone)
    name = f"zeus_pod_unasked_{state}"
    with (
        DAG(name, schedule=None, start_date=START) as dag,
        ZeusTrial(job(require_target=True)) as trial,
    ):
        pod.operator(trial, *([command] if command else []))
    assert run_dag(dag).state == state


@pytest.mark.nightly
@pytest.mark.usefixtures("asks_briefly")
def test_without_a_store_it_trains_at_the_default_and_the_cost_is_told_later(
    run_dag: Any, pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DAG("zeus_pod_alone", schedule=None, start_date=START) as dag, ZeusTrial(job()) as trial:
        pod.operator(trial)
    with monkeypatch.context() as down:
        down.setenv("AIRFLOW_CONN_ZEUS_DEFAULT", "postgresql://nobody@127.0.0.1:1/none")
        assert run_dag(dag).state == "success"
    assert pod.saves() == [32]
    assert log_of("zeus_pod_alone.train") == []
    # Airflow 3.2: no task lists Variables; "airflow zeus repair" tells what waits
    if not hasattr(Variable, "keys"):
        drain(open_store(), AirflowVariables(), None)
    second = run_dag(dag)
    assert second.state == "success"
    assert states("zeus_pod_alone.train")[0] == (32, "converged", 1), (
        "told by the second run, before it asked"
    )
    assert log_of("zeus_pod_alone.train")[0].origin.run_id != second.run_id


@pytest.mark.usefixtures("asks_briefly")
def test_a_strict_job_without_a_store_does_not_train(
    run_dag: Any, pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ZEUS_DEFAULT", "postgresql://nobody@127.0.0.1:1/none")
    with (
        DAG("zeus_pod_strict", schedule=None, start_date=START) as dag,
        ZeusTrial(job(strict=True)) as trial,
    ):
        pod.operator(trial)
    assert run_dag(dag).state == "failed"
    assert pod.saves() == []


def test_a_training_that_was_skipped_did_not_run(run_dag: Any, pod: Pod) -> None:
    with DAG("zeus_pod_skipped", schedule=None, start_date=START) as dag, ZeusTrial(job()) as trial:
        pod.operator(trial, "exit 99")  # a BashOperator's way to skip
    assert run_dag(dag).state == "success"
    assert [(t.state.value, t.reason) for t in log_of("zeus_pod_skipped.train")] == [
        ("failed", "the training was skipped")
    ]


def test_the_environment_is_known_inside_the_block_only() -> None:
    with pytest.raises(JobSpecError, match=r"ZeusTrial\.env = 'zeus': "):
        _ = ZeusTrial(job()).env


def test_a_whole_job_as_an_xcomarg_is_refused_at_parse() -> None:
    with DAG("d", schedule=None):

        @task
        def make():
            return {}

        with pytest.raises(JobSpecError, match="ZeusJob or a dict"):
            ZeusTrial(make())


@pytest.mark.parametrize(("by_files", "required"), [(False, False), (True, False), (True, True)])
def test_a_training_that_leaves_no_result_is_said_with_the_remedy(
    run_dag: Any, pod: Pod, by_files: bool, required: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    name = f"zeus_pod_silent_{by_files}_{required}"
    path = str(pod.folder / "results") if by_files else None
    spec = job(require_target=required)
    with (
        DAG(name, schedule=None, start_date=START) as dag,
        ZeusTrial(spec, result_path=path) as trial,
    ):
        pod.operator(trial, "echo trained")
    dag_run = run_dag(dag)
    assert dag_run.state == "success", "a missing result never fails the run"
    assert xcom(dag_run, "zeus_tell", "zeus_cost")["batch_size"] == 32, "its model is kept"
    assert PLAIN in log_of(f"{name}.train")[0].observation.reasons
    assert [(t.state.value, t.reason) for t in log_of(f"{name}.train")] == [
        ("no_metric", NO_RESULT)
    ]
    ours = [r for r in caplog.records if r.name == trial_tasks.__name__]
    assert [r.levelname for r in ours] == ["INFO", "WARNING"]
    chosen, said = (r.getMessage() for r in ours)
    assert "batch size 32" in chosen
    assert all(word in said for word in ("task train", "ZeusRun.from_env()", "result_path"))


@pytest.mark.slow
def test_a_training_that_dies_before_its_first_attempt_is_told_by_its_file(
    run_dag: Any, pod: Pod
) -> None:
    """The file has one line: that a process began."""
    code = "import os\nfrom airflow_provider_zeus.training.run import ZeusRun\n"
    (pod.folder / "train.py").write_text(f"{code}ZeusRun.from_env()\nos.kill(os.getpid(), 9)\n")
    results = pod.folder / "results"
    with (
        DAG("zeus_pod_began", schedule=None, start_date=START) as dag,
        ZeusTrial(job(), result_path=str(results)) as trial,
    ):
        pod.operator(trial, "{python} train.py")
    assert run_dag(dag).state == "failed"
    (file,) = results.rglob("*.jsonl")
    assert len(file.read_text().splitlines()) == 1
    assert states("zeus_pod_began.train") == [(32, "failed", 1)]


@pytest.mark.slow
def test_a_new_device_is_said_by_the_task_that_learns_of_it(
    run_dag: Any, pod: Pod, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for device in ("simulated:v100/shufflenet", "simulated:a40/shufflenet"):
        with (
            DAG("zeus_pod_moved", schedule=None, start_date=START) as dag,
            ZeusTrial(job(device=device)) as trial,
        ):
            pod.operator(trial)
        caplog.clear()
        assert run_dag(dag).state == "success"
    (said,) = [r.getMessage() for r in caplog.records if r.name == asking.__name__]
    assert "V100" in said
    assert "A40" in said
