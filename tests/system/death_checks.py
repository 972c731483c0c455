"""What every cell of the kill matrices asks of the log and of the cost page."""

from __future__ import annotations

from functools import reduce

import pytest

from airflow_provider_zeus.model.trial import State, Trial
from airflow_provider_zeus.optimizer.learn import learn
from airflow_provider_zeus.optimizer.policy import prior
from airflow_provider_zeus.plugin.views.costs import rows_of
from airflow_provider_zeus.store.sql.checkpoints import belief_of
from airflow_provider_zeus.store.sql.engine import transaction
from airflow_provider_zeus.store.sql.store import SqlStore
from tests.system.death_training import JOB


def the_page_shows(own: list[Trial]) -> None:
    """The cost page has the run in one row: its state,
    and its energy only where all of it is known.
    """
    if not own:
        return
    (row,) = rows_of(own, JOB)
    known = [t.observation.energy_j for t in own]
    assert row.state == own[-1].state.value
    assert row.energy.value == (None if None in known else pytest.approx(sum(filter(None, known))))


def the_log_is_whole(store: SqlStore, job_id: str, count: int) -> None:
    """So many trials, numbered without a gap, each closed; the belief is what they teach,
    the dead no epochs.
    """
    trials = store.trials(job_id)
    with transaction(store._engine) as connection:
        belief = belief_of(connection, job_id, prior(JOB), oldest_open=None)
    assert [t.number for t in trials] == list(range(1, count + 1))
    told = [t.told_seq for t in trials]
    assert None not in told, "each is closed"
    assert len(set(told)) == len(told), "and no two at once"
    assert belief == reduce(learn, trials, prior(JOB))
    assert (belief.too_large, belief.stopped) == (frozenset(), ())
    reached = [(t.number, 32, 3.0) for t in trials if t.state is State.CONVERGED]
    assert list(belief.converged) == reached[-JOB.window :]
