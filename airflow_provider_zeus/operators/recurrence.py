"""One recurrence of a job inside a task: ask the store, train, report the cost. Shared by all operators."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.airflow_compat import is_test_run, supervisor
from airflow_provider_zeus.errors import JobSpecError, StoreError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.job_checks import RUN_TYPES
from airflow_provider_zeus.model.trial import DeviceInfo, Origin, Trial
from airflow_provider_zeus.model.wire import encode
from airflow_provider_zeus.operators.alerts import RunAlerts
from airflow_provider_zeus.operators.asking import ask, default_trial
from airflow_provider_zeus.operators.config import OFF, ZeusConfig, enabled, pinned_by
from airflow_provider_zeus.operators.external_meter import ELSEWHERE
from airflow_provider_zeus.operators.mixins import DECISION, job_id_of, push
from airflow_provider_zeus.operators.result_reporter import RUN_S, ResultReporter
from airflow_provider_zeus.operators.schedule import finish_by_s, runs_left
from airflow_provider_zeus.patience import outlived
from airflow_provider_zeus.power.device import Device, NoneDevice
from airflow_provider_zeus.power.factory import HostSettings, device_of
from airflow_provider_zeus.power.limits.gpu_lock import held_here
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.private_files import make_folder
from airflow_provider_zeus.signals.forecast import Followed
from airflow_provider_zeus.signals.hours import HourPrices, read_signal
from airflow_provider_zeus.signals.reading import followed
from airflow_provider_zeus.store.base import AskAnswer, AskRequest
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from airflow_provider_zeus.training.process.supervisor import die_with_parent
from airflow_provider_zeus.training.protocol.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store

log = guarded_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """A task's recurrence of a job. ``plan``: what to train. ``reporter``: takes its result lines to the store."""

    plan: Plan
    device: Device
    reporter: ResultReporter
    decision: Mapping[str, Any]  # XCom ``zeus_decision``
    opened: Callable[[], Store]  # the store, or raises StoreError
    elsewhere: bool = False  # the training runs on another host, and ``device`` measures nothing

    @classmethod
    def open(
        cls,
        job: ZeusJob,
        context: Mapping[str, Any],
        *,
        conn_id: str,
        part: str | None = None,
        waited_since_s: float | None = None,
        elsewhere: bool = False,
    ) -> Recurrence:
        """Open the device and ask the store for a batch size.

        Where the store cannot be asked, the job's default batch size runs and its cost is stored later; a ``strict``
        job raises StoreError instead. Raises JobSpecError. From here on the task dies with its supervisor: an orphan
        would keep the GPU.

        :param part: end of the job's id, by the mapped value (``job_id_by``).
        :param waited_since_s: since when the task waited for a cheaper start [s since the epoch]; None: it did not.
        :param elsewhere: whether the training runs on a host that is not known yet: no device is opened here.
        """
        if supervisor() is not None and not is_test_run():  # in dag.test() the parent is the user's own process
            die_with_parent()
        config = ZeusConfig.read()
        config.share_folders()
        job = config.switched(job.check(rendered=True))
        if elsewhere and job.chooses_size:
            check_shared_root(config)
        device = device_for(job, config, elsewhere=elsewhere or not job.chooses_size)
        try:
            return cls._ask(
                job, context, config, device, conn_id, part=part, waited_since_s=waited_since_s, elsewhere=elsewhere
            )
        except BaseException:
            _close(device)
            raise

    @classmethod
    def _ask(
        cls,
        job: ZeusJob,
        context: Mapping[str, Any],
        config: ZeusConfig,
        device: Device,
        conn_id: str,
        *,
        part: str | None,
        waited_since_s: float | None,
        elsewhere: bool,
    ) -> Recurrence:
        """Ask the store for a batch size of an open device. Arguments and errors: as :meth:`open`."""
        signal = followed(job) if job.strict else None  # without its signal a strict job opens no trial
        asked_for = None if elsewhere or not job.chooses_size else device.info
        request = ask_request(job, context, asked_for, lease_s=config.lease_s, part=part)
        overlap_possible = context["task"].max_active_tis_per_dag != 1
        begun_s, limit_s = time.monotonic(), time_limit_s(context["task"])
        store, asked, reopen = ask_watched(request, context, conn_id, config, overlap_possible=overlap_possible)
        reporter = ResultReporter(
            store,
            AirflowVariables(),
            asked.trial,
            lease_s=config.lease_s,
            state_dir=config.state_dir,
            left_s=max(RUN_S - (time.monotonic() - begun_s), 0.0),
            reopen=reopen,
            prices=HourPrices.of(asked.trial, job, waited_since_s, partial(read_signal, keeper=store)),
        )
        try:
            say_asked(asked, shared=part is None and job.chooses_size)
            signal = signal or followed(job, store)
            decision = decision_xcom(asked.trial, store)
            push(context, DECISION, decision)
            plan = plan_of(
                asked,
                config,
                device=None if elsewhere else device,
                signal=signal,
                time_left_s=limit_s and limit_s - (time.monotonic() - begun_s),
            )
        except BaseException as error:
            reporter.never_trained(error)
            raise
        opened = (lambda: store) if store else reopen
        return cls(plan=plan, device=device, reporter=reporter, decision=decision, opened=opened, elsewhere=elsewhere)

    def run(self) -> ZeusRun:
        """Return the run handle of a training in this process; its result goes to the reporter."""
        return ZeusRun.from_plan(self.plan, sink=self.reporter, device=self.device)

    @outlived("close the device")
    def close_device(self) -> None:
        """Close the device, where no run handle in this process does. Raises nothing."""
        self.device.close()


@outlived("close the device")
def _close(device: Device) -> None:
    device.close()


def device_for(job: ZeusJob, config: ZeusConfig, *, elsewhere: bool) -> Device:
    """The device that the job is decided for, open; the log says where it measures nothing, or what is simulated.

    Of a job that chooses no batch size none is opened: what measures it also finds its GPUs.

    Raises JobSpecError: it is not known, or one of the job's power limits is out of its range.
    """
    device: Device = NoneDevice(job.max_power_w, why=ELSEWHERE)
    if not elsewhere:
        device = device_of(job, config.state_dir, config)
        try:
            _check_limits(job, device)
        except BaseException:
            _close(device)
            raise
    info = device.info
    if info.energy_source is None and config.enabled != OFF and not elsewhere:
        reason = device.missing.get("energy_j", "no source of energy.")
        log.warning("Zeus tunes the batch size on time alone: %s", reason)
    elif info.energy_source == "simulated":
        log.warning("Time and energy of this run are those of the %s: simulated, not measured.", info.model)
    return device


def _check_limits(job: ZeusJob, device: Device) -> None:
    """Raise JobSpecError if a power limit of the job is out of the device's range: a wrong job opens no trial."""
    limits = device.limit_range()
    if limits is not None:
        limits.check(job.power_limits_w or (), device.info.model)


def check_shared_root(config: ZeusConfig) -> None:
    """Raise JobSpecError where there is no folder by which this host and the one that trains exchange files."""
    problem, root = "is not set", config.attempt_root
    if root:
        try:
            make_folder(root, config.shared_group)
            return
        except OSError as error:
            problem = f"cannot be used: {error}"
    remedy = "name a folder that this host and the hosts that train share under one path (docs/how-to/slurm.md)"
    raise JobSpecError.of("[zeus] attempt_root", root, problem, remedy)


def ask_request(
    job: ZeusJob,
    context: Mapping[str, Any],
    device: DeviceInfo | None,
    *,
    lease_s: float,
    task_id: str | None = None,
    part: str | None = None,
) -> AskRequest:
    """Build the store's request from a task instance: name of the job, key of the trial, origin of the run.

    :param task_id: of the task that trains, where that is another one.
    :param part: end of the job's id, by the mapped value.
    """
    ti, dag_run = context["ti"], context["dag_run"]
    run_type = str(getattr(dag_run.run_type, "value", dag_run.run_type))
    known = {"operator_triggered": "manual", "asset_materialization": "asset_triggered"}
    run_type = "test" if is_test_run() else known.get(run_type, run_type)
    interval_end = context.get("data_interval_end")
    data_slice = job.data_slice or context.get("partition_key") or (interval_end.isoformat() if interval_end else None)
    if data_slice is not None:  # databases take neither NUL nor surrogates as text
        data_slice = data_slice.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    return AskRequest(
        job=job,
        job_id=job_id_of(job, ti, task_id=task_id, part=part),
        ti_id=str(ti.id),
        origin=Origin(
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=task_id or ti.task_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
            try_number=ti.try_number,
            run_type=run_type if run_type in RUN_TYPES else "manual",
            data_slice=data_slice,
        ),
        device=device,
        lease_s=lease_s,
        pinned_by=pinned_by(enabled()),
        finish_by_s=finish_by_s(job, context),
        runs_left=None if job.expected_runs else runs_left(context),
    )


def ask_watched(
    request: AskRequest,
    context: Mapping[str, Any],
    conn_id: str,
    config: ZeusConfig,
    *,
    overlap_possible: bool,
    trains_here: bool = True,
) -> tuple[Store | None, AskAnswer, Callable[[], Store]]:
    """:func:`ask`, with looks for events at the decision and, where this task trains, at its end."""

    def watch(trial: Trial, *, stored: bool, after_killed: bool, reopen: Callable[[], Store]) -> None:
        if config.enabled == OFF:
            return
        looks = RunAlerts(context=context, trial=trial, stored=stored, reopen=reopen, state_dir=config.state_dir)
        if trains_here:
            looks.watch(after_killed=after_killed)
        else:
            looks.after_task(decision=True)

    try:
        store, asked, reopen = ask(request, conn_id, config, overlap_possible=overlap_possible)
    except StoreError as error:  # of a strict job
        reopen = partial(open_store, conn_id, create=False)
        watch(default_trial(request, error), stored=False, after_killed=False, reopen=reopen)
        raise
    watch(asked.trial, stored=store is not None, after_killed=asked.after_killed, reopen=reopen)
    return store, asked, reopen


def say_asked(asked: AskAnswer, *, shared: bool) -> None:
    """Warn where other map indexes of the task train the same job. ``shared``: whether the user is to hear of it."""
    if not shared or not asked.shared_with:
        return
    trial = asked.trial
    log.warning(
        "Task %s is mapped, and its map indexes %s share the job %s: Zeus learns from all of them as from one "
        "training. If each has its own data or model, name the mapped argument that tells them apart: "
        'job_id_by="<argument>" makes one job for each of its values.',
        trial.origin.task_id,
        ", ".join(map(str, sorted({trial.origin.map_index, *asked.shared_with}))),
        visible(trial.job_id),
    )


def time_limit_s(task: Any) -> float | None:
    """The ``execution_timeout`` of a task [s]; None: it has none."""
    timeout = getattr(task, "execution_timeout", None)
    return timeout.total_seconds() if isinstance(timeout, timedelta) else None


def decision_xcom(trial: Trial, store: Store | None) -> dict[str, Any]:
    """Value of XCom ``zeus_decision``: what runs and why, as plain JSON."""
    return {
        "job_id": trial.job_id,
        "trial": trial.number or None,
        "batch_size": trial.batch_size,
        "phase": trial.planned.phase.value,
        **({"start": trial.planned.start.value} if trial.planned.start else {}),
        "why": trial.planned.why,
        "store": store.identity.partition(":")[0] if store else None,  # its kind alone: viewers may read XComs
        **encode(trial.decision),
    }


def plan_of(
    asked: AskAnswer,
    config: ZeusConfig,
    *,
    device: Device | None = None,
    signal: Followed | None = None,
    time_left_s: float | None = None,
) -> Plan:
    """Build the plan of the training process from the store's answer.

    :param device: of the training, which is on this host then; None: it is on another one.
    :param signal: that its power limit follows.
    :param time_left_s: of the task's ``execution_timeout`` [s]; None: it has none.
    """
    simulated = device is not None and device.info.energy_source == "simulated"
    held = tuple(device.uuid.split(",")) if simulated and device and device.uuid else held_here()
    trial = asked.trial
    decision, position = trial.decision, trial.decision.in_order.index(trial.planned)
    left = decision.attempts[position:]
    return Plan(
        job_id=trial.job_id,
        ti_id=trial.key.ti_id,
        number=trial.number,
        first_attempt=trial.key.attempt,
        spec=trial.spec,
        attempts=left or (trial.planned,),
        stand_in=decision.stand_in if left else None,
        reliefs=() if trial.planned in decision.reliefs else decision.reliefs,
        time_left_s=time_left_s,
        seed=decision.seed,
        profile=asked.profile,
        limits_found_w=asked.limits_found_w,
        previous=asked.previous,
        signal=signal,
        heartbeat_s=config.heartbeat_s,
        state_dir=None if device is None else str(config.state_dir),
        attempt_root=config.attempt_root,
        gpus_held=held,
        **{each.name: getattr(config, each.name) for each in fields(HostSettings)},
    )
