"""``benchmarks.constants``: every constant is listed, a patch reaches each user and is undone, figures by hand."""

from __future__ import annotations

import ast
import importlib
import math
import pickle
import pkgutil
import re
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
from benchmarks import constants
from benchmarks.constants import (
    CONSTANTS,
    DECIDING,
    DERIVED,
    OFF,
    RULES,
    WORDS,
    Constant,
    Outcome,
    Variant,
    outcome_of,
    patched,
    row_of,
    variants_of,
)
from benchmarks.quality.case_set import Cases
from tests.unit.benchmarks.simulation.tiny import write

CAUTION = ("knowledge_gradient.acquisition", "CAUTION")


def constant(module: str, name: str) -> Constant:
    (found,) = [c for c in CONSTANTS if (c.module, c.name) == (module, name)]
    return found


def numeric(value: object) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(map(numeric, value))
    return isinstance(value, int | float | np.ndarray) and not isinstance(value, bool)


def numeric_constants() -> set[tuple[str, str]]:
    """(module below optimizer, name) of each upper-case name that a module assigns a number or numbers."""
    (root,) = optimizer.__path__
    found = set()
    for path in sorted(Path(root).rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        if path.stem == "__init__":
            continue
        values = vars(importlib.import_module(f"{optimizer.__name__}.{module}"))
        for node in ast.parse(path.read_text()).body:
            targets = list(node.targets) if isinstance(node, ast.Assign) else []
            targets += [node.target] if isinstance(node, ast.AnnAssign) else []
            names = {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
            found |= {(module, n) for n in names if re.fullmatch(r"_?[A-Z][A-Z0-9_]*", n) and numeric(values[n])}
    return found - {("knowledge_gradient.slice_filter", n) for n in DERIVED} - WORDS


def test_every_numeric_constant_of_the_optimizer_is_listed_once() -> None:
    assert numeric_constants() == {(c.module, c.name) for c in CONSTANTS}
    assert len({(c.module, c.name) for c in CONSTANTS}) == len(CONSTANTS)
    assert len(DECIDING) <= 30


def test_a_patch_reaches_the_modules_that_import_the_constant_and_is_undone() -> None:
    with patched(constant("knowledge_gradient.acquisition", "HORIZON"), 7.0):
        assert (acquisition.HORIZON, policy.HORIZON) == (7.0, 7.0)
    assert (acquisition.HORIZON, policy.HORIZON) == (30.0, 30.0)
    with patched(constant("knowledge_gradient.gp", "TREND_SD"), 1.0):
        assert (gp.TREND_SD, epoch_cost.TREND_SD) == (1.0, 0.05), "another constant of the same name"
    with patched(constant("knowledge_gradient.epoch_cost", "LEVEL_SD"), 1.0):
        assert (epoch_cost.LEVEL_SD, gp.LEVEL_SD, epochs.LEVEL_SD) == (1.0, 3.0, 3.0), "the same value, too"


def test_a_patch_reaches_what_is_computed_at_import() -> None:
    before, noise = slice_filter.DIFFICULTY.copy(), constant("knowledge_gradient.slice_filter", "NOISE_SDS")
    with patched(noise, noise.scaled(2.0)):
        assert slice_filter.NOISE.max() == pytest.approx(0.66**2)
        assert (before == slice_filter.DIFFICULTY).all()
    assert slice_filter.NOISE.max() == pytest.approx(0.33**2)
    assert str(noise) == "4 points, 0.12 to 0.33"


def test_a_patch_is_undone_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), patched(constant("knowledge_gradient.slice_filter", "KEPT"), 24):
        assert 1 / (epochs.KEPT - 24)
    assert (slice_filter.KEPT, epochs.KEPT) == (12, 12)


def test_a_patch_leaves_no_cached_figure_behind() -> None:
    sizes = (16, 32, 64)
    arguments = (sizes, frozenset(sizes), frozenset({16}))
    before = acquisition.log_factors_after(*arguments).copy()
    with patched(constant("knowledge_gradient.acquisition", "BEYOND_FACTOR"), 5.0):
        assert acquisition.log_factors_after(*arguments)[2, 1] == pytest.approx(np.log(5.0))
    assert (acquisition.log_factors_after(*arguments) == before).all()


@pytest.mark.parametrize(
    ("module", "name", "halved", "doubled"),
    [
        ("knowledge_gradient.acquisition", "HORIZON", 15.0, 60.0),
        ("knowledge_gradient.policy", "AUDIT_GAP", 2, 10),
        ("knowledge_gradient.epoch_cost", "MAX_WORK", 0.475, 0.99),
        ("thompson", "ROUNDS", 1, 4),
    ],
)
def test_scaled_values(module: str, name: str, halved: float, doubled: float) -> None:
    assert [constant(module, name).scaled(factor) for factor in (0.5, 2.0)] == [halved, doubled]


def test_an_integer_stays_at_least_one() -> None:
    assert constant("thompson", "ROUNDS").scaled(0.1) == 1


def test_a_scaled_grid_has_its_own_probabilities() -> None:
    grid = constant("knowledge_gradient.acquisition", "_OUTCOMES").scaled(0.5)
    assert isinstance(grid, acquisition.NormalGrid)
    assert (grid.z[0], grid.z[-1], grid.p.sum()) == (-1.5, 1.5, pytest.approx(1.0))
    assert str(constant("knowledge_gradient.epoch_cost", "_R_GRID")) == "33 points, -4 to 4"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pairs alone."""
    of_all = constants.recurring
    monkeypatch.setattr(constants, "recurring", lambda cases: {"pairs": of_all(cases)["pairs"]})


@pytest.mark.usefixtures("few")
def test_replays_with_present_values_are_equal_after_scaled_ones(tmp_path: Path) -> None:
    base = Variant(Cases(write(tmp_path), seeds=1, every=1000), "knowledge_gradient")
    before = outcome_of(base)
    horizon = outcome_of(base._replace(constant=constant("knowledge_gradient.acquisition", "HORIZON"), value=0.05))
    hard = outcome_of(base._replace(constant=constant("knowledge_gradient.policy", "HARD"), value=2.0))
    assert horizon.decisions != before.decisions
    assert hard == before, "sentences alone"
    assert outcome_of(base) == before


@pytest.mark.usefixtures("few")
def test_a_rule_that_is_off_is_on_again_afterwards(tmp_path: Path) -> None:
    base = Variant(Cases(write(tmp_path), seeds=1, every=1000), "knowledge_gradient")
    before = outcome_of(base)
    assert pickle.loads(pickle.dumps(RULES)) == RULES, "each goes to a process of its own"
    found = {rule.name: outcome_of(base._replace(constant=rule, value=OFF)).decisions for rule in RULES}
    assert found["loads"] != before.decisions
    now = [pkgutil.resolve_name(f"{optimizer.__name__}.knowledge_gradient.{rule.path}") for rule in RULES]
    assert not {*now} & {rule.off for rule in RULES}
    assert outcome_of(base) == before


def test_each_constant_is_halved_and_doubled_and_off_where_that_means_something(tmp_path: Path) -> None:
    """What it is now comes first, since the rows are told against it."""
    found = variants_of(Cases(tmp_path), [*RULES, constant("thompson", "ROUNDS"), constant(*CAUTION)])
    assert [(v.policy, v.value) for v in found[:2]] == [("knowledge_gradient", 1.0), ("zeus", 1.0)]
    assert [v.value for v in found[2:]] == [OFF] * (len(RULES) + 1) + [0.5, 2.0] * 2


def test_cells_by_hand() -> None:
    now = Outcome({"a": [1.0, 2.0], "b": [5.0]}, 3, "now")
    then = Outcome({"a": [1.0, 2.0 * math.exp(0.1)], "b": [5.0]}, 1, "then")
    variant = Variant(Cases(Path()), "knowledge_gradient", constant(*CAUTION), OFF)
    row = row_of(variant, now, then)
    assert (row[0], row[2]) == (f"`CAUTION` {constant(*CAUTION)}", "off")
    assert row[3:] == ["+5.00 ± 63.53 (+10)", "+0.00 ± 0.00 (+0)", "-2"]
    assert row_of(variant, now, now)[3:] == ["=", "=", "="]
