"""Hostile names in every place that a training, a DAG's author or a Connection names:
they stay text in a browser.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa

from airflow_provider_zeus.airflow_compat import Connection, DagModel, DagTag, create_session
from airflow_provider_zeus.errors import SignalError
from airflow_provider_zeus.model.trial import DeviceInfo, Observation, State
from airflow_provider_zeus.signals.reading import signal_series
from airflow_provider_zeus.signals.series import Series, Step, Unit
from airflow_provider_zeus.store.base import AskRequest
from airflow_provider_zeus.store.open import embedded_path, open_store
from airflow_provider_zeus.store.sql import schema
from airflow_provider_zeus.store.sql.engine import engine_of, read_url, transaction
from airflow_provider_zeus.store.sql.store import SqlStore, Store
from airflow_provider_zeus.store.variables.airflow import SETTINGS, AirflowVariables, variable_key
from tests.ui import runs
from tests.ui.look import came
from tests.ui.site import ADMIN
from tests.unit.plugin.kit import JOB, ran
from tests.unit.store.store_kit import outside, request

Visit = Callable[..., Any]
MARKUP = (
    "main :is(img, script, b, svg, iframe, object, embed, [onerror], [onload],"
    " a[href^='javascript:'])"
)
# Opens all that is closed; how many there were.
UNFOLD = """() => {
  const closed = [...document.querySelectorAll("main details:not([open])")];
  for (const details of closed) details.open = true;
  return closed.length;
}"""


def hostile(place: str) -> str:
    """A name that would run a script, ask another host, or be markup of a page or of a chart."""
    return (
        f"<img src=https:evil.example?{place} onerror=alert('{place}')>{{b|{place}}}<svg"
        " onload=alert(1)>"
    )


DAG = hostile("dag")
RUN = hostile("run")
TASK = hostile("task")
JOB_ID = hostile("job")
OTHER_DAG = hostile("other_dag")
SIGNAL = hostile("signal_connection")
OTHER_LOG = hostile("log_connection")
EXTRA = {"preset": "electricity-maps", "zone": hostile("zone")}
GPU = DeviceInfo(model=hostile("gpu"), count=1, max_power_w=300.0, energy_source="nvml_counter")


@pytest.fixture
def hostile_connections(site: Any, tmp_path: Path) -> Iterator[None]:
    """A signal of the job, and the log of another DAG; Airflow itself refuses such ids,
    its database does not.
    """
    log = SqlStore(f"sqlite:///{tmp_path / 'other.db'}", create=True)
    ran(log, 1, dag_id=OTHER_DAG)
    log.close()
    rows = [
        {"conn_id": SIGNAL, "conn_type": "zeus_signal", "extra": json.dumps(EXTRA)},
        {
            "conn_id": OTHER_LOG,
            "conn_type": "zeus",
            "extra": json.dumps({"sqlalchemy_url": f"sqlite:///{tmp_path}/other.db"}),
        },
    ]
    table: Any = Connection.__table__
    with create_session() as session:
        for row in rows:
            session.execute(
                table.insert().values(is_encrypted=False, is_extra_encrypted=False, **row)
            )
    yield
    with create_session() as session:
        session.execute(table.delete().where(table.c.conn_id.in_([SIGNAL, OTHER_LOG])))


def keep_series(store: Store) -> None:
    """What a service said: its name, its zone and its unit are hostile."""
    names = []

    class Keeper:
        def signal(self, name: str) -> tuple[str | None, bool]:
            names.append(name)
            raise FileNotFoundError

        def keep_signal(self, name: str, series: str | None) -> None:
            """Nothing."""

    # only the api-server reads it from the database
    here = SimpleNamespace(extra_dejson=EXTRA, host="", password="")
    with pytest.MonkeyPatch.context() as patch, suppress(SignalError):
        patch.setattr("airflow.sdk.BaseHook.get_connection", lambda _: here)
        signal_series(SIGNAL, 0.0, 1.0, Keeper())
    hour_s = time.time() // 3600 * 3600
    steps = [Step(hour_s + h * 3600, hour_s + (h + 1) * 3600, 400.0) for h in range(-24, 47)]
    series = Series.of(Unit.parse("g/kWh"), steps, source=hostile("source"), zone=hostile("zone"))
    store.signal(names[0])
    store.keep_signal(names[0], series.to_json())


@pytest.fixture
def hostile_runs(site: Any, hostile_connections: None) -> Any:
    """Runs of a DAG in whose rows every text is hostile,
    and what Airflow's database says of that DAG.
    """
    known: Any = DagModel
    with create_session() as session:
        summary = hostile("timetable")[:200]
        owner = hostile("owner")
        session.merge(
            known(
                dag_id=DAG,
                bundle_name="tests",
                fileloc="odd.py",
                timetable_summary=summary,
                owners=owner,
            )
        )
        session.merge(DagTag(dag_id=DAG, name=hostile("tag")[:100]))
    store = open_store()
    job = replace(JOB, job_version=hostile("version"), data_slice=hostile("slice"), follow=SIGNAL)
    for number in range(4):
        run = RUN if number == 3 else f"{RUN}{number}"
        origin = replace(
            request(1).origin, dag_id=DAG, run_id=run, task_id=TASK, data_slice=hostile("slice")
        )
        asked = AskRequest(
            job=job,
            job_id=JOB_ID,
            ti_id=f"hostile-{number}",
            origin=origin,
            device=GPU,
            lease_s=600.0,
        )
        trial = store.ask(asked).trial
        reasons = {field.name: hostile(field.name) for field in fields(Observation)}
        report = runs.so_far(trial, 20_000, gpu=GPU, reasons=reasons)
        points = [replace(point, phase=hostile("phase")[:50]) for point in report.points]
        state = State.EXHAUSTED if number == 2 else State.CONVERGED
        store.tell(trial.key, state, replace(report, points=points), reason=hostile("reason"))
    with transaction(engine_of(read_url(f"sqlite:///{embedded_path()}")), write=True) as connection:
        own = schema.trial.c.dag_id == DAG
        planned = connection.scalar(sa.select(schema.trial.c.planned).where(own).limit(1))
        changed = {"planned": {**planned, "why": hostile("why")}, "price_source": hostile("price")}
        changed |= {"price_per_kwh": 0.3, "price_currency": hostile("currency")}
        connection.execute(sa.update(schema.trial).where(own).values(changed))
    keep_series(store)
    variables = AirflowVariables()
    settings = variable_key(SETTINGS, JOB_ID)
    by = {"by": hostile("user"), "at": "2026-01-01T00:00:00Z", "did": [hostile("change")]}
    variables.set(
        settings, json.dumps({"pause_exploration": True, "changed": by, hostile("setting"): 1})
    )
    yield
    variables.delete(settings)
    with create_session() as session:
        session.execute(sa.delete(DagTag).where(DagTag.dag_id == DAG))
        session.execute(sa.delete(DagModel).where(DagModel.dag_id == DAG))


PLAIN_DAG = hostile("plain_dag")
PLAIN_RUN = hostile("plain_run")


@pytest.fixture
def hostile_tasks(site: Any, hostile_runs: None) -> Iterator[None]:
    """Tasks measured from outside whose names and sources are hostile."""
    known: Any = DagModel
    with create_session() as session:
        session.merge(known(dag_id=PLAIN_DAG, bundle_name="tests", fileloc="odd.py"))
    store = open_store()
    for n, task in enumerate((hostile("plain_task"), hostile("other_task"))):
        outside(
            store,
            n,
            State.FAILED,
            time.time(),
            dag_id=PLAIN_DAG,
            run_id=PLAIN_RUN,
            task_id=task,
            ti_id=f"hostile-plain-{n}",
            energy_source=hostile("source")[:90],
            device_model=hostile("processor"),
        )
    yield
    with create_session() as session:
        session.execute(sa.delete(DagModel).where(DagModel.dag_id == PLAIN_DAG))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("zeus/page", ["job", "dag", "owner", "tag", "plain_dag", "plain_task"]),
        (
            f"zeus/page?dag_id={quote(DAG, safe='')}",
            ["run", "slice", "signal_connection", "source", "zone"],
        ),
        (f"zeus/page?dag_id={quote(OTHER_DAG, safe='')}", ["log_connection"]),
        (
            f"zeus/page?dag_id={quote(DAG, safe='')}&run_id={quote(RUN, safe='')}",
            ["run", "job", "task", "gpu", "why", "phase"],
        ),
        (f"zeus/page?dag_id={quote(PLAIN_DAG, safe='')}", ["plain_task", "other_task"]),
        (
            f"zeus/page?dag_id={quote(PLAIN_DAG, safe='')}&run_id={quote(PLAIN_RUN, safe='')}",
            ["plain_task", "other_task"],
        ),
    ],
    ids=["overview", "DAG", "DAG of another log", "run", "all tasks of a DAG", "tasks of a run"],
)
def test_hostile_names_stay_text(
    visit: Visit, hostile_tasks: None, address: str, shown: list[str]
) -> None:
    """No script, no markup, and no request to elsewhere,
    also of what unfolds and of what a chart says.
    """
    at = visit(address, user=ADMIN)
    tab = at.tab()
    tab.get_by_text(hostile(shown[0])).first.wait_for(state="attached")
    at.page.wait_for_load_state("networkidle")

    def missing() -> list[str]:
        text = tab.locator("body").text_content()
        return [place for place in shown if f"<img src=https:evil.example?{place} " not in text]

    # what unfolds may hold what unfolds
    came(tab, lambda: not tab.evaluate(UNFOLD) and not missing())
    assert missing() == []
    for opener in tab.locator("#jobs button:visible, main th button:visible").all()[:20]:
        with suppress(Exception):  # it went with what was drawn anew
            opener.click(timeout=1000)
    for canvas in tab.locator("canvas:visible").all():
        with suppress(Exception):
            canvas.scroll_into_view_if_needed(timeout=1000)
            box = canvas.bounding_box(timeout=1000)
            for part in (0.2, 0.5, 0.8):
                there = {"x": box["width"] * part, "y": box["height"] / 2}
                canvas.hover(position=there, force=True, timeout=1000)
                tab.wait_for_timeout(50)
    assert tab.locator(MARKUP).count() == 0
    assert tab.evaluate("document.querySelectorAll('script:not([src])').length") == 0
    assert at.fine()
