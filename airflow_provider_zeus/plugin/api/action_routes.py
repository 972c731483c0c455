"""Routes that change a job from the cost page: pause, pin, measure the default. Only the api-server loads them."""

# No "from __future__ import annotations": FastAPI would read its dependencies as query parameters.
from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, HTTPException, Request, Response  # noqa: TID253 - see above
from fastapi.exceptions import RequestValidationError  # noqa: TID253
from pydantic import BaseModel, ValidationError

from airflow_provider_zeus.airflow_compat import BaseUser
from airflow_provider_zeus.model.trial import Trial
from airflow_provider_zeus.plugin.api import auth, live_settings, reading, responses
from airflow_provider_zeus.plugin.views import overview_state, overview_view
from airflow_provider_zeus.plugin.views.overview_models import Controls, SettingChange
from airflow_provider_zeus.reports.belief_table import belief_table
from airflow_provider_zeus.units import cost_text

router = APIRouter(prefix="/api/dags/{dag_id}/settings")

M = TypeVar("M", bound=BaseModel)

LONGEST_BODY = 16 * 1024  # bytes
_BODY = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": SettingChange.model_json_schema()}}}
}


@router.get("", dependencies=[auth.MAY_READ_RUNS])
async def settings(dag_id: str, job_id: str, user: auth.GetUserDep) -> Response:
    """Live settings of a job of a DAG, and whether this user may change them."""

    def make() -> Controls:
        trials, sharing = job_in(dag_id, job_id)
        return _controls(trials, may_edit=sharing <= auth.editable_dags(user))

    return await responses.answer(user, make)


@router.post("", dependencies=[auth.MAY_EDIT, auth.MAY_READ_RUNS, auth.FROM_OUR_PAGE], openapi_extra=_BODY)
async def change(dag_id: str, request: Request, user: auth.GetUserDep) -> Response:
    """Pause or resume exploration, pin or unpin a batch size, measure the default. In force from the next run on."""
    return await responses.answer(user, partial(_change, user, dag_id, await read_body(request, SettingChange)))


async def read_body(request: Request, kind: type[M]) -> M:
    """The requested change. FastAPI itself would read the body before it checks permissions.

    Raises HTTPException 413 where the body is too long, RequestValidationError (422) where it is not valid.
    """
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LONGEST_BODY:
            raise HTTPException(413, f"The body is longer than {LONGEST_BODY:,} bytes.")
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**p, "loc": ("body", *p["loc"])} for p in problems]) from None


def _change(user: BaseUser, dag_id: str, request: SettingChange) -> Controls:
    trials, sharing = job_in(dag_id, request.job_id)
    if not sharing <= auth.editable_dags(user):
        raise HTTPException(403, "Another DAG, which you may not change, shares this job.")
    current = _controls(trials, may_edit=True)
    changes: dict[str, Any] = {}
    if request.pause_exploration is not None:
        changes["pause_exploration"] = request.pause_exploration or None
    if request.unpin:
        changes["pin_batch_size"] = None
    elif request.pin_batch_size is not None:
        if request.pin_batch_size not in current.batch_sizes:
            raise HTTPException(422, f"Batch size {request.pin_batch_size} is not one of {current.batch_sizes}.")
        changes["pin_batch_size"] = request.pin_batch_size
    if request.audit:
        changes["audit_after"] = max(t.number for t in trials)
    if not changes:
        raise HTTPException(422, "Nothing to change: give pause_exploration, pin_batch_size, unpin or audit.")
    live_settings.change(request.job_id, changes, dag_id=dag_id, by=user.get_name())
    return _controls(trials, may_edit=True)


def job_in(dag_id: str, job_id: str) -> tuple[list[Trial], set[str]]:
    """The newest trials of a job in all its DAGs, those of this one last, and the DAGs. Raises HTTPException 404."""
    store = reading.open_log()
    trials = [t for t in store.latest(last=overview_state.NEWEST) if t.job_id == job_id] if store else []
    sharing = {t.origin.dag_id for t in trials}
    if dag_id not in sharing:
        raise HTTPException(404, "This DAG has no such job.")
    return sorted(trials, key=lambda t: (t.origin.dag_id == dag_id, t.number)), sharing


def _controls(trials: list[Trial], *, may_edit: bool) -> Controls:
    live, changed = live_settings.of(trials[-1].job_id)
    cost = _default_cost(trials[-1], live) if may_edit else None
    controls = overview_view.controls(trials, live, changed, may_edit=may_edit, audit_cost=cost)
    if controls is None:
        raise HTTPException(409, "A newer version of the provider wrote this job: upgrade it on the api-server.")
    return controls


def _default_cost(newest: Trial, live: Mapping[str, Any]) -> str | None:
    """What a run of the default is expected to cost, as a text; None where that is not known."""
    store, job = reading.open_log(), overview_view.job_of(newest, live)
    if store is None or job is None:
        return None
    dag_id, job_id = newest.origin.dag_id, newest.job_id
    log, profiles = reading.learned(store, dag_id, job, store.runs(dag_id, job_id, last=reading.MOST_RUNS))
    table = belief_table(log, job, profiles=profiles)
    cost = next(line.believed.cost.value for line in table.lines if line.batch_size == job.default_batch_size)
    return None if cost is None else cost_text(cost, table.unit)
