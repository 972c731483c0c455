"""``ZeusCommandOperator``: a child process with a plan in its environment, followed, measured, ended with its task."""

from __future__ import annotations

import errno
import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.trial import PLAIN, UNSEEN
from airflow_provider_zeus.operators import recurrence, supervise
from airflow_provider_zeus.operators.command import ZeusCommandOperator
from tests.integration.jobs import job, log_of

START = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = Path(__file__).parents[2]

LOOP = """
import os, sys, time
from airflow_provider_zeus.training.run import ZeusRun
EPOCHS = {16: 19, 32: 4, 64: 5}
run = ZeusRun.from_env()
def train(run):
    for epoch in run.epochs():
        for _ in range(5000 // run.batch_size):
            run.step()
        run.report(accuracy=0.9 * (epoch + 1) / EPOCHS[run.batch_size])
    with open(os.environ["SAVES"], "a") as file:
        print(run.batch_size, file=file)
    return run.batch_size
"""
IN_ONE_PROCESS = LOOP + "print('kept', run.train(train))\n"
BY_LOOP_ALONE = LOOP + "print('kept', train(run))\n"


class Commands:
    """DAGs of one command each; ``saves`` is what their models were saved with."""

    def __init__(self, tmp: Path, run_dag: Any) -> None:
        self.tmp = tmp
        self.run_dag = run_dag

    def dag(self, dag_id: str, code: str | list[str], spec: Any = None, **kwargs: Any) -> DAG:
        command: Any = code
        if isinstance(code, str):
            (self.tmp / "train.py").write_text(code)
            command = [sys.executable, "train.py"]
        env = {"PYTHONPATH": str(ROOT), "SAVES": str(self.tmp / "saves"), **kwargs.pop("env", {})}
        with DAG(dag_id, schedule=None, start_date=START) as dag:
            ZeusCommandOperator(
                task_id="train",
                job=spec or job(),
                command=command,
                env=env,
                **{"cwd": str(self.tmp), **kwargs},
            )
        return dag

    def run(self, dag_id: str, code: str | list[str], spec: Any = None, **kwargs: Any) -> Any:
        return self.run_dag(self.dag(dag_id, code, spec, **kwargs))

    def saves(self) -> list[int]:
        path = self.tmp / "saves"
        return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.fixture
def commands(tmp_path: Path, run_dag: Any) -> Commands:
    return Commands(tmp_path, run_dag)


def xcom(dag_run: Any, key: str) -> Any:
    return dag_run.get_task_instance("train").xcom_pull(task_ids="train", key=key)


@pytest.mark.parametrize(
    "code", [IN_ONE_PROCESS, BY_LOOP_ALONE], ids=["train(fn)", "epochs() alone"]
)
def test_a_command_keeps_one_model_per_run_in_both_styles(commands: Commands, code: str) -> None:
    name = "zeus_command_" + ("one" if code is IN_ONE_PROCESS else "loop")
    dag = commands.dag(name, code)
    first = commands.run_dag(dag)
    second = commands.run_dag(dag)
    assert [first.state, second.state] == ["success"] * 2
    assert commands.saves() == [32, 32], (
        "16 is given up in the second run, and 32 trains to the end"
    )
    assert [(t.batch_size, t.state.value, t.key.attempt) for t in log_of(f"{name}.train")] == [
        (32, "converged", 1),
        (16, "given_up", 1),
        (32, "converged", 2),
    ]
    cost = xcom(second, "zeus_cost")
    assert [a["state"] for a in cost["attempts"]] == ["given_up", "converged"]
    assert cost["kept_attempt"] == 2
    assert cost["energy_j"] > 0
    assert xcom(second, "return_value") == "kept 32"
    assert xcom(second, "zeus_decision")["batch_size"] == 16


MANY_STARTS = """
import json, os
with open(os.environ["ZEUS_RESULT"], "a") as file:
    for number in range(1000):
        begun = {"v": 1, "kind": "attempt", "start_id": f"s{number}", "attempt": 1, "batch_size": 32}
        ended = {**begun, "kind": "end", "state": "failed", "observation": {"time_s": 1.0}}
        file.write(json.dumps(begun) + "\\n" + json.dumps(ended) + "\\n")
"""


@pytest.mark.slow
def test_the_first_hundred_starts_of_a_command_count(
    commands: Commands, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a busy host may take long to store so many
    monkeypatch.setattr(recurrence, "RUN_S", 240.0)
    dag_run = commands.run("zeus_many_starts", MANY_STARTS)
    assert len(log_of("zeus_many_starts.train")) == 100
    assert len(xcom(dag_run, "zeus_cost")["attempts"]) == 100
    assert caplog.text.count("processes started with one plan") == 1


def states(dag_id: str) -> list[tuple[int, str, str | None]]:
    return [(t.batch_size, t.state.value, t.reason) for t in log_of(f"{dag_id}.train")]


class TestOfOthers:
    """Commands that do not import this package."""

    def test_what_it_reached_is_on_its_last_line(self, commands: Commands) -> None:
        tell = 'echo "trained at $ZEUS_BATCH_SIZE"; echo \'{"accuracy": 0.95, "epochs": 4, "samples": 20000}\''
        dag_run = commands.run(
            "zeus_other_tells", ["bash", "-c", tell], job(device="none", eta=0.0)
        )
        assert dag_run.state == "success"
        assert states("zeus_other_tells") == [(32, "converged", None)]
        seen = log_of("zeus_other_tells.train")[0].observation
        assert (seen.metric, seen.epochs, seen.samples, seen.energy_j) == (0.95, 4.0, 20_000, None)
        assert (seen.time_s or 0) > 0
        assert "energy" in seen.reasons["energy_j"]
        assert xcom(dag_run, "zeus_cost")["kept_attempt"] == 1

    def test_without_that_line_its_model_is_kept_and_no_metric_is_reported(
        self, commands: Commands, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        dag = commands.dag("zeus_other_silent", ["bash", "-c", "echo model saved"])
        dag_run = commands.run_dag(dag)
        assert dag_run.state == "success"
        ((_, state, reason),) = states("zeus_other_silent")
        assert state == "no_metric"
        assert "Zeus: reported no metric" in caplog.text
        assert "not seen to use batch size 32" in caplog.text
        assert xcom(dag_run, "zeus_cost")["kept_attempt"] == 1
        assert '{"accuracy": ' in (reason or ""), "the remedy is an example"
        seen = log_of("zeus_other_silent.train")[0].observation
        assert (seen.energy_j, seen.time_s, seen.epochs) == (None, None, None), (
            "a simulated GPU has not moved"
        )
        assert xcom(dag_run, "return_value") == "model saved"
        commands.run_dag(dag)
        assert [s[:2] for s in states("zeus_other_silent")] == [(32, "no_metric")] * 2, (
            "no other size is tried"
        )

    @pytest.mark.parametrize(
        ("policy", "size"), [("knowledge_gradient", "32"), ("zeus", "$ZEUS_BATCH_SIZE")]
    )
    def test_its_decisions_bound_nothing_that_nothing_stops(
        self, commands: Commands, size: str, policy: str
    ) -> None:
        tell = f'echo trained at {size}; sleep .05; echo \'{{"accuracy": 0.95, "epochs": 4, "samples": 20000}}\''
        spec = job(device="none", eta=0.0, policy=policy, batch_sizes=[16, 32])
        name = f"zeus_other_{policy}_{len(size)}"
        dag = commands.dag(name, ["bash", "-c", tell], spec)
        for _ in range(2):
            commands.run_dag(dag)
        first, second = log_of(f"{name}.train")[:2]
        assert (first.batch_size, second.batch_size) == (32, 16)
        assert (
            UNSEEN in first.observation.reasons
            if size == "32"
            else UNSEEN not in first.observation.reasons
        )
        assert not second.planned.bounded
        assert (
            "runs to its end, since nothing stops a training that opens no ZeusRun"
            in second.planned.why
        )
        assert not any("given up" in attempt.why for attempt in second.decision.in_order)

    def test_a_required_target_fails_its_task(self, commands: Commands) -> None:
        tell = ["bash", "-c", "echo '{\"accuracy\": 0.5}'"]
        assert commands.run("zeus_other_below", tell, job(require_target=True)).state == "failed"
        assert states("zeus_other_below") == [(32, "exhausted", "ended at 0.5, below target")]
        said = commands.run(
            "zeus_other_unsaid", ["bash", "-c", "echo saved"], job(require_target=True)
        )
        assert said.state == "failed", "whether it reached its target is not known"

    @pytest.mark.parametrize(
        ("command", "reason"),
        [
            (
                "echo '{\"accuracy\": 0.95}'; exit 3",
                "the command ended with status 3 without a result",
            ),
            (
                "kill -9 $$",
                "the command was killed by SIGKILL, as the kernel does when memory runs out without a result",
            ),
            ("kill -TERM $$", "the command was killed by SIGTERM without a result"),
        ],
    )
    def test_its_failure_is_the_tasks(self, commands: Commands, command: str, reason: str) -> None:
        name = "zeus_other_fails_" + "".join(filter(str.isalnum, command))
        assert commands.run(name, ["bash", "-c", command]).state == "failed"
        assert states(name) == [(32, "failed", reason)]

    def test_a_command_that_is_not_there(
        self, commands: Commands, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert commands.run("zeus_other_nowhere", ["./no_such_command"]).state == "failed"
        ((_, state, reason),) = states("zeus_other_nowhere")
        assert state == "failed"
        assert "status 127" in (reason or "")
        assert log_of("zeus_other_nowhere.train")[0].observation.epochs is None

    def test_output_that_is_no_text_is_shown_and_handed_on_as_text(
        self, commands: Commands
    ) -> None:
        dag_run = commands.run("zeus_other_binary", ["bash", "-c", r"printf 'a\0b\xff\n'"])
        assert xcom(dag_run, "return_value") == "a\ufffdb\ufffd"

    def test_a_folder_that_is_not_there_is_told_too(
        self, commands: Commands, tmp_path: Path
    ) -> None:
        assert commands.run("zeus_other_cwd", ["true"], cwd=str(tmp_path / "no")).state == "failed"
        ((_, state, reason),) = states("zeus_other_cwd")
        assert state == "failed", "and not left open until its lease ends"
        assert os.strerror(errno.ENOENT) in (reason or "")


class TestNoRoomForItsFiles:
    """The folder for temporary files is full or gone, or that of Zeus too: nothing of it fails a training."""

    @pytest.mark.parametrize("also", ["state_dir has room", "nothing has room"])
    def test_it_trains(
        self, commands: Commands, also: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*args: Any, dir: Any = None, **options: Any) -> Any:  # noqa: A002
            if dir is None or also == "nothing has room":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return TemporaryDirectory(*args, dir=dir, **options)

        monkeypatch.setattr(supervise, "TemporaryDirectory", full)
        dag_id = f"zeus_no_room_{also.split('_')[0].split()[0]}"
        assert commands.run(dag_id, IN_ONE_PROCESS).state == "success"
        (trial,) = log_of(f"{dag_id}.train")
        assert commands.saves() == [32]
        assert trial.state.value == ("converged" if "state_dir" in also else "no_metric")
        assert (trial.observation.time_s is not None) == ("state_dir" in also), (
            "a simulated GPU is measured by its steps"
        )
        assert not {PLAIN, UNSEEN} & set(trial.observation.reasons), (
            "whether it opened a ZeusRun is not known"
        )

    def test_an_error_before_it_trains_ends_its_trial(
        self, commands: Commands, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*args: Any) -> Any:
            raise RuntimeError("something of ours")

        monkeypatch.setattr(supervise, "CommandStart", broken)
        assert commands.run("zeus_before_it_trains", IN_ONE_PROCESS).state == "failed"
        (trial,) = log_of("zeus_before_it_trains.train")
        assert (trial.state.value, trial.reason) == (
            "failed",
            "nothing was trained: RuntimeError: something of ours",
        )


DIES = LOOP.replace("run.report(", "epoch < 2 or die()\n        run.report(").replace(
    "EPOCHS =", "def die():\n    run.progress.beat()\n    os.kill(os.getpid(), 9)\nEPOCHS ="
)


def test_a_script_that_dies_has_failed_with_its_last_measured_cost(commands: Commands) -> None:
    dag_run = commands.run("zeus_command_dies", DIES + "run.train(train)\n")
    assert dag_run.state == "failed"
    (trial,) = log_of("zeus_command_dies.train")
    assert (trial.state.value, trial.key.attempt) == ("failed", 1)
    assert (trial.reason or "").startswith("the command was killed by SIGKILL")
    assert (trial.observation.energy_j or 0) > 0
    assert 2.5 < (trial.observation.epochs or 0) <= 3, "up to the newest reading"
    assert commands.saves() == []


@pytest.mark.nightly
@pytest.mark.parametrize("style", ["run.train(train)", "train(run)"])
def test_out_of_memory_in_the_first_attempt_lets_the_next_one_run(
    commands: Commands, style: str
) -> None:
    name = "zeus_command_memory_" + ("one" if style.startswith("run") else "loop")
    full = LOOP.replace(
        "run.report(", "run.batch_size != 16 or full()\n        run.report("
    ).replace("EPOCHS =", "def full():\n    raise MemoryError('CUDA out of memory')\nEPOCHS =")
    dag = commands.dag(name, full + f"print('kept', {style})\n")
    assert [commands.run_dag(dag).state for _ in range(2)] == ["success"] * 2
    assert [(size, state) for size, state, _ in states(name)] == [
        (32, "converged"),
        (16, "failed"),
        (32, "converged"),
    ]
    assert commands.saves() == [32, 32]
    assert log_of(f"{name}.train")[1].observation.out_of_memory


@pytest.mark.parametrize("style", ["run.train(train)", "train(run)"])
def test_out_of_memory_at_the_default_lets_a_smaller_size_stand_in(
    commands: Commands, style: str
) -> None:
    name = "zeus_command_stand_in_" + ("one" if style.startswith("run") else "loop")
    full = LOOP.replace(
        "def train(run):\n", "def train(run):\n    assert_it_fits(run.batch_size)\n"
    ).replace(
        "EPOCHS =",
        "def assert_it_fits(b):\n    if b > 16:\n        run.step()\n        raise MemoryError\nEPOCHS =",
    )
    dag_run = commands.run(name, full + f"print('kept', {style})\n")
    assert dag_run.state == "success"
    assert [(size, state) for size, state, _ in states(name)] == [(32, "failed"), (16, "converged")]
    assert commands.saves() == [16]
    full_one, kept = log_of(f"{name}.train")
    assert (full_one.observation.out_of_memory, kept.key.ti_id, kept.key.attempt) == (
        True,
        full_one.key.ti_id,
        2,
    )
    assert xcom(dag_run, "zeus_cost")["kept_attempt"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("leave", ["except BaseException: sys.exit(0)", "finally: sys.exit(0)"])
def test_a_loop_that_hides_that_it_was_given_up_is_followed_by_the_next(
    commands: Commands, leave: str
) -> None:
    """No model was saved, whatever the script made of the signal, and whatever its exit status says."""
    name = "zeus_command_hides_" + leave.split()[0].strip(":")
    hides = LOOP + f"try: train(run)\n{leave}\n"
    dag = commands.dag(name, hides)
    assert [commands.run_dag(dag).state for _ in range(2)] == ["success"] * 2
    assert [(size, state) for size, state, _ in states(name)] == [
        (32, "converged"),
        (16, "given_up"),
        (32, "converged"),
    ]
    assert commands.saves() == [32, 32]


def test_a_required_target_fails_the_task_of_a_script(commands: Commands) -> None:
    spec = job(max_epochs=2, require_target=True)
    dag_run = commands.run("zeus_command_below", IN_ONE_PROCESS, spec)
    assert dag_run.state == "failed"
    assert [state for _, state, _ in states("zeus_command_below")] == ["exhausted"]
    assert commands.saves() == [32], "the model is kept all the same"
    assert xcom(dag_run, "zeus_cost")["kept_attempt"] == 1


def test_command_environment_and_folder_are_templates(
    commands: Commands, run_dag: Any, tmp_path: Path
) -> None:
    (tmp_path / "zeus_command_templates").mkdir()
    with DAG("zeus_command_templates", schedule=None, start_date=START, params={"n": 7}) as dag:

        @task
        def words():
            return "upstream"

        ZeusCommandOperator(
            task_id="train",
            job=job(),
            command=["bash", "-c", "echo {{ params.n }} $WHO in $(basename $PWD), $0", words()],
            env={"WHO": "you", "PATH": os.environ["PATH"]},
            cwd=str(tmp_path) + "/{{ dag.dag_id }}",
        )
    assert "words" in dag.get_task("train").upstream_task_ids
    dag_run = run_dag(dag)
    assert xcom(dag_run, "return_value") == "7 you in zeus_command_templates, upstream"


@pytest.mark.parametrize("command", ["", "  ", [], ["a", None], 7, {"a": 1}])
def test_what_is_no_command_is_refused_at_parse(command: Any) -> None:
    with (
        DAG("zeus_no_command", schedule=None),
        pytest.raises(JobSpecError, match=r"ZeusCommandOperator\.command"),
    ):
        ZeusCommandOperator(task_id="train", job=job(), command=command)


def test_a_rendered_command_that_is_empty_fails_before_any_trial(commands: Commands) -> None:
    with DAG("zeus_empty_text", schedule=None, start_date=START) as dag:
        ZeusCommandOperator(task_id="train", job=job(), command="{{ '' }}")
    assert commands.run_dag(dag).state == "failed"
    assert log_of("zeus_empty_text.train") == []


def test_an_environment_that_is_no_mapping_fails_before_any_trial(commands: Commands) -> None:
    with DAG("zeus_no_mapping", schedule=None, start_date=START) as dag:
        ZeusCommandOperator(task_id="train", job=job(), command="true", env="{{ 'A=1' }}")  # type: ignore[arg-type]
    assert commands.run_dag(dag).state == "failed"
    assert log_of("zeus_no_mapping.train") == [], "and none that stays open until its lease ends"


@pytest.mark.usefixtures("asks_briefly")
@pytest.mark.slow
def test_without_a_store_it_trains_and_the_cost_is_told_later(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = commands.dag("zeus_command_alone", IN_ONE_PROCESS)
    with monkeypatch.context() as down:
        down.setenv("AIRFLOW_CONN_ZEUS_DEFAULT", "postgresql://nobody@127.0.0.1:1/none")
        assert commands.run_dag(dag).state == "success"
    assert commands.saves() == [32]
    assert log_of("zeus_command_alone.train") == []
    assert commands.run_dag(dag).state == "success"
    first = log_of("zeus_command_alone.train")[0]
    assert (first.batch_size, first.state.value) == (32, "converged"), (
        "told by the second run, before it asked"
    )
    assert (first.observation.energy_j or 0) > 0


def test_a_kill_in_the_middle_ends_the_command_and_is_written_down(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Airflow does it: SIGTERM calls on_kill while the task waits for the command's output."""
    held = LOOP.replace("run.report(", "epoch < 2 or hold()\n        run.report(").replace(
        "EPOCHS =",
        "def hold():\n    run.progress.beat()\n"
        "    open('pid', 'w').write(str(os.getpid()))\n    time.sleep(300)\nEPOCHS =",
    )
    dag = commands.dag(
        "zeus_command_killed", held + "run.train(train)\n", retries=0, retry_delay=timedelta(0)
    )
    pid_file = tmp_path / "pid"

    def alarm(*_: Any) -> None:
        if pid_file.exists() and pid_file.read_text():
            signal.setitimer(signal.ITIMER_REAL, 0)
            dag.get_task("train").on_kill()

    monkeypatch.setattr("airflow_provider_zeus.operators.supervise.READ_S", 0.2)
    before = signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
    try:
        assert commands.run_dag(dag).state == "failed"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
    (trial,) = log_of("zeus_command_killed.train")
    assert trial.state.value == "failed"
    assert (trial.reason or "").startswith("killed: ")
    assert 2.5 < (trial.observation.epochs or 0) <= 3, "up to the newest reading"
    assert (trial.observation.energy_j or 0) > 0


def test_a_script_that_takes_its_plan_and_trains_nothing_fails(commands: Commands) -> None:
    code = "from airflow_provider_zeus import ZeusRun\nZeusRun.from_env()\nprint('done')\n"
    assert commands.run_dag(commands.dag("zeus_command_idle", code)).state == "failed"
    (trial,) = log_of("zeus_command_idle.train")
    assert trial.state.value == "failed"
    assert "before it began" in (trial.reason or "")


def test_one_of_several_processes_that_does_not_know_which_it_is(commands: Commands) -> None:
    code = "import os\nos.environ['WORLD_SIZE'] = '2'\n" + IN_ONE_PROCESS
    assert commands.run_dag(commands.dag("zeus_command_ranks", code)).state == "failed"
    assert commands.saves() == []


def test_a_job_for_each_mapped_variable(commands: Commands) -> None:
    (commands.tmp / "train.py").write_text(BY_LOOP_ALONE)
    env = {"PYTHONPATH": str(ROOT), "SAVES": str(commands.tmp / "saves")}
    with DAG("zeus_command_by", schedule=None, start_date=START) as dag:
        ZeusCommandOperator.partial(
            task_id="train",
            job=job(),
            command=[sys.executable, "train.py"],
            cwd=str(commands.tmp),
            job_id_by="REGION",
        ).expand(env=[{**env, "REGION": "eu"}, {**env, "REGION": "us"}])
    assert commands.run_dag(dag).state == "success"
    assert [len(log_of(f"zeus_command_by.train.{region}")) for region in ("eu", "us")] == [1, 1]
    assert log_of("zeus_command_by.train") == []
