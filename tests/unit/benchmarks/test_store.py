"""``benchmarks.store``, its three parts on small logs."""

from __future__ import annotations

import pytest

from benchmarks import store
from benchmarks.cost.store_load import Load
from benchmarks.store import Size


@pytest.mark.slow
def test_each_part_tells_its_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LOADS", [Load("one job", 1, 20)])
    monkeypatch.setattr(store, "SCALES", {"two jobs": (Size(1, 50), Size(2, 60))})
    monkeypatch.setattr(store, "CHOSEN", Size(2, 50))
    monkeypatch.setattr(store, "OUTSIDE_TASKS", 10)
    monkeypatch.setattr(store, "PAGES", 2)
    monkeypatch.setattr(store, "ROUNDS", 6)
    monkeypatch.setattr(store, "MOST", 100.0)  # so short a log says nothing of a long one
    sizes = ["--processes", "2", "--trials", "60", "--outside", "100"]
    assert store.main(["--backends", "sqlite", *sizes]) == 0
    said = capsys.readouterr().out
    for figure in (
        "20 trials from 2 processes",
        "100 rows of 10 tasks measured from outside",
        "nothing lost",
        "ratio ",
        ": met",
        "a heartbeat meanwhile",
    ):
        assert figure in said, figure


@pytest.mark.slow
def test_a_long_log_that_takes_too_long_is_an_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SCALES", {"two jobs": (Size(1, 50), Size(2, 60))})
    monkeypatch.setattr(store, "ROUNDS", 2)
    monkeypatch.setattr(store, "MOST", 0.0)
    assert store.main(["--backends", "sqlite", "--only", "scale"]) == 1
