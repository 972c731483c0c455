"""The figures of lineage and asset events: each with unit and source,
what is not known absent, all of it small.
"""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import airflow_provider_zeus
from airflow_provider_zeus.model.estimate import Estimate
from airflow_provider_zeus.model.trial import Observation, State
from airflow_provider_zeus.reports.limit_profiles import LimitSaving
from airflow_provider_zeus.reports.run_figures import RunFigures, RunSaving
from airflow_provider_zeus.signals.prices import Prices
from tests.unit.reports.test_run_figures import DEFAULTS, saving, trial

SCHEMA = json.loads(
    (Path(airflow_provider_zeus.__file__).parent / "schemas/1-0-0/ZeusRunFacet.json").read_text()
)
SEEN = Observation(
    energy_j=3.6e6, time_s=7200.0, power_limit_w=175.0, energy_source="nvml_counter", device_count=2
)
NO_PRICES = Prices()


def figures(
    cost: dict[str, Any], seen: list[Observation], prices: Prices, saved: RunSaving | None
) -> dict[str, Any]:
    ended = [replace(trial(i, 32, 1.0), observation=o) for i, o in enumerate(seen, 1)]
    return RunFigures(cost=cost, ended=ended, saving=saved).as_event(prices)


def cost(*seen: Observation, **changes: Any) -> dict[str, Any]:
    """XCom ``zeus_cost`` of attempts, the last of which is kept."""
    attempts = [
        {"attempt": i + 1, "kept": i + 1 == len(seen), **o.to_dict()} for i, o in enumerate(seen)
    ]
    totals = {
        name: None if None in (values := [a[name] for a in attempts]) else sum(values)
        for name in ("energy_j", "time_s")
    }
    return {
        "job_id": "d.train",
        "batch_size": 64,
        "kept_attempt": len(seen),
        "attempts": attempts,
        **totals,
        **changes,
    }


def test_each_figure_has_a_unit_and_a_source() -> None:
    prices = Prices(
        price_per_kwh=0.5, price_per_gpu_hour=2.0, g_co2e_per_kwh=400.0, pue=1.5, currency="EUR"
    )
    assert figures(cost(SEEN), [SEEN], prices, None) == {
        "job_id": "d.train",
        "batch_size": 64,
        "power_limit_w": 175.0,
        "energy_j": 3.6e6,
        "energy_source": "nvml_counter",
        "time_s": 7200.0,
        "time_source": "measured",
        "money": pytest.approx(1.5 * 0.5 + 4 * 2.0),
        "currency": "EUR",
        "money_source": "[zeus] price_per_gpu_hour; [zeus] price_per_kwh",
        "co2e_g": pytest.approx(600.0),
        "co2e_source": "[zeus] g_co2e_per_kwh",
    }


def test_a_run_without_a_batch_size_tells_what_its_limit_saved() -> None:
    limit = LimitSaving(
        1, 250.0, 4e6, 7000.0, Estimate(4e5, 3e5, 5e5), Estimate(-200.0, -300.0, -100.0)
    )
    ended = [replace(trial(1, 32, 1.0), observation=SEEN)]
    event = RunFigures(cost=cost(SEEN), ended=ended, limit=limit).as_event(NO_PRICES)
    assert {
        name: value for name, value in event.items() if name.startswith(("saved", "default"))
    } == {
        "saved_j": 4e5,
        "saved_low_j": 3e5,
        "saved_high_j": 5e5,
        "saved_s": -200.0,
        "saved_low_s": -300.0,
        "saved_high_s": -100.0,
        "saved_verdict": "saved",
        "saved_source": "estimated",
    }


def test_hours_that_were_priced_say_who_priced_them() -> None:
    fields_of = {
        "price_per_kwh": 0.2,
        "price_currency": "EUR",
        "price_source": "api.example.org",
        "g_co2e_per_kwh": 100.0,
    }
    seen = Observation(
        energy_j=3.6e6, time_s=10.0, energy_source="rapl", g_co2e_source="grid", **fields_of
    )
    found = figures(cost(seen), [seen], Prices(price_per_kwh=9.0, currency="EUR"), None)
    assert found["money"] == pytest.approx(0.2)
    assert "api.example.org" in found["money_source"]
    assert found["co2e_g"] == pytest.approx(100.0)
    assert "grid" in found["co2e_source"]


@pytest.mark.parametrize(
    ("prices", "reason"),
    [
        (NO_PRICES, "nothing is set"),
        (Prices(price_per_kwh=0.3), "money without a currency has no unit"),
        (Prices(currency="EUR"), "no price"),
    ],
)
def test_money_is_absent_without_price_or_unit(prices: Prices, reason: str) -> None:
    assert not {"money", "currency", "money_source"} & set(
        figures(cost(SEEN), [SEEN], prices, None)
    ), reason


def test_energy_that_is_not_known_leaves_out_all_that_depends_on_it() -> None:
    seen = Observation(time_s=7200.0)
    found = figures(
        cost(seen), [seen], Prices(price_per_kwh=0.5, currency="EUR", g_co2e_per_kwh=400.0), None
    )
    assert found == {
        "job_id": "d.train",
        "batch_size": 64,
        "time_s": 7200.0,
        "time_source": "measured",
    }


def test_energies_of_different_sources_are_not_added() -> None:
    other = Observation(energy_j=10.0, time_s=5.0, energy_source="estimate")
    found = figures(cost(SEEN, other), [SEEN, other], NO_PRICES, None)
    assert "energy_j" not in found
    assert found["time_s"] == 7205.0


def test_a_run_that_kept_no_model_has_no_batch_size_and_no_limit() -> None:
    none_kept = cost(SEEN, batch_size=None, kept_attempt=None)
    none_kept["attempts"][0]["kept"] = False
    found = figures(none_kept, [SEEN], NO_PRICES, None)
    assert not {"batch_size", "power_limit_w"} & set(found)
    assert found["energy_j"] == 3.6e6


def test_a_saving_has_its_interval_and_its_verdict() -> None:
    """The default never ran on the slice of the third run: what it would have cost is estimated."""
    sure = saving(trial(1, 32, 4.0))
    estimated = saving(trial(3, 16, 2.0))
    for known in (sure, estimated):
        found = figures(cost(SEEN), [SEEN], NO_PRICES, known)
        for unit, saved in (("j", known.energy.saved), ("s", known.time.saved)):
            ends = [found[f"saved_{end}{unit}"] for end in ("low_", "", "high_")]
            assert ends == [saved.low, saved.value, saved.high]
        assert found["saved_verdict"] == known.cost.saved.verdict
    assert sure.energy.saved.low == sure.energy.saved.high
    assert (estimated.energy.saved.low or 0.0) < (estimated.energy.saved.high or 0.0)


@pytest.mark.parametrize(
    ("saved", "verdict"),
    [
        (Estimate(5.0, 1.0, 9.0), "saved"),
        (Estimate(-5.0, -9.0, -1.0), "lost"),
        (Estimate(5.0, -1.0, 9.0), "undecided"),
        (Estimate(0.0, 0.0, 0.0), "undecided"),
        (Estimate.missing("the default has not run"), None),
    ],
)
def test_the_verdict_is_that_of_the_pages(saved: Estimate, verdict: str | None) -> None:
    assert saved.verdict == verdict


@given(
    text=st.text(max_size=5000),
    number=st.one_of(st.none(), st.floats()),
    size=st.one_of(st.none(), st.integers(1, 2**40)),
)
def test_whatever_a_training_reports_the_figures_are_small_json(
    text: str, number: float | None, size: int | None
) -> None:
    seen = Observation(energy_j=number, time_s=number, power_limit_w=number, energy_source=text)
    found = figures(cost(seen, job_id=text, batch_size=size), [seen], NO_PRICES, None)
    assert len(json.dumps(found, allow_nan=False)) < 12_000
    assert ("energy_j" in found) == ("energy_source" in found)
    assert ("time_s" in found) == ("time_source" in found)
    assert None not in found.values()
    assert found.get("energy_j", 0.0) >= 0
    kinds = {
        unicodedata.category(c) for value in found.values() if isinstance(value, str) for c in value
    }
    assert not {"Cc", "Cs"} & kinds, "a database takes neither NUL nor surrogates"


def test_the_facet_is_what_its_schema_says() -> None:
    pytest.importorskip(
        "airflow.providers.openlineage", reason="OpenLineage's provider is not installed"
    )
    from jsonschema import Draft202012Validator
    from openlineage.client.serde import Serde

    from airflow_provider_zeus.operators.openlineage import FACET, ZeusRunFacet, lineage_of

    Draft202012Validator.check_schema(SCHEMA)
    own = {a.name for a in ZeusRunFacet.__attrs_attrs__}
    assert own == set(SCHEMA["properties"])
    prices = Prices(price_per_kwh=0.5, price_per_gpu_hour=2.0, g_co2e_per_kwh=400.0, currency="EUR")
    for found in (
        figures(cost(SEEN), [SEEN], prices, None),
        figures(cost(SEEN), [SEEN], prices, saving(trial(3, 16, 2.0))),
        figures(cost(Observation()), [Observation()], prices, None),
    ):
        sent = json.loads(Serde.to_json(lineage_of(found).run_facets[FACET]))
        Draft202012Validator(SCHEMA).validate(sent)
        assert len(sent) == len(found) + 2, "what is not known is absent"
    sent["energyJ"] = 1.0
    assert not Draft202012Validator(SCHEMA).is_valid(sent), "a figure without its source"
    assert not Draft202012Validator(SCHEMA).is_valid(
        {**sent, "energySource": "rapl", "joules": 1}
    ), "another figure"


def test_failed_tries_are_told_and_a_run_that_its_profile_re_costed_is_estimated() -> None:
    died = trial(8, 32, 2.0, State.FAILED, run="r")
    kept = trial(9, 32, 5.0, run="r")
    run = RunFigures(cost=cost(SEEN), ended=[kept], newest=[died, kept])
    event = run.as_event(NO_PRICES)
    told = {"failed_tries": 1, "cleared_tries": 0, "aside_j": 200.0, "aside_s": 2.0}
    assert told.items() <= event.items()
    low = [replace(t, observation=replace(t.observation, power_limit_w=150.0)) for t in DEFAULTS]
    own = replace(trial(9, 32, 5.0), observation=low[0].observation)
    recosted = saving(own, before=low)
    assert recosted.measured
    assert figures(cost(SEEN), [SEEN], NO_PRICES, recosted)["saved_source"] == "estimated"
    at_full = saving(trial(9, 32, 5.0))
    assert figures(cost(SEEN), [SEEN], NO_PRICES, at_full)["saved_source"] == "measured"
