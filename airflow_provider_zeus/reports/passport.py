"""The passport of a kept model: what its training drew, as CycloneDX 1.6 says it of a machine learning model. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_zeus.model.trial import State, Trial, TrialKey
from airflow_provider_zeus.printable import visible
from airflow_provider_zeus.reports.dataset import runs_of
from airflow_provider_zeus.reports.months import kind_of
from airflow_provider_zeus.signals.prices import Prices
from airflow_provider_zeus.units import J_PER_KWH


def passport(trials: Sequence[Trial], prices: Prices) -> dict[str, Any] | None:
    """The document about the newest model that a job kept; None: there is none.

    It has an entry for each run that the model comes from, back to a cold start, and each kind of source: all tries and
    attempts of the run, those that left no model too. What is not known is named in a property.

    :param trials: the whole log of the job; ``prices``: in force.
    """
    runs = {t.key: run for run in runs_of(trials) for t in run}
    kept = [t for t in trials if t.state.kept_model or t.state is State.DONE]
    if not kept:
        return None
    newest, entries, notes = max(kept, key=lambda t: t.number), list[dict[str, Any]](), list[dict[str, str]]()
    for key, trial in _lineage(newest, runs):
        if trial is None:
            notes.append(_property("not_known", f"the log has no trial {key.ti_id}, which trained an earlier model"))
            continue
        entries += _consumptions(trial, runs[key], prices)
        silent = sum(t.observation.energy_j is None and t.state is not State.NOT_NEEDED for t in runs[key])
        if silent:
            notes.append(_property("not_known", f"the energy of {silent} of the attempts of {_run(trial)}"))
    considerations = {"energyConsumptions": entries, **({"properties": notes} if notes else {})}
    job, size = newest.spec, newest.batch_size
    told = {"run": _run(newest), "state": newest.state.text, "target": job.get("target"), "batch_size": size}
    model = {
        "type": "machine-learning-model",
        "bom-ref": f"zeus-trial-{newest.number}",
        "name": visible(newest.job_id),
        "version": str(newest.number),
        "modelCard": {"considerations": {"environmentalConsiderations": considerations}},
        "properties": [_property(name, str(value)) for name, value in told.items() if value is not None],
    }
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": [model]}


def _lineage(newest: Trial, runs: Mapping[TrialKey, Sequence[Trial]]) -> Iterator[tuple[TrialKey, Trial | None]]:
    """The trial of a model, of the one that it started from, and so on; None for one that the log does not hold."""
    seen, key = set[TrialKey](), newest.key
    while key not in seen:
        seen.add(key)
        trial = next((t for t in runs.get(key, ()) if t.key == key), None)
        yield key, trial
        if trial is None or not trial.generations or trial.lineage.from_ti_id is None:
            return
        key = TrialKey(trial.lineage.from_ti_id, trial.lineage.from_attempt or 1)


def _consumptions(trial: Trial, run: Sequence[Trial], prices: Prices) -> Iterator[dict[str, Any]]:
    """What a run drew, an entry for each kind of source: figures of different kinds are never added."""
    drawn = [t.observation for t in run if t.observation.energy_j is not None]
    for kind in dict.fromkeys(kind_of(o.energy_source) for o in drawn):
        seen = [o for o in drawn if kind_of(o.energy_source) == kind]
        energy_j = math.fsum(o.energy_j or 0.0 for o in seen)
        grams = prices.at_the_time(seen).co2e_g_of(energy_j)
        devices = dict.fromkeys(o.device_model for o in seen if o.device_model is not None)
        told = {"run": _run(trial), "source": kind, "attempts": str(len(seen)), "devices": ", ".join(devices)}
        entry = {
            "activity": "fine-tuning" if trial.generations else "training",
            "energyProviders": [],  # who supplied it is not known
            "activityEnergyCost": {"value": energy_j / J_PER_KWH, "unit": "kWh"},
            "properties": [_property(name, value) for name, value in told.items() if value],
        }
        if grams is not None:
            entry["co2CostEquivalent"] = {"value": grams / 1e6, "unit": "tCO2eq"}
        yield entry


def _run(trial: Trial) -> str:
    return "/".join(filter(None, (trial.origin.dag_id, trial.origin.run_id))) or trial.key.ti_id


def _property(name: str, value: str) -> dict[str, str]:
    return {"name": f"zeus:{name}", "value": visible(value)}
