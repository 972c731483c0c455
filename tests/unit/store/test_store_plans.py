"""A log of thousands of trials is not read through: the plans of both databases, after their own statistics."""

from __future__ import annotations

import pytest

from airflow_provider_zeus.store.sql.store import SqlStore
from benchmarks.cost.store_log import checkpoint, explained, fill, scans, use

JOBS, TRIALS = 40, 150


@pytest.fixture(params=["sqlite_url", "database"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def test_no_question_and_no_page_reads_the_whole_table_of_trials(url: str) -> None:
    fill(url, (f"job{j:02d}" for j in range(JOBS)), TRIALS)
    checkpoint(url, "job07")
    store = SqlStore(url)
    log = store.trials("job07")
    assert [(t.number, t.told_seq, t.key.ti_id) for t in log] == [(n, n, f"job07-{n}") for n in range(1, TRIALS + 1)]
    with explained(url) as plans:
        use(store, "job07", TRIALS)
        scans_of_questions_and_pages = scans(plans)
        seen = " ".join(plans)
        with store._engine.connect() as connection:
            connection.exec_driver_sql("SELECT count(*) FROM zeus_trial WHERE metric > 2").all()
        assert scans_of_questions_and_pages == []
        assert len(scans(plans)) == 1, "a scan is recognised"
    assert len(plans) >= 15
    for words in (
        "UPDATE zeus_trial",
        "GROUP BY zeus_trial.run_id",
        "batch_size",
        "zeus_trial_power",
        "zeus_checkpoint",
    ):
        assert words in seen
    assert len(store.trials("job07")) == TRIALS + 1
    store.close()
