"""``airflow zeus worth``: what the last retrainings bought, or why that is not known."""

from __future__ import annotations

import json

import pytest

from airflow_provider_zeus.model.trial import State
from airflow_provider_zeus.store.sql.store import Store
from tests.unit.cli.conftest import Zeus, recur
from tests.unit.store.store_kit import report, request


def test_it_says_what_they_bought(zeus: Zeus, store: Store) -> None:
    for n in (1, 2, 3):
        asked = store.ask(request(n))
        store.tell(asked.trial.key, State.CONVERGED, report(32, served=0.7, metric=0.8))
    done = zeus("worth", "d.train")
    assert "The last 3 retrainings brought accuracy from 0.7 to 0.8" in done.out
    found = json.loads(zeus("worth", "d.train", "-o", "json").out)
    assert (found["runs"], found["gain"]["value"]) == (3, pytest.approx(0.1))


def test_where_nothing_tells_it_it_says_so(zeus: Zeus, store: Store) -> None:
    recur(store, 1)
    assert "no run reported how good the earlier model was on its data" in zeus("worth", "d.train").out
