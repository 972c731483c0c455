"""The table of levers, in words."""

from __future__ import annotations

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.plugin.views.dag_view import lever_table
from airflow_provider_zeus.reports.levers import BATCH_SIZE, LIMIT, Lever


def each(batch_size: Estimate, limit: Estimate) -> list[Lever]:
    return [Lever(name=BATCH_SIZE, saved=batch_size), Lever(name=LIMIT, saved=limit)]


def test_a_row_for_each_lever_and_their_sum() -> None:
    why = Estimate.missing("nothing measures energy there")
    table = lever_table(
        {
            "energy": each(why, why),
            "time": each(Estimate(7200.0, 3600.0, 10_800.0), Estimate(-600.0, -600.0, -600.0)),
            "cost": each(Estimate(0.0, 0.0, 0.0), Estimate(5000.0, -1000.0, 9000.0)),
        },
        {"energy": why, "time": Estimate(6600.0, 3000.0, 10_200.0), "cost": Estimate(5000.0, -1000.0, 9000.0)},
        "J",
    )
    assert table is not None
    assert table.columns == ["", "Time", "Cost"], "a column of unknown figures says nothing"
    undecided = "undecided: 1 kJ lost to 9 kJ saved"
    assert table.rows == [
        ["Batch size", "saved 2 h 00 min (1 h 00 min to 3 h 00 min)", "0"],
        ["Power limit", "lost 10 min 00 s", undecided],
        ["Together", "saved 1 h 50 min (50 min 00 s to 2 h 50 min)", undecided],
    ]
    assert table.numeric == [False, True, True]


def test_no_table_where_nothing_was_saved_or_is_known() -> None:
    for found in (Estimate(0.0, 0.0, 0.0), Estimate.missing("no run yet")):
        levers = {name: each(found, found) for name in ("energy", "time", "cost")}
        assert lever_table(levers, dict.fromkeys(levers, found), "J") is None
