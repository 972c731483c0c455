"""``benchmarks.learn`` times what it says: beliefs that nothing was derived from,
no cache filled, every history.
"""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_zeus.model.job_checks import POLICIES
from airflow_provider_zeus.model.trial import Phase
from airflow_provider_zeus.optimizer.knowledge_gradient import epochs, gp, slice_filter
from airflow_provider_zeus.optimizer.situation import Situation
from benchmarks import learn


@pytest.mark.parametrize("policy", POLICIES)
def test_histories_have_explored_and_sample(policy: str) -> None:
    job = learn.job_with(4, policy)
    found = dict(learn.histories(job, (0, 3, 30)))
    assert [belief.newest[0] for belief in found.values()] == [0, 3, 30]
    assert {b for _, b, _ in found[30].converged} == set(job.batch_sizes)
    phase = learn.choose(Situation(job, found[30], device=learn.DEVICE)).attempts[0].phase
    assert phase is (Phase.SAMPLE if policy == "zeus" else Phase.INCUMBENT), "exploration is over"


def test_each_timed_decision_learns_the_epochs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn, "CHOICES", 5)
    caches: list[int] = []

    def counted(*arguments: Any) -> Any:
        caches.append(gp.prior.cache_info().currsize)
        return slice_filter.mixed(*arguments)

    monkeypatch.setattr(epochs, "mixed", counted)
    job = learn.job_with(4, "knowledge_gradient")
    (_, belief), *_ = learn.histories(job, (20,))
    caches.clear()
    assert learn.choose_us(job, belief) > 0
    assert len(caches) == 6, "the first one imports"
    assert set(caches[1:]) == {1}, "it was empty before: the model has just asked for its prior"


def test_it_prints_every_history_and_says_what_is_too_slow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {
        "TRIALS": 50,
        "CHOICES": 3,
        "HISTORIES": (0, 10),
        "CHOOSE_AIM_US": 0.0,
    }.items():
        monkeypatch.setattr(learn, name, value)
    with pytest.raises(SystemExit, match="choose takes"):
        learn.main([])
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[3:]]
    assert lines == [[policy, count] for policy in POLICIES for count in ("0", "10")]
