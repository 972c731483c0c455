"""A run log by hand: attempts as the store would hold them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa

from airflow_provider_zeus.model.job import ZeusJob
from airflow_provider_zeus.model.trial import (
    Decision,
    Origin,
    Phase,
    PlannedAttempt,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.plugin.text.factors import Factors
from airflow_provider_zeus.plugin.views import pages
from airflow_provider_zeus.plugin.views.dag_view import JobLog
from airflow_provider_zeus.plugin.views.job_analysis import JobAnalysis
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.store.store_kit import report, request, seen

JOB = ZeusJob(
    batch_sizes=[16, 32, 64], default_batch_size=32, target="accuracy >= 0.8", max_epochs=10
)


def trial(
    number: int, run: str, batch_size: int = 32, state: State = State.CONVERGED, **changes: Any
) -> Trial:
    """One attempt in a run; ``changes`` are of the trial, its origin or what it observed."""
    of_trial = {k: changes.pop(k) for k in ("reason", "job_id", "opened_at") if k in changes}
    phase = changes.pop("phase", Phase.SAMPLE)
    origin = {
        "dag_id": "d",
        "run_id": run,
        "task_id": "train",
        "run_type": "scheduled",
        "data_slice": f"slice {run}",
    }
    origin |= {k: changes.pop(k) for k in (*origin, "map_index", "try_number") if k in changes}
    attempt = PlannedAttempt(batch_size=batch_size, phase=phase, why=f"{batch_size} drew lowest.")
    values: dict[str, Any] = {
        "job_id": "d.train",
        "number": number,
        "key": TrialKey(f"ti-{number}"),
        "origin": Origin(**origin),
        "spec": JOB.to_dict(),
        "decision": Decision(attempts=(attempt,), seed=1, policy="zeus"),
        "planned": attempt,
        "state": state,
        "opened_at": 1_000.0 * number,
        "observation": seen(batch_size, **changes),
    }
    return Trial(**{**values, **of_trial})


def ran(store: Store, n: int, dag_id: str = "d", job_id: str = "d.train", **changes: Any) -> Trial:
    """Run ``n`` of a DAG through the store, from question to result."""
    origin = replace(request(n).origin, dag_id=dag_id, run_id=changes.pop("run_id", f"run{n}"))
    job = changes.pop("job", JOB)
    state = changes.pop("state", State.CONVERGED)
    reason = changes.pop("reason", None)
    asked = store.ask(
        request(n, ti_id=f"{dag_id}-{job_id}-{n}", origin=origin, job_id=job_id, job=job)
    ).trial
    return store.tell(asked.key, state, report(asked.batch_size, **changes), reason=reason)


@contextmanager
def dag_row(dag_id: str, **changes: Any) -> Iterator[None]:
    """A DAG that Airflow has, until the end."""
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    known: Any = DagModel
    with create_session() as session:
        session.add(DagBundleModel(name=f"of {dag_id}"))
        session.flush()
        session.add(
            known(
                dag_id=dag_id,
                bundle_name=f"of {dag_id}",
                fileloc="x.py",
                **{"is_stale": False, **changes},
            )
        )
    try:
        yield
    finally:
        with create_session() as session:
            session.execute(sa.delete(DagModel).where(DagModel.dag_id == dag_id))
            session.execute(sa.delete(DagBundleModel).where(DagBundleModel.name == f"of {dag_id}"))


def charts(trials: Sequence[Trial], known: JobAnalysis) -> Any:
    """The slow blocks of a DAG's tab, each by its name."""
    return SimpleNamespace(
        **pages.content("dag", JobLog(trials, known, Factors(), {}, more=False), slow=True)
    )
