"""The pure rules: closing, leases, merging; power points; rows."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.partial_sums import thinned
from airflow_provider_zeus.model.trial import (
    Decision,
    Observation,
    Origin,
    Phase,
    PlannedAttempt,
    PowerPoint,
    State,
    Trial,
    TrialKey,
)
from airflow_provider_zeus.model.trial_fields import flat
from airflow_provider_zeus.store import rules
from airflow_provider_zeus.store.rows import (
    from_row,
    trial_from_dict,
    trial_to_dict,
)
from airflow_provider_zeus.store.sql.schema import trial as table
from tests.unit.store.store_kit import JOB, request, seen

FIRST = PlannedAttempt(
    batch_size=16, phase=Phase.EXPLORE, why="try", bound_cost=5.0, bound_epochs=2.0, round=1
)
SECOND = PlannedAttempt(batch_size=32, phase=Phase.INCUMBENT, why="keep")


def trial(number: int = 1, ti_id: str = "a", **changes: object) -> Trial:
    values = {
        "job_id": "d.train",
        "number": number,
        "key": TrialKey(ti_id),
        "origin": request(1).origin,
        "spec": JOB.to_dict(),
        "decision": Decision(attempts=(FIRST, SECOND), seed=1, policy="zeus"),
        "planned": FIRST,
        "state": State.RUNNING,
        "opened_at": 100.0,
        "lease_until": 190.0,
    }
    return Trial(**{**values, **changes})  # type: ignore[arg-type]


def test_a_lease_is_over_after_its_last_second() -> None:
    assert rules.read_state(trial(), 190.0).state is State.RUNNING
    assert rules.read_state(trial(), 190.1).state is State.ABANDONED
    closed = trial(state=State.CONVERGED)
    assert rules.read_state(closed, 1e9) is closed


@pytest.mark.parametrize("field", ["dag_id", "run_id", "task_id", "map_index"])
def test_only_the_same_task_instance_is_superseded(field: str) -> None:
    later = request(1, ti_id="b", try_number=2)
    assert [reason for _, reason in rules.stale([trial()], later, 100.0)] == ["superseded by try 2"]
    other = replace(trial().origin, **{field: 7 if field == "map_index" else "other"})
    assert rules.stale([trial(origin=other)], later, 100.0) == []


def test_a_task_instance_does_not_supersede_itself() -> None:
    assert rules.stale([trial(ti_id="b")], request(1, ti_id="b", try_number=1), 100.0) == []


def test_questions_from_outside_airflow_are_no_tries_of_each_other() -> None:
    assert (
        rules.stale([trial(origin=Origin())], request(1, ti_id="b", origin=Origin()), 100.0) == []
    )


def test_what_is_closed_is_closed_in_order_of_number() -> None:
    open_ = [
        trial(3, "c"),
        trial(1, "a", lease_until=0.0, origin=Origin(dag_id="x")),
        trial(2, "b"),
    ]
    closing = rules.stale(open_, request(1, ti_id="z", try_number=4), 100.0)
    assert [(t.number, why) for t, why in closing] == [
        (1, "lease expired"),
        (2, "superseded by try 4"),
        (3, "superseded by try 4"),
    ]


def test_a_trial_never_ends_before_it_began() -> None:
    assert rules.closed(trial(), State.CONVERGED, seen(), None, now=50.0, seq=1).closed_at == 100.0
    assert rules.abandon(trial(), "x", 50.0, 1).closed_at == 100.0


def test_every_figure_of_an_observation_has_a_column() -> None:
    full = trial(observation=seen(target_value=0.8, excess_j=1.0, excess_s=2.0, out_of_memory=True))
    row = flat(full)
    of_table = {
        "id",
        "outside",
    }  # they are of the table alone: its key, and what its indexes are made by
    assert set(row) == set(table.c.keys()) - of_table
    assert from_row(row) == full
    assert trial_from_dict(trial_to_dict(full)) == full
    assert trial_from_dict(trial_to_dict(trial())) == trial()


def test_columns_are_typed_like_the_figures() -> None:
    types = {
        float: "DOUBLE",
        int: "INTEGER",
        str: "TEXT",
        Start: "TEXT",
        bool: "BOOLEAN",
        tuple[float, ...]: "JSON",
    }
    hints = get_type_hints(Observation)
    for field in fields(Observation):
        column = table.c[field.name]
        if field.name == "reasons":
            continue
        said = (get_args(hints[field.name]) or (bool,))[0]
        assert types[said] in ("INTEGER" if "INT" in str(column.type) else str(column.type)), (
            field.name
        )
        assert column.nullable == (field.name != "out_of_memory"), field.name


# --- power points


def joules(points: list[PowerPoint]) -> float:
    before = 0.0
    sum_j = 0.0
    for p in points:
        sum_j += (p.t_s - before) * (p.power_w or 0.0)
        before = p.t_s
    return sum_j


def curve(spans: list[tuple[float, float, bool]]) -> list[PowerPoint]:
    t = 0.0
    points = []
    for seconds, watts, train in spans:
        t += seconds
        points.append(
            PowerPoint(t_s=t, power_w=watts, limit_w=200.0, phase="train" if train else "validate")
        )
    return points


SPAN = st.tuples(st.floats(0.001, 1000), st.floats(0, 700), st.booleans())


@given(st.lists(SPAN, min_size=40, max_size=120), st.integers(3, 39))
def test_thinning_keeps_the_energy_the_end_and_the_order(
    spans: list[tuple[float, float, bool]], most: int
) -> None:
    points = curve(spans)
    fewer = thinned(points, most)
    assert len(fewer) <= most
    assert fewer[-1].t_s == points[-1].t_s
    assert [p.t_s for p in fewer] == sorted(p.t_s for p in fewer)
    assert joules(fewer) == pytest.approx(joules(points), rel=1e-6, abs=1e-6)


def test_points_that_are_hours_apart_are_thinned_too() -> None:
    points = curve([(3 * 3600.0, 300.0 if i < 600 else 100.0, True) for i in range(1200)])
    fewer = thinned(points)
    assert len(fewer) <= 500
    assert joules(fewer) == pytest.approx(joules(points))


def test_few_points_stay_as_they_are() -> None:
    points = curve([(1.0, 100.0, True)] * 500)
    assert thinned(points) == points


def test_thinning_leaves_most_of_the_allowed_points_and_the_phases() -> None:
    points = curve([(1.0, 100.0, i % 100 < 90) for i in range(3000)])
    fewer = thinned(points)
    assert 200 <= len(fewer) <= 500
    changes = [p.t_s for p, q in itertools.pairwise(points) if p.phase != q.phase]
    assert [p.t_s for p, q in itertools.pairwise(fewer) if p.phase != q.phase] == changes


def test_thinning_keeps_up_with_a_stream() -> None:
    kept: list[PowerPoint] = []
    for i in range(5000):
        kept = thinned([*kept, PowerPoint(t_s=i + 1.0, power_w=100.0, limit_w=None, phase="train")])
    widths = [b.t_s - a.t_s for a, b in itertools.pairwise(kept)]
    assert 200 <= len(kept) <= 500
    assert max(widths) <= 40  # no point grew while others stayed small


def test_an_unknown_power_stays_unknown_and_hides_no_known_one() -> None:
    points = [
        PowerPoint(t_s=i + 1.0, power_w=None if i % 2 else 80.0, limit_w=None, phase="train")
        for i in range(1000)
    ]
    assert {p.power_w for p in thinned(points)} == {80.0}
    assert {p.power_w for p in thinned([replace(p, power_w=None) for p in points])} == {None}


def test_points_of_a_clock_that_stands_still() -> None:
    points = [
        PowerPoint(t_s=0.0, power_w=float(i % 3), limit_w=None, phase="train") for i in range(2000)
    ]
    assert 1 <= len(thinned(points)) <= 500
