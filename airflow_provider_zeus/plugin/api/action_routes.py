"""Routes that change a job from the pages: pause, pin, measure the default.

Only the api-server loads them.
"""

# No "from __future__ import annotations": FastAPI would read its dependencies as query parameters.
import json
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request  # noqa: TID253 - see above
from fastapi.exceptions import RequestValidationError  # noqa: TID253
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_provider_zeus.airflow_compat import BaseUser, GetUserDep
from airflow_provider_zeus.log_guard import guarded_log
from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.plugin.answer_parts import Controls
from airflow_provider_zeus.plugin.api import auth, reading
from airflow_provider_zeus.plugin.api.responses import answered
from airflow_provider_zeus.plugin.views import overview_state, overview_view
from airflow_provider_zeus.reports.belief_table import belief_table
from airflow_provider_zeus.reports.run_figures import MOST_RUNS
from airflow_provider_zeus.store.live_settings import ZEUS_CHOOSES, write_settings
from airflow_provider_zeus.store.variables.airflow import AirflowVariables

router = APIRouter(prefix="/api/dags/{dag_id}", dependencies=[auth.MAY_READ_RUNS])

log = guarded_log(__name__)

EVENT = "zeus settings"  # by this name administrators filter Airflow's audit log
NO_JOB = "This DAG has no such job."
LONGEST_BYTES = 16 * 1024  # room for 1,000 escaped characters; no body may fill the memory


class SettingChange(BaseModel):
    """A requested change; settings that it does not name stay as they are."""

    model_config = ConfigDict(extra="forbid", strict=True)

    job_id: str = Field(min_length=1, max_length=1000)
    pause_exploration: bool = False
    pin_batch_size: int | None = Field(default=None, gt=0, lt=2**31)
    resume: bool = False
    audit: bool = False


async def _body(request: Request) -> SettingChange:
    """A dependency that reads the requested change.

    FastAPI itself would read the body before it checks permissions.

    It raises HTTPException 413 if the body is too long, RequestValidationError (422) if it is not
    valid.
    """
    body = b""
    async for piece in request.stream():
        body += piece
        # The length in a header may lie, so what arrives is counted.
        if len(body) > LONGEST_BYTES:
            raise HTTPException(413, f"The body is longer than {LONGEST_BYTES:,} bytes.")
    try:
        return SettingChange.model_validate_json(body)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError(
            [{**p, "loc": ("body", *p["loc"])} for p in problems]
        ) from None


_FORM = {
    "required": True,
    "content": {"application/json": {"schema": SettingChange.model_json_schema()}},
}


@router.get("/settings")
@answered
def settings(dag_id: str, job_id: str, user: GetUserDep) -> Controls:
    """Live settings of a job of a DAG, and whether this user may change them."""
    trials, sharing = _job_in(dag_id, job_id)
    return _controls(
        trials,
        may_edit=auth.may_edit_job(user, dag_id, sharing),
        named=auth.with_readable_runs(user, sharing) == sharing,
    )


@router.post(
    "/settings",
    dependencies=[auth.MAY_EDIT, auth.FROM_OUR_PAGE],
    openapi_extra={"requestBody": _FORM},
)
@answered
def change(
    dag_id: str, user: GetUserDep, request: Annotated[SettingChange, Depends(_body)]
) -> Controls:
    """Pause exploration, pin a batch size, let Zeus choose again, measure the default: from the
    next run on.
    """
    trials, _ = _editable(user, dag_id, request.job_id)
    current = _controls(trials, may_edit=True, named=True)
    changes: dict[str, Any] = {}
    if request.resume:
        changes |= ZEUS_CHOOSES
    if request.pause_exploration:
        changes["pause_exploration"] = True
    if request.pin_batch_size is not None:
        # The list may have changed since the form was drawn.
        if request.pin_batch_size not in current.batch_sizes:
            raise HTTPException(
                422, f"Batch size {request.pin_batch_size} is not one of {current.batch_sizes}."
            )
        changes["pin_batch_size"] = request.pin_batch_size
    if request.audit:
        # A number, not a flag: the run after it clears nothing, so two writers cannot race.
        changes["audit_after"] = max(t.number for t in trials)
    if not changes:
        raise HTTPException(
            422, "Nothing to change: give pause_exploration, pin_batch_size, resume or audit."
        )
    written = write_settings(AirflowVariables(), request.job_id, changes, by=user.get_name())
    # After the write: the audit log names only changes that hold.
    _audit(request.job_id, written["what"], dag_id=dag_id, by=user.get_name())
    return _controls(trials, may_edit=True, named=True)


def _job_in(dag_id: str, job_id: str) -> tuple[list[Trial], set[str]]:
    """The newest trials of a job in all its DAGs, those of this one last, and the DAGs.

    Raises HTTPException 404.
    """
    store = reading.open_log()
    if store is None:
        raise HTTPException(404, NO_JOB)
    newest = store.latest(last=overview_state.NEWEST)
    trials = [trial for trial in newest if trial.job_id == job_id]
    if all(trial.origin.dag_id != dag_id for trial in trials):
        raise HTTPException(404, NO_JOB)
    # The newest trial of this DAG comes last, since its run is the one that changes.
    trials.sort(key=lambda trial: (trial.origin.dag_id == dag_id, trial.number))
    return trials, store.dags(job_id)


def _editable(user: BaseUser, dag_id: str, job_id: str) -> tuple[list[Trial], set[str]]:
    """The same, if this user may change the job in all its DAGs. HTTPException 403 or 404."""
    trials, sharing = _job_in(dag_id, job_id)
    if not auth.may_edit_job(user, dag_id, sharing):
        raise HTTPException(403, "Another DAG, which you may not change, shares this job.")
    return trials, sharing


def _controls(trials: list[Trial], *, may_edit: bool, named: bool) -> Controls:
    newest = trials[-1]
    live, changed = reading.live_settings(newest.job_id)
    job = overview_view.readable_job(newest, live)
    if job is not None and not job.chooses_size:
        raise HTTPException(
            409,
            'The runs of this job have no batch size. mode="measure" in its task sets no limit.',
        )
    controls = overview_view.controls(
        trials,
        live,
        changed,
        may_edit=may_edit,
        named=named,
        audit_cost=_audit_cost(newest, job, live) if may_edit else None,
    )
    if controls is None:
        raise HTTPException(
            409, "A newer version of the provider wrote this job: upgrade it on the api-server."
        )
    return controls


def _audit_cost(newest: Trial, job: ZeusJob | None, live: Mapping[str, Any]) -> str | None:
    """The cost of a run of the default, beside one of the size that runs if nothing is tried.

    None: not known.
    """
    store = reading.open_log()
    if store is None or job is None:
        return None
    dag_id = newest.origin.dag_id
    runs = store.runs(dag_id, newest.job_id, last=MOST_RUNS)
    log, profiles = reading.learned(store, dag_id, job, trials=runs, live=live)
    table = belief_table(log, profiles=profiles)
    cost_of = {line.batch_size: line.believed.cost.value for line in table.lines}
    default = cost_of[job.default_batch_size]
    usual = cost_of[table.settled.batch_size]
    # The button then names no cost: one that is not known, or 0, has no ratio.
    if default is None or not usual:
        return None
    return f"{default / usual:.2g} × that of a run of {table.settled.batch_size}"


def _audit(job_id: str, what: str, *, dag_id: str, by: str) -> None:
    """Add a line to Airflow's audit log. A failure is only logged."""
    from airflow_provider_zeus.airflow_compat import Log, create_session

    try:
        with create_session() as session:
            session.add(
                Log(
                    EVENT,
                    owner=by,
                    dag_id=dag_id,
                    extra=json.dumps({"job_id": job_id, "what": what}),
                )
            )
    except Exception:
        # The change holds already: an error as the answer would say that it does not.
        log.exception("A change of the live settings of %r is missing in the audit log.", job_id)
