"""Events of a job: read for the tab of its DAG, silenced and heard again by an editor. Only the api-server loads it."""

# No "from __future__ import annotations": FastAPI would read its dependencies as query parameters.
import time
from functools import partial

from fastapi import APIRouter, HTTPException, Request, Response  # noqa: TID253 - see above

from airflow_provider_zeus.airflow_compat import BaseUser
from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.plugin.api import action_routes, auth, live_settings, responses
from airflow_provider_zeus.plugin.views.alerts_models import Alerts, SilenceChange
from airflow_provider_zeus.plugin.views.alerts_view import alerts_of
from airflow_provider_zeus.reports.alert_book import Silence
from airflow_provider_zeus.store.alerts import change_book, read_book
from airflow_provider_zeus.store.variables.airflow import AirflowVariables

router = APIRouter(prefix="/api/dags/{dag_id}/alerts")

_BODY = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": SilenceChange.model_json_schema()}}}
}


@router.post("", dependencies=[auth.MAY_EDIT, auth.MAY_READ_RUNS, auth.FROM_OUR_PAGE], openapi_extra=_BODY)
async def silence(dag_id: str, request: Request, user: auth.GetUserDep) -> Response:
    """Silence a kind of event of a job, or hear it again. In force from the next event on."""
    change = await action_routes.read_body(request, SilenceChange)
    return await responses.answer(user, partial(_change, user, dag_id, change))


def of_job(job_id: str, dag_id: str, *, may_edit: bool) -> Alerts:
    """The events of a job on the tab of a DAG."""
    try:
        return alerts_of(read_book(AirflowVariables(), job_id), dag_id, may_edit=may_edit)
    except StoreError:
        return Alerts(problem="The events of this job cannot be read: Airflow's Variables do not answer.")


def _change(user: BaseUser, dag_id: str, request: SilenceChange) -> Alerts:
    _, sharing = action_routes.job_in(dag_id, request.job_id)
    if not sharing <= auth.editable_dags(user):
        raise HTTPException(403, "Another DAG, which you may not change, shares this job.")
    by = Silence(by=user.get_name(), at_s=time.time()) if request.silenced else None
    book = change_book(AirflowVariables(), request.job_id, lambda book: book.with_silence(request.kind, by))
    what = f"{request.kind} {'silenced' if request.silenced else 'heard again'}"
    live_settings.audit(request.job_id, what, dag_id=dag_id, by=user.get_name())
    return alerts_of(book, dag_id, may_edit=True)
