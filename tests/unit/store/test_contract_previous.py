"""What ``run.previous`` reads, on each store: the newest run that left a model,
or kept an earlier one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import Lineage, Previous, State, TrialKey
from airflow_provider_zeus.store.sql.store import Store
from airflow_provider_zeus.store.variables.store import VariableStore
from airflow_provider_zeus.store.variables.tables import RETURNED
from tests.unit.store.store_kit import JOB, Clock, DictPort, parts_of, report, request
from tests.unit.store.test_stored_texts import FULL

C = State.CONVERGED
N = State.NOT_NEEDED


def ran(
    store: Store, n: int, state: State = C, value: str | None = None, **origin: Any
) -> Previous | None:
    """Run ``n``, which returns ``value``; what it could read."""
    asked = store.ask(asking(n, **origin))
    store.tell(asked.trial.key, state, report(32, returned=f'"{n}"' if value is None else value))
    return asked.previous


def read(store: Store, question: Any) -> Previous | None:
    """What a run that fails could read."""
    asked = store.ask(question)
    store.tell(asked.trial.key, State.FAILED, report())
    return asked.previous


def asking(n: int, **origin: Any) -> Any:
    of_job = {name: origin.pop(name) for name in ("job", "ti_id") if name in origin}
    question = request(n, **of_job)
    return replace(question, origin=replace(question.origin, **origin))


def test_the_newest_run_that_left_a_model(store: Store) -> None:
    assert ran(store, 1) is None
    assert ran(store, 2, State.FAILED) == Previous(returned='"1"')
    assert ran(store, 3, State.EXHAUSTED) == Previous(returned='"1"')
    assert ran(store, 4, State.GIVEN_UP) == Previous(returned='"3"')
    assert ran(store, 5, State.NO_DATA) == Previous(returned='"3"')
    assert ran(store, 6) == Previous(returned='"3"')
    assert read(store, request(7)) == Previous(returned='"6"')


def test_runs_that_were_not_needed_are_counted(store: Store) -> None:
    job = replace(JOB, retrain_every=3)
    found = [ran(store, n, state, job=job) for n, state in enumerate((C, N, N, N, C, N), start=1)]
    assert [p and p.not_needed for p in found] == [None, 0, 1, 2, 3, 0]
    assert read(store, request(9)) == Previous(returned='"6"', not_needed=1)


def test_a_value_that_was_not_kept_is_none_and_no_older_one(store: Store) -> None:
    ran(store, 1)
    ran(store, 2, value="x" * 5000)
    assert read(store, request(3)) == Previous()


@pytest.mark.parametrize(
    "other", [{"map_index": 3}, {"run_type": "backfill"}, {"run_type": "test"}]
)
def test_runs_of_another_map_index_and_backfills_are_not_read(
    store: Store, other: dict[str, Any]
) -> None:
    ran(store, 1)
    ran(store, 2, **other)
    assert read(store, request(3)) == Previous(returned='"1"')
    mapped = "map_index" in other
    assert read(store, asking(4, **other)) == (Previous(returned='"2"') if mapped else None)


def test_a_cleared_run_does_not_read_its_own_model(store: Store) -> None:
    """That model has trained on the slice that it would be tried on."""
    ran(store, 1)
    ran(store, 2)
    again = asking(2, ti_id="ti-2-again", try_number=2)
    assert read(store, again) == Previous(returned='"1"')


def again(store: Store, n: int, value: str) -> Previous | None:
    """Run ``n`` is cleared, and returns another value; what it could read."""
    return ran(store, n, value=value, ti_id=f"ti-{n}-again", try_number=2)


def test_a_cleared_run_keeps_its_place(store: Store) -> None:
    """What it reads is no newer than its own data,
    and what it made anew is no newer than it was.
    """
    for n in (1, 2):
        ran(store, n)
    assert again(store, 1, '"1 again"') is None
    assert read(store, request(3)) == Previous(returned='"2"')
    assert again(store, 2, '"2 again"') == Previous(returned='"1 again"')
    assert read(store, request(4)) == Previous(returned='"2 again"')


def test_a_run_that_failed_at_first_keeps_its_place_too(store: Store) -> None:
    ran(store, 1)
    ran(store, 2, State.FAILED)
    ran(store, 3)
    assert again(store, 2, '"2 again"') == Previous(returned='"1"')
    assert read(store, request(4)) == Previous(returned='"3"')


def test_runs_of_another_dag_that_shares_the_job_are_not_read(store: Store) -> None:
    ran(store, 1)
    ran(store, 2)
    assert ran(store, 1, ti_id="us-1", dag_id="us", value='"us"') is None
    assert read(store, request(3)) == Previous(returned='"2"')
    assert read(store, asking(2, ti_id="us-2", dag_id="us")) == Previous(returned='"us"')
    assert read(store, asking(1, ti_id="renamed", dag_id="renamed")) is None


def test_outside_of_airflow_each_trial_is_a_run(store: Store) -> None:
    nowhere = {"dag_id": "", "run_id": ""}
    assert [ran(store, n, **nowhere) for n in (1, 2, 3)] == [
        None,
        Previous(returned='"1"'),
        Previous(returned='"2"'),
    ]


def test_a_new_version_begins_without_one(store: Store) -> None:
    ran(store, 1)
    assert ran(store, 2, job=replace(JOB, job_version="2")) is None
    assert read(store, request(3, job=replace(JOB, job_version="2"))) == Previous(returned='"2"')
    assert read(store, request(4)) is None, "the newest is of another version"


def test_pages_do_not_read_the_value(store: Store) -> None:
    ran(store, 1)
    assert store.trials("d.train")[0].observation.returned == '"1"'
    if "variable" not in store.identity.lower():
        assert store.runs("d", "d.train", last=5)[0].observation.returned is None
        assert store.latest(last=5)[0].observation.returned is None


def test_a_month_does_not_miss_what_a_run_without_training_did_not_report(store: Store) -> None:
    ran(store, 1)
    asked = store.ask(request(2))
    store.tell(asked.trial.key, N, report(32, energy_j=None, time_s=None))
    assert sum(s.unknown for s in store.sums([0.0, 1e12])) == 0


def test_the_variable_keeps_the_newest_values_alone() -> None:
    store = VariableStore(DictPort(), now=Clock())
    trials = [
        replace(
            FULL,
            number=n,
            key=TrialKey(f"ti-{n}"),
            origin=replace(FULL.origin, run_id=f"run{n}"),
            told_seq=n,
            observation=replace(FULL.observation, returned=f'"{n}"'),
        )
        for n in range(1, 6)
    ]
    store.take_in(parts_of("d.train", trials))
    kept = [t.observation.returned for t in store.trials("d.train")]
    assert kept == [None] * (5 - RETURNED) + [f'"{n}"' for n in range(6 - RETURNED, 6)]


def test_the_variable_of_a_job_keeps_the_newest_values_of_each_dag() -> None:
    store = VariableStore(DictPort(), overlap_possible=False, now=Clock())
    for n in range(1, 5):
        ran(store, n)
    assert ran(store, 1, ti_id="us-1", dag_id="us") is None
    assert ran(store, 2, ti_id="us-2", dag_id="us") == Previous(returned='"1"')
    assert ran(store, 3, ti_id="us-3", dag_id="us") == Previous(returned='"2"')
    assert read(store, request(5)) == Previous(returned='"4"')


# ------------------------------------------------------------------ lineage of a job with starts
STARTS = replace(JOB, policy="knowledge_gradient", starts=["cold", "shrunk", "warm"])


def started(
    store: Store,
    n: int,
    start: Start | None = Start.WARM,
    state: State = C,
    value: str = '"m"',
    **origin: Any,
) -> Lineage:
    """Run ``n``, which takes a start; the earlier model that it was decided with."""
    asked = store.ask(asking(n, **{"job": STARTS, **origin}))
    store.tell(asked.trial.key, state, report(32, returned=value, start=start))
    return asked.trial.lineage


def of(n: int, generations: int, age: int, start: Start = Start.WARM) -> Lineage:
    return Lineage(
        from_ti_id=f"ti-{n}",
        from_attempt=1,
        from_start=start,
        from_generations=generations,
        from_age=age,
    )


def test_a_row_says_which_model_it_started_from(store: Store) -> None:
    assert started(store, 1, Start.COLD) == Lineage()
    assert started(store, 2) == of(1, 0, 1, Start.COLD)
    assert started(store, 3, Start.SHRUNK) == of(2, 1, 1)
    assert started(store, 4, Start.COLD) == of(3, 2, 1, Start.SHRUNK)
    assert started(store, 5) == of(4, 0, 1, Start.COLD)
    held = [trial.lineage for trial in store.trials("d.train")]
    assert held[2] == of(2, 1, 1), "it is in the row"
    assert [trial.generations for trial in store.trials("d.train")] == [0, 1, 2, 0, 1]


def test_a_model_grows_older_with_each_run(store: Store) -> None:
    started(store, 1)
    for n in (2, 3):
        assert started(store, n, None, N) == of(1, 1, n - 1)
    started(store, 4, Start.COLD, State.FAILED)
    assert started(store, 5) == of(1, 1, 4), "of the run that trained it, not of those that kept it"


def test_clears_backfills_and_map_indexes_keep_their_lineage(store: Store) -> None:
    for n in (1, 2, 3):
        started(store, n)
    if not isinstance(store, VariableStore):  # it keeps the newest two values
        assert started(store, 2, ti_id="ti-2-again", try_number=2) == of(1, 1, 1)
    assert started(store, 4, run_type="backfill") == Lineage()
    assert started(store, 5, map_index=1) == Lineage()
    assert started(store, 6, map_index=1) == of(5, 1, 1)
    assert started(store, 7) == of(3, 3, 1)


def test_where_nothing_was_kept_or_the_version_is_new_there_is_no_lineage(store: Store) -> None:
    started(store, 1, value="x" * 5000)
    assert started(store, 2) == Lineage()
    assert started(store, 3, job=replace(STARTS, job_version="2")) == Lineage()


def test_a_job_without_starts_has_no_lineage(store: Store) -> None:
    started(store, 1, None, job=JOB)
    assert started(store, 2, None, job=JOB) == Lineage()
