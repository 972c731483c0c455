"""The passport of a kept model: valid CycloneDX 1.6, its totals those of the log, nothing unknown as 0."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_zeus.model.job_checks import Start
from airflow_provider_zeus.model.trial import Lineage, Origin, State, Trial
from airflow_provider_zeus.reports.passport import passport
from airflow_provider_zeus.signals.prices import Prices
from tests.strategies import make_trial
from tests.unit.reports.test_savings import JOB

KWH_J = 3.6e6


def trial(number: int, run: str, state: State = State.CONVERGED, **seen: Any) -> Trial:
    figures = {"energy_j": number * KWH_J, "time_s": 10.0, "device_model": "V100", "energy_source": "nvml_counter"}
    made = make_trial(number, 32, state, job=JOB, **{**figures, **seen})
    return replace(made, origin=Origin(dag_id="d", run_id=run, task_id="t"))


def valid(document: Any) -> dict[str, Any]:
    """What is said of the environment, of a document that the official schema takes."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = json.dumps(document, allow_nan=False)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    (model,) = document["components"]
    assert model["type"] == "machine-learning-model"
    found: dict[str, Any] = model["modelCard"]["considerations"]["environmentalConsiderations"]
    return found


def kwh(said: dict[str, Any]) -> list[float]:
    return [each["activityEnergyCost"]["value"] for each in said["energyConsumptions"]]


def properties(of: dict[str, Any]) -> dict[str, str]:
    return {each["name"].removeprefix("zeus:"): each["value"] for each in of.get("properties", ())}


def test_all_attempts_of_the_run_that_kept_the_model_are_in_it() -> None:
    log = [trial(1, "r1"), trial(2, "r2", State.GIVEN_UP), trial(3, "r2"), trial(4, "r3", State.FAILED)]
    document = passport(log, Prices(g_co2e_per_kwh=400.0, pue=1.5))
    (entry,) = valid(document)["energyConsumptions"]
    assert (entry["activity"], entry["activityEnergyCost"]) == ("training", {"value": 5.0, "unit": "kWh"})
    assert entry["co2CostEquivalent"] == {"value": pytest.approx(5 * 1.5 * 400 / 1e6), "unit": "tCO2eq"}
    assert properties(entry) == {"run": "d/r2", "source": "measured", "attempts": "2", "devices": "V100"}
    assert entry["energyProviders"] == [], "who supplied it is not known"


def test_a_model_that_started_from_earlier_ones_has_their_energy_too() -> None:
    def from_(parent: Trial, child: Trial) -> Trial:
        seen = replace(child.observation, start=Start.WARM)
        return replace(child, observation=seen, lineage=Lineage.after(parent, 1))

    first, other = trial(1, "r1"), trial(2, "r2")
    second = from_(first, trial(3, "r3"))
    third = from_(second, trial(4, "r4"))
    said = valid(passport([first, other, second, third], Prices()))
    assert [each["activity"] for each in said["energyConsumptions"]] == ["fine-tuning", "fine-tuning", "training"]
    assert kwh(said) == [4.0, 3.0, 1.0]
    assert "co2CostEquivalent" not in said["energyConsumptions"][0], "no intensity is set"
    said = valid(passport([other, second, third], Prices()))
    assert kwh(said) == [4.0, 3.0]
    assert properties(said) == {"not_known": "the log has no trial ti-1, which trained an earlier model"}
    circle = replace(second, lineage=Lineage.after(third, 1))
    assert kwh(valid(passport([circle, third], Prices()))) == [4.0, 3.0], "a damaged log ends"


def test_what_is_not_known_is_named_and_never_0() -> None:
    alone = trial(1, "r1", energy_j=None, energy_source=None)
    said = valid(passport([alone], Prices(g_co2e_per_kwh=1.0)))
    assert said["energyConsumptions"] == []
    assert properties(said) == {"not_known": "the energy of 1 of the attempts of d/r1"}
    said = valid(passport([trial(1, "r1", State.FAILED, energy_j=None), trial(2, "r1")], Prices()))
    assert (kwh(said), properties(said)) == ([2.0], {"not_known": "the energy of 1 of the attempts of d/r1"})


def test_kinds_of_sources_are_not_added() -> None:
    log = [trial(1, "r1", State.FAILED, energy_source="estimate"), trial(2, "r1")]
    said = valid(passport(log, Prices()))
    assert [properties(each)["source"] for each in said["energyConsumptions"]] == ["estimated", "measured"]
    assert kwh(said) == [1.0, 2.0]


def test_a_hostile_name_is_escaped() -> None:
    odd = replace(trial(1, "r\x1b[31m\u202e"), job_id="j\x00")
    assert "\\u001b" not in json.dumps(passport([odd], Prices()))
    valid(passport([odd], Prices()))


def test_a_job_without_a_model_has_none() -> None:
    assert passport([trial(1, "r1", State.FAILED)], Prices()) is None
    assert passport([], Prices()) is None
