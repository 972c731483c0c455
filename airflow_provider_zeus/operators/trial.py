"""``ZeusTrial``: any operator trained within the Zeus loop, by a setup and a teardown task around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from airflow.sdk import BaseOperator

from airflow_provider_zeus.airflow_compat import DagContext, get_unique_task_id
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.links.zeus import ZeusCostLink
from airflow_provider_zeus.optimizer.job import ZeusJob

if TYPE_CHECKING:
    from airflow.sdk import Context

PLAN, HANDED, DECISION = "zeus_plan", "zeus_trial", "zeus_decision"  # XComs of the setup task
LEASE_S = 24 * 3600.0


class ZeusTrial:
    """Context manager around one operator that trains somewhere else: Kubernetes, Docker, Slurm, a queue::

        with ZeusTrial(JOB) as trial:
            KubernetesPodOperator(task_id="train", env_vars=trial.env, do_xcom_push=True)

    A setup task asks for a batch size and a teardown task tells what it cost. The process reads its plan by
    ``ZeusRun.from_env()`` and trains by ``run.train(fn)``; its result comes back as the entry ``result_key`` of the
    operator's XCom ``return_value`` (a pod writes it to ``/airflow/xcom/return.json`` by itself), or by files in
    ``result_path``, which survive the process's death. One trial per instance of a mapped task group.

    :param job: a ``ZeusJob`` or its dict; fields may be templates. Its ``job_id`` defaults to ``dag_id.task_id`` of the
        operator inside.
    :param task_id: setup and teardown are ``<task_id>_ask`` and ``<task_id>_tell``.
    :param lease_s: seconds after which a trial that never ended counts as dead.
    :param result_path: a folder that worker and training process both see, under this path; templated.
    :param result_key: entry of the XCom ``return_value`` that holds the result.
    :param zeus_conn_id: Connection of the trial log.

    Leaving the block raises JobSpecError when no operator, more than one, or a mapped one stands inside.
    """

    def __init__(
        self,
        job: ZeusJob | Mapping[str, Any],
        *,
        task_id: str = "zeus",
        lease_s: float = LEASE_S,
        result_path: str | None = None,
        result_key: str = "zeus",
        zeus_conn_id: str = "zeus_default",
    ) -> None:
        if lease_s <= 0:
            raise JobSpecError.of("ZeusTrial.lease_s", lease_s, "not above 0", "86400 suits most trainings")
        self._job = (job if isinstance(job, ZeusJob) else ZeusJob.from_dict(job)).to_dict()
        self._task_id, self._lease_s, self._conn_id = task_id, lease_s, zeus_conn_id
        self._result_path, self._result_key = result_path, result_key

    def __enter__(self) -> Self:
        dag = DagContext.get_current()
        if dag is None:
            raise JobSpecError.of(
                "ZeusTrial", self._task_id, "stands outside of a DAG", "put it inside `with DAG(...)`"
            )
        self._dag, self._before = dag, set(dag.task_dict)
        self.setup = ZeusAskOperator(
            task_id=get_unique_task_id(f"{self._task_id}_ask"),
            job=self._job,
            lease_s=self._lease_s,
            result_path=self._result_path,
            zeus_conn_id=self._conn_id,
        )
        self.teardown = ZeusTellOperator(
            task_id=get_unique_task_id(f"{self._task_id}_tell"),
            setup_task_id=self.setup.task_id,
            result_key=self._result_key,
            zeus_conn_id=self._conn_id,
        )
        # Else a run whose training failed would count as successful: to Airflow such a teardown is the run's only leaf.
        required = self._job.get("require_target", False) is not False
        self.teardown.as_teardown(setups=self.setup, on_failure_fail_dagrun=required)
        self._before |= {self.setup.task_id, self.teardown.task_id}
        self.teardown.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.teardown.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if kind is None:
            self.setup.trains = self.teardown.trains = self._the_one_inside()

    @property
    def env(self) -> dict[str, str]:
        """Environment of the training process, as templates for the operator inside; add your own with ``|``."""
        if not hasattr(self, "setup"):
            raise JobSpecError.of(
                "ZeusTrial.env", self._task_id, "is not known yet", "use it inside `with ZeusTrial(...)`"
            )
        pull = f"ti.xcom_pull(task_ids='{self.setup.task_id}', map_indexes=ti.map_index, key='%s')"
        # Native rendering makes numbers of numbers, which no environment takes; quotes keep them text.
        number = "'{{ %s }}'" if self._dag.render_template_as_native_obj else "{{ %s }}"
        tries = "ti.try_number - ti.max_tries + ti.task.retries"  # 1 again where it was cleared
        decision = pull % DECISION
        retried = f"{decision}['attempts'][-1]['batch_size']"  # whatever ended the first try: a retry explores nothing
        env = {
            "ZEUS_PLAN": "{{ %s }}" % (pull % PLAN),
            "ZEUS_BATCH_SIZE": number % f"{decision}['batch_size'] if {tries} == 1 else {retried}",
            "ZEUS_TRY": number % tries,
        }
        return env | ({"ZEUS_RESULT": "{{ %s['result_path'] }}/" % (pull % HANDED)} if self._result_path else {})

    def _the_one_inside(self) -> str:
        inside = [task for name, task in self._dag.task_dict.items() if name not in self._before]
        names = [task.task_id for task in inside]
        if len(inside) != 1:
            problem = f"{len(inside)} operators stand inside ({', '.join(names)})" if inside else "no operator inside"
            raise JobSpecError.of(
                "ZeusTrial", self._task_id, problem, "put exactly one inside, the one that trains; others around it"
            )
        in_mapped_group = inside[0].get_closest_mapped_task_group() is not self.setup.get_closest_mapped_task_group()
        if in_mapped_group or not isinstance(inside[0], BaseOperator):
            raise JobSpecError.of(
                "ZeusTrial",
                self._task_id,
                f"{names[0]} is mapped by .expand()",
                "put ZeusTrial inside a task group and map that: one trial for each of its instances",
            )
        return names[0]


class ZeusAskOperator(BaseOperator):
    """Asks for a batch size; the plan goes to the training by XCom ``zeus_plan``. Made by :class:`ZeusTrial`."""

    template_fields: Sequence[str] = ("job", "result_path")
    template_fields_renderers: ClassVar[dict[str, str]] = {"job": "json"}
    ui_color = "#d9f2e3"
    operator_extra_links = (ZeusCostLink(),)

    def __init__(
        self,
        *,
        job: Mapping[str, Any],
        lease_s: float,
        result_path: str | None = None,
        zeus_conn_id: str = "zeus_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = dict(job)
        self.lease_s = lease_s
        self.result_path = result_path
        self.zeus_conn_id = zeus_conn_id
        self.trains: str | None = None  # the operator inside

    def execute(self, context: Context) -> None:
        """Ask. A store that cannot be asked gives the default batch size, unless the job is ``strict``."""
        from airflow_provider_zeus.operators.around import ask_for

        plan, handed = ask_for(self, context)
        context["ti"].xcom_push(key=PLAN, value=plan.to_json())
        context["ti"].xcom_push(key=HANDED, value=handed)


class ZeusTellOperator(BaseOperator):
    """Tells what the training cost. Made by :class:`ZeusTrial`. Pushes XCom ``zeus_cost``.

    Raises BelowTargetError where the job requires its target and the model is below it. Where a target is required it
    fails with the training too, since Airflow then looks at this task alone; it fails for nothing else.
    """

    ui_color = "#d9f2e3"
    operator_extra_links = (ZeusCostLink(),)

    def __init__(
        self,
        *,
        setup_task_id: str,
        result_key: str = "zeus",
        zeus_conn_id: str = "zeus_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.setup_task_id = setup_task_id
        self.result_key = result_key
        self.zeus_conn_id = zeus_conn_id
        self.trains: str | None = None  # the operator inside

    def execute(self, context: Context) -> None:
        """Collect the result, tell it."""
        from airflow_provider_zeus.operators.around import tell_of

        tell_of(self, context)
