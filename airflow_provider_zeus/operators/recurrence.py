"""One recurrence as a task sees it: ask, train, tell. The thin shell around the store, whatever runs the training."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_zeus.airflow_compat import is_test_run, supervisor
from airflow_provider_zeus.errors import JobSpecError, StoreError
from airflow_provider_zeus.operators.asking import Question, drain_for_a_while
from airflow_provider_zeus.operators.teller import RUN_S, STOPPED_S, Teller
from airflow_provider_zeus.optimizer.checks import RUN_TYPES
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.policy import fallback
from airflow_provider_zeus.optimizer.trial import DeviceInfo, Origin, State, Trial, TrialKey
from airflow_provider_zeus.power.device import Device
from airflow_provider_zeus.power.gpu_lock import held_here
from airflow_provider_zeus.power.open import GPU_LOCK_WAIT_S, device_of
from airflow_provider_zeus.private import is_shared, make_folder, share_with
from airflow_provider_zeus.store.airflow_variables import AirflowVariables
from airflow_provider_zeus.store.base import Asked, AskRequest, Store
from airflow_provider_zeus.store.open import SETTINGS_S, embedded_path, open_store
from airflow_provider_zeus.store.patience import bounded, within
from airflow_provider_zeus.store.settings import read_settings
from airflow_provider_zeus.training.leash import die_with_parent
from airflow_provider_zeus.training.plan import Plan
from airflow_provider_zeus.training.run import ZeusRun

PUSH_S = 3.0  # for Airflow's API to take an XCom

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The ``[zeus]`` section of Airflow's configuration that a task needs."""

    state_dir: Path
    heartbeat_s: float
    lease_s: float
    cpu_watts: float | None  # of one busy core
    power_read_only: bool
    power_socket: str = ""  # of the helper that sets power limits
    attempt_root: str | None = None  # folder of what run.attempt_dir makes
    gpu_lock_wait_s: float = GPU_LOCK_WAIT_S
    shared_group: str = ""  # of the folders that are made here; empty: they are this user's alone

    @classmethod
    def read(cls) -> Settings:
        """Read it from Airflow. Raises JobSpecError where it cannot work."""
        from airflow.sdk import conf

        heartbeat_s = conf.getfloat("zeus", "heartbeat_s", fallback=15.0)
        lease_s = conf.getfloat("zeus", "lease_s", fallback=90.0)
        if heartbeat_s <= 0:
            raise JobSpecError.of("[zeus] heartbeat_s", heartbeat_s, "not above 0", "15 suits most trainings")
        if lease_s < 2 * heartbeat_s:
            raise JobSpecError.of(
                "[zeus] lease_s",
                lease_s,
                f"a heartbeat every {heartbeat_s:g} s could not renew it in time",
                "raise it to 6 heartbeats",
            )
        state_dir = Path(conf.get("zeus", "state_dir", fallback="") or embedded_path().parent / "zeus")
        cpu_watts = conf.getfloat("zeus", "cpu_watts", fallback=0.0)
        if not 0 <= cpu_watts < float("inf"):
            raise JobSpecError.of("[zeus] cpu_watts", cpu_watts, "not a power", "give the watts of one busy core, or 0")
        shared_group = conf.get("zeus", "shared_group", fallback="").strip()
        share_with(shared_group)
        return cls(
            state_dir=state_dir,
            heartbeat_s=heartbeat_s,
            lease_s=lease_s,
            cpu_watts=cpu_watts or None,
            power_read_only=conf.getboolean("zeus", "power_read_only", fallback=False),
            power_socket=conf.get("zeus", "power_socket", fallback="").strip(),
            attempt_root=conf.get("zeus", "attempt_root", fallback="").strip() or None,
            gpu_lock_wait_s=conf.getfloat("zeus", "gpu_lock_wait_s", fallback=GPU_LOCK_WAIT_S),
            shared_group=shared_group,
        )

    def share_folders(self) -> None:
        """Make the folders of ``shared_group``, before they are made for this user alone. Raises nothing."""
        folders = [self.state_dir, Path(self.attempt_root)] if self.attempt_root else [self.state_dir]
        for folder in folders if self.shared_group else []:
            try:
                make_folder(folder, self.shared_group)
                if not is_shared(folder):
                    log.warning(
                        "%s was there before [zeus] shared_group = %s and is not shared: chgrp it, and chmod 2770.",
                        folder,
                        self.shared_group,
                    )
            except OSError as error:
                log.warning("%s cannot be made for [zeus] shared_group = %s: %s", folder, self.shared_group, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """A task's recurrence of a job: :meth:`open` asks; the plan says what to train, the teller takes what it cost."""

    plan: Plan
    device: Device
    teller: Teller

    @classmethod
    def open(cls, job: ZeusJob, context: Mapping[str, Any], *, conn_id: str) -> Recurrence:
        """Ask the store for a batch size.

        Where the store cannot be asked the job's default batch size runs and the cost is told later, unless the job is
        ``strict``: then StoreError is raised. From here on the task dies with its supervisor: an orphan keeps the GPU.
        """
        if supervisor() is not None and not is_test_run():  # else its parent is whoever called dag.test()
            die_with_parent()
        settings = Settings.read()
        settings.share_folders()
        job = job.check(rendered=True)
        device = device_of(
            job,
            settings.state_dir,
            cpu_watts=settings.cpu_watts,
            read_only=settings.power_read_only,
            power_socket=settings.power_socket,
            gpu_lock_wait_s=settings.gpu_lock_wait_s,
        )
        if (limits := device.limit_range()) is not None:  # before the question: no trial for a mistake
            limits.check(job.power_limits_w or (), device.info.model)
        _say_what_is_measured(device)
        request = ask_request(job, context, device.info, lease_s=settings.lease_s)
        overlap_possible = context["task"].max_active_tis_per_dag != 1
        begun_s = time.monotonic()
        store, asked, reopen = ask(request, conn_id, settings, overlap_possible=overlap_possible)
        left_s = max(RUN_S - (time.monotonic() - begun_s), 0.0)
        plan = plan_of(asked, settings, state_dir=str(settings.state_dir))
        push(context, "zeus_decision", decision_xcom(asked.trial, store))
        teller = teller_of(store, asked.trial, settings, reopen, left_s=left_s)
        return cls(plan=plan, device=device, teller=teller)

    def run(self) -> ZeusRun:
        """The handle of a training in this process; its result goes to the teller."""
        return ZeusRun.from_plan(self.plan, sink=self.teller, device=self.device)

    def push_cost(self, context: Mapping[str, Any]) -> None:
        """What it cost goes to XCom ``zeus_cost``. Raises nothing: what the training returned counts."""
        try:
            cost = self.teller.cost_xcom()
        except Exception:
            log.exception("Zeus could not add up what this run cost; the trial log has what it says.")
            return
        push(context, "zeus_cost", cost, most_s=STOPPED_S if self.teller.stopped else PUSH_S)

    def close_device(self) -> None:
        """Let go of the device, where no run in this process does. Raises nothing, as :meth:`push_cost`."""
        try:
            self.device.close()
        except Exception:
            log.exception("Zeus could not let go of the device.")


def push(context: Mapping[str, Any], key: str, value: Mapping[str, Any], *, most_s: float = PUSH_S) -> None:
    """XComs are for people; the trial log is the truth, so a push that fails, or hangs, fails nothing."""
    try:
        bounded(lambda: context["ti"].xcom_push(key=key, value=value), most_s)
    except Exception:
        log.warning("Zeus could not push XCom %s; the trial log has what it says.", key, exc_info=True)


def ask_request(
    job: ZeusJob, context: Mapping[str, Any], device: DeviceInfo | None, *, lease_s: float, task_id: str | None = None
) -> AskRequest:
    """What this task instance asks with: its job's name, its key, where it comes from.

    :param task_id: of the task that trains, where that is another one.
    """
    ti, dag_run = context["ti"], context["dag_run"]
    run_type = str(getattr(dag_run.run_type, "value", dag_run.run_type))
    known = {"operator_triggered": "manual", "asset_materialization": "asset_triggered"}
    run_type = "test" if is_test_run() else known.get(run_type, run_type)
    interval_end = context.get("data_interval_end")
    data_slice = job.data_slice or context.get("partition_key") or (interval_end.isoformat() if interval_end else None)
    if data_slice is not None:  # what no database takes as text
        data_slice = data_slice.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    return AskRequest(
        job=job,
        job_id=job.job_id or f"{ti.dag_id}.{task_id or ti.task_id}",
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
    )


def decision_xcom(trial: Trial, store: Store | None) -> dict[str, Any]:
    """XCom ``zeus_decision``: what runs and why, as plain JSON."""
    return {
        "job_id": trial.job_id,
        "trial": trial.number or None,
        "batch_size": trial.batch_size,
        "phase": trial.planned.phase.value,
        "why": trial.planned.why,
        "store": store.identity.partition(":")[0] if store else None,  # its kind: viewers may read XComs
        **trial.decision.to_dict(),
    }


def ask(
    request: AskRequest, conn_id: str, settings: Settings, *, overlap_possible: bool
) -> tuple[Store | None, Asked, Callable[[], Store]]:
    """The store and its answer; without a store the default batch size, or StoreError where the job is strict.

    The third value opens the store later; see :func:`reopening`.
    """

    def opened() -> Store:
        store = open_store(conn_id, overlap_possible=overlap_possible)
        drain_for_a_while(store, AirflowVariables(), request.job_id, settings.state_dir)
        return store

    question = Question(request, opened)
    reopen = reopening(conn_id, overlap_possible, lambda: question.is_over)
    try:
        return *question.answer(), reopen
    except StoreError as error:
        if request.job.strict:
            raise
        log.warning(
            "Zeus has no store: %s This run trains at the default batch size %d; its cost is kept and told later.",
            error,
            request.job.default_batch_size,
        )
        return None, Asked(trial=_unasked(request)), reopen


def reopening(
    conn_id: str, overlap_possible: bool | None = None, may_open: Callable[[], bool] = lambda: True
) -> Callable[[], Store]:
    """Opens a store that could not be asked, or raises StoreError. It makes none: another log would be begun."""

    def reopen() -> Store:
        if not may_open():
            raise StoreError("The question of this run is still under way.")
        return open_store(conn_id, create=False, overlap_possible=overlap_possible)

    return reopen


def teller_of(
    store: Store | None, first: Trial, settings: Settings, reopen: Callable[[], Store], *, left_s: float = RUN_S
) -> Teller:
    """What takes the cost of a run whose first row is ``first`` to its store."""
    port, lease_s, state_dir = AirflowVariables(), settings.lease_s, settings.state_dir
    return Teller(store, port, first, lease_s=lease_s, state_dir=state_dir, left_s=left_s, reopen=reopen)


def _unasked(request: AskRequest) -> Trial:
    """The trial of a run whose store could not be asked; it has no number yet."""
    settings = read_settings(within(AirflowVariables().get, SETTINGS_S), request.job_id, request.job.batch_sizes)
    job = request.job.with_settings(settings)  # so that what is told later teaches the job as it is now
    decision = fallback(job, why=f"The store could not be asked; {job.default_batch_size} is the default.")
    return Trial(
        job_id=request.job_id,
        number=0,
        key=TrialKey(request.ti_id),
        origin=request.origin,
        spec=job.to_dict(),
        decision=decision,
        planned=decision.attempts[0],
        state=State.RUNNING,
    )


def plan_of(asked: Asked, settings: Settings, *, state_dir: str | None) -> Plan:
    """What the training process has to know of the answer.

    :param state_dir: of the host that trains; None: where it keeps such things by default.
    """
    trial = asked.trial
    decision, position = trial.decision, trial.decision.in_order.index(trial.planned)
    left = decision.attempts[position:]
    return Plan(
        job_id=trial.job_id,
        ti_id=trial.key.ti_id,
        number=trial.number,
        first_attempt=trial.key.attempt,
        spec=trial.spec,
        attempts=left or decision.in_order[position:],
        stand_in=decision.stand_in if left else None,
        second_chance=decision.second_chance,
        seed=decision.seed,
        profile=asked.profile,
        limits_found_w=asked.limits_found_w,
        heartbeat_s=settings.heartbeat_s,
        state_dir=state_dir,
        attempt_root=settings.attempt_root,
        cpu_watts=settings.cpu_watts,
        power_read_only=settings.power_read_only,
        power_socket=settings.power_socket,
        gpu_lock_wait_s=settings.gpu_lock_wait_s,
        gpus_held=held_here(),
    )


def _say_what_is_measured(device: Device) -> None:
    """Once per run: where figures come from, or why there are none."""
    info = device.info
    if info.energy_source is None:
        log.warning(
            "Zeus tunes the batch size on time alone: %s", device.missing.get("energy_j", "no source of energy.")
        )
    elif info.energy_source == "simulated":
        log.warning("Time and energy of this run are those of the %s: simulated, not measured.", info.model)
