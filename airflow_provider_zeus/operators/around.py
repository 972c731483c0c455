"""What the setup and the teardown task of a ``ZeusTrial`` do."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_zeus.errors import BelowTargetError
from airflow_provider_zeus.operators.collect import starts_in_folder, starts_in_xcom, starts_told, tell_all
from airflow_provider_zeus.operators.recurrence import (
    Settings,
    ask,
    ask_request,
    decision_xcom,
    plan_of,
    push,
    reopening,
    teller_of,
)
from airflow_provider_zeus.operators.trial import DECISION, HANDED, PLAN
from airflow_provider_zeus.optimizer.job import ZeusJob
from airflow_provider_zeus.optimizer.trial import State
from airflow_provider_zeus.store.rows import trial_from_dict, trial_to_dict
from airflow_provider_zeus.training.plan import Line, Plan

if TYPE_CHECKING:
    from airflow_provider_zeus.operators.trial import ZeusAskOperator, ZeusTellOperator

log = logging.getLogger(__name__)


def ask_for(operator: ZeusAskOperator, context: Mapping[str, Any]) -> tuple[Plan, dict[str, Any]]:
    """The plan of the training, and what the teardown task has to know. Raises JobSpecError; StoreError if strict."""
    settings = Settings.read()
    job = ZeusJob.from_dict(operator.job).check(rendered=True)
    request = ask_request(job, context, None, lease_s=operator.lease_s, task_id=operator.trains)
    store, asked, _ = ask(request, operator.zeus_conn_id, settings, overlap_possible=_overlap_possible(context))
    plan = plan_of(asked, settings, state_dir=None)  # it trains on another host
    context["ti"].xcom_push(key=DECISION, value=decision_xcom(asked.trial, store))
    key = asked.trial.key
    folder = f"{operator.result_path.rstrip('/')}/{key.ti_id}-{key.attempt}" if operator.result_path else None
    return plan, {"trial": trial_to_dict(asked.trial), "result_path": folder}


def tell_of(operator: ZeusTellOperator, context: Mapping[str, Any]) -> None:
    """Collect and tell.

    Where the job requires its target it raises BelowTargetError, and AirflowException where the training failed: to
    Airflow this task alone then decides whether the run did. Raises nothing else.
    """
    try:
        kept, spec = _collect(operator, context)
    except Exception:
        log.exception("Zeus could not tell what this training cost; the trial stays open until its lease ends.")
        kept, spec = None, {}
    if not operator.on_failure_fail_dagrun:
        return
    if kept is not None and kept.state is State.EXHAUSTED and ZeusJob.from_dict(spec).require_target:
        raise BelowTargetError.of(kept.batch_size, kept.reason, spec["target"])
    if _failed(operator, context, otherwise=kept is None):
        from airflow.exceptions import AirflowException  # type: ignore[attr-defined]

        raise AirflowException(f"The training, task {operator.trains}, failed; see its log.")


def _collect(operator: ZeusTellOperator, context: Mapping[str, Any]) -> tuple[Line | None, Mapping[str, Any]]:
    """(the end of the kept attempt, the job's spec), once every start's lines were told."""
    ti, settings = context["ti"], Settings.read()
    handed = _pull(ti, operator.setup_task_id, HANDED)
    plan = Plan.from_json(_pull(ti, operator.setup_task_id, PLAN))
    teller = teller_of(None, trial_from_dict(handed["trial"]), settings, reopening(operator.zeus_conn_id))
    starts = starts_in_folder(Path(handed["result_path"])) if handed["result_path"] else []
    known = {start[0].start_id for start in starts}
    value = _pull(ti, operator.trains, "return_value")
    starts += [start for start in starts_in_xcom(value, operator.result_key) if start[0].start_id not in known]
    never = None if starts else _never_ran(operator, context)
    folder = handed["result_path"] or None
    tell_all(starts, teller, plan, starts_seen=None if folder else starts_told(starts), never=never, folder=folder)
    push(context, "zeus_cost", teller.cost_xcom())
    return teller.kept_end, plan.spec


def _failed(operator: ZeusTellOperator, context: Mapping[str, Any], *, otherwise: bool) -> bool:
    """Whether the training failed; ``otherwise`` where Airflow's API does not answer."""
    try:
        return not {"failed", "upstream_failed"}.isdisjoint(_states(operator, context))
    except Exception:
        log.exception("Zeus cannot ask Airflow whether the training, task %s, failed.", operator.trains)
        return otherwise


def _never_ran(operator: ZeusTellOperator, context: Mapping[str, Any]) -> str | None:
    """Why the training did not start; None where it did, or where nobody knows."""
    try:
        states = _states(operator, context)
    except Exception:  # of Airflow's API: the reason is less exact then, nothing else
        return None
    known = {"skipped": "the training was skipped", "upstream_failed": "the training did not run: what it needs failed"}
    return next((known[state] for state in states if state in known), None)


def _states(operator: ZeusTellOperator, context: Mapping[str, Any]) -> set[str]:
    ti = context["ti"]
    which = {"dag_id": ti.dag_id, "task_ids": [operator.trains], "run_ids": [ti.run_id]}
    mapped = {} if ti.map_index in (None, -1) else {"map_index": ti.map_index}
    states = ti.get_task_states(**which, **mapped).get(ti.run_id, {})
    return {str(getattr(state, "value", state)) for state in states.values()}


def _pull(ti: Any, task_id: str | None, key: str) -> Any:
    return ti.xcom_pull(task_ids=task_id, key=key, map_indexes=ti.map_index)


def _overlap_possible(context: Mapping[str, Any]) -> bool:
    """Whether another recurrence of the job may run meanwhile: runs of the DAG, backfills, instances of a group."""
    backfill = str(getattr(context["dag_run"].run_type, "value", "")) == "backfill"
    return context["dag"].max_active_runs != 1 or backfill or context["ti"].map_index not in (None, -1)
