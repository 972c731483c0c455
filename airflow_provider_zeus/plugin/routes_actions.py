"""What may be changed from the cost page: exploration paused, a batch size pinned. Loaded by the api-server alone."""

# No "from __future__ import annotations": FastAPI would take its dependencies for query parameters.
from functools import partial
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response  # noqa: TID253 - see above
from fastapi.exceptions import RequestValidationError  # noqa: TID253
from pydantic import ValidationError

from airflow_provider_zeus.airflow_compat import BaseUser
from airflow_provider_zeus.optimizer.trial import Trial
from airflow_provider_zeus.plugin import answers, auth, live_settings, overview_state, overview_view, reading
from airflow_provider_zeus.plugin.overview_models import Change, Controls

router = APIRouter(prefix="/api/dags/{dag_id}/settings")

LONGEST_BODY = 16 * 1024  # bytes
_BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": Change.model_json_schema()}}}}


@router.get("", dependencies=[auth.MAY_READ_RUNS])
async def settings(dag_id: str, job_id: str, user: auth.GetUserDep) -> Response:
    """Live settings of a job of a DAG, and whether this user may change them."""
    return await answers.answer(user, partial(_settings, user, dag_id, job_id))


@router.post("", dependencies=[auth.MAY_EDIT, auth.MAY_READ_RUNS, auth.FROM_OUR_PAGE], openapi_extra=_BODY)
async def change(dag_id: str, request: Request, user: auth.GetUserDep) -> Response:
    """Pause or resume exploration, pin or unpin a batch size. It holds from the job's next run on."""
    asked = await _asked(request)
    return await answers.answer(user, partial(_change, user, dag_id, asked))


async def _asked(request: Request) -> Change:
    """The body, read here and not by FastAPI, which would read it before it knows who sends it.

    Raises HTTPException 413 where it is too long, RequestValidationError (422) where it is no change.
    """
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LONGEST_BODY:
            raise HTTPException(413, f"The body is longer than {LONGEST_BODY:,} bytes.")
    try:
        return Change.model_validate_json(body)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**p, "loc": ("body", *p["loc"])} for p in problems]) from None


def _settings(user: BaseUser, dag_id: str, job_id: str) -> Controls:
    newest, sharing = _job(dag_id, job_id)
    return _controls(newest, may_edit=sharing <= auth.editable_dags(user))


def _change(user: BaseUser, dag_id: str, asked: Change) -> Controls:
    newest, sharing = _job(dag_id, asked.job_id)
    if not sharing <= auth.editable_dags(user):
        raise HTTPException(403, "Another DAG, which you may not change, shares this job.")
    held = _controls(newest, may_edit=True)
    changes: dict[str, Any] = {}
    what = []
    if asked.pause_exploration is not None:
        changes["pause_exploration"] = asked.pause_exploration or None
        what.append("exploration paused" if asked.pause_exploration else "exploration resumed")
    if asked.unpin:
        changes["pin_batch_size"] = None
        what.append("batch size unpinned")
    elif asked.pin_batch_size is not None:
        if asked.pin_batch_size not in held.batch_sizes:
            raise HTTPException(422, f"Batch size {asked.pin_batch_size} is not one of {held.batch_sizes}.")
        changes["pin_batch_size"] = asked.pin_batch_size
        what.append(f"batch size pinned to {asked.pin_batch_size}")
    if not what:
        raise HTTPException(422, "Say what to change: pause_exploration, pin_batch_size or unpin.")
    live_settings.change(asked.job_id, changes, dag_id=dag_id, by=user.get_name(), what=", ".join(what))
    return _controls(newest, may_edit=True)


def _job(dag_id: str, job_id: str) -> tuple[Trial, set[str]]:
    """The newest trial of a job in a DAG, and every DAG that shares the job."""
    store = reading.open_log()
    ends = [t for t in store.latest(last=overview_state.NEWEST) if t.job_id == job_id] if store else []
    newest = [t for t in ends if t.origin.dag_id == dag_id]
    if not newest:
        raise HTTPException(404, "This DAG has no such job.")
    return newest[-1], {t.origin.dag_id for t in ends}


def _controls(newest: Trial, *, may_edit: bool) -> Controls:
    found = overview_view.controls(newest, *live_settings.of(newest.job_id), may_edit=may_edit)
    if found is None:
        raise HTTPException(409, "A newer version of the provider wrote this job: upgrade it on the api-server.")
    return found
