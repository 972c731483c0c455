"""What rules and constants are worth: a patch reaches each user and is undone,
and figures by hand.
"""

from __future__ import annotations

import math
import pickle
import pkgutil
from pathlib import Path

import pytest

from airflow_provider_zeus import optimizer
from airflow_provider_zeus.optimizer.knowledge_gradient import (
    acquisition,
    epoch_cost,
    epochs,
    gp,
    policy,
)
from benchmarks.quality.case_set import Cases
from benchmarks.quality.rules_off import (
    CONSTANTS,
    KG,
    RULES,
    Constant,
    Outcome,
    Variant,
    outcome_of,
    patched,
    row_of,
)
from tests.unit.benchmarks.simulation.tiny import write


def test_a_patch_reaches_the_modules_that_import_the_constant_and_is_undone() -> None:
    with patched(acquisition, "HORIZON", 7.0):
        assert (acquisition.HORIZON, policy.HORIZON) == (7.0, 7.0)
    assert (acquisition.HORIZON, policy.HORIZON) == (30.0, 30.0)
    with patched(gp, "TREND_SD", 1.0):
        assert (gp.TREND_SD, epoch_cost.TREND_SD) == (1.0, 0.05), (
            "another constant of the same name"
        )
    with patched(epoch_cost, "LEVEL_SD", 1.0):
        assert (epoch_cost.LEVEL_SD, gp.LEVEL_SD, epochs.LEVEL_SD) == (1.0, 3.0, 3.0), (
            "the same value, too"
        )


def test_a_patch_is_undone_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), patched(acquisition, "HORIZON", 24.0):
        assert 1 / (policy.HORIZON - 24.0)
    assert (acquisition.HORIZON, policy.HORIZON) == (30.0, 30.0)


def test_a_patch_leaves_no_cached_figure_behind() -> None:
    sizes = (16, 32, 64)
    arguments = (sizes, frozenset(sizes), frozenset({16}))
    near = acquisition.in_reach(*arguments)
    assert near == (True, True, False)
    with patched(acquisition, "OCTAVES", 2.0):
        assert acquisition.in_reach(*arguments) == (True, True, True)
    assert acquisition.in_reach(*arguments) == near


def test_each_constant_is_there_and_is_not_off() -> None:
    for constant in CONSTANTS:
        value = pkgutil.resolve_name(f"{optimizer.__name__}.{constant.module}.{constant.name}")
        assert value != constant.off, constant.name


FEW = ("pairs",)


def test_replays_are_equal_after_those_with_another_value(tmp_path: Path) -> None:
    cases = Cases(write(tmp_path), seeds=1, every=1000)
    before = outcome_of(Variant(cases, FEW))
    horizon = outcome_of(
        Variant(cases, FEW, Constant("knowledge_gradient.acquisition", "HORIZON", 1.5))
    )
    hard = outcome_of(Variant(cases, FEW, Constant("belief", "TARGET_IS_NEW", 2.5)))
    assert horizon.decisions != before.decisions
    assert hard == before, "sentences alone"
    assert outcome_of(Variant(cases, FEW)) == before


def test_a_rule_that_is_off_is_on_again_afterwards(tmp_path: Path) -> None:
    cases = Cases(write(tmp_path), seeds=1, every=1000)
    before = outcome_of(Variant(cases, FEW))
    assert pickle.loads(pickle.dumps(RULES)) == RULES, "each goes to a process of its own"
    found = {rule.name: outcome_of(Variant(cases, FEW, rule)).decisions for rule in RULES}
    assert found["the power drawn"] != before.decisions
    now = [pkgutil.resolve_name(f"{KG}.{rule.path}") for rule in RULES]
    assert not {*now} & {rule.off for rule in RULES}
    assert outcome_of(Variant(cases, FEW)) == before


def test_cells_by_hand() -> None:
    now = Outcome({"a": [1.0, 2.0], "b": [5.0]}, 3, "now")
    then = Outcome({"a": [1.0, 2.0 * math.exp(0.1)], "b": [5.0]}, 1, "then")
    row = row_of("without HORIZON", now, then)
    assert row == [
        "without HORIZON",
        "+3.33±14.34 (+10)",
        "+5.00±63.53 (+10)",
        "+0.00±0.00 (+0)",
        "-2",
    ]
    assert row_of("without HORIZON", now, now)[1:] == ["=", "=", "=", "="]
