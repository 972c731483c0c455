"""Budgets at a question, on each store: what is spent in the period, open runs, nothing tried when it is used up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zeus.errors import BudgetSpentError
from airflow_provider_zeus.model.budget import Allowance, Budget
from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store.base import AskAnswer
from airflow_provider_zeus.store.sql import trials
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.store.store_kit import JOB, Clock, report, request

DAY_S = 86400.0
BUDGET = Budget.parse("10 kJ/day")


def asking(n: int, clock: Clock, on_budget: str = "incumbent") -> Any:
    begin_s, end_s = BUDGET.span(clock.t)
    allowance = Allowance(budget=BUDGET, begin_s=begin_s, end_s=end_s, per_j=1.0, per_gpu_s=0.0)
    job = replace(JOB, budget=BUDGET.text, on_budget=on_budget)
    return replace(request(n, job=job), allowances=[allowance])


def ran(store: Store, n: int, clock: Clock, joules: float, **asked: Any) -> AskAnswer:
    answer = store.ask(asking(n, clock, **asked))
    store.tell(answer.trial.key, State.CONVERGED, report(answer.trial.batch_size, energy_j=joules))
    clock.t += 3600.0
    return answer


def test_what_is_spent_is_of_the_period_and_of_one_source(store: Store, clock: Clock) -> None:
    assert ran(store, 1, clock, 4000.0).budgets[0].spent == 0.0
    assert ran(store, 2, clock, 4000.0).budgets[0].spent == 4000.0
    answer = store.ask(asking(3, clock))
    store.tell(answer.trial.key, State.CONVERGED, report(32, energy_j=9e9, energy_source="estimate"))
    assert ran(store, 4, clock, 1000.0).budgets[0].spent == 8000.0, "an estimate is not added"
    clock.t += DAY_S
    assert ran(store, 5, clock, 1000.0).budgets[0].spent == 0.0, "a new period"


@pytest.mark.parametrize(("on_budget", "tries"), [("incumbent", False), ("warn", True)])
def test_used_up_nothing_else_is_tried_until_the_period_ends(
    store: Store, clock: Clock, on_budget: str, tries: bool
) -> None:
    ran(store, 1, clock, 11_000.0, on_budget=on_budget)
    answer = ran(store, 2, clock, 100.0, on_budget=on_budget)
    assert answer.budgets[0].share > 1
    assert (len(answer.trial.decision.attempts) > 1) == tries
    said = answer.trial.decision.attempts[-1].why
    assert ("A budget is used up: 3.06 Wh of the budget 2.78 Wh/day" in said) == (not tries)
    clock.t += DAY_S
    assert len(ran(store, 3, clock, 100.0, on_budget=on_budget).trial.decision.attempts) > 1, "a new period"


@pytest.mark.parametrize("on_budget", ["skip", "fail"])
def test_used_up_no_run_begins_until_the_period_ends(store: Store, clock: Clock, on_budget: str) -> None:
    begun = ran(store, 1, clock, 11_000.0, on_budget=on_budget).trial
    with pytest.raises(
        BudgetSpentError, match=r"^3\.06 Wh of the budget 2\.78 Wh/day are spent \(110%\); a new period"
    ):
        store.ask(asking(2, clock, on_budget=on_budget))
    assert [t.number for t in store.trials(begun.job_id)] == [1], "no trial was opened"
    assert store.ask(asking(2, clock, on_budget="warn")).trial.number == 2, "the job may be changed"
    again = store.ask(asking(2, clock, on_budget=on_budget))
    assert (again.trial.number, again.redelivered) == (2, True), "a run that has begun goes on"
    store.tell(again.trial.key, State.CONVERGED, report(again.trial.batch_size, energy_j=100.0))
    clock.t += DAY_S
    assert ran(store, 3, clock, 100.0, on_budget=on_budget).trial.number == 3, "a new period"


def test_runs_that_overlap_overspend_by_one_usual_run(opens: Any, clock: Clock) -> None:
    """While none has ended what one takes is not known, and all begin."""
    store = overlapping(opens())
    first = [store.ask(asking(n, clock, on_budget="skip")) for n in (1, 2)]
    for each in first:
        store.tell(each.trial.key, State.CONVERGED, report(each.trial.batch_size, energy_j=2000.0))
    for n in (3, 4, 5):  # 4 kJ are spent; the first leaves room for two more
        store.ask(asking(n, clock, on_budget="skip"))
    with pytest.raises(BudgetSpentError, match=r"open runs are expected to take 1\.67 Wh"):
        store.ask(asking(6, clock, on_budget="skip"))


def test_without_budgets_nothing_is_summed(store: Store) -> None:
    assert store.ask(request(1)).budgets == []


def overlapping(store: Store) -> Store:
    if "dict" in str(store.identity).lower() or "variable" in str(store.identity).lower():
        pytest.skip("The Variable store refuses runs that overlap.")
    return store


@pytest.mark.parametrize("state", [State.NOT_NEEDED, State.NO_DATA])
def test_open_runs_count_as_those_that_trained(opens: Any, clock: Clock, state: State) -> None:
    """However many runs since then did not, and on whatever map index they did."""
    store = overlapping(opens())
    for n in (1, 2):
        ran(store, n, clock, 4000.0)
    for n in range(3, 13):
        joules, time_s = (None, None) if state is State.NOT_NEEDED else (0.0, 0.1)
        idle = report(32, energy_j=joules, time_s=time_s)
        store.tell(store.ask(asking(n, clock)).trial.key, state, idle)
        clock.t += DAY_S
    store.ask(asking(13, clock))
    question = asking(14, clock)
    found = store.ask(replace(question, origin=replace(question.origin, map_index=5)))
    assert (found.budgets[0].spent, found.budgets[0].committed) == (0.0, 4000.0)


def test_an_open_run_takes_a_usual_run_less_what_all_its_attempts_took(opens: Any, clock: Clock) -> None:
    """And nothing of a period that it did not begin in."""
    store = overlapping(opens())
    ran(store, 1, clock, 4000.0)
    first = store.ask(asking(2, clock)).trial
    store.tell(first.key, State.GIVEN_UP, report(first.batch_size, energy_j=1500.0))
    second = store.ask(asking(2, clock)).trial
    assert (second.key.attempt, second.origin) == (2, first.origin)
    store.heartbeat(second.key, report(second.batch_size, energy_j=500.0))
    found = store.ask(asking(3, clock)).budgets[0]
    assert (found.spent, found.committed) == (6000.0, 2000.0)
    clock.t += DAY_S
    found = store.ask(asking(4, clock)).budgets[0]
    assert (found.spent, found.committed) == (0.0, 0.0)


def test_what_a_run_takes_is_read_of_the_runs_source(store: Store, clock: Clock) -> None:
    def measured(source: str | None) -> list[int]:
        with store._open_log("d.train") as log:  # type: ignore[attr-defined]
            return [t.number for t in trials.measured(log.connection, log.job_id, source, 2, log.newest)]

    for n, source in enumerate(("simulated", "estimate", "simulated", "simulated", None), start=1):
        asked = store.ask(asking(n, clock))
        store.tell(asked.trial.key, State.CONVERGED, report(32, energy_source=source))
    store.ask(asking(6, clock))
    assert (measured("simulated"), measured("estimate"), measured(None)) == ([3, 4], [2], [5])


def test_open_runs_count_as_whole_ones(opens: Any, clock: Clock) -> None:
    """So runs that overlap overspend by one run at most."""
    store = overlapping(opens())
    for n in (1, 2):
        ran(store, n, clock, 4000.0)
    third = store.ask(asking(3, clock))
    assert (third.budgets[0].spent, third.budgets[0].committed) == (8000.0, 0.0)
    fourth = store.ask(asking(4, clock))
    assert (fourth.budgets[0].spent, fourth.budgets[0].committed) == (8000.0, 4000.0)
    assert len(fourth.trial.decision.attempts) == 1
    assert "A budget is used up" in fourth.trial.planned.why
