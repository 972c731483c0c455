"""The chart of quality in service by start."""

from __future__ import annotations

from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.optimizer.starts import Served
from airflow_provider_zeus.plugin.charts.dag_belief import service


def test_each_start_has_a_bar_and_one_that_is_out_says_so() -> None:
    served = [Served(n, Start.WARM, 0.5) for n in range(4)] + [
        Served(n, Start.COLD, 0.0) for n in range(3)
    ]
    chart = service(served)
    assert chart.table is not None
    assert chart.table.rows == [["cold", "1.000", "3", "used"], ["warm", "1.649", "4", "not used"]]
    assert "warm 1.649 (4 runs)" in chart.text
