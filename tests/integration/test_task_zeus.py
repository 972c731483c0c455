"""``@task.zeus`` and ``ZeusTrainOperator`` in real Airflow runs, on the simulated GPU and ``zeus.db``."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import Any

import pytest
from airflow.sdk import DAG, task, task_group

from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job_ids import job_id_of_task
from airflow_provider_zeus.operators import asking
from airflow_provider_zeus.operators.command import ZeusCommandOperator
from airflow_provider_zeus.operators.mixins import job_part
from airflow_provider_zeus.operators.train import ZeusTrainOperator
from tests.integration.jobs import job, log_of, loop, save, saves_of, zeus_dag

START = datetime(2026, 1, 1, tzinfo=UTC)


def xcom(dag_run: Any, key: str, task_id: str = "train") -> Any:
    value = dag_run.get_task_instance(task_id).xcom_pull(task_ids=task_id, key=key)
    return json.loads(json.dumps(value, allow_nan=False))


def test_recurrences_learn_and_each_keeps_one_model(run_dag: Any, airflow_home: Any) -> None:
    from airflow_provider_zeus.power.factory import open_device

    dag = zeus_dag("zeus_learns", job())
    runs = [run_dag(dag) for _ in range(4)]
    assert [r.state for r in runs] == ["success"] * 4
    assert [saves_of(r.run_id) for r in runs] == [[32], [32], [64], [64]], (
        "64 costs less: round 2 starts from it"
    )

    first, second, third = log_of("zeus_learns.train")[:3]
    assert (first.batch_size, first.state.value) == (32, "converged")
    assert (second.batch_size, second.state.value) == (16, "given_up"), (
        "16 needs more than twice the cost of 32"
    )
    assert (third.batch_size, third.state.value, third.key.attempt) == (32, "converged", 2)
    assert third.key.ti_id == second.key.ti_id

    decision = xcom(runs[1], "zeus_decision")
    cost = xcom(runs[1], "zeus_cost")
    assert (decision["batch_size"], decision["phase"]) == (16, "explore")
    assert decision["store"] == "sqlite", "whoever may read XComs learns no address"
    assert "given up above" in decision["why"]
    assert [a["state"] for a in cost["attempts"]] == ["given_up", "converged"]
    assert (cost["batch_size"], cost["kept_attempt"], cost["energy_source"]) == (32, 2, "simulated")
    assert cost["energy_j"] == pytest.approx(
        sum(t.observation.energy_j or 0 for t in (second, third))
    )
    assert cost["cost"] > 0
    assert xcom(runs[1], "return_value") == 32
    assert cost["attempts"][0]["limit_found_w"] == 250.0
    device = open_device("simulated:v100/shufflenet", state_dir=airflow_home / "zeus")
    assert device.limit_w() == 250.0, "the limit found is back"


def test_a_retry_after_an_error_is_a_trial_of_its_own_and_saves_once(run_dag: Any) -> None:
    failures = iter([True, False])
    with DAG("zeus_retries", schedule=None, start_date=START) as dag:

        @task.zeus(job(), retries=1, retry_delay=timedelta(0))
        def train(run, run_id=None):
            loop(run, 4)
            if next(failures):
                raise RuntimeError("disk full")
            return save(run_id, run.batch_size)

        train()
    dag_run = run_dag(dag)
    assert dag_run.state == "success"
    assert saves_of(dag_run.run_id) == [32]
    trials = log_of("zeus_retries.train")
    assert [(t.state.value, t.origin.try_number) for t in trials] == [
        ("failed", 1),
        ("converged", 2),
    ]
    assert trials[0].reason == "RuntimeError: disk full"
    assert trials[0].key.ti_id != trials[1].key.ti_id
    assert all(t.observation.energy_j for t in trials), "the ledger counts both tries"


@pytest.mark.slow
def test_a_cleared_task_trains_again_and_saves_once_more(run_dag: Any, rerun_task: Any) -> None:
    dag = zeus_dag("zeus_clears", job())
    dag_run = run_dag(dag)
    rerun_task(dag, dag_run, "train")
    trials = log_of("zeus_clears.train")
    assert len({t.key.ti_id for t in trials}) == 2
    assert [t.origin.try_number for t in trials] == [1, 2, 2]
    assert [t.state.value for t in trials] == ["converged", "given_up", "converged"]
    assert saves_of(dag_run.run_id) == [32, 32], "one model for each time the run was executed"


def test_templates_and_xcom_args_are_rendered_and_checked(run_dag: Any) -> None:
    with DAG("zeus_templates", schedule=None, start_date=START, params={"eta": 0.25}) as dag:

        @task
        def sizes():
            return [32, 64]

        spec = job(
            batch_sizes=sizes(),
            eta="{{ params.eta }}",
            job_id="by-{{ dag.dag_id }}",
            data_slice="slice-{{ params.eta }}",
        )

        @task.zeus(spec)
        def train(run=None):
            loop(run, 4)

        train()
    assert "sizes" in dag.get_task("train").upstream_task_ids, (
        "an XComArg in the job is a dependency"
    )
    assert run_dag(dag).state == "success"
    (trial,) = log_of("by-zeus_templates")
    assert trial.spec["batch_sizes"] == [32, 64]
    assert trial.spec["eta"] == 0.25
    assert trial.origin.data_slice == "slice-0.25"


def test_a_bad_rendered_value_fails_before_any_trial(run_dag: Any, caplog: Any) -> None:
    dag = zeus_dag("zeus_bad_template", job(eta="{{ 7 }}"))
    assert run_dag(dag).state == "failed"
    assert log_of("zeus_bad_template.train") == []


def of_field(**fields: Any) -> Any:
    return task.zeus(job(**fields), task_id="train")(lambda run: None)()


def by_date(run, ds):
    raise AssertionError("it has no date")


def by_command(command: str) -> ZeusCommandOperator:
    return ZeusCommandOperator(task_id="train", job=job(), command=["train", command])


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (
            lambda: of_field(data_slice="{{ ds }}"),
            "ZeusJob.data_slice = '{{ ds }}': this run has no ds",
        ),
        (
            lambda: of_field(data_slice="{{ ts }}"),
            "some manual ones have no logical date. take run_id",
        ),
        (
            lambda: task.zeus(job(), task_id="train")(by_date)(),
            "an argument of by_date() = 'ds': this run has no ds",
        ),
        (lambda: by_command("--date={{ ds }}"), "command = '--date={{ ds }}': this run has no ds"),
        (
            lambda: of_field(target="{{ params.tgt }}"),
            "ZeusJob.target = '{{ params.tgt }}': there is no param tgt.",
        ),
        (lambda: by_command("{{ params.rows }}"), "the params are: target"),
        (lambda: by_command("{{ parms.rows }}"), "no run has parms. did you mean params"),
        (
            lambda: task.zeus(job(eta="{{ params.eta }}"), task_id="train")(
                lambda run, city: None
            ).expand(city=["ewr"]),
            "ZeusJob.eta = '{{ params.eta }}': there is no param eta",
        ),
    ],
)
def test_what_a_run_lacks_is_named_before_any_trial(
    run_dag: Any,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    write: Any,
    said: str,
) -> None:
    """Also what a run without a logical date lacks, as one that an asset has triggered: as the check says it."""
    native = "parms" in said
    with DAG(
        "zeus_lacks", params={"target": "accuracy >= 0.9"}, render_template_as_native_obj=native
    ) as dag:
        write()
    assert run_dag(dag, logical_date=None).state == "failed"
    logged = caplog.text + "".join(capfd.readouterr())
    assert said in logged
    assert "UndefinedError" not in logged
    assert log_of("zeus_lacks.train") == []


def test_arguments_context_keys_and_run_stand_side_by_side(run_dag: Any) -> None:
    seen: list[tuple[Any, ...]] = []
    with DAG("zeus_arguments", schedule=None, start_date=START) as dag:

        @task.zeus(job())
        def positional(run, data, scale=2, ti=None):
            loop(run, 4)
            seen.append((data, scale, ti.task_id, run.batch_size))

        @task.zeus(job())
        def run_last(data, *, run=None, **context):
            loop(run, 4)
            seen.append((data, context["ti"].task_id))

        positional("a", scale=3)
        run_last("b")
    assert run_dag(dag).state == "success"
    assert sorted(seen, key=len) == [("b", "run_last"), ("a", 3, "positional", 32)]


def test_mapped_instances_share_the_job(run_dag: Any) -> None:
    with DAG("zeus_mapped", schedule=None, start_date=START) as dag:

        @task.zeus(job())
        def train(run=None, city=None):
            loop(run, 4)
            return city

        train.expand(city=["ewr", "jfk", "lga"])
    assert run_dag(dag).state == "success"
    trials = log_of("zeus_mapped.train")
    assert {t.origin.map_index for t in trials} == {0, 1, 2}
    assert [t.number for t in trials] == list(range(1, len(trials) + 1))


@pytest.mark.slow
def test_a_job_for_each_mapped_value(run_dag: Any) -> None:
    with DAG("zeus_by", schedule=None, start_date=START) as dag:

        @task
        def regions():
            return ["eu-west", "Île-de-France"]

        @task.zeus(job(policy="knowledge_gradient"), job_id_by="region")
        def train(run=None, region=None):
            loop(run, 4)
            return region

        train.expand(region=regions())
    assert [run_dag(dag).state for _ in range(2)] == ["success"] * 2
    assert log_of("zeus_by.train") == []
    for index, part in enumerate(["eu-west", job_part("region", {"region": "Île-de-France"})]):
        trials = log_of(f"zeus_by.train.{part}")
        assert {t.origin.map_index for t in trials} == {index}
        assert len({t.origin.run_id for t in trials}) == 2


def by_dict(train: Any, rows: Any) -> None:
    train.expand_kwargs([{"region": "eu", "size": 1}, {"region": "us", "size": 2}])


def by_map(train: Any, rows: Any) -> None:
    train.partial(size=1).expand(region=rows().map(lambda row: row["name"]))


def by_group(train: Any, rows: Any) -> None:
    @task_group
    def group(name):
        train(name, size=1)

    group.expand(name=["eu", "us"])


@pytest.mark.parametrize("expand", [by_dict, by_map, by_group])
def test_each_way_to_map(run_dag: Any, expand: Any) -> None:
    with DAG(f"zeus_{expand.__name__}", schedule=None, start_date=START) as dag:

        @task
        def rows():
            return [{"name": "eu"}, {"name": "us"}]

        @task.zeus(
            job(),
            job_id_by="region",
            map_index_template="{{ task.op_kwargs.get('region', task.op_args) }}",
        )
        def train(region, size=None, *, run=None):
            loop(run, 4)

        expand(train, rows)
    assert run_dag(dag).state == "success"
    (name,) = (t for t in dag.task_ids if t.endswith("train"))
    whole = job_id_of_task(dag.dag_id, name)
    assert [len(log_of(f"{whole}.{value}")) for value in ("eu", "us")] == [1, 1]


def test_the_classic_operator_by_a_mapped_argument(run_dag: Any) -> None:
    def train(run, region):
        loop(run, 4)

    with DAG("zeus_by_classic", schedule=None, start_date=START) as dag:
        ZeusTrainOperator.partial(
            task_id="train", job=job(), python_callable=train, job_id_by="region"
        ).expand(op_kwargs=[{"region": "{{ dag.dag_id }}"}, {"region": 7}])
    assert run_dag(dag).state == "success"
    assert [len(log_of(f"zeus_by_classic.train.{value}")) for value in ("zeus_by_classic", 7)] == [
        1,
        1,
    ]


def test_a_mapped_value_that_is_no_name_opens_no_trial(run_dag: Any) -> None:
    with DAG("zeus_by_dict", schedule=None, start_date=START) as dag:

        @task.zeus(job(), job_id_by="region")
        def train(run=None, region=None):
            loop(run, 4)

        train.expand(region=[{"name": "eu"}])
    assert run_dag(dag).state == "failed"
    assert log_of("zeus_by_dict.train") == []


def test_the_classic_operator(run_dag: Any) -> None:
    def train(run, city):
        loop(run, 4)
        return city

    with DAG("zeus_operator", schedule=None, start_date=START) as dag:
        ZeusTrainOperator(
            task_id="train",
            job=job(),
            python_callable=train,
            op_kwargs={"city": "{{ dag.dag_id }}"},
        )
    dag_run = run_dag(dag)
    assert xcom(dag_run, "return_value") == "zeus_operator"


def test_below_target_keeps_the_model_and_fails_only_when_required(run_dag: Any) -> None:
    accepted = run_dag(zeus_dag("zeus_below", job(max_epochs=3), lambda b: 100))
    refused = run_dag(
        zeus_dag("zeus_below_required", job(max_epochs=3, require_target=True), lambda b: 100)
    )
    assert (accepted.state, refused.state) == ("success", "failed")
    assert saves_of(refused.run_id) == [32], "the model is kept all the same"
    assert [t.state.value for t in log_of("zeus_below_required.train")] == ["exhausted"]
    assert xcom(refused, "zeus_cost")["kept_attempt"] == 1


def test_on_kill_ends_the_training_whatever_catches_exceptions(run_dag: Any) -> None:
    after: list[str] = []
    with DAG("zeus_killed", schedule=None, start_date=START) as dag:

        @task.zeus(job())
        def train(run, task=None):
            for _ in run.epochs():
                try:
                    task.on_kill()  # what Airflow's SIGTERM handler calls
                except Exception:
                    after.append("swallowed")
                run.report(accuracy=1.0)
            after.append("saved")

        train()
    assert run_dag(dag).state == "failed"
    assert after == []
    (trial,) = log_of("zeus_killed.train")
    assert trial.state.value == "failed"
    assert (trial.reason or "").startswith("killed: ")


def test_test_runs_teach_nothing_unless_named(run_dag: Any) -> None:
    dag = zeus_dag("zeus_untaught", job(learn_from=["scheduled"]))
    for _ in range(2):
        assert run_dag(dag).state == "success"
    trials = log_of("zeus_untaught.train")
    assert [t.batch_size for t in trials] == [32, 32], (
        "nothing was learnt, so the default comes first each time"
    )
    assert {t.origin.run_type for t in trials} == {"test"}


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda: task.zeus(job(), mode="optimize")(lambda run: None)(), "given beside a job"),
        (lambda: task.zeus(job())(lambda data: None)("x"), "has no parameter 'run'"),
        (
            lambda: task.zeus(lambda run: None)(),
            "has a parameter 'run', and the run handle comes with a ZeusJob",
        ),
        (
            lambda: task.zeus(mode="optimize")(lambda run: None)(),
            "as in @task.zeus(JOB), or leave the parameter out",
        ),
        (
            lambda: task.zeus(batch_sizes=[16])(lambda run: None),
            "@task.zeus: batch_sizes = [16]: a field of a ZeusJob",
        ),
        (
            lambda: ZeusTrainOperator(task_id="t", python_callable=lambda run: None),
            "give one, as in @task.zeus(JOB)",
        ),
        (
            lambda: task.zeus({**job().to_dict(), "target": "x"}, task_id="t")(lambda run: 0)(),
            "ZeusJob.target = 'x'",
        ),
        (
            lambda: ZeusTrainOperator(task_id="t", job=job(), python_callable="train"),
            "not a function",
        ),
        (
            lambda: task.zeus(job())(task.zeus(by_date)),
            "by_date': a task already, by another decorator",
        ),
        (lambda: task.zeus(task.zeus(job())(by_date)), "leave one of the two decorators out"),
        (lambda: task.zeus(job())(task.bash(by_date)), "a task already"),
        (
            lambda: ZeusTrainOperator(task_id="t", job=job(), python_callable=task(by_date)),
            "a task already",
        ),
    ],
)
def test_mistakes_are_named_at_parse(write: Any, said: str) -> None:
    with (
        DAG("zeus_mistakes", schedule=None, start_date=START),
        pytest.raises(JobSpecError) as caught,
    ):
        write()
    assert said in str(caught.value)


def test_native_rendering_keeps_texts_texts(run_dag: Any) -> None:
    with DAG(
        "zeus_native", schedule=None, start_date=START, render_template_as_native_obj=True
    ) as dag:

        @task.zeus(job(data_slice="{{ 7 }}", eta="{{ 0.25 }}", batch_sizes="{{ [32, 64] }}"))
        def train(run=None):
            loop(run, 4)

        train()
    assert run_dag(dag).state == "success"
    (trial,) = log_of("zeus_native.train")
    assert (trial.origin.data_slice, trial.spec["job_version"], trial.spec["batch_sizes"]) == (
        "7",
        "1",
        [32, 64],
    )


def test_a_mapped_task_waits_for_what_its_job_needs(run_dag: Any) -> None:
    with DAG("zeus_mapped_xcom", schedule=None, start_date=START) as dag:

        @task
        def sizes():
            return [32, 64]

        @task.zeus(job(batch_sizes=sizes()))
        def train(run=None, city=None):
            loop(run, 4)

        train.expand(city=["ewr", "jfk"])
    assert "sizes" in dag.get_task("train").upstream_task_ids
    assert run_dag(dag).state == "success"
    assert all(t.spec["batch_sizes"] == [32, 64] for t in log_of("zeus_mapped_xcom.train"))


def test_a_power_limit_out_of_range_is_a_mistake_and_no_trial(run_dag: Any) -> None:
    assert run_dag(zeus_dag("zeus_limits", job(power_limits_w=[50.0]))).state == "failed"
    assert log_of("zeus_limits.train") == []


def test_mode_off_says_so(run_dag: Any) -> None:
    assert run_dag(zeus_dag("zeus_off", job(mode="off"))).state == "success"
    (trial,) = log_of("zeus_off.train")
    assert trial.observation.energy_j is None
    assert "mode is 'off'" in trial.observation.reasons["energy_j"]
    assert trial.observation.time_s


def test_a_training_that_never_reports_fails_with_the_remedy(run_dag: Any) -> None:
    with DAG("zeus_silent", schedule=None, start_date=START) as dag:

        @task.zeus(job())
        def train(run=None):
            for _ in range(20):
                run.step()

        train()
    assert run_dag(dag).state == "failed"
    (trial,) = log_of("zeus_silent.train")
    assert trial.state.value == "failed"
    assert "run.report(accuracy=...)" in (trial.reason or "")


@pytest.mark.slow
def test_what_a_run_shows_of_its_job_is_in_its_log(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two jobs under one id is a warning; a target or a device that changed is a note of the run that sees it."""
    caplog.set_level("INFO")

    def said(dag: DAG) -> list[tuple[str, bool, bool, bool]]:
        caplog.clear()
        assert run_dag(dag).state == "success"
        ours = [r for r in caplog.records if r.name == asking.__name__]
        words = ("Two jobs", "target changed", "device changed")
        return [(r.levelname, *(word in r.getMessage() for word in words)) for r in ours]

    shared = {"job_id": "shared id"}
    easy = "accuracy >= 0.8"
    one = zeus_dag("zeus_one_of_two", job(**shared))
    other = zeus_dag("zeus_two_of_two", job(batch_sizes=[32, 64], **shared))
    assert said(one) == []
    assert [level for level, *_ in said(other)] == ["INFO"], "perhaps the same task, renamed"
    assert said(one) == [("WARNING", True, False, False)]

    assert said(zeus_dag("zeus_changes", job())) == []
    assert said(zeus_dag("zeus_changes", job(target=easy))) == [("INFO", False, True, False)]
    moved = zeus_dag("zeus_changes", job(target=easy, device="simulated:a40/shufflenet"))
    assert said(moved) == [("INFO", False, False, True)]
    assert said(moved) == []


def test_a_log_that_does_not_tell_its_newest_trials_costs_no_run(
    run_dag: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("disk")

    monkeypatch.setattr(asking, "remarks", fails)
    assert run_dag(zeus_dag("zeus_no_remarks", job())).state == "success"


@pytest.mark.skipif(
    find_spec("airflow.sdk.bases.resumablejobmixin") is None,
    reason="task state: from Airflow 3.3 on",
)
def test_a_checkpoint_is_kept_in_airflows_task_state(run_dag: Any) -> None:
    with DAG("zeus_checkpoint", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:

        @task.zeus(job())
        def train(run, task_state_store=None):
            for epoch in run.epochs():
                for _ in range(20):
                    run.step()
                run.report(accuracy=0.31 * (epoch + 1))
                run.checkpointed(f"/models/{epoch + 1}.pt", epochs=epoch + 1)
            return task_state_store.get("zeus_checkpoint")

        train()
    run = run_dag(dag)
    assert run.state == "success"
    held = run.get_task_instance("train").xcom_pull(task_ids="train")
    assert (held["checkpoint"]["path"], held["checkpoint"]["epochs"]) == ("/models/3.pt", 3)
    assert held["checkpoint"]["observation"]["energy_j"] > 0
