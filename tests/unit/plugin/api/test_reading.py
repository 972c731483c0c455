"""Values that the pages keep for a while, and results that the log does not have yet."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Hashable
from pathlib import Path

import pytest

from airflow_provider_zeus.errors import StoreError
from airflow_provider_zeus.model.trial import State, TrialKey
from airflow_provider_zeus.plugin.api import reading
from airflow_provider_zeus.plugin.api.reading import LruCache
from airflow_provider_zeus.store.pending import pending_key, remember
from tests.unit.store.store_kit import DictPort, began_alone, report


def test_a_value_is_kept_and_found_while_no_other_thread_does() -> None:
    free: list[bool] = []

    def look() -> None:
        free.append(kept._lock.acquire(blocking=False))
        if free[-1]:
            kept._lock.release()

    class Values(OrderedDict[Hashable, int]):
        def __setitem__(self, key: Hashable, value: int) -> None:
            look()
            super().__setitem__(key, value)

        def __contains__(self, key: object) -> bool:
            look()
            return super().__contains__(key)

    class Kept(LruCache[int]):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "_most" and hasattr(self, "_lock"):
                look()
            super().__setattr__(name, value)

    kept = Kept(1)
    kept._values = Values()
    kept.put("a", 1)
    kept.hold(2)
    kept.put("b", 2)
    assert kept.get("a", lambda: 3) == 1
    assert free == [False] * 4


# --- results that the log does not have yet


class Variables(DictPort):
    """``broken``: a key whose value cannot be read, since it was encrypted with another key."""

    broken = ""

    def get(self, key: str) -> str | None:
        if key == self.broken:
            raise StoreError("InvalidToken")
        return super().get(key)


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Variables:
    port = Variables()
    monkeypatch.setattr(reading, "AirflowVariables", lambda: port)
    monkeypatch.setattr(reading, "state_dir", lambda: tmp_path)
    return port


def keep(port: DictPort | None, number: int, folder: Path | None = None, earlier: int = 0) -> str:
    trial = began_alone(number, opened_at=1.0)
    return remember(
        port,  # type: ignore[arg-type]
        trial.key,
        State.CONVERGED,
        report(),
        "d.train",
        trial=trial,
        state_dir=folder,
        earlier=earlier,
    )


def found() -> dict[TrialKey, str]:
    missing = reading.missing_trials(lambda origin: origin.dag_id == "d")
    return {key: place for key, (_, place) in missing.items()}


def test_the_end_of_another_start_has_its_place_on_the_page(
    variables: Variables, tmp_path: Path
) -> None:
    """The end of the first start was lost, or is stored by now."""
    trials = [began_alone(number, opened_at=1.0) for number in (1, 2, 3)]
    in_variable = keep(variables, 1, earlier=1)
    keep(None, 2, tmp_path, earlier=2)
    assert reading.pending(trials) == {
        trials[0].key: in_variable,
        trials[1].key: "file zeus-untold-ti-2-1-3.json in [zeus] state_dir",
    }


def test_a_variable_that_cannot_be_read_hides_no_other(variables: Variables) -> None:
    places = [keep(variables, number) for number in (1, 2, 3)]
    variables.broken = pending_key(TrialKey("ti-2"))
    assert found() == {TrialKey("ti-1"): places[0], TrialKey("ti-3"): places[2]}


@pytest.mark.parametrize("kind", ["variables", "files"])
def test_of_many_the_newest_are_shown_with_a_word(
    kind: str, variables: Variables, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = variables if kind == "variables" else None
    for number in range(1000, 1200):
        keep(port, number, tmp_path)
    assert len(found()) == 200
    assert caplog.records == []
    keep(port, 1200, tmp_path)
    with caplog.at_level(logging.WARNING):
        shown = found()
    assert {*shown} == {TrialKey(f"ti-{number}") for number in range(1001, 1201)}
    assert "zeus repair" in caplog.text
