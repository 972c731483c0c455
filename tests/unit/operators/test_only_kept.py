"""Who reads only what the log keeps asks no service and keeps none from asking."""

from __future__ import annotations

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.operators.kept_series import kept_series
from airflow_provider_zeus.operators.only_kept import OnlyKept
from airflow_provider_zeus.signals.series import Series, Step, Unit
from airflow_provider_zeus.store.variables.store import VariableStore
from tests.unit.store.store_kit import Clock, DictPort

SERIES = Series.of(Unit.parse("g/kWh"), [Step(0.0, 3600.0, 100.0)])


def ask() -> Series:
    pytest.fail("the service is asked")


def test_what_is_kept_is_read_and_nothing_is_changed() -> None:
    store = VariableStore(DictPort(), now=Clock())
    with pytest.raises(FileNotFoundError):
        kept_series(OnlyKept(store), "s", ask)
    assert store.signal("s") == (None, True), "another caller is still to ask"
    store.keep_signal("s", SERIES.to_json())
    assert kept_series(OnlyKept(store), "s", ask) == SERIES


def test_a_log_that_cannot_be_read_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store = VariableStore(DictPort(), now=Clock())

    def broken(name: str) -> None:
        raise StoreError("gone")

    monkeypatch.setattr(store, "kept_signal", broken)
    with pytest.raises(OSError, match="gone"):
        kept_series(OnlyKept(store), "s", ask)
