"""Runs by the slice of the data that they trained on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zeus.model.trial import Origin, State, Trial, TrialKey
from airflow_provider_zeus.optimizer.slices import (
    Slice,
    SliceRun,
    in_slices,
    most_epochs,
    slice_name,
)
from tests.strategies import make_trial
from tests.unit.optimizer.world import job_of

MOST = 10.0


def run(number: int, *, reached: bool = True, epochs: float = 5.0, b: int = 32) -> SliceRun:
    return SliceRun(number, b, epochs, reached)


def test_runs_that_follow_each_other_on_one_slice_share_an_entry() -> None:
    names = {1: "a", 2: "a", 3: "b", 4: "a"}
    slices = in_slices([run(n) for n in (4, 2, 1, 3)], names, MOST)
    assert [(s.name, [r.number for r in s.runs]) for s in slices] == [
        ("a", [1, 2]),
        ("b", [3]),
        ("a", [4]),
    ]


def test_each_map_index_of_a_dag_run_has_its_own_slice_and_all_its_tries_share_it() -> None:
    def trial(
        n: int, ti_id: str, run_id: str = "r1", map_index: int = 0, data: str | None = "day 1"
    ) -> Trial:
        origin = Origin(
            dag_id="d", run_id=run_id, task_id="t", map_index=map_index, data_slice=data
        )
        made = make_trial(n, 32, job=job_of(32, default=32))
        return replace(made, key=TrialKey(ti_id), origin=origin)

    first = slice_name(trial(1, "a"))
    assert slice_name(trial(2, "b")) == first, "a retry, or a run that was cleared"
    others = [trial(3, "c", map_index=1), trial(4, "d", run_id="r2"), trial(5, "e", data="day 2")]
    assert len({first, *map(slice_name, others)}) == 4
    assert [slice_name(trial(6, "f", run_id="", data=data)) for data in ("day 1", None)] == [
        "day 1",
        "f",
    ]


def test_a_run_whose_slice_is_not_known_stands_alone() -> None:
    assert [len(s.runs) for s in in_slices([run(1), run(2)], {}, MOST)] == [1, 1]


def test_a_slice_is_missed_where_a_complete_run_missed_and_none_reached() -> None:
    given_up = run(1, reached=False)
    complete = run(2, reached=False, epochs=MOST)
    reached = run(3)
    assert not Slice.of("", (given_up,), MOST).missed, "it was stopped early"
    assert Slice.of("", (given_up, complete), MOST).missed
    assert not Slice.of("", (complete, reached), MOST).missed


@pytest.mark.parametrize(
    ("state", "epochs", "fields", "ended", "missed"),
    [
        (State.EXHAUSTED, 10.0, {}, True, True),
        (State.EXHAUSTED, 4.0, {}, True, True),  # its loop was left
        (State.EXHAUSTED, 10.0, {"spec": {"max_epochs": 20}}, True, True),
        # it may have more epochs now
        (State.EXHAUSTED, 6.0, {"spec": {"max_epochs": 6}}, True, False),
        # a command that told nothing, or a checkpoint's rest
        (State.EXHAUSTED, None, {}, False, False),
        (State.GIVEN_UP, 4.0, {}, False, False),
    ],
)
def test_a_run_ended_below_its_target_has_missed_it_unless_more_epochs_might_have_helped(
    state: State, epochs: float | None, fields: dict[str, Any], ended: bool, missed: bool
) -> None:
    job = job_of(32, default=32, max_epochs=int(MOST))
    trial = make_trial(1, 32, state, **{"job": job, "epochs": epochs, **fields})
    found = SliceRun(1, 32, epochs or 0.0, False, most_epochs(trial))
    assert (found.ended(MOST), found.missed(MOST)) == (ended, missed)
    assert Slice.of("", (found,), MOST).missed is missed
    assert not Slice.of("", (found, run(2)), MOST).missed
