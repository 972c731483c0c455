"""Data route of the page that compares runs or jobs. Only the api-server loads it."""

# No "from __future__ import annotations": FastAPI would read its dependencies as query parameters.
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, HTTPException, Query, Response  # noqa: TID253 - see above

from airflow_provider_zeus.airflow_compat import BaseUser
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.plugin.api import auth, reading, responses, run_routes
from airflow_provider_zeus.plugin.text import saved_text
from airflow_provider_zeus.plugin.views import compare_view, costs, overview_view
from airflow_provider_zeus.plugin.views.compare_models import CompareAnswer, Place
from airflow_provider_zeus.plugin.views.compare_view import MOST, Column

if TYPE_CHECKING:
    from airflow_provider_zeus.store.sql.store import Store

router = APIRouter(prefix="/api/compare")
Names = Annotated[list[str], Query(min_length=1, max_length=MOST)]


@router.get("")
async def compare(user: auth.GetUserDep, dag_id: Names, run_id: Names, job_id: Names) -> Response:
    """Runs side by side; an empty ``run_id`` compares all runs of the job. The three lists go by position."""
    if not len(dag_id) == len(run_id) == len(job_id):
        raise HTTPException(422, "Give dag_id, run_id and job_id equally often; an empty run_id means the whole job.")
    places = [Place(dag_id=d, run_id=r or None, job_id=j) for d, r, j in zip(dag_id, run_id, job_id, strict=True)]
    return await responses.answer(user, partial(_compare, user, list({str(place): place for place in places}.values())))


def _compare(user: BaseUser, places: Sequence[Place]) -> CompareAnswer:
    allowed, store = auth.with_readable_runs(user, (place.dag_id for place in places)), reading.open_log()
    found = [_column(store, place) for place in places if place.dag_id in allowed] if store else []
    return compare_view.compare([column for column in found if column])


def _column(store: Store, place: Place) -> Column | None:
    """A run or a job; None where the log holds none of it that can be read here."""
    if place.run_id is None:
        every = store.runs(place.dag_id, place.job_id, last=reading.MOST_RUNS)
        ended = [t for t in every if t.state is not State.RUNNING]
        run_id = (ended or every)[-1].origin.run_id if every else ""
    else:
        every, run_id = [], place.run_id
    own = [t for t in store.recurrence(place.dag_id, run_id) if t.job_id == place.job_id]
    live = store.settings(place.job_id)
    job = overview_view.job_of(own[-1], live) if own else None
    if job is None:
        return None
    return Column(
        place=place,
        job=job,
        trials=own,
        rows=costs.rows_of(every or own, job),
        drawn=[(t, store.points(t.key)) for t in own],
        saved=_saved_by_job(store, place, every, live) if every else _saved_by_run(store, own, live),
    )


def _saved_by_job(store: Store, place: Place, trials: list[Trial], live: dict[str, object]) -> str:
    job = overview_view.job_of(trials[-1], live)
    if job is None:
        return ""
    dataset, profiles = reading.learned(store, place.dag_id, job, trials)
    all_of = not reading.has_older(store, place.dag_id, place.job_id)
    found = overview_view.saved(trials, dataset, profiles, all_of=all_of)
    return found.word if found.figure.value is None else f"{found.word} {found.figure.text}: {found.amounts}"


def _saved_by_run(store: Store, trials: list[Trial], live: dict[str, object]) -> str:
    saving = run_routes.saving_of(store, trials, live)
    if saving is None:
        return ""
    return saved_text.brief(saving)
