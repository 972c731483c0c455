"""What is kept of the jobs of the generator."""

from __future__ import annotations

import math

import pytest

from benchmarks.quality import troubles
from benchmarks.quality.made_jobs import TROUBLES, made_job
from benchmarks.quality.slice_trainings import replay
from benchmarks.quality.troubles import Cell, cells, play, run_all
from benchmarks.replays import OURS

NOTHING = Cell("nothing", "small")


def test_every_trouble_is_played_from_each_of_its_defaults() -> None:
    assert len(set(cells())) == sum(len(trouble.defaults) for trouble in TROUBLES.values())
    assert NOTHING.name == "nothing, small"


def test_a_job_by_hand() -> None:
    job = made_job("nothing", "small", 1)
    truths = job.series.truths(job.default)
    log = replay(job.series.weeks, truths, job.series.job(job.default, OURS), 1)
    spent = math.fsum(run.cost for runs in log.runs for run in runs)
    fixed = {
        b: truths[0].arms[b].epoch.cost * sum(week.epochs[b][0] for week in job.series.weeks)
        for b in (job.default, job.best)
    }
    found = play((NOTHING, 1))
    assert found.vs_default == pytest.approx(spent / fixed[job.default])
    assert found.vs_best == pytest.approx(spent / fixed[job.best])
    assert found.below_target == 0
    assert found.overdraft == log.overdraft()


def test_a_fixed_size_that_misses_pays_for_each_run_that_reaches() -> None:
    moved = Cell("moved at 20", "small")
    job = made_job(moved.trouble, moved.default, 506)
    needs = [week.epochs[job.best][0] for week in job.series.weeks]
    reached = sum(map(math.isfinite, needs))
    assert 0 < reached < len(needs) / 2, "it misses on most slices"
    truths = job.series.truths(job.default)
    log = replay(job.series.weeks, truths, job.series.job(job.default, OURS), 506)
    spent = math.fsum(run.cost for runs in log.runs for run in runs)
    found = play((moved, 506))
    epochs = math.fsum(min(need, job.series.max_epochs) for need in needs)
    fixed = truths[0].arms[job.best].epoch.cost * epochs / reached
    ours = spent / (len(needs) - found.below_target)
    assert found.vs_best == pytest.approx(ours / fixed)


def test_a_job_is_stuck_where_its_last_runs_are_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not play((NOTHING, 1)).stuck
    monkeypatch.setattr(troubles, "cells", lambda: [NOTHING])
    monkeypatch.setattr(troubles, "STUCK", 0.5)
    found = run_all(range(1, 3), 1)
    assert [one.stuck for one in found[NOTHING]] == [True, True]
