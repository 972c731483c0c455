"""``read_log``: the columns of the export as lists, and the recipes of the document."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_zeus import StoreError, read_log
from airflow_provider_zeus.model.trial import Observation, State
from airflow_provider_zeus.reports.export_rows import COLUMNS
from airflow_provider_zeus.store.base import Report
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.cli.conftest import recur
from tests.unit.store.store_kit import request

DOCUMENT = Path(__file__).parents[3] / "docs" / "cli.md"


def test_the_columns_are_those_of_the_export(store: Store) -> None:
    recur(store, 1)
    key = store.ask(request(2)).trial.key
    store.tell(key, State.FAILED, Report(observation=Observation(time_s=3.0, reasons={"energy_j": "no source"})))
    found = read_log("d.train")
    assert tuple(found) == COLUMNS
    assert {len(column) for column in found.values()} == {2}
    assert (found["trial"], found["state"]) == ([1, 2], ["reached target", "failed"])
    assert (found["energy_j"][1], found["missing"]) == (None, [None, "energy_j: no source"])
    assert read_log() == found
    assert read_log("another.job")["trial"] == []


def test_without_a_log_it_says_so(home: Path) -> None:
    with pytest.raises(StoreError):
        read_log()
    assert not list(home.glob("zeus.db*")), "reading creates no log"


def test_the_recipes_of_the_document(store: Store) -> None:
    pandas = pytest.importorskip("pandas", reason="the recipes are for pandas")
    for n in (1, 2, 3):
        recur(store, n)
    (recipes,) = re.findall(r"### In Python.*?```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(recipes.replace("nightly.train", "d.train"), names)
    energy_j = sum(read_log("d.train")["energy_j"])
    assert names["weekly_kwh"].sum() == pytest.approx(energy_j / 3.6e6)
    assert set(names["needed"].index) == set(read_log("d.train")["batch_size"])
    assert isinstance(names["monthly_g"], pandas.Series)
