"""One recurrence of a job inside a task: ask the store, train, report the cost.

Shared by all operators.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.airflow_compat import is_test_run, supervisor
from airflow_provider_zeus.errors import JobSpecError
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.run_numbers import TryNumbers
from airflow_provider_zeus.model.trial import DeviceInfo, Trial
from airflow_provider_zeus.model.wire import encode
from airflow_provider_zeus.operators.alerts import RunAlerts
from airflow_provider_zeus.operators.asking import ask, log_unmeasured
from airflow_provider_zeus.operators.config import ZeusConfig, pinned_by
from airflow_provider_zeus.operators.external_meter import ELSEWHERE
from airflow_provider_zeus.operators.left_job import JobNotes, LeftJob
from airflow_provider_zeus.operators.mixins import DECISION, job_id_of, push
from airflow_provider_zeus.operators.origin import origin_of
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
from airflow_provider_zeus.signals.series import Series
from airflow_provider_zeus.store.base import AskAnswer, AskRequest
from airflow_provider_zeus.store.open import open_store
from airflow_provider_zeus.store.variables.airflow import AirflowVariables
from airflow_provider_zeus.switch import OFF, enabled
from airflow_provider_zeus.training.process.supervisor import die_with_parent
from airflow_provider_zeus.training.protocol.plan import Plan

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store

log = guarded_log(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """A task's recurrence of a job.

    ``plan``: of the training. ``reporter``: takes its result lines to the store.
    """

    plan: Plan
    device: Device
    reporter: ResultReporter
    decision: Mapping[str, Any]
    opened: Callable[[], Store]  # a function, since a training may outlive the connection
    elsewhere: bool = False  # then its host is not known yet, so ``device`` measures nothing
    # Without them the next try would submit a training that still runs elsewhere a second time.
    notes: JobNotes | None = None
    left: LeftJob | None = None  # a Slurm job outlives the task that submitted it

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

        If the store cannot be asked, the job's default batch size runs and its cost is stored
        later; a ``strict`` job raises StoreError instead. Raises JobSpecError. From here on the
        task dies with its supervisor: an orphan would keep the GPU.

        :param part: end of the job's id, by the mapped value (``job_id_by``).
        :param waited_since_s: since when the task waited for a cheaper start [s since the epoch];
            None: it did not.
        :param elsewhere: whether the training runs on a host that is not known yet: no device is
            opened here.
        """
        die_with_supervisor()
        config = ZeusConfig.read()
        # First: a device that opens its state file would make the folder, and as a private one.
        config.share_folders()
        job = config.switched(job.check(rendered=True))
        is_here = job.chooses_size and not elsewhere
        # before the question: an answer without a device would leave an open trial
        device = _device_of(job, config, elsewhere=elsewhere)
        reporter: ResultReporter | None = None
        try:
            # Before the question: without its signal a strict job must leave no open trial.
            signal = followed(job) if job.strict else None
            decided_for = device.info if is_here else None
            request = ask_request(job, context, decided_for, lease_s=config.lease_s, part=part)
            begun_s = time.monotonic()
            asked = ask(
                request,
                conn_id,
                config,
                # Airflow's Variables have no lock: such a store refuses jobs whose runs may overlap
                overlap_possible=context["task"].max_active_tis_per_dag != 1,
                watch=lambda answer, reopen: alerts_of(context, answer.trial, config, reopen).watch(
                    after_killed=answer.after_killed
                ),
            )
            store = asked.store
            answer = asked.answer
            if is_here and config.enabled != OFF:
                log_unmeasured(asked.newest, answer.trial, device)
            reporter = reporter_of(
                answer.trial,
                config,
                store=store,
                reopen=asked.reopen,
                numbers=answer.numbers,
                waited_since_s=waited_since_s,
                left_s=max(RUN_S - (time.monotonic() - begun_s), 0.0),
            )
            if part is None and job.chooses_size:
                say_asked(answer)
            signal = signal or followed(job, store)
            decision = decision_xcom(answer.trial, store)
            push(context, DECISION, decision)
            plan = plan_of(
                answer,
                config,
                device=None if elsewhere else device,
                signal=signal,
                # the clock of execution_timeout runs while the store is asked
                time_left_s=time_left_s(context["task"], time.monotonic() - begun_s),
            )
        except BaseException as error:
            # the trial is open in the log: without its end the policy would wait for
            # its lease
            if reporter is not None:
                reporter.never_trained(error)
            # no run handle exists yet that would close it
            _close(device)
            raise
        return cls(
            plan=plan,
            device=device,
            reporter=reporter,
            decision=decision,
            opened=(lambda: store) if store else asked.reopen,
            elsewhere=elsewhere,
            notes=JobNotes.of(context, waited_since_s) if elsewhere else None,
        )

    @classmethod
    def of_left(cls, left: LeftJob, context: Mapping[str, Any], conn_id: str) -> Recurrence:
        """Go on with the attempt and the plan of a job that an earlier try of the task left."""
        die_with_supervisor()
        config = ZeusConfig.read()
        first = left.first
        store = left.store
        reopen = partial(open_store, conn_id, create=False)
        alerts_of(context, first, config, reopen).watch(after_killed=False)
        waited_since_s = left.note.waited_since_s
        plan = left.plans[-1]
        reporter = reporter_of(
            first,
            config,
            store=store,
            reopen=reopen,
            numbers=plan.numbers,
            waited_since_s=waited_since_s,
        )
        decision = decision_xcom(first, store)
        push(context, DECISION, decision)
        return cls(
            plan=replace(plan, time_left_s=time_left_s(context["task"])),
            device=NoneDevice(first.job.max_power_w, why=ELSEWHERE),
            reporter=reporter,
            decision=decision,
            opened=lambda: store,
            elsewhere=True,
            notes=JobNotes.of(context, waited_since_s, left.note.plans),
            left=left,
        )

    @outlived("close the device")
    def close_device(self) -> None:
        """Close the device, if no run handle in this process does. Raises nothing."""
        self.device.close()


def die_with_supervisor() -> None:
    """Have this task's process end with Airflow's supervisor: an orphan would keep the GPU."""
    # in dag.test() the parent is the user's own process
    if supervisor() is not None and not is_test_run():
        die_with_parent()


@outlived("close the device")
def _close(device: Device) -> None:
    device.close()


def _device_of(job: ZeusJob, config: ZeusConfig, *, elsewhere: bool) -> Device:
    """The device that the batch size is chosen for; one that measures nothing if the training is
    elsewhere.

    Raises JobSpecError.
    """
    if job.chooses_size and elsewhere:
        # found missing after the training, its results would be lost
        check_shared_root(config)
    # A job that chooses no batch size needs none: its measurement finds the GPUs by itself.
    if elsewhere or not job.chooses_size:
        return NoneDevice(job.max_power_w, why=ELSEWHERE)
    device = device_of(job, config.state_dir, config)
    try:
        _check_limits(job, device)
    except BaseException:
        _close(device)
        raise
    return device


def _check_limits(job: ZeusJob, device: Device) -> None:
    """Raise JobSpecError if a power limit of the job is out of the device's range: a wrong job
    opens no trial. The log says if the device is simulated.
    """
    limits = device.limit_range()
    if limits is not None:
        limits.check(job.power_limits_w or (), device.info.model)
    # nobody should take a demo's figures for a measurement
    if device.info.energy_source == "simulated":
        log.warning(
            "Time and energy of this run are those of the %s: simulated, not measured.",
            device.info.model,
        )


def check_shared_root(config: ZeusConfig) -> None:
    """Raise JobSpecError if there is no folder by which this host and the one that trains
    exchange files.
    """
    problem = "is not set"
    root = config.attempt_root
    if root:
        try:
            make_folder(root, config.shared_group)
            return
        except OSError as error:
            problem = f"cannot be used: {error}"
    remedy = (
        "name a folder that this host and the hosts that train share under one path "
        "(docs/how-to/slurm.md)"
    )
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
    """Build the store's request from a task instance: name of the job, key of the trial, origin of
    the run.

    :param task_id: of the task that trains, if that is another one.
    :param part: end of the job's id, by the mapped value.
    """
    ti = context["ti"]
    return AskRequest(
        job=job,
        job_id=job_id_of(job, ti, task_id=task_id, part=part),
        ti_id=str(ti.id),
        origin=origin_of(context, task_id=task_id, data_slice=job.data_slice),
        device=device,
        lease_s=lease_s,
        pinned_by=pinned_by(enabled()),
        finish_by_s=finish_by_s(job, context),
        runs_left=None if job.expected_runs else runs_left(context),
    )


def alerts_of(
    context: Mapping[str, Any], trial: Trial, config: ZeusConfig, reopen: Callable[[], Store]
) -> RunAlerts:
    """The looks of a run at its job. ``reopen`` opens the log, or raises StoreError."""
    return RunAlerts(context=context, trial=trial, reopen=reopen, state_dir=config.state_dir)


def reporter_of(
    first: Trial,
    config: ZeusConfig,
    *,
    store: Store | None,
    reopen: Callable[[], Store],
    numbers: TryNumbers,
    waited_since_s: float | None,
    left_s: float = RUN_S,
    read: Callable[[str, float, float], Series | str | None] | None = None,
) -> ResultReporter:
    """The sink that takes the results of a run to its log.

    Arguments: as of :class:`.ResultReporter`.

    :param waited_since_s: since when the task waited for a cheaper start [s since the epoch].
    :param read: the signals of a run that has ended; None: it is about to train, and reads them by
        ``store``.
    """
    prices = HourPrices.of(
        first,
        first.job,
        waited_since_s,
        read or partial(read_signal, keeper=store),
        live=read is None,
    )
    return ResultReporter(
        store,
        AirflowVariables(),
        first,
        lease_s=config.lease_s,
        state_dir=config.state_dir,
        left_s=left_s,
        reopen=reopen,
        prices=prices,
        numbers=numbers,
    )


def say_asked(asked: AskAnswer) -> None:
    """Warn if other map indexes of the task train the same job."""
    if not asked.shared_with:
        return
    trial = asked.trial
    log.warning(
        "Task %s is mapped, and its map indexes %s share the job %s: Zeus learns from all of them "
        "as from one training. If each has its own data or model, name the mapped argument that "
        "tells them apart: "
        'job_id_by="<argument>" makes one job for each of its values.',
        trial.origin.task_id,
        ", ".join(map(str, sorted({trial.origin.map_index, *asked.shared_with}))),
        visible(trial.job_id),
    )


def time_left_s(task: Any, spent_s: float = 0.0) -> float | None:
    """The rest of the ``execution_timeout`` of a task [s]; None: it has none."""
    timeout = getattr(task, "execution_timeout", None)
    if not isinstance(timeout, timedelta):
        return None
    return timeout.total_seconds() - spent_s


def decision_xcom(trial: Trial, store: Store | None) -> dict[str, Any]:
    """Value of XCom ``zeus_decision``: the decision and its reasons, as plain JSON."""
    planned = trial.planned
    decision: dict[str, Any] = {
        "job_id": trial.job_id,
        "trial": trial.number or None,
        "batch_size": trial.batch_size,
        "phase": planned.phase.value,
    }
    if planned.start is not None:
        decision["start"] = planned.start.value
    decision["why"] = planned.why
    decision["store"] = None
    if store is not None:
        kind, _, _ = store.identity.partition(":")
        decision["store"] = kind  # no more of it: viewers may read XComs
    decision.update(encode(trial.decision))
    return decision


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
    trial = asked.trial
    decision = trial.decision
    position = decision.in_order.index(trial.planned)
    attempts = decision.attempts[position:]
    stand_in = decision.stand_in
    reliefs = decision.reliefs
    if not attempts:  # a stand-in or a relief runs, which has no stand-in itself
        attempts = (trial.planned,)
        stand_in = None
    # at most one attempt runs after a failure
    if trial.planned in reliefs:
        reliefs = ()
    # the training process must not wait for locks that this one has
    gpus_held = held_here()
    if device is not None and device.info.energy_source == "simulated":
        gpus_held = tuple(str(device.uuid).split(","))
    settings = {setting.name: getattr(config, setting.name) for setting in fields(HostSettings)}
    if not trial.job.chooses_size:
        settings["cpu_watts"] = config.measured_watts
    return Plan(
        job_id=trial.job_id,
        ti_id=trial.key.ti_id,
        number=trial.number,
        first_attempt=trial.key.attempt,
        numbers=asked.numbers,
        spec=trial.spec,
        attempts=attempts,
        stand_in=stand_in,
        reliefs=reliefs,
        time_left_s=time_left_s,
        seed=decision.seed,
        profile=asked.profile,
        limits_found_w=asked.limits_found_w,
        previous=asked.previous,
        earlier_rate=asked.earlier_rate,
        signal=signal,
        heartbeat_s=config.heartbeat_s,
        state_dir=None if device is None else str(config.state_dir),
        attempt_root=config.attempt_root,
        gpus_held=gpus_held,
        **settings,
    )
