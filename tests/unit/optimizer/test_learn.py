"""What a trial teaches that shows nothing of its batch size."""

from __future__ import annotations

from airflow_provider_zeus.model.trial import BATCH_SIZE
from tests.unit.optimizer.world import World, job_of

JOB_KG = job_of(16, 32, 64, default=32, policy="knowledge_gradient")


def test_a_run_that_did_not_use_its_batch_size_teaches_nothing() -> None:
    w = World(JOB_KG, {16: 20, 32: 10, 64: 8})
    w.add(32)
    known = w.belief
    w.add(64, reasons={BATCH_SIZE: "no step was told"})
    after = w.belief
    assert (after.converged, after.rates, after.seen) == (known.converged, known.rates, known.seen)
    assert after.recurrences == known.recurrences + 1
    assert [a.batch_size for a in w.decide().attempts] == [32], "nothing is tried after it"
    w.add(32)
    assert w.belief.newest[1] is False
