"""What rules and constants are worth: a patch reaches each user and is undone, and figures by hand."""

from __future__ import annotations

import math
import pickle
import pkgutil
from pathlib import Path

import numpy as np
import pytest

from airflow_provider_zeus import optimizer
from airflow_provider_zeus.optimizer.knowledge_gradient import (
    acquisition,
    epoch_cost,
    epochs,
    gp,
    policy,
    slice_filter,
)
from benchmarks.quality import rules_off
from benchmarks.quality.case_set import Cases
from benchmarks.quality.rules_off import CONSTANTS, KG, RULES, Constant, Outcome, Variant, outcome_of, patched, row_of
from tests.unit.benchmarks.simulation.tiny import write


def test_a_patch_reaches_the_modules_that_import_the_constant_and_is_undone() -> None:
    with patched(acquisition, "HORIZON", 7.0):
        assert (acquisition.HORIZON, policy.HORIZON) == (7.0, 7.0)
    assert (acquisition.HORIZON, policy.HORIZON) == (30.0, 30.0)
    with patched(gp, "TREND_SD", 1.0):
        assert (gp.TREND_SD, epoch_cost.TREND_SD) == (1.0, 0.05), "another constant of the same name"
    with patched(epoch_cost, "LEVEL_SD", 1.0):
        assert (epoch_cost.LEVEL_SD, gp.LEVEL_SD, epochs.LEVEL_SD) == (1.0, 3.0, 3.0), "the same value, too"


def test_a_patch_reaches_what_is_computed_at_import() -> None:
    before = slice_filter.DIFFICULTY.copy()
    noise_sds = tuple(2.0 * sd for sd in slice_filter.NOISE_SDS)
    with patched(slice_filter, "NOISE_SDS", noise_sds):
        assert slice_filter.NOISE.max() == pytest.approx(0.66**2)
        assert (before == slice_filter.DIFFICULTY).all()
    assert slice_filter.NOISE.max() == pytest.approx(0.33**2)


def test_a_patch_is_undone_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), patched(slice_filter, "KEPT", 24):
        assert 1 / (epochs.KEPT - 24)
    assert (slice_filter.KEPT, epochs.KEPT) == (12, 12)


def test_a_patch_leaves_no_cached_figure_behind() -> None:
    sizes = (16, 32, 64)
    arguments = (sizes, frozenset(sizes), frozenset({16}))
    before = acquisition.log_factors_after(*arguments).copy()
    with patched(acquisition, "BEYOND_FACTOR", 5.0):
        assert acquisition.log_factors_after(*arguments)[2, 1] == pytest.approx(np.log(5.0))
    assert (acquisition.log_factors_after(*arguments) == before).all()


def test_each_constant_is_there_and_is_not_off() -> None:
    for constant in CONSTANTS:
        value = pkgutil.resolve_name(f"{optimizer.__name__}.{constant.module}.{constant.name}")
        assert value != constant.off, constant.name


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pairs alone."""
    of_all = rules_off.recurring
    monkeypatch.setattr(rules_off, "recurring", lambda cases: {"pairs": of_all(cases)["pairs"]})


@pytest.mark.usefixtures("few")
def test_replays_are_equal_after_those_with_another_value(tmp_path: Path) -> None:
    cases = Cases(write(tmp_path), seeds=1, every=1000)
    before = outcome_of(Variant(cases))
    horizon = outcome_of(Variant(cases, Constant("knowledge_gradient.acquisition", "HORIZON", 1.5)))
    hard = outcome_of(Variant(cases, Constant("knowledge_gradient.policy", "HARD", 2.5)))
    assert horizon.decisions != before.decisions
    assert hard == before, "sentences alone"
    assert outcome_of(Variant(cases)) == before


@pytest.mark.usefixtures("few")
def test_a_rule_that_is_off_is_on_again_afterwards(tmp_path: Path) -> None:
    cases = Cases(write(tmp_path), seeds=1, every=1000)
    before = outcome_of(Variant(cases))
    assert pickle.loads(pickle.dumps(RULES)) == RULES, "each goes to a process of its own"
    found = {rule.name: outcome_of(Variant(cases, rule)).decisions for rule in RULES}
    assert found["the power drawn"] != before.decisions
    now = [pkgutil.resolve_name(f"{KG}.{rule.path}") for rule in RULES]
    assert not {*now} & {rule.off for rule in RULES}
    assert outcome_of(Variant(cases)) == before


def test_cells_by_hand() -> None:
    now = Outcome({"a": [1.0, 2.0], "b": [5.0]}, 3, "now")
    then = Outcome({"a": [1.0, 2.0 * math.exp(0.1)], "b": [5.0]}, 1, "then")
    row = row_of("without CAUTION", now, then)
    assert row == ["without CAUTION", "+5.00 ± 63.53 (+10)", "+0.00 ± 0.00 (+0)", "-2"]
    assert row_of("without CAUTION", now, now)[1:] == ["=", "=", "="]
