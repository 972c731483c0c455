"""Tables of tasks: sums by source, the order of the graph, what is folded,
one line for a mapped task.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_zeus.model.job_ids import job_id_of_task
from airflow_provider_zeus.model.period_sum import PeriodSum
from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.plugin.text.factors import Factors
from airflow_provider_zeus.plugin.views import task_table
from airflow_provider_zeus.plugin.views.task_table import TaskTable, graph_order
from tests.unit.plugin.kit import trial

NO_FACTORS = Factors()
PRICED = Factors(price_per_kwh=0.5, currency="EUR", g_co2e_per_kwh=400.0)
ORDER = {"extract": 0, "train": 1, "load": 2}
WH_J = 3600.0


def task(number: int, name: str, **changes: Any) -> Trial:
    values = {"energy_j": 10 * WH_J, "time_s": 60.0, "energy_source": "rapl", **changes}
    return trial(number, "run1", task_id=name, job_id=f"d.{name}", **values)


def of_run(*trials: Trial, factors: Factors = NO_FACTORS) -> TaskTable:
    found = task_table.of_run(trials, ORDER, factors)
    assert found is not None
    return found


def names(table: TaskTable) -> list[str]:
    return [line.name for line in table.tasks]


def test_tasks_of_a_run_stand_in_the_order_of_the_graph_behind_their_sum() -> None:
    table = of_run(task(1, "load"), task(2, "late"), task(3, "extract"), task(4, "train"))
    assert names(table) == ["extract", "train", "load", "late"], "an unknown one comes last"
    (together,) = table.totals
    assert (together.name, together.energy.text, together.time.text) == (
        "All 4 tasks",
        "40 Wh",
        "4 min 00 s",
    )
    assert [line.share.text for line in table.tasks] == ["25 %"] * 4


def test_a_run_of_one_task_has_no_table() -> None:
    retried = [task(1, "train", try_number=1), task(2, "train", try_number=2)]
    assert task_table.of_run(retried, ORDER, NO_FACTORS) is None


def test_sources_are_never_added() -> None:
    gpu = task(2, "train", energy_j=30 * WH_J, energy_source="nvml_counter")
    silent = task(3, "load", energy_j=None, energy_source=None, time_s=5.0)
    table = of_run(task(1, "extract"), gpu, silent)
    assert [(line.source.text, line.energy.text, line.time.text) for line in table.totals] == [
        ("GPU counter", "30 Wh", "1 min 00 s"),
        ("CPU counter", "10 Wh", "1 min 00 s"),
        ("energy not measured", "–", "5 s"),
    ]
    assert [line.share.text for line in table.tasks] == ["100 %"] * 3
    assert [line.name for line in table.totals] == ["1 task"] * 3
    table = of_run(task(1, "extract"), task(2, "load"), silent)
    assert [line.name for line in table.totals] == ["2 tasks", "1 task"], "neither is all of them"


def test_a_task_of_two_sources_has_two_lines() -> None:
    other = task(2, "train", map_index=1, energy_source="estimate")
    table = of_run(task(1, "train", map_index=0), other)
    assert names(table) == ["train", "train"]
    assert [line.source.text for line in table.tasks] == [
        "CPU counter",
        "estimate: half to twice this",
    ]


def test_tasks_below_one_per_cent_are_folded_and_counted() -> None:
    small = [task(n, f"tiny{n}", energy_j=0.05 * WH_J) for n in range(2, 5)]
    table = of_run(task(1, "train"), *small)
    assert names(table) == ["train"]
    assert [line.name for line in table.small] == ["tiny2", "tiny3", "tiny4"]
    assert table.totals[0].energy.value == pytest.approx(10.15 * WH_J)


def test_fifty_mapped_tasks_are_one_line_with_their_sum() -> None:
    mapped = [task(n, "train", map_index=n, energy_j=2 * WH_J) for n in range(1, 50)]
    failed = task(50, "train", state=State.FAILED, map_index=50, energy_j=2 * WH_J)
    (line,) = of_run(*mapped, failed).tasks
    assert (line.name, line.runs, line.energy.text) == ("train, 50 mapped", 50, "0.1 kWh")
    assert line.state_text == "49 reached target, 1 failed"


def test_a_retry_counts_in_full_and_the_last_try_tells_the_state() -> None:
    first = task(1, "train", state=State.FAILED, try_number=1)
    table = of_run(first, task(2, "train", try_number=2), task(3, "load"))
    line = table.tasks[0]
    assert (line.runs, line.energy.text, line.state_text) == (1, "20 Wh", "reached target")


def test_what_is_missing_makes_a_sum_a_lower_bound() -> None:
    gone = task(2, "train", state=State.FAILED, map_index=1, energy_j=None)
    table = of_run(task(1, "train", map_index=0), gone, factors=PRICED)
    assert [line.energy.text for line in (*table.totals, *table.tasks)] == ["≥ 10 Wh"] * 2
    assert table.totals[0].money is not None
    assert table.totals[0].money.text.startswith("≥ ")


def test_a_task_that_nothing_measured_yet_has_a_line_without_figures() -> None:
    running = task(2, "train", state=State.RUNNING, time_s=None, energy_j=None, energy_source=None)
    line = of_run(task(1, "extract"), running).tasks[1]
    assert (line.name, line.energy.text, line.time.text) == ("train", "–", "–")
    assert line.state_text == "running"


def test_money_and_co2e_are_those_of_the_energy() -> None:
    table = of_run(task(1, "extract"), task(2, "train", energy_j=90 * WH_J), factors=PRICED)
    (together,) = table.totals
    assert together.money is not None
    assert together.co2e is not None
    assert (together.money.text, together.co2e.text) == ("0.05 EUR", "40 g CO₂e")


def test_money_of_an_estimate_says_so() -> None:
    tasks = [task(n, f"t{n}", energy_source="estimate") for n in (1, 2)]
    (together,) = of_run(*tasks, factors=PRICED).totals
    assert together.source.text == "estimate: half to twice this"
    for figure in (together.money, together.co2e):
        assert figure is not None
        assert figure.exact.endswith("; estimate: half to twice this")
    assert "estimate" not in together.time.exact


def period_sum(job_id: str, **changes: Any) -> PeriodSum:
    values: dict[str, Any] = {
        "dag_id": "d",
        "source": "rapl",
        "period": 0,
        "runs": 3,
        "energy_j": WH_J,
        "time_s": 10.0,
        "gpu_s": 10.0,
        "unknown": 0,
        "without_energy": 0,
        "paid": None,
        "paid_j": None,
        "currencies": (),
        "g_co2e": None,
        "g_co2e_j": None,
        "start_saved": None,
        "start_saved_g": None,
    }
    return PeriodSum(**{**values, "job_id": job_id, **changes})


def test_tasks_of_a_dag_stand_by_what_they_took() -> None:
    sums = [
        period_sum("d.small"),
        period_sum("d.large", energy_j=50 * WH_J),
        period_sum("d.silent", source=None, energy_j=None, time_s=900.0),
        period_sum("own name", energy_j=20 * WH_J, without_energy=1),
    ]
    table = task_table.of_dag(sums, "d", NO_FACTORS, "All tasks")
    assert names(table) == ["large", "own name", "small", "silent"]
    assert [line.job_id for line in table.tasks] == ["d.large", "own name", "d.small", "d.silent"]
    assert [line.runs for line in table.totals] == [9, 3]
    assert table.tasks[1].energy.text == "≥ 20 Wh"
    assert task_table.costliest(sums, ["d.new", "d.small", "d.large"]) == [
        "d.large",
        "d.small",
        "d.new",
    ]


@pytest.mark.parametrize(
    ("dag_id", "task_id"), [("d", "group.load"), ("my.dag", "load"), ("my.dag", "a.b.c")]
)
def test_a_task_of_a_group_has_the_name_that_its_dag_gives_it(dag_id: str, task_id: str) -> None:
    sums = [period_sum(job_id_of_task(dag_id, task_id))]
    assert names(task_table.of_dag(sums, dag_id, NO_FACTORS, "")) == [task_id]
    named = [period_sum("a name of its own")]
    assert names(task_table.of_dag(named, dag_id, NO_FACTORS, "")) == ["a name of its own"]


def test_a_dag_has_a_line_for_each_source() -> None:
    sums = [
        period_sum("d.*", period=0),
        period_sum("d.*", period=1, runs=1),
        period_sum("d.*", source="nvml_counter", energy_j=9 * WH_J),
    ]
    lines = task_table.dag_lines(sums, NO_FACTORS)
    assert [(line.source.text, line.runs, line.energy.text) for line in lines] == [
        ("GPU counter", 3, "9 Wh"),
        ("CPU counter", 4, "2 Wh"),
    ]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20))
def test_no_task_comes_before_one_that_it_waits_for(edges: list[tuple[int, int]]) -> None:
    after: dict[str, set[str]] = {f"t{n}": set() for n in range(8)}
    for low, high in edges:
        if low < high:
            after[f"t{low}"].add(f"t{high}")
    order = graph_order(after)
    assert order.keys() == after.keys()
    for before, following in after.items():
        assert all(order[before] < order[task] for task in following)


def test_a_graph_with_a_circle_ends() -> None:
    assert graph_order({"a": {"b"}, "b": {"a"}, "c": {"gone"}}) == {"c": 0, "gone": 1}
