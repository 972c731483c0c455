"""``ZeusTrial``: any operator within the Zeus loop, by a setup and a teardown task around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from airflow.sdk import BaseOperator

from airflow_provider_zeus.airflow_compat import DagContext, get_unique_task_id, group_argument
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.operators.context_keys import ChecksTemplates
from airflow_provider_zeus.operators.mixins import (
    DECISION,
    HANDED_OVER,
    PLAN,
    Notifier,
    ReportsCost,
    StartsLater,
)
from airflow_provider_zeus.operators.train import as_job

if TYPE_CHECKING:
    from airflow.sdk import Context


class ZeusTrial:
    """Context manager around one operator that trains somewhere else: Kubernetes, Docker, Slurm, a
    queue::

        with ZeusTrial(JOB) as trial:
            KubernetesPodOperator(task_id="train", env_vars=trial.env, do_xcom_push=True)

    A setup task asks the store for a batch size, a teardown task reports the cost. The training
    process reads its plan by ``ZeusRun.from_env()`` and trains by ``run.train(fn)``. Its result
    comes back as the entry ``result_key`` of the operator's XCom ``return_value`` (a pod writes it
    to ``/airflow/xcom/return.json`` by itself), or by files in ``result_path``, which survive the
    process's death. One trial per instance of a mapped task group.

    :param job: a ``ZeusJob`` or its dict; fields may be templates. Its ``job_id`` defaults to that
        of the operator inside: ``<dag_id>.<task_id>``.
    :param task_id: setup and teardown are ``<task_id>_ask`` and ``<task_id>_tell``.
    :param lease_s: seconds after which a trial that has not ended counts as dead.
    :param result_path: a folder that worker and training process share under the same path;
        templated.
    :param result_key: entry of the XCom ``return_value`` that holds the result.
    :param job_id_by: a mapped argument of the task group around it, for one job for each of its
        values: the value ends the job's id. Default: all instances of the group share one job.
    :param zeus_conn_id: Connection of the run log.

    Leaving the block raises JobSpecError when it holds no operator, more than one, a mapped one, or
    one of this package.
    """

    def __init__(
        self,
        job: ZeusJob | Mapping[str, Any],
        *,
        task_id: str = "zeus",
        lease_s: float = 24 * 3600.0,
        result_path: str | None = None,
        result_key: str = "zeus",
        job_id_by: str | None = None,
        zeus_conn_id: str = "zeus_default",
    ) -> None:
        if lease_s <= 0:
            raise JobSpecError.of(
                "ZeusTrial.lease_s", lease_s, "not above 0", "86400 suits most trainings"
            )
        job = as_job(job)
        self._job = job.to_dict()
        self._notify = job.notifiers
        self._task_id = task_id
        self._lease_s = lease_s
        self._conn_id = zeus_conn_id
        self._result_path = result_path
        self._result_key = result_key
        self._job_id_by = job_id_by

    def __enter__(self) -> Self:
        dag = DagContext.get_current()
        if dag is None:
            remedy = "put it inside `with DAG(...)`"
            raise JobSpecError.of("ZeusTrial", self._task_id, "is outside of a DAG", remedy)
        self._dag = dag
        self._before = set(dag.task_dict)
        self.setup = ZeusAskOperator(
            task_id=get_unique_task_id(f"{self._task_id}_ask"),
            job=self._job,
            lease_s=self._lease_s,
            result_path=self._result_path,
            job_id_by=self._job_id_by,
            notify=self._notify,
            zeus_conn_id=self._conn_id,
        )
        self.teardown = ZeusTellOperator(
            task_id=get_unique_task_id(f"{self._task_id}_tell"),
            setup_task_id=self.setup.task_id,
            result_key=self._result_key,
            notify=self._notify,
            zeus_conn_id=self._conn_id,
            depends_on_past=False,  # it reports its own run, whatever became of the one before
        )
        # Without it a run whose training failed would succeed: to Airflow such a teardown is the
        # run's only leaf.
        required = self._job.get("require_target", False) is not False
        self.teardown.as_teardown(setups=self.setup, on_failure_fail_dagrun=required)
        self._before |= {self.setup.task_id, self.teardown.task_id}
        # within it Airflow makes each new task a child of setup and parent of teardown
        self.teardown.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.teardown.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if kind is not None:
            return
        self.setup.trains = self.teardown.trains = self._inner_task_id()
        if self._dag.task_dict[self.setup.trains].depends_on_past:
            # The batch size is chosen when the training may begin: not while it waits for the run
            # before.
            self.setup.depends_on_past = self.setup.wait_for_downstream = True

    @property
    def env(self) -> dict[str, str]:
        """Environment of the training process, as templates for the operator inside; add variables
        with ``|``.
        """
        if not hasattr(self, "setup"):
            problem = "is known only inside the block"
            remedy = "use it inside `with ZeusTrial(...)`"
            raise JobSpecError.of("ZeusTrial.env", self._task_id, problem, remedy)
        pull = f"ti.xcom_pull(task_ids='{self.setup.task_id}', map_indexes=ti.map_index, key='%s')"
        # Native rendering turns digits into numbers, which no environment takes; quotes keep them
        # text.
        number = "'{{ %s }}'" if self._dag.render_template_as_native_obj else "{{ %s }}"
        # A clear raises max_tries, not the retries: so the tries of the new run count from 1.
        tries = "ti.try_number - ti.max_tries + ti.task.retries"
        decision = pull % DECISION
        # What failed is not known here: a retry trains what relieves the last attempt, mostly
        # the default.
        safe = f"({decision}.get('reliefs') or {decision}['attempts'][-1:])[0]"
        retried = f"{safe}['batch_size']"
        env: dict[str, str] = {}
        starts = self._job.get("starts")
        if isinstance(starts, list) and len(starts) > 1:
            start = f"{decision}.get('start') if {tries} == 1 else {safe}.get('start')"
            env["ZEUS_START"] = "{{ (" + start + ") or 'cold' }}"
        env["ZEUS_PLAN"] = "{{ %s }}" % (pull % PLAN)
        size = f"{decision}['batch_size'] if {tries} == 1 else {retried}"
        env["ZEUS_BATCH_SIZE"] = number % size
        env["ZEUS_TRY"] = number % tries
        if self._result_path:
            env["ZEUS_RESULT"] = "{{ %s['result_path'] }}/" % (pull % HANDED_OVER)
        return env

    def _inner_task_id(self) -> str:
        """Task id of the one operator in the block. Raises JobSpecError."""
        inside = [task for name, task in self._dag.task_dict.items() if name not in self._before]
        names = [task.task_id for task in inside]
        ours = [task.task_id for task in inside if _is_ours(task)]
        if ours:
            problem = f"{ours[0]} is a task of Zeus already, and reports by itself"
            remedy = (
                "leave this ZeusTrial out, and give its job to that task; or put a task of another "
                "kind inside"
            )
            raise JobSpecError.of("ZeusTrial", self._task_id, problem, remedy)
        if len(inside) != 1:
            problem = "holds no operator"
            if inside:
                problem = f"holds {len(inside)} operators ({', '.join(names)})"
            remedy = "put exactly one inside, the one that trains"
            raise JobSpecError.of("ZeusTrial", self._task_id, problem, remedy)
        task = inside[0]
        own_group = self.setup.get_closest_mapped_task_group()
        is_in_own_group = task.get_closest_mapped_task_group() is own_group
        if not (is_in_own_group and isinstance(task, BaseOperator)):
            problem = f"{task.task_id} is mapped by .expand()"
            remedy = (
                "put ZeusTrial inside a task group and map that: one ZeusTrial for each of its "
                "instances"
            )
            raise JobSpecError.of("ZeusTrial", self._task_id, problem, remedy)
        return task.task_id


def _is_ours(task: Any) -> bool:
    """Whether a task, mapped or not, is of this package: also those of another ZeusTrial."""
    # a mapped operator is no instance of its class yet
    kind = getattr(task, "operator_class", type(task))
    return isinstance(kind, type) and issubclass(kind, ReportsCost | StartsLater)


class ZeusAskOperator(StartsLater, ChecksTemplates, BaseOperator):
    """Asks the store for a batch size and pushes the plan as XCom ``zeus_plan``.

    Made by :class:`ZeusTrial`.
    """

    template_fields: Sequence[str] = ("job", "result_path", "mapped")
    template_fields_renderers: ClassVar[dict[str, str]] = {"job": "json"}

    def __init__(
        self,
        *,
        job: Mapping[str, Any],
        lease_s: float,
        result_path: str | None,
        job_id_by: str | None,
        notify: Sequence[Notifier],
        zeus_conn_id: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = dict(job)
        self.notify = tuple(notify)
        self.lease_s = lease_s
        self.result_path = result_path
        self.zeus_conn_id = zeus_conn_id
        self.job_id_by = job_id_by
        self.mapped: dict[str, Any] = {}
        if job_id_by is not None:
            self.mapped = {job_id_by: self._group_argument(job_id_by)}

    def _group_argument(self, name: str) -> Any:
        """The argument of the mapped task group, known when the task runs.

        Raises JobSpecError if there is none.
        """
        group = self.get_closest_mapped_task_group()
        if group is None:
            remedy = (
                "put ZeusTrial inside a task group that is mapped by .expand(), and name one of "
                "its arguments"
            )
            problem = "no task group around ZeusTrial is mapped"
            raise JobSpecError.of("job_id_by", name, problem, remedy)
        argument, names = group_argument(group, name)
        if argument is None:
            problem = f"task group {group.group_id} maps no such argument"
            raise JobSpecError.of("job_id_by", name, problem, f"name one of {', '.join(names)}")
        return argument

    def execute(self, context: Context) -> None:
        """Wait for a cheaper start if the job does, and ask the store."""
        self.check_templates(context)
        self.wait_for_start(context)
        self.train_now(context)

    def arguments(self) -> dict[str, Any]:
        """The mapped argument of the task group around it."""
        return self.mapped

    def train_now(self, context: Context) -> None:
        """Ask the store.

        If it cannot be asked the default batch size runs, unless the job is ``strict``.
        """
        from airflow_provider_zeus.operators.trial_tasks import push_plan

        push_plan(self, context, lease_s=self.lease_s, result_path=self.result_path)


class ZeusTellOperator(ReportsCost, BaseOperator):
    """Reports the cost of the training to the store.

    Made by :class:`ZeusTrial`. Pushes XCom ``zeus_cost``.

    Raises BelowTargetError if the job requires its target and the model is below it. If a
    target is required it also fails when the training failed, since Airflow then looks at this task
    alone; it fails for nothing else.
    """

    def __init__(
        self,
        *,
        setup_task_id: str,
        result_key: str,
        notify: Sequence[Notifier],
        zeus_conn_id: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.notify = tuple(notify)
        self.setup_task_id = setup_task_id
        self.result_key = result_key
        self.zeus_conn_id = zeus_conn_id
        self.trains: str | None = None

    def execute(self, context: Context) -> None:
        """Collect the result and report it."""
        from airflow_provider_zeus.operators.trial_tasks import Training, report_training

        training = Training(
            context,
            self.setup_task_id,
            self.trains,
            result_key=self.result_key,
            conn_id=self.zeus_conn_id,
            report=self.report_cost,
        )
        report_training(training, decides_the_run=self.on_failure_fail_dagrun)
