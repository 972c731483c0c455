"""``benchmarks.constants``: every constant is listed, a patch reaches each user and is undone, figures by hand."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import numpy as np
import pytest

from airflow_provider_zeus import optimizer
from airflow_provider_zeus.optimizer import drift, learn
from airflow_provider_zeus.optimizer.knowledge_gradient import (
    acquisition,
    epoch_cost,
    gp,
    policy,
    slice_filter,
)
from benchmarks import constants
from benchmarks.constants import CONSTANTS, DECIDING, DERIVED, WORDS, Constant, Outcome, Variant, outcome_of, patched
from tests.unit.simulation.tiny import write

HEAD = "slice,batch_size,seed,epochs,s_per_epoch"


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
        assert (epoch_cost.LEVEL_SD, gp.LEVEL_SD, slice_filter.LEVEL_SD) == (1.0, 3.0, 3.0), "the same value, too"


def test_a_patch_reaches_what_is_computed_at_import() -> None:
    before, noise = slice_filter.DIFFICULTY.copy(), constant("knowledge_gradient.slice_filter", "NOISE_SDS")
    with patched(noise, noise.scaled(2.0)):
        assert slice_filter.NOISE.max() == pytest.approx(0.8**2)
        assert (before == slice_filter.DIFFICULTY).all()
    assert slice_filter.NOISE.max() == pytest.approx(0.4**2)
    assert str(noise) == "4 points, 0.1 to 0.4"


def test_a_patch_is_undone_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), patched(constant("drift", "SURPRISES"), 16):
        assert 1 / (learn.SURPRISES - 16)
    assert (drift.SURPRISES, learn.SURPRISES) == (8, 8)


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
        ("knowledge_gradient.decision_context", "AUDIT_GAP", 2, 10),
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


def test_replays_with_present_values_are_equal_after_scaled_ones(tmp_path: Path) -> None:
    write(tmp_path)
    base = Variant(tmp_path, (), (), None, 2, "knowledge_gradient")
    before = outcome_of(base)
    horizon = outcome_of(base._replace(constant=constant("knowledge_gradient.acquisition", "HORIZON"), factor=0.05))
    hard = outcome_of(base._replace(constant=constant("knowledge_gradient.policy", "HARD"), factor=2.0))
    assert horizon.decisions != before.decisions
    assert hard == before, "sentences alone"
    assert outcome_of(base) == before


def test_cells_by_hand() -> None:
    outcomes: dict[tuple[Constant | str, float], Outcome] = {
        (policy, 1.0): Outcome([1.0, 2.0], [3.0, 4.0], [0.0, 0.0], "now") for policy in ("zeus", "knowledge_gradient")
    }
    for c in CONSTANTS:
        outcomes[c, 0.5] = outcomes[c.policy, 1.0]
        outcomes[c, 2.0] = Outcome([1.5, 2.5], [2.0, 4.0], [np.log(1.1)] * 2, "then")
    first = constants.rows_of(DECIDING, outcomes, series=True)[0]
    assert first[:3] == ["`SLOPE`", "`gp`", "0.3"]
    assert first[5:] == ["=", "=", "=", "+0.50 ± 0.00", "-0.50 ± 0.98", "+10.0 ± 0.0 %", "halved"]
    first = constants.rows_of(DECIDING, outcomes, series=False)[0]
    assert first[5:] == ["=", "=", "+0.50 ± 0.00", "-0.50 ± 0.98", "halved"]


@pytest.mark.nightly
def test_the_command_prints_one_row_per_constant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    series = tmp_path / "series"
    series.mkdir()
    (series / "toy.csv").write_text("\n".join([HEAD, "0,16,0,2,1.0", "0,32,0,,0.5", "1,16,0,3,1.0", "1,32,0,3,0.5"]))
    arguments = ["--traces", str(tmp_path), "--series", str(series), "--seeds", "1", "--jobs", "1"]
    assert constants.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "1 pairs and 2 series" in lines[0]
    assert len([line for line in lines if line.startswith("| `")]) == len(CONSTANTS)
    assert {line.count(" | ") for line in lines if line.startswith("| `")} == {11}


def test_what_cannot_be_replayed_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ZEUS_TRACES", raising=False)
    assert constants.main([]) == 2
    assert "ZEUS_TRACES" in capsys.readouterr().err
    write(tmp_path)
    (tmp_path / "empty").mkdir()
    assert constants.main(["--traces", str(tmp_path), "--series", str(tmp_path / "empty")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
