"""The table of levers, in words."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.plugin.answer_parts import Figure
from airflow_provider_zeus.plugin.text import words
from airflow_provider_zeus.plugin.text.saved_text import ShownSaving
from airflow_provider_zeus.plugin.views.dag_view import LeverColumn, lever_table
from airflow_provider_zeus.reports.levers import BATCH_SIZE, LIMIT, Lever


def column(name: str, figure: Callable[[float], Figure], *saved: Estimate) -> LeverColumn:
    """``saved``: by the batch size, by the limit, and by both."""
    levers = [
        Lever(name=lever, saved=each)
        for lever, each in zip((BATCH_SIZE, LIMIT), saved[:2], strict=True)
    ]
    return LeverColumn(ShownSaving(name, saved[2], figure), levers)


def test_a_row_for_each_lever_and_their_sum() -> None:
    why = Estimate.missing("nothing measures energy")
    open_ = Estimate(5000.0, -1000.0, 9000.0)
    hours = (
        Estimate(7200.0, 3600.0, 10_800.0),
        Estimate(-600.0, -600.0, -600.0),
        Estimate(6600.0, 3000.0, 10_200.0),
    )
    table = lever_table(
        [
            column("Energy", words.energy, why, why, why),
            column("Time", words.duration, *hours),
            column("Money", words.energy, Estimate(0.0, 0.0, 0.0), open_, open_),
        ]
    )
    assert table is not None
    assert table.columns == ["", "Time", "Money"], "a column of unknown figures says nothing"
    unclear = "not clear yet: 0.278 Wh lost to 2.5 Wh saved"
    assert table.rows == [
        ["Batch size", "saved 2 h 00 min (1 h 00 min to 3 h 00 min)", "0"],
        ["Power limit", "lost 10 min 00 s", unclear],
        ["Together", "saved 1 h 50 min (50 min 00 s to 2 h 50 min)", unclear],
    ]
    assert table.numeric == [False, True, True]


def test_no_table_where_nothing_was_saved_or_is_known() -> None:
    for found in (Estimate(0.0, 0.0, 0.0), Estimate.missing("no run yet")):
        assert lever_table([column("Energy", words.energy, found, found, found)]) is None
